"""Generalised advantage estimation over action chunks."""

from dataclasses import dataclass

from burnish.core.contracts import TrainablePolicy
from burnish.core.errors import ConfigError
from burnish.data.rollout import Rollout
from burnish.rl.advantages import chunk_gae


@dataclass(frozen=True)
class Config:
    """Set advantages and the critic's targets from rewards and values; see :mod:`burnish.rl.advantages`."""

    discount: float = 0.99
    """gamma, per action."""
    gae_lambda: float = 0.95
    """lambda, per chunk."""
    discount_per_chunk: bool = False
    """Apply gamma once per chunk, whatever its length; an ablation."""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("discount", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"gae: {name} must be within [0, 1], found {getattr(self, name)}.")

    def build(self) -> "GaeLabeler":
        """Return the labeler."""
        return GaeLabeler(self)


class GaeLabeler:
    """See :class:`Config`."""

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self._config = config

    def label(self, rollout: Rollout, policy: TrainablePolicy, reference: TrainablePolicy) -> Rollout:
        """Set ``advantage`` and ``return_``.

        Raises:
            ConfigError: If the policy has no critic, so that the rollout has no values.
        """
        if rollout.value is None or rollout.next_value is None:
            raise ConfigError(
                f"gae needs values, but policy '{policy.spec.id}' has no value(): give it a critic, "
                "or use the labeler 'group_relative'."
            )
        advantage, return_ = chunk_gae(
            rollout.reward,
            rollout.executed,
            rollout.value,
            rollout.next_value,
            rollout.terminated,
            rollout.truncated,
            discount=self._config.discount,
            gae_lambda=self._config.gae_lambda,
            discount_per_chunk=self._config.discount_per_chunk,
        )
        return rollout.replace(advantage=advantage, return_=return_)
