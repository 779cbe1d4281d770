"""The fixed-rate loop beside the robot: observe, schedule, check, send, every ``control_dt``, under a watchdog.

Two clocks: in real time inference runs in a thread while the loop keeps its rate; in simulated time the loop runs as
fast as it can and inference takes a modelled latency. Without latency and interventions, simulated time executes
exactly the actions that evaluation executes.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from burnish.core.config import to_plain
from burnish.core.contracts import VecEnv
from burnish.core.errors import ConfigError
from burnish.core.spec import TASK_KEY, Array, Observation, check_fit, to_json
from burnish.core.step import Start
from burnish.deploy.chunking import ChunkScheduler, Tick
from burnish.deploy.chunking import Config as ChunkingConfig
from burnish.deploy.inference import Inference, SimulatedInference, ThreadInference, ask
from burnish.deploy.observations import ActingPolicy
from burnish.deploy.robot import Clock, EnvRobot, Outcome, RealClock, Robot, Sensed, SimulatedClock
from burnish.deploy.safety import Config as SafetyConfig
from burnish.deploy.safety import SafetyChain
from burnish.deploy.ticklog import TickLog

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Config:
    """How a policy drives a robot."""

    clock: Literal["real", "simulated"] = "simulated"
    """Wall time, or as fast as possible with modelled latency."""
    max_ticks: int = 0
    """Control ticks after which the run ends; 0 for no limit but the robot's own (a dry run: its episode length)."""
    latency_s: float = 0.0
    """Mean inference latency in simulated time [s]."""
    latency_jitter_s: float = 0.0
    """Half width of the uniform latency around it [s]."""
    wait_share: float = 0.5
    """Share of a tick that the loop waits for a chunk, in real time, when it has no planned action left."""
    on_late: Literal["hold", "stop"] = "hold"
    """Hold the last action, or stop, when a planned action or the loop itself is late."""
    max_late_s: float = 0.0
    """How late a tick may begin before it counts as late [s]; 0 for one control period."""
    max_hold_s: float = 0.5
    """How long the last action may be held in a row before the run stops [s]."""
    max_wait_s: float = 10.0
    """How long the first action may take before the run stops [s]."""
    max_observation_age_s: float = 0.2
    """An observation older than this stops the run [s]."""
    warm_up: int = 2
    """Inferences before the first tick, not counted in the figures."""
    dry_run: bool = False
    """Compute, check and log everything, and send nothing."""
    deterministic: bool = True
    """Take the most likely chunk instead of a sample."""
    seed: int = 0
    """Seed of samples and of modelled latency."""
    chunking: ChunkingConfig = field(default_factory=ChunkingConfig)
    """How chunks follow each other."""
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    """Limits beyond those of the action's spec."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("max_ticks", "latency_s", "latency_jitter_s", "max_late_s", "warm_up"):
            if getattr(self, name) < 0:
                raise ConfigError(f"runtime: {name} must not be negative, found {getattr(self, name)}.")
        for name in ("max_hold_s", "max_wait_s", "max_observation_age_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"runtime: {name} must be positive, found {getattr(self, name)}.")
        if not 0 <= self.wait_share < 1:
            raise ConfigError(f"runtime: wait_share must be within [0, 1), found {self.wait_share}.")
        if self.clock == "real" and (self.latency_s or self.latency_jitter_s):
            raise ConfigError("runtime: latency is modelled in simulated time only; in real time it is what it is.")


@dataclass(frozen=True)
class RuntimeReport:
    """How a run went."""

    clock: str
    control_dt: float
    ticks: int
    """Control ticks."""
    kinds: Mapping[str, int]
    """Ticks by kind: planned, held, waiting."""
    late_ticks: int
    """Ticks that began later than allowed."""
    inference_ms: Array
    """(R,) float64, measured computing time of each inference after warm-up."""
    jitter_ms: Array
    """(ticks - 1,) float64, difference of each period from ``control_dt``; zeros in simulated time."""
    delays: Array
    """(R,) int64, index at which each chunk took over."""
    interventions: Mapping[str, int]
    """Safety interventions by kind."""
    stop: str
    """Why the run was stopped; "" if it ended by itself."""
    return_: float
    """Undiscounted sum of rewards, where the robot gives any."""
    terminated: bool
    truncated: bool
    metrics: Mapping[str, float]
    action: Array
    """(T, A) float32, what was sent; in a dry run, what would have been."""

    def text(self) -> str:
        """Return the report for a terminal."""
        kinds = ", ".join(f"{count} {name}" for name, count in self.kinds.items())
        lines = [
            f"{self.ticks} ticks at {1 / self.control_dt:.4g} Hz, {self.clock} time: {kinds}; {self.late_ticks} late",
            f"inference   {_quantiles(self.inference_ms)} over {len(self.inference_ms)}",
            f"jitter      {_quantiles(self.jitter_ms)}",
            f"chunk delay {', '.join(f'{d}: {n}x' for d, n in sorted(Counter(self.delays.tolist()).items())) or '-'}",
            f"safety      {', '.join(f'{kind}: {n}x' for kind, n in self.interventions.items()) or 'no intervention'}",
            f"ended       {self._end()}, return {self.return_:.4g}",
        ]
        lines.extend(f"  {name:<28}{value:.4g}" for name, value in self.metrics.items())
        return "\n".join(lines)

    def _end(self) -> str:
        if self.stop:
            return f"STOPPED: {self.stop}"
        return "terminated" if self.terminated else "truncated" if self.truncated else "tick limit"


def run_env(
    policy: ActingPolicy,
    env: VecEnv,
    start: Start,
    config: Config,
    *,
    log: Path | None = None,
    on_tick: Callable[[Mapping[str, Any]], None] | None = None,
) -> RuntimeReport:
    """Drive one episode of an environment (``num_envs`` = 1); see :func:`run`."""
    clock: Clock = RealClock() if config.clock == "real" else SimulatedClock()
    robot = EnvRobot(env, start, clock)
    return run(policy, robot, config, clock=clock, log=log, header={"start": to_plain(start)}, on_tick=on_tick)


def run(
    policy: ActingPolicy,
    robot: Robot,
    config: Config,
    *,
    clock: Clock,
    log: Path | None = None,
    header: Mapping[str, Any] | None = None,
    on_tick: Callable[[Mapping[str, Any]], None] | None = None,
) -> RuntimeReport:
    """Drive a robot until it ends, a limit is reached, something is wrong, or the operator presses Ctrl-C.

    Args:
        policy: What answers.
        robot: What is driven; its spec gives control rate and limits.
        config: How.
        clock: The same clock that stamps the robot's observations.
        log: Empty folder for the tick log.
        header: JSON values for the log's first line.
        on_tick: Called with each row of the log.

    Raises:
        SpecError: If policy and robot do not fit.
        ConfigError: If the configuration does not fit them.
    """
    check_fit(replace(policy.spec, critic_observation={}), robot.spec)
    loop = _Loop(policy, robot, config, clock)
    for number in range(config.warm_up):
        ask(policy, number, loop.public(robot.observe()), config.seed, config.deterministic)
    ticks = TickLog(log, {**loop.header(), **(header or {})}) if log is not None else None
    try:
        loop.run(ticks, on_tick)
    finally:
        loop.inference.close()
        if ticks is not None:
            ticks.close()
    return loop.report()


class _Loop:
    """State of one run."""

    def __init__(self, policy: ActingPolicy, robot: Robot, config: Config, clock: Clock) -> None:
        spec = robot.spec
        self.policy, self.robot, self.config, self.clock = policy, robot, config, clock
        self.dt = spec.control_dt
        self.scheduler = ChunkScheduler(config.chunking, spec.action, policy.spec.chunk_steps)
        self.chain = SafetyChain(config.safety, spec.action, self.dt)
        seed, deterministic = config.seed, config.deterministic
        self.inference: Inference = (
            SimulatedInference(
                policy,
                clock,
                seed=seed,
                deterministic=deterministic,
                latency_s=config.latency_s,
                jitter_s=config.latency_jitter_s,
            )
            if clock.simulated
            else ThreadInference(policy, seed=seed, deterministic=deterministic)
        )
        self.kinds: Counter[str] = Counter()
        self.moments: list[float] = []
        self.inference_ms: list[float] = []
        self.delays: list[int] = []
        self.sent: list[Array] = []
        self.late_ticks = 0
        self.decisions = 0
        self.starved_s = 0.0
        self.return_ = 0.0
        self.outcome = Outcome()
        self.stop = ""

    def header(self) -> dict[str, Any]:
        return {
            "seed": self.config.seed,
            "deterministic": self.config.deterministic,
            "control_dt": self.dt,
            "config": to_plain(self.config),
            "policy": to_json(self.policy.spec),
            "robot": self.robot.spec.id,
        }

    def run(self, log: TickLog | None, on_tick: Callable[[Mapping[str, Any]], None] | None) -> None:
        deadline = self.clock.now()
        limit = self.config.max_ticks or (self.robot.spec.max_episode_steps if self.config.dry_run else 0)
        try:
            while not self.stop and not self.outcome.terminated and not self.outcome.truncated:
                if limit and len(self.moments) >= limit:
                    break
                self.clock.sleep_until(deadline)
                row = self.tick(deadline, log)
                deadline = row["deadline"] + self.dt
                if log is not None:
                    log.tick(row)
                if on_tick is not None:
                    on_tick(row)
        except KeyboardInterrupt:
            self.stop = "interrupted by the operator"
        except BaseException:
            self.robot.stop(self.chain.resting_action())
            raise
        if self.stop:
            _LOG.warning("stopped: %s", self.stop)
            with suppress(KeyboardInterrupt):
                self.robot.stop(self.chain.stop(self.stop).action)
            if log is not None:
                log.tick({"stop": self.stop})

    def tick(self, deadline: float, log: TickLog | None) -> dict[str, Any]:
        """Do one control tick and return its row; ``deadline`` in it is when the tick should have begun."""
        begin = self.clock.now()
        self.moments.append(begin)
        late = begin - deadline
        row: dict[str, Any] = {"tick": len(self.moments) - 1, "time_s": begin - self.moments[0], "late_s": late}
        if late > (self.config.max_late_s or self.dt):
            self.late_ticks += 1
            deadline = begin  # go on from here; catching up would send actions in a burst
            if self.config.on_late == "stop":
                self.stop = f"tick {row['tick']} began {late:.3g} s late"
        row["deadline"] = deadline
        sensed = self.robot.observe()
        self.check_observation(sensed, row)
        if not self.stop:
            self.infer(sensed, begin, row, log)
        tick = self.scheduler.next() if not self.stop else None
        if tick is not None:
            self.watch(tick)
            self.kinds[tick.kind] += 1
            row |= {"kind": tick.kind, "chunk": tick.chunk, "index": tick.index}
            if not self.stop and tick.action is not None:
                self.act(tick.action, sensed.observation, row)
        return row

    def check_observation(self, sensed: Sensed, row: dict[str, Any]) -> None:
        row["age_s"] = age = self.clock.now() - sensed.time
        if age > self.config.max_observation_age_s:
            self.stop = f"the observation is {age:.3g} s old; the limit is {self.config.max_observation_age_s:.3g} s"
        for key in self.policy.spec.observation:
            value = sensed.observation.get(key)
            if value is None:
                self.stop = f"the observation has no '{key}'; it has {', '.join(sorted(sensed.observation))}"
            elif value.dtype.kind == "f" and not np.isfinite(value).all():
                self.stop = f"the observation '{key}' is not finite"

    def infer(self, sensed: Sensed, begin: float, row: dict[str, Any], log: TickLog | None) -> None:
        """Ask for a chunk if one is wanted, and take what has arrived."""
        try:
            self.take(0.0, row, log)
            if self.scheduler.wants_chunk():
                self.scheduler.ask()
                row["decision"] = self.decisions
                self.inference.submit(self.decisions, self.public(sensed))
                self.decisions += 1
            budget = begin + self.config.wait_share * self.dt - self.clock.now()
            self.take(0.0 if self.scheduler.has_action() else budget, row, log)
        except Exception as error:
            _LOG.exception("inference failed")
            self.stop = f"the policy failed: {type(error).__name__}: {error}"

    def take(self, wait_s: float, row: dict[str, Any], log: TickLog | None) -> None:
        answer = self.inference.poll(wait_s)
        if answer is None:
            return
        delay = self.scheduler.arrive(answer.chunk)
        self.delays.append(delay)
        self.inference_ms.append(answer.seconds * 1e3)
        row |= {"arrived": answer.number, "delay": delay, "infer_ms": answer.seconds * 1e3}
        if log is not None:
            log.decision(answer.number, answer.observation, answer.chunk)

    def watch(self, tick: Tick) -> None:
        """Stop when no planned action came for too long."""
        if tick.kind == "plan":
            self.starved_s = 0.0
            return
        self.starved_s += self.dt
        limit = self.config.max_hold_s if tick.kind == "hold" else self.config.max_wait_s
        if self.starved_s > limit + 1e-9:
            self.stop = f"no new action for {self.starved_s:.3g} s; the limit is {limit:.3g} s"
        elif tick.kind == "hold" and self.config.on_late == "stop":
            self.stop = "the next chunk is late"

    def act(self, action: Array, observation: Observation, row: dict[str, Any]) -> None:
        verdict = self.chain.apply(action, observation)
        row |= {"action": action, "sent": verdict.action}
        if verdict.interventions:
            row["interventions"] = [item.to_json() for item in verdict.interventions]
        if verdict.stop:
            self.stop = verdict.stop
            return
        self.sent.append(verdict.action)
        if self.config.dry_run:
            return
        self.outcome = self.robot.send(verdict.action)
        self.return_ += self.outcome.reward
        row["reward"] = self.outcome.reward

    def public(self, sensed: Sensed) -> Observation:
        """Return what the policy reads."""
        keys = [*self.policy.spec.observation, TASK_KEY]
        return {key: sensed.observation[key] for key in keys if key in sensed.observation}

    def report(self) -> RuntimeReport:
        shape = self.robot.spec.action.shape
        return RuntimeReport(
            clock="simulated" if self.clock.simulated else "real",
            control_dt=self.dt,
            ticks=len(self.moments),
            kinds=dict(self.kinds),
            late_ticks=self.late_ticks,
            inference_ms=np.asarray(self.inference_ms, float),
            jitter_ms=np.abs(np.diff(self.moments) - self.dt) * 1e3,
            delays=np.asarray(self.delays, np.int64),
            interventions=dict(self.chain.counts),
            stop=self.stop,
            return_=self.return_,
            terminated=self.outcome.terminated,
            truncated=self.outcome.truncated,
            metrics=dict(self.outcome.metrics),
            action=np.stack(self.sent) if self.sent else np.zeros((0, *shape), np.float32),
        )


def _quantiles(values: Array) -> str:
    if not len(values):
        return "not measured"
    return f"p50 {np.quantile(values, 0.5):.2f} ms, p99 {np.quantile(values, 0.99):.2f} ms"
