from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError, EnvError
from burnish.core.spec import ArraySpec, PolicySpec
from burnish.deploy.robot import RealClock, SimulatedClock
from burnish.deploy.robots.lerobot import Config, LeRobotRobot
from burnish.deploy.robots.wiring import Wiring, WiringConfig, resize

STATE, WRIST = "observation.state", "observation.images.wrist"
NUMBERS = ["pan.pos", "lift.pos", "grip.pos", "pan.vel"]


def make_spec(**changes: Any) -> PolicySpec:
    fields: dict[str, Any] = {
        "observation": {
            STATE: ArraySpec((2,), unit="rad", names=("lift", "pan")),
            WRIST: ArraySpec((4, 6, 3), "uint8"),
        },
        "action": ArraySpec((2,), names=("grip.pos", "pan"), low=-1.0, high=1.0),
    }
    return PolicySpec("p", **{**fields, **changes}, chunk_steps=2)


def make(config: WiringConfig | None = None, spec: PolicySpec | None = None, **changes: Any) -> Wiring:
    fields: dict[str, Any] = {"numbers": NUMBERS, "pictures": {"wrist": (4, 6, 3)}, "commands": NUMBERS[:3]}
    return Wiring(config or WiringConfig(), spec or make_spec(), where="arm", **{**fields, **changes})


def readings(**changes: Any) -> dict[str, Any]:
    return {
        "pan.pos": 1.0,
        "lift.pos": 2.0,
        "grip.pos": 3.0,
        "pan.vel": 0.0,
        "wrist": np.zeros((4, 6, 3), np.uint8),
    } | {name.replace("_", "."): value for name, value in changes.items()}


def test_entries_are_found_by_name_whatever_the_robots_order() -> None:
    wiring = make()
    observation = wiring.observation(readings())
    np.testing.assert_array_equal(observation[STATE], np.float32([[2.0, 1.0]]))
    assert observation[WRIST].shape == (1, 4, 6, 3)
    assert observation["task"] == [""]
    assert wiring.command(np.float32([0.5, -0.25])) == {"grip.pos": 0.5, "pan.pos": -0.25}
    assert wiring.readings == ("lift.pos", "pan.pos")
    assert "action -> grip.pos, pan.pos" in wiring.table()


