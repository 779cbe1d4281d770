"""The critic's regression to returns."""

from dataclasses import dataclass

import numpy as np
import torch

from burnish.core.contracts import Outputs, TrainablePolicy
from burnish.core.errors import ConfigError
from burnish.data.rollout import Batch
from burnish.rl.hand_gradient import Rows, Slope
from burnish.rl.losses import value_loss, weighted_mean


@dataclass(frozen=True)
class Config:
    """Half the squared error of V(s), optionally clipped around its value at collection."""

    coefficient: float = 0.5
    """Weight of this loss."""
    clip: float = 0.0
    """Above 0: how far the value may leave its old one, in units of return."""
    huber_delta: float = 0.0
    """Above 0: linear beyond this error, in units of return."""

    def __post_init__(self) -> None:
        """Check signs."""
        for name in ("clip", "huber_delta"):
            if getattr(self, name) < 0.0:
                raise ConfigError(f"value: {name} must not be negative, found {getattr(self, name)}.")

    def build(self) -> "Value":
        """Return the objective."""
        return Value(self)


class Value:
    """See :class:`Config`."""

    name = "value"

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self.coefficient = config.coefficient
        self._config = config

    def loss(
        self, policy: TrainablePolicy, batch: Batch, *, previous: TrainablePolicy, reference: TrainablePolicy
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the loss; metrics: ``error`` (root mean square, units of return).

        Raises:
            ConfigError: If the policy has no critic.
        """
        critic = getattr(policy, "value", None)
        if critic is None:
            raise ConfigError(f"The objective 'value' needs a critic, but policy '{policy.spec.id}' has no value().")
        value: torch.Tensor = critic(batch.observation)
        loss = value_loss(
            value,
            batch.return_,
            old_value=batch.value,
            clip=self._config.clip,
            huber_delta=self._config.huber_delta,
        )
        error = (value.detach() - batch.return_).square_().mean().item() ** 0.5
        return weighted_mean(loss, batch.weight), {"error": error}

    def gradient(self, outputs: Outputs, rows: Rows) -> Slope | None:
        """Return the plain squared error with its gradient in the values."""
        if self._config.clip or self._config.huber_delta:
            return None
        error = outputs.value - rows.return_
        slope = error * rows.weight
        root = (float(np.dot(error, error)) / len(error)) ** 0.5
        return Slope(0.5 * float(np.dot(error, slope)), {"error": root}, value=slope)
