"""Which action runs at which control tick, while the next chunk is still being computed.

Time is counted in *plan ticks*: actions of a plan that really ran. A chunk that was asked for at plan tick s holds the
actions for s, s + 1, ...; when it arrives at plan tick t it takes over at its index t - s, which is the number of
actions that ran meanwhile, never an estimate from a clock. A tick without an action holds the last one and does not
count, so a late chunk is entered where the robot stands: nothing is skipped, nothing is repeated, and a cold start
begins at index 0 however long the first inference took.

A robot may slow down instead of holding: while a chunk is late, plan time then passes at less than one plan tick per
control tick, actions are interpolated, and the speed falls by the same amount each tick so that it is zero where the
plan ends. It rises by the same amount when the chunk is there. Whole plan ticks run whenever the speed is one.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from burnish.core.errors import ConfigError, ProtocolError
from burnish.core.spec import Array, ArraySpec
from burnish.deploy.limits import stopping_speed
from burnish.deploy.seams import bezier_seam, linear_seam, slope

_EPS = 1e-6
"""Plan ticks that count as none."""
_ROTATION = re.compile(r"(?:^|_)(?:q[wxyz]|quat\w*)$|^(?:r[0-2]{2})$", re.IGNORECASE)


@dataclass(frozen=True)
class Config:
    """How chunks follow each other."""

    replan_steps: int = 0
    """Actions of a chunk to run before the next one is wanted, as in training; 0 for the whole chunk."""
    prefetch_steps: int = 0
    """Ask for the next chunk when this many of them are left; 0 asks when none is, as evaluation does."""
    run_tail: bool = True
    """Whether actions past ``replan_steps`` run while the next chunk is late; else the last action is held."""
    blend_steps: int = 0
    """Ticks over which an arriving chunk takes over."""
    blend: Literal["linear", "bezier"] = "linear"
    """A fade from what the old chunk had planned, or a cubic curve from the last action to the new chunk whose velocity
    is continuous at both ends."""
    ensemble_decay: float | None = None
    """Temporal ensembling (ACT, arXiv:2304.13705): average all chunks for a tick with weight exp(-decay * i), i = 0
    for the oldest; None replaces the old chunk instead."""

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other."""
        if min(self.replan_steps, self.prefetch_steps, self.blend_steps) < 0:
            raise ConfigError(f"chunking: step counts must not be negative, found {self}.")
        if self.replan_steps and self.prefetch_steps > self.replan_steps:
            raise ConfigError(
                f"chunking: prefetch_steps ({self.prefetch_steps}) must not exceed replan_steps ({self.replan_steps})."
            )
        if self.ensemble_decay is not None and (self.blend_steps or not math.isfinite(self.ensemble_decay)):
            raise ConfigError(
                "chunking: ensemble_decay must be finite, and does what blend_steps does; set one of them."
            )


@dataclass(frozen=True)
class Tick:
    """What to do at one control tick."""

    kind: Literal["plan", "slow", "hold", "wait"]
    """A planned action, one on the way between two, the last one again, or nothing at all because none has run yet."""
    action: Array | None
    """(A,) float32; None when waiting."""
    chunk: int
    """Number of the newest chunk, from 0; -1 before the first."""
    index: int
    """Index of the action in that chunk, rounded down when slow; -1 unless ``kind`` is "plan" or "slow"."""
    speed: float = 1.0
    """Plan ticks that passed in this control tick; 0 when holding or waiting."""


@dataclass(frozen=True)
class _Plan:
    begin: float
    """Plan tick of ``chunk[0]``; whole unless the chunk was asked for while slow."""
    chunk: Array

    def covers(self, tick: float) -> bool:
        """Whether there is an action for a plan tick, or two to interpolate."""
        return self.begin - _EPS <= tick <= self.begin + len(self.chunk) - 1 + _EPS

    def at(self, tick: float) -> Array:
        """Return the action (A,) at a plan tick that is covered."""
        index = tick - self.begin
        row = int(index + _EPS)
        share = index - row
        if abs(share) <= _EPS:
            action: Array = self.chunk[row]
            return action
        between: Array = ((1.0 - share) * self.chunk[row] + share * self.chunk[row + 1]).astype(np.float32)
        return between