def test_what_is_said_wins_and_units_are_scaled_both_ways() -> None:
    config = WiringConfig(
        observe=(f"{STATE}=pan.pos,pan.vel",),
        act=("lift.pos", "pan.pos"),
        scale=("pan.*=0.5", "lift.pos=-2"),
        task="go",
    )
    wiring = make(config)
    observation = wiring.observation(readings(pan_vel=8.0))
    np.testing.assert_array_equal(observation[STATE], np.float32([[0.5, 4.0]]))
    assert observation["task"] == ["go"]
    assert wiring.command(np.float32([1.0, 1.0])) == {"lift.pos": -0.5, "pan.pos": 2.0}


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (WiringConfig(observe=("observation.pose=pan.pos",)), "does not read 'observation.pose'"),
        (WiringConfig(observe=(f"{STATE}=pan.pos,pann.pos",)), "arm has no 'pann.pos'. Did you mean 'pan.pos'"),
        (WiringConfig(observe=(f"{STATE}=pan.pos",)), "has 2 entries .lift, pan., 1 named"),
        (WiringConfig(observe=("pan.pos",)), "wants name=value"),
        (WiringConfig(observe=(f"{WRIST}=front",)), "needs one camera of arm, found 'front'"),
        (WiringConfig(act=("pan.pos", "pan.pos")), "named twice"),
        (WiringConfig(scale=("*=0",)), "not 0"),
        (WiringConfig(scale=("*=x",)), "not 0"),
    ],
)
def test_mistakes_are_found_before_anything_moves(config: WiringConfig, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make(config)


def test_an_order_is_never_guessed() -> None:
    nameless = make_spec(action=ArraySpec((3,)))
    with pytest.raises(ConfigError, match=r"entries have no names.*It offers: pan.pos, lift.pos, grip.pos"):
        make(spec=nameless)
    other = make_spec(action=ArraySpec((2,), names=("pan", "elbow")))
    with pytest.raises(ConfigError, match="it has no elbow"):
        make(spec=other)


def test_pictures_of_another_size_are_refused_or_resized() -> None:
    with pytest.raises(ConfigError, match=r"gives 8 x 12 pixels .height x width., the policy reads 4 x 6"):
        make(pictures={"wrist": (8, 12, 3)})
    wiring = make(WiringConfig(resize=True), pictures={"wrist": (8, 12, 3)})
    picture = np.zeros((8, 12, 3), np.uint8)
    picture[:, 6:] = 200
    small = wiring.observation(readings(wrist=picture))[WRIST][0]
    assert small.shape == (4, 6, 3)
    assert abs(int(small[:, :2].mean())) <= 2
    assert abs(int(small[:, 4:].mean()) - 200) <= 2
    late = make(pictures={"wrist": ()})
    with pytest.raises(EnvError, match="gives 8 x 12 pixels"):
        late.observation(readings(wrist=picture))
    with pytest.raises(EnvError, match="not uint8"):
        late.observation(readings(wrist=picture.astype(float)))


def test_area_filter_averages() -> None:
    picture = np.zeros((8, 8, 3), np.uint8)
    picture[::2] = 100
    assert abs(float(resize(picture, 4, 4).mean()) - 50) < 3


def test_a_missing_reading_is_named() -> None:
    with pytest.raises(EnvError, match=r"arm gave no 'lift.pos'; it gave"):
        make().observation({"pan.pos": 1.0})


class Device:
    """What ``lerobot.robots.Robot`` offers, in memory."""

    name = "toy"
    observation_features: dict[str, Any] = {**dict.fromkeys(NUMBERS, float), "wrist": (4, 6, 3)}  # noqa: RUF012
    action_features: dict[str, Any] = dict.fromkeys(NUMBERS[:3], float)

    def __init__(self, limit: float = 9.0) -> None:
        self.sent: list[dict[str, Any]] = []
        self.limit = limit

    def get_observation(self) -> dict[str, Any]:
        return readings()

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self.sent.append(action)
        return {key: min(value, self.limit) for key, value in action.items()}


def test_a_lerobot_device_is_a_robot() -> None:
    device, clock = Device(limit=0.4), SimulatedClock()
    clock.sleep_until(3.0)
    robot = LeRobotRobot(device, Config(), clock)
    assert robot.offer().observation[STATE].names == tuple(NUMBERS)
    assert robot.offer().action.names == tuple(NUMBERS[:3])
    robot.wire(make_spec(), 0.1)
    assert (robot.spec.id, robot.spec.control_dt) == ("lerobot:toy", 0.1)
    sensed = robot.observe()
    assert sensed.time == 3.0
    np.testing.assert_array_equal(sensed.observation[STATE], np.float32([[2.0, 1.0]]))
    robot.send(np.float32([0.5, 0.25]))
    robot.stop(np.float32([0.0, 0.0]))
    assert device.sent == [{"grip.pos": 0.5, "pan.pos": 0.25}, {"grip.pos": 0.0, "pan.pos": 0.0}]
    assert robot.changed == 1


def test_a_control_step_must_be_known() -> None:
    robot = LeRobotRobot(Device(), Config(), RealClock())
    with pytest.raises(ConfigError, match=r"set --adapter.control_dt"):
        robot.wire(make_spec(), 0.0)


def test_what_is_offered_can_be_said() -> None:
    wiring = WiringConfig(observe=("observation.joints=pan.pos", "observation.images.hand=wrist"), act=("grip.pos",))
    spec = LeRobotRobot(Device(), Config(wiring), RealClock()).offer()
    assert spec.observation["observation.joints"].names == ("pan.pos",)
    assert spec.observation["observation.images.hand"].shape == (4, 6, 3)
    assert spec.action.names == ("grip.pos",)
    bad = WiringConfig(observe=("observation.images.hand=front",))
    with pytest.raises(ConfigError, match="lerobot:toy has no 'front'"):
        LeRobotRobot(Device(), Config(bad), RealClock()).offer()
