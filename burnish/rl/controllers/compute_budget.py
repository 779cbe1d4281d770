"""End a run when it has used what it was given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from burnish.core.contracts import Decision
from burnish.core.errors import ConfigError


@dataclass(frozen=True)
class Config:
    """Stop after an iteration that reached a limit; 0 means no limit."""

    env_steps: int = 0
    """Executed actions, all environments together."""
    episodes: int = 0
    """Finished episodes."""
    seconds: float = 0.0
    """Wall-clock time of training, earlier parts of a resumed run included."""

    def __post_init__(self) -> None:
        """Refuse a budget without a limit."""
        if min(self.env_steps, self.episodes, self.seconds) < 0 or not (
            self.env_steps or self.episodes or self.seconds
        ):
            raise ConfigError(
                "compute_budget: set env_steps, episodes or seconds above 0; found "
                f"env_steps={self.env_steps}, episodes={self.episodes}, seconds={self.seconds}."
            )

    def build(self) -> "ComputeBudget":
        """Return the controller."""
        return ComputeBudget(self)


class ComputeBudget:
    """See :class:`Config`."""

    def __init__(self, config: Config) -> None:
        """Keep the limits."""
        self._limits = {"env_steps": config.env_steps, "episodes": config.episodes, "seconds": config.seconds}

    def after(self, moment: Literal["epoch", "iteration"], metrics: Mapping[str, float]) -> Decision:
        """Decide after an iteration."""
        if moment == "iteration":
            for name, limit in self._limits.items():
                if limit and metrics[name] >= limit:
                    return Decision("stop", reason=f"the budget of {limit:g} {name} is used up ({metrics[name]:g})")
        return Decision()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing; the run counts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""
