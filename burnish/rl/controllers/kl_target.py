"""Adapt the learning rate or a coefficient so that each update moves the policy by a wanted amount."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from burnish.core.contracts import Decision
from burnish.core.errors import ConfigError, suggest


@dataclass(frozen=True)
class Config:
    """After each iteration: too far is answered by smaller steps, not far enough by larger ones."""

    target: float = 0.01
    """Wanted KL of an update, nats per ratio."""
    adapt: Literal["learning_rate", "coefficient"] = "learning_rate"
    """What is adapted."""
    objective: str = "divergence_previous"
    """Name of the objective whose coefficient is adapted."""
    metric: str = "clipped_ratio/kl"
    """Figure that is compared with the target."""
    band: float = 2.0
    """Nothing changes between target / band and target * band."""
    factor: float = 1.5
    """By how much to change."""
    lowest: float = 0.01
    """Smallest learning rate as a multiple of the configured one, or smallest coefficient."""
    highest: float = 10.0
    """Largest learning rate as a multiple of the configured one, or largest coefficient."""
    initial_coefficient: float = 1.0
    """Coefficient at the start, if one is adapted."""

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.target <= 0 or self.band < 1 or self.factor <= 1 or not 0 < self.lowest <= self.highest:
            raise ConfigError(
                "kl_target: needs target > 0, band >= 1, factor > 1 and 0 < lowest <= highest; found "
                f"target={self.target}, band={self.band}, factor={self.factor}, lowest={self.lowest}, "
                f"highest={self.highest}."
            )

    def build(self) -> "KlTarget":
        """Return the controller."""
        return KlTarget(self)


class KlTarget:
    """See :class:`Config`."""

    def __init__(self, config: Config) -> None:
        """Start from the configured rate or coefficient."""
        self._config = config
        self._level = 1.0 if config.adapt == "learning_rate" else config.initial_coefficient

    def after(self, moment: Literal["epoch", "iteration"], metrics: Mapping[str, float]) -> Decision:
        """Change the level after an iteration whose KL left the band."""
        config = self._config
        kl = read_metric("kl_target", config.metric, metrics)
        if moment != "iteration":
            return Decision()
        smaller = kl > config.target * config.band
        larger = kl < config.target / config.band
        if not (smaller or larger):
            return Decision()
        up = larger if config.adapt == "learning_rate" else smaller
        before = self._level
        level = before * config.factor if up else before / config.factor
        self._level = min(max(level, config.lowest), config.highest)
        reason = f"{config.metric} {kl:.3g} against a target of {config.target:g}"
        if config.adapt == "learning_rate":
            return Decision(learning_rate_factor=self._level / before, reason=reason)
        return Decision(coefficients={config.objective: self._level}, reason=reason)

    def state_dict(self) -> dict[str, Any]:
        """Return the level."""
        return {"level": self._level}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the level."""
        self._level = float(state["level"])


def read_metric(controller: str, name: str, metrics: Mapping[str, float]) -> float:
    """Return a figure of the run.

    Raises:
        ConfigError: If the run does not give it.
    """
    if name not in metrics:
        raise ConfigError(f"{controller}: this run has no figure '{name}'.{suggest(name, metrics)}")
    return metrics[name]
