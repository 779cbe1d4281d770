"""A bonus for staying random."""

from dataclasses import dataclass

import numpy as np
import torch

from burnish.core.contracts import Outputs, TrainablePolicy
from burnish.data.rollout import Batch
from burnish.rl.hand_gradient import Rows, Slope
from burnish.rl.losses import weighted_mean


@dataclass(frozen=True)
class Config:
    """The negative entropy of the policy, nats per executed action."""

    coefficient: float = 0.0
    """Weight of this loss."""

    def build(self) -> "Entropy":
        """Return the objective."""
        return Entropy(self)


class Entropy:
    """See :class:`Config`."""

    name = "entropy"

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self.coefficient = config.coefficient

    def loss(
        self, policy: TrainablePolicy, batch: Batch, *, previous: TrainablePolicy, reference: TrainablePolicy
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return minus the mean entropy; metrics: ``nats`` (per executed action)."""
        evaluation = policy.evaluate(batch.observation, batch.sample, batch.executed)
        loss = -weighted_mean(evaluation.entropy, batch.weight)
        return loss, {"nats": -loss.item()}

    def gradient(self, outputs: Outputs, rows: Rows) -> Slope:
        """Return the same with its gradient in the entropies."""
        nats = float(np.dot(outputs.entropy, rows.weight))
        return Slope(-nats, {"nats": nats}, entropy=-rows.weight)
