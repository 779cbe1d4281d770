"""A hand-computable environment: it counts its steps, and its Start says how long it lasts and how it ends."""

from typing import Any

import numpy as np

from burnish.core.spec import Array, ArraySpec, EnvSpec, MetricSpec
from burnish.core.step import Start
from burnish.envs.single import VectorEnv

SPEC = EnvSpec(
    id="count",
    observation={
        "observation.state": ArraySpec((2,), names=("init", "steps")),
        "privileged.left": ArraySpec((1,)),
    },
    action=ArraySpec((2,), low=-1.0, high=1.0),
    control_dt=0.1,
    max_episode_steps=20,
    tasks=("terminate", "truncate"),
    splits={"train": ("terminate",)},
    num_inits=20,
    metrics={"success": MetricSpec("binary"), "steps": MetricSpec("count")},
)


class CountEnv:
    """Lasts ``init + 1`` steps; step s (from 1) pays s; the task names how it ends."""

    def __init__(self, spec: EnvSpec = SPEC) -> None:
        self.spec = spec
        self._start = Start("terminate", 0, 0)
        self._steps = 0
        self.begun: list[Start] = []

    def reset(self, start: Start) -> None:
        self._start, self._steps = start, 0
        self.begun.append(start)

    def advance(self, action: Array) -> tuple[float, bool, bool]:
        self._steps += 1
        ended = self._steps > self._start.init
        terminate = self._start.task == "terminate"
        return float(self._steps), ended and terminate, ended and not terminate

    def observe(self) -> dict[str, Any]:
        return {
            "observation.state": np.array([self._start.init, self._steps], np.float32),
            "privileged.left": np.array([self._start.init + 1 - self._steps], np.float32),
            "task": self._start.task,
        }

    def metrics(self) -> dict[str, float]:
        return {"success": float(self._steps > 2), "steps": float(self._steps)}

    def render(self) -> Array:
        return np.zeros((8, 8, 3), np.uint8)

    def close(self) -> None:
        pass


def count_envs(num_envs: int) -> tuple[VectorEnv, list[CountEnv]]:
    """Return a vector of them, and its members."""
    members = [CountEnv() for _ in range(num_envs)]
    return VectorEnv(members), members
