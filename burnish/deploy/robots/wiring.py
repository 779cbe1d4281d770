"""From a robot's readings to a policy's observation, and from an action to its commands, by name.

A robot offers *features*: numbers such as ``shoulder_pan.pos`` and pictures such as ``front``. Which of them make up
which entry of the policy's vectors is found by name or said; it is never guessed from an order, because joints in the
wrong order are the commonest way to break an arm.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.core.errors import ConfigError, EnvError, suggest
from burnish.core.spec import IMAGE_PREFIX, TASK_KEY, Array, ArraySpec, EnvSpec, Observation, PolicySpec

SECONDS = 3600
"""How long a run on a robot counts as one episode [s]."""
DEFAULT_CONTROL_DT = 0.05
"""Control step of what is offered to a policy that knows none [s]."""


@dataclass(frozen=True)
class WiringConfig:
    """Which readings and commands belong to which entries of the policy's vectors."""

    observe: tuple[str, ...] = ()
    """``key=feature,feature,...`` each, in the order of the policy's entries, for example
    ``observation.state=shoulder_pan.pos,elbow_flex.pos observation.images.wrist=hand``; keys that are left out are
    found by name."""
    act: tuple[str, ...] = ()
    """Robot's command for each entry of the action, in order; () finds them by name."""
    scale: tuple[str, ...] = ()
    """``pattern=factor`` each: policy value = factor * robot value, for features and commands whose name matches, for
    example ``*.pos=0.0174533`` for a robot in degrees and a policy in radians, or a negative factor for a joint
    that turns the other way."""
    resize: bool = False
    """Whether pictures of another size are resized (area filter) instead of refused."""
    task: str = ""
    """Instruction for policies that read one."""


