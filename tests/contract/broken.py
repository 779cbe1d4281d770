"""Components that break their contract in one way each, and the check and the sentence that must say so."""

import copy
import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from burnish.core.contracts import Decision, EpisodeSummary, VecEnv
from burnish.core.seeding import restore_generator, save_generator, stream
from burnish.core.spec import TASK_KEY, ArraySpec, EnvSpec, Observation
from burnish.core.step import TRAINING_SEED_START, ActionSample, Evaluation, Start, Step
from burnish.data.rollout import Batch, Rollout
from burnish.envs import point_mass
from burnish.policies import mlp

STATE, GOAL = point_mass.STATE_KEY, point_mass.GOAL_KEY
ENV = point_mass.Config(max_episode_steps=12)
SPEC = ENV.spec()


@dataclass(frozen=True)
class Broken:
    """What is broken, which check must find it, and a part of what it must say."""

    make: Callable[..., Any]
    check: str
    message: str

    def __str__(self) -> str:
        return f"{self.make.__name__}-{self.check}".replace(" ", "_")


# -- environments ---------------------------------------------------------------------------------------------------


class Wrapped:
    """A good environment; what breaks it overrides one method."""

    def __init__(self, num_envs: int = 1, config: point_mass.Config = ENV) -> None:
        self.env: VecEnv = config.build(num_envs)
        self.spec: EnvSpec = self.env.spec
        self.num_envs = num_envs

    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        return self.change(self.env.reset(starts, where))

    def step(self, action_chunk: np.ndarray) -> Step:
        step = self.env.step(action_chunk)
        return replace(step, observation=self.change(step.observation))

    def change(self, observation: Observation) -> Observation:
        return observation

    def close(self) -> None:
        self.env.close()


class NoSuccess(Wrapped):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.spec = replace(SPEC, metrics={"distance": SPEC.metrics["distance"]})


class WrongNumber(Wrapped):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.num_envs = 4


class MissingKey(Wrapped):
    def change(self, observation: Observation) -> Observation:
        return {key: item for key, item in observation.items() if key != GOAL}


class Double(Wrapped):
    def change(self, observation: Observation) -> Observation:
        return {**observation, STATE: observation[STATE].astype(np.float64)}


class NotFinite(Wrapped):
    def change(self, observation: Observation) -> Observation:
        observation[STATE][0, 2] = np.nan
        return observation


class OutsideLimits(Wrapped):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        keys = {**SPEC.observation, GOAL: ArraySpec((2,), unit="m", frame="world", low=-0.01, high=0.01)}
        self.spec = replace(SPEC, observation=keys)


class TaskIsText(Wrapped):
    def change(self, observation: Observation) -> Observation:
        return {**observation, "task": "right"}


class ShortExecuted(Wrapped):
    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        return replace(step, executed=step.executed.astype(np.int32))


class RewardPastExecuted(Wrapped):
    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        return replace(step, reward=step.reward + np.float32(0.5))


class ChunkChanged(Wrapped):
    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        action_chunk *= 0.5
        return step


class UnknownMetric(Wrapped):
    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        return replace(step, metrics={**step.metrics, "speed": np.zeros(self.num_envs)})


class HalfSuccess(Wrapped):
    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        return replace(step, metrics={**step.metrics, "success": np.full(self.num_envs, 0.5)})


class GlobalNoise(Wrapped):
    calls = itertools.count()

    def change(self, observation: Observation) -> Observation:
        observation[STATE] += np.float32(1e-3 * next(self.calls))
        return observation


class SeedIgnored(Wrapped):
    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        return super().reset([Start(item.task, item.init, 0) for item in starts], where)


class LeakingEpisode(Wrapped):
    last: Start | None = None
    offset = 0.0

    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        self.offset = 0.0 if self.last is None or self.last == starts[0] else 0.25
        self.last = starts[0]
        return super().reset(starts, where)

    def change(self, observation: Observation) -> Observation:
        observation[STATE] += np.float32(self.offset)
        return observation


