"""Judge scenes at import: what its own log cannot drive is dropped, and counted with a reason.

A scene is kept where no two road users overlap at the start, and where the ego, put where its log says step by step,
touches nobody by its own fault, stays on the road, and gets to the end of its path.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from burnish.envs.driving.bank import Bank
from burnish.envs.driving.geometry import box_distance, rounded
from burnish.envs.driving.scene import Scene
from burnish.envs.driving.scoring import Scoring
from burnish.envs.driving.simulator import Core, Simulator

LEAST_PROGRESS = 0.99
REASONS = ("overlap at the start", "collision at fault", "offroad", "progress below 0.99")


@dataclass(frozen=True)
class Verdict:
    """What became of one scene."""

    id: str
    """Id of the scene."""
    reason: str
    """One of ``REASONS``, "" where the scene is kept."""
    collision_at_fault: bool
    offroad: bool
    progress: float
    """Share of its own path that the log covers, 0 to 1."""
    scene_score: float


@dataclass(frozen=True)
class Report:
    """What became of all scenes."""

    kept: list[Scene] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def dropped(self) -> dict[str, int]:
        """Reason to number of scenes."""
        return dict(Counter(verdict.reason for verdict in self.verdicts if verdict.reason))

    def summary(self) -> str:
        """Return one line: how many were kept, and why others were not."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"kept {len(self.kept)} of {len(self.verdicts)} scenes" + (f"; dropped: {reasons}" if reasons else "")


def overlaps_at_start(scene: Scene) -> bool:
    """Return whether any two road users touch in the first step."""
    here = np.flatnonzero(scene.track_valid[:, 0])
    boxes = np.concatenate((scene.track_states[here, 0, :3], scene.track_sizes[here]), -1)
    inner, radius = rounded(boxes)
    one, two = np.triu_indices(len(here), 1)
    touching = box_distance(inner[one], inner[two]) <= radius[one] + radius[two]
    return bool(touching.any())


def lint(scenes: Sequence[Scene], *, core: Core = "auto") -> Report:
    """Replay scenes and keep the sound ones.

    Args:
        scenes: Any number, with different ids.
        core: What computes; see :class:`burnish.envs.driving.simulator.Simulator`.
    """
    report = Report()
    if not scenes:
        return report
    bank = Bank(max(scene.num_tracks for scene in scenes))
    numbers = [bank.add(scene) for scene in scenes]
    simulator = Simulator(bank, len(numbers), core=core)
    simulator.reset(numbers, ego="log")
    scoring = Scoring(len(numbers), corridor=np.inf)
    scoring.begin(simulator, np.arange(len(numbers)))
    while not (ended := simulator.ended()).all():
        simulator.step()
        scoring.update(simulator, ~ended)
    score = scoring.scene_score()
    for w, scene in enumerate(scenes):
        faults = (
            overlaps_at_start(scene),
            bool(scoring.collision_at_fault[w]),
            bool(scoring.offroad[w]),
            scoring.progress[w] < LEAST_PROGRESS and scoring.log_length[w] >= 1.0,
        )
        reason = next((reason for reason, fault in zip(REASONS, faults, strict=True) if fault), "")
        report.verdicts.append(
            Verdict(scene.id, reason, faults[1], faults[2], float(scoring.progress[w]), float(score[w]))
        )
        if not reason:
            report.kept.append(scene)
    return report
