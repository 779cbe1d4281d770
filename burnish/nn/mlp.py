"""Multilayer perceptrons whose weights come from a given generator, and their forward pass in plain numpy."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from burnish.core.spec import Array

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU}


def torch_generator(generator: np.random.Generator) -> torch.Generator:
    """Return a torch generator seeded by one draw of a numpy generator."""
    return torch.Generator().manual_seed(int(generator.integers(1 << 62)))


def make_mlp(
    sizes: Sequence[int], *, generator: torch.Generator, activation: str = "tanh", output_gain: float = 1.0
) -> nn.Sequential:
    """Return linear layers with activations between them, orthogonal weights and zero biases.

    Args:
        sizes: Widths from input to output, at least two.
        generator: Source of the weights.
        activation: A key of ``ACTIVATIONS``.
        output_gain: Gain of the last layer's weights; small values start near a zero output.
    """
    layers: list[nn.Module] = []
    for i, (width_in, width_out) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        linear = nn.Linear(width_in, width_out, device="meta").to_empty(device="cpu")
        nn.init.orthogonal_(linear.weight, output_gain if last else 2**0.5, generator=generator)
        nn.init.zeros_(linear.bias)
        layers.append(linear)
        if not last:
            layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


class Views:
    """numpy views of tensors on CPU, made once: they share memory, so an optimiser's step shows in them.

    A copy of this object starts empty, since the tensors beside it are copied, too.
    """

    def __init__(self) -> None:
        """Begin without views."""
        self._pointers: list[int] = []
        self._views: list[Array] = []

    def of(self, tensors: Sequence[torch.Tensor]) -> list[Array]:
        """Return the views of these tensors, made anew where one has moved."""
        pointers = [tensor.data_ptr() for tensor in tensors]
        if pointers != self._pointers:
            self._views = [tensor.detach().numpy() for tensor in tensors]
            self._pointers = pointers
        return self._views

    def __deepcopy__(self, memo: dict[int, Any]) -> "Views":
        return Views()

    def __reduce__(self) -> tuple[type["Views"], tuple[()]]:
        return Views, ()


def forward_numpy(weights: Sequence[Array], x: Array, activation: str) -> Array:
    """Run a :func:`make_mlp` network in plain numpy, without torch's per-call cost, (B, D) to (B, D').

    Args:
        weights: Weight and bias of each layer in turn, as ``network.parameters()`` gives them.
        x: Input.
        activation: A key of ``ACTIVATIONS``.
    """
    last = len(weights) - 2
    for i in range(0, len(weights), 2):
        x = x @ weights[i].T
        x += weights[i + 1]
        if i == last:
            break
        if activation == "tanh":
            np.tanh(x, out=x)
        elif activation == "relu":
            np.maximum(x, 0, out=x)
        else:
            x /= 1 + np.exp(-x)
    return x
