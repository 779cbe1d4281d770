"""Values that cross the contracts: where an episode starts, what a chunk did, what a policy answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.core.errors import ConfigError, suggest
from burnish.core.spec import Array, EnvSpec, Observation

TRAINING_SEED_START = 1 << 20
"""Training draws ``Start.seed`` at or above this; evaluation stays below, so the two never share an episode."""


@dataclass(frozen=True, order=True)
class Start:
    """A reproducible beginning: the same Start gives the same initial state, bit for bit."""

    task: str
    """One of ``EnvSpec.tasks``."""
    init: int
    """Index of the initial condition, below ``EnvSpec.num_inits``."""
    seed: int
    """Seed of everything random in the episode: initial noise, sensor noise, disturbances."""


def evaluation_starts(
    spec: EnvSpec, episodes: int, *, split: str = "", tasks: Sequence[str] = (), seed: int = 0
) -> list[Start]:
    """Return a fixed list of Starts, tasks in turn, disjoint from every training Start.

    Args:
        spec: Environment to be evaluated.
        episodes: How many Starts.
        split: Name of a split of ``spec``; "" means all tasks.
        tasks: Task names, instead of a split.
        seed: First seed; two lists with the same arguments are equal.

    Raises:
        ConfigError: If the split or a task does not exist, or the seeds leave the evaluation range.
    """
    if split and split not in spec.splits:
        raise ConfigError(f"Environment '{spec.id}' has no split '{split}'.{suggest(split, spec.splits)}")
    names = tuple(tasks) or (spec.splits[split] if split else spec.tasks)
    for task in names:
        if task not in spec.tasks:
            raise ConfigError(f"Environment '{spec.id}' has no task '{task}'.{suggest(task, spec.tasks)}")
    if episodes < 1 or seed < 0 or seed + episodes > TRAINING_SEED_START:
        raise ConfigError(
            f"Evaluation needs at least one episode and seeds within [0, {TRAINING_SEED_START}); "
            f"found episodes={episodes}, seed={seed}."
        )
    return [
        Start(task=names[i % len(names)], init=(i // len(names)) % spec.num_inits, seed=seed + i)
        for i in range(episodes)
    ]


@dataclass(frozen=True)
class Step:
    """What one chunk did to N environments; K actions were offered, fewer may have been executed."""

    observation: Observation
    """After the last executed action; where an episode ended this is its *last* observation."""
    reward: Array
    """(N, K) float32, zero past ``executed``."""
    executed: Array
    """(N,) int64, how many of the K actions ran; 0 for an environment that had ended before."""
    terminated: Array
    """(N,) bool, the episode ended by its own rules; do not bootstrap."""
    truncated: Array
    """(N,) bool, the episode was cut by a limit; bootstrap from ``observation``."""
    metrics: dict[str, Array] = field(default_factory=dict)
    """(N,) each, of the running episode up to now; what they mean is in ``EnvSpec.metrics``."""

    @property
    def done(self) -> Array:
        """(N,) bool, terminated or truncated."""
        ended: Array = self.terminated | self.truncated
        return ended


@dataclass(frozen=True)
class ActionSample:
    """A policy's answer for N observations."""

    action_chunk: Any
    """(N, K, A) in the env's units; numpy from ``act``, a tensor inside an update."""
    log_prob: Any
    """(N, G) float32: G = K where the family factorises over time, else 1; zeros when deterministic."""
    trace: Mapping[str, Any] = field(default_factory=dict)
    """Arrays with leading axis N that the policy wants back in ``evaluate``; opaque to algorithms."""


@dataclass(frozen=True)
class Evaluation:
    """A policy's differentiable view of stored samples."""

    log_prob: Any
    """(B, G) tensor, float32, under the current parameters."""
    entropy: Any
    """(B,) tensor, nats per executed action, summed over action entries."""