class NoisePerObservation(Wrapped):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.last = np.zeros(num_envs)

    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        if where is None:
            self.noise = [stream(item.seed) for item in starts]
        else:
            self.noise[int(where[0])] = stream(starts[0].seed)
        return super().reset(starts, where)

    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        for n, noise in enumerate(self.noise):
            self.last[n] = noise.normal(0.0, 0.01) if step.executed[n] else self.last[n]
            step.observation[STATE][n] += self.last[n]
        return step


class DependsOnIndex(Wrapped):
    def change(self, observation: Observation) -> Observation:
        observation[STATE][:, 0] += 0.01 * np.arange(self.num_envs, dtype=np.float32)
        return observation


class ResetsEverything(Wrapped):
    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        if where is None:
            self.starts = list(starts)
        else:
            self.starts[int(where[0])] = starts[0]
        return super().reset(self.starts)


class SharedBuffer(Wrapped):
    buffer: Observation | None = None

    def change(self, observation: Observation) -> Observation:
        if self.buffer is None:
            self.buffer = observation
        self.buffer[STATE][...] = observation[STATE]
        self.buffer[GOAL][...] = observation[GOAL]
        self.buffer["task"][:] = observation["task"]
        return self.buffer


class GivenArrayIsState(Wrapped):
    given: np.ndarray | None = None

    def change(self, observation: Observation) -> Observation:
        fresh = observation[STATE].copy()
        if self.given is not None:
            observation[STATE] += self.given - self.kept
        self.given, self.kept = observation[STATE], fresh
        return observation

    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        self.given = None
        return super().reset(starts, where)


class LateTruncation(Wrapped):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs, point_mass.Config(max_episode_steps=13))
        self.spec = SPEC


class EarlyTruncation(Wrapped):
    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs, point_mass.Config(max_episode_steps=11))
        self.spec = SPEC


class AutoReset(Wrapped):
    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        if where is None:
            self.starts = list(starts)
        else:
            self.starts[int(where[0])] = starts[0]
        self.ended = np.zeros(self.num_envs, bool)
        return super().reset(starts, where)

    def step(self, action_chunk: np.ndarray) -> Step:
        if self.ended.all():
            self.env.reset(self.starts)
        step = super().step(action_chunk)
        self.ended = step.done
        return step


class ResetsItself(Wrapped):
    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        observation = super().reset(starts, where)
        self.first = {key: np.array(item) for key, item in observation.items() if key != TASK_KEY}
        return observation

    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        if step.done.all():
            for key, item in self.first.items():
                step.observation[key][...] = item
        return step


class LastObservationLost(Wrapped):
    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        if not step.executed.any():
            step.observation[STATE][...] = 0.0
        return step


class NoClipping(Wrapped):
    def step(self, action_chunk: np.ndarray) -> Step:
        step = super().step(action_chunk)
        if np.abs(action_chunk).max() > 1.0:
            step.observation[STATE][...] = np.inf
        return step


class AnyTask(Wrapped):
    def reset(self, starts: Sequence[Start], where: np.ndarray | None = None) -> Observation:
        known = [item if item.task in SPEC.tasks else replace(item, task=SPEC.tasks[0]) for item in starts]
        return super().reset(known, where)


class PlainValueError(Wrapped):
    def step(self, action_chunk: np.ndarray) -> Step:
        if not np.isfinite(action_chunk).all():
            raise ValueError("bad action")
        return super().step(action_chunk)


class ClosesOnce(Wrapped):
    closed = 0

    def close(self) -> None:
        super().close()
        self.closed += 1
        if self.closed > 1:
            raise RuntimeError("already closed")


