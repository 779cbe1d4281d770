"""Multilayer perceptrons whose weights come from a given generator, and their forward pass in plain numpy."""

from collections.abc import Callable, Sequence
from itertools import pairwise

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


def forward_numpy(network: nn.Sequential, x: Array) -> Array:
    """Run a :func:`make_mlp` network on CPU without torch's per-call cost, (B, D) to (B, D').

    The weights are read through shared memory, so there is no copy that could be stale.
    """
    for layer in network:
        if isinstance(layer, nn.Linear):
            x = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        elif isinstance(layer, nn.Tanh):
            x = np.tanh(x)
        elif isinstance(layer, nn.ReLU):
            x = np.maximum(x, 0)
        else:
            x = x / (1 + np.exp(-x))
    return x
