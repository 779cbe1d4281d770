"""Whole episodes from a list of Starts: what evaluation, recording and the durable log share."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.core.contracts import EpisodeSummary, VecEnv
from burnish.core.errors import ConfigError, EnvError
from burnish.core.spec import TASK_KEY, Array, Observation
from burnish.core.step import ActionSample, Start, Step

type Act = Callable[[Observation], Array | ActionSample]
"""Observation of N environments to action chunks (N, K, A), or to an ActionSample whose log-prob is kept."""


@dataclass(frozen=True)
class Episode:
    """One finished episode of T actions and D decisions."""

    env_id: str
    """``EnvSpec.id`` of the environment."""
    start: Start
    """Where it began."""
    task: str
    """Instruction text."""
    action: Array
    """(T, A) float32, executed actions, in the env's units."""
    reward: Array
    """(T,) float32."""
    decision: Array
    """(D,) int64, step index at which each decision was taken; decision[0] == 0."""
    observation: dict[str, Array]
    """(D, ...) at the decisions, empty when not kept; without ``task``."""
    last_observation: dict[str, Array]
    """(...) after the last action, empty when not kept."""
    log_prob: Array | None
    """(D, G) float32 under the acting policy, None when it gave none."""
    terminated: bool
    """Whether it ended by its own rules."""
    truncated: bool
    """Whether a limit cut it."""
    metrics: dict[str, float]
    """Final ``Step.metrics`` of the episode."""
    info: dict[str, Any] = field(default_factory=dict)
    """JSON values: ``wall_time`` [s], and what a caller adds (policy id, version, ...)."""

    @property
    def length(self) -> int:
        """T, executed actions."""
        return len(self.action)

    @property
    def return_(self) -> float:
        """Undiscounted sum of rewards."""
        return float(self.reward.sum(dtype=np.float64))

    @property
    def success(self) -> bool:
        """Whether the final ``success`` metric is above one half; False where there is none."""
        return self.metrics.get("success", 0.0) > 0.5

    def summary(self) -> EpisodeSummary:
        """Return what samplers and tables need."""
        return EpisodeSummary(self.start, self.length, self.return_, self.success, dict(self.metrics))


def run_episodes(
    act: Act,
    env: VecEnv,
    starts: Sequence[Start],
    *,
    replan_steps: int,
    keep_observation: bool = False,
    on_frame: Callable[[int, Start], None] | None = None,
) -> Iterator[Episode]:
    """Run one episode for each Start and yield them as they end.

    All N environments are kept busy: one that ends gets the next Start; when none is left it waits. What an episode
    holds depends on its Start and on ``act`` alone, not on N or on its neighbours.

    Args:
        act: Observation of all N environments to action chunks (N, K, A).
        env: The environments; whatever they were doing is abandoned.
        starts: What to run, in order.
        replan_steps: How many actions of each chunk are executed, at most K.
        keep_observation: Whether to keep the observation of every decision.
        on_frame: Called as ``on_frame(env_index, start)`` after each reset and each executed action, for videos; the
            actions of a chunk are then offered one at a time.

    Raises:
        ConfigError: If ``replan_steps`` is not within [1, K].
        EnvError: If an environment neither executes an action nor ends.
    """
    if replan_steps < 1:
        raise ConfigError(f"replan_steps must be at least 1, found {replan_steps}.")
    return _run(act, env, deque(starts), replan_steps, keep_observation, on_frame)


class _Running:
    """What is collected about one episode while it runs."""

    def __init__(self, start: Start, task: str) -> None:
        self.start = start
        self.task = task
        self.length = 0
        self.action: list[Array] = []
        self.reward: list[Array] = []
        self.decision: list[int] = []
        self.observation: list[dict[str, Array]] = []
        self.log_prob: list[Array] = []
        self.begin = time.perf_counter()

    def decide(self, observation: dict[str, Array], log_prob: Array | None) -> None:
        self.decision.append(self.length)
        self.observation.append(observation)
        if log_prob is not None:
            self.log_prob.append(log_prob)

    def execute(self, action: Array, reward: Array) -> None:
        self.action.append(np.array(action, np.float32))
        self.reward.append(np.array(reward, np.float32))
        self.length += len(action)

    def finish(self, env_id: str, step: Step, index: int, last_observation: dict[str, Array]) -> Episode:
        keys = self.observation[0] if self.observation else {}
        return Episode(
            env_id=env_id,
            start=self.start,
            task=self.task,
            action=np.concatenate(self.action),
            reward=np.concatenate(self.reward),
            decision=np.array(self.decision, np.int64),
            observation={key: np.stack([row[key] for row in self.observation]) for key in keys},
            last_observation=last_observation,
            log_prob=np.stack(self.log_prob) if self.log_prob else None,
            terminated=bool(step.terminated[index]),
            truncated=bool(step.truncated[index]),
            metrics={name: float(figure[index]) for name, figure in step.metrics.items()},
            info={"wall_time": time.perf_counter() - self.begin},
        )


