"""A function of an observation as a module of positional tensors, which is what graph exporters take."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


class ObservationModule(nn.Module):
    """Calls ``function`` with a dictionary made of its positional inputs."""

    def __init__(
        self, owner: nn.Module, keys: Sequence[str], function: Callable[[dict[str, Any]], torch.Tensor]
    ) -> None:
        """Wrap a function.

        Args:
            owner: Whose parameters and buffers ``function`` uses.
            keys: Name of each positional input, in order.
            function: Observation (B, ...) to a tensor, by torch operations only.
        """
        super().__init__()
        self.owner = owner
        self._keys, self._function = tuple(keys), function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return what the function answers."""
        return self._function(dict(zip(self._keys, inputs, strict=True)))
