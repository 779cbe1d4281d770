"""A penalty in the reward for leaving the pretrained policy (PAC-ACT, arXiv 2607.09590)."""

from dataclasses import dataclass

import numpy as np
import torch

from burnish.core.contracts import TrainablePolicy
from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.core.spec import Array, Observation
from burnish.data.rollout import Batch, Rollout
from burnish.nn.tensors import executed_mask
from burnish.rl.pieces import pieces


@dataclass(frozen=True)
class Config:
    """Subtract coefficient * (kl * KL + mse * MSE) from each decision's reward, at its first executed action.

    KL is KL(pi_ref || pi) and MSE the squared distance of the deterministic chunks, both averaged over executed
    actions (our choice; the paper does not say), so that a chunk cut short is not favoured.
    """

    coefficient: float = 2.0
    """beta2 of the paper."""
    kl: float = 1.0
    """Weight of the KL part, nats."""
    mse: float = 1.0
    """Weight of the MSE part; actions are divided by half their range first, where the spec has limits."""
    limit: float = 0.0
    """Above 0: the penalty of one decision is cut at this, before the coefficient."""

    def __post_init__(self) -> None:
        """Check signs."""
        for name in ("coefficient", "kl", "mse", "limit"):
            if getattr(self, name) < 0.0:
                raise ConfigError(f"behaviour_prior: {name} must not be negative, found {getattr(self, name)}.")

    def build(self) -> "BehaviourPrior":
        """Return the labeler."""
        return BehaviourPrior(self)


class BehaviourPrior:
    """See :class:`Config`."""

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self._config = config

    def label(self, rollout: Rollout, policy: TrainablePolicy, reference: TrainablePolicy) -> Rollout:
        """Lower ``reward`` at the first action of every executed decision; nothing past ``executed`` is touched."""
        config = self._config
        batch = rollout.batch()
        kl = _divergence(policy, reference, batch) if config.kl else np.zeros(len(batch))
        mse = _distance(policy, reference, batch) if config.mse else np.zeros(len(batch))
        penalty = config.kl * kl + config.mse * mse
        if config.limit:
            penalty = np.minimum(penalty, config.limit)
        reward = rollout.reward.copy()
        reward[..., 0][rollout.executed > 0] -= (config.coefficient * penalty).astype(reward.dtype)
        return rollout.replace(reward=reward).with_metrics(
            prior_kl=float(kl.mean()), prior_mse=float(mse.mean()), prior_penalty=float(penalty.mean())
        )


def _divergence(policy: TrainablePolicy, reference: TrainablePolicy, batch: Batch) -> Array:
    """Return (B,) KL per executed action."""
    with torch.no_grad():
        parts = [
            policy.divergence(part.observation, part.sample, reference, part.executed) / part.executed
            for part in pieces(batch)
        ]
    kl: Array = torch.cat(parts).double().numpy()
    return kl


def _distance(policy: TrainablePolicy, reference: TrainablePolicy, batch: Batch) -> Array:
    """Return (B,) mean squared distance of the deterministic chunks over executed actions."""
    low, high = policy.spec.action.bounds()
    half = np.where(np.isfinite(high - low), (high - low) / 2, 1.0)
    found: list[Array] = []
    for part in pieces(batch):
        mine, theirs = (_deterministic(item, part.observation) for item in (policy, reference))
        square = (((mine - theirs) / half) ** 2).mean(-1)
        ran = executed_mask(part.executed, square.shape[1]).numpy()
        found.append((square * ran).sum(1) / ran.sum(1))
    return np.concatenate(found)


def _deterministic(policy: TrainablePolicy, observation: Observation) -> Array:
    plain = {key: item.numpy() if isinstance(item, torch.Tensor) else item for key, item in observation.items()}
    acting = {key: item for key, item in plain.items() if key not in policy.spec.critic_observation}
    sample = policy.act(acting, generator=stream(0, "behaviour_prior"), deterministic=True)
    chunk: Array = np.asarray(sample.action_chunk, np.float64)
    return chunk
