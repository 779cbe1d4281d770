"""Losses as pure torch functions: element by element, then one weighted mean."""

import torch

from burnish.core.errors import ConfigError


def weighted_mean(item: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Return sum(weight * item) / sum(weight), 0 where all weights are 0; shapes must be equal."""
    if weight is None:
        return item.mean()
    if item.ndim == 1:
        return torch.dot(item, weight) / weight.sum().clamp_min(1e-8)
    return (item * weight).sum() / weight.sum().clamp_min(1e-8)


def clipped_surrogate(
    log_ratio: torch.Tensor,
    advantage: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> torch.Tensor:
    """Return the negative clipped surrogate of PPO (arXiv 1707.06347, eq. 7), element by element.

    Args:
        log_ratio: Any shape, log(pi / pi_b).
        advantage: Same shape.
        clip_low: The ratio is clipped below 1 - clip_low.
        clip_high: The ratio is clipped above 1 + clip_high.
        dual_clip: Above 1: bound the loss of a bad action at dual_clip * |advantage| (arXiv 1912.09729); 0 for none.
    """
    if not 0.0 <= clip_low < 1.0 or clip_high < 0.0 or (dual_clip and dual_clip <= 1.0):
        raise ConfigError(
            f"Clip limits must be 0 <= clip_low < 1, clip_high >= 0 and dual_clip 0 or above 1; "
            f"found {clip_low}, {clip_high}, {dual_clip}."
        )
    ratio = log_ratio.exp()
    gain = advantage * ratio
    with torch.no_grad():  # a clipped ratio has no gradient
        clipped = advantage * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
        counts = gain <= clipped
    loss = -torch.where(counts, gain, clipped)
    if dual_clip:
        loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * dual_clip), loss)
    return loss


def value_loss(
    value: torch.Tensor,
    return_: torch.Tensor,
    *,
    old_value: torch.Tensor | None = None,
    clip: float = 0.0,
    huber_delta: float = 0.0,
) -> torch.Tensor:
    """Return (value - return)^2 / 2, element by element.

    Args:
        value: (B,), being trained.
        return_: (B,), target.
        old_value: (B,), when the rollout was collected; needed with ``clip``.
        clip: Above 0: the value may leave ``old_value`` by this much only, and the larger of both losses counts.
        huber_delta: Above 0: linear beyond this error, with the square's value and slope at it.
    """

    def error(prediction: torch.Tensor) -> torch.Tensor:
        if huber_delta:
            return torch.nn.functional.huber_loss(prediction, return_, reduction="none", delta=huber_delta)
        return 0.5 * (prediction - return_).square()

    loss = error(value)
    if clip:
        if old_value is None:
            raise ConfigError("Clipping the value loss needs old_value, the values at collection; found None.")
        loss = torch.maximum(loss, error(old_value + (value - old_value).clamp(-clip, clip)))
    return loss


def explained_variance(value: torch.Tensor, return_: torch.Tensor) -> float:
    """Return 1 - var(return - value) / var(return); 1 is perfect, 0 no better than a constant, nan without variance."""
    variance = return_.var(correction=0)
    return float(1.0 - (return_ - value).var(correction=0) / variance) if variance > 0 else float("nan")
