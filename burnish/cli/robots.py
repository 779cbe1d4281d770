"""``--robot NAME``: a robot for the runtime; ``--robot.*`` are lerobot's own options, ``--adapter.*`` are ours."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from burnish.core.errors import ConfigError, EnvError, require, suggest
from burnish.core.spec import EnvSpec, PolicySpec
from burnish.deploy.robot import Clock, Robot

ROBOTS = ("lerobot:<type>", "ros2")
"""What can be driven; ``<type>`` is any robot of lerobot or of an installed ``lerobot_robot_*`` package."""

type Connect = Callable[[], None]


def adapter_of(name: str) -> type[Any]:
    """Return the class of a robot's ``--adapter.*`` options.

    Raises:
        ConfigError: If there is no such robot.
    """
    kind, _, model = name.partition(":")
    if kind == "ros2" and not model:
        from burnish.deploy.robots.ros2 import Config as Ros2Config

        return Ros2Config
    if kind == "lerobot":
        from burnish.deploy.robots.lerobot import Config as LeRobotConfig

        return LeRobotConfig
    raise ConfigError(f"There is no robot '{name}'.{suggest(name, ROBOTS)}")


def take_robot_options(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Take the ``--robot.*`` options, with their values, out of the arguments; they belong to lerobot's parser."""
    taken, rest = [], []
    items = list(arguments)
    while items:
        item = items.pop(0)
        if not item.startswith("--robot."):
            rest.append(item)
            continue
        taken.append("--" + item.removeprefix("--robot."))
        if "=" not in item and items and not items[0].startswith("--"):
            taken[-1] += f"={items.pop(0)}"
    return taken, rest


class Wirable(Robot, Protocol):
    """A robot that is wired to a policy after it was made."""

    def offer(self) -> EnvSpec:
        """Return what it offers to a policy that does not say what it reads."""
        ...

    def wire(self, policy: PolicySpec, control_dt: float) -> None:
        """Wire it."""
        ...


@contextmanager
def make_robot(name: str, options: list[str], adapter: Any, clock: Clock) -> Iterator[tuple[Wirable, Connect]]:
    """Make a robot that exists as long as the context lasts.

    Args:
        name: ``lerobot:<type>`` or ``ros2``.
        options: lerobot's own, as :func:`take_robot_options` gives them.
        adapter: Of :func:`adapter_of`.
        clock: The runtime's clock.

    Yields:
        (robot, what connects it once it is wired, so that wrong names move nothing)

    Raises:
        ConfigError: If options or names do not fit.
        EnvError: If the robot cannot be reached.
    """
    if name == "ros2":
        from burnish.deploy.robots.ros2 import Ros2Robot

        if options:
            raise ConfigError(f"--robot ros2 has no options {' '.join(options)}; its own begin with --adapter.")
        with Ros2Robot(adapter, clock) as robot:
            yield robot, lambda: None
        return
    from burnish.deploy.robots.lerobot import LeRobotRobot

    device = make_lerobot(name.partition(":")[2], options)

    def connect() -> None:
        try:
            device.connect()
        except Exception as error:  # every driver has its own
            raise EnvError(f"Cannot connect the robot '{name}': {type(error).__name__}: {error}") from error

    try:
        yield LeRobotRobot(device, adapter, clock), connect
    finally:
        if device.is_connected:
            device.disconnect()


def make_lerobot(model: str, options: list[str]) -> Any:
    """Return a lerobot robot, not connected.

    Args:
        model: Its type, for example ``so101_follower``.
        options: lerobot's, for example ``--port=/dev/ttyACM0``.

    Raises:
        ConfigError: If there is no such type, or lerobot does not accept the options.
        MissingExtraError: If lerobot is not installed.
    """
    require("lerobot", "lerobot", "lerobot robots")
    import draccus
    from lerobot.robots.config import RobotConfig
    from lerobot.robots.utils import make_robot_from_config
    from lerobot.utils.import_utils import register_third_party_plugins

    _import_known_types()
    register_third_party_plugins()
    known = RobotConfig.get_known_choices()
    if model not in known:
        raise ConfigError(f"lerobot knows no robot '{model}'.{suggest(model, known)}")
    try:
        config = draccus.parse(config_class=known[model], args=options)
    except SystemExit as end:  # its parser ends the process itself, after saying why
        raise ConfigError(
            f"lerobot does not accept these options of '{model}': {' '.join(options) or '(none)'}. It has: "
            f"{', '.join(field.name for field in dataclasses.fields(known[model]))}."
        ) from end
    except (draccus.utils.DraccusException, ValueError, TypeError) as error:
        raise ConfigError(f"lerobot does not accept these options of '{model}': {error}") from error
    return make_robot_from_config(config)


def _import_known_types() -> None:
    """Let lerobot's own robots and cameras register themselves, as its commands do."""
    from lerobot.cameras.opencv import OpenCVCameraConfig  # noqa: F401
    from lerobot.cameras.realsense import RealSenseCameraConfig  # noqa: F401
    from lerobot.cameras.zmq import ZMQCameraConfig  # noqa: F401
    from lerobot.robots import (  # noqa: F401
        bi_openarm_follower,
        bi_rebot_b601_follower,
        bi_so_follower,
        earthrover_mini_plus,
        hope_jr,
        koch_follower,
        lekiwi,
        omx_follower,
        openarm_follower,
        reachy2,
        rebot_b601_follower,
        so_follower,
        unitree_g1,
    )
