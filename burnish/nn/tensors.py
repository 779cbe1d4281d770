"""From whatever holds numbers to a tensor beside the weights that will use it, and which entries of it count."""

from typing import Any

import numpy as np
import torch


def as_tensor(value: Any, like: torch.Tensor, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
    """Return an array, list or tensor as a tensor on the device of ``like``, without a copy where possible.

    Args:
        value: What to convert; a read-only array is copied, since a tensor over it could be written.
        like: Tensor that gives the device.
        dtype: Of the result; None keeps that of ``value``.
    """
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()
    return torch.as_tensor(value, dtype=dtype, device=like.device)


def executed_mask(executed: Any, steps: int, device: torch.device | None = None) -> torch.Tensor:
    """Return (B, steps) bool, true for the steps that ran.

    Args:
        executed: (B,) integers, how many steps of each row ran: a tensor, array or list.
        steps: Length of a row.
        device: Of the result; that of ``executed`` where None.
    """
    count = torch.as_tensor(executed, device=device)
    return torch.arange(steps, device=count.device) < count[:, None]
