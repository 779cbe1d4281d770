"""What looks wrong about an evaluation whatever the task: numbers that are too regular to be a measurement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.core.spec import Array, ArraySpec, MetricSpec
from burnish.evaluation.result import EpisodeRow, column

SATURATED = 0.5
"""Share of action entries at a limit above which an alarm is raised."""


@dataclass
class ActionRange:
    """Running extent of all executed actions."""

    low: Array
    """(A,) smallest entries so far."""
    high: Array
    """(A,) largest entries so far."""
    entries: int = 0
    """Action entries seen."""
    at_limit: int = 0
    """Action entries at or beyond a limit of the spec."""

    @staticmethod
    def empty(action_dim: int) -> "ActionRange":
        """Return the range of no action."""
        return ActionRange(np.full(action_dim, np.inf), np.full(action_dim, -np.inf))

    def add(self, action: Array, spec: ArraySpec) -> None:
        """Take the executed actions (T, A) of an episode in."""
        if not len(action):
            return
        self.low = np.minimum(self.low, action.min(0))
        self.high = np.maximum(self.high, action.max(0))
        low, high = spec.bounds()
        self.entries += action.size
        self.at_limit += int(((action <= low) | (action >= high)).sum())


def alarms(
    episodes: Sequence[EpisodeRow], specs: Mapping[str, MetricSpec], actions: ActionRange, max_episode_steps: int
) -> list[str]:
    """Return everything that looks wrong, in words; empty where nothing does.

    Args:
        episodes: Rows of an evaluation.
        specs: What their figures mean.
        actions: Extent of all executed actions.
        max_episode_steps: Step limit of the environment.
    """
    return [
        *_about_episodes(episodes, max_episode_steps),
        *_about_actions(actions),
        *_about_readings(episodes, specs),
    ]


def _about_episodes(episodes: Sequence[EpisodeRow], max_episode_steps: int) -> list[str]:
    found: list[str] = []
    lengths = {row.length for row in episodes}
    starts = {row.start for row in episodes}
    if len(starts) < len(episodes):
        found.append(f"Only {len(starts)} of {len(episodes)} Starts are different; the rest repeats the same episode.")
    if lengths == {1}:
        found.append("Every episode has length 1: it ends as soon as it begins.")
    elif len(episodes) > 1 and lengths == {max_episode_steps} and not any(row.success for row in episodes):
        found.append(f"Every episode ran into the limit of {max_episode_steps} steps, and none succeeded.")
    outcomes = {(row.length, row.return_, tuple(sorted(row.metrics.items()))) for row in episodes}
    if len(starts) > 1 and len(outcomes) == 1 and lengths != {1}:
        found.append(f"All {len(episodes)} episodes are equal in every figure: the Starts seem to change nothing.")
    short = sum(row.success and row.length == 1 for row in episodes)
    if short and lengths != {1}:
        found.append(f"{short} of {len(episodes)} episodes succeed at their first action.")
    broken = sum(not np.isfinite(row.return_) for row in episodes)
    if broken:
        found.append(f"The return of {broken} of {len(episodes)} episodes is not finite.")
    return found


def _about_actions(actions: ActionRange) -> list[str]:
    found: list[str] = []
    if actions.entries and np.array_equal(actions.low, actions.high):
        found.append("The actions are all equal: the policy does not react to what it sees.")
    elif actions.entries and (fixed := np.flatnonzero(actions.low == actions.high)).size:
        found.append(f"Action entries {fixed.tolist()} never change.")
    if actions.entries and actions.at_limit > SATURATED * actions.entries:
        share = 100 * actions.at_limit / actions.entries
        found.append(f"{share:.0f} % of the action entries are at a limit: check the units and the normalisation.")
    return found


def _about_readings(episodes: Sequence[EpisodeRow], specs: Mapping[str, MetricSpec]) -> list[str]:
    found: list[str] = []
    reported: set[str] = set()
    for name, spec in specs.items():
        reading = column(episodes, name)
        if np.isnan(reading).all():
            found.append(f"'{name}' has no readings: it is NaN in every episode.")
        if not spec.per or spec.per in reported:
            continue
        reported.add(spec.per)
        below = np.nan_to_num(column(episodes, spec.per))
        blind = sum(row.success and amount == 0 for row, amount in zip(episodes, below, strict=True))
        if not below.any():
            found.append(f"'{name}' has no readings: '{spec.per}' is 0 in every episode.")
        elif blind:
            found.append(f"{blind} episodes succeed with no reading of '{spec.per}', on which '{name}' rests.")
    return found
