"""The last thing between a policy and a robot: a chain of checks that changes, holds or refuses each action.

Order: finite, limits of the action's ArraySpec, workspace, distance of the first action, speed and acceleration, force.
Speed and acceleration come last of those that change the action, so nothing changes it after them, and they never
contradict the limits before: near a limit the speed is what still stops in front of it (:mod:`burnish.deploy.limits`).
Every intervention is returned, counted and meant for the log; a stop stays until :meth:`SafetyChain.reset`.

Two ways to stop. After a force, or when the robot itself fails, the resting action is sent at once. After anything else
:meth:`SafetyChain.brake` leads to rest within the limits, one action per tick.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from burnish.core.errors import ConfigError, suggest
from burnish.core.spec import Array, ArraySpec
from burnish.deploy.interventions import Intervention, Kind, cut, slowed
from burnish.deploy.limits import Limits, Motion, approach, coast


@dataclass(frozen=True)
class Config:
    """Limits beyond those of the action's ArraySpec."""

    max_rate: tuple[float, ...] | float | None = None
    """Largest change of the action per second, in action units / s, one for all entries or one each; None for none."""
    max_acceleration: tuple[float, ...] | float | None = None
    """Largest change of that rate per second, in action units / s^2; None for none. With it a late or refused action,
    and every stop but that of force, brakes evenly."""
    workspace: tuple[str, ...] = ()
    """Names of action entries that must stay within a box smaller than the action's limits, for example x y z."""
    workspace_low: tuple[float, ...] = ()
    """Lower corner of the box, one number per name, in action units."""
    workspace_high: tuple[float, ...] = ()
    """Upper corner of the box."""
    max_first_distance: tuple[float, ...] | float | None = None
    """Largest distance of the first action from where the robot is, per entry, in action units; beyond it the run is
    refused. None checks nothing."""
    position_key: str = ""
    """Observation whose entries are where the robot is, in action units; "" compares with zero, which fits velocities
    and displacements."""
    position_entries: tuple[int, ...] = ()
    """Entries of ``position_key`` that belong to the action's entries, in order; empty for the first A."""
    force_key: str = ""
    """Observation that holds the contact force [N]; "" checks none."""
    force_entries: tuple[int, ...] = ()
    """Entries of ``force_key`` that make the force vector; empty for all."""
    max_force: float = 60.0
    """Norm of the force that stops the run [N]."""
    max_bad_actions: int = 3
    """Actions in a row that may be not finite, and are replaced by the last good one, before the run stops."""
    at_stop: Literal["auto", "hold", "zero"] = "auto"
    """What is sent when the run stops: the last action again (right for position targets), or zeros (right for
    velocities, forces and displacements); "auto" takes zeros where every unit is a rate, a force or a torque."""

    def __post_init__(self) -> None:
        """Refuse limits that are no limits."""
        for name in ("max_rate", "max_acceleration", "max_first_distance", "max_force"):
            value = getattr(self, name)
            if value is not None and not (np.asarray(value, float) > 0).all():
                raise ConfigError(f"safety: {name} must be positive, found {value}.")
        if self.max_bad_actions < 0:
            raise ConfigError(f"safety: max_bad_actions must not be negative, found {self.max_bad_actions}.")
        if not len(self.workspace) == len(self.workspace_low) == len(self.workspace_high):
            raise ConfigError(
                f"safety: workspace names {len(self.workspace)} entries, workspace_low has "
                f"{len(self.workspace_low)} and workspace_high {len(self.workspace_high)}."
            )
        if len(set(self.workspace)) < len(self.workspace):
            raise ConfigError(f"safety: workspace names an entry twice: {', '.join(self.workspace)}.")
        if np.isnan([*self.workspace_low, *self.workspace_high]).any():
            raise ConfigError(
                f"safety: workspace_low {self.workspace_low} and workspace_high {self.workspace_high} must be numbers."
            )


@dataclass(frozen=True)
class Verdict:
    """What may be sent."""

    action: Array
    """(A,) float32, always finite and within the limits."""
    interventions: tuple[Intervention, ...]
    """What was changed, in order."""
    stop: str
    """Why the run must end; "" to go on."""
    emergency: bool = False
    """Whether it must end with this very action, instead of by braking."""


