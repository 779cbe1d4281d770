"""What evaluation costs besides the policy and the environment: CPU microseconds per step of all environments.

The environment does nothing (two 96x96 cameras, a state), the policy answers zeros in chunks of 20. burnish runs
the episode runner that its evaluation uses; lerobot runs `rollout()` of `lerobot-eval` over Gymnasium's SyncVectorEnv
with the processors that stock ACT has. Both run one episode per environment; lengths are checked.
"""

import functools
from typing import Any

import demonstrations as work
import gymnasium
import harness
import numpy as np
from harness import Case, Round

STEPS, ENVS = (100, 400), (1, 8)


class Idle:
    """A burnish environment that does nothing until its episode ends."""

    def __init__(self, steps: int) -> None:
        """Make the observation."""
        from dataclasses import replace

        from burnish.core.spec import MetricSpec

        self.spec = replace(work.SPEC, max_episode_steps=steps, metrics={"success": MetricSpec("binary")})
        seen = work.observations(np.random.default_rng(0), 1)
        self._observation = {key: item[0] for key, item in seen.items()}
        self._steps = 0

    def reset(self, start: Any) -> None:
        """Begin."""
        self._steps = 0

    def advance(self, action: Any) -> tuple[float, bool, bool]:
        """Count."""
        self._steps += 1
        return 0.0, False, self._steps >= self.spec.max_episode_steps

    def observe(self) -> dict[str, Any]:
        """Show the same picture."""
        return self._observation

    def metrics(self) -> dict[str, float]:
        """Tell no success."""
        return {"success": 0.0}

    def render(self) -> Any:
        """Show a camera."""
        return self._observation[work.CAMERAS[0]]

    def close(self) -> None:
        """Do nothing."""


