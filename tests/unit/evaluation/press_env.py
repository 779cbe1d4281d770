"""A tiny contact task: press a surface that lies at a hidden height with enough force, but not too much."""

from typing import Any

import numpy as np

from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec, MetricSpec, Observation, PolicySpec
from burnish.core.step import ActionSample, Start
from burnish.envs.single import VectorEnv

STEPS = 10
SPEC = EnvSpec(
    id="test/press",
    observation={
        "observation.state": ArraySpec((1,), unit="N"),
        "observation.images.top": ArraySpec((24, 30, 3), "uint8"),
    },
    action=ArraySpec((2,), unit="N", low=-200.0, high=200.0),
    control_dt=0.1,
    max_episode_steps=STEPS,
    tasks=("soft", "hard"),
    metrics={
        "success": MetricSpec("binary", better="higher", description="Touched in 8 of 10 steps."),
        "coverage": MetricSpec("mean", better="higher", description="Share of steps in contact."),
        "peak_force": MetricSpec("mean", unit="N", better="lower", beside=("coverage", "success")),
        "share_above": MetricSpec("mean", better="lower", per="contact_steps", beside=("coverage", "success")),
        "contact_steps": MetricSpec("count", unit="steps"),
    },
    protocol={"stiffness": 1000.0, "render_profile": "fast"},
)


class PressEnv:
    """The force is the first action entry plus a disturbance: contact from 10 N on, too much from 60 N on."""

    def __init__(self, spec: EnvSpec = SPEC) -> None:
        self.spec = spec

    def reset(self, start: Start) -> None:
        self.disturbance = stream(start.seed, start.task, start.init).normal(0, 15, self.spec.max_episode_steps)
        self.force: list[float] = []

    def advance(self, action: Any) -> tuple[float, bool, bool]:
        self.force.append(float(action[0] + self.disturbance[len(self.force)]))
        ended = len(self.force) == self.spec.max_episode_steps
        return float(10 < self.force[-1] < 60), False, ended

    def observe(self) -> dict[str, Any]:
        picture = np.full((24, 30, 3), 40 + 20 * len(self.force), np.uint8)
        state = np.array([self.force[-1] if self.force else 0.0], np.float32)
        return {"observation.state": state, "observation.images.top": picture, "task": "Press."}

    def metrics(self) -> dict[str, float]:
        force = np.array(self.force)
        contact = int((force > 10).sum())
        coverage = contact / self.spec.max_episode_steps
        return {
            "success": float(coverage >= 0.8),
            "coverage": coverage,
            "peak_force": float(force.max(initial=0.0)),
            "share_above": float((force > 60).sum()),
            "contact_steps": float(contact),
        }

    def render(self) -> Any:
        picture = np.full((33, 47, 3), 235, np.uint8)
        picture[: 3 * len(self.force)] = (200, 60, 60)
        return picture

    def close(self) -> None:
        pass


class PressPolicy:
    """Presses with one force, with noise when it is sampled."""

    def __init__(self, force: float, spread: float = 5.0) -> None:
        self.force, self.spread = force, spread
        self.spec = PolicySpec(
            "press", {"observation.state": SPEC.observation["observation.state"]}, SPEC.action, chunk_steps=5
        )

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        state = observation["observation.state"]
        chunk = np.full((len(state), 5, 2), self.force, np.float32) + 0.01 * state[:, None]
        if not deterministic:
            chunk = chunk + generator.normal(0, self.spread, chunk.shape)
        return ActionSample(chunk.astype(np.float32), np.zeros((len(state), 5), np.float32))


def press_env(num_envs: int = 2, spec: EnvSpec = SPEC) -> VectorEnv:
    return VectorEnv([PressEnv(spec) for _ in range(num_envs)])


def starts(count: int, seed: int = 0) -> list[Start]:
    return [Start(SPEC.tasks[i % 2], i // 2, seed + i) for i in range(count)]
