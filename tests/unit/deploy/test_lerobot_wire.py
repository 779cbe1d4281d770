import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.errors import ProtocolError
from burnish.core.spec import ArraySpec, PolicySpec
from burnish.deploy.lerobot_wire import (
    Feature,
    Seen,
    Transfer,
    assemble,
    decode_fields,
    encode_bytes,
    read_observation,
    read_setup,
    write_actions,
)
from burnish.deploy.observations import ObservationReader
from burnish.deploy.robot_keys import RobotKeys, resize_bilinear
from burnish.deploy.unpickling import Limits
from tests.unit.deploy.affine import STATE, WRIST, make_spec
from tests.unit.deploy.lerobot_peer import TimedObservation, dumps, features, observation, setup, values

LIMITS = Limits()
FORCE = "observation.wrench"


def piece(state: int, data: bytes) -> bytes:
    return bytes([8, state]) + encode_bytes(2, data)


@given(st.binary(max_size=300), st.integers(0, 3), st.binary(max_size=40))
@settings(max_examples=100, deadline=None)
def test_messages_are_protobufs(data: bytes, state: int, extra: bytes) -> None:
    services = pytest.importorskip("lerobot.transport.services_pb2")
    assert encode_bytes(1, data) == services.Actions(data=data).SerializeToString()
    theirs = services.Observation(transfer_state=state, data=data).SerializeToString()
    unknown = encode_bytes(9, extra) + bytes([3 << 3 | 5]) + b"1234" + bytes([4 << 3 | 1]) + b"12345678"
    assert decode_fields(unknown + theirs, integer=1, data=2) == (state, data)


@pytest.mark.parametrize(
    "message",
    [b"\x08", b"\x12\x05abc", b"\x0b", b"\x12\xff\xff\xff\xff\x0f", b"\x08" + b"\xff" * 11, b"\x02\x01a", b"\x10\x01"],
)
def test_other_messages_are_refused(message: bytes) -> None:
    with pytest.raises(ProtocolError, match="not one of lerobot's"):
        decode_fields(message, integer=1, data=2)


def test_pieces_are_put_together() -> None:
    assert assemble([piece(Transfer.END, b"abc")], 10) == b"abc"
    pieces = [piece(Transfer.BEGIN, b"ab"), piece(Transfer.MIDDLE, b"c"), piece(Transfer.END, b"d")]
    assert assemble(pieces, 10) == b"abcd"
    assert assemble([piece(Transfer.MIDDLE, b"old"), *pieces], 10) == b"abcd"


