"""The last thing between a policy and a robot: a chain of checks that changes, holds or refuses each action.

Order: finite, limits of the action's ArraySpec, rate, distance of the first action, force. Every intervention is
returned, counted and meant for the log; a stop stays until :meth:`SafetyChain.reset`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.spec import Array, ArraySpec

type Kind = Literal["not_finite", "limit", "rate", "first_action", "force", "runtime"]


@dataclass(frozen=True)
class Config:
    """Limits beyond those of the action's ArraySpec."""

    max_rate: tuple[float, ...] | float | None = None
    """Largest change of the action per second, in action units / s, one for all entries or one each; None for none."""
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
        for name in ("max_rate", "max_first_distance", "max_force"):
            value = getattr(self, name)
            if value is not None and not (np.asarray(value, float) > 0).all():
                raise ConfigError(f"safety: {name} must be positive, found {value}.")
        if self.max_bad_actions < 0:
            raise ConfigError(f"safety: max_bad_actions must not be negative, found {self.max_bad_actions}.")


@dataclass(frozen=True)
class Intervention:
    """One thing that the chain did."""

    kind: Kind
    """Which check."""
    message: str
    """What was found, which limit it broke, and what was done."""
    entry: int = -1
    """Action entry that was farthest out; -1 for the whole action."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for the tick log."""
        return {"kind": self.kind, "entry": self.entry, "message": self.message}


@dataclass(frozen=True)
class Verdict:
    """What may be sent."""

    action: Array
    """(A,) float32, always finite and within the limits."""
    interventions: tuple[Intervention, ...]
    """What was changed, in order."""
    stop: str
    """Why the run must end; "" to go on."""


