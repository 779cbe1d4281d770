"""The Scene Score of running episodes, kept up to date step by step: equal to ``metrics.scene_score`` of all rows."""

import numpy as np

from burnish.core.frames import wrap
from burnish.core.spec import Array
from burnish.envs.driving.layout import DT, FRONT, LATERAL, OFFROAD, REAR
from burnish.envs.driving.metrics import COMFORT_LIMITS, CORRIDOR, score_of
from burnish.envs.driving.simulator import Simulator


class Scoring:
    """One score for each world of a simulator."""

    def __init__(self, worlds: int, *, corridor: float = CORRIDOR) -> None:
        """Begin with episodes that have no row.

        Args:
            worlds: W.
            corridor: Distance to the logged path that ends the rows [m].
        """
        self._corridor = corridor
        self.open = np.zeros(worlds, bool)
        self.collision_at_fault = np.zeros(worlds, bool)
        self.collision_any = np.zeros(worlds, bool)
        self.offroad = np.zeros(worlds, bool)
        self.left_corridor = np.zeros(worlds, bool)
        self.progress = np.zeros(worlds)
        self.dist_to_gt_trajectory = np.zeros(worlds)
        self.dist_traveled_m = np.zeros(worlds)
        self.log_length = np.zeros(worlds)
        self.steps = np.zeros(worlds, np.int64)
        self.peaks = {name: np.zeros(worlds) for name in COMFORT_LIMITS}
        self._before = np.zeros((worlds, 4))

    def begin(self, simulator: Simulator, where: Array) -> None:
        """Begin episodes of worlds (n,) with the row of their present state."""
        for array in (
            self.collision_at_fault,
            self.collision_any,
            self.offroad,
            self.left_corridor,
            self.progress,
            self.dist_to_gt_trajectory,
            self.dist_traveled_m,
            self.steps,
            *self.peaks.values(),
        ):
            array[where] = 0
        tables = simulator.bank.tables()
        start, count = tables.logs[simulator.state.scene[where]].T
        self.log_length[where] = tables.log_points[start + count - 1, 2]
        self.open[where] = True
        motion = simulator.state.motion[where, 0]
        self._before[where] = np.stack((motion[:, 2], motion[:, 3], motion[:, 5], _yaw_rate(simulator)[where]), -1)
        self._row(simulator, np.isin(np.arange(len(self.open)), where), np.zeros(len(self.open), np.uint8))

    def update(self, simulator: Simulator, moved: Array) -> Array:
        """Add the row of the step just taken, in worlds (W,) that moved, and return where it was comfortable (W,)."""
        smooth = self._feel(simulator, moved)
        self.steps[moved] += 1
        self._row(simulator, moved, simulator.state.events[:, 0])
        return smooth

    def _row(self, simulator: Simulator, which: Array, events: Array) -> None:
        live = which & self.open
        place, gap = simulator.progress()
        self.progress[live] = place[live]
        self.dist_to_gt_trajectory[live] = np.maximum(self.dist_to_gt_trajectory, gap)[live]
        self.dist_traveled_m[live] = simulator.traveled[live]
        self.collision_at_fault |= live & ((events & (FRONT | LATERAL)) > 0)
        self.collision_any |= live & ((events & (FRONT | LATERAL | REAR)) > 0)
        self.offroad |= live & ((events & OFFROAD) > 0)
        ended = live & ((events & (FRONT | LATERAL | REAR | OFFROAD)) > 0)
        outside = live & (gap >= self._corridor)
        self.left_corridor |= outside
        self.open &= ~(ended | outside)

    def _feel(self, simulator: Simulator, moved: Array) -> Array:
        """Keep the largest accelerations and turn rates, over the whole episode."""
        motion, rate = simulator.state.motion[:, 0], _yaw_rate(simulator)
        before = self._before
        turn = wrap(motion[:, 2] - before[:, 0]) / DT
        along = (motion[:, 3] - before[:, 1]) / DT
        figures = {
            "acceleration": along,
            "braking": -along,
            "lateral_acceleration": np.abs(motion[:, 3] * turn),
            "jerk": np.abs(motion[:, 5] - before[:, 2]) / DT,
            "yaw_rate": np.abs(turn),
            "yaw_acceleration": np.abs(rate - before[:, 3]) / DT,
        }
        for name, figure in figures.items():
            self.peaks[name][moved] = np.maximum(self.peaks[name], figure)[moved]
        now = np.stack((motion[:, 2], motion[:, 3], motion[:, 5], rate), -1)
        self._before[moved] = now[moved]
        return np.asarray(np.all([figures[name] <= limit for name, limit in COMFORT_LIMITS.items()], axis=0))

    @property
    def failed(self) -> Array:
        """(W,) offroad or at fault."""
        failed: Array = self.collision_at_fault | self.offroad
        return failed

    @property
    def comfortable(self) -> Array:
        """(W,) whether every peak is within ``COMFORT_LIMITS``."""
        within: Array = np.all([self.peaks[name] <= limit for name, limit in COMFORT_LIMITS.items()], axis=0)
        return within

    def scene_score(self) -> Array:
        """Return (W,) Scene Scores of the rows so far."""
        return score_of(self.progress, self.log_length, self.failed)


def _yaw_rate(simulator: Simulator) -> Array:
    motion = simulator.state.motion[:, 0]
    rate: Array = motion[:, 3] * np.tan(motion[:, 4]) / simulator.vehicle.wheelbase
    return rate
