import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from burnish.core.errors import EnvError
from burnish.core.spec import TASK_KEY
from burnish.core.step import Start
from burnish.envs.processes import ProcessVecEnv
from tests.unit.envs.faulty_envs import CONFIG, build_broken, build_faulty

STARTS = [Start(task, n, n) for n, task in enumerate(("right", "up", "left"))]


def run(env, before_chunk=None):
    """Run six chunks with resets of ended envs; return everything that came out."""
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 3, 4, 2)).astype(np.float32)
    out = [env.reset(STARTS)]
    for k, action_chunk in enumerate(actions):
        if before_chunk:
            before_chunk(k)
        step = env.step(action_chunk)
        out += [step.observation, step.reward, step.executed, step.terminated, step.truncated, step.metrics]
        ended = np.flatnonzero(step.done)
        if len(ended):
            out.append(env.reset([Start("down", k, k)] * len(ended), ended))
    return out


def assert_equal(one, two):
    assert len(one) == len(two)
    for left, right in zip(one, two, strict=True):
        if isinstance(left, dict):
            assert left.keys() == right.keys()
            for key in left:
                np.testing.assert_array_equal(left[key], right[key], err_msg=key)
        else:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


def shared_memory():
    folder = Path("/dev/shm")
    return {path.name for path in folder.glob("psm_*")} if folder.exists() else set()


def processes(env):
    return [worker._process.pid for worker in env._workers]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text().split(") ")[1].startswith("Z")


@pytest.fixture(autouse=True)
def _quick_spawn(monkeypatch):
    """Spawned processes import the main module again, which is pytest here, and takes longer than the tests."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


@pytest.fixture(scope="module")
def expected():
    return run(CONFIG.build(3))


def test_processes_give_what_one_process_gives_even_when_a_worker_is_killed(expected):
    before = shared_memory()
    env = ProcessVecEnv(CONFIG.build, 3, workers=2)
    assert env.spec == CONFIG.spec()
    assert_equal(run(env), expected)
    assert env.restarts == 0

    def kill(k):
        if k in (2, 4):
            os.kill(processes(env)[k % 4 // 2], signal.SIGKILL)

    assert_equal(run(env, kill), expected)
    assert env.restarts == 2
    assert "exit code -9" in env.restart_log[0].reason
    assert [set(item.envs) for item in env.restart_log] in ([{1, 2}, {0}], [{0}, {1, 2}])
    assert env.lost_episodes == 0
    np.testing.assert_array_equal(env.render(1).shape, (256, 256, 3))
    pids = processes(env)
    env.close()
    env.close()
    assert not any(alive(pid) for pid in pids)
    assert shared_memory() <= before
    with pytest.raises(EnvError, match="closed"):
        env.reset(STARTS)


@pytest.mark.parametrize("fault", ["hang once", "die once"])
def test_worker_that_fails_in_a_chunk_is_replaced_and_the_chunk_is_the_same(fault, expected, tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    env = ProcessVecEnv(partial(build_faulty, flag=str(flag), fault=fault), 3, workers=1, timeout_s=1.5)
    assert_equal(run(env), expected)
    assert env.restarts == 1
    assert env.restart_log[0].reason.startswith("no answer within" if fault == "hang once" else "its process ended")
    env.close()


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


def test_error_of_an_env_comes_out_with_its_traceback(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    env = ProcessVecEnv(partial(build_faulty, flag=str(flag), fault="raise once"), 3, workers=2)
    env.reset(STARTS)
    with pytest.raises(EnvError, match=r"worker 0 failed:(?s:.*)simulator gave up"):
        env.step(np.zeros((3, 4, 2), np.float32))
    assert env.restarts == 0
    env.reset(STARTS)
    assert env.step(np.zeros((3, 2, 2), np.float32)).executed.tolist() == [2, 2, 2]
    env.close()


def test_env_that_cannot_be_built_or_sent_is_an_error():
    before = shared_memory()
    with pytest.raises(EnvError, match=r"no licence for 2 environments"):
        ProcessVecEnv(build_broken, 2, workers=1)
    with pytest.raises(EnvError, match=r"cannot be sent to a worker process"):
        ProcessVecEnv(lambda num_envs: CONFIG.build(num_envs + 0), 2)
    with pytest.raises(EnvError, match="at least 1"):
        ProcessVecEnv(CONFIG.build, 0)
    assert shared_memory() <= before


ORPHAN = """
import os, signal
from burnish.envs.point_mass import Config
from burnish.envs.processes import ProcessVecEnv

if __name__ == "__main__":
    env = ProcessVecEnv(Config().build, 2, workers=2)
    print(*[worker._process.pid for worker in env._workers], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_workers_and_memory_go_when_the_parent_is_killed(tmp_path):
    before = shared_memory()
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 10.0
    while (any(alive(pid) for pid in pids) or not shared_memory() <= before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)
    assert shared_memory() <= before
