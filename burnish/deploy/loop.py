"""What the runtime does in one control tick, and how it ends."""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.core.config import to_plain
from burnish.core.errors import ConfigError
from burnish.core.spec import TASK_KEY, Array, Observation, to_json
from burnish.deploy.asking import Asking
from burnish.deploy.cameras import CameraWatch
from burnish.deploy.chunking import ChunkScheduler, Tick
from burnish.deploy.deadman import Deadman, DeadmanWatch
from burnish.deploy.interventions import Kind
from burnish.deploy.observations import ActingPolicy
from burnish.deploy.robot import Clock, Operator, Outcome, Robot, Sensed
from burnish.deploy.runreport import RuntimeReport, Tally
from burnish.deploy.safety import SafetyChain
from burnish.deploy.ticklog import TickLog
from burnish.deploy.watch import StallWatch, observation_problem

if TYPE_CHECKING:
    from burnish.deploy.runtime import Config

_LOG = logging.getLogger(__name__)

type Row = dict[str, Any]
"""What is logged of one tick."""


class Loop:
    """State of one run."""

    def __init__(
        self,
        policy: ActingPolicy,
        robot: Robot,
        config: "Config",
        clock: Clock,
        deadman: Deadman | None,
        operator: Operator | None,
    ) -> None:
        """Prepare; nothing is asked or sent yet.

        Args:
            policy: What answers.
            robot: What is driven.
            config: How.
            clock: The clock that stamps the robot's observations.
            deadman: Who must confirm.
            operator: Who may take over.

        Raises:
            ConfigError: If the configuration does not fit policy and robot.
        """
        spec = robot.spec
        self.policy, self.robot, self.config, self.clock = policy, robot, config, clock
        self.dt = spec.control_dt
        self.drives = not (config.dry_run or config.shadow)
        self.chain = SafetyChain(config.safety, spec.action, self.dt)
        self.scheduler = ChunkScheduler(
            config.chunking,
            spec.action,
            policy.spec.chunk_steps,
            slow_steps=config.slow_steps if config.on_late == "slow" else 0,
            slow_scales=not self.chain.holds,
        )
        self.cameras = CameraWatch(
            config.cameras,
            policy.spec,
            self.dt,
            default_age_s=config.max_observation_age_s,
            simulated=clock.simulated,
        )
        self.operator = operator
        self.deadman = DeadmanWatch(deadman, config.deadman.timeout_s)
        self.asking = Asking(policy, self.scheduler, config, clock, self.dt)
        self.stalls = None
        if not clock.simulated and config.max_stall_s and self.drives:
            self.stalls = StallWatch(config.max_stall_s, self._stalled)
        self.log: TickLog | None = None
        self.log_lock = threading.Lock()
        self.tally = Tally()
        self.travelled = np.zeros(spec.action.shape)
        self.paused, self.anew = "", False
        self.starved_s = 0.0
        self.outcome = Outcome()
        self.stop = ""
        self.stalled = False

    def header(self) -> dict[str, Any]:
        """Return the first line of the log."""
        return {
            "seed": self.config.seed,
            "deterministic": self.config.deterministic,
            "control_dt": self.dt,
            "config": to_plain(self.config),
            "policy": to_json(self.policy.spec),
            "robot": self.robot.spec.id,
        }

    def run(self, log: TickLog | None, on_tick: Callable[[Mapping[str, Any]], None] | None) -> None:
        """Do tick after tick until something ends the run, and bring the robot to rest."""
        self.log = log
        deadline = self.clock.now()
        no_end = self.config.dry_run or self.config.shadow
        limit = self.config.max_ticks or (self.robot.spec.max_episode_steps if no_end else 0)
        try:
            while not self.stop and not self.outcome.terminated and not self.outcome.truncated:
                if limit and len(self.tally.moments) >= limit:
                    break
                self.clock.sleep_until(deadline)
                row = self.tick(deadline)
                deadline = row["deadline"] + self.dt
                self.write(row)
                if on_tick is not None:
                    on_tick(row)
        except KeyboardInterrupt:
            self.stop = "interrupted by the operator"
        except BaseException as error:
            self.stop = f"{type(error).__name__}: {error}"
            self.end_at_once()
            raise
        if self.stop:
            self.come_to_rest(deadline)

    def close(self) -> None:
        """Let go of threads."""
        self.asking.close()
        if self.stalls is not None:
            self.stalls.close()

    def tick(self, deadline: float) -> Row:
        """Do one control tick and return its row; ``deadline`` in it is when the tick should have begun."""
        begin = self.clock.now()
        self.tally.moments.append(begin)
        late = begin - deadline
        row: Row = {"tick": len(self.tally.moments) - 1, "time_s": begin - self.tally.moments[0], "late_s": late}
        if late > (self.config.max_late_s or self.dt):
            self.tally.late_ticks += 1
            deadline = begin  # go on from here; catching up would send actions in a burst
            if self.config.on_late == "stop":
                self.halt(f"tick {row['tick']} began {late:.3g} s late", row)
        row["deadline"] = deadline
        with self.stalls.watching("observe") if self.stalls else nullcontext():
            sensed = self.robot.observe()
        usable = self.check_observation(sensed, row)
        allowed = self.deadman.allows(begin)
        if self.stop:
            return row
        human = None if self.config.shadow else self.human_action(sensed)
        if human is not None:
            self.pause("human", row)
            self.act("human", human, sensed.observation, row)
        elif not allowed:
            self.pause("deadman", row)
            self.hold(row)
        elif usable:
            self.resume(row)
            self.follow_policy(sensed, begin, row)
        if self.config.shadow:
            self.compare(sensed, row)
        return row

    def check_observation(self, sensed: Sensed, row: Row) -> bool:
        """Return whether an observation is fresh, complete, finite and alive; halt if not."""
        now = self.clock.now()
        row["age_s"] = now - sensed.time
        kind: Kind = "robot"
        problem = observation_problem(sensed, self.policy.spec, now, self.config.max_observation_age_s)
        if not problem:
            problem = self.cameras.problem(sensed, now, self.position(sensed.observation))
            kind = "camera"
        if problem:
            self.halt(problem, row, kind)
        return not problem

    def position(self, observation: Observation) -> Array:
        """Return where the robot is, to see whether it moves: measured, or as far as it was told to go."""
        measured = self.chain.measured(observation) if self.cameras.needs_position else None
        return self.travelled if measured is None else measured

    def human_action(self, sensed: Sensed) -> Array | None:
        """Return what a human who has taken over wants, (A,); None where nobody has."""
        if sensed.intervention:
            if sensed.action is None:
                raise ConfigError("The robot reports an intervention without an action; Sensed.action must hold it.")
            return sensed.action
        return self.operator(sensed) if self.operator is not None else None

    def pause(self, why: str, row: Row) -> None:
        """Take the robot from the policy: its plan, and what it computes now, are of the past."""
        if self.paused != why:
            self.asking.discard()
            self.starved_s = 0.0
            self.tally.takeovers += why == "human"
            row["event"] = f"{why} begins"
            _LOG.warning("tick %d: %s takes the robot from the policy", row["tick"], why)
        self.paused = why

    def resume(self, row: Row) -> None:
        """Give it back: the policy plans anew from where the robot is, and what was sent last is held until then."""
        if not self.paused:
            return
        row["event"] = f"{self.paused} ends"
        self.scheduler.reset(self.chain.resting_action() if self.tally.sent else None)
        self.paused, self.starved_s, self.anew = "", 0.0, True

    def hold(self, row: Row) -> None:
        """Come to rest, one tick of it, and stop after ``max_hold_s``."""
        self.tally.kinds["deadman"] += 1
        row["kind"] = "deadman"
        self.starved_s += self.dt
        if self.tally.sent:
            self.send(self.chain.brake(), row)
            if self.starved_s > self.config.max_hold_s + 1e-9:
                reason = (
                    f"nobody has confirmed the dead-man's switch for {self.config.deadman.timeout_s:.3g} s and more"
                )
                self.halt(reason, row, "deadman")
        elif self.starved_s > self.config.max_wait_s + 1e-9:
            self.halt("nobody has ever confirmed the dead-man's switch", row, "deadman")

    def follow_policy(self, sensed: Sensed, begin: float, row: Row) -> None:
        """Ask, take what has come, and do what is planned for this tick."""
        try:
            self.asking.step(self.public(sensed), begin, row, self.log)
        except Exception as error:
            _LOG.exception("inference failed")
            self.stop = f"the policy failed: {type(error).__name__}: {error}"
            return
        tick = self.scheduler.next()
        self.watch(tick, row)
        row |= {"kind": tick.kind, "chunk": tick.chunk, "index": tick.index}
        if tick.kind == "slow":
            row["speed"] = tick.speed
        if self.stop or tick.action is None:
            self.tally.kinds[tick.kind] += 1
        else:
            self.act(tick.kind, tick.action, sensed.observation, row)

    def watch(self, tick: Tick, row: Row) -> None:
        """Stop when no planned action came for too long."""
        if tick.kind in ("plan", "slow"):
            self.starved_s = 0.0
            return
        self.starved_s += self.dt
        limit = self.config.max_hold_s if tick.kind == "hold" else self.config.max_wait_s
        if self.starved_s > limit + 1e-9:
            self.halt(f"no new action for {self.starved_s:.3g} s; the limit is {limit:.3g} s", row)
        elif tick.kind == "hold" and self.config.on_late == "stop":
            self.halt("the next chunk is late", row)

    def act(self, kind: str, action: Array, observation: Observation, row: Row) -> None:
        """Check an action (A,) of the policy or of a human, and send what may be sent."""
        self.tally.kinds[kind] += 1
        if self.anew and kind in ("plan", "slow"):
            self.anew = False
            self.chain.rearm()
        verdict = self.chain.apply(action, observation)
        row |= {"kind": kind, "action": action}
        if kind == "human":
            row["intervention"] = True
        if verdict.interventions:
            row["interventions"] = [item.to_json() for item in verdict.interventions]
        if not verdict.stop:
            self.send(verdict.action, row)
        elif self.config.shadow:
            self.chain.reset()
            self.halt(verdict.stop, row, verdict.interventions[-1].kind)
        else:
            self.stop = verdict.stop
            if not verdict.emergency and self.tally.sent:
                self.send(verdict.action, row)  # the first tick of braking

    def send(self, action: Array, row: Row) -> None:
        """Send an action (A,) that was checked, unless nothing is to be sent."""
        row["sent"] = action
        self.tally.sent.append(action)
        self.travelled = action.astype(float) if self.chain.holds else self.travelled + action * self.dt
        if not self.drives:
            return
        with self.stalls.watching("send") if self.stalls else nullcontext():
            self.outcome = self.robot.send(action)
        self.tally.return_ += self.outcome.reward
        row["reward"] = self.outcome.reward

    def compare(self, sensed: Sensed, row: Row) -> None:
        """Note what was done beside what the policy would have done, and judge its next action from there."""
        if sensed.action is None:
            raise ConfigError(
                f"A shadow run compares with what is done to the robot, but robot '{self.robot.spec.id}' does not "
                "report it: its observe must return Sensed with action. Use dry_run to compare with nothing."
            )
        actual = np.asarray(sensed.action, np.float32)
        row["actual"] = actual
        if "sent" in row:
            self.tally.pairs[0].append(row["sent"])
            self.tally.pairs[1].append(actual)
        if np.isfinite(actual).all():
            self.chain.follow(actual)

    def halt(self, reason: str, row: Row, kind: Kind = "runtime") -> None:
        """Stop the run; in a shadow run, note that it would have stopped."""
        if self.config.shadow:
            row["would_stop"] = reason
            self.tally.would_stop[kind] += 1
            self.starved_s = 0.0
        else:
            self.stop = reason
            if kind != "runtime":
                self.chain.halt(reason, kind)

    def come_to_rest(self, deadline: float) -> None:
        """Brake within the limits and then tell the robot to stay."""
        _LOG.warning("stopped: %s", self.stop)
        braked: list[Array] = []
        with suppress(KeyboardInterrupt):
            self.chain.halt(self.stop)
            try:
                while self.drives and self.tally.sent and not self.stalled and not self.chain.is_at_rest():
                    action = self.chain.brake()
                    if self.chain.is_at_rest():
                        break
                    self.clock.sleep_until(deadline)
                    deadline = max(deadline, self.clock.now()) + self.dt
                    self.send(action, {})
                    braked.append(action)
            except Exception as error:
                _LOG.exception("braking failed")
                self.stop += f"; braking failed: {type(error).__name__}: {error}"
        self.end_at_once(braked)

    def end_at_once(self, braked: list[Array] | None = None) -> None:
        """Tell the robot to rest, and write down why."""
        row: Row = {"stop": self.stop}
        if braked:
            row["braked"] = [action.tolist() for action in braked]
        with suppress(KeyboardInterrupt):
            if self.drives and not self.stalled:
                try:
                    self.robot.stop(self.chain.resting_action())
                except Exception as error:
                    _LOG.exception("stopping failed")
                    row["stop_failed"] = f"{type(error).__name__}: {error}"
        self.write(row)

    def _stalled(self, call: str, took_s: float) -> None:
        """Answer a call to the robot that hangs; runs in the watch's thread, while the loop is inside the call."""
        self.stalled = True
        self.stop = f"the robot has not returned from {call} for {took_s:.3g} s"
        self.chain.halt(self.stop, "robot", emergency=True)
        _LOG.error("%s; it is told to stop", self.stop)
        self.write({"stalled": call, "after_s": took_s})
        try:
            self.robot.stop(self.chain.resting_action())
        except Exception:
            _LOG.exception("stopping a robot that hangs failed")

    def write(self, row: Row) -> None:
        """Log a row."""
        if self.log is not None:
            with self.log_lock:
                self.log.tick(row)

    def public(self, sensed: Sensed) -> Observation:
        """Return what the policy reads."""
        keys = [*self.policy.spec.observation, TASK_KEY]
        return {key: sensed.observation[key] for key in keys if key in sensed.observation}

    def report(self) -> RuntimeReport:
        """Return how it went."""
        return self.tally.report(
            asking=self.asking,
            clock="simulated" if self.clock.simulated else "real",
            control_dt=self.dt,
            interventions=self.chain.counts,
            stop=self.stop,
            outcome=self.outcome,
            action=self.robot.spec.action,
        )