ENVS = [
    Broken(NoSuccess, "spec", "must have 'success'; it has ['distance']"),
    Broken(WrongNumber, "spec", "num_envs is 4 where 1 were built"),
    Broken(MissingKey, "observation", "after reset, the keys are ['observation.state', 'task'], expected"),
    Broken(Double, "observation", "'observation.state' has dtype float64, expected float32"),
    Broken(NotFinite, "observation", "'observation.state' is not finite at (0, 2)"),
    Broken(OutsideLimits, "observation", "outside [-0.01, 0.01] of its spec"),
    Broken(TaskIsText, "observation", "'task' must be a list of 3 strings, found 'right'"),
    Broken(ShortExecuted, "step", "executed has dtype int32, expected int64"),
    Broken(RewardPastExecuted, "step", "reward past the 0 executed actions must be zero"),
    Broken(ChunkChanged, "step", "step() changed the action chunk"),
    Broken(UnknownMetric, "metrics", "Step.metrics has ['distance', 'speed', 'success'], the spec names"),
    Broken(HalfSuccess, "metrics", "metric 'success' is binary, found [0.5"),
    Broken(GlobalNoise, "same start", "a second run from the same Starts differs: at chunk 0, ['observation']"),
    Broken(SeedIgnored, "other seed", "Start.seed changes nothing"),
    Broken(LeakingEpisode, "reset purity", "an episode depends on the one before it"),
    Broken(NoisePerObservation, "chunk split", "the same actions in chunks of (2, 4) give another result"),
    Broken(DependsOnIndex, "independence", "environment 2 of 3 differs from the same one alone"),
    Broken(ResetsEverything, "partial reset", "after a reset of environment 1, others show something else"),
    Broken(SharedBuffer, "memory", "arrays that were given out earlier changed later"),
    Broken(GivenArrayIsState, "memory", "writing into a given observation changes later ones"),
    Broken(LateTruncation, "truncation", "13 actions were executed; max_episode_steps is 12"),
    Broken(EarlyTruncation, "truncation", "truncated after 11 actions; max_episode_steps is 12"),
    Broken(AutoReset, "no auto-reset", "ended environments executed [6, 6, 6] more actions"),
    Broken(ResetsItself, "no auto-reset", "the environment has reset itself"),
    Broken(LastObservationLost, "no auto-reset", "does not keep its last observation"),
    Broken(NoClipping, "action limits", "after actions beyond the limits, 'observation.state' is not finite"),
    Broken(AnyTask, "refusal", "a Start of an unknown task was accepted"),
    Broken(PlainValueError, "refusal", "an action chunk with a NaN raised ValueError (bad action) instead of"),
    Broken(ClosesOnce, "close", "it raised RuntimeError: already closed"),
]


# -- policies -------------------------------------------------------------------------------------------------------


def make_policy() -> mlp.MLPPolicy:
    """Return a good policy with a privileged critic."""
    return mlp.Config(chunk_steps=4, hidden=(16,), critic_keys=(GOAL,)).build(SPEC, generator=stream(0))


def in_class(kind: type[mlp.MLPPolicy]) -> mlp.MLPPolicy:
    """Return a good policy that was given the methods of another class."""
    policy = make_policy()
    policy.__class__ = kind
    return policy


class ActorMissing(mlp.MLPPolicy):
    def parameter_groups(self) -> dict[str, list[torch.nn.Parameter]]:
        return {"all": super().parameter_groups()["actor"]}


class ListedTwice(mlp.MLPPolicy):
    def parameter_groups(self) -> dict[str, list[torch.nn.Parameter]]:
        return {"actor": super().parameter_groups()["actor"] * 2}


class DoubleChunk(mlp.MLPPolicy):
    def act(self, observation: Observation, **options: Any) -> ActionSample:
        sample = super().act(observation, **options)
        return replace(sample, action_chunk=sample.action_chunk.astype(np.float64))


class OddLogProb(mlp.MLPPolicy):
    def act(self, observation: Observation, **options: Any) -> ActionSample:
        sample = super().act(observation, **options)
        return replace(sample, log_prob=sample.log_prob[:, :3])


class GlobalRandom(mlp.MLPPolicy):
    def act(self, observation: Observation, **options: Any) -> ActionSample:
        sample = super().act(observation, **options)
        torch.rand(1)
        return sample


class NoNoise(mlp.MLPPolicy):
    def act(self, observation: Observation, *, generator: np.random.Generator, **options: Any) -> ActionSample:
        del generator
        return super().act(observation, generator=stream(0), **options)


class NeverDeterministic(mlp.MLPPolicy):
    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        return super().act(observation, generator=generator)


class ReadsPrivileged(mlp.MLPPolicy):
    def act(self, observation: Observation, **options: Any) -> ActionSample:
        sample = super().act(observation, **options)
        return replace(sample, action_chunk=sample.action_chunk + observation[GOAL][:, None])


