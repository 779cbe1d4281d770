"""The fixed-rate loop beside the robot: observe, schedule, check, send, every ``control_dt``, under a watchdog.

Two clocks: in real time inference runs in a thread while the loop keeps its rate; in simulated time the loop runs as
fast as it can and inference takes a modelled latency. Without latency and interventions, simulated time executes
exactly the actions that evaluation executes. What happens within a tick is in :mod:`burnish.deploy.loop`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from burnish.core.config import to_plain
from burnish.core.contracts import VecEnv
from burnish.core.errors import ConfigError
from burnish.core.spec import check_fit
from burnish.core.step import Start
from burnish.deploy.cameras import Config as CamerasConfig
from burnish.deploy.chunking import Config as ChunkingConfig
from burnish.deploy.deadman import Config as DeadmanConfig
from burnish.deploy.deadman import Deadman
from burnish.deploy.inference import ask
from burnish.deploy.loop import Loop
from burnish.deploy.observations import ActingPolicy
from burnish.deploy.realtime import Config as InpaintConfig
from burnish.deploy.robot import Clock, EnvRobot, Operator, RealClock, Robot, SimulatedClock
from burnish.deploy.runreport import RuntimeReport
from burnish.deploy.safety import Config as SafetyConfig
from burnish.deploy.ticklog import TickLog

__all__ = ["Config", "RuntimeReport", "run", "run_env"]


@dataclass(frozen=True)
class Config:
    """How a policy drives a robot."""

    clock: Literal["real", "simulated"] = "simulated"
    """Wall time, or as fast as possible with modelled latency."""
    max_ticks: int = 0
    """Control ticks after which the run ends; 0 for no limit but the robot's own (a dry or shadow run: its episode
    length)."""
    latency_s: float = 0.0
    """Mean inference latency in simulated time [s]."""
    latency_jitter_s: float = 0.0
    """Half width of the uniform latency around it [s]."""
    wait_share: float = 0.5
    """Share of a tick that the loop waits for a chunk, in real time, when it has no planned action left."""
    on_late: Literal["hold", "slow", "stop"] = "hold"
    """When a planned action is late: hold the last one; slow down evenly over the actions that are left, and then hold;
    or stop, as soon as an action or the loop itself is late."""
    slow_steps: int = 4
    """With ``on_late`` slow: planned actions over which the robot comes to rest, in twice as many ticks."""
    max_late_s: float = 0.0
    """How late a tick may begin before it counts as late [s]; 0 for one control period."""
    max_hold_s: float = 0.5
    """How long the last action may be held in a row before the run stops [s]."""
    max_wait_s: float = 10.0
    """How long the first action may take before the run stops [s]."""
    max_observation_age_s: float = 0.2
    """An observation older than this stops the run [s]."""
    max_stall_s: float = 2.0
    """In real time: a call to the robot that takes longer is answered by its ``stop``, from another thread, and ends
    the run when it comes back [s]; 0 for never."""
    warm_up: int = 2
    """Inferences before the first tick, not counted in the figures."""
    dry_run: bool = False
    """Compute, check and log everything, and send nothing."""
    shadow: bool = False
    """As a dry run, beside somebody who drives: a robot that reports what is done to it, action by action. The policy's
    checked action is compared with that at every tick; what would have stopped the run is only counted."""
    deterministic: bool = True
    """Take the most likely chunk instead of a sample."""
    seed: int = 0
    """Seed of samples and of modelled latency."""
    chunking: ChunkingConfig = field(default_factory=ChunkingConfig)
    """How chunks follow each other."""
    inpaint: InpaintConfig = field(default_factory=InpaintConfig)
    """Real-time chunking, for policies that can."""
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    """Limits beyond those of the action's spec."""
    cameras: CamerasConfig = field(default_factory=CamerasConfig)
    """Old and frozen pictures."""
    deadman: DeadmanConfig = field(default_factory=DeadmanConfig)
    """A switch that somebody must confirm again and again."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("max_ticks", "latency_s", "latency_jitter_s", "max_late_s", "max_stall_s", "warm_up"):
            if getattr(self, name) < 0:
                raise ConfigError(f"runtime: {name} must not be negative, found {getattr(self, name)}.")
        for name in ("max_hold_s", "max_wait_s", "max_observation_age_s", "slow_steps"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"runtime: {name} must be positive, found {getattr(self, name)}.")
        if not 0 <= self.wait_share < 1:
            raise ConfigError(f"runtime: wait_share must be within [0, 1), found {self.wait_share}.")
        if self.clock == "real" and (self.latency_s or self.latency_jitter_s):
            raise ConfigError("runtime: latency is modelled in simulated time only; in real time it is what it is.")


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
    deadman: Deadman | None = None,
    operator: Operator | None = None,
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
        deadman: A switch in place of that of ``config.deadman``; closed at the end.
        operator: A human who may take over; a robot may report one by itself.

    Raises:
        SpecError: If policy and robot do not fit.
        ConfigError: If the configuration does not fit them.
    """
    check_fit(replace(policy.spec, critic_observation={}), robot.spec)
    switch = deadman or config.deadman.build()
    try:
        loop = Loop(policy, robot, config, clock, switch, operator)
        for number in range(config.warm_up):
            ask(policy, number, loop.public(robot.observe()), config.seed, config.deterministic)
        ticks = TickLog(log, {**loop.header(), **(header or {})}) if log is not None else None
        try:
            loop.run(ticks, on_tick)
        finally:
            loop.close()
            if ticks is not None:
                ticks.close()
        return loop.report()
    finally:
        if switch is not None:
            switch.close()