class SafetyChain:
    """Checks one action per control tick; remembers what it let pass, and how fast that moved."""

    def __init__(self, config: Config, action: ArraySpec, control_dt: float) -> None:
        """Prepare.

        Args:
            config: Limits.
            action: One action (A,), with its limits.
            control_dt: Seconds between two actions.

        Raises:
            ConfigError: If a limit has another number of entries than the action, or names one that is not there.
        """
        self.config = config
        self.counts: Counter[str] = Counter()
        self.holds = config.at_stop == "hold" or (config.at_stop == "auto" and not _is_rate(action.unit))
        """Whether rest is the last action again, rather than zeros."""
        self._spec, self._dt = action, control_dt
        low, high = action.bounds()
        self._low, self._high = low.astype(np.float32), high.astype(np.float32)
        self._box = workspace_box(config, action)
        inner_low = np.maximum(self._low, self._box[0]) if self._box else self._low
        inner_high = np.minimum(self._high, self._box[1]) if self._box else self._high
        self._first = _limit("max_first_distance", config.max_first_distance, action)
        speed = _limit("max_rate", config.max_rate, action)
        acceleration = _limit("max_acceleration", config.max_acceleration, action)
        self._limited = speed is not None or acceleration is not None
        free = np.full(action.shape, np.inf)
        self._limits = Limits(
            inner_low.astype(float),
            inner_high.astype(float),
            free if speed is None else speed * control_dt,
            free if acceleration is None else acceleration * control_dt**2,
        )
        self._rest = np.clip(np.zeros(action.shape), self._limits.low, self._limits.high)
        self.reset()

    def reset(self) -> None:
        """Begin a run: nothing has been sent, nothing is stopped; counts stay."""
        self._motion: Motion | None = None
        self._target: Array | None = None
        self._last: Array | None = None
        self._fresh = True
        self._bad = 0
        self._stop = ""
        self._emergency = False

    def rearm(self) -> None:
        """Take the next action for a first one again: a policy begins anew after somebody else moved the robot."""
        self._fresh = True

    def is_at_rest(self) -> bool:
        """Return whether what was sent last is at rest: nothing more has to be braked."""
        if self._motion is None:
            return True
        still = self._motion.speed == 0 if self.holds else self._motion.position == self._rest
        return bool(still.all())

    def apply(self, action: Array, observation: Mapping[str, Any]) -> Verdict:
        """Check one action.

        Args:
            action: (A,) as planned.
            observation: The newest one, N = 1.
        """
        if self._stop:
            return Verdict(self.brake(observation), (), self._stop, self._emergency)
        found: list[Intervention] = []
        wanted = np.array(action, np.float32).reshape(self._spec.shape)
        if not np.isfinite(wanted).all():
            found.append(self._not_finite(wanted))
            if self._stop or self._last is None:
                return self._end(found, observation)
            wanted = self._last
        else:
            self._bad = 0
        wanted = self._inside(wanted, found)
        if self._fresh and not self._begin(wanted, observation, found):
            return self._end(found, observation)
        if self.config.force_key and not self._bearable(observation, found):
            return self._end(found, observation)
        self._last = sent = self._move(wanted, found)
        if found:
            self.counts.update(item.kind for item in found)
        return Verdict(sent.copy(), tuple(found), "")

    def halt(self, reason: str, kind: Kind = "runtime", *, emergency: bool = False) -> None:
        """Let nothing pass any more, for a reason from outside, for example a stale observation; counted once."""
        if not self._stop:
            self._stop, self._emergency = reason, emergency
            self.counts[kind] += 1

    def stop(self, reason: str, kind: Kind = "runtime", *, emergency: bool = False) -> Verdict:
        """Halt, and return the first action of braking."""
        self.halt(reason, kind, emergency=emergency)
        return Verdict(self.brake(), (Intervention(kind, reason),), self._stop, self._emergency)

    def brake(self, observation: Mapping[str, Any] | None = None) -> Array:
        """Return the next action (A,) on the way to rest within the limits; in an emergency rest itself."""
        if self._motion is None or self._emergency or not self._limited:
            rest = self.resting_action(observation)
            self._motion = Motion(rest.astype(float), np.zeros(rest.shape))
        elif self.holds:
            self._motion = coast(self._motion, self._limits)
        else:
            position, _ = approach(self._rest, self._motion, self._limits, 0.0)
            self._motion = Motion(position, position - self._motion.position)
        self._target = None
        self._last = self._motion.position.astype(np.float32)
        return self._last.copy()

    def follow(self, action: Array) -> None:
        """Take note that somebody else moved the robot: the next action is judged from there, (A,) as it was done."""
        position = np.minimum(np.maximum(np.asarray(action, float), self._limits.low), self._limits.high)
        before = position if self._motion is None else self._motion.position
        self._motion, self._target = Motion(position, position - before), None
        self._last = position.astype(np.float32)

    def resting_action(self, observation: Mapping[str, Any] | None = None) -> Array:
        """Return what to send when stopped, (A,) within the limits: see ``Config.at_stop``.

        Where the last action is due but none was sent, it is where the robot is, if an observation says that, else the
        zeros nearest to the limits.
        """
        if self.holds and self._last is not None:
            return self._last.copy()
        here = self.measured(observation) if self.holds and observation is not None else None
        known = here is not None and np.isfinite(here).all()
        rest: Array = np.clip(here, self._limits.low, self._limits.high) if known and here is not None else self._rest
        return rest.astype(np.float32)

    def measured(self, observation: Mapping[str, Any]) -> Array | None:
        """Return where an observation says the robot is, (A,) in action units; None where ``position_key`` is ""."""
        if not self.config.position_key:
            return None
        entries = self.config.position_entries or tuple(range(self._spec.shape[0]))
        if len(entries) != self._spec.shape[0]:
            raise ConfigError(
                f"safety: position_entries has {len(entries)} entries, the action has {self._spec.shape[0]}."
            )
        return _entries(observation, self.config.position_key, entries).astype(np.float32)

    def _end(self, found: list[Intervention], observation: Mapping[str, Any]) -> Verdict:
        self._stop = found[-1].message
        self.counts.update(item.kind for item in found)
        return Verdict(self.brake(observation), tuple(found), self._stop, self._emergency)

    def _not_finite(self, action: Array) -> Intervention:
        self._bad += 1
        entry = int(np.argmax(~np.isfinite(action)))
        stop = self._last is None or self._bad > self.config.max_bad_actions
        what = "the run stops" if stop else "the last action is sent again"
        message = f"action entry {self._name(entry)} is {action[entry]}; {what}"
        self._stop = message if stop else ""
        return Intervention("not_finite", message, entry)

    def _inside(self, action: Array, found: list[Intervention]) -> Array:
        inside, entry = cut(action, self._low, self._high)
        if entry >= 0:
            message = (
                f"action entry {self._name(entry)} is {action[entry]:.4g}, outside "
                f"[{self._low[entry]:.4g}, {self._high[entry]:.4g}] {self._spec.unit}; cut".replace(" ;", ";")
            )
            found.append(Intervention("limit", message, entry))
        if self._box is None:
            return inside
        boxed, entry = cut(inside, *self._box)
        if entry >= 0:
            message = (
                f"action entry {self._name(entry)} is {inside[entry]:.4g}, outside the workspace "
                f"[{self._box[0][entry]:.4g}, {self._box[1][entry]:.4g}]; cut"
            )
            found.append(Intervention("workspace", message, entry))
        return boxed

    def _begin(self, action: Array, observation: Mapping[str, Any], found: list[Intervention]) -> bool:
        """Set where the first action starts from; return False if it is too far from there."""
        here = self.measured(observation)
        if here is not None and not np.isfinite(here).all():
            message = f"the position in '{self.config.position_key}' is not finite; the run is refused"
            found.append(Intervention("not_finite", message))
            return False
        self._fresh = False
        if self._first is not None:
            distance = np.abs(action - (self.resting_action() if here is None else here))
            entry = int(np.argmax(distance / self._first))
            if distance[entry] > self._first[entry]:
                message = (
                    f"the first action is {distance[entry]:.4g} {self._spec.unit} from where the robot is in entry "
                    f"{self._name(entry)}; the limit is {self._first[entry]:.4g}; the run is refused"
                )
                found.append(Intervention("first_action", message, entry))
                return False
        if self._motion is None and (here is not None or not self.holds):
            start = self._rest if here is None else np.clip(here.astype(float), self._limits.low, self._limits.high)
            self._motion = Motion(start, np.zeros(start.shape))
        return True

    def _move(self, wanted: Array, found: list[Intervention]) -> Array:
        """Return the action (A,) float32 that keeps to speed and acceleration, and remember it."""
        target = wanted.astype(float)
        motion = self._motion
        if motion is None or not self._limited:
            self._target = target
            self._motion = Motion(target, np.zeros(target.shape) if motion is None else target - motion.position)
            return wanted
        target_speed = target - (motion.position if self._target is None else self._target)
        self._target = target
        reached, changed = approach(target, motion, self._limits, target_speed)
        if changed.any():
            found.append(slowed(target, reached, motion, self._limits, target_speed, self._dt, self._name))
            wanted = reached.astype(np.float32)
        self._motion = Motion(reached, reached - motion.position)
        return wanted

    def _bearable(self, observation: Mapping[str, Any], found: list[Intervention]) -> bool:
        vector = _entries(observation, self.config.force_key, self.config.force_entries)
        force = math.sqrt(float(vector @ vector))
        if force <= self.config.max_force:  # a force that is not a number stops, too
            return True
        message = f"the force is {force:.4g} N; the limit is {self.config.max_force:.4g} N; the run stops"
        found.append(Intervention("force", message))
        self._emergency = True
        return False

    def _name(self, entry: int) -> str:
        return f"{entry} ({self._spec.names[entry]})" if self._spec.names else str(entry)


