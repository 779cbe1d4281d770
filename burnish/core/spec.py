"""Descriptions of arrays, environments and policies: shape, dtype, unit, frame and limits."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from burnish.core.errors import SpecError

type Array = npt.NDArray[Any]
type Observation = dict[str, Any]
"""Batched observation: arrays with leading axis N under lerobot's keys, and ``task``, a list of N strings."""

IMAGE_PREFIX = "observation.images."
PRIVILEGED_PREFIX = "privileged."
TASK_KEY = "task"


@dataclass(frozen=True)
class ArraySpec:
    """Describe one array without its batch axes."""

    shape: tuple[int, ...]
    """Shape of one sample, without N or B."""
    dtype: str = "float32"
    """numpy dtype name."""
    unit: str = ""
    """SI unit, "" for none, or several joined with commas where entries differ."""
    frame: str = ""
    """Reference frame of the entries, "" where none applies."""
    low: tuple[float, ...] | float | None = None
    """Lower limit, one for all entries or one each; None for no limit."""
    high: tuple[float, ...] | float | None = None
    """Upper limit, one for all entries or one each; None for no limit."""
    names: tuple[str, ...] = ()
    """Names of the entries of a vector, in order; empty where they have none."""
    scale: tuple[float, ...] | float | None = None
    """Usual magnitude of the entries, for networks that have no statistics of them; None to go by the limits."""

    def __post_init__(self) -> None:
        """Check that limits, scale and names fit the shape."""
        for label, limit in (("low", self.low), ("high", self.high), ("scale", self.scale)):
            if isinstance(limit, tuple) and (len(limit),) != self.shape:
                raise SpecError(f"ArraySpec.{label} has {len(limit)} entries, but the shape is {self.shape}.")
        if self.names and (len(self.names),) != self.shape:
            raise SpecError(f"ArraySpec.names has {len(self.names)} entries, but the shape is {self.shape}.")

    def bounds(self) -> tuple[Array, Array]:
        """Return (low, high) as float64 arrays of the spec's shape, infinite where there is no limit."""
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        return np.broadcast_to(np.asarray(low, float), self.shape), np.broadcast_to(np.asarray(high, float), self.shape)

    def mismatch(self, other: "ArraySpec") -> str:
        """Return "" where ``other`` can stand in for this spec, else what differs in one phrase."""
        for name in ("shape", "dtype", "unit", "frame"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} is {theirs!r}, expected {mine!r}"
        return ""

    @property
    def is_image(self) -> bool:
        """Whether this is an (H, W, 3) uint8 image."""
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[-1] == 3


@dataclass(frozen=True)
class MetricSpec:
    """Describe one per-episode figure that an environment reports in ``Step.metrics``."""

    kind: Literal["binary", "mean", "count"]
    """"binary" gets a Wilson interval, "mean" a bootstrap interval; "count" is a numerator or denominator only."""
    unit: str = ""
    """SI unit, "" for none."""
    better: Literal["higher", "lower", ""] = ""
    """Which direction is an improvement; "" where neither is."""
    per: str = ""
    """Name of a count metric: the aggregate is then sum(this) / sum(that), not a mean over episodes."""
    beside: tuple[str, ...] = ()
    """Metrics that must be printed next to this one, because alone it misleads."""
    description: str = ""
    """One sentence for reports."""


@dataclass(frozen=True)
class EnvSpec:
    """Describe an environment: what it shows, what it takes, and what makes its numbers comparable."""

    id: str
    """Registered name, for example ``contact/contour``."""
    observation: Mapping[str, ArraySpec]
    """Every array key of the observation, privileged ones included; ``task`` is not listed."""
    action: ArraySpec
    """One action (A,), with unit and limits."""
    control_dt: float
    """Seconds between two actions."""
    max_episode_steps: int
    """Actions after which an episode is truncated."""
    tasks: tuple[str, ...]
    """Task names that a Start may carry."""
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Named groups of tasks, for example {"train": (...), "shift": (...)}."""
    num_inits: int = 1 << 20
    """How many initial conditions each task has; ``Start.init`` is below it."""
    metrics: Mapping[str, MetricSpec] = field(default_factory=dict)
    """Figures reported per episode; ``success`` is always among them."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Everything else that must be equal for two numbers to be comparable (versions, contact parameters)."""

    def __post_init__(self) -> None:
        """Check what the rest of burnish takes for granted."""
        if not self.tasks:
            raise SpecError(f"EnvSpec '{self.id}' lists no task; a Start needs one.")
        if self.control_dt <= 0 or self.max_episode_steps < 1:
            raise SpecError(
                f"EnvSpec '{self.id}': control_dt ({self.control_dt}) and max_episode_steps "
                f"({self.max_episode_steps}) must be positive."
            )
        for split, tasks in self.splits.items():
            unknown = [task for task in tasks if task not in self.tasks]
            if unknown:
                raise SpecError(f"EnvSpec '{self.id}': split '{split}' names unknown tasks {unknown}.")
        for name, metric in self.metrics.items():
            for other in (*metric.beside, *((metric.per,) if metric.per else ())):
                if other not in self.metrics:
                    raise SpecError(f"EnvSpec '{self.id}': metric '{name}' refers to unknown metric '{other}'.")

    @property
    def action_dim(self) -> int:
        """Number of action entries A."""
        return self.action.shape[0]

    @property
    def public_observation(self) -> dict[str, ArraySpec]:
        """The observation without privileged entries."""
        return {key: spec for key, spec in self.observation.items() if not key.startswith(PRIVILEGED_PREFIX)}

    @property
    def image_keys(self) -> tuple[str, ...]:
        """Keys of the camera images, in order."""
        return tuple(key for key in self.observation if key.startswith(IMAGE_PREFIX))


