"""A fixed list of Starts, over and over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.core.contracts import EpisodeSummary
from burnish.core.errors import ConfigError
from burnish.core.spec import EnvSpec
from burnish.core.step import Start
from burnish.rl.samplers.uniform import choose_tasks, draw_start


@dataclass(frozen=True)
class Config:
    """Draw ``count`` Starts once and run them in turn."""

    count: int = 16
    """How many Starts the list has."""
    split: str = ""
    """Name of a split of the environment; "" for all tasks."""
    tasks: tuple[str, ...] = ()
    """Task names, instead of a split; used in turn."""

    def __post_init__(self) -> None:
        """Refuse an empty list."""
        if self.count < 1:
            raise ConfigError(f"A fixed list needs at least one Start, found count={self.count}.")

    def build(self, env_spec: EnvSpec, *, generator: np.random.Generator) -> "FixedSampler":
        """Return the sampler for an environment."""
        tasks = choose_tasks(env_spec, self.split, self.tasks)
        starts = [draw_start((tasks[i % len(tasks)],), env_spec.num_inits, generator) for i in range(self.count)]
        return FixedSampler(starts)


class FixedSampler:
    """See :class:`Config`; any list of Starts can be given."""

    def __init__(self, starts: Sequence[Start]) -> None:
        """Run ``starts`` in turn."""
        if not starts:
            raise ConfigError("A fixed sampler needs at least one Start; found none.")
        self._starts = list(starts)
        self._position = 0

    def next(self, count: int) -> list[Start]:
        """Return the next ``count`` Starts of the list."""
        chosen = [self._starts[(self._position + i) % len(self._starts)] for i in range(count)]
        self._position = (self._position + count) % len(self._starts)
        return chosen

    def report(self, episodes: Sequence[EpisodeSummary]) -> None:
        """Learn nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the list."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position."""
        self._position = int(state["position"])
