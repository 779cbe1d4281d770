"""A flow policy that is known exactly: chunks are drawn from a smooth Gaussian process around what is observed.

With x = tau a + (1 - tau) z, a ~ N(mu, C) over the steps and z ~ N(0, I), the marginal velocity E[a - z | x] is
``mu + M(tau) (x - tau mu)`` with M = (tau C - (1 - tau) I) (tau^2 C + (1 - tau)^2 I)^-1, which is symmetric.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.core.inpainting import Prefix, Velocity, Vjp, denoise
from burnish.core.spec import Array, ArraySpec, PolicySpec
from burnish.core.step import ActionSample

STATE = "observation.state"


def covariance(steps: int, length: float = 4.0, deviation: float = 0.5) -> Array:
    """Return C (K, K) of a smooth process: squared exponential over steps, and a little white noise."""
    index = np.arange(steps)
    smooth = np.exp(-0.5 * ((index[:, None] - index) / length) ** 2)
    c: Array = deviation**2 * (smooth + 1e-3 * np.eye(steps))
    return c


def gaussian_velocity(mean: Array, c: Array) -> Velocity:
    """Return the velocity of chunks N(mean (K, A), C) with entries independent, and its exact product."""
    eye = np.eye(len(c))

    def velocity(x: Array, tau: float) -> tuple[Array, Vjp]:
        m = (tau * c - (1 - tau) * eye) @ np.linalg.inv(tau**2 * c + (1 - tau) ** 2 * eye)
        return mean + m @ (x - tau * mean), lambda g: m.T @ g

    return velocity


@dataclass
class GaussianFlowPolicy:
    """Chunks scatter widely around the observed state, so that two of them rarely agree."""

    steps: int = 16
    width: int = 2
    denoising_steps: int = 10
    unit: str = "m"
    prefixes: list[Prefix | None] = field(default_factory=list)
    spec: PolicySpec = field(init=False)

    def __post_init__(self) -> None:
        action = ArraySpec((self.width,), unit=self.unit, low=-5.0, high=5.0)
        self.spec = PolicySpec("gaussian_flow", {STATE: ArraySpec((self.width,), unit="m")}, action, self.steps)

    def act(
        self, observation: Mapping[str, Any], *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        return self._answer(observation, None, generator)

    def act_with_prefix(
        self,
        observation: Mapping[str, Any],
        prefix: Prefix,
        *,
        generator: np.random.Generator,
        deterministic: bool = False,
    ) -> ActionSample:
        return self._answer(observation, prefix, generator)

    def _answer(self, observation: Mapping[str, Any], prefix: Prefix | None, generator: Any) -> ActionSample:
        self.prefixes.append(prefix)
        mean = np.repeat(np.asarray(observation[STATE], float)[0][None], self.steps, 0)
        noise = generator.standard_normal((self.steps, self.width))
        chunk = denoise(gaussian_velocity(mean, covariance(self.steps)), noise, prefix=prefix, steps=10)
        return ActionSample(chunk[None].astype(np.float32), np.zeros((1, 1), np.float32))
