"""Log-probabilities, values and their gradients of the mlp policy, by hand; what autograd gives is the test."""

from collections.abc import Callable, Sequence

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
        width = self._parameters[-1].shape[0]
        if gradient.shape[1] < width:  # only the first actions of the chunks were offered
            gradient = nn.functional.pad(gradient, (0, width - gradient.shape[1]))
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
        self._state, self._critic_state = (item.numpy() for item in inputs)
        self._shares_state = inputs[0] is inputs[1]
        self._action, self._minimum = action.numpy(), np.float32(minimum)
        self._log_std = log_std
        self._difference = self._precision = self._action
        self._offered = action.shape[1] * action.shape[2]

    @torch.no_grad()
    def forward(self, rows: Array) -> Outputs:
        """Return the outputs of some rows."""
        action = self._action[rows]
        size, steps, width = action.shape
        state = torch.from_numpy(self._state[rows])
        critic_state = state if self._shares_state else torch.from_numpy(self._critic_state[rows])
        mean = self._actor.forward(state).numpy()[:, : self._offered]
        log_std = np.maximum(self._log_std.detach().numpy()[0], self._minimum)
        self._precision = np.exp(-2 * log_std)
        self._difference = (action.reshape(size, -1) - mean).reshape(-1, width)
        total = log_std.sum()
        log_prob = np.square(self._difference) @ self._precision
        log_prob *= np.float32(-0.5)
        log_prob -= total + np.float32(0.5 * LOG_TWO_PI * width)
        entropy = np.full(size, total + np.float32(0.5 * (1 + LOG_TWO_PI) * width), np.float32)
        return Outputs(log_prob.reshape(size, steps), entropy, self._critic.forward(critic_state).numpy()[:, 0])

    @torch.no_grad()
    def backward(self, log_prob: Array | None, entropy: Array | None, value: Array | None) -> None:
        """Set all gradients."""
        spread = np.full_like(self._precision, 0.0 if entropy is None else entropy.sum())
        mean = None
        if log_prob is not None:
            slope = log_prob.reshape(-1, 1)
            scaled = slope * self._difference
            spread += (scaled * self._difference).sum(0) * self._precision - slope.sum()
            mean = torch.from_numpy((scaled * self._precision).reshape(len(log_prob), -1))
        self._actor.backward(mean)
        self._critic.backward(None if value is None else torch.from_numpy(value[:, None]))
        spread *= self._log_std.detach().numpy()[0] >= self._minimum
        self._log_std.grad = torch.from_numpy(spread[None])
