"""Minibatches without autograd: objectives and policies that know their gradients, for small networks on a CPU.

A network of two layers spends most of an update on autograd's bookkeeping. Where the policy offers a
:class:`burnish.core.contracts.HandGradient` and every objective has ``gradient``, the same losses and the same
gradients come from a third of the operations; a test compares them. In all other cases autograd does it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from burnish.core.contracts import HandGradient, HandGradientPolicy, Objective, Outputs, TrainablePolicy
from burnish.core.spec import Array
from burnish.data.rollout import Batch


@dataclass(frozen=True)
class Rows:
    """What an objective needs of B decisions besides the policy's outputs, in numpy; see ``Batch``."""

    log_prob: Array
    """(B, G) float32, under the policy that acted."""
    executed: Array
    """(B,) int64."""
    advantage: Array
    """(B,) float32."""
    return_: Array
    """(B,) float32."""
    weight: Array
    """(B,) float32, divided by its sum."""
    chunk_steps: int
    """K."""

    @classmethod
    def of(cls, batch: Batch) -> "Rows":
        """Return a batch as rows; weights are those of the batch, not yet divided by a sum."""
        return cls(
            batch.sample.log_prob.numpy(),
            batch.executed.numpy(),
            batch.advantage.numpy(),
            batch.return_.numpy(),
            batch.weight.numpy(),
            batch.sample.action_chunk.shape[1],
        )

    def take(self, index: Array) -> "Rows":
        """Return some of the rows, weights divided by their sum."""
        log_prob, executed, advantage, return_, weight = (
            getattr(self, item.name)[index] for item in fields(self) if item.name != "chunk_steps"
        )
        return Rows(log_prob, executed, advantage, return_, weight / max(weight.sum(), 1e-8), self.chunk_steps)


@dataclass(frozen=True)
class Slope:
    """A loss with its gradients in the policy's outputs; None where it does not depend on one."""

    loss: float
    metrics: Mapping[str, float]
    log_prob: Array | None = None
    """(B, G)."""
    entropy: Array | None = None
    """(B,)."""
    value: Array | None = None
    """(B,)."""


@runtime_checkable
class HandObjective(Objective, Protocol):
    """An objective of log-probabilities, entropies and values alone that knows its gradients in them."""

    def gradient(self, outputs: Outputs, rows: Rows) -> Slope | None:
        """Return loss, metrics and gradients, equal to those of ``loss``; None where only autograd can."""
        ...


class HandUpdate:
    """The minibatches of one batch; :func:`hand_update` makes one."""

    def __init__(self, source: HandGradient, objectives: Sequence[HandObjective], batch: Batch) -> None:
        """Take the batch as numpy."""
        self._source, self._objectives, self._rows = source, objectives, Rows.of(batch)

    def minibatch(self, index: Array) -> dict[str, float]:
        """Set the gradients of the rows at ``index``, and return the objectives' metrics."""
        outputs, rows = self._source.forward(index), self._rows.take(index)
        metrics: dict[str, float] = {}
        total: dict[str, Array | None] = {"log_prob": None, "entropy": None, "value": None}
        for objective in self._objectives:
            slope = objective.gradient(outputs, rows)
            assert slope is not None
            metrics[f"{objective.name}/loss"] = slope.loss
            metrics |= {f"{objective.name}/{key}": figure for key, figure in slope.metrics.items()}
            for name, before in total.items():
                part = getattr(slope, name)
                if part is not None:
                    part = objective.coefficient * part
                    total[name] = part if before is None else before + part
        self._source.backward(**total)
        return metrics


def hand_update(policy: TrainablePolicy, batch: Batch, objectives: Sequence[Objective]) -> HandUpdate | None:
    """Return the minibatches of a batch by hand, None where policy, objectives or device want autograd."""
    active = [objective for objective in objectives if objective.coefficient != 0.0]
    if batch.executed.device.type != "cpu" or not isinstance(policy, HandGradientPolicy):
        return None
    able = [objective for objective in active if isinstance(objective, HandObjective)]
    if not able or len(able) < len(active):
        return None
    source = policy.hand_gradient(batch.observation, batch.sample)
    if source is None:
        return None
    with torch.no_grad():
        probe = np.zeros(1, np.int64)
        outputs, rows = source.forward(probe), Rows.of(batch).take(probe)
    if any(objective.gradient(outputs, rows) is None for objective in able):
        return None
    return HandUpdate(source, able, batch)