class WritesObservation(mlp.MLPPolicy):
    def act(self, observation: Observation, **options: Any) -> ActionSample:
        sample = super().act(observation, **options)
        observation[STATE] *= 0.5
        return sample


class MixesRows(mlp.MLPPolicy):
    def act(self, observation: Observation, **options: Any) -> ActionSample:
        state = observation[STATE]
        return super().act({STATE: state - state.mean(0)}, **options)


class EntropyOfBatch(mlp.MLPPolicy):
    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        found = super().evaluate(observation, sample, executed)
        return replace(found, entropy=found.entropy.mean())


class OtherLogProb(mlp.MLPPolicy):
    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        found = super().evaluate(observation, sample, executed)
        return replace(found, log_prob=found.log_prob + 0.01)


class Detached(mlp.MLPPolicy):
    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        found = super().evaluate(observation, sample, executed)
        return replace(found, log_prob=found.log_prob.detach())


class ImitatesEverything(mlp.MLPPolicy):
    def imitation_loss(self, observation: Observation, action_chunk: Any, executed: Any) -> torch.Tensor:
        return super().imitation_loss(observation, action_chunk, torch.full_like(executed, 4))


class ImitatesTheFirst(mlp.MLPPolicy):
    def imitation_loss(self, observation: Observation, action_chunk: Any, executed: Any) -> torch.Tensor:
        return super().imitation_loss(observation, action_chunk, torch.ones_like(executed))


class TrainableClone(mlp.MLPPolicy):
    def clone(self) -> mlp.MLPPolicy:
        return copy.deepcopy(self)


class CloneIsItself(mlp.MLPPolicy):
    def clone(self) -> mlp.MLPPolicy:
        twin = copy.copy(self)
        twin._parameters = dict(self._parameters)
        twin._modules = dict(self._modules)
        return _Frozen(twin)  # type: ignore[return-value]


