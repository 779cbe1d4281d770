"""Advantages with mean 0 and standard deviation 1 over a rollout."""

from dataclasses import dataclass

from burnish.core.contracts import TrainablePolicy
from burnish.core.errors import ConfigError
from burnish.data.rollout import Rollout
from burnish.rl.advantages import normalise


@dataclass(frozen=True)
class Config:
    """Normalise the advantages that labelers before this one set."""

    epsilon: float = 1e-8
    """Added to the standard deviation."""

    def build(self) -> "AdvantageNormalisation":
        """Return the labeler."""
        return AdvantageNormalisation(self)


class AdvantageNormalisation:
    """See :class:`Config`."""

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self._config = config

    def label(self, rollout: Rollout, policy: TrainablePolicy, reference: TrainablePolicy) -> Rollout:
        """Replace ``advantage``.

        Raises:
            ConfigError: If no labeler before this one set advantages.
        """
        if rollout.advantage is None:
            raise ConfigError("advantage_normalisation found no advantages: put it after 'gae' or 'group_relative'.")
        counted = rollout.executed > 0
        return rollout.replace(advantage=normalise(rollout.advantage, counted, epsilon=self._config.epsilon))