@dataclass(frozen=True)
class PolicySpec:
    """Describe a policy: what it reads, and the chunk it answers with."""

    id: str
    """Registered name, for example ``act``."""
    observation: Mapping[str, ArraySpec]
    """Keys the acting part reads; never privileged."""
    action: ArraySpec
    """One action (A,), in the env's units."""
    chunk_steps: int
    """Chunk length K."""
    critic_observation: Mapping[str, ArraySpec] = field(default_factory=dict)
    """Keys the critic reads on top; may be privileged."""
    reads_task: bool = False
    """Whether the instruction under ``task`` is read."""

    def __post_init__(self) -> None:
        """Refuse privileged inputs of the acting part."""
        privileged = [key for key in self.observation if key.startswith(PRIVILEGED_PREFIX)]
        if privileged:
            raise SpecError(
                f"Policy '{self.id}' asks for {privileged}: privileged entries reach teachers and critics only, "
                "since a robot does not have them. Take them out of the policy's observation keys."
            )
        if self.chunk_steps < 1:
            raise SpecError(f"Policy '{self.id}': chunk_steps must be at least 1, found {self.chunk_steps}.")


def check_fit(policy: PolicySpec, env: EnvSpec) -> None:
    """Refuse a policy that cannot act in an environment.

    Raises:
        SpecError: Names the key, what was found and what was expected.
    """
    for key, wanted in {**policy.observation, **policy.critic_observation}.items():
        if key not in env.observation:
            raise SpecError(
                f"Policy '{policy.id}' reads '{key}', which environment '{env.id}' does not give. "
                f"It gives: {', '.join(env.observation)}."
            )
        problem = wanted.mismatch(env.observation[key])
        if problem:
            raise SpecError(f"Policy '{policy.id}' and environment '{env.id}' disagree on '{key}': {problem}.")
    problem = policy.action.mismatch(env.action)
    if problem:
        raise SpecError(f"Policy '{policy.id}' and environment '{env.id}' disagree on the action: {problem}.")


def to_json(spec: EnvSpec | PolicySpec | ArraySpec | MetricSpec) -> dict[str, Any]:
    """Return a spec as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(spec)))
    return plain


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def array_spec_from_json(value: Mapping[str, Any]) -> ArraySpec:
    """Rebuild an :class:`ArraySpec` from :func:`to_json`."""
    return ArraySpec(**{key: _tuples(item) for key, item in value.items()})


def policy_spec_from_json(value: Mapping[str, Any]) -> PolicySpec:
    """Rebuild a :class:`PolicySpec` from :func:`to_json`."""
    plain = dict(value)
    for name in ("observation", "critic_observation"):
        plain[name] = {key: array_spec_from_json(item) for key, item in plain[name].items()}
    plain["action"] = array_spec_from_json(plain["action"])
    return PolicySpec(**plain)


def env_spec_from_json(value: Mapping[str, Any]) -> EnvSpec:
    """Rebuild an :class:`EnvSpec` from :func:`to_json`."""
    plain = dict(value)
    plain["observation"] = {key: array_spec_from_json(item) for key, item in plain["observation"].items()}
    plain["action"] = array_spec_from_json(plain["action"])
    plain["tasks"] = tuple(plain["tasks"])
    plain["splits"] = {key: tuple(item) for key, item in plain["splits"].items()}
    plain["metrics"] = {
        key: MetricSpec(**{name: _tuples(entry) for name, entry in item.items()})
        for key, item in plain["metrics"].items()
    }
    return EnvSpec(**plain)


def fingerprint(value: Any) -> str:
    """Return a short hash of plain JSON values; equal values give equal text on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
