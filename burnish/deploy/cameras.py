"""Cameras that lie: a picture that is old, or one that does not change although the robot moves."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array, PolicySpec
from burnish.deploy.robot import Sensed

_FROZEN_S = 0.5


@dataclass(frozen=True)
class Config:
    """What is asked of the cameras a policy reads."""

    max_age_s: float = 0.0
    """A picture older than this stops the run, where the robot says when each was taken [s]; 0 for the age that holds
    for the whole observation."""
    max_frozen_s: float | None = None
    """How long a camera may show the very same picture, to the last bit, while the robot moves [s]; 0 for ever. None is
    0.5 s in real time and for ever in simulated time, where pictures of a scene that stands still are equal."""
    min_motion: float = 0.02
    """How far the robot must have got since the picture changed last, in one entry, in action units (integrated over
    time for velocities)."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if min(self.max_age_s, self.max_frozen_s or 0.0) < 0 or self.min_motion <= 0:
            raise ConfigError(
                "cameras: max_age_s and max_frozen_s must not be negative and min_motion positive, found "
                f"{self.max_age_s}, {self.max_frozen_s} and {self.min_motion}."
            )


def same_picture(before: Array, now: Array) -> bool:
    """Return whether two pictures (H, W, 3) are equal in every bit; a few rows tell live ones apart at once."""
    if before.shape != now.shape:
        return False
    return bool((before[:2] == now[:2]).all()) and bool((before == now).all())


@dataclass
class _Seen:
    picture: Array
    ticks: int
    position: Array


class CameraWatch:
    """Looks at every picture once per control tick."""

    def __init__(
        self, config: Config, policy: PolicySpec, control_dt: float, *, default_age_s: float, simulated: bool
    ) -> None:
        """Prepare.

        Args:
            config: What is asked.
            policy: Whose cameras are watched.
            control_dt: Seconds per tick.
            default_age_s: What ``max_age_s`` = 0 stands for.
            simulated: Whether time is.
        """
        self._keys = tuple(key for key, spec in policy.observation.items() if spec.is_image)
        self._age_s = config.max_age_s or default_age_s
        frozen_s = config.max_frozen_s if config.max_frozen_s is not None else 0.0 if simulated else _FROZEN_S
        self._frozen_ticks = round(frozen_s / control_dt) if frozen_s else 0
        self._dt, self._min_motion = control_dt, config.min_motion
        self.reset()

    def reset(self) -> None:
        """Forget all pictures."""
        self._seen: dict[str, _Seen] = {}

    @property
    def needs_position(self) -> bool:
        """Whether frozen pictures are looked for, so that it matters where the robot is."""
        return bool(self._keys and self._frozen_ticks)

    def problem(self, sensed: Sensed, now: float, position: Array) -> str:
        """Return why the run must stop, or "".

        Args:
            sensed: The newest observation.
            now: Time on the clock that stamped it [s].
            position: (A,) where the robot is, in action units.
        """
        if not self._keys:
            return ""
        return self._too_old(sensed.camera_time, now) or self._frozen(sensed, position)

    def _too_old(self, times: Mapping[str, float], now: float) -> str:
        for key in self._keys:
            if key in times and not now - times[key] <= self._age_s:
                return f"the picture '{key}' is {now - times[key]:.3g} s old; the limit is {self._age_s:.3g} s"
        return ""

    def _frozen(self, sensed: Sensed, position: Array) -> str:
        if not self._frozen_ticks:
            return ""
        for key in self._keys:
            picture = np.asarray(sensed.observation[key])[0]
            seen = self._seen.get(key)
            if seen is None or not same_picture(seen.picture, picture):
                self._seen[key] = _Seen(picture.copy(), 0, position)
                continue
            seen.ticks += 1
            way = float(np.abs(position - seen.position).max())
            if seen.ticks >= self._frozen_ticks and way >= self._min_motion:
                shown_s = seen.ticks * self._dt
                return f"camera '{key}' has shown the same picture for {shown_s:.3g} s, while the robot went {way:.3g}"
        return ""
