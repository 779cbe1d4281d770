"""Gaussians over action chunks whose noise is correlated in time: a stationary AR(1) process over the control steps.

White noise of a stiff robot is mostly averaged out by its motion, so nothing about the whole chunk is tried. With
e_0 = w_0 and e_t = rho e_{t-1} + sqrt(1 - rho^2) w_t every step keeps the same width, a chunk is pushed in one
direction, and the log-probability still factorises over steps, so executed prefixes are exact. (Coloured noise in
reinforcement learning: Eberhard et al., ICLR 2023; Lillicrap et al., arXiv 1509.02971.)

All chunks are normalised, (..., K, A); ``correlation`` is rho, in [0, 1). With rho = 0 these are the functions of
:mod:`burnish.nn.gaussian`.
"""

import math

import torch

from burnish.core.spec import Array
from burnish.nn import gaussian


def correlate(noise: Array, correlation: float) -> Array:
    """Return AR(1) noise (..., K, A) with unit width from white noise (..., K, A)."""
    if correlation == 0.0:
        return noise
    result = noise.copy()
    fresh = math.sqrt(1.0 - correlation**2)
    for t in range(1, noise.shape[-2]):
        result[..., t, :] = correlation * result[..., t - 1, :] + fresh * noise[..., t, :]
    return result


def whiten(deviation: torch.Tensor, correlation: float) -> torch.Tensor:
    """Return the white noise (..., K, A) that made a deviation (..., K, A); the inverse of :func:`correlate`."""
    if correlation == 0.0:
        return deviation
    fresh = math.sqrt(1.0 - correlation**2)
    later = (deviation[..., 1:, :] - correlation * deviation[..., :-1, :]) / fresh
    return torch.cat((deviation[..., :1, :], later), -2)


def log_prob(action: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor, correlation: float) -> torch.Tensor:
    """Return the log-density of each step given those before it, (..., K) float32 nats; log_std is (A,).

    A sum over the first k steps is the exact joint log-density of the first k actions.
    """
    if correlation == 0.0:
        return gaussian.log_prob(action, mean, log_std)
    white = whiten((action.float() - mean.float()) * torch.exp(-log_std.float()), correlation)
    density = gaussian.log_prob(white, torch.zeros_like(white), torch.zeros_like(log_std)) - log_std.sum(-1)
    return density - _narrowing(white, correlation)


def entropy(mean: torch.Tensor, log_std: torch.Tensor, correlation: float) -> torch.Tensor:
    """Return the entropy of each step given those before it, (..., K) nats, for mean (..., K, A), log_std (A,)."""
    flat = gaussian.entropy(log_std).expand(mean.shape[:-1])
    return flat if correlation == 0.0 else flat + _narrowing(mean, correlation)


def kl(
    mean_p: torch.Tensor, log_std_p: torch.Tensor, mean_q: torch.Tensor, log_std_q: torch.Tensor, correlation: float
) -> torch.Tensor:
    """Return KL(p || q) per step, (..., K) nats, both with the same correlation; means (..., K, A), log-stds (A,).

    Whitening by the common correlation leaves widths s_p, s_q and the whitened difference of means, so each step has
    the closed form of :func:`burnish.nn.gaussian.kl`; a sum over the first k steps is the joint KL of k actions.
    """
    difference = whiten(mean_p.float() - mean_q.float(), correlation)
    return gaussian.kl(difference, log_std_p, torch.zeros_like(difference), log_std_q)


def _narrowing(chunk: torch.Tensor, correlation: float) -> torch.Tensor:
    """Return (K,) log-width that a step loses by the one before it: A log sqrt(1 - rho^2), 0 for the first."""
    loss = torch.full((chunk.shape[-2],), 0.5 * chunk.shape[-1] * math.log1p(-(correlation**2)))
    loss[0] = 0.0
    return loss
