"""Imitation of the chunks in the batch."""

from dataclasses import dataclass

import torch

from burnish.core.contracts import TrainablePolicy
from burnish.data.rollout import Batch
from burnish.rl.losses import weighted_mean


@dataclass(frozen=True)
class Config:
    """Imitate stored chunks, each as much as its weight; labelers choose weights or replace chunks."""

    coefficient: float = 1.0
    """Weight of this loss."""

    def build(self) -> "Imitation":
        """Return the objective."""
        return Imitation(self)


class Imitation:
    """See :class:`Config`."""

    name = "imitation"

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self.coefficient = config.coefficient

    def loss(
        self, policy: TrainablePolicy, batch: Batch, *, previous: TrainablePolicy, reference: TrainablePolicy
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the policy's own imitation loss, over executed actions."""
        loss = policy.imitation_loss(batch.observation, batch.sample.action_chunk, batch.executed)
        return weighted_mean(loss, batch.weight), {}
