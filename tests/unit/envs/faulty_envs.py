"""Point masses that misbehave; apart from the tests, since worker processes import this module."""

import os
import signal
import time
from pathlib import Path

from burnish.core.step import Start
from burnish.envs.point_mass import Config, PointMass
from burnish.envs.single import VectorEnv

CONFIG = Config(max_episode_steps=9, image=True, image_size=8, goal_noise=0.05)
STARTS = [Start(task, n, n) for n, task in enumerate(("right", "up", "left"))]


class Faulty(PointMass):
    """A point mass that misbehaves at the fourth action of an episode, where the file ``flag`` allows it."""

    def __init__(self, spec, flag, fault):
        super().__init__(CONFIG, spec)
        self._flag, self._fault = Path(flag), fault

    def advance(self, action):
        if self._steps == 3 and self._task == "right" and self._flag.exists():
            if self._fault.endswith("once"):
                self._flag.unlink()
            if self._fault.startswith("hang"):
                time.sleep(600)
            if self._fault.startswith("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("simulator gave up")
        return super().advance(action)

    def reset(self, start):
        if self._fault == "reset" and self._flag.exists():
            time.sleep(600)
        super().reset(start)


def build_faulty(num_envs, flag, fault):
    return VectorEnv([Faulty(CONFIG.spec(), flag, fault) for _ in range(num_envs)])


def build_broken(num_envs):
    raise RuntimeError(f"no licence for {num_envs} environments")


def blocks(env):
    """Return the names of the shared memory that a ProcessVecEnv holds."""
    return [block.name for block in (env._state, env._chunk) if block is not None]


def exists(block):
    """Return whether there is shared memory of that name; looked up where Linux keeps it."""
    return Path("/dev/shm", block).exists()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text().split(") ")[1].startswith("Z")
