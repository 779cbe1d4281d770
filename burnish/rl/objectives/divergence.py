"""KL to the previous or to the pretrained policy."""

from dataclasses import dataclass
from typing import Literal

import torch

from burnish.core.contracts import TrainablePolicy
from burnish.core.errors import ConfigError
from burnish.data.rollout import Batch
from burnish.rl.losses import weighted_mean
from burnish.rl.ratios import kl_k3, log_ratio


@dataclass(frozen=True)
class Config:
    """Stay near another policy: KL(other || policy), summed over executed actions."""

    to: Literal["previous", "reference"] = "reference"
    """"previous": the policy at the start of the update (PAC-ACT's adjacent policy); "reference": the pretrained."""
    coefficient: float = 1.0
    """Weight of this loss (PAC-ACT: beta1 = 3.0 to the previous policy)."""
    estimator: Literal["exact", "sample"] = "exact"
    """"exact" asks the policy, at the price of a forward pass of the other one; "sample" is k3 on the log-probs that
    the ratio needs anyway, to the previous policy only."""
    per_action: bool = False
    """Divide by the number of executed actions."""

    def __post_init__(self) -> None:
        """Refuse what the samples cannot tell."""
        if self.estimator == "sample" and self.to != "previous":
            raise ConfigError(
                'divergence: estimator "sample" needs samples of the other policy, and a rollout only holds those of '
                'the previous one. Use to="previous" or estimator="exact".'
            )

    def build(self) -> "Divergence":
        """Return the objective."""
        return Divergence(self)


class Divergence:
    """See :class:`Config`."""

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self.name = f"divergence_{config.to}"
        self.coefficient = config.coefficient
        self._config = config

    def loss(
        self, policy: TrainablePolicy, batch: Batch, *, previous: TrainablePolicy, reference: TrainablePolicy
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the mean KL; metrics: ``kl`` (nats per decision, per action with ``per_action``)."""
        if self._config.estimator == "sample":
            evaluation = policy.evaluate(batch.observation, batch.sample, batch.executed)
            change, _ = log_ratio(
                evaluation.log_prob,
                batch.sample.log_prob,
                batch.executed,
                chunk_steps=batch.sample.action_chunk.shape[1],
            )
            kl = kl_k3(change)
        else:
            other = previous if self._config.to == "previous" else reference
            kl = policy.divergence(batch.observation, batch.sample, other, batch.executed)
        if self._config.per_action:
            kl = kl / batch.executed
        loss = weighted_mean(kl, batch.weight)
        return loss, {"kl": loss.item()}
