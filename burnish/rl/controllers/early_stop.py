"""End an update that has moved the policy far enough, or undo one that went much too far."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from burnish.core.contracts import Decision
from burnish.core.errors import ConfigError
from burnish.rl.controllers.kl_target import read_metric


@dataclass(frozen=True)
class Config:
    """After each epoch: compare the KL to the behaviour policy with limits."""

    limit: float = 0.03
    """KL above which no further epoch runs, nats per ratio."""
    revert_above: float = 0.0
    """Above 0: KL above which the update is also undone."""
    metric: str = "clipped_ratio/kl"
    """Figure that is compared."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.limit <= 0 or (self.revert_above and self.revert_above < self.limit):
            raise ConfigError(
                f"early_stop: needs limit > 0 and revert_above 0 or at least limit; found limit={self.limit}, "
                f"revert_above={self.revert_above}."
            )

    def build(self) -> "EarlyStop":
        """Return the controller."""
        return EarlyStop(self)


class EarlyStop:
    """See :class:`Config`."""

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self._config = config

    def after(self, moment: Literal["epoch", "iteration"], metrics: Mapping[str, float]) -> Decision:
        """Decide after an epoch."""
        if moment != "epoch":
            return Decision()
        kl = read_metric("early_stop", self._config.metric, metrics)
        reason = f"{self._config.metric} is {kl:.3g}"
        if self._config.revert_above and not kl <= self._config.revert_above:
            return Decision("revert", reason=f"{reason}, above {self._config.revert_above:g}")
        if not kl <= self._config.limit:
            return Decision("stop_epochs", reason=f"{reason}, above {self._config.limit:g}")
        return Decision()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing; there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""
