import threading
import time

import numpy as np
import pytest

from burnish.core.errors import EnvError
from burnish.core.spec import TASK_KEY, ArraySpec, EnvSpec, MetricSpec
from burnish.core.step import Start
from burnish.envs.point_mass import Config
from burnish.envs.single import VectorEnv, _Threads, run_chunk


class Counter:
    """Ends after ``start.init`` actions: terminated on an even seed, truncated on an odd one."""

    def __init__(self, *, images=False, delay=0.0, fail_at=-1):
        observation = {"observation.state": ArraySpec((1,))}
        if images:
            observation["observation.images.front"] = ArraySpec((2, 2, 3), dtype="uint8")
        self.spec = EnvSpec(
            id="counter",
            observation=observation,
            action=ArraySpec((1,)),
            control_dt=0.1,
            max_episode_steps=100,
            tasks=("count", "other"),
            num_inits=50,
            metrics={"success": MetricSpec("binary"), "sum": MetricSpec("mean")},
        )
        self.delay, self.fail_at = delay, fail_at
        self.threads = set()
        self.closed = 0
        self.start, self.steps, self.sum = None, 0, 0.0

    def reset(self, start):
        self.threads.add(threading.get_ident())
        self.start, self.steps, self.sum = start, 0, 0.0

    def advance(self, action):
        self.threads.add(threading.get_ident())
        time.sleep(self.delay)
        self.steps += 1
        self.sum += float(action[0])
        if self.steps == self.fail_at:
            raise RuntimeError("simulator gave up")
        ended = self.steps >= self.start.init
        return float(action[0]), ended and self.start.seed % 2 == 0, ended and self.start.seed % 2 == 1

    def observe(self):
        observation = {"observation.state": np.array([self.steps], np.float32), TASK_KEY: self.start.task}
        if "observation.images.front" in self.spec.observation:
            observation["observation.images.front"] = np.full((2, 2, 3), self.steps, np.uint8)
        return observation

    def metrics(self):
        return {"success": float(self.steps >= self.start.init), "sum": self.sum}

    def render(self):
        self.threads.add(threading.get_ident())
        return np.zeros((4, 4, 3), np.uint8)

    def close(self):
        self.closed += 1


def chunk(values, num_envs=1):
    return np.tile(np.asarray(values, np.float32)[None, :, None], (num_envs, 1, 1))


def test_run_chunk_stops_where_the_episode_ends():
    env = Counter()
    env.reset(Start("count", 2, 0))
    reward, executed, terminated, truncated = run_chunk(env, chunk([1, 2, 3])[0])
    assert reward.tolist() == [1, 2, 0]
    assert (executed, terminated, truncated) == (2, True, False)
    env.reset(Start("count", 3, 1))
    reward, executed, terminated, truncated = run_chunk(env, chunk([1, 2, 3])[0])
    assert reward.tolist() == [1, 2, 3]
    assert (executed, terminated, truncated) == (3, False, True)


def test_ended_env_waits_for_its_reset():
    env = VectorEnv([Counter(), Counter()])
    env.reset([Start("count", 2, 0), Start("other", 9, 1)])
    first = env.step(chunk([1, 1, 1], 2))
    assert first.executed.tolist() == [2, 3]
    assert first.terminated.tolist() == [True, False]
    second = env.step(chunk([5, 5, 5], 2))
    assert second.executed.tolist() == [0, 3]
    assert second.reward[0].tolist() == [0, 0, 0]
    assert second.terminated.tolist() == [True, False]
    assert second.observation["observation.state"][:, 0].tolist() == [2, 6]
    assert second.metrics["sum"].tolist() == [2, 18]
    assert second.observation[TASK_KEY] == ["count", "other"]
    after = env.reset([Start("other", 4, 1)], where=np.array([0]))
    assert after["observation.state"][:, 0].tolist() == [0, 6]
    assert env.step(chunk([1], 2)).executed.tolist() == [1, 1]


def test_env_that_was_never_reset_executes_nothing():
    env = VectorEnv([Counter()])
    step = env.step(chunk([1, 1]))
    assert step.executed.tolist() == [0]
    assert step.truncated.tolist() == [True]


def test_what_is_handed_out_is_not_written_again():
    env = VectorEnv([Counter(images=True)])
    before = env.reset([Start("count", 9, 0)])
    first = env.step(chunk([1]))
    kept = [before["observation.state"].copy(), first.observation["observation.images.front"].copy()]
    first.metrics["sum"][:] = 77
    first.truncated[:] = True
    second = env.step(chunk([1]))
    np.testing.assert_array_equal(before["observation.state"], kept[0])
    np.testing.assert_array_equal(first.observation["observation.images.front"], kept[1])
    assert second.metrics["sum"].tolist() == [2]
    assert second.executed.tolist() == [1]


