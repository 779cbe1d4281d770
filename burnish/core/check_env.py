"""The contract of environments, as checks that a component passes or fails with a sentence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.core.conformity import (
    Check,
    copy_of,
    difference,
    draw,
    draw_starts,
    expect,
    expect_array,
    expect_within,
    rows_of,
    run_checks,
)
from burnish.core.contracts import VecEnv
from burnish.core.errors import BurnishError, CheckError
from burnish.core.seeding import stream
from burnish.core.spec import TASK_KEY, Array, EnvSpec, Observation
from burnish.core.step import Start, Step

CHUNK_STEPS = 6
"""Actions offered at once."""
NUM_ENVS = 3


def check_env(build: Callable[[int], VecEnv], *, seed: int = 0) -> list[str]:
    """Check that environments keep the contract of :class:`burnish.core.contracts.VecEnv`.

    Args:
        build: Returns ``num_envs`` environments.
        seed: Of the Starts and actions that are tried.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails; says what was found and what was expected.
    """
    single = build(1)
    several = build(NUM_ENVS)
    try:
        checks = _Checks(build, single, several, seed)
        return run_checks(f"Environment '{_name(single)}'", checks.all())
    finally:
        single.close()
        several.close()


def _name(env: VecEnv) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if isinstance(spec, EnvSpec) else type(env).__name__


@dataclass
class _Checks:
    """The checks share three built environments; none may leave anything behind that a reset does not clear."""

    build: Callable[[int], VecEnv]
    single: VecEnv
    several: VecEnv
    seed: int

    def all(self) -> dict[str, Check]:
        """Return the checks in the order in which they run: what later ones take for granted comes first."""
        return {
            "spec": self.spec,
            "observation": self.observation,
            "step": self.step,
            "metrics": self.metrics,
            "same start": self.same_start,
            "other seed": self.other_seed,
            "reset purity": self.reset_purity,
            "truncation": self.truncation,
            "no auto-reset": self.no_auto_reset,
            "chunk split": self.chunk_split,
            "independence": self.independence,
            "partial reset": self.partial_reset,
            "memory": self.memory,
            "action limits": self.action_limits,
            "refusal": self.refusal,
            "close": self.close,
        }

    # -- what it says and gives -------------------------------------------------------------------------------------

    def spec(self) -> None:
        """The spec describes vectors of actions and a success metric, and N is what was asked for."""
        spec = self.single.spec
        expect(isinstance(spec, EnvSpec), f"spec must be an EnvSpec, found {type(spec).__name__}.")
        expect(len(spec.action.shape) == 1, f"an action must be a vector (A,), found shape {spec.action.shape}.")
        expect("success" in spec.metrics, f"spec.metrics must have 'success'; it has {sorted(spec.metrics)}.")
        expect(TASK_KEY not in spec.observation, "spec.observation must not list 'task'; every observation has it.")
        for env, number in ((self.single, 1), (self.several, NUM_ENVS)):
            expect(env.num_envs == number, f"num_envs is {env.num_envs} where {number} were built.")
        expect(self.several.spec == spec, "the spec depends on num_envs.")

    def observation(self) -> None:
        """What is observed has the keys, shapes, dtypes and limits of the spec, after reset and after steps."""
        env = self.several
        self._expect_observation(env.reset(self._starts()), "after reset")
        for _ in range(2):
            self._expect_observation(env.step(self._chunks(NUM_ENVS)[0]).observation, "after a step")

    def step(self) -> None:
        """A Step has the shapes of the contract, and no reward past ``executed``."""
        env = self.several
        env.reset(self._starts())
        for chunk in self._chunks(NUM_ENVS, 3):
            given = chunk.copy()
            step = env.step(chunk)
            expect(np.array_equal(given, chunk), "step() changed the action chunk that it was given.")
            expect_array(step.reward, "reward", shape=(NUM_ENVS, CHUNK_STEPS), dtype="float32")
            expect_array(step.executed, "executed", shape=(NUM_ENVS,), dtype="int64")
            expect_array(step.terminated, "terminated", shape=(NUM_ENVS,), dtype="bool")
            expect_array(step.truncated, "truncated", shape=(NUM_ENVS,), dtype="bool")
            for n, executed in enumerate(step.executed.tolist()):
                self._expect_executed(step, n, executed)

    def _expect_executed(self, step: Step, n: int, executed: int) -> None:
        expect(0 <= executed <= CHUNK_STEPS, f"executed is {executed} for a chunk of {CHUNK_STEPS} actions.")
        rest = step.reward[n, executed:]
        expect(not rest.any(), f"reward past the {executed} executed actions must be zero, found {rest.tolist()}.")
        ended = bool(step.terminated[n] | step.truncated[n])
        expect(
            ended or executed == CHUNK_STEPS,
            f"only {executed} of {CHUNK_STEPS} actions were executed, but the episode did not end.",
        )

    def metrics(self) -> None:
        """Step.metrics has exactly the names of the spec; binary ones are 0 or 1."""
        env = self.several
        env.reset(self._starts())
        step = env.step(self._chunks(NUM_ENVS)[0])
        names = sorted(env.spec.metrics)
        expect(sorted(step.metrics) == names, f"Step.metrics has {sorted(step.metrics)}, the spec names {names}.")
        for name, value in step.metrics.items():
            expect_array(np.asarray(value, float), f"metric '{name}'", shape=(NUM_ENVS,), dtype="float64")
            if env.spec.metrics[name].kind == "binary":
                expect(bool(np.isin(value, (0, 1)).all()), f"metric '{name}' is binary, found {value.tolist()}.")

    # -- reproducibility --------------------------------------------------------------------------------------------

    def same_start(self) -> None:
        """The same Start and actions give the same trajectory bit for bit, here and in newly built environments."""
        starts, chunks = self._starts(), self._chunks(NUM_ENVS, 3)
        first = self._run(self.several, starts, chunks)
        self._expect_equal(first, self._run(self.several, starts, chunks), "a second run from the same Starts differs")
        other = self.build(NUM_ENVS)
        try:
            again = self._run(other, starts, chunks)
        finally:
            other.close()
        self._expect_equal(first, again, "newly built environments differ from the same Starts")

    def other_seed(self) -> None:
        """Another ``Start.seed`` changes something, or two evaluation episodes would be one."""
        start = self._starts()[0]
        chunks = self._chunks(1, 2)
        first = self._run(self.single, [start], chunks)
        for seed in range(1, 4):
            other = self._run(self.single, [Start(start.task, start.init, start.seed + seed)], chunks)
            if difference(_merged(first), _merged(other)):
                return
        raise CheckError("Start.seed changes nothing: four seeds gave equal observations, rewards and metrics.")

    def reset_purity(self) -> None:
        """An episode does not depend on the episodes before it."""
        before, start = self._starts()[1:]
        chunks = self._chunks(1, 3)
        fresh = self.build(1)
        try:
            alone = self._run(fresh, [start], chunks)
        finally:
            fresh.close()
        self._run(self.single, [before], self._chunks(1, 4, salt="before"))
        self._expect_equal(alone, self._run(self.single, [start], chunks), "an episode depends on the one before it")

    def chunk_split(self) -> None:
        """How actions are cut into chunks changes neither observation, reward nor metrics."""
        starts = self._starts()
        (chunk,) = self._chunks(NUM_ENVS)
        whole = self._run(self.several, starts, [chunk])[-1]
        for sizes in ((2, CHUNK_STEPS - 2), (1,) * CHUNK_STEPS):
            ends = np.cumsum(sizes)
            parts = [chunk[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]
            frames = self._run(self.several, starts, parts)[1:]
            joined = dict(frames[-1])
            joined["reward"] = np.concatenate([frame["reward"] for frame in frames], 1)
            joined["executed"] = np.sum([frame["executed"] for frame in frames], 0)
            self._expect_equal([whole], [joined], f"the same actions in chunks of {sizes} give another result")

    def independence(self) -> None:
        """One environment of several does what it does alone."""
        starts, chunks = self._starts(), self._chunks(NUM_ENVS, 3)
        together = self._run(self.several, starts, chunks)
        for n in (0, NUM_ENVS - 1):
            alone = self._run(self.single, [starts[n]], [chunk[n : n + 1] for chunk in chunks])
            mine = [rows_of(frame, [n]) for frame in together]
            self._expect_equal(mine, alone, f"environment {n} of {NUM_ENVS} differs from the same one alone")

    def partial_reset(self) -> None:
        """Resetting some environments leaves the others as they are."""
        starts, chunks = self._starts(), self._chunks(NUM_ENVS, 3)
        undisturbed = self._run(self.several, starts, chunks)
        self._run(self.several, starts, chunks[:1])
        observation = copy_of(self.several.reset([starts[0]], np.array([1])))
        others = [0, 2]
        self._expect_equal(
            [rows_of(undisturbed[1]["observation"], others)],
            [rows_of(observation, others)],
            "after a reset of environment 1, others show something else",
        )
        frames = [_frame(self.several.step(chunk)) for chunk in chunks[1:]]
        self._expect_equal(
            [rows_of(frame, others) for frame in undisturbed[2:]],
            [rows_of(frame, others) for frame in frames],
            "after a reset of environment 1, others go on differently",
        )
        alone = self._run(self.single, [starts[0]], [chunk[1:2] for chunk in chunks[1:]])
        self._expect_equal(
            alone[1:], [rows_of(frame, [1]) for frame in frames], "environment 1, reset alone, goes on differently"
        )

    def memory(self) -> None:
        """What was given out is never written again, and writing into it does not reach the environment."""
        starts, chunks = self._starts(), self._chunks(NUM_ENVS, 2)
        clean = self._run(self.several, starts, chunks)
        given: list[dict[str, Any]] = [{"observation": self.several.reset(starts)}]
        kept = [copy_of(given[0])]
        for chunk in chunks:
            given.append(_view(self.several.step(chunk)))
            kept.append(copy_of(given[-1]))
        self._expect_equal(kept, given, "arrays that were given out earlier changed later")
        for chunk, frame in zip(chunks, clean[1:], strict=True):
            if chunk is chunks[0]:
                _scribble(self.several.reset(starts))
            step = self.several.step(chunk)
            self._expect_equal([frame], [_frame(step)], "writing into a given observation changes later ones")
            _scribble(step.observation)

    # -- how episodes end -------------------------------------------------------------------------------------------

    def truncation(self) -> None:
        """An episode ends after ``max_episode_steps`` actions at the latest, and is not truncated before."""
        env, limit = self.single, self.single.spec.max_episode_steps
        for attempt, start in enumerate(draw_starts(env.spec, 3, seed=self.seed)):
            env.reset([start])
            total = 0
            step: Step | None = None
            while step is None or not step.done[0]:
                expect(total < limit, f"{total} actions were executed; the episode should end after {limit}.")
                step = env.step(self._gentle(limit + 5, salt=attempt)[:, : limit + 5])
                total += int(step.executed[0])
                expect(total <= limit, f"{total} actions were executed; max_episode_steps is {limit}.")
            if step.truncated[0]:
                expect(total == limit, f"an episode was truncated after {total} actions; max_episode_steps is {limit}.")
                return

    def no_auto_reset(self) -> None:
        """An ended environment executes nothing and keeps its last observation until it is reset."""
        env, limit = self.several, self.several.spec.max_episode_steps
        env.reset(self._starts())
        for _ in range(limit):
            step = env.step(np.repeat(self._gentle(limit), NUM_ENVS, 0))
            if step.done.all():
                break
        last = _frame(step)
        again = env.step(self._chunks(NUM_ENVS)[0])
        expect(not again.executed.any(), f"ended environments executed {again.executed.tolist()} more actions.")
        expect(not again.reward.any(), f"ended environments got rewards {again.reward.sum(1).tolist()}.")
        for name in ("observation", "terminated", "truncated", "metrics"):
            text = difference(last[name], _frame(again)[name], name)
            expect(not text, f"after its end, an environment does not keep its last {name}: {text}.")
        self._ends_where_it_is(limit)

    def _ends_where_it_is(self, limit: int) -> None:
        """An environment that moved does not show its first observation when it ends."""
        env, chunk = self.several, np.repeat(self._gentle(limit), NUM_ENVS, 0)
        first = copy_of(env.reset(self._starts()))
        half = env.step(chunk[:, : max(limit // 2, 1)])
        if half.done.any() or not difference(first, half.observation):
            return
        step = env.step(chunk[:, limit // 2 :])
        expect(
            not step.done.all() or bool(difference(first, step.observation)),
            "the last observation of an episode is the first of the next: the environment has reset itself.",
        )

    # -- bad input --------------------------------------------------------------------------------------------------

    def action_limits(self) -> None:
        """Actions beyond the limits do no harm: the observation stays within its spec."""
        env = self.several
        env.reset(self._starts())
        chunk = (10.0 * np.sign(self._chunks(NUM_ENVS)[0])).astype(np.float32)
        step = env.step(chunk)
        self._expect_observation(step.observation, "after actions beyond the limits")
        expect(bool(np.isfinite(step.reward).all()), "the reward of actions beyond the limits is not finite.")

    def refusal(self) -> None:
        """Unknown Starts and malformed chunks are refused with an error that a user understands."""
        env, spec = self.single, self.single.spec
        good = self._starts()[0]
        (chunk,) = self._chunks(1)
        broken = chunk.copy()
        broken[0, 1, 0] = np.nan
        bad: dict[str, Callable[[], object]] = {
            "a Start of an unknown task": lambda: env.reset([Start("no such task", 0, 0)]),
            "a Start with init = num_inits": lambda: env.reset([Start(good.task, spec.num_inits, 0)]),
            "two Starts for one environment": lambda: env.reset([good, good]),
            "an action chunk without its last axis": lambda: env.step(chunk[..., 0]),
            "an action chunk with an entry too many": lambda: env.step(np.concatenate([chunk, chunk[..., :1]], -1)),
            "an action chunk with a NaN": lambda: env.step(broken),
        }
        for name, call in bad.items():
            env.reset([good])
            try:
                call()
            except BurnishError:
                continue
            except Exception as error:
                raise CheckError(
                    f"{name} raised {type(error).__name__} ({error}) instead of an EnvError that says what was found."
                ) from error
            raise CheckError(f"{name} was accepted.")

    def close(self) -> None:
        """Closing twice is allowed."""
        env = self.build(1)
        env.close()
        env.close()

    # -- pieces -----------------------------------------------------------------------------------------------------

    def _starts(self) -> list[Start]:
        return draw_starts(self.single.spec, NUM_ENVS, seed=self.seed)

    def _chunks(self, num_envs: int, count: int = 1, *, salt: str = "") -> list[Array]:
        """Return random chunks (N, K, A) within the limits."""
        generator = stream(self.seed, "check_env", salt)
        action = self.single.spec.action
        shape = (num_envs, CHUNK_STEPS)
        return [draw(action, shape, generator).astype(np.float32) for _ in range(count)]

    def _gentle(self, steps: int, *, salt: int = 0) -> Array:
        """Return a chunk (1, steps, A) of small random actions around the middle, which rarely end an episode early."""
        chunk = draw(self.single.spec.action, (1, steps), stream(self.seed, "check_env", "gentle", salt))
        middle = chunk.mean((0, 1), keepdims=True)
        gentle: Array = (middle + 0.1 * (chunk - middle)).astype(np.float32)
        return gentle

    def _run(self, env: VecEnv, starts: Sequence[Start], chunks: Sequence[Array]) -> list[dict[str, Any]]:
        """Return copies of everything that an episode shows, reset first."""
        frames: list[dict[str, Any]] = [{"observation": copy_of(env.reset(starts))}]
        frames.extend(_frame(env.step(chunk)) for chunk in chunks)
        return frames

    def _expect_equal(self, first: Sequence[Any], second: Sequence[Any], problem: str) -> None:
        for t, (one, two) in enumerate(zip(first, second, strict=True)):
            text = difference(one, two)
            expect(not text, f"{problem}: at chunk {t}, {text}.")

    def _expect_observation(self, observation: Observation, when: str) -> None:
        spec = self.several.spec
        wanted = sorted([*spec.observation, TASK_KEY])
        expect(sorted(observation) == wanted, f"{when}, the keys are {sorted(observation)}, expected {wanted}.")
        for key, item in spec.observation.items():
            name = f"{when}, '{key}'"
            expect_array(observation[key], name, shape=(NUM_ENVS, *item.shape), dtype=item.dtype)
            expect_within(observation[key], item, name)
        task = observation[TASK_KEY]
        good = isinstance(task, list) and len(task) == NUM_ENVS and all(isinstance(item, str) for item in task)
        expect(good, f"{when}, 'task' must be a list of {NUM_ENVS} strings, found {task!r}.")


def _view(step: Step) -> dict[str, Any]:
    names = ("observation", "reward", "executed", "terminated", "truncated", "metrics")
    return {name: getattr(step, name) for name in names}


def _frame(step: Step) -> dict[str, Any]:
    frame: dict[str, Any] = copy_of(_view(step))
    return frame


def _merged(frames: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {str(t): frame for t, frame in enumerate(frames)}


def _scribble(observation: Observation) -> None:
    for item in observation.values():
        if isinstance(item, np.ndarray):
            item[...] = 1