class SafetyChain:
    """Checks one action per control tick; remembers the last one it let pass."""

    def __init__(self, config: Config, action: ArraySpec, control_dt: float) -> None:
        """Prepare.

        Args:
            config: Limits.
            action: One action (A,), with its limits.
            control_dt: Seconds between two actions.

        Raises:
            ConfigError: If a limit has another number of entries than the action.
        """
        self.config = config
        self.counts: Counter[str] = Counter()
        self._spec = action
        self._hold = config.at_stop == "hold" or (config.at_stop == "auto" and not _is_rate(action.unit))
        self._dt = control_dt
        low, high = action.bounds()
        self._low, self._high = low.astype(np.float32), high.astype(np.float32)
        self._rate = _limit("max_rate", config.max_rate, action)
        self._first = _limit("max_first_distance", config.max_first_distance, action)
        self.reset()

    def reset(self) -> None:
        """Begin a run: nothing has been sent, nothing is stopped; counts stay."""
        self._last: Array | None = None
        self._bad = 0
        self._stop = ""

    def apply(self, action: Array, observation: Mapping[str, Any]) -> Verdict:
        """Check one action.

        Args:
            action: (A,) as planned.
            observation: The newest one, N = 1.
        """
        if self._stop:
            return Verdict(self.resting_action(), (), self._stop)
        found: list[Intervention] = []
        wanted = np.array(action, np.float32).reshape(self._spec.shape)
        for check in (self._check_finite, self._check_limits, self._check_rate, self._check_first, self._check_force):
            wanted, intervention, stop = check(wanted, observation)
            if intervention is not None:
                found.append(intervention)
                self.counts[intervention.kind] += 1
            if stop and intervention is not None:
                self._stop = intervention.message
                return Verdict(self.resting_action(), tuple(found), self._stop)
        self._last = wanted
        return Verdict(wanted.copy(), tuple(found), "")

    def stop(self, reason: str) -> Verdict:
        """Stop for a reason from outside, for example a stale observation."""
        if not self._stop:
            self._stop = reason
            self.counts["runtime"] += 1
        return Verdict(self.resting_action(), (Intervention("runtime", reason),), self._stop)

    def resting_action(self) -> Array:
        """Return what to send when stopped, (A,) within the limits: see ``Config.at_stop``."""
        if self._hold and self._last is not None:
            return self._last.copy()
        resting: Array = np.clip(np.zeros(self._spec.shape, np.float32), self._low, self._high)
        return resting

    def _check_finite(self, action: Array, _: Mapping[str, Any]) -> tuple[Array, Intervention | None, bool]:
        bad = ~np.isfinite(action)
        if not bad.any():
            self._bad = 0
            return action, None, False
        self._bad += 1
        entry = int(np.argmax(bad))
        stop = self._last is None or self._bad > self.config.max_bad_actions
        what = "the run stops" if stop else "the last action is sent again"
        message = f"action entry {self._name(entry)} is {action[entry]}; {what}"
        return (
            self.resting_action() if self._last is None else self._last,
            Intervention("not_finite", message, entry),
            stop,
        )

    def _check_limits(self, action: Array, _: Mapping[str, Any]) -> tuple[Array, Intervention | None, bool]:
        inside = np.clip(action, self._low, self._high)
        if np.array_equal(inside, action):
            return action, None, False
        entry = int(np.argmax(np.abs(inside - action)))
        message = (
            f"action entry {self._name(entry)} is {action[entry]:.4g}, outside "
            f"[{self._low[entry]:.4g}, {self._high[entry]:.4g}] {self._spec.unit}; cut".replace(" ;", ";")
        )
        return inside, Intervention("limit", message, entry), False

    def _check_rate(self, action: Array, observation: Mapping[str, Any]) -> tuple[Array, Intervention | None, bool]:
        if self._rate is None:
            return action, None, False
        before = self._last if self._last is not None else self._measured(observation)
        if before is None:
            return action, None, False
        step = (self._rate * self._dt).astype(np.float32)
        inside = np.clip(np.clip(action, before - step, before + step), self._low, self._high)
        if np.allclose(inside, action, rtol=1e-6, atol=1e-7):
            return action, None, False
        entry = int(np.argmax(np.abs(inside - action)))
        message = (
            f"action entry {self._name(entry)} changes by {action[entry] - before[entry]:.4g} within {self._dt:.4g} s; "
            f"the limit is {self._rate[entry]:.4g} per second; slowed down"
        )
        return inside, Intervention("rate", message, entry), False

    def _check_first(self, action: Array, observation: Mapping[str, Any]) -> tuple[Array, Intervention | None, bool]:
        if self._first is None or self._last is not None:
            return action, None, False
        here = self._measured(observation)
        distance = np.abs(action - (np.zeros_like(action) if here is None else here))
        if (distance <= self._first).all():
            return action, None, False
        entry = int(np.argmax(distance / self._first))
        message = (
            f"the first action is {distance[entry]:.4g} {self._spec.unit} from where the robot is in entry "
            f"{self._name(entry)}; the limit is {self._first[entry]:.4g}; the run is refused"
        )
        return action, Intervention("first_action", message, entry), True

    def _check_force(self, action: Array, observation: Mapping[str, Any]) -> tuple[Array, Intervention | None, bool]:
        if not self.config.force_key:
            return action, None, False
        vector = _entries(observation, self.config.force_key, self.config.force_entries)
        force = float(np.linalg.norm(vector))
        if force <= self.config.max_force:  # a force that is not a number stops, too
            return action, None, False
        message = f"the force is {force:.4g} N; the limit is {self.config.max_force:.4g} N; the run stops"
        return action, Intervention("force", message), True

    def _measured(self, observation: Mapping[str, Any]) -> Array | None:
        if not self.config.position_key:
            return None
        entries = self.config.position_entries or tuple(range(self._spec.shape[0]))
        if len(entries) != self._spec.shape[0]:
            raise ConfigError(
                f"safety: position_entries has {len(entries)} entries, the action has {self._spec.shape[0]}."
            )
        return _entries(observation, self.config.position_key, entries).astype(np.float32)

    def _name(self, entry: int) -> str:
        return f"{entry} ({self._spec.names[entry]})" if self._spec.names else str(entry)


def _is_rate(unit: str) -> bool:
    parts = [part.strip() for part in unit.split(",")]
    return all("/s" in part or part in ("N", "N m", "Nm", "N*m") for part in parts)


def _limit(name: str, value: tuple[float, ...] | float | None, spec: ArraySpec) -> Array | None:
    if value is None:
        return None
    limit = np.asarray(value, float)
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
