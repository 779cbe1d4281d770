"""What only shows when processes really die, hang for good, or lose their parent."""

import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from burnish.core.errors import EnvError
from burnish.core.spec import TASK_KEY
from burnish.envs.processes import ProcessVecEnv
from tests.unit.envs.faulty_envs import STARTS, alive, build_faulty, exists


@pytest.fixture(autouse=True)
def _quick_spawn(monkeypatch):
    """Spawned processes import the main module again, which is pytest here, and takes longer than the tests."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


def test_worker_that_fails_again_ends_its_episodes_truncated(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    env = ProcessVecEnv(partial(build_faulty, flag=str(flag), fault="die"), 3, workers=2)
    env.reset(STARTS)
    zeros = np.zeros((3, 3, 2), np.float32)
    before = env.step(zeros)
    after = env.step(zeros)
    assert after.executed.tolist() == [0, 3, 3]
    assert after.truncated.tolist() == [True, False, False]
    assert after.terminated.tolist() == [False] * 3
    assert after.reward[0].tolist() == [0.0] * 3
    np.testing.assert_array_equal(after.observation["observation.state"][0], before.observation["observation.state"][0])
    assert (env.restarts, env.lost_episodes) == (2, 1)
    flag.unlink()
    again = env.reset([STARTS[0]], np.array([0]))
    assert again[TASK_KEY][0] == before.observation[TASK_KEY][0]
    assert env.step(zeros).executed.tolist() == [3, 3, 3]
    env.close()


def test_restarts_are_bounded_and_a_reset_that_hangs_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(ProcessVecEnv, "CLOSE_S", 0.1)
    flag = tmp_path / "flag"
    env = ProcessVecEnv(
        partial(build_faulty, flag=str(flag), fault="reset"), 1, workers=1, timeout_s=0.5, max_restarts=1
    )
    flag.touch()
    with pytest.raises(EnvError, match=r"'reset' failed twice in worker 0: no answer within 0.5 s.*right"):
        env.reset(STARTS[:1])
    with pytest.raises(EnvError, match=r"more than max_restarts=1 times.*no answer"):
        env.reset(STARTS[:1])
    env.close()


ORPHAN = """
import os, signal
from burnish.envs.point_mass import Config
from burnish.envs.processes import ProcessVecEnv

if __name__ == "__main__":
    env = ProcessVecEnv(Config().build, 2, workers=2)
    print(*[worker._process.pid for worker in env._workers], env._state.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_workers_and_memory_go_when_the_parent_is_killed(tmp_path):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    *pids, block = done.stdout.split()
    pids = [int(pid) for pid in pids]
    assert len(pids) == 2
    deadline = time.monotonic() + 10.0
    while (any(alive(pid) for pid in pids) or exists(block)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)
    assert not exists(block)
