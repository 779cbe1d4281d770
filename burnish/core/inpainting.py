"""Real-time chunking: how a flow policy makes a chunk that goes on from actions which are already planned.

After Black, Galliker and Levine, "Real-Time Execution of Action Chunking Flow Policies", arXiv:2506.07339. While a
policy computes, the robot executes the old chunk; the actions it will execute meanwhile are frozen, the planned ones
after them are a wish that fades. The new chunk is drawn by pseudo-inverse guidance (PiGDM): at every denoising step the
chunk that the flow is heading for is compared with the plan, and the difference is carried back through the Jacobian of
that estimate. Flow time tau runs from 0 (noise) to 1 (action), ``x = tau * action + (1 - tau) * noise``.

All of this is numpy: a policy hands in its velocity with a function for the vector-Jacobian product. In torch that is
:func:`burnish.nn.jacobian.velocity_with_vjp`; :func:`check_vjp` compares any of them with finite differences.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from burnish.core.errors import ConfigError, SpecError
from burnish.core.spec import Array

type Schedule = Literal["linear", "exp", "ones", "zeros"]
type Vjp = Callable[[Array], Array]
"""Takes g (K, A), returns ``J^T g`` (K, A) with J the Jacobian of the velocity in x, both flattened."""
type Velocity = Callable[[Array, float], tuple[Array, Vjp]]
"""Takes x (K, A) and tau, returns the velocity (K, A) there and its vector-Jacobian product."""

_INTEGRATION_STEPS = 10


@dataclass(frozen=True)
class Prefix:
    """What is planned already for the first actions of the chunk that is asked for."""

    action: Array
    """(P, A), 1 <= P <= K, in the env's units, never padded: what is not planned is not here."""
    frozen_steps: int
    """The first so many will have run before the answer arrives; at most P."""
    schedule: Schedule = "exp"
    """How the weight of the plan fades after the frozen actions, see :func:`prefix_weights`."""
    max_guidance: float = 5.0
    """Limit of the guidance's weight; beta of the paper, which takes 5."""

    def __post_init__(self) -> None:
        """Refuse a prefix that says nothing or freezes what it does not have."""
        if self.action.ndim != 2 or not len(self.action):
            raise SpecError(f"A prefix holds actions (P, A) with P >= 1, found the shape {self.action.shape}.")
        if not 0 <= self.frozen_steps <= len(self.action):
            raise SpecError(f"frozen_steps is {self.frozen_steps}; the prefix has {len(self.action)} actions.")
        if not np.isfinite(self.action).all():
            raise SpecError("A prefix must be finite.")
        if not self.max_guidance > 0:
            raise ConfigError(f"max_guidance must be positive, found {self.max_guidance}.")


def prefix_weights(frozen_steps: int, prefix_steps: int, schedule: Schedule = "exp") -> Array:
    """Return how much each planned action counts, (P,) float64 within [0, 1] (equation 5 of the paper).

    Frozen actions count fully. For i past them, with c = (P - i) / (P - frozen + 1):

    - ``exp``: c (e^c - 1) / (e - 1), the paper's;
    - ``linear``: c;
    - ``ones``: 1, all of the plan is binding;
    - ``zeros``: 0, only what is frozen is.

    Actions of the chunk past P have weight 0, so nothing has to stand in for them.

    Args:
        frozen_steps: Actions that will have run, d of the paper.
        prefix_steps: Planned actions P, H - s of the paper; ``frozen_steps`` beyond it counts as P.
        schedule: Which of these.
    """
    frozen = min(frozen_steps, prefix_steps)
    index = np.arange(prefix_steps)
    fading = np.clip((prefix_steps - index) / (prefix_steps - frozen + 1), 0.0, 1.0)
    rest = {
        "exp": fading * np.expm1(fading) / math.expm1(1.0),
        "linear": fading,
        "ones": np.ones(prefix_steps),
        "zeros": np.zeros(prefix_steps),
    }
    if schedule not in rest:
        raise ConfigError(f"There is no schedule '{schedule}'; there are {', '.join(rest)}.")
    weight: Array = np.where(index < frozen, 1.0, rest[schedule])
    return weight