def workspace_box(config: Config, action: ArraySpec) -> tuple[Array, Array] | None:
    """Return (low, high) (A,) float32 of the workspace, infinite for entries that are not named; None without one.

    Raises:
        ConfigError: If a name is not one of the action's, or nothing of the action's limits is left.
    """
    if not config.workspace:
        return None
    low, high = np.full(action.shape, -np.inf, np.float32), np.full(action.shape, np.inf, np.float32)
    for name, below, above in zip(config.workspace, config.workspace_low, config.workspace_high, strict=True):
        if name not in action.names:
            known = ", ".join(action.names) or "none, since the action's entries have no names"
            raise ConfigError(
                f"safety: workspace names '{name}', which is no action entry.{suggest(name, action.names)} "
                f"Entries: {known}."
            )
        low[action.names.index(name)], high[action.names.index(name)] = below, above
    floor, ceiling = action.bounds()
    if (np.maximum(low, floor) > np.minimum(high, ceiling)).any():
        raise ConfigError("safety: the workspace and the action's limits have nothing in common in some entry.")
    return low, high


def _is_rate(unit: str) -> bool:
    parts = [part.strip() for part in unit.split(",")]
    return all("/s" in part or part in ("N", "N m", "Nm", "N*m") for part in parts)


def _limit(name: str, value: tuple[float, ...] | float | None, spec: ArraySpec) -> Array | None:
    if value is None:
        return None
    limit = np.asarray(value, float)
    if limit.shape == (1,):
        limit = limit[0]  # a command line has no other way to say one number for all
    if limit.shape not in ((), spec.shape):
        raise ConfigError(f"safety: {name} has {limit.size} entries, the action has {spec.shape[0]}.")
    return np.broadcast_to(limit, spec.shape)


def _entries(observation: Mapping[str, Any], key: str, entries: tuple[int, ...]) -> Array:
    if key not in observation:
        raise ConfigError(f"safety: the observation has no '{key}'; it has {', '.join(sorted(observation))}.")
    vector: Array = np.asarray(observation[key])[0]
    if entries and max(entries) >= vector.size:
        raise ConfigError(f"safety: '{key}' has {vector.size} entries, so there is no entry {max(entries)}.")
    return vector[list(entries)] if entries else vector
