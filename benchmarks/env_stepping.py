"""Stepping environments with actions that are known: environment steps per CPU second, eight environments.

burnish steps chunks: one call for 20 actions, observed (and rendered) once at the end. Gymnasium's SyncVectorEnv and
AsyncVectorEnv step the same environments action by action: burnish's `contact/contour` through its registration,
without and with cameras, and HalfCheetah-v5, which burnish reaches through `envs/gymnasium.py`. Rewards of the same
actions from the same beginning are checked to be equal.
"""

import functools
from typing import Any

import harness
import numpy as np
from harness import Case, Round

ENVS, CHUNK = 8, 20
STEPS = {"contour": 200, "contour, cameras": 60, "HalfCheetah-v5": 1000}
"""Control steps of each environment in a round."""
CASES = tuple(STEPS)


def environment(case: str) -> Any:
    """Return burnish's configuration."""
    from burnish.envs.contact.contour import Config as Contour
    from burnish.envs.contact.environment import Cameras
    from burnish.envs.gymnasium import Config as Gymnasium

    if case == "HalfCheetah-v5":
        return Gymnasium(env_id=case)
    return Contour(cameras=Cameras(enabled="cameras" in case), stop_on_success=False)


def actions(case: str, steps: int) -> np.ndarray:
    """Return (steps, N, A): gentle random actions in the limits of the space."""
    spec = environment(case).build(1).spec.action
    low, high = spec.bounds()
    unit = np.random.default_rng(0).uniform(-1, 1, (steps, ENVS, len(low)))
    return ((low + high) / 2 + 0.3 * unit * (high - low) / 2).astype(spec.dtype)


def starts(case: str, number: int) -> list[Any]:
    """Return the beginnings of all environments' episodes number ``number``."""
    from burnish.core.step import Start

    spec = environment(case).build(1).spec
    return [Start(spec.tasks[0], 0, 1000 * number + n) for n in range(ENVS)]


def burnish(case: str) -> Round:
    """Step chunks; an ended environment is reset."""
    env = environment(case).build(ENVS)
    plan = np.ascontiguousarray(actions(case, STEPS[case]).transpose(1, 0, 2))
    begin = starts(case, 0)
    env.reset(begin)

    def step() -> float:
        taken = 0
        for t in range(0, STEPS[case], CHUNK):
            answer = env.step(plan[:, t : t + CHUNK])
            taken += int(answer.executed.sum())
            ended = np.flatnonzero(answer.done)
            if len(ended):
                env.reset([begin[n] for n in ended], ended)
        return taken

    return step


def make_single(case: str) -> Any:
    """Return one Gymnasium environment."""
    import gymnasium

    from burnish import registry

    if case == "HalfCheetah-v5":
        return gymnasium.make(case)
    registry.register_envs()
    options = {"cameras": {"enabled": "cameras" in case}, "stop_on_success": False}
    return gymnasium.make("burnish/contact-contour-v0", **options)


def gymnasium_vector(case: str, kind: str) -> Round:
    """Step Gymnasium's vector environment action by action; it resets ended environments itself."""
    import gymnasium

    make = [functools.partial(make_single, case)] * ENVS
    env: Any = getattr(gymnasium.vector, kind)(make, **({"context": "spawn"} if kind == "AsyncVectorEnv" else {}))
    plan = actions(case, STEPS[case])
    env.reset(seed=0)

    def step() -> float:
        for action in plan:
            env.step(action)
        return STEPS[case] * ENVS

    step.close = env.close  # type: ignore[attr-defined]
    return step


def check(case: str) -> None:
    """Refuse to compare environments whose rewards differ."""
    env, single = environment(case).build(1), make_single(case)
    plan, start = actions(case, CHUNK)[:, :1], starts(case, 0)[0]
    env.reset([start])
    reward = env.step(plan.transpose(1, 0, 2)).reward[0]
    if case == "HalfCheetah-v5":
        single.reset(seed=start.seed)
    else:
        single.reset(options={"start": start})
    others = [single.step(action[0])[1] for action in plan]
    env.close()
    single.close()
    np.testing.assert_allclose(reward, others, rtol=1e-5, atol=1e-6)


def main() -> None:
    """Measure and write."""
    chosen = harness.options("env_stepping", __doc__)
    cases, seconds = {}, {}
    for case in CASES:
        check(case)
        competitors = {
            "burnish": functools.partial(burnish, case),
            "SyncVectorEnv": functools.partial(gymnasium_vector, case, "SyncVectorEnv"),
            "AsyncVectorEnv": functools.partial(gymnasium_vector, case, "AsyncVectorEnv"),
        }
        timings = harness.measure(competitors, chosen.rounds)
        figures = {name: 1 / item.cpu for name, item in timings.items()}
        cases[case] = Case(figures.pop("burnish"), figures, goal=1.0, lower_is_better=False)
        seconds[case] = harness.wall(timings)
    harness.write("env_stepping", cases, chosen, unit="env steps per CPU second", about=__doc__ or "", seconds=seconds)


if __name__ == "__main__":
    main()
