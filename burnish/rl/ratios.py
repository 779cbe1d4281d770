"""Ratios and divergences of sampled actions, over executed actions only; pure torch functions in float32."""

from typing import Literal

import torch

from burnish.core.errors import ConfigError
from burnish.nn.tensors import executed_mask

type Granularity = Literal["chunk", "action"]


def chunk_log_prob(log_prob: torch.Tensor, executed: torch.Tensor) -> torch.Tensor:
    """Return (B,) log-probability of what was executed.

    Args:
        log_prob: (B, G); with G > 1 one entry per action, with G = 1 one for the decision.
        executed: (B,) int64.
    """
    log_prob = log_prob.float()
    if log_prob.shape[1] == 1:
        return log_prob[:, 0]
    return torch.where(executed_mask(executed, log_prob.shape[1]), log_prob, 0.0).sum(1)


def log_ratio(
    log_prob: torch.Tensor,
    behaviour_log_prob: torch.Tensor,
    executed: torch.Tensor,
    *,
    chunk_steps: int,
    granularity: Granularity = "chunk",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log(pi / pi_b) of the executed actions, and which entries count.

    Args:
        log_prob: (B, G), under the policy being trained.
        behaviour_log_prob: (B, G), under the policy that acted.
        executed: (B,) int64.
        chunk_steps: K.
        granularity: "chunk": one ratio per decision, the product over its executed actions. "action": one ratio per
            action, for policies that factorise over time (G = K).

    Returns:
        (log-ratio, mask): (B,) and None (all count), or both (B, K); the log-ratio is 0 where the mask is false.

    Raises:
        ConfigError: If ratios per action are asked of a policy that has one log-probability per chunk.
    """
    difference = log_prob.float() - behaviour_log_prob.float()
    entries = difference.shape[1]
    if granularity == "action":
        if entries != chunk_steps:
            raise ConfigError(
                f'granularity "action" needs one log-probability per action (G = K = {chunk_steps}), but this policy '
                f'gives G = {entries}. Use granularity "chunk".'
            )
        mask = executed_mask(executed, entries)
        return torch.where(mask, difference, 0.0), mask
    if entries == 1:
        return difference[:, 0], None
    mask = executed_mask(executed, entries)
    return torch.where(mask, difference, 0.0).sum(1), None


def kl_k1(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the estimator -log r of KL(pi_b || pi), r = pi / pi_b on samples of pi_b: unbiased, high variance."""
    return -log_ratio


def kl_k2(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the estimator (log r)^2 / 2 of KL(pi_b || pi): biased, never negative, its gradient is that of the KL."""
    return 0.5 * log_ratio.square()


def kl_k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the estimator r - 1 - log r of KL(pi_b || pi): unbiased, never negative (Schulman, 2020)."""
    return torch.expm1(log_ratio) - log_ratio
