import os
import signal
import sys
from functools import partial

import numpy as np
import pytest

from burnish.core.errors import EnvError
from burnish.core.step import Start
from burnish.envs.processes import ProcessVecEnv
from tests.unit.envs.faulty_envs import CONFIG, STARTS, alive, blocks, build_broken, build_faulty, exists


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


def processes(env):
    return [worker._process.pid for worker in env._workers]


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
    pids, names = processes(env), blocks(env)
    assert len(names) == 2
    assert all(exists(name) for name in names) or not sys.platform.startswith("linux")
    env.close()
    env.close()
    assert not any(alive(pid) for pid in pids)
    assert not any(exists(name) for name in names)
    with pytest.raises(EnvError, match="closed"):
        env.reset(STARTS)


def test_worker_that_hangs_in_a_chunk_is_replaced_and_the_chunk_is_the_same(expected, tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    env = ProcessVecEnv(partial(build_faulty, flag=str(flag), fault="hang once"), 3, workers=1, timeout_s=1.5)
    assert_equal(run(env), expected)
    assert env.restarts == 1
    assert env.restart_log[0].reason == "no answer within 1.5 s"
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
    with pytest.raises(EnvError, match=r"no licence for 2 environments"):
        ProcessVecEnv(build_broken, 2, workers=1)
    with pytest.raises(EnvError, match=r"cannot be sent to a worker process"):
        ProcessVecEnv(lambda num_envs: CONFIG.build(num_envs + 0), 2)
    with pytest.raises(EnvError, match="at least 1"):
        ProcessVecEnv(CONFIG.build, 0)