@pytest.mark.parametrize(
    ("pieces", "match"),
    [
        ([], "without its last piece"),
        ([piece(Transfer.BEGIN, b"a")], "without its last piece"),
        ([piece(Transfer.UNKNOWN, b"a")], "state 0 is unknown"),
        ([piece(7, b"a")], "state 7 is unknown"),
        ([piece(Transfer.BEGIN, b"abcdef"), piece(Transfer.MIDDLE, b"abcdef")], "more than 10 bytes"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(pieces: list[bytes], match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        assemble(pieces, 10)


def test_actions_come_to_life_as_lerobots_own_on_the_other_side() -> None:
    helpers = pytest.importorskip("lerobot.async_inference.helpers")
    chunk = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    actions = pickle.loads(write_actions(chunk, Seen(100.0, 7, True, {}), 0.05))
    assert all(type(action) is helpers.TimedAction for action in actions)
    assert [action.get_timestep() for action in actions] == [7, 8, 9, 10, 11]
    assert [action.get_timestamp() for action in actions] == pytest.approx([100.0, 100.05, 100.1, 100.15, 100.2])
    assert actions[0].get_action().dtype == torch.float32
    np.testing.assert_array_equal(torch.stack([action.get_action() for action in actions]).numpy(), chunk)


def test_setup_says_what_the_robot_has() -> None:
    read = read_setup(setup(), LIMITS)
    assert (read.policy_type, read.path, read.actions_per_chunk) == ("act", "/somewhere/else", 3)
    assert read.features[STATE] == Feature((3,), ("a.pos", "b.pos", "c.pos"), False)
    assert read.features[WRIST] == Feature((8, 6, 3), ("wrist",), True)
    renamed = read_setup(
        setup(
            lerobot_features=features(front=(8, 6, 3)),
            rename_map={"observation.images.front": WRIST},
        ),
        LIMITS,
    )
    assert renamed.features[WRIST].names == ("front",)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (dumps({"policy_type": "act"}), "Expected a RemotePolicyConfig, received dict"),
        (observation(), "Expected a RemotePolicyConfig, received Record"),
        (setup(actions_per_chunk=0), "actions_per_chunk must be"),
        (setup(actions_per_chunk=True), "actions_per_chunk must be"),
        (setup(policy_type=None), "must hold policy_type"),
        (setup(lerobot_features=[1]), "must hold policy_type"),
        (setup(lerobot_features={"observation.state": 1}), "must be a dict"),
        (setup(lerobot_features={"observation.state": {"dtype": "float32", "shape": (2,)}}), "with names"),
        (setup(lerobot_features={"observation.state": {"dtype": "float32", "shape": (-2,)}}), "tuple of sizes"),
        (setup(lerobot_features={"a": {"dtype": "float32", "shape": (1,), "names": [[]]}}), "must be texts"),
        (setup(lerobot_features={"a": {"dtype": ["image"], "shape": (1, 1, 3), "names": []}}), "expected a picture"),
        (setup(lerobot_features={str(n): {} for n in range(65)}), "at most 64"),
        (setup(rename_map={"observation.state": WRIST}), "the same name"),
        (setup(rename_map={"observation.state": 1}), "from text to text"),
    ],
)
def test_other_setups_are_refused(message: bytes, match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        read_setup(message, LIMITS)


def test_an_observation_is_read_in_every_protocol_of_pickle() -> None:
    for protocol in (3, 4, 5):
        seen = read_observation(observation(4, must_go=False, protocol=protocol), LIMITS)
        assert (seen.timestamp, seen.timestep, seen.must_go) == (100.0, 4, False)
        assert seen.values["wrist"].shape == (8, 6, 3)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"timestamp": float("nan")}, "timestamp must be"),
        ({"timestamp": "now"}, "timestamp must be"),
        ({"timestep": -1}, "timestep must be"),
        ({"timestep": 1.0}, "timestep must be"),
        ({"timestep": 1 << 50}, "timestep must be"),
        ({"observation": None}, "must hold a dict"),
        ({"must_go": 1}, "must hold a dict"),
    ],
)
def test_other_observations_are_refused(fields: dict[str, Any], match: str) -> None:
    whole = {"timestamp": 1.0, "timestep": 1, "observation": {}, "must_go": True, **fields}
    with pytest.raises(ProtocolError, match=match):
        read_observation(dumps(TimedObservation(**whole)), LIMITS)


def keys(spec: PolicySpec, found: dict[str, Any], *, resize: bool = True) -> RobotKeys:
    return RobotKeys(
        spec, read_setup(setup(lerobot_features=found), LIMITS).features, ObservationReader(spec), resize=resize
    )


def test_a_robots_keys_become_the_policys() -> None:
    mapped = keys(make_spec(), features(wrist=(8, 6, 3)))
    message = mapped.message(values(**{"b.pos": np.float64(0.5), "c.pos": 2}))
    np.testing.assert_allclose(message[STATE], [0.1, 0.5, 2.0])
    assert message[STATE].dtype == np.float32
    assert message["task"] == "press"
    assert message[WRIST].shape == (8, 6, 3)
    assert mapped.warnings == [
        "The policy answers with 2 numbers, the robot has 3; entry i is for the i-th of its action_features."
    ]


