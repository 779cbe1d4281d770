"""Many driving worlds at once: arrays over worlds and slots, stepped at 10 Hz, copied and forked cheaply.

Order of events within a step, as in AlpaSim's queue: cameras see the state at t, the policy decides, the controller
turns a plan into commands, the ego moves, then traffic moves and sees where the ego has gone, and the step ends at
t + 0.1 s, where contacts, road and progress are looked at. Worlds of one simulator share a :class:`Bank`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

import numpy as np

from burnish.core.errors import ConfigError, EnvError
from burnish.core.frames import wrap
from burnish.core.spec import Array
from burnish.envs.driving import layout, reference, tracker
from burnish.envs.driving.bank import Bank
from burnish.envs.driving.geometry import project
from burnish.envs.driving.layout import DT, IDM, POLICY, REPLAY, Driver, State
from burnish.envs.driving.vehicle import Vehicle, limited, steady_steering

type Core = Literal["auto", "numba", "numpy"]
MODES = {"log": REPLAY, "idm": IDM, "policy": POLICY}
"""How traffic can move."""


@dataclass(frozen=True)
class Plans:
    """What the egos follow, W of them."""

    path: Array
    """(W, 41, 2) in the frame of ``origin`` [m]."""
    origin: Array
    """(W, 3) pose of the rear axle when the plan was made."""
    step: Array
    """(W,) step at which it was made."""


@dataclass(frozen=True)
class Snapshot:
    """All that changes of some worlds; goes back into the same simulator or into a fork."""

    state: State
    plans: Plans
    traveled: Array
    """(W,) m."""


class Simulator:
    """W worlds; world w runs one scene of the bank."""

    def __init__(
        self,
        bank: Bank,
        worlds: int,
        *,
        vehicle: Vehicle | None = None,
        driver: Driver | None = None,
        core: Core = "auto",
        everybody: bool = False,
    ) -> None:
        """Make empty worlds; :meth:`reset` fills them.

        Args:
            bank: Scenes; may grow later.
            worlds: W.
            vehicle: How driven cars move.
            driver: How IDM traffic drives.
            core: "numba", "numpy", or "auto" for numba where it is installed.
            everybody: Whether events of all driven cars are looked at, not of the egos only.

        Raises:
            ConfigError: If numba is asked for and not installed.
        """
        self.bank, self.worlds = bank, worlds
        self.vehicle, self.driver = vehicle or Vehicle(), driver or Driver()
        self.core = core
        self.everybody = everybody
        self._constants = self.vehicle.constants()
        self._kernels = _core(core)
        self.state = layout.zero_state(worlds, bank.slots)
        self.plans = Plans(
            np.zeros((worlds, tracker.PATH_POINTS, 2)), np.zeros((worlds, 3)), np.zeros(worlds, np.int64)
        )
        self.traveled = np.zeros(worlds)
        self._progress = np.zeros((worlds, 2))

    def reset(
        self,
        scenes: Sequence[int],
        where: Array | None = None,
        *,
        traffic: str = "log",
        ego: str = "policy",
        handover: int = 0,
    ) -> None:
        """Put worlds at the first step of scenes.

        Args:
            scenes: Numbers in the bank, one for each world that is reset.
            where: Indices of those worlds; None for all.
            traffic: "log", "idm" or "policy".
            ego: What drives slot 0, likewise.
            handover: Steps for which a driven ego follows its log first.
        """
        index = np.arange(self.worlds) if where is None else np.asarray(where, np.int64)
        numbers = np.asarray(scenes, np.int64)
        if len(index) != len(numbers) or (numbers < 0).any() or (numbers >= len(self.bank.scenes)).any():
            raise EnvError(
                f"reset got scenes {numbers.tolist()} for {len(index)} worlds; the bank has {len(self.bank.scenes)}."
            )
        for name in (traffic, ego):
            if name not in MODES:
                raise ConfigError(f"Nothing drives like '{name}'. Available: {', '.join(MODES)}.")
        tables, state = self.bank.tables(), self.state
        for w, number in zip(index.tolist(), numbers.tolist(), strict=True):
            begin, count, steps, first = tables.tracks[number]
            for array in (state.present, state.started, state.motion, state.size, state.along, state.events):
                array[w] = 0
            state.scene[w], state.step[w], state.handover[w] = number, 0, handover
            state.mode[w] = MODES[traffic]
            state.mode[w, 0] = MODES[ego]
            log = tables.track_states[begin : begin + count * steps].reshape(count, steps, 5)
            state.size[w, :count] = tables.agents[first : first + count, :3]
            state.present[w, :count] = state.started[w, :count] = log[:, 0, 4] > 0.5
            state.motion[w, :count] = _first_motion(log, state.size[w, :count, 2], self.vehicle)
        self.traveled[index] = 0.0
        self._hold(index)

    def follow(self, plan: Array, where: Array | None = None) -> None:
        """Give egos plans (n, 8, 3) of x, y, yaw in their rig frame, from now on."""
        index = np.arange(self.worlds) if where is None else np.asarray(where, np.int64)
        self.plans.path[index] = tracker.smooth(plan)
        self.plans.origin[index] = self.state.motion[index, 0, :3]
        self.plans.step[index] = self.state.step[index]

    def step(self, command: Array | None = None, *, others: Array | None = None) -> None:
        """Advance all worlds by 0.1 s.

        Args:
            command: (W, 2) front-wheel angle [rad] and acceleration [m/s^2] of the egos; None to follow their plans.
            others: (W, A, 2) commands of all slots, where traffic is driven by a policy; slot 0 is taken from
                ``command`` where that is given.
        """
        state, every = self.state, np.zeros((self.worlds, self.bank.slots, 2))
        if others is not None:
            every[...] = others
        if command is None and others is None:
            elapsed = DT * (state.step - self.plans.step)
            command = tracker.track(state.motion[:, 0], self.plans.path, self.plans.origin, elapsed, self.vehicle)
        if command is not None:
            every[:, 0] = limited(command, self.vehicle)
        before = self.centers()
        tables = self.bank.tables()
        self._kernels.advance(tables, state, every, self._constants, self.driver)
        self._kernels.events(tables, state, self.everybody)
        self.traveled += np.where(state.present[:, 0], np.hypot(*(self.centers() - before).T), 0.0)

    def progress(self) -> tuple[Array, Array]:
        """Return (place on the logged path (W,), 0 to 1, and distance to it (W,) [m]) of the egos."""
        out = np.zeros((self.worlds, 2))
        self._kernels.progress(self.bank.tables(), self.state, out)
        return out[:, 0], out[:, 1]

    def observe(self, who: Array | None = None, out: Array | None = None) -> Array:
        """Return (n, 1848) float32 observations of observers (n, 2) of world and slot; None for all egos."""
        if who is None:
            who = np.stack((np.arange(self.worlds), np.zeros(self.worlds, np.int64)), -1)
        if out is None:
            out = np.zeros((len(who), layout.OBSERVATION_SIZE), np.float32)
        self._kernels.observe(self.bank.tables(), self.state, who, out)
        return out

    def centers(self) -> Array:
        """Return (W, 2) centres of the egos' boxes [m]."""
        motion, offset = self.state.motion[:, 0], self.state.size[:, 0, 2]
        center: Array = motion[:, :2] + offset[:, None] * np.stack((np.cos(motion[:, 2]), np.sin(motion[:, 2])), -1)
        return center

    def ended(self) -> Array:
        """Return (W,) whether the log of each world is over."""
        steps: Array = self.bank.tables().tracks[self.state.scene, 2]
        over: Array = self.state.step >= steps - 1
        return over

    def drive_egos(self, how: str, where: Array | None = None) -> None:
        """Let egos be driven by "log", "idm" or "policy" from now on; IDM begins at the nearest place of its path."""
        index = np.arange(self.worlds) if where is None else np.asarray(where, np.int64)
        self.state.mode[index, 0] = MODES[how]
        tables = self.bank.tables()
        for w in index.tolist() if how == "idm" else ():
            start, count = tables.paths[tables.tracks[self.state.scene[w], 3]]
            path = tables.path_points[start : start + count, :2]
            self.state.along[w, 0] = project(self.centers()[w], path)[0]

    def snapshot(self, where: Array | None = None) -> Snapshot:
        """Copy all that changes of worlds (n,), or of all."""
        index = np.arange(self.worlds) if where is None else np.asarray(where, np.int64)
        plans = Plans(self.plans.path[index], self.plans.origin[index], self.plans.step[index])
        return Snapshot(State(*(array[index] for array in self.state)), plans, self.traveled[index])

    def restore(self, snapshot: Snapshot, where: Array | None = None) -> None:
        """Put worlds (n,), or all, where a snapshot of n worlds was."""
        index = np.arange(self.worlds) if where is None else np.asarray(where, np.int64)
        if len(snapshot.traveled) != len(index):
            raise EnvError(f"A snapshot of {len(snapshot.traveled)} worlds does not fit {len(index)} worlds.")
        for mine, kept in zip(self.state, snapshot.state, strict=True):
            mine[index] = kept
        for name in ("path", "origin", "step"):
            getattr(self.plans, name)[index] = getattr(snapshot.plans, name)
        self.traveled[index] = snapshot.traveled

    def fork(self, snapshot: Snapshot) -> "Simulator":
        """Return a simulator of its own with the worlds of a snapshot; maps and logs are shared."""
        fork = Simulator(
            self.bank,
            len(snapshot.traveled),
            vehicle=self.vehicle,
            driver=self.driver,
            core=self.core,
            everybody=self.everybody,
        )
        fork.restore(snapshot)
        return fork

    def _hold(self, index: Array) -> None:
        """Give egos the plan to stay where they are."""
        self.follow(np.zeros((len(index), tracker.PLAN_STEPS, 3)), index)


def _core(core: Core) -> ModuleType:
    """Return the module that steps."""
    installed = find_spec("numba") is not None
    if core == "numba" and not installed:
        raise ConfigError("core='numba' needs numba, which is not installed: pip install 'burnish[driving]'.")
    if core == "numpy" or not installed:
        return reference
    from burnish.envs.driving import kernels

    return kernels


def _first_motion(log: Array, offset: Array, vehicle: Vehicle) -> Array:
    """Return motions (A, 6) at the first step of logs (A, T, 5); turning and acceleration are those of the next."""
    now, after = log[:, 0], log[:, 1]
    both = (now[:, 4] > 0.5) & (after[:, 4] > 0.5)
    yaw, speed = now[:, 2], now[:, 3]
    turn = np.where(both, wrap(after[:, 2] - yaw) / DT, 0.0)
    push = np.where(both, (after[:, 3] - speed) / DT, 0.0)
    push = np.clip(push, vehicle.min_acceleration, vehicle.max_acceleration)
    x, y = now[:, 0] - offset * np.cos(yaw), now[:, 1] - offset * np.sin(yaw)
    return np.stack((x, y, yaw, speed, steady_steering(speed, turn, vehicle), push), -1)
