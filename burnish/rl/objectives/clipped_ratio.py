"""The clipped surrogate of PPO, over chunks or over single actions."""

from dataclasses import dataclass

import numpy as np
import torch

from burnish.core.contracts import Outputs, TrainablePolicy
from burnish.core.errors import ConfigError
from burnish.core.spec import Array
from burnish.data.rollout import Batch
from burnish.rl.hand_gradient import Rows, Slope
from burnish.rl.losses import clipped_surrogate, weighted_mean
from burnish.rl.ratios import Granularity, log_ratio


@dataclass(frozen=True)
class Config:
    """Raise the probability of good chunks, within a clip of the ratio to the behaviour policy."""

    coefficient: float = 1.0
    """Weight of this loss."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: float = 0.0
    """Above 1: bound the loss of bad actions at this times |advantage|; 0 for none."""
    granularity: Granularity = "chunk"
    """One ratio per "chunk" (product over executed actions), or per "action"."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 0.0 < self.clip_low < 1.0 or self.clip_high <= 0.0 or (self.dual_clip and self.dual_clip <= 1.0):
            raise ConfigError(
                f"clipped_ratio: needs 0 < clip_low < 1, clip_high > 0 and dual_clip 0 or above 1; found "
                f"clip_low={self.clip_low}, clip_high={self.clip_high}, dual_clip={self.dual_clip}."
            )

    def build(self) -> "ClippedRatio":
        """Return the objective."""
        return ClippedRatio(self)


class ClippedRatio:
    """See :class:`Config`."""

    name = "clipped_ratio"

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self.coefficient = config.coefficient
        self._config = config

    def loss(
        self, policy: TrainablePolicy, batch: Batch, *, previous: TrainablePolicy, reference: TrainablePolicy
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the surrogate; metrics: ``kl`` (k3, nats per ratio), ``clipped`` (share), ``ratio_max``."""
        config = self._config
        evaluation = policy.evaluate(batch.observation, batch.sample, batch.executed)
        change, mask = log_ratio(
            evaluation.log_prob,
            batch.sample.log_prob,
            batch.executed,
            chunk_steps=batch.sample.action_chunk.shape[1],
            granularity=config.granularity,
        )
        advantage, weight = batch.advantage, batch.weight
        if mask is not None:
            advantage = advantage[:, None].expand_as(change)
            weight = weight[:, None] * mask
        loss = clipped_surrogate(
            change, advantage, clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip
        )
        counted = change.detach() if mask is None else change.detach()[mask]
        return weighted_mean(loss, weight), self._figures(counted.cpu().numpy())

    def gradient(self, outputs: Outputs, rows: Rows) -> Slope | None:
        """Return the plain surrogate over chunks with its gradient in the log-probs."""
        config = self._config
        if config.granularity != "chunk" or config.dual_clip:
            return None
        change = outputs.log_prob - rows.log_prob
        counted = rows.executed[:, None] > np.arange(change.shape[1])
        if change.shape[1] > 1:
            change *= counted
        total = change.sum(1)
        ratio = np.exp(total)
        gain = rows.advantage * ratio
        least = rows.advantage * np.minimum(np.maximum(ratio, 1.0 - config.clip_low), 1.0 + config.clip_high)
        loss = -float(np.dot(np.minimum(gain, least), rows.weight))
        slope = -gain * rows.weight * (gain <= least)
        return Slope(loss, self._figures(total), log_prob=slope[:, None] * counted)

    def _figures(self, change: Array) -> dict[str, float]:
        """Return the metrics of all log-ratios that count; numpy is several times faster for so few."""
        ratio = np.exp(change)
        outside = (ratio < 1.0 - self._config.clip_low) | (ratio > 1.0 + self._config.clip_high)
        kl = float((np.expm1(change) - change).sum()) / change.size  # burnish.rl.ratios.kl_k3
        return {"kl": kl, "clipped": np.count_nonzero(outside) / change.size, "ratio_max": float(ratio.max())}