class IdleGymnasium(gymnasium.Env):  # type: ignore[type-arg]
    """The same for Gymnasium, with the attributes that lerobot asks for."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": work.FPS}  # noqa: RUF012

    def __init__(self, steps: int) -> None:
        """Make the observation."""
        seen = work.observations(np.random.default_rng(0), 1)
        names = [key.rsplit(".", 1)[1] for key in work.CAMERAS]
        self._observation = {
            "agent_pos": seen[work.STATE][0],
            "pixels": {name: seen[key][0] for name, key in zip(names, work.CAMERAS, strict=True)},
        }
        picture = gymnasium.spaces.Box(0, 255, (work.SIDE, work.SIDE, 3), np.uint8)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "agent_pos": gymnasium.spaces.Box(-np.inf, np.inf, (work.STATE_DIM,), np.float32),
                "pixels": gymnasium.spaces.Dict(dict.fromkeys(names, picture)),
            }
        )
        self.action_space = gymnasium.spaces.Box(-1, 1, (work.ACTION_DIM,), np.float32)
        self.task = self.task_description = "follow"
        self._max_episode_steps, self._steps = steps, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin."""
        self._steps = 0
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count."""
        self._steps += 1
        return self._observation, 0.0, False, self._steps >= self._max_episode_steps, {"is_success": False}


class Still:
    """A burnish policy that answers zeros."""

    def __init__(self) -> None:
        """Say what is read."""
        from burnish.core.spec import PolicySpec

        self.spec = PolicySpec("still", dict(work.SPEC.observation), work.SPEC.action, work.CHUNK)

    def act(self, observation: Any, *, generator: Any, deterministic: bool = False) -> Any:
        """Answer."""
        from burnish.core.step import ActionSample

        count = len(observation[work.STATE])
        chunk = np.zeros((count, work.CHUNK, work.ACTION_DIM), np.float32)
        return ActionSample(chunk, np.zeros((count, work.CHUNK), np.float32))


def burnish(steps: int, envs: int) -> Round:
    """Run one episode per environment, as ``evaluate`` does."""
    from burnish.core.step import evaluation_starts
    from burnish.data.episodes import run_episodes
    from burnish.envs.single import VectorEnv
    from burnish.evaluation.evaluate import TimedPolicy

    env = VectorEnv([Idle(steps) for _ in range(envs)])
    starts = evaluation_starts(env.spec, envs)
    policy: Any = Still()
    repeat = 20_000 // steps

    def run() -> float:
        for _ in range(repeat):
            act = TimedPolicy(policy, deterministic=True, seed=0)
            check([item.length for item in run_episodes(act, env, starts, replan_steps=work.CHUNK)], [steps] * envs)
        return steps * repeat

    return run


def lerobot(steps: int, envs: int) -> Round:
    """Roll out one episode per environment."""
    from collections import deque

    import torch
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.scripts.lerobot_eval import rollout

    class StillModule(torch.nn.Module):
        """Answers zeros from a queue, as ACT does between two decisions."""

        def reset(self) -> None:
            self.queue: deque[Any] = deque()

        def select_action(self, batch: Any) -> Any:
            if not self.queue:
                count = len(batch[work.STATE])
                self.queue.extend(torch.zeros(count, work.CHUNK, work.ACTION_DIM).transpose(0, 1))
            return self.queue.popleft()

    policy = StillModule()
    pre, post = make_pre_post_processors(lerobot_config(), dataset_stats=statistics())
    plain = PolicyProcessorPipeline(steps=[])
    env = gymnasium.vector.SyncVectorEnv([functools.partial(IdleGymnasium, steps)] * envs)

    def run() -> float:
        found = rollout(env, policy, plain, plain, pre, post, seeds=list(range(envs)))
        check([found["action"].shape[1]], [steps])
        return steps

    return run


def lerobot_config() -> Any:
    """Return the configuration of stock ACT, which its processors are made of."""
    return work.lerobot_act(use_vae=False).config


def statistics() -> dict[str, Any]:
    """Return mean and standard deviation of everything, so that all of it is normalised."""
    import torch

    shapes = {
        **dict.fromkeys(work.CAMERAS, (3, 1, 1)),
        work.STATE: (work.STATE_DIM,),
        work.ACTION: (work.ACTION_DIM,),
    }
    return {key: {"mean": torch.zeros(shape), "std": torch.ones(shape)} for key, shape in shapes.items()}


def check(found: list[int], wanted: list[int]) -> None:
    """Refuse a round of another length."""
    if found != wanted:
        raise SystemExit(f"Episodes took {found} steps, not {wanted}.")


def main() -> None:
    """Measure and write."""
    chosen = harness.options("eval_overhead", __doc__)
    cases, seconds = {}, {}
    for envs in ENVS:
        competitors = {}
        for steps in STEPS:
            competitors[f"burnish {steps}"] = functools.partial(burnish, steps, envs)
            competitors[f"lerobot-eval {steps}"] = functools.partial(lerobot, steps, envs)
        timings = harness.measure(competitors, chosen.rounds)
        for steps in STEPS:
            ours, theirs = (1e6 * timings[f"{name} {steps}"].cpu for name in ("burnish", "lerobot-eval"))
            key = key_of(envs, steps)
            cases[key] = Case(ours, {"lerobot-eval": theirs}, goal=50.0)
            seconds[key] = harness.wall(timings)
    growth = {
        name: {
            f"{envs} envs": harness.rounded(
                seconds[key_of(envs, 400)][f"{name} 400"]["cpu"] / seconds[key_of(envs, 100)][f"{name} 100"]["cpu"], 3
            )
            for envs in ENVS
        }
        for name in ("burnish", "lerobot-eval")
    }
    harness.write(
        "eval_overhead",
        cases,
        chosen,
        unit="CPU us per step of all environments",
        about=__doc__ or "",
        packages=("lerobot",),
        note=f"Growth of the cost per step from T=100 to T=400 (goal for burnish: at most 1.05): {growth}.",
        growth=growth,
        seconds=seconds,
    )


def key_of(envs: int, steps: int) -> str:
    """Return the name of a case."""
    return f"{envs} env{'s' * (envs > 1)}, T={steps}"


if __name__ == "__main__":
    main()
