"""A policy in plain numpy for deployment tests: chunk step k is ``gain * state[:A] + k * slope``, plus noise."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.core.spec import ArraySpec, PolicySpec
from burnish.core.step import ActionSample

STATE = "observation.state"
WRIST = "observation.images.wrist"


def make_spec(*, image: bool = True, reads_task: bool = True, chunk_steps: int = 4) -> PolicySpec:
    observation: dict[str, ArraySpec] = {STATE: ArraySpec((3,), unit="rad")}
    if image:
        observation[WRIST] = ArraySpec((8, 6, 3), "uint8")
    return PolicySpec(
        "affine", observation, ArraySpec((2,), unit="m/s", low=-1.0, high=1.0), chunk_steps, {}, reads_task
    )


@dataclass
class AffinePolicy:
    spec: PolicySpec = field(default_factory=make_spec)
    gain: float = 1.0
    slope: float = 0.0
    latency_s: float = 0.0
    seen: list[Mapping[str, Any]] = field(default_factory=list)

    def act(
        self, observation: Mapping[str, Any], *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        self.seen.append(observation)
        time.sleep(self.latency_s)
        state = observation[STATE]
        if state[0, 0] == 13:
            raise RuntimeError("unlucky, at /secret/path")
        count, width = self.spec.chunk_steps, self.spec.action.shape[0]
        chunk = self.gain * state[:, None, :width] + self.slope * np.arange(count)[None, :, None]
        if state[0, 0] == 14:
            chunk = chunk * np.nan
        if not deterministic:
            chunk = chunk + generator.standard_normal(chunk.shape)
        return ActionSample(chunk.astype(np.float32), np.zeros((len(state), count), np.float32))


def make_observation(**changes: Any) -> dict[str, Any]:
    observation = {
        STATE: np.array([0.1, 0.2, 0.3], np.float32),
        WRIST: np.zeros((8, 6, 3), np.uint8),
        "task": "press",
    }
    return {**observation, **changes}
