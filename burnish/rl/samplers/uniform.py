"""Every task and initial condition equally often."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.core.contracts import EpisodeSummary
from burnish.core.errors import ConfigError, suggest
from burnish.core.seeding import restore_generator, save_generator
from burnish.core.spec import EnvSpec
from burnish.core.step import TRAINING_SEED_START, Start


@dataclass(frozen=True)
class Config:
    """Draw Starts uniformly from tasks, initial conditions and seeds."""

    split: str = ""
    """Name of a split of the environment; "" for all tasks."""
    tasks: tuple[str, ...] = ()
    """Task names, instead of a split."""

    def build(self, env_spec: EnvSpec, *, generator: np.random.Generator) -> "UniformSampler":
        """Return the sampler for an environment."""
        return UniformSampler(choose_tasks(env_spec, self.split, self.tasks), env_spec.num_inits, generator)


def choose_tasks(env_spec: EnvSpec, split: str, tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the tasks that a split or a list names.

    Raises:
        ConfigError: If both are given, or one does not exist.
    """
    if split and tasks:
        raise ConfigError(f"Name a split or tasks, not both; found split='{split}' and tasks={list(tasks)}.")
    if split and split not in env_spec.splits:
        raise ConfigError(f"Environment '{env_spec.id}' has no split '{split}'.{suggest(split, env_spec.splits)}")
    for task in tasks:
        if task not in env_spec.tasks:
            raise ConfigError(f"Environment '{env_spec.id}' has no task '{task}'.{suggest(task, env_spec.tasks)}")
    return tuple(tasks) or (env_spec.splits[split] if split else env_spec.tasks)


def draw_start(tasks: Sequence[str], num_inits: int, generator: np.random.Generator) -> Start:
    """Return one uniform Start; its seed is in the training range, so evaluation never shares an episode."""
    return Start(
        task=tasks[int(generator.integers(len(tasks)))],
        init=int(generator.integers(num_inits)),
        seed=int(generator.integers(TRAINING_SEED_START, 1 << 31)),
    )


class UniformSampler:
    """See :class:`Config`."""

    def __init__(self, tasks: Sequence[str], num_inits: int, generator: np.random.Generator) -> None:
        """Draw from ``tasks`` and inits below ``num_inits``."""
        self._tasks = tuple(tasks)
        self._num_inits = num_inits
        self._generator = generator

    def next(self, count: int) -> list[Start]:
        """Return ``count`` new Starts."""
        return [draw_start(self._tasks, self._num_inits, self._generator) for _ in range(count)]

    def report(self, episodes: Sequence[EpisodeSummary]) -> None:
        """Learn nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state."""
        return {"generator": save_generator(self._generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the generator."""
        self._generator = restore_generator(state["generator"])
