"""Diagonal Gaussians over action chunks, in closed form and float32.

All functions take normalised actions (what "normalised" means is the policy's business) and return one figure per
control step: the sum over the A action entries. Chunk-level figures are sums of these over executed steps only.
"""

import math
from typing import Any

import numpy as np
import torch

from burnish.core.spec import Array
from burnish.nn.tensors import executed_mask

LOG_TWO_PI = math.log(2 * math.pi)


def log_prob(action: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Return log N(action; mean, exp(log_std)^2) per step.

    Args:
        action: (..., A).
        mean: (..., A).
        log_std: Broadcastable to (..., A).

    Returns:
        (...) float32, nats.
    """
    log_std = log_std.float()
    noise = (action.float() - mean.float()) * torch.exp(-log_std)
    return -0.5 * noise.square().sum(-1) - (log_std.sum(-1) + 0.5 * LOG_TWO_PI * mean.shape[-1])


def log_prob_numpy(action: Array, mean: Array, log_std: Array) -> Array:
    """Return what :func:`log_prob` returns, in numpy: (..., A) to (...) float32."""
    noise = (action - mean) * np.exp(-log_std)
    np.square(noise, out=noise)
    result: Array = noise.sum(-1)
    result *= np.float32(-0.5)
    result -= log_std.sum(-1) + np.float32(0.5 * LOG_TWO_PI * mean.shape[-1])
    return result.astype(np.float32, copy=False)


def entropy(log_std: torch.Tensor) -> torch.Tensor:
    """Return the differential entropy (...) in nats of a Gaussian with log-std (..., A)."""
    return (log_std.float() + 0.5 * (1 + LOG_TWO_PI)).sum(-1)


def kl(mean_p: torch.Tensor, log_std_p: torch.Tensor, mean_q: torch.Tensor, log_std_q: torch.Tensor) -> torch.Tensor:
    """Return KL(p || q) per step, (...) float32 nats, for means (..., A) and log-stds broadcastable to them.

    Per entry: log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1/2.
    """
    difference = log_std_p.float() - log_std_q.float()
    distance = (mean_p.float() - mean_q.float()) * torch.exp(-log_std_q.float())
    return 0.5 * (torch.expm1(2 * difference) - 2 * difference + distance.square()).sum(-1)


def masked_mean(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return (B,) means of value (B, K) over the steps where mask (B, K) bool is true; 0 for a row without any."""
    return (value * mask).sum(-1) / mask.sum(-1).clamp_min(1)


def chunk_error(mean: torch.Tensor, action: torch.Tensor, executed: Any) -> torch.Tensor:
    """Return the (B,) mean absolute error of chunks over their executed steps.

    Args:
        mean: (B, K, A) with K at least that of ``action``; steps past it are left out.
        action: (B, K, A).
        executed: (B,) steps that count.
    """
    steps = action.shape[1]
    return masked_mean((mean[:, :steps] - action).abs().mean(-1), executed_mask(executed, steps, action.device))