def _run(
    act: Act,
    env: VecEnv,
    queue: deque[Start],
    replan_steps: int,
    keep: bool,
    on_frame: Callable[[int, Start], None] | None,
) -> Iterator[Episode]:
    running: dict[int, _Running] = {}
    begun: set[int] = set()
    observation: Observation = {}
    while True:
        free = [n for n in range(env.num_envs) if n not in running][: len(queue)]
        if free:
            observation = env.reset([queue[i] for i in range(len(free))], np.array(free, np.int64))
            for n in free:
                running[n] = _Running(queue.popleft(), observation[TASK_KEY][n])
                if on_frame is not None:
                    on_frame(n, running[n].start)
            begun.update(free)
        if not running:
            return
        chunk, log_prob = _ask(act, _without_gaps(observation, begun, env.num_envs), env, replan_steps)
        for n, episode in running.items():
            episode.decide(_row(observation, n, keep), None if log_prob is None else log_prob[n].copy())
        ended: list[Episode] = []
        for part in np.split(chunk, replan_steps, axis=1) if on_frame is not None else [chunk]:
            step = env.step(part)
            for n in list(running):
                executed = int(step.executed[n])
                running[n].execute(part[n, :executed], step.reward[n, :executed])
                if on_frame is not None and executed:
                    on_frame(n, running[n].start)
                if step.terminated[n] or step.truncated[n]:
                    _check_progress(running[n], env, n)
                    ended.append(running.pop(n).finish(env.spec.id, step, n, _row(step.observation, n, keep)))
            observation = step.observation
            if not running:
                break
        for n, episode in running.items():
            _check_progress(episode, env, n)
        yield from ended


def _ask(act: Act, observation: Observation, env: VecEnv, replan_steps: int) -> tuple[Array, Array | None]:
    answer = act(observation)
    chunk, log_prob = (answer.action_chunk, answer.log_prob) if isinstance(answer, ActionSample) else (answer, None)
    expected = (env.num_envs, env.spec.action_dim)
    if chunk.ndim != 3 or (chunk.shape[0], chunk.shape[2]) != expected:
        raise EnvError(
            f"{env.spec.id}: act must answer with chunks of shape (N={expected[0]}, K, A={expected[1]}), "
            f"found {chunk.shape}."
        )
    if replan_steps > chunk.shape[1]:
        raise ConfigError(
            f"replan_steps is {replan_steps}, but the policy answers with chunks of {chunk.shape[1]} actions; "
            "execute at most that many before asking again."
        )
    return chunk[:, :replan_steps], log_prob


def _row(observation: Observation, index: int, keep: bool) -> dict[str, Array]:
    if not keep:
        return {}
    return {key: np.array(item[index]) for key, item in observation.items() if key != TASK_KEY}


def _without_gaps(observation: Observation, begun: set[int], num_envs: int) -> Observation:
    """Show a policy a real observation in place of those of environments that never began."""
    if len(begun) == num_envs:
        return observation
    rows = [n if n in begun else min(begun) for n in range(num_envs)]
    return {key: [item[n] for n in rows] if isinstance(item, list) else item[rows] for key, item in observation.items()}


def _check_progress(episode: _Running, env: VecEnv, index: int) -> None:
    if episode.length == episode.decision[-1]:
        raise EnvError(
            f"{env.spec.id}: environment {index} executed no action of a chunk in {episode.start}, yet its episode had "
            "not ended before. An environment must execute at least one action until it ends."
        )
