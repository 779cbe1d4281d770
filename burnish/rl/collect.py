"""Policy and environments to a Rollout; owns chunk execution and resets.

Two ways to collect: a stream of T chunks per environment, in which episodes go on from one rollout to the next, or a
number of whole episodes. :meth:`Collector.interrupt` is what makes a resumed run equal to an uninterrupted one without
saving simulator states: at a checkpoint both give up running episodes and begin them again from their Starts.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict
from typing import Any

import numpy as np

from burnish.core.contracts import EpisodeSummary, Policy, Sampler, VecEnv
from burnish.core.errors import ConfigError, EnvError
from burnish.core.spec import TASK_KEY, Array, Observation
from burnish.core.step import ActionSample, Start, Step
from burnish.data.rollout import Rollout
from burnish.rl.replay import checksum


class Collector:
    """Persistent environments and episodes, and the buffers of one rollout.

    A Rollout holds views of these buffers: it is valid until the next ``collect``.
    """

    def __init__(self, env: VecEnv, policy: Policy, *, replan_steps: int = 0, extra_keys: Sequence[str] = ()) -> None:
        """Take over the environments.

        Args:
            env: N environments.
            policy: Tells which observation keys are stored, and the chunk length K.
            replan_steps: How many actions of a chunk are offered; 0 for all K.
            extra_keys: Observation keys to store besides those that the policy and its critic read.
        """
        spec = policy.spec
        if not 0 <= replan_steps <= spec.chunk_steps:
            raise ConfigError(
                f"replan_steps must be within [1, {spec.chunk_steps}] (the chunk length of policy '{spec.id}'), or 0 "
                f"for the whole chunk; found {replan_steps}."
            )
        task = (TASK_KEY,) if spec.reads_task else ()
        self._acting_keys = (*spec.observation, *task)
        self._stored_keys = tuple(dict.fromkeys((*self._acting_keys, *spec.critic_observation, *extra_keys)))
        self._stored_names = {f"observation/{key}": key for key in self._stored_keys}
        unknown = [key for key in self._stored_keys if key != TASK_KEY and key not in env.spec.observation]
        if unknown:
            raise ConfigError(
                f"Environment '{env.spec.id}' gives no {unknown}. It gives: {', '.join(env.spec.observation)}."
            )
        self._env = env
        self._chunk_steps = spec.chunk_steps
        self._replan_steps = replan_steps or spec.chunk_steps
        self._num_envs = env.num_envs
        self._start: list[Start | None] = [None] * env.num_envs
        self._running = np.zeros(env.num_envs, bool)
        self._episode: Array = np.full(env.num_envs, -1, np.int64)
        self._group: Array = np.full(env.num_envs, -1, np.int64)
        self._length = np.zeros(env.num_envs, np.int64)
        self._return = np.zeros(env.num_envs, np.float64)
        self._next_episode = 0
        self._next_group = 0
        self._latest: Start | None = None
        self._observation: Observation = {}
        self._buffer: dict[str, Array] = {}
        self.checksums: list[dict[str, int]] = []
        """Per chunk, a checksum of every array as the policy saw or answered it; explains a failed replay."""

    def collect_chunks(
        self, policy: Policy, sampler: Sampler, chunks: int, *, generator: np.random.Generator
    ) -> Rollout:
        """Return T = ``chunks`` decisions of every environment; episodes go on in the next call."""
        self._begin(sampler, self._num_envs)
        run = _Run()
        for t in range(chunks):
            step = self._advance(policy, generator, t, chunks)
            ended = step.done
            final = t == chunks - 1
            some = ended.any()
            if some or final:
                self._keep_last(run, step, np.ones_like(ended) if final else ended, t)
            if some:
                self._finish(run, step, ended)
                if not final:
                    self._reset(sampler, np.flatnonzero(ended))
        return self._rollout(run, chunks)

    def collect_episodes(
        self, policy: Policy, sampler: Sampler, episodes: int, *, generator: np.random.Generator
    ) -> Rollout:
        """Return that many whole episodes; an environment without another Start idles with ``executed`` 0."""
        if self._running.any():
            raise EnvError("Whole episodes cannot be collected while others run; use one way of collecting per run.")
        self._begin(sampler, episodes)
        issued = min(episodes, self._num_envs)
        per_episode = -(-self._env.spec.max_episode_steps // self._replan_steps)
        capacity = per_episode * -(-episodes // self._num_envs)
        run = _Run()
        t = 0
        while self._running.any():
            if t == capacity:
                capacity *= 2
            step = self._advance(policy, generator, t, capacity)
            ended = step.done & self._running
            if ended.any():
                self._keep_last(run, step, ended, t)
                self._finish(run, step, ended)
                again = np.flatnonzero(ended)[: episodes - issued]
                if len(again):
                    self._reset(sampler, again)
                    issued += len(again)
            t += 1
        return self._rollout(run, t)

    def interrupt(self) -> None:
        """Give up running episodes: the next ``collect`` begins them again from their Starts."""
        self._running[:] = False
        self._observation = {}

    def state_dict(self) -> dict[str, Any]:
        """Return Starts, numbers and counters as JSON values; call :meth:`interrupt` beside it."""
        return {
            "starts": [None if start is None else asdict(start) for start in self._start],
            "episode": self._episode.tolist(),
            "group": self._group.tolist(),
            "next_episode": self._next_episode,
            "next_group": self._next_group,
            "latest": None if self._latest is None else asdict(self._latest),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            ConfigError: If the number of environments differs.
        """
        if len(state["starts"]) != self._num_envs:
            raise ConfigError(
                f"The checkpoint was collected with {len(state['starts'])} environments, found {self._num_envs}; "
                "a run can only be resumed with as many."
            )
        self.interrupt()
        self._start = [None if item is None else Start(**item) for item in state["starts"]]
        self._episode = np.array(state["episode"], np.int64)
        self._group = np.array(state["group"], np.int64)
        self._next_episode = int(state["next_episode"])
        self._next_group = int(state["next_group"])
        self._latest = None if state["latest"] is None else Start(**state["latest"])

    def _begin(self, sampler: Sampler, limit: int) -> None:
        """Give every idle environment, up to ``limit``, its interrupted Start or a new one."""
        self.checksums = []
        idle = np.flatnonzero(~self._running)[:limit]
        fresh = [n for n in idle.tolist() if self._start[n] is None]
        self._assign(sampler, fresh)
        if len(idle) == 0:
            return
        if len(idle) < self._num_envs and not self._observation:
            # Fewer episodes than environments: the others need some state to be stepped beside them.
            first = self._start[int(idle[0])]
            starts = [start or first for start in self._start]
            self._observation = self._env.reset([start for start in starts if start is not None])
        else:
            starts = [self._start[n] for n in idle.tolist()]
            self._observation = self._env.reset([start for start in starts if start is not None], idle)
        self._mark_running(idle)

    def _reset(self, sampler: Sampler, where: Array) -> None:
        starts = self._assign(sampler, where.tolist())
        self._observation = self._env.reset(starts, where)
        self._mark_running(where)

    def _mark_running(self, where: Array) -> None:
        self._running[where] = True
        self._length[where] = 0
        self._return[where] = 0.0

    def _assign(self, sampler: Sampler, where: list[int]) -> list[Start]:
        starts = sampler.next(len(where)) if where else []
        for n, start in zip(where, starts, strict=True):
            if start != self._latest:
                self._latest = start
                self._next_group += 1
            self._start[n] = start
            self._group[n] = self._next_group - 1
            self._episode[n] = self._next_episode
            self._next_episode += 1
        return starts

    def _advance(self, policy: Policy, generator: np.random.Generator, t: int, capacity: int) -> Step:
        """Act, step, and write row ``t`` of the buffers."""
        acting = {key: self._observation[key] for key in self._acting_keys}
        sample = policy.act(acting, generator=generator)
        arrays = {name: self._observation[key] for name, key in self._stored_names.items()}
        arrays["action_chunk"], arrays["log_prob"] = sample.action_chunk, sample.log_prob
        for key, item in sample.trace.items():
            arrays[f"trace/{key}"] = item
        self._check(sample)
        self.checksums.append({key: checksum(item) for key, item in arrays.items()})
        for key, item in arrays.items():
            self._write(key, item, t, capacity)
        step = self._env.step(sample.action_chunk[:, : self._replan_steps])
        executed = np.where(self._running, step.executed, 0)
        stuck = self._running & (executed < 1)
        if stuck.any():
            raise EnvError(
                f"{self._env.spec.id}: environment {stuck.argmax()} executed no action of a chunk while it was running."
            )
        reward = step.reward
        if self._replan_steps < self._chunk_steps or not self._running.all():
            reward = np.zeros((self._num_envs, self._chunk_steps), np.float32)
            reward[:, : self._replan_steps] = step.reward
            reward[~self._running] = 0.0
        outcome = {
            "reward": reward,
            "executed": executed,
            "terminated": step.terminated & self._running,
            "truncated": step.truncated & self._running,
            "episode": self._episode,
            "group": self._group,
        }
        for key, item in outcome.items():
            self._write(key, item, t, capacity)
        self._length += executed
        self._return += reward.sum(1)
        self._observation = step.observation
        return step

    def _check(self, sample: ActionSample) -> None:
        wanted = (self._num_envs, self._chunk_steps, self._env.spec.action_dim)
        if sample.action_chunk.shape != wanted:
            raise EnvError(f"The policy answered a chunk of shape {sample.action_chunk.shape}, expected {wanted}.")

    def _write(self, key: str, item: Any, t: int, capacity: int) -> None:
        buffer = self._buffer.get(key)
        if isinstance(item, list):
            item = np.array(item, object)
        if buffer is None or len(buffer) < capacity:
            grown = np.empty((capacity, *item.shape), item.dtype)
            if buffer is not None:
                grown[:t] = buffer[:t]
            self._buffer[key] = buffer = grown
        buffer[t] = item

    def _keep_last(self, run: "_Run", step: Step, where: Array, t: int) -> None:
        for n in where.nonzero()[0].tolist():
            run.last_index.append((t, n))
            for key in self._stored_keys:
                run.last.setdefault(key, []).append(copy(step.observation[key][n]))

    def _finish(self, run: "_Run", step: Step, ended: Array) -> None:
        for n in np.flatnonzero(ended).tolist():
            start = self._start[n]
            assert start is not None
            metrics = {name: float(item[n]) for name, item in step.metrics.items()}
            run.episodes.append(
                EpisodeSummary(
                    start=start,
                    length=int(self._length[n]),
                    return_=float(self._return[n]),
                    success=metrics.get("success", 0.0) > 0.5,
                    metrics=metrics,
                )
            )
            run.numbers.append(int(self._episode[n]))
            self._start[n] = None
            self._running[n] = False

    def _rollout(self, run: "_Run", length: int) -> Rollout:
        def rows(prefix: str) -> dict[str, Any]:
            return {
                key.removeprefix(prefix): self._buffer[key][:length] for key in self._buffer if key.startswith(prefix)
            }

        observation = rows("observation/")
        if TASK_KEY in observation:
            observation[TASK_KEY] = observation[TASK_KEY].tolist()
        return Rollout(
            observation=observation,
            action_chunk=self._buffer["action_chunk"][:length],
            trace=rows("trace/"),
            log_prob=self._buffer["log_prob"][:length],
            reward=self._buffer["reward"][:length],
            executed=self._buffer["executed"][:length],
            terminated=self._buffer["terminated"][:length],
            truncated=self._buffer["truncated"][:length],
            last_observation={
                key: list(items) if key == TASK_KEY else np.stack(items) for key, items in run.last.items()
            },
            last_index=np.array(run.last_index, np.int64).reshape(-1, 2),
            group=self._buffer["group"][:length],
            episode=self._buffer["episode"][:length],
            episodes=tuple(run.episodes),
            episode_numbers=tuple(run.numbers),
        )


class _Run:
    """What one ``collect`` gathers besides the buffers."""

    def __init__(self) -> None:
        self.last: dict[str, list[Any]] = {}
        self.last_index: list[tuple[int, int]] = []
        self.episodes: list[EpisodeSummary] = []
        self.numbers: list[int] = []