def guidance_scale(tau: float, max_guidance: float) -> float:
    """Return min(beta, (1 - tau) / (tau r^2)) with r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2) (equations 2 and 4).

    Args:
        tau: Flow time within [0, 1]; at both ends the fraction is infinite and the limit counts.
        max_guidance: The limit, beta.
    """
    product = tau * (1.0 - tau)
    return max_guidance if product <= 0.0 else min(max_guidance, (tau**2 + (1.0 - tau) ** 2) / product)


def guided_velocity(velocity: Velocity, x: Array, tau: float, prefix: Prefix, weight: Array) -> Array:
    """Return the velocity (K, A) that also pulls the chunk to its prefix (equation 2).

    The chunk that x heads for is ``x + (1 - tau) v(x)``; its Jacobian is ``I + (1 - tau) J``, so that a difference g
    between plan and estimate is carried back as ``g + (1 - tau) J^T g``. Leaving out J^T g would move only the entries
    that have a plan; with it the rest of the chunk follows as the policy's own distribution says.

    Args:
        velocity: The policy's.
        x: Noisy chunk (K, A).
        tau: Flow time.
        prefix: The plan, in the space of x (normalised, if the flow is).
        weight: (P,) of :func:`prefix_weights`.
    """
    speed, vjp = velocity(x, tau)
    steps = len(prefix.action)
    estimate = x[:steps] + (1.0 - tau) * speed[:steps]
    pull = np.zeros_like(x)
    pull[:steps] = weight[:, None] * (prefix.action - estimate)
    guided: Array = speed + guidance_scale(tau, prefix.max_guidance) * (pull + (1.0 - tau) * vjp(pull))
    return guided


def denoise(
    velocity: Velocity, noise: Array, *, prefix: Prefix | None = None, steps: int = _INTEGRATION_STEPS
) -> Array:
    """Return the chunk (K, A) that a flow makes of noise by Euler steps of equal size.

    Args:
        velocity: The policy's.
        noise: (K, A), tau = 0.
        prefix: What the chunk goes on from, in the space of the noise; None for nothing.
        steps: Euler steps.

    Raises:
        SpecError: If the prefix is longer than the chunk, or has another width.
    """
    x = np.array(noise, float)
    if prefix is not None and (len(prefix.action) > len(x) or prefix.action.shape[1:] != x.shape[1:]):
        raise SpecError(f"A prefix of shape {prefix.action.shape} does not fit a chunk of shape {x.shape}.")
    weight = None if prefix is None else prefix_weights(prefix.frozen_steps, len(prefix.action), prefix.schedule)
    for step in range(steps):
        tau = step / steps
        if prefix is None or weight is None:
            speed = velocity(x, tau)[0]
        else:
            speed = guided_velocity(velocity, x, tau, prefix, weight)
        x = x + speed / steps
    return x


def check_vjp(
    velocity: Velocity,
    x: Array,
    tau: float,
    *,
    generator: np.random.Generator,
    probes: int = 4,
    step: float = 1e-3,
    tolerance: float = 1e-2,
) -> None:
    """Compare a vector-Jacobian product with central differences: g . (J u) against (J^T g) . u for random g and u.

    Args:
        velocity: What is checked.
        x: Noisy chunk (K, A) at which.
        tau: Flow time at which.
        generator: Draws the directions.
        probes: How many pairs.
        step: Size of the difference.
        tolerance: Largest difference, relative to the largest |J u| |g| seen.

    Raises:
        SpecError: If they disagree, for example because the product is the identity, or zero.
    """
    _, vjp = velocity(x, tau)
    found, wanted, sizes = [], [], [1e-9]
    for _ in range(probes):
        g, u = generator.standard_normal((2, *x.shape))
        along = (velocity(x + step * u, tau)[0] - velocity(x - step * u, tau)[0]) / (2 * step)
        wanted.append(float(np.sum(g * along)))
        found.append(float(np.sum(vjp(g) * u)))
        sizes.append(float(np.linalg.norm(along) * np.linalg.norm(g)))
    worst, scale = float(np.abs(np.subtract(found, wanted)).max()), max(sizes)
    if not worst <= tolerance * scale:
        raise SpecError(
            f"The vector-Jacobian product is off by {worst:.3g} where finite differences find {scale:.3g}. It must be "
            "J^T g, with J the Jacobian of the velocity in x; see burnish.nn.jacobian for torch."
        )
