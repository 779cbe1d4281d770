"""Gymnasium environments that register when this module is imported, as packages of others do."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

LIMIT = 6


class Toy(gymnasium.Env):
    """Counts; ``ending`` says how an episode ends by itself after ``length`` steps."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None, observation="dict", ending="terminated", length=4, success="success"):
        self.render_mode = render_mode
        self.dt = 0.25
        self.ending, self.length, self.success = ending, length, success
        picture = Box(0, 255, (4, 5, 3), np.uint8)
        self.observation_space = {
            "dict": Dict(pixels=Dict(front=picture), agent_pos=Box(-9, 9, (2,)), goal=Box(-9, 9, (2, 2), np.float64)),
            "picture": picture,
            "mode": Dict(agent_pos=Box(-9, 9, (2,)), mode=Discrete(3)),
        }[observation]
        self.action_space = Box(np.array([-1, -2]), np.array([1, 2]), dtype=np.float64)
        self.actions = []
        self._buffer = np.zeros(2, np.float32)

    def _observe(self):
        self._buffer[:] = [self.steps, self.noise]
        picture = np.full((4, 5, 3), self.steps, np.uint8)
        if isinstance(self.observation_space, Box):
            return picture
        goal = np.arange(4.0).reshape(2, 2)
        entries = {"pixels": {"front": picture}, "agent_pos": self._buffer, "goal": goal, "mode": 1}
        return {key: entries[key] for key in self.observation_space}

    def reset(self, *, seed=None, options=None):
        self.noise = self.np_random.uniform()  # drawn before the seed is set, as some do
        super().reset(seed=seed)
        self.noise += self.np_random.uniform()
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append(action)
        self.steps += 1
        ended = self.steps >= self.length
        info = {self.success: float(self.steps == 2)} if self.success else {}
        return self._observe(), 0.5, ended and self.ending == "terminated", ended and self.ending == "truncated", info

    def render(self):
        return np.full((6, 7, 3), 9, np.uint8)


class Switch(Toy):
    """Has a discrete action."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.action_space = Discrete(3)


if "Toy-v0" not in gymnasium.registry:
    gymnasium.register("Toy-v0", Toy, max_episode_steps=LIMIT)
    gymnasium.register("Endless-v0", Toy, reward_threshold=1.5)
    gymnasium.register("Switch-v0", Switch, max_episode_steps=LIMIT)
