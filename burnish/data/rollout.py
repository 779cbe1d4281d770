"""Experience in memory: a time-first Rollout in numpy, and the torch Batch that objectives see."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from burnish.core.contracts import EpisodeSummary
from burnish.core.spec import Array, Observation
from burnish.core.step import ActionSample


@dataclass(frozen=True)
class Rollout:
    """T chunk decisions of N environments.

    Where an episode ended, or the rollout stopped, the state after chunk (t, n) is not ``observation`` at t + 1; it
    is in ``last_observation``, M entries, at (t, n) = ``last_index``. :func:`next_value` puts values back in place.
    """

    observation: Observation
    """(T, N, ...) each; ``task`` is a list of T lists of N strings."""
    action_chunk: Array
    """(T, N, K, A) float32, as offered to the env."""
    trace: dict[str, Array]
    """(T, N, ...) each, the policy's own."""
    log_prob: Array
    """(T, N, G) float32, under the behaviour policy, as computed while collecting."""
    reward: Array
    """(T, N, K) float32, zero past ``executed``."""
    executed: Array
    """(T, N) int64."""
    terminated: Array
    """(T, N) bool."""
    truncated: Array
    """(T, N) bool."""
    last_observation: Observation
    """(M, ...) each; ``task`` is a list of M strings."""
    last_index: Array
    """(M, 2) int64, (t, n) of each entry of ``last_observation``, in lexicographic order."""
    group: Array
    """(T, N) int64, number of the episode's group (equal Starts in a row of a group sampler), -1 for none."""
    episode: Array
    """(T, N) int64, running number of the episode within the run."""
    episodes: tuple[EpisodeSummary, ...] = ()
    """Episodes that ended in this rollout, in order of ending."""
    episode_numbers: tuple[int, ...] = ()
    """``episode`` value of each entry of ``episodes``."""
    value: Array | None = None
    """(T, N) float32, V(s) of each decision."""
    next_value: Array | None = None
    """(T, N) float32, V of the state after each chunk."""
    advantage: Array | None = None
    """(T, N) float32."""
    return_: Array | None = None
    """(T, N) float32, target of the critic."""
    weight: Array | None = None
    """(T, N) float32, how much a decision counts in a loss; None for one each."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures that labelers add for the log."""

    @property
    def num_decisions(self) -> int:
        """T x N."""
        return int(self.executed.size)

    @property
    def done(self) -> Array:
        """(T, N) bool."""
        ended: Array = self.terminated | self.truncated
        return ended

    def replace(self, **changes: Any) -> "Rollout":
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def with_metrics(self, **metrics: float) -> "Rollout":
        """Return a copy with figures added for the log."""
        return replace(self, metrics={**self.metrics, **metrics})

    def flat_observation(self) -> Observation:
        """Return the observation with (T, N) merged to (T * N); arrays are views."""
        return {key: _flat(item) for key, item in self.observation.items()}

    def batch(self) -> "Batch":
        """Return all decisions with executed > 0 as one Batch of tensors, in time-first order."""
        chosen = np.flatnonzero(self.executed.reshape(-1) > 0)
        return _make_batch(self, chosen)


@dataclass(frozen=True)
class Batch:
    """B chunk decisions as tensors; what an Objective sees."""

    observation: Observation
    """(B, ...) tensors; ``task`` is a list of B strings."""
    sample: ActionSample
    """Tensors: the behaviour policy's chunk (B, K, A), log-prob (B, G) and trace."""
    executed: torch.Tensor
    """(B,) int64, at least 1."""
    advantage: torch.Tensor
    """(B,) float32; zeros when no labeler set one."""
    return_: torch.Tensor
    """(B,) float32."""
    value: torch.Tensor
    """(B,) float32, V(s) when the rollout was collected."""
    weight: torch.Tensor
    """(B,) float32."""

    def __len__(self) -> int:
        """Return B."""
        return int(self.executed.shape[0])

    def take(self, index: torch.Tensor) -> "Batch":
        """Return the decisions at ``index`` (B',) int64."""
        rows = index.tolist()
        return Batch(
            observation={
                key: [item[i] for i in rows] if isinstance(item, list) else item[index]
                for key, item in self.observation.items()
            },
            sample=ActionSample(
                action_chunk=self.sample.action_chunk[index],
                log_prob=self.sample.log_prob[index],
                trace={key: item[index] for key, item in self.sample.trace.items()},
            ),
            executed=self.executed[index],
            advantage=self.advantage[index],
            return_=self.return_[index],
            value=self.value[index],
            weight=self.weight[index],
        )

    def part(self, start: int, stop: int) -> "Batch":
        """Return the decisions from ``start`` up to ``stop``, as views."""
        return Batch(
            observation={key: item[start:stop] for key, item in self.observation.items()},
            sample=ActionSample(
                action_chunk=self.sample.action_chunk[start:stop],
                log_prob=self.sample.log_prob[start:stop],
                trace={key: item[start:stop] for key, item in self.sample.trace.items()},
            ),
            executed=self.executed[start:stop],
            advantage=self.advantage[start:stop],
            return_=self.return_[start:stop],
            value=self.value[start:stop],
            weight=self.weight[start:stop],
        )

    def with_observation(self, observation: Observation) -> "Batch":
        """Return a copy whose observation is replaced, for cached features."""
        return replace(self, observation=observation)


def next_value(value: Array, last_value: Array, last_index: Array) -> Array:
    """Return V of the state after each chunk, (T, N).

    Args:
        value: (T, N), V(s) of each decision.
        last_value: (M,), V of each entry of ``Rollout.last_observation``.
        last_index: (M, 2), where those entries belong.
    """
    after = np.empty_like(value)
    after[:-1] = value[1:]
    after[-1] = np.nan
    after[last_index[:, 0], last_index[:, 1]] = last_value
    return after


def to_tensors(observation: Mapping[str, Any]) -> Observation:
    """Return numpy entries as tensors without a copy where possible; lists stay."""
    return {
        key: torch.from_numpy(np.ascontiguousarray(item)) if isinstance(item, np.ndarray) else item
        for key, item in observation.items()
    }


def _flat(item: Any) -> Any:
    if isinstance(item, list):
        return [entry for row in item for entry in row]
    return item.reshape(-1, *item.shape[2:])


def _make_batch(rollout: Rollout, chosen: Array) -> Batch:
    def rows(item: Any) -> Any:
        flat = _flat(item)
        if isinstance(flat, list):
            return [flat[i] for i in chosen]
        return torch.from_numpy(np.ascontiguousarray(flat[chosen]))

    def scalars(item: Array | None, default: float) -> torch.Tensor:
        if item is None:
            return torch.full((len(chosen),), default)
        return torch.from_numpy(np.ascontiguousarray(item.reshape(-1)[chosen], dtype=np.float32))

    return Batch(
        observation={key: rows(item) for key, item in rollout.observation.items()},
        sample=ActionSample(
            action_chunk=rows(rollout.action_chunk),
            log_prob=rows(rollout.log_prob),
            trace={key: rows(item) for key, item in rollout.trace.items()},
        ),
        executed=rows(rollout.executed),
        advantage=scalars(rollout.advantage, 0.0),
        return_=scalars(rollout.return_, 0.0),
        value=scalars(rollout.value, 0.0),
        weight=scalars(rollout.weight, 1.0),
    )
