"""Meta-World's environments, rewarded by their own success flag alone.

Meta-World's rewards lead a policy through a task from nothing, and pay most for every step after success. A policy that
succeeds at times already needs less: 1 at a step that succeeds, 0 at every other. Observations, actions, physics, goals
and the flag are Meta-World's. With this folder on ``PYTHONPATH``::

    Config(env_id="metaworld_success:Meta-World/MT1-success",
           kwargs=(("env_name", "peg-insert-side-v3"), ("seed", 0)), max_episode_steps=200, end_on_success=True)
"""

from typing import Any

import gymnasium


class SuccessReward(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Reward 1 where ``info["success"]`` is true, else 0, with a share of the reward that was there."""

    def __init__(self, env: "gymnasium.Env[Any, Any]", share: float = 0.0) -> None:
        """Wrap an environment; ``share`` times its own reward is added."""
        super().__init__(env)
        self._share = share

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Execute one action."""
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, float(info["success"]) + self._share * float(reward), terminated, truncated, info


def make(share: float = 0.0, **kwargs: Any) -> "gymnasium.Env[Any, Any]":
    """Return one environment; arguments go to ``Meta-World/MT1``."""
    env = gymnasium.make("metaworld_mujoco:Meta-World/MT1", max_episode_steps=-1, disable_env_checker=True, **kwargs)
    return SuccessReward(env, share)


gymnasium.register(id="Meta-World/MT1-success", entry_point=make)
