"""Real-time chunking in the loop: how many actions will run while the policy computes, and what it is told of them."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.inpainting import Prefix, Schedule
from burnish.core.spec import Array


@dataclass(frozen=True)
class Config:
    """In-painting of what is planned already, for policies that offer ``act_with_prefix`` (flow policies)."""

    use: Literal["auto", "off"] = "auto"
    """"auto" asks a policy that can to go on from the plan, whenever at least one action runs while it computes."""
    schedule: Schedule = "exp"
    """How binding the plan is after the frozen actions: fading (exp, linear), all of it (ones), or none (zeros)."""
    max_guidance: float = 5.0
    """Limit of the guidance's weight (arXiv:2506.07339 takes 5)."""
    overlap_steps: int = 0
    """How many planned actions the policy is told at most; 0 for all that are left of the old chunk."""
    delay_window: int = 20
    """Answers from which the delay of the next one is estimated."""
    delay_quantile: float = 0.9
    """Quantile of them that is taken; 1 for the largest."""
    initial_delay_steps: int = 0
    """Delay to expect before one was measured [control ticks]; 0 asks for the second chunk without in-painting."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if min(self.overlap_steps, self.initial_delay_steps) < 0 or self.delay_window < 1:
            raise ConfigError(
                "inpaint: overlap_steps and initial_delay_steps must not be negative and delay_window at least 1, "
                f"found {self.overlap_steps}, {self.initial_delay_steps} and {self.delay_window}."
            )
        if not 0 < self.delay_quantile <= 1 or not self.max_guidance > 0:
            raise ConfigError(
                f"inpaint: delay_quantile must be within (0, 1] and max_guidance positive, found "
                f"{self.delay_quantile} and {self.max_guidance}."
            )


class DelayEstimate:
    """A quantile of the last few delays in control ticks that really passed; what was slow once is forgotten."""

    def __init__(self, config: Config) -> None:
        """Start without a measurement."""
        self._config = config
        self._ticks: deque[int] = deque(maxlen=config.delay_window)

    def add(self, ticks: int) -> None:
        """Learn how many control ticks passed between asking for a chunk and its arrival."""
        self._ticks.append(ticks)

    @property
    def steps(self) -> int:
        """Control ticks that the next answer is expected to take."""
        if not self._ticks:
            return self._config.initial_delay_steps
        return math.ceil(np.quantile(self._ticks, self._config.delay_quantile, method="inverted_cdf"))


def make_prefix(planned: Array, delay_steps: int, config: Config) -> Prefix | None:
    """Return what to tell the policy, or None where there is nothing to go on from.

    Args:
        planned: (P, A) actions that are planned from now on.
        delay_steps: How many of them will run before the answer; those the plan does not have will be held, which
            binds nothing.
        config: How.
    """
    if config.overlap_steps:
        planned = planned[: max(config.overlap_steps, delay_steps)]
    if not delay_steps or not len(planned) or not np.isfinite(planned).all():
        return None
    return Prefix(planned, min(delay_steps, len(planned)), config.schedule, config.max_guidance)
