"""Numbers that the compiled core and its numpy twin share: columns, codes, and how an observation is laid out."""

from typing import NamedTuple

import numpy as np

from burnish.core.spec import Array
from burnish.envs.driving.bank import ROAD_TOKENS

DT = 0.1
"""Seconds in a step of the simulator."""
X, Y, YAW, SPEED, STEERING, ACCELERATION = range(6)
"""Columns of ``State.motion``; x and y are those of the rear axle."""
REPLAY, IDM, POLICY = range(3)
"""How a slot is moved."""
FRONT, REAR, LATERAL, OFFROAD = 1, 2, 4, 8
"""Bits of an event."""

EGO_ENTRIES, PARTNERS, PARTNER_ENTRIES, ROAD_ENTRIES = 7, 31, 7, 7
OBSERVATION_SIZE = EGO_ENTRIES + PARTNERS * PARTNER_ENTRIES + ROAD_TOKENS * ROAD_ENTRIES
"""1848, as in PufferDrive."""
VIEW = 60.0
"""Partners further away than this are not seen [m]."""
DISTANCE_SCALE, SPEED_SCALE, LENGTH_SCALE, WIDTH_SCALE, ACCELERATION_SCALE = 50.0, 30.0, 10.0, 5.0, 8.0
"""What entries of an observation are divided by [m, m/s, m, m, m/s^2]."""
GOAL_LIMIT = 5.0
"""Goal coordinates are cut at this multiple of the distance scale."""

IDM_STEP, IDM_SAMPLES = 2.0, 25
"""An IDM driver looks for a leader at so many places of its path, so far apart [m]."""
IDM_SIDE = 0.2
"""Extra room to either side that makes somebody a leader [m]."""


class Driver(NamedTuple):
    """Parameters of the intelligent driver model (Treiber, Hennecke, Helbing 2000, equation 3)."""

    max_acceleration: float = 1.5
    """m/s^2."""
    comfortable_braking: float = 2.0
    """m/s^2."""
    headway: float = 1.5
    """s."""
    standstill_gap: float = 2.0
    """m."""
    exponent: float = 4.0
    hardest_braking: float = 8.0
    """m/s^2."""
    least_speed: float = 3.0
    """Nobody who moves at all wants to drive slower than this [m/s]."""


class State(NamedTuple):
    """What changes: W worlds with A slots each. Slot 0 is the ego."""

    scene: Array
    """(W,) int64, number in the bank."""
    step: Array
    """(W,) int64, steps since the beginning of the scene."""
    handover: Array
    """(W,) int64, from this step on the ego is driven; before, it follows the log."""
    mode: Array
    """(W, A) int8."""
    present: Array
    """(W, A) bool."""
    started: Array
    """(W, A) bool, has been present."""
    motion: Array
    """(W, A, 6) x, y [m], yaw [rad], speed [m/s], front-wheel angle [rad], acceleration [m/s^2]."""
    size: Array
    """(W, A, 3) length, width, rear axle to centre [m]."""
    along: Array
    """(W, A) place of an IDM driver's box centre on its path [m]."""
    events: Array
    """(W, A) uint8, bits of the last step."""


def zero_state(worlds: int, slots: int) -> State:
    """Return a state of empty worlds."""
    whole = np.zeros(worlds, np.int64)
    return State(
        scene=whole.copy(),
        step=whole.copy(),
        handover=whole.copy(),
        mode=np.zeros((worlds, slots), np.int8),
        present=np.zeros((worlds, slots), bool),
        started=np.zeros((worlds, slots), bool),
        motion=np.zeros((worlds, slots, 6)),
        size=np.zeros((worlds, slots, 3)),
        along=np.zeros((worlds, slots)),
        events=np.zeros((worlds, slots), np.uint8),
    )