def vectors(**named: tuple[str, ...]) -> PolicySpec:
    spec = {f"observation.{key}": ArraySpec((len(names),), names=names) for key, names in named.items()}
    return PolicySpec("affine", spec, ArraySpec((3,)), 4)


def test_names_win_over_order() -> None:
    mapped = keys(vectors(state=("c.pos", "a.pos"), wrench=("b.pos",)), features())
    message = mapped.message(values())
    np.testing.assert_allclose(message[STATE], [0.3, 0.1])
    np.testing.assert_allclose(message[FORCE], [0.2])
    assert not mapped.warnings


def test_without_common_names_the_order_decides_and_that_is_said() -> None:
    mapped = keys(vectors(state=("x", "y"), wrench=("force",)), features())
    message = mapped.message(values())
    np.testing.assert_allclose(message[STATE], [0.1, 0.2])
    np.testing.assert_allclose(message[FORCE], [0.3])
    assert "x <- a.pos, y <- b.pos" in mapped.warnings[0]


@pytest.mark.parametrize(
    ("spec", "found", "match"),
    [
        (make_spec(), features(), "no camera 'observation.images.wrist'"),
        (make_spec(), features(("a.pos",), wrist=(8, 6, 3)), "reads 3 numbers, the robot has 1"),
        (make_spec(), features(wrist=(8, 6, 1)), "the policy reads"),
        (make_spec(image=False), features(("a.pos", "a.pos", "b.pos")), "alike"),
        (PolicySpec("p", {STATE: ArraySpec((2, 2))}, ArraySpec((2,)), 4), features(), "neither a picture nor a vector"),
    ],
)
def test_robots_that_do_not_fit_are_refused_with_expected_and_received(
    spec: PolicySpec, found: dict[str, Any], match: str
) -> None:
    with pytest.raises(ProtocolError, match=match):
        keys(spec, found)


def test_a_refusal_names_both_sides() -> None:
    with pytest.raises(ProtocolError, match=r"Expected: observation.state float32\[3\].*Received: .*a.pos, b.pos"):
        keys(make_spec(), features(("a.pos", "b.pos"), wrist=(8, 6, 3)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"a.pos": None}, "'a.pos': expected a number, received nothing"),
        ({"a.pos": "1"}, "received str"),
        ({"a.pos": True}, "received bool"),
        ({"a.pos": np.zeros(1)}, "received ndarray"),
        ({"wrist": np.zeros((8, 6, 3))}, r"received float64\[8, 6, 3\]"),
        ({"wrist": np.zeros((6, 8, 3), np.uint8)}, r"received uint8\[6, 8, 3\]"),
        ({"wrist": None}, "received nothing"),
    ],
)
def test_values_of_another_kind_are_refused(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ProtocolError, match=match):
        keys(make_spec(), features(wrist=(8, 6, 3))).message(values(**change))


def test_pictures_of_another_size_are_scaled_or_refused() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (16, 12, 3)).astype(np.uint8)
    mapped = keys(make_spec(), features(wrist=(16, 12, 3)))
    assert "scaled from [16, 12] to [8, 6]" in mapped.warnings[0]
    assert mapped.message(values(wrist=picture))[WRIST].shape == (8, 6, 3)
    with pytest.raises(ProtocolError, match="the policy reads"):
        keys(make_spec(), features(wrist=(16, 12, 3)), resize=False)


@pytest.mark.parametrize(("height", "width"), [(8, 6), (16, 12), (5, 31), (1, 1), (40, 7)])
def test_scaling_is_torchs(height: int, width: int) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (16, 12, 3)).astype(np.uint8)
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(picture).permute(2, 0, 1)[None].float(), (height, width), mode="bilinear", align_corners=False
    )
    difference = resize_bilinear(picture, height, width) - theirs[0].permute(1, 2, 0).numpy()
    assert np.abs(difference).max() <= 0.5 + 1e-3
