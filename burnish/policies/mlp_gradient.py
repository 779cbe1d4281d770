"""Log-probabilities, values and their gradients of the mlp policy, by hand; what autograd gives is the test."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from burnish.core.contracts import Outputs
from burnish.core.spec import Array
from burnish.nn.gaussian import LOG_TWO_PI

DERIVATIVE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "tanh": torch.ops.aten.tanh_backward.default,
    "relu": lambda gradient, output: gradient.mul_(output > 0),
}
"""By activation: the gradient before it, from the one after it and its output."""
ACTIVATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"tanh": torch.Tensor.tanh_, "relu": torch.Tensor.relu_}


class Layers:
    """A network of :func:`burnish.nn.mlp.make_mlp`, forwards and backwards."""

    def __init__(self, network: nn.Sequential, activation: str) -> None:
        """Take the parameters, which an optimiser changes in place."""
        self._parameters = list(network.parameters())
        self._activation = activation
        self._inputs: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output (B, D') for (B, D), and keep every layer's input."""
        parameters, activate = self._parameters, ACTIVATE[self._activation]
        self._inputs = [x]
        for i in range(0, len(parameters) - 2, 2):
            x = activate(torch.addmm(parameters[i + 1], x, parameters[i].t()))
            self._inputs.append(x)
        return torch.addmm(parameters[-1], x, parameters[-2].t())

    def backward(self, gradient: torch.Tensor | None) -> None:
        """Set the parameters' gradients from that of the output; None is zero."""
        if gradient is None:
            for parameter in self._parameters:
                parameter.grad = torch.zeros_like(parameter)
            return
        for i in range(len(self._inputs) - 1, -1, -1):
            weight, bias = self._parameters[2 * i : 2 * i + 2]
            weight.grad = gradient.t().mm(self._inputs[i])
            bias.grad = gradient.sum(0)
            if i:
                gradient = DERIVATIVE[self._activation](gradient.mm(weight), self._inputs[i])


class MLPGradient:
    """A :class:`burnish.core.contracts.HandGradient` over a batch whose inputs are normalised already."""

    def __init__(
        self,
        networks: Sequence[nn.Sequential],
        activation: str,
        inputs: Sequence[torch.Tensor],
        action: torch.Tensor,
        log_std: nn.Parameter,
        minimum: float,
    ) -> None:
        """Take what the batch needs.

        Args:
            networks: Actor and critic.
            activation: A key of ``ACTIVATE``.
            inputs: What they read, (B, D) and (B, D').
            action: (B, K, A), normalised.
            log_std: (1, A).
            minimum: Floor of the log-std.
        """
        self._actor, self._critic = (Layers(network, activation) for network in networks)
        self._state, self._critic_state = inputs
        self._action, self._log_std, self._minimum = action, log_std, minimum
        self._difference = action
        self._precision = action

    @torch.no_grad()
    def forward(self, rows: Array) -> Outputs:
        """Return the outputs of some rows."""
        index = torch.from_numpy(rows)
        state, action = self._state[index], self._action[index]
        size, steps, width = action.shape
        log_std = self._log_std[0].clamp_min(self._minimum)
        self._precision = torch.exp(-2 * log_std)
        mean = self._actor.forward(state)
        self._chunk_width = mean.shape[1]
        self._difference = (action.view(size, -1) - mean[:, : steps * width]).view(-1, width)
        distance = torch.mv(self._difference.square(), self._precision)
        total = float(log_std.sum())
        log_prob = distance.numpy().reshape(size, steps) * np.float32(-0.5)
        log_prob -= np.float32(total + 0.5 * LOG_TWO_PI * width)
        entropy = np.full(size, total + 0.5 * (1 + LOG_TWO_PI) * width, np.float32)
        critic_state = state if self._critic_state is self._state else self._critic_state[index]
        return Outputs(log_prob, entropy, self._critic.forward(critic_state).numpy()[:, 0])

    @torch.no_grad()
    def backward(self, log_prob: Array | None, entropy: Array | None, value: Array | None) -> None:
        """Set all gradients."""
        spread = torch.full_like(self._precision, 0.0 if entropy is None else float(entropy.sum()))
        mean = None
        if log_prob is not None:
            scaled = self._difference * _column(log_prob.reshape(-1))
            spread += (scaled * self._difference).sum(0) * self._precision - float(log_prob.sum())
            mean = (scaled * self._precision).view(len(log_prob), -1)
            if mean.shape[1] < self._chunk_width:
                mean = nn.functional.pad(mean, (0, self._chunk_width - mean.shape[1]))
        self._actor.backward(mean)
        self._critic.backward(None if value is None else _column(value))
        self._log_std.grad = (spread * (self._log_std[0] >= self._minimum))[None]


def _column(entries: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(entries, np.float32)[:, None])
