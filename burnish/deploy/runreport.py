"""How a run of the fixed-rate loop went."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from burnish.core.spec import Array, ArraySpec
from burnish.deploy.agreement import Agreement, agreement
from burnish.deploy.asking import Asking
from burnish.deploy.robot import Outcome


@dataclass(frozen=True)
class RuntimeReport:
    """How a run went."""

    clock: str
    control_dt: float
    ticks: int
    """Control ticks."""
    kinds: Mapping[str, int]
    """Ticks by kind: planned, slow, held, waiting, driven by a human, held by the dead-man's switch."""
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
    """(T, A) float32, what was sent; in a dry run or a shadow run, what would have been."""
    in_painted: int = 0
    """Chunks that were made to go on from a plan."""
    takeovers: int = 0
    """How often a human took over."""
    would_stop: Mapping[str, int] = field(default_factory=dict)
    """In a shadow run, how often it would have stopped, by the kind of reason; the log has the words."""
    agreement: Agreement | None = None
    """In a shadow run, how far the policy was from what was done."""
    spec: ArraySpec | None = None
    """The action's."""

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
        if self.in_painted:
            lines.append(f"in-painting {self.in_painted} of {len(self.delays)} chunks went on from the plan")
        if self.takeovers:
            lines.append(f"human       took over {self.takeovers}x, for {self.kinds.get('human', 0)} ticks")
        lines.extend(f"would stop  {count}x: {reason}" for reason, count in self.would_stop.items())
        if self.agreement is not None and self.spec is not None:
            lines.extend(self.agreement.text(self.spec))
        lines.extend(f"  {name:<28}{value:.4g}" for name, value in self.metrics.items())
        return "\n".join(lines)

    def _end(self) -> str:
        if self.stop:
            return f"STOPPED: {self.stop}"
        return "terminated" if self.terminated else "truncated" if self.truncated else "tick limit"


@dataclass
class Tally:
    """What is counted while a run goes on."""

    kinds: Counter[str] = field(default_factory=Counter)
    """Ticks by kind."""
    moments: list[float] = field(default_factory=list)
    """When each tick began [s]."""
    sent: list[Array] = field(default_factory=list)
    """What was sent, (A,) each."""
    pairs: tuple[list[Array], list[Array]] = field(default_factory=lambda: ([], []))
    """What a policy in the shadow would have done, and what was done, (A,) each."""
    would_stop: Counter[str] = field(default_factory=Counter)
    """Reasons to stop, in a shadow run, by kind."""
    late_ticks: int = 0
    takeovers: int = 0
    return_: float = 0.0

    def report(
        self,
        *,
        asking: Asking,
        clock: str,
        control_dt: float,
        interventions: Mapping[str, int],
        stop: str,
        outcome: Outcome,
        action: ArraySpec,
    ) -> RuntimeReport:
        """Return the report of a run that has ended.

        Args:
            asking: Who asked the policy.
            clock: Name of the clock.
            control_dt: Seconds per tick.
            interventions: By kind.
            stop: Why it was stopped, or "".
            outcome: Of the last action.
            action: The action's spec.
        """
        return RuntimeReport(
            clock=clock,
            control_dt=control_dt,
            ticks=len(self.moments),
            kinds=dict(self.kinds),
            late_ticks=self.late_ticks,
            inference_ms=np.asarray(asking.inference_ms, float),
            jitter_ms=np.abs(np.diff(self.moments) - control_dt) * 1e3,
            delays=np.asarray(asking.delays, np.int64),
            interventions=dict(interventions),
            stop=stop,
            return_=self.return_,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            metrics=dict(outcome.metrics),
            action=np.stack(self.sent) if self.sent else np.zeros((0, *action.shape), np.float32),
            in_painted=asking.in_painted,
            takeovers=self.takeovers,
            would_stop=dict(self.would_stop),
            agreement=agreement(*self.pairs),
            spec=action,
        )


def _quantiles(values: Array) -> str:
    if not len(values):
        return "not measured"
    return f"p50 {np.quantile(values, 0.5):.2f} ms, p99 {np.quantile(values, 0.99):.2f} ms"