class Wiring:
    """Made once per run; every mistake is found here, not while the robot moves."""

    def __init__(
        self,
        config: WiringConfig,
        policy: PolicySpec,
        *,
        numbers: Sequence[str],
        pictures: Mapping[str, tuple[int, ...]],
        commands: Sequence[str],
        where: str,
    ) -> None:
        """Connect names.

        Args:
            config: What is said.
            policy: What is read and answered.
            numbers: Names of the robot's readings.
            pictures: Name of each camera to its (H, W, 3), () where the size is not known before the first picture.
            commands: Names of what can be commanded.
            where: Name of the robot, for messages.

        Raises:
            ConfigError: If a name does not exist, is missing, or cannot be found without being told.
        """
        self._where = where
        self._resize = config.resize
        self.task = config.task
        said = dict(_pair(item, "observe") for item in config.observe)
        for key in said:
            if key not in policy.observation:
                raise ConfigError(f"observe: the policy does not read '{key}'.{suggest(key, policy.observation)}")
        self._vectors: dict[str, tuple[str, ...]] = {}
        self._pictures: dict[str, str] = {}
        for key, spec in policy.observation.items():
            names = tuple(said[key].split(",")) if key in said else ()
            if spec.is_image:
                self._pictures[key] = self._picture(key, spec, names, pictures)
            else:
                self._vectors[key] = self._names(f"observe: '{key}'", spec, names, numbers)
        self._commands = self._names("act: the action", policy.action, config.act, commands)
        if len(set(self._commands)) < len(self._commands):
            raise ConfigError(f"act: a command is named twice: {', '.join(self._commands)}.")
        factors = [(pattern, _number(text)) for pattern, text in (_pair(item, "scale") for item in config.scale)]
        self._factor = {key: _factors(names, factors) for key, names in self._vectors.items()}
        self._command_factor = _factors(self._commands, factors)
        self._spec = dict(policy.observation)

    @property
    def commands(self) -> tuple[str, ...]:
        """Names of the commands, in the order of the action's entries."""
        return self._commands

    @property
    def cameras(self) -> dict[str, str]:
        """Observation key of each picture to the camera that it comes from."""
        return dict(self._pictures)

    @property
    def readings(self) -> tuple[str, ...]:
        """Names of the numbers that are read."""
        return tuple(dict.fromkeys(name for names in self._vectors.values() for name in names))

    def table(self) -> str:
        """Return what is connected to what, one line per key."""
        rows = [f"  {key} <- {', '.join(names)}" for key, names in self._vectors.items()]
        rows += [f"  {key} <- camera {name}" for key, name in self._pictures.items()]
        return "\n".join([*rows, f"  action -> {', '.join(self._commands)}"])

    def observation(self, readings: Mapping[str, Any]) -> Observation:
        """Return the policy's observation (N = 1).

        Args:
            readings: At least the features that are connected, numbers and (H, W, 3) uint8 pictures.

        Raises:
            EnvError: If a reading is missing, or a picture has another size.
        """
        observation: Observation = {}
        for key, names in self._vectors.items():
            values = [float(self._reading(readings, name)) for name in names]
            spec = self._spec[key]
            observation[key] = (np.array(values) * self._factor[key]).astype(spec.dtype).reshape(1, *spec.shape)
        for key, name in self._pictures.items():
            observation[key] = self._sized(name, np.asarray(self._reading(readings, name)), self._spec[key].shape)[None]
        observation[TASK_KEY] = [self.task]
        return observation

    def actual(self, readings: Mapping[str, Any]) -> Array | None:
        """Return (A,) where what is commanded is now, in the action's entries; None where that is not read.

        Under position control this is what was done to the robot, by whoever drives it, but for the lag of its motors.
        """
        if not all(name in readings for name in self._commands):
            return None
        values = np.array([float(readings[name]) for name in self._commands])
        actual: Array = (values * self._command_factor).astype(np.float32)
        return actual

    def command(self, action: Array) -> dict[str, float]:
        """Return the robot's commands for an action (A,)."""
        values = np.asarray(action, float) / self._command_factor
        return dict(zip(self._commands, values.tolist(), strict=True))

    def _reading(self, readings: Mapping[str, Any], name: str) -> Any:
        if name not in readings:
            raise EnvError(f"{self._where} gave no '{name}'; it gave {', '.join(sorted(map(str, readings)))}.")
        return readings[name]

    def _names(self, what: str, spec: ArraySpec, said: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
        size = int(np.prod(spec.shape))
        if said:
            wrong = [name for name in said if name not in known]
            if wrong:
                raise ConfigError(f"{what}: {self._where} has no '{wrong[0]}'.{suggest(wrong[0], known)}")
            if len(said) != size:
                raise ConfigError(
                    f"{what} has {size} entries ({', '.join(spec.names) or 'without names'}), {len(said)} named."
                )
            return tuple(said)
        found = [_by_name(name, known) for name in spec.names]
        if not found or None in found:
            unknown = [name for name, feature in zip(spec.names, found, strict=True) if feature is None]
            detail = f"it has no {', '.join(unknown)}" if unknown else "the policy's entries have no names"
            raise ConfigError(
                f"{what} ({size} entries) cannot be found by name on {self._where}: {detail}. Say which belongs to "
                f"which, in the order of the policy's entries. It offers: {', '.join(known) or 'nothing'}."
            )
        return tuple(name for name in found if name is not None)

    def _picture(self, key: str, spec: ArraySpec, said: Sequence[str], pictures: Mapping[str, tuple[int, ...]]) -> str:
        name = said[0] if said else key.removeprefix(IMAGE_PREFIX)
        if len(said) > 1 or name not in pictures:
            raise ConfigError(
                f"observe: '{key}' needs one camera of {self._where}, found '{','.join(said) or name}'."
                f"{suggest(name, pictures)}"
            )
        size = pictures[name]
        if size and tuple(size) != spec.shape and not self._resize:
            raise ConfigError(_size_text(self._where, name, tuple(size), spec.shape))
        return name

    def _sized(self, name: str, picture: Array, shape: tuple[int, ...]) -> Array:
        if picture.shape == shape and picture.dtype == np.uint8:
            return picture
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise EnvError(
                f"Camera '{name}' of {self._where} gave {picture.dtype}{list(picture.shape)}, not uint8 (H, W, 3)."
            )
        if not self._resize:
            raise EnvError(_size_text(self._where, name, picture.shape, shape))
        return resize(picture, shape[0], shape[1])


def robot_spec(name: str, policy: PolicySpec, wiring: WiringConfig, control_dt: float) -> EnvSpec:
    """Return the spec of a robot that was wired to a policy: what the policy reads, and the limits of its action."""
    task = wiring.task or "run"
    return EnvSpec(
        id=name,
        observation=dict(policy.observation),
        action=policy.action,
        control_dt=control_dt,
        max_episode_steps=max(1, round(SECONDS / control_dt)),
        tasks=(task,),
    )


def control_step(said: float, of_policy: float) -> float:
    """Return the seconds between two actions.

    Raises:
        ConfigError: If neither the configuration nor the policy says them.
    """
    if not said and not of_policy:
        raise ConfigError("The policy does not say its control step; set --adapter.control_dt to its seconds.")
    return said or of_policy


def offer(
    name: str,
    config: WiringConfig,
    *,
    numbers: Sequence[str],
    pictures: Mapping[str, tuple[int, ...]],
    commands: Sequence[str],
    control_dt: float,
) -> EnvSpec:
    """Return what a robot offers to a policy that does not say what it reads.

    Keys that ``config.observe`` names hold what it names; without any, ``observation.state`` holds all numbers and
    every camera is ``observation.images.<name>``. The action has the commands of ``config.act``, or all.

    Raises:
        ConfigError: If a name does not exist.
    """
    said = {key: tuple(value.split(",")) for key, value in (_pair(item, "observe") for item in config.observe)}
    if not said:
        said = {"observation.state": tuple(numbers), **{IMAGE_PREFIX + camera: (camera,) for camera in pictures}}
    observation: dict[str, ArraySpec] = {}
    for key, names in said.items():
        known = pictures if key.startswith(IMAGE_PREFIX) else numbers
        wrong = [item for item in names if item not in known]
        if wrong:
            raise ConfigError(f"observe: {name} has no '{wrong[0]}'.{suggest(wrong[0], known)}")
        if key.startswith(IMAGE_PREFIX):
            observation[key] = ArraySpec(tuple(pictures[names[0]]), "uint8")
        else:
            observation[key] = ArraySpec((len(names),), names=names)
    chosen = tuple(config.act or commands)
    return EnvSpec(
        id=name,
        observation=observation,
        action=ArraySpec((len(chosen),), names=chosen),
        control_dt=control_dt,
        max_episode_steps=max(1, round(SECONDS / control_dt)),
        tasks=(config.task or "run",),
    )


def resize(picture: Array, height: int, width: int) -> Array:
    """Return a picture (H, W, 3) uint8 in another size, by averaging areas, as cameras are shrunk for datasets."""
    import av

    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    resized: Array = frame.reformat(width, height, "rgb24", interpolation="AREA").to_ndarray()
    return resized


def _by_name(name: str, known: Sequence[str]) -> str | None:
    """Return the feature of a policy entry: of the same name, or with ".pos" behind it."""
    return next((candidate for candidate in (name, f"{name}.pos") if candidate in known), None)


def _pair(item: str, field: str) -> tuple[str, str]:
    name, separator, value = item.partition("=")
    if not separator or not name or not value:
        raise ConfigError(f"{field} wants name=value, found '{item}'.")
    return name, value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value) or value == 0:
        raise ConfigError(f"scale wants a factor that is finite and not 0, found '{text}'.")
    return value


def _factors(names: Sequence[str], factors: Sequence[tuple[str, float]]) -> Array:
    return np.array([next((f for pattern, f in factors if fnmatch.fnmatch(name, pattern)), 1.0) for name in names])


def _size_text(where: str, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    return (
        f"Camera '{name}' of {where} gives {found[0]} x {found[1]} pixels (height x width), the policy reads "
        f"{wanted[0]} x {wanted[1]}. Set the camera's size, or let pictures be resized with --adapter.wiring.resize."
    )
