"""The same Start several times in a row, for advantages relative to a group."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from burnish.core.contracts import EpisodeSummary
from burnish.core.errors import ConfigError
from burnish.core.seeding import restore_generator, save_generator
from burnish.core.spec import EnvSpec
from burnish.core.step import Start
from burnish.rl.samplers.uniform import choose_tasks, draw_start


@dataclass(frozen=True)
class Config:
    """Draw Starts uniformly and give each ``size`` times."""

    size: int = 8
    """Episodes per group, at least 2."""
    split: str = ""
    """Name of a split of the environment; "" for all tasks."""
    tasks: tuple[str, ...] = ()
    """Task names, instead of a split."""

    def __post_init__(self) -> None:
        """Refuse groups that cannot compare anything."""
        if self.size < 2:
            raise ConfigError(f"A group needs at least 2 episodes to compare, found size={self.size}.")

    def build(self, env_spec: EnvSpec, *, generator: np.random.Generator) -> "GroupSampler":
        """Return the sampler for an environment."""
        return GroupSampler(choose_tasks(env_spec, self.split, self.tasks), env_spec.num_inits, self.size, generator)


class GroupSampler:
    """See :class:`Config`."""

    def __init__(self, tasks: Sequence[str], num_inits: int, size: int, generator: np.random.Generator) -> None:
        """Draw from ``tasks`` and inits below ``num_inits``, each Start ``size`` times."""
        self._tasks = tuple(tasks)
        self._num_inits = num_inits
        self._size = size
        self._generator = generator
        self._pending: list[Start] = []

    def next(self, count: int) -> list[Start]:
        """Return ``count`` Starts; a group that does not fit goes on in the next call."""
        while len(self._pending) < count:
            start = draw_start(self._tasks, self._num_inits, self._generator)
            self._pending.extend([start] * self._size)
        chosen, self._pending = self._pending[:count], self._pending[count:]
        return chosen

    def report(self, episodes: Sequence[EpisodeSummary]) -> None:
        """Learn nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state and the rest of the open group."""
        return {"generator": save_generator(self._generator), "pending": [asdict(start) for start in self._pending]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._generator = restore_generator(state["generator"])
        self._pending = [Start(**item) for item in state["pending"]]
