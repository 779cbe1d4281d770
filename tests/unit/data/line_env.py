"""A tiny environment for data tests: a point on a line, a picture of it, and a privileged goal."""

from typing import Any

import numpy as np

from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec, MetricSpec
from burnish.core.step import Start
from burnish.envs.single import VectorEnv

SPEC = EnvSpec(
    id="test/line",
    observation={
        "observation.images.top": ArraySpec((64, 96, 3), "uint8"),
        "observation.state": ArraySpec((2,), unit="m,m", names=("position", "goal")),
        "privileged.goal": ArraySpec((1,), unit="m"),
    },
    action=ArraySpec((1,), unit="m", low=-1.0, high=1.0),
    control_dt=0.1,
    max_episode_steps=12,
    tasks=("left", "right"),
    metrics={"success": MetricSpec("binary"), "distance": MetricSpec("mean", unit="m")},
)


class LineEnv:
    """Reach a goal to the left or right; terminated within 5 cm of it, truncated after 12 steps."""

    def __init__(self) -> None:
        self.spec = SPEC

    def reset(self, start: Start) -> None:
        generator = stream(start.seed, start.task, start.init)
        side = 1.0 if start.task == "right" else -1.0
        self.start, self.position, self.steps = start, 0.0, 0
        self.goal = side * float(generator.uniform(0.5, 2.0))
        self.noise = generator

    def advance(self, action: Any) -> tuple[float, bool, bool]:
        self.position += float(np.clip(action[0], -1, 1)) * float(self.noise.uniform(0.8, 1.0))
        self.steps += 1
        return -self.distance, self.distance < 0.05, self.steps >= SPEC.max_episode_steps

    @property
    def distance(self) -> float:
        return abs(self.position - self.goal)

    def observe(self) -> dict[str, Any]:
        image = np.full((64, 96, 3), int(self.start.seed) % 200, np.uint8)
        image[:, int(np.clip(self.position, -2, 2) * 20 + 48)] = 255
        return {
            "observation.images.top": image,
            "observation.state": np.array([self.position, self.goal], np.float32),
            "privileged.goal": np.array([self.goal], np.float32),
            "task": f"go {self.start.task}",
        }

    def metrics(self) -> dict[str, float]:
        return {"success": float(self.distance < 0.05), "distance": self.distance}

    def render(self) -> Any:
        return self.observe()["observation.images.top"]

    def close(self) -> None:
        pass


def line_env(num_envs: int) -> VectorEnv:
    return VectorEnv([LineEnv() for _ in range(num_envs)])


def expert(observation: dict[str, Any]) -> Any:
    """Head for the goal, (N, 1, 1)."""
    state = observation["observation.state"]
    return np.clip(state[:, 1:] - state[:, :1], -1, 1)[:, None].astype(np.float32)


def chunk_expert(observation: dict[str, Any]) -> Any:
    """A chunk of 4 equal actions, (N, 4, 1)."""
    return np.repeat(expert(observation) * 0.3, 4, axis=1)


def starts(count: int) -> list[Start]:
    return [Start(SPEC.tasks[i % 2], i, 100 + i) for i in range(count)]
