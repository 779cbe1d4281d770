"""What an episode draws at its start: where the fixture is, where it is believed to be, and how it feels."""

from dataclasses import dataclass

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array

SPLITS = ("shift", "nominal", "wide", "friction", "stiffness", "geometry")
"""Task names of every contact environment; ``shift`` is what is met in deployment, ``nominal`` in demonstrations, and
``wide`` has every estimate error from the wide range."""


@dataclass(frozen=True)
class Bias:
    """Error of the estimated fixture pose ("vision error"), hidden from a policy and constant over an episode.

    Along the uncertain axes it is a mixture: mostly small and normal, sometimes uniform over a wide range. On the split
    ``nominal``, where demonstrations are recorded, it is always small.
    """

    tail_probability: float = 0.45
    """Probability that the error of an episode is drawn from the wide range."""
    tail: float = 0.006
    """Half width of the wide range [m]."""
    core: float = 0.0003
    """Standard deviation of small errors, also along the axes that are known well [m]."""
    yaw: float = 0.005
    """Standard deviation of the yaw error [rad]."""

    def __post_init__(self) -> None:
        """Refuse what is not a distribution."""
        if not 0.0 <= self.tail_probability <= 1.0:
            raise ConfigError(f"Bias.tail_probability must be within [0, 1], found {self.tail_probability}.")
        for name in ("tail", "core", "yaw"):
            if getattr(self, name) < 0.0:
                raise ConfigError(f"Bias.{name} must not be negative, found {getattr(self, name)}.")

    def sample(self, generator: np.random.Generator, task: str, uncertain: tuple[int, ...]) -> Array:
        """Return (4,) error x, y, z [m], yaw [rad]; ``uncertain`` axes have the wide range.

        The same generator draws the same numbers whatever the task, so that splits are paired.
        """
        small = generator.standard_normal(4)
        wide = generator.uniform(-1.0, 1.0, 3)
        in_tail = generator.random() < self.tail_probability
        error: Array = small * (self.core, self.core, self.core, self.yaw)
        if (in_tail or task == "wide") and task != "nominal":
            for axis in uncertain:
                error[axis] = wide[axis] * self.tail
        return error


@dataclass(frozen=True)
class Scenario:
    """One drawn episode; poses are x, y, z [m], yaw [rad]."""

    fixture: Array
    """(4,) true fixture pose in the base frame."""
    offset: Array
    """(4,) true fixture pose in the estimated fixture frame: zero when the estimate is right."""
    start: Array
    """(4,) tool pose at reset in the estimated fixture frame."""
    friction: float
    """Sliding friction coefficient."""
    stiffness_scale: float
    """Factor on the tool's stiffness."""
    geometry: float
    """What the task varies: radius [m], tilt [rad] or clearance [m]."""

    @property
    def estimate(self) -> Array:
        """(4,) estimated fixture pose in the base frame."""
        yaw = self.fixture[3] - self.offset[3]
        estimate: Array = np.append(self.fixture[:3] - rotate(self.offset[:3], yaw), yaw)
        return estimate


def rotate(vector: Array, yaw: float) -> Array:
    """Rotate vectors (..., 3) by ``yaw`` [rad] about z."""
    c, s = np.cos(yaw), np.sin(yaw)
    rotated = np.array(vector, float)
    x, y = rotated[..., 0].copy(), rotated[..., 1].copy()
    rotated[..., 0] = c * x - s * y
    rotated[..., 1] = s * x + c * y
    return rotated


def to_parent(local: Array, frame: Array) -> Array:
    """Express poses (..., 4) given in ``frame`` (4,) in the frame that ``frame`` is given in."""
    moved: Array = np.empty_like(local, dtype=float)
    moved[..., :3] = rotate(local[..., :3], frame[3]) + frame[:3]
    moved[..., 3] = local[..., 3] + frame[3]
    return moved


def to_local(outer: Array, frame: Array) -> Array:
    """Inverse of :func:`to_parent`."""
    moved: Array = np.empty_like(outer, dtype=float)
    moved[..., :3] = rotate(outer[..., :3] - frame[:3], -frame[3])
    moved[..., 3] = outer[..., 3] - frame[3]
    return moved


def sample_fixture(generator: np.random.Generator) -> Array:
    """Return a true fixture pose (4,): +-20 mm, +-5 mm in height, +-0.15 rad."""
    pose: Array = np.array([0.5, 0.0, 0.1, 0.0]) + generator.uniform(-1.0, 1.0, 4) * (0.02, 0.02, 0.005, 0.15)
    return pose


def sample_friction(generator: np.random.Generator, task: str) -> float:
    """Return a friction coefficient: 0.2 to 0.4, twice that on ``friction``."""
    return float(generator.uniform(0.2, 0.4)) * (2.0 if task == "friction" else 1.0)


def sample_stiffness(generator: np.random.Generator, task: str) -> float:
    """Return a stiffness factor: 1, or 1/2 or 2 on ``stiffness``."""
    scale = 0.5 if generator.random() < 0.5 else 2.0
    return scale if task == "stiffness" else 1.0