@pytest.mark.parametrize("images", [False, True])
def test_threads_give_what_one_thread_gives(images):
    starts = [Start("count", 3 + n, n) for n in range(5)]
    results = []
    for threads in (1, 3):
        env = VectorEnv([Counter(images=images, delay=2e-4) for _ in range(5)], threads=threads)
        env.reset(starts)
        steps = [env.step(chunk([1, 2], 5)) for _ in range(6)]
        results.append(steps)
        env.close()
    for one, many in zip(*results, strict=True):
        for name in ("reward", "executed", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
        for key in one.observation:
            np.testing.assert_array_equal(one.observation[key], many.observation[key])


def test_env_with_images_lives_in_one_thread():
    envs = [Counter(images=True) for _ in range(4)]
    env = VectorEnv(envs, threads=2)
    env.reset([Start("count", 9, n) for n in range(4)])
    for _ in range(5):
        env.step(chunk([1], 4))
    env.render(3)
    assert all(len(single.threads) == 1 for single in envs)
    assert len(set.union(*(single.threads for single in envs))) == 2
    env.close()
    env.close()
    assert [single.closed for single in envs] == [1] * 4


@pytest.mark.parametrize(("sequential", "threaded", "used"), [(0.02, 0.011, True), (0.02, 0.03, False)])
def test_the_way_that_was_faster_is_used(sequential, threaded, used):
    threads = _Threads(2, pinned=False)
    threads._calls = 2  # both ways have been timed
    threads._seconds = {False: sequential, True: threaded}
    idents = set()
    threads.map(lambda n: idents.add(threading.get_ident()), list(range(4)))
    threads.close()
    assert (threading.get_ident() not in idents) is used


def test_short_calls_are_not_spread_over_threads(monkeypatch):
    monkeypatch.setattr(_Threads, "SHORT_CALL_S", 1e9)
    threads = _Threads(2, pinned=False)
    for _ in range(4):
        used = set()
        threads.map(lambda n, used=used: used.add(threading.get_ident()), list(range(4)))
    assert used == {threading.get_ident()}
    threads.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_error_of_an_env_comes_out(threads):
    env = VectorEnv([Counter(images=True), Counter(images=True, fail_at=2)], threads=threads)
    env.reset([Start("count", 9, 0)] * 2)
    with pytest.raises(RuntimeError, match="gave up"):
        env.step(chunk([1, 1, 1], 2))
    env.close()


@pytest.mark.parametrize(
    ("starts", "where", "message"),
    [
        ([Start("count", 0, 0)], None, "1 Starts for 2 environments"),
        ([Start("sing", 0, 0)] * 2, None, "unknown task 'sing'.*Tasks: count, other"),
        ([Start("count", 50, 0)] * 2, None, r"init 50.*outside \[0, 50\)"),
        ([Start("count", 1, 0)] * 2, [0, 0], "distinct"),
        ([Start("count", 1, 0)], [2], r"\[0, 2\), found \[2\]"),
    ],
)
def test_bad_resets_are_refused(starts, where, message):
    env = VectorEnv([Counter(), Counter()])
    with pytest.raises(EnvError, match=message):
        env.reset(starts, where=None if where is None else np.array(where))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((1, 3, 1)), r"shape \(N=2, K, A=1\), found \(1, 3, 1\)"),
        (np.zeros((2, 1)), r"found \(2, 1\)"),
        (np.zeros((2, 3, 2)), r"found \(2, 3, 2\)"),
        (np.array([[[0.0]], [[np.nan]]]), r"not finite at \(env, step, entry\) = \(1, 0, 0\)"),
    ],
)
def test_bad_chunks_are_refused(actions, message):
    env = VectorEnv([Counter(), Counter()])
    env.reset([Start("count", 9, 0)] * 2)
    with pytest.raises(EnvError, match=message):
        env.step(actions)


def test_no_env_is_refused():
    with pytest.raises(EnvError, match="at least one"):
        VectorEnv([])


def test_cut_into_chunks_does_not_matter():
    actions = np.random.default_rng(0).uniform(-1, 1, (3, 12, 2)).astype(np.float32)
    starts = [Start("up", n, n) for n in range(3)]
    whole = Config().build(3)
    whole.reset(starts)
    once = whole.step(actions)
    parts = Config().build(3)
    parts.reset(starts)
    for begin, end in ((0, 5), (5, 6), (6, 12)):
        last = parts.step(actions[:, begin:end])
    np.testing.assert_array_equal(once.observation["observation.state"], last.observation["observation.state"])
