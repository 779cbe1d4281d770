"""Which action runs at which control tick, while the next chunk is still being computed.

Time is counted in *plan ticks*: actions of a plan that really ran. A chunk that was asked for at plan tick s holds the
actions for s, s + 1, ...; when it arrives at plan tick t it takes over at its index t - s, which is the number of
actions that ran meanwhile, never an estimate from a clock. A tick without an action holds the last one and does not
count, so a late chunk is entered where the robot stands: nothing is skipped, nothing is repeated, and a cold start
begins at index 0 however long the first inference took.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from burnish.core.errors import ConfigError, ProtocolError
from burnish.core.spec import Array, ArraySpec

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
    """Ticks over which an arriving chunk is faded in, linearly, from what the old one had planned."""
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

    kind: Literal["plan", "hold", "wait"]
    """A planned action, the last one again, or nothing at all because none has run yet."""
    action: Array | None
    """(A,) float32; None when waiting."""
    chunk: int
    """Number of the newest chunk, from 0; -1 before the first."""
    index: int
    """Index of the action in that chunk; -1 unless ``kind`` is "plan"."""


@dataclass(frozen=True)
class _Plan:
    begin: int
    """Plan tick of ``chunk[0]``."""
    chunk: Array

    def covers(self, tick: int) -> bool:
        return self.begin <= tick < self.begin + len(self.chunk)


class ChunkScheduler:
    """Takes chunks as they arrive and gives one action per control tick."""

    def __init__(self, config: Config, action: ArraySpec, chunk_steps: int) -> None:
        """Start empty.

        Args:
            config: How chunks follow each other.
            action: One action (A,).
            chunk_steps: Chunk length K.

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
        if rotations and (config.ensemble_decay is not None or config.blend_steps):
            raise ConfigError(
                f"chunking: ensemble_decay and blend_steps average actions, which is wrong for rotations such as "
                f"{', '.join(rotations)}; set neither."
            )
        self.config = config
        self._replan_steps = replan
        self._shape = (chunk_steps, *action.shape)
        self.reset()

    def reset(self) -> None:
        """Forget everything: a new episode begins."""
        self._plans: list[_Plan] = []
        self._tick = 0
        self._chunks = 0
        self._asked: int | None = None
        self._unused = False
        self._last: Array | None = None

    @property
    def plan_tick(self) -> int:
        """Planned actions that have run."""
        return self._tick

    def wants_chunk(self) -> bool:
        """Return whether it is time to ask for a chunk; False while one is being computed."""
        if self._asked is not None:
            return False
        newest = self._plans[-1] if self._plans else None
        if newest is None or not newest.covers(self._tick):
            return True
        left = newest.begin + self._replan_steps - self._tick
        return left <= self.config.prefetch_steps and not self._unused

    def has_action(self) -> bool:
        """Return whether a planned action is there for the tick to come."""
        newest = self._plans[-1] if self._plans else None
        return newest is not None and newest.covers(self._tick) and not self._is_tail(newest)

    def ask(self) -> None:
        """Note that a chunk was asked for with the observation of now."""
        if self._asked is not None:
            raise ProtocolError("A chunk is being computed already; the scheduler takes one at a time.")
        self._asked = self._tick

    def arrive(self, chunk: Array) -> int:
        """Take the chunk (K, A) that was asked for; return at which index it takes over."""
        if self._asked is None:
            raise ProtocolError("A chunk arrived that was not asked for.")
        if chunk.shape != self._shape:
            raise ProtocolError(f"A chunk arrived with shape {chunk.shape}, expected {self._shape}.")
        begin, self._asked = self._asked, None
        chunk = np.array(chunk, np.float32)
        if self.config.blend_steps and self._plans:
            self._blend(chunk, begin)
        kept = self._plans if self.config.ensemble_decay is not None else []
        self._plans = [*(plan for plan in kept if plan.covers(self._tick)), _Plan(begin, chunk)]
        self._chunks += 1
        self._unused = True  # at least one action of each chunk runs before the next is asked for
        return self._tick - begin

    def drop(self) -> None:
        """Note that the chunk that was asked for will not come."""
        self._asked = None

    def next(self) -> Tick:
        """Return what to do at this control tick, and count it if it is a planned action."""
        if not self.has_action():
            kind: Literal["hold", "wait"] = "wait" if self._last is None else "hold"
            return Tick(kind, None if self._last is None else self._last.copy(), self._chunks - 1, -1)
        newest = self._plans[-1]
        index = self._tick - newest.begin
        action = self._action(newest, index)
        self._last = action
        self._tick += 1
        self._unused = False
        return Tick("plan", action.copy(), self._chunks - 1, index)

    def _is_tail(self, plan: _Plan) -> bool:
        return not self.config.run_tail and self._tick - plan.begin >= self._replan_steps

    def _action(self, newest: _Plan, index: int) -> Array:
        if self.config.ensemble_decay is None or len(self._plans) == 1:
            action: Array = newest.chunk[index]
            return action
        rows = [plan.chunk[self._tick - plan.begin] for plan in self._plans if plan.covers(self._tick)]
        weight = np.exp(-self.config.ensemble_decay * np.arange(len(rows)))
        mean: Array = np.average(rows, axis=0, weights=weight).astype(np.float32)
        return mean

    def _blend(self, chunk: Array, begin: int) -> None:
        old = self._plans[-1]
        for step in range(self.config.blend_steps):
            tick = self._tick + step
            if not old.covers(tick) or tick - begin >= len(chunk):
                return
            share = (step + 1) / (self.config.blend_steps + 1)
            planned = old.chunk[tick - old.begin]
            chunk[tick - begin] = (1 - share) * planned + share * chunk[tick - begin]
