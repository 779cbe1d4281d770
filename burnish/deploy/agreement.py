"""How far a policy that only watches is from the one who drives, tick by tick."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burnish.core.spec import Array, ArraySpec


@dataclass(frozen=True)
class Agreement:
    """Differences between what the policy would have done and what was done, over T ticks, per entry (A,) float64."""

    ticks: int
    """Ticks that had both."""
    mean: Array
    """Mean of (policy - actual): a bias."""
    rms: Array
    """Root mean square of the differences."""
    p95: Array
    """95 % of the absolute differences are at most this."""
    largest: Array
    """Largest absolute difference."""
    correlation: Array
    """Pearson correlation over time; nan where one of them never changed."""

    def text(self, action: ArraySpec) -> list[str]:
        """Return one line per action entry for a terminal."""
        unit = f" {action.unit}" if action.unit and "," not in action.unit else ""
        lines = [f"agreement over {self.ticks} ticks (policy - actual{unit})"]
        for entry in range(len(self.rms)):
            name = action.names[entry] if action.names else str(entry)
            lines.append(
                f"  {name:<16}rms {self.rms[entry]:.3g}, bias {self.mean[entry]:+.3g}, p95 {self.p95[entry]:.3g}, "
                f"largest {self.largest[entry]:.3g}, correlation {self.correlation[entry]:.2f}"
            )
        return lines


def agreement(policy: Sequence[Array], actual: Sequence[Array]) -> Agreement | None:
    """Compare two lists of T actions (A,); None for T = 0."""
    if not policy:
        return None
    ours, theirs = np.asarray(policy, float), np.asarray(actual, float)
    difference = ours - theirs
    spread = ours.std(0) * theirs.std(0)
    covariance = ((ours - ours.mean(0)) * (theirs - theirs.mean(0))).mean(0)
    return Agreement(
        ticks=len(ours),
        mean=difference.mean(0),
        rms=np.sqrt((difference**2).mean(0)),
        p95=np.quantile(np.abs(difference), 0.95, axis=0),
        largest=np.abs(difference).max(0),
        correlation=np.divide(covariance, spread, out=np.full(spread.shape, np.nan), where=spread > 0),
    )
