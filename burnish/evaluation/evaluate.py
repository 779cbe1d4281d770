"""Run a policy on a fixed list of Starts and count what happened."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from burnish.core.contracts import Policy, VecEnv
from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.core.spec import Array, Observation, check_fit
from burnish.core.step import Start
from burnish.data.episodes import Episode, run_episodes
from burnish.evaluation.alarms import ActionRange, alarms
from burnish.evaluation.protocol import protocol_of
from burnish.evaluation.result import OWN_METRICS, Cost, EpisodeRow, EvaluationResult, Latency, aggregate


def evaluate(
    policy: Policy,
    env: VecEnv,
    starts: Sequence[Start],
    *,
    replan_steps: int,
    deterministic: bool = True,
    seed: int = 0,
    env_config: Mapping[str, Any] | None = None,
    description: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> EvaluationResult:
    """Run one episode from each Start.

    Args:
        policy: Acts in ``env``.
        env: N environments; N changes the speed and, where decoding is sampled, the draws, but not what is measured.
        starts: What to run, for example from :func:`burnish.core.step.evaluation_starts`.
        replan_steps: Actions executed of each chunk.
        deterministic: Whether the policy answers with its mode.
        seed: Of the policy's sampling and of the bootstrap intervals.
        env_config: Id and configuration of the environment, for the protocol.
        description: JSON values that name the policy, kept with the result.
        progress: Called as ``progress(episodes done, episodes in all, successes)`` after each episode.

    Raises:
        ConfigError: If there is no Start.
        SpecError: If the policy does not fit the environment.
    """
    if not starts:
        raise ConfigError(
            "An evaluation needs at least one Start, found none; see burnish.core.step.evaluation_starts."
        )
    check_fit(policy.spec, env.spec)
    act = TimedPolicy(policy, deterministic=deterministic, seed=seed)
    actions = ActionRange.empty(env.spec.action_dim)
    cpu, wall = _cpu_seconds(), time.perf_counter()
    rows: list[EpisodeRow] = []
    observations = 0
    for episode in run_episodes(act, env, starts, replan_steps=replan_steps):
        rows.append(_row(episode))
        actions.add(episode.action, env.spec.action)
        observations += len(episode.decision) + 1
        if progress is not None:
            progress(len(rows), len(starts), sum(row.success for row in rows))
    cost = Cost(
        env_steps=sum(row.length for row in rows),
        rendered_steps=observations if env.spec.image_keys else 0,
        cpu_seconds=_cpu_seconds() - cpu,
        wall_seconds=time.perf_counter() - wall,
    )
    rows = _in_order(rows, starts)
    specs = {**OWN_METRICS, **env.spec.metrics}
    return EvaluationResult(
        protocol=protocol_of(
            env.spec, starts, replan_steps=replan_steps, deterministic=deterministic, env_config=env_config
        ),
        metric_specs=specs,
        episodes=tuple(rows),
        metrics=aggregate(rows, specs, seed),
        cost=cost,
        latency=act.latency(env.num_envs),
        alarms=tuple(alarms(rows, specs, actions, env.spec.max_episode_steps)),
        seed=seed,
        policy=dict(description) if description else {"id": policy.spec.id},
    )


class TimedPolicy:
    """A policy as the function that :func:`burnish.data.episodes.run_episodes` wants, with its latency."""

    def __init__(self, policy: Policy, *, deterministic: bool, seed: int) -> None:
        """Take a policy.

        Args:
            policy: What is asked.
            deterministic: Whether it answers with its mode.
            seed: Of its sampling.
        """
        self._policy = policy
        self._deterministic = deterministic
        self._generator = stream(seed, "evaluate")
        self._milliseconds: list[float] = []

    def __call__(self, observation: Observation) -> Array:
        """Answer with action chunks (N, K, A)."""
        begin = time.perf_counter()
        sample = self._policy.act(observation, generator=self._generator, deterministic=self._deterministic)
        self._milliseconds.append(1e3 * (time.perf_counter() - begin))
        chunk: Array = sample.action_chunk
        return chunk

    def latency(self, num_envs: int) -> Latency:
        """Return percentiles over all answers."""
        p50, p99 = np.percentile(self._milliseconds, [50, 99])
        return Latency(float(p50), float(p99), len(self._milliseconds), num_envs)


def _row(episode: Episode) -> EpisodeRow:
    return EpisodeRow(
        start=episode.start,
        success=episode.success,
        return_=episode.return_,
        length=episode.length,
        terminated=episode.terminated,
        metrics=dict(episode.metrics),
    )


def _in_order(rows: Sequence[EpisodeRow], starts: Sequence[Start]) -> list[EpisodeRow]:
    waiting: dict[Start, list[EpisodeRow]] = {}
    for row in rows:
        waiting.setdefault(row.start, []).append(row)
    return [waiting[start].pop(0) for start in starts]


def _cpu_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
