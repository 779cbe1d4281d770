"""Advantages of whole episodes relative to others from the same Start; needs no critic."""

from dataclasses import dataclass

import numpy as np

from burnish.core.contracts import TrainablePolicy
from burnish.core.errors import ConfigError
from burnish.core.spec import Array
from burnish.data.rollout import Rollout
from burnish.rl.advantages import group_relative


@dataclass(frozen=True)
class Config:
    """Give every decision of an episode its return minus the group's mean; degenerate groups give 0."""

    divide_by_std: bool = True
    """Divide by the group's standard deviation."""
    leave_one_out: bool = False
    """Compare with the mean of the other members only."""
    epsilon: float = 1e-6
    """A group whose returns have a standard deviation not above this is degenerate."""

    def build(self) -> "GroupRelativeLabeler":
        """Return the labeler."""
        return GroupRelativeLabeler(self)


class GroupRelativeLabeler:
    """See :class:`Config`."""

    def __init__(self, config: Config) -> None:
        """Keep the numbers."""
        self._config = config

    def label(self, rollout: Rollout, policy: TrainablePolicy, reference: TrainablePolicy) -> Rollout:
        """Set ``advantage``, and count groups and degenerate groups in the metrics.

        Raises:
            ConfigError: If an episode is not whole inside the rollout.
        """
        ran = rollout.executed > 0
        numbers, member = np.unique(rollout.episode[ran], return_inverse=True)
        _check_whole(rollout, numbers, member, ran)
        return_ = np.bincount(member, rollout.reward.sum(-1, dtype=np.float64)[ran], minlength=len(numbers))
        group = np.full(len(numbers), -1, np.int64)
        group[member] = rollout.group[ran]
        result = group_relative(
            return_,
            group,
            divide_by_std=self._config.divide_by_std,
            leave_one_out=self._config.leave_one_out,
            epsilon=self._config.epsilon,
        )
        advantage = np.zeros(rollout.executed.shape, np.float32)
        advantage[ran] = result.advantage[member]
        return rollout.replace(advantage=advantage).with_metrics(
            groups=float(result.groups), degenerate_groups=float(result.degenerate)
        )


def _check_whole(rollout: Rollout, numbers: Array, member: Array, ran: Array) -> None:
    length = np.bincount(member, rollout.executed[ran], minlength=len(numbers))
    finished = {
        number: summary.length for number, summary in zip(rollout.episode_numbers, rollout.episodes, strict=True)
    }
    partial = [int(n) for n, steps in zip(numbers, length, strict=True) if finished.get(int(n)) != int(steps)]
    if partial:
        raise ConfigError(
            f"group_relative needs whole episodes, but {len(partial)} of {len(numbers)} episodes begin before or end "
            f"after the rollout (first: episode {partial[0]}). Set rollout_episodes instead of rollout_chunks."
        )