class ChunkScheduler:
    """Takes chunks as they arrive and gives one action per control tick."""

    def __init__(
        self,
        config: Config,
        action: ArraySpec,
        chunk_steps: int,
        *,
        slow_steps: int = 0,
        slow_scales: bool = False,
    ) -> None:
        """Start empty.

        Args:
            config: How chunks follow each other.
            action: One action (A,).
            chunk_steps: Chunk length K.
            slow_steps: Planned actions over which the robot comes to rest while a chunk is late, in twice as many
                ticks; 0 never slows down.
            slow_scales: Whether a slow action is also scaled with the speed, as velocities and displacements must be.

        Raises:
            ConfigError: If the numbers do not fit the chunk, or averaging does not fit the action.
        """
        replan = config.replan_steps or chunk_steps
        if replan > chunk_steps or config.prefetch_steps > replan:
            raise ConfigError(
                f"chunking: replan_steps ({config.replan_steps}) and prefetch_steps ({config.prefetch_steps}) must not "
                f"exceed the chunk, which has {chunk_steps} steps."
            )
        rotations = [name for name in action.names if _ROTATION.search(name)]
        if rotations and (config.ensemble_decay is not None or config.blend_steps or slow_steps):
            raise ConfigError(
                f"chunking: ensemble_decay, blend_steps and slowing down average actions, which is wrong for rotations "
                f"such as {', '.join(rotations)}; set none of them."
            )
        if slow_steps and not config.prefetch_steps and not (config.run_tail and replan < chunk_steps):
            raise ConfigError(
                "chunking: slowing down needs planned actions that are left when the next chunk is asked for; set "
                "prefetch_steps, or replan_steps below the chunk length."
            )
        self.config = config
        self._replan_steps = replan
        self._last_index = (chunk_steps if config.run_tail else replan) - 1
        self._shape = (chunk_steps, *action.shape)
        self._change = 1.0 / (2 * slow_steps) if slow_steps else 0.0
        self._slow_scales = slow_scales
        self.reset()

    def reset(self, held: Array | None = None) -> None:
        """Forget everything: a new episode begins, or a human lets go of the robot.

        Args:
            held: (A,) what is held until the first chunk is there; None to wait.
        """
        self._plans: list[_Plan] = []
        self._at = -1.0
        self._speed = 1.0
        self._chunks = 0
        self._asked: float | None = None
        self._unused = False
        self._last = held
        self._moved: Array | float = 0.0

    @property
    def plan_tick(self) -> float:
        """Planned actions that have run; a part of one when slow."""
        return self._at + 1.0

    def wants_chunk(self) -> bool:
        """Return whether it is time to ask for a chunk; False while one is being computed."""
        if self._asked is not None:
            return False
        newest = self._plans[-1] if self._plans else None
        if newest is None or not newest.covers(self._at + 1.0):
            return True
        left = newest.begin + self._replan_steps - (self._at + 1.0)
        return left <= self.config.prefetch_steps and not self._unused

    def has_action(self) -> bool:
        """Return whether a planned action is there for the tick to come."""
        return bool(self._plans) and self._left() > _EPS

    def planned(self) -> Array:
        """Return the actions (P, A) that the newest chunk still has, from the tick to come on; P may be 0."""
        if not self._plans:
            return np.zeros((0, *self._shape[1:]), np.float32)
        newest = self._plans[-1]
        first = self._at + 1.0 - newest.begin
        rows = [newest.at(newest.begin + first + step) for step in range(int(len(newest.chunk) - first + _EPS))]
        return np.array(rows, np.float32).reshape(-1, *self._shape[1:])

    def ask(self) -> None:
        """Note that a chunk was asked for with the observation of now."""
        if self._asked is not None:
            raise ProtocolError("A chunk is being computed already; the scheduler takes one at a time.")
        self._asked = self._at + 1.0

    def arrive(self, chunk: Array, frozen: Array | None = None) -> int:
        """Take the chunk (K, A) that was asked for; return at which index it takes over.

        Args:
            chunk: The answer.
            frozen: (F, A) actions that its first F are to be, exactly: those it was told will have run.
        """
        if self._asked is None:
            raise ProtocolError("A chunk arrived that was not asked for.")
        if chunk.shape != self._shape:
            raise ProtocolError(f"A chunk arrived with shape {chunk.shape}, expected {self._shape}.")
        begin, self._asked = self._asked, None
        chunk = np.array(chunk, np.float32)
        if frozen is not None:
            chunk[: len(frozen)] = frozen
        first = int(self._at + 1.0 - begin + _EPS)
        if self.config.blend_steps and self._plans:
            self._blend(chunk, begin, first)
        kept = self._plans if self.config.ensemble_decay is not None else []
        self._plans = [*(plan for plan in kept if plan.covers(self._at + 1.0)), _Plan(begin, chunk)]
        self._chunks += 1
        self._unused = True  # at least one action of each chunk runs before the next is asked for
        return first

    def drop(self) -> None:
        """Note that the chunk that was asked for will not come."""
        self._asked = None

    def next(self) -> Tick:
        """Return what to do at this control tick, and count it if it is a planned action."""
        speed = self._next_speed() if self._plans else 0.0
        if speed <= _EPS:
            if self._last is None:
                return Tick("wait", None, self._chunks - 1, -1, 0.0)
            self._moved = 0.0
            if self._change:
                self._speed = 0.0
                self._last = np.zeros_like(self._last) if self._slow_scales else self._last
            return Tick("hold", self._last.copy(), self._chunks - 1, -1, 0.0)
        newest = self._plans[-1]
        before, full = self._at - newest.begin, speed >= 1.0 - _EPS
        # at full speed to the next whole action, which is one tick on unless it was slow before
        index = float(math.floor(before + 1.0 + _EPS)) if full else min(before + speed, float(self._last_index))
        action = self._action(newest, index, before)
        if not full and self._slow_scales:
            action = (speed * action).astype(np.float32)
        self._moved = 0.0 if self._last is None else action - self._last
        self._last = action
        self._at = newest.begin + index
        self._speed = speed
        self._unused = False
        return Tick("plan" if full else "slow", action.copy(), self._chunks - 1, max(int(index + _EPS), 0), speed)

    def _left(self) -> float:
        """Return the plan ticks that may still run."""
        newest = self._plans[-1]
        return newest.begin + self._last_index - self._at

    def _next_speed(self) -> float:
        left = self._left()
        if left <= _EPS:
            return 0.0
        if not self._change:
            return 1.0
        speed = min(1.0, self._speed + self._change)
        if self._asked is not None:
            speed = min(speed, float(stopping_speed(left, self._change)))
        return speed

    def _action(self, newest: _Plan, index: float, before: float) -> Array:
        if index < -_EPS:  # slowly out of a hold, towards the first action of the chunk
            first: Array = newest.chunk[0]
            last = self._last
            if last is None or self._slow_scales:
                return first
            share = (index - before) / -before
            between: Array = ((1.0 - share) * last + share * first).astype(np.float32)
            return between
        tick = newest.begin + index
        if self.config.ensemble_decay is None or len(self._plans) == 1:
            return newest.at(tick)
        rows = np.array([plan.at(tick) for plan in self._plans if plan.covers(tick)])
        weight = np.exp(-self.config.ensemble_decay * np.arange(len(rows)))
        mean: Array = (weight @ rows / weight.sum()).astype(np.float32)
        return mean

    def _blend(self, chunk: Array, begin: float, first: int) -> None:
        """Change the rows of a chunk from ``first`` on so that it takes over smoothly."""
        steps = self.config.blend_steps
        if self.config.blend == "bezier":
            end = min(first + steps, len(chunk) - 1)
            if self._last is not None and end > first:
                curve = bezier_seam(self._last, np.asarray(self._moved), chunk[end], slope(chunk, end), end - first)
                chunk[first:end] = curve
            return
        old = self._plans[-1]
        rows = range(first, min(first + steps, len(chunk)))
        planned = [old.at(begin + row) for row in rows if old.covers(begin + row)]
        if planned:
            until = first + len(planned)
            chunk[first:until] = linear_seam(np.stack(planned), chunk[first:until], steps)