class _Frozen:
    """Shows a policy's parameters as frozen, but shares their memory."""

    def __init__(self, policy: mlp.MLPPolicy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def parameter_groups(self) -> dict[str, list[torch.nn.Parameter]]:
        return {
            role: [torch.nn.Parameter(item.data, requires_grad=False) for item in group]
            for role, group in self._policy.parameter_groups().items()
        }


class ConstantDivergence(mlp.MLPPolicy):
    def divergence(self, observation: Observation, sample: ActionSample, reference: Any, executed: Any) -> torch.Tensor:
        return super().divergence(observation, sample, reference, executed) + 1.0


class NegativeDivergence(mlp.MLPPolicy):
    def divergence(self, observation: Observation, sample: ActionSample, reference: Any, executed: Any) -> torch.Tensor:
        return -super().divergence(observation, sample, reference, executed)


class DivergenceWithoutGradient(mlp.MLPPolicy):
    def divergence(self, observation: Observation, sample: ActionSample, reference: Any, executed: Any) -> torch.Tensor:
        return super().divergence(observation, sample, reference, executed).detach()


class DivergenceOfWholeChunk(mlp.MLPPolicy):
    def divergence(self, observation: Observation, sample: ActionSample, reference: Any, executed: Any) -> torch.Tensor:
        return super().divergence(observation, sample, reference, torch.full_like(executed, 4))


class ArrayStatistics(mlp.MLPPolicy):
    def normalisation(self) -> dict[str, Any]:
        return {"mean": self.state_mean.numpy()}


class WritesPickle(mlp.MLPPolicy):
    def save(self, directory: Path) -> None:
        super().save(directory)
        (directory / "extra.pkl").write_bytes(pickle.dumps({}))


class ForgetsToLoad(mlp.MLPPolicy):
    def load(self, directory: Path) -> None:
        pass


class PlainLoadError(mlp.MLPPolicy):
    def load(self, directory: Path) -> None:
        (directory / "config.json").read_text(encoding="utf-8")
        super().load(directory)


class ColumnOfValues(mlp.MLPPolicy):
    def value(self, observation: Observation) -> torch.Tensor:
        return super().value(observation)[:, None]


class WrongCache(mlp.MLPPolicy):
    def precompute(self, observation: Observation) -> Observation:
        return {**observation, STATE: observation[STATE] * 1.1}


POLICIES = [
    Broken(ActorMissing, "spec", "must have 'actor'; it has ['all']"),
    Broken(ListedTwice, "spec", "lists a parameter twice"),
    Broken(DoubleChunk, "act", "action_chunk has dtype float64, expected float32"),
    Broken(OddLogProb, "act", "log_prob has shape (5, 3), expected (N, 1) or (N, K)"),
    Broken(GlobalRandom, "generator", "act() draws from numpy's or torch's global generator"),
    Broken(NoNoise, "generator", "another generator gives the same chunk"),
    Broken(NeverDeterministic, "deterministic", "deterministic answers depend on the generator"),
    Broken(ReadsPrivileged, "privileged", "asks for the privileged entry 'privileged.goal'"),
    Broken(WritesObservation, "purity", "change the observation: ['observation.state']"),
    Broken(MixesRows, "rows", "a row of a batch gets another answer than alone"),
    Broken(EntropyOfBatch, "evaluate", "entropy has shape (), expected (5,)"),
    Broken(OtherLogProb, "parity", "differ by up to 0.01, so the ratio of a decision is off by 0.0408"),
    Broken(Detached, "gradient", "log_prob of evaluate() is not differentiable"),
    Broken(ImitatesEverything, "executed", "depends on actions past `executed`"),
    Broken(ImitatesTheFirst, "executed", "ignores executed actions after the first"),
    Broken(TrainableClone, "clone", "parameters of a clone must not require gradients"),
    Broken(CloneIsItself, "clone", "changing a clone changes the policy"),
    Broken(ConstantDivergence, "divergence", "the divergence to an equal policy is 1, expected 0"),
    Broken(NegativeDivergence, "divergence", "below 0"),
    Broken(DivergenceWithoutGradient, "divergence", "has no gradient, so a coefficient would do nothing"),
    Broken(DivergenceOfWholeChunk, "divergence executed", "over 1 action is not below that over 4"),
    Broken(ArrayStatistics, "normalisation", "must be finite JSON values"),
    Broken(WritesPickle, "save and load", "save() wrote ['extra.pkl']"),
    Broken(ForgetsToLoad, "save and load", "weights differ after saving and loading"),
    Broken(PlainLoadError, "damaged checkpoint", "load() of an empty folder raised FileNotFoundError"),
    Broken(ColumnOfValues, "value", "value has shape (5, 1), expected (5,)"),
    Broken(WrongCache, "precompute", "with cached features log-probs differ"),
]


# -- teachers -------------------------------------------------------------------------------------------------------


class GoalSeeker:
    """A good teacher for the toy: straight to the true goal."""

    spec_id = SPEC.id
    observation_keys: tuple[str, ...] = (STATE, GOAL)

    def act(self, observation: Observation, *, generator: np.random.Generator) -> np.ndarray:
        way = (observation[GOAL] - observation[STATE][:, :2]) / 0.2
        return np.repeat(np.clip(way, -1.0, 1.0)[:, None], 4, 1).astype(np.float32)


class OtherEnv(GoalSeeker):
    spec_id = "contact/contour"


class UnknownKey(GoalSeeker):
    observation_keys = (STATE, "privileged.mass")


class BeyondLimits(GoalSeeker):
    def act(self, observation: Observation, *, generator: np.random.Generator) -> np.ndarray:
        return super().act(observation, generator=generator) * np.float32(3.0)


class ReadsMore(GoalSeeker):
    observation_keys = (STATE,)

    def act(self, observation: Observation, *, generator: np.random.Generator) -> np.ndarray:
        goal = observation.get(GOAL, observation[STATE][:, 4:] + 0.1)
        return super().act({**observation, GOAL: goal}, generator=generator)


class OwnRandomness(GoalSeeker):
    calls = itertools.count()

    def act(self, observation: Observation, *, generator: np.random.Generator) -> np.ndarray:
        return super().act(observation, generator=generator) / np.float32(2 + next(self.calls))


class WritesGoal(GoalSeeker):
    def act(self, observation: Observation, *, generator: np.random.Generator) -> np.ndarray:
        chunk = super().act(observation, generator=generator)
        observation[GOAL][...] += 0.1
        return chunk


TEACHERS = [
    Broken(OtherEnv, "spec", "spec_id is 'contact/contour', the environment is 'point_mass'"),
    Broken(UnknownKey, "spec", "it reads ['privileged.mass'], which 'point_mass' does not give"),
    Broken(BeyondLimits, "act", "outside [-1, 1] of its spec"),
    Broken(ReadsMore, "keys", "it reads more than its observation_keys ['observation.state']"),
    Broken(OwnRandomness, "determinism", "the same observation and generator give another answer"),
    Broken(WritesGoal, "purity", "act() writes into the observation"),
]


# -- samplers -------------------------------------------------------------------------------------------------------


class GoodSampler:
    """Draws Starts in turn from a generator."""

    low = TRAINING_SEED_START

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator

    def next(self, count: int) -> list[Start]:
        return [Start("right", 0, self.low + int(self.generator.integers(1 << 20))) for _ in range(count)]

    def report(self, episodes: Sequence[EpisodeSummary]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"generator": save_generator(self.generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.generator = restore_generator(state["generator"])


class TooFew(GoodSampler):
    def next(self, count: int) -> list[Start]:
        return super().next(min(count, 4))


class UnknownTask(GoodSampler):
    def next(self, count: int) -> list[Start]:
        return [replace(item, task="north") for item in super().next(count)]


class EvaluationSeeds(GoodSampler):
    low = 0


class OwnGenerator(GoodSampler):
    seeds = itertools.count()

    def __init__(self, generator: np.random.Generator) -> None:
        super().__init__(stream(next(self.seeds)))


class NoReport(GoodSampler):
    def report(self, episodes: Sequence[EpisodeSummary]) -> None:
        raise NotImplementedError("later")


class ForgetsGenerator(GoodSampler):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


SAMPLERS = [
    Broken(TooFew, "starts", "next(7) returned 4 Starts"),
    Broken(UnknownTask, "starts", "task 'north' is not one of 'point_mass'"),
    Broken(EvaluationSeeds, "training seeds", "is below 1048576, where evaluation draws from"),
    Broken(OwnGenerator, "determinism", "two samplers with equal generators give other Starts"),
    Broken(NoReport, "report", "it raised NotImplementedError: later"),
    Broken(ForgetsGenerator, "resume", "after load_state_dict the Starts go on as"),
]


# -- controllers ----------------------------------------------------------------------------------------------------


class GoodController:
    """Stops after three large figures."""

    def __init__(self) -> None:
        self.count = 0

    def after(self, moment: str, metrics: Mapping[str, float]) -> Decision:
        self.count += int(metrics["loss"] > 0.5)
        return Decision("stop", reason="three large losses") if self.count >= 3 else Decision()

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(state["count"])


class NoDecision(GoodController):
    def after(self, moment: str, metrics: Mapping[str, float]) -> Decision:
        return None  # type: ignore[return-value]


class UnknownAction(GoodController):
    def after(self, moment: str, metrics: Mapping[str, float]) -> Decision:
        return Decision("halt", reason="enough")  # type: ignore[arg-type]


class NegativeRate(GoodController):
    def after(self, moment: str, metrics: Mapping[str, float]) -> Decision:
        return Decision(learning_rate_factor=-1.0, reason="down")


class NoReason(GoodController):
    def after(self, moment: str, metrics: Mapping[str, float]) -> Decision:
        return Decision("stop")


class ForgetsCount(GoodController):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


CONTROLLERS = [
    Broken(NoDecision, "decision", "after an epoch it returned NoneType, not a Decision"),
    Broken(UnknownAction, "decision", "the action is 'halt', not one of go_on"),
    Broken(NegativeRate, "decision", "learning_rate_factor is -1.0, not above 0"),
    Broken(NoReason, "decision", "without a reason for the log"),
    Broken(ForgetsCount, "resume", "after load_state_dict it decides"),
]


# -- labelers -------------------------------------------------------------------------------------------------------


class GoodLabeler:
    """The mean reward as the advantage."""

    def label(self, rollout: Rollout, policy: Any, reference: Any) -> Rollout:
        return rollout.replace(advantage=rollout.reward.mean(-1)).with_metrics(mean=float(rollout.reward.mean()))


class DoubleAdvantage(GoodLabeler):
    def label(self, rollout: Rollout, policy: Any, reference: Any) -> Rollout:
        return rollout.replace(advantage=rollout.reward.mean(-1, dtype=np.float64))


class RewardsPast(GoodLabeler):
    def label(self, rollout: Rollout, policy: Any, reference: Any) -> Rollout:
        return rollout.replace(reward=rollout.reward - np.float32(1.0))


class ChangesHistory(GoodLabeler):
    def label(self, rollout: Rollout, policy: Any, reference: Any) -> Rollout:
        return rollout.replace(terminated=rollout.terminated | rollout.truncated)


class WritesReward(GoodLabeler):
    def label(self, rollout: Rollout, policy: Any, reference: Any) -> Rollout:
        rollout.reward[rollout.executed > 0, 0] -= 1.0
        return super().label(rollout, policy, reference)


class RandomLabels(GoodLabeler):
    calls = itertools.count()

    def label(self, rollout: Rollout, policy: Any, reference: Any) -> Rollout:
        labelled = super().label(rollout, policy, reference)
        assert labelled.advantage is not None
        return labelled.replace(advantage=labelled.advantage + np.float32(next(self.calls)))


class TrainsInside(GoodLabeler):
    def label(self, rollout: Rollout, policy: Any, reference: Any) -> Rollout:
        with torch.no_grad():
            policy.log_std.add_(0.1)
        return super().label(rollout, policy, reference)


LABELERS = [
    Broken(DoubleAdvantage, "fields", "advantage is float64 (4, 3), expected float32 (4, 3)"),
    Broken(RewardsPast, "fields", "the reward past the executed actions must stay zero"),
    Broken(ChangesHistory, "keeps", "not what happened: terminated"),
    Broken(WritesReward, "purity", "label() writes into the rollout that it was given: reward"),
    Broken(RandomLabels, "determinism", "the same rollout is labelled differently the second time: advantage"),
    Broken(TrainsInside, "weights", "label() changes the policy: state_dict()['log_std']"),
]


# -- objectives -----------------------------------------------------------------------------------------------------


class GoodObjective:
    """Mean squared value error."""

    name = "value"
    coefficient = 1.0

    def loss(self, policy: Any, batch: Batch, *, previous: Any, reference: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return (policy.value(batch.observation) - batch.return_).square().mean(), {}


class NoName(GoodObjective):
    name = ""


class VectorLoss(GoodObjective):
    def loss(self, policy: Any, batch: Batch, *, previous: Any, reference: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return policy.value(batch.observation) - batch.return_, {}


class TensorMetric(GoodObjective):
    def loss(self, policy: Any, batch: Batch, *, previous: Any, reference: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        loss, _ = super().loss(policy, batch, previous=previous, reference=reference)
        return loss, {"error": loss}


class NoSlope(GoodObjective):
    def loss(self, policy: Any, batch: Batch, *, previous: Any, reference: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        loss, _ = super().loss(policy, batch, previous=previous, reference=reference)
        return loss * 0.0, {}


class MovesReference(GoodObjective):
    def loss(self, policy: Any, batch: Batch, *, previous: Any, reference: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        with torch.no_grad():
            reference.log_std.mul_(0.9)
        return super().loss(policy, batch, previous=previous, reference=reference)


class SumOfErrors(GoodObjective):
    def loss(self, policy: Any, batch: Batch, *, previous: Any, reference: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return (policy.value(batch.observation) - batch.return_).square().sum(), {}


OBJECTIVES = [
    Broken(NoName, "spec", "name must be a text, found ''"),
    Broken(VectorLoss, "value", "the loss has shape (12,), expected a scalar"),
    Broken(TensorMetric, "value", "metric 'error' is Tensor, not a float"),
    Broken(NoSlope, "gradient", "the gradient is zero in every parameter"),
    Broken(MovesReference, "purity", "loss() changes the reference policy: state_dict()['log_std']"),
    Broken(SumOfErrors, "mean", "a loss is a mean over decisions, but with every decision twice it is"),
]
