"""Contract checks for components that need no torch; run by our tests, by ``burnish check``, and by third parties.

Policies, labelers and objectives are checked by :mod:`burnish.rl.check`, since what they return are torch tensors.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from burnish.core.check_env import check_env
from burnish.core.conformity import (
    copy_of,
    difference,
    draw_starts,
    expect,
    expect_array,
    expect_within,
    run_checks,
)
from burnish.core.contracts import Controller, Decision, EpisodeSummary, Sampler, Teacher, VecEnv
from burnish.core.seeding import stream
from burnish.core.spec import TASK_KEY, EnvSpec, Observation
from burnish.core.step import TRAINING_SEED_START, Start

__all__ = ["check_controller", "check_env", "check_sampler", "check_teacher"]


def check_teacher(teacher: Teacher, env: VecEnv, *, seed: int = 0) -> list[str]:
    """Check that a teacher keeps :class:`burnish.core.contracts.Teacher`, on observations of a real environment.

    Args:
        teacher: What is checked.
        env: An environment that it was built for; is reset and stepped.
        seed: Of Starts and noise.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails.
    """
    spec = env.spec
    observation: Observation = copy_of(env.reset(draw_starts(spec, env.num_envs, seed=seed)))

    def act(given: Observation) -> Any:
        return teacher.act(copy_of(given), generator=stream(seed, "check_teacher"))

    def describe() -> None:
        expect(teacher.spec_id == spec.id, f"spec_id is '{teacher.spec_id}', the environment is '{spec.id}'.")
        missing = [key for key in teacher.observation_keys if key not in (*spec.observation, TASK_KEY)]
        expect(not missing, f"it reads {missing}, which '{spec.id}' does not give: {', '.join(spec.observation)}.")

    def answer() -> None:
        chunk = act(observation)
        steps = chunk.shape[1] if isinstance(chunk, np.ndarray) and chunk.ndim == 3 else 0
        expect_array(chunk, "the action chunk", shape=(env.num_envs, max(steps, 1), spec.action_dim), dtype="float32")
        flat = chunk.reshape(-1, spec.action_dim)
        expect_within(flat, spec.action, "the action")
        env.step(chunk)

    def keys() -> None:
        only = {key: observation[key] for key in (*teacher.observation_keys, TASK_KEY)}
        text = difference(act(observation), act(only), "the action chunk")
        expect(not text, f"it reads more than its observation_keys {list(teacher.observation_keys)}: {text}.")

    def determinism() -> None:
        text = difference(act(observation), act(observation), "the action chunk")
        expect(not text, f"the same observation and generator give another answer: {text}.")

    def purity() -> None:
        given = copy_of(observation)
        teacher.act(given, generator=stream(seed, "check_teacher"))
        text = difference(observation, given, "observation")
        expect(not text, f"act() writes into the observation: {text}.")

    checks = {"spec": describe, "act": answer, "determinism": determinism, "keys": keys, "purity": purity}
    return run_checks(f"Teacher '{type(teacher).__module__}'", checks)


def check_sampler(build: Callable[[np.random.Generator], Sampler], env_spec: EnvSpec, *, seed: int = 0) -> list[str]:
    """Check that a sampler keeps :class:`burnish.core.contracts.Sampler`.

    Args:
        build: Returns a new sampler for ``env_spec`` that draws from a generator.
        env_spec: Environment whose Starts it samples.
        seed: Of the generators.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails.
    """

    def fresh() -> Sampler:
        return build(stream(seed, "check_sampler"))

    def starts() -> None:
        sampler = fresh()
        for count in (0, 1, 7):
            found = sampler.next(count)
            expect(len(found) == count, f"next({count}) returned {len(found)} Starts.")
            for start in found:
                _expect_start(start, env_spec)

    def training_seeds() -> None:
        low = min(start.seed for start in fresh().next(64))
        expect(low >= TRAINING_SEED_START, f"seed {low} is below {TRAINING_SEED_START}, where evaluation draws from.")

    def determinism() -> None:
        expect(fresh().next(9) == fresh().next(9), "two samplers with equal generators give other Starts.")

    def report() -> None:
        sampler = fresh()
        sampler.report([])
        sampler.report(_summaries(sampler.next(5), env_spec))

    def resume() -> None:
        sampler = fresh()
        for _ in range(2):
            sampler.report(_summaries(sampler.next(5), env_spec))
        state = json.loads(json.dumps(sampler.state_dict()))
        other = fresh()
        other.load_state_dict(state)
        for _ in range(2):
            ours, theirs = sampler.next(5), other.next(5)
            expect(ours == theirs, f"after load_state_dict the Starts go on as {theirs}, without as {ours}.")
            sampler.report(_summaries(ours, env_spec))
            other.report(_summaries(theirs, env_spec))

    checks = {
        "starts": starts,
        "training seeds": training_seeds,
        "determinism": determinism,
        "report": report,
        "resume": resume,
    }
    return run_checks(f"Sampler '{type(fresh()).__module__}'", checks)


def check_controller(build: Callable[[], Controller], *, value: float = 0.01) -> list[str]:
    """Check that a controller keeps :class:`burnish.core.contracts.Controller`.

    Args:
        build: Returns a new controller.
        value: What every figure of the run is, whatever its name.

    Returns:
        Names of the checks, all passed.

    Raises:
        CheckError: From the first check that fails.
    """
    moments: tuple[Literal["epoch", "iteration"], ...] = ("epoch", "iteration")

    def decisions(controller: Controller, level: float) -> list[Decision]:
        return [controller.after(moment, _AnyFigure(level)) for moment in moments]

    def decision() -> None:
        for level in (value, 100.0 * value, 0.01 * value):
            for moment, found in zip(moments, decisions(build(), level), strict=True):
                kind = type(found).__name__
                expect(isinstance(found, Decision), f"after an {moment} it returned {kind}, not a Decision.")
                known = ("go_on", "stop_epochs", "revert", "stop")
                expect(found.action in known, f"the action is '{found.action}', not one of {', '.join(known)}.")
                factor = found.learning_rate_factor
                expect(np.isfinite(factor) and factor > 0.0, f"learning_rate_factor is {factor}, not above 0.")
                changed = found.action != "go_on" or factor != 1.0 or found.coefficients
                expect(not changed or bool(found.reason), f"it decides {found} without a reason for the log.")

    def resume() -> None:
        controller = build()
        decisions(controller, 100.0 * value)
        state = json.loads(json.dumps(controller.state_dict()))
        other = build()
        other.load_state_dict(state)
        for level in (100.0 * value, 0.01 * value):
            ours, theirs = decisions(controller, level), decisions(other, level)
            expect(ours == theirs, f"after load_state_dict it decides {theirs}, without {ours}.")

    return run_checks(f"Controller '{type(build()).__module__}'", {"decision": decision, "resume": resume})


class _AnyFigure(Mapping[str, float]):
    """A run that has every figure, all with one value."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __getitem__(self, key: str) -> float:
        return self._value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _expect_start(start: Any, spec: EnvSpec) -> None:
    expect(isinstance(start, Start), f"next() returned {type(start).__name__}, not Starts.")
    expect(start.task in spec.tasks, f"task '{start.task}' is not one of '{spec.id}': {', '.join(spec.tasks)}.")
    expect(0 <= start.init < spec.num_inits, f"init {start.init} is outside [0, {spec.num_inits}).")


def _summaries(starts: list[Start], spec: EnvSpec) -> list[EpisodeSummary]:
    """Return one summary each, some successful, that depend on the Start alone."""
    return [
        EpisodeSummary(
            start=start,
            length=1 + start.seed % spec.max_episode_steps,
            return_=float(start.seed % 5),
            success=start.seed % 2 == 0,
            metrics={name: float(name == "success" and start.seed % 2 == 0) for name in spec.metrics},
        )
        for start in starts
    ]
