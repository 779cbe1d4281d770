"""Drive a car through recorded or synthetic scenes without cameras: what teachers train on.

Scenes come from a folder of ``.npz`` (made by ``burnish.envs.driving.importing``), or are generated: one task for each
kind of road, and one of the same kind with scenes that training never sees. The ego is driven by (front-wheel angle,
acceleration), or by plans of 8 x (x, y, yaw) that a tracker follows. Traffic replays its log or drives by the
intelligent driver model. ``Step.metrics`` has AlpaSim's Scene Score and what it is made of, up to now.

An episode ends with the log of its scene, after a collision at fault, off the road, or 4 m from the logged path.
The reward is progress on that path, times a penalty for discomfort, and minus a constant for a hard infraction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.core.spec import PRIVILEGED_PREFIX, TASK_KEY, Array, ArraySpec, EnvSpec, MetricSpec, Observation
from burnish.core.step import Start, Step
from burnish.envs.driving import layout, metrics, tracker
from burnish.envs.driving.bank import ROAD_TOKENS, Bank
from burnish.envs.driving.generator import generate
from burnish.envs.driving.layout import DT
from burnish.envs.driving.roads import KINDS
from burnish.envs.driving.route import COMMANDS, POINTS, command_of, route_ahead
from burnish.envs.driving.scene import FORMAT_VERSION, load
from burnish.envs.driving.scoring import Scoring
from burnish.envs.driving.simulator import Core, Simulator
from burnish.envs.driving.vehicle import Vehicle
from burnish.envs.driving.view import bird_eye
from burnish.envs.single import check_chunk, check_where

HELD_OUT = "_held_out"
"""What the name of a task ends in whose scenes are for evaluation only."""
EVERY = 5
"""Of the scenes of a folder, every fifth is held out."""
_EGO, _PARTNERS, _ROAD, _PLACE = (f"{PRIVILEGED_PREFIX}{name}" for name in ("ego", "partners", "road", "place"))


@dataclass(frozen=True)
class Reward:
    """Weights of the reward."""

    progress: float = 1.0
    """Paid over an episode for the whole logged path."""
    discomfort: float = 0.5
    """Factor of the progress in a step outside the comfort limits."""
    failure: float = 1.0
    """Taken once for a collision at fault or for leaving the road."""


@dataclass(frozen=True)
class Config:
    """Drive along a route among others, seen as vectors."""

    scenes: str = ""
    """Folder of ``.npz`` scenes; "" for synthetic roads."""
    scenes_per_task: int = 32
    """How many synthetic scenes each task has."""
    action: Literal["controls", "plan"] = "controls"
    """"controls" takes front-wheel angle and acceleration, "plan" 8 x (x, y, yaw), 0.5 s apart, in the rig frame."""
    steps_per_action: int = 1
    """Simulator steps of 0.1 s for each action."""
    traffic: Literal["log", "idm"] = "log"
    """How others move: as recorded, or by the intelligent driver model on their recorded paths."""
    episode_seconds: float = 12.0
    """Longest episode [s]."""
    start_noise: float = 0.1
    """Standard deviation of the lateral error of the first pose [m]; heading and speed get a tenth and a half of it."""
    corridor: float = metrics.CORRIDOR
    """Distance to the logged path that ends an episode [m]."""
    agent_slots: int = 32
    """Most road users in a scene."""
    core: Core = "auto"
    """What computes: "numba", "numpy", or "auto" for numba where it is installed."""
    vehicle: Vehicle = field(default_factory=Vehicle)
    """How the ego moves."""
    reward: Reward = field(default_factory=Reward)
    """Weights of the reward."""

    def __post_init__(self) -> None:
        """Refuse values that give no task."""
        for name in ("scenes_per_task", "steps_per_action", "episode_seconds", "corridor", "agent_slots"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"driving/vector: {name} must be positive, found {getattr(self, name)}.")
        if not 0.0 <= self.start_noise <= 1.0:
            raise ConfigError(f"driving/vector: start_noise must be within [0, 1] m, found {self.start_noise}.")

    def spec(self) -> EnvSpec:
        """Describe the task under this configuration."""
        if self.scenes:
            tasks = tuple(_files(self.scenes))
            splits = {"train": _others(tasks) or tasks, "eval": tasks[::EVERY]}
        else:
            held_out = tuple(f"{kind}{HELD_OUT}" for kind in KINDS)
            tasks, splits = (*KINDS, *held_out), {"train": tuple(KINDS), "eval": held_out}
        step = DT * self.steps_per_action
        return EnvSpec(
            id="driving/vector",
            observation=_observation_spec(self.vehicle),
            action=_action_spec(self.action, self.vehicle),
            control_dt=step,
            max_episode_steps=max(1, round(self.episode_seconds / step)),
            tasks=tasks,
            splits=splits,
            num_inits=1 if self.scenes else self.scenes_per_task,
            metrics=METRICS,
            protocol={
                "scene_format": FORMAT_VERSION,
                "scenes": Path(self.scenes).name if self.scenes else "synthetic",
                "traffic": self.traffic,
                "corridor": self.corridor,
                "start_noise": self.start_noise,
                "action": self.action,
                "vehicle": self.vehicle.constants().tolist(),
                "scene_score": "alpasim 3032e0c",
            },
        )

    def build(self, num_envs: int = 1) -> "DrivingEnv":
        """Return ``num_envs`` worlds that are stepped together."""
        return DrivingEnv(self, self.spec(), num_envs)


METRICS = {
    "success": MetricSpec("binary", "", "higher", description="Full Scene Score."),
    "scene_score": MetricSpec("mean", "", "higher", description="AlpaSim's Scene Score, 0 to 1."),
    "collision_at_fault": MetricSpec("binary", "", "lower", beside=("progress",), description="Front or side contact."),
    "collision_any": MetricSpec("binary", "", "lower", beside=("progress",), description="Contact of any kind."),
    "offroad": MetricSpec("binary", "", "lower", beside=("progress",), description="Over the edge of the road."),
    "left_corridor": MetricSpec("binary", "", "lower", description="Too far from the logged path."),
    "progress": MetricSpec("mean", "", "higher", description="Share of the logged path that was driven."),
    "dist_to_gt_trajectory": MetricSpec("mean", "m", "lower", description="Largest distance to the logged path."),
    "km_per_incident": MetricSpec(
        "mean", "km", "higher", per="incidents", description="Distance between collisions at fault or leaving the road."
    ),
    "incidents": MetricSpec("count", "", "lower", description="Collisions at fault, and times off the road."),
    "comfortable": MetricSpec("binary", "", "higher", beside=("progress",), description="Within nuPlan's limits."),
    "jerk": MetricSpec("mean", "m/s^3", "lower", beside=("progress",), description="Largest longitudinal jerk."),
    "lateral_acceleration": MetricSpec("mean", "m/s^2", "lower", beside=("progress",), description="Largest."),
}


def _files(folder: str) -> dict[str, Path]:
    """Return task to file of a folder of scenes."""
    files = {path.stem: path for path in sorted(Path(folder).glob("*.npz"))}
    if not files:
        raise ConfigError(
            f"driving/vector: there is no .npz scene in '{folder}'. Make some with "
            "burnish.envs.driving.importing.import_recordings, or leave scenes empty for synthetic roads."
        )
    return files


def _others(tasks: Sequence[str]) -> tuple[str, ...]:
    return tuple(task for index, task in enumerate(tasks) if index % EVERY)


def _action_spec(kind: str, vehicle: Vehicle) -> ArraySpec:
    if kind == "controls":
        return ArraySpec(
            (2,),
            unit="rad,m/s^2",
            frame="rig",
            low=(-vehicle.max_steering, vehicle.min_acceleration),
            high=(vehicle.max_steering, vehicle.max_acceleration),
            names=("steering", "acceleration"),
            scale=(0.1, 2.0),
        )
    steps = range(1, tracker.PLAN_STEPS + 1)
    return ArraySpec(
        (3 * tracker.PLAN_STEPS,),
        unit=",".join(("m", "m", "rad") * tracker.PLAN_STEPS),
        frame="rig",
        low=(-20.0, -80.0, -3.2) * tracker.PLAN_STEPS,
        high=(160.0, 80.0, 3.2) * tracker.PLAN_STEPS,
        names=tuple(f"{name}_{tracker.PLAN_DT * step:g}s" for step in steps for name in ("x", "y", "yaw")),
        scale=tuple(value for step in steps for value in (5.0 * step, 0.5 * step, 0.1 * step)),
    )


def _observation_spec(vehicle: Vehicle) -> dict[str, ArraySpec]:
    limit = vehicle.max_steering
    return {
        "observation.state": ArraySpec(
            (4,),
            unit="m/s,m/s^2,rad,rad/s",
            frame="rig",
            names=("speed", "acceleration", "steering", "yaw_rate"),
            scale=(10.0, 2.0, 0.1, 0.3),
        ),
        "observation.command": ArraySpec((len(COMMANDS),), low=0.0, high=1.0, names=COMMANDS),
        "observation.route": ArraySpec((POINTS, 2), unit="m", frame="rig", scale=30.0),
        "observation.route_valid": ArraySpec((POINTS,), low=0.0, high=1.0),
        _EGO: ArraySpec(
            (layout.EGO_ENTRIES,),
            names=("speed", "steering", "acceleration", "length", "width", "goal_x", "goal_y"),
            scale=(1.0, limit, 1.0, 1.0, 1.0, 1.0, 1.0),
        ),
        _PARTNERS: ArraySpec((layout.PARTNERS, layout.PARTNER_ENTRIES), frame="rig"),
        _ROAD: ArraySpec((ROAD_TOKENS, layout.ROAD_ENTRIES), frame="rig"),
        _PLACE: ArraySpec((3,), unit="m,,", names=("distance_to_log", "progress", "time_left"), scale=(2.0, 1.0, 1.0)),
    }


@lru_cache(maxsize=8)
def _bank(slots: int) -> Bank:
    """Return the bank that all environments of this process share."""
    return Bank(slots)


class DrivingEnv:
    """N worlds as one :class:`burnish.core.contracts.VecEnv`."""

    def __init__(self, config: Config, spec: EnvSpec, num_envs: int) -> None:
        """Make the worlds; an episode begins with :meth:`reset`."""
        self.spec, self.num_envs, self._config = spec, num_envs, config
        self._files = _files(config.scenes) if config.scenes else {}
        self._bank = _bank(config.agent_slots)
        self.simulator = Simulator(self._bank, num_envs, vehicle=config.vehicle, core=config.core)
        self._scoring = Scoring(num_envs, corridor=config.corridor)
        self._low, self._high = spec.action.bounds()
        self._steps = np.zeros(num_envs, np.int64)
        self._terminated = np.zeros(num_envs, bool)
        self._truncated = np.ones(num_envs, bool)
        self._metrics = {name: np.zeros(num_envs) for name in spec.metrics}
        self._observation: Observation = {
            key: np.zeros((num_envs, *item.shape), item.dtype) for key, item in spec.observation.items()
        }
        self._observation[TASK_KEY] = ["drive along the route"] * num_envs

    def reset(self, starts: Sequence[Start], where: Array | None = None) -> Observation:
        """Begin new episodes; see :class:`burnish.core.contracts.VecEnv`."""
        index = np.array(check_where(self.spec, self.num_envs, starts, where), np.int64)
        if len(index):
            self.simulator.reset([self._scene(start) for start in starts], index, traffic=self._config.traffic)
            for n, start in zip(index.tolist(), starts, strict=True):
                self._disturb(n, stream(start.seed, "driving", start.task, start.init))
            self.simulator.follow(np.zeros((len(index), tracker.PLAN_STEPS, 3)), index)
            self._scoring.begin(self.simulator, index)
            self._steps[index] = 0
            self._terminated[index] = self._truncated[index] = False
            self._look(index)
        return self._copy()

    def step(self, action_chunk: Array) -> Step:
        """Execute one chunk each; see :class:`burnish.core.contracts.VecEnv`."""
        check_chunk(self.spec, self.num_envs, action_chunk)
        reward = np.zeros(action_chunk.shape[:2], np.float32)
        executed = np.zeros(self.num_envs, np.int64)
        ran = ~(self._terminated | self._truncated)
        for k in range(action_chunk.shape[1]):
            active = ~(self._terminated | self._truncated)
            if not active.any():
                break
            reward[active, k] = self._act(action_chunk[:, k].astype(float), active)[active]
            executed[active] += 1
        if ran.any():
            self._look(np.flatnonzero(ran))
        return Step(
            observation=self._copy(),
            reward=reward,
            executed=executed,
            terminated=self._terminated.copy(),
            truncated=self._truncated.copy(),
            metrics={name: item.copy() for name, item in self._metrics.items()},
        )

    def render(self, index: int) -> Array:
        """Return a bird's-eye picture of one world, (384, 384, 3) uint8."""
        return bird_eye(self.simulator, index)

    def close(self) -> None:
        """Hold nothing."""

    def _scene(self, start: Start) -> int:
        if self._files:
            path = self._files[start.task]
            number = self._bank.number(str(path.resolve()))
            return number if number >= 0 else self._bank.add(load(path), name=str(path.resolve()))
        kind, held_out = start.task.removesuffix(HELD_OUT), start.task.endswith(HELD_OUT)
        # Seeds of the two kinds of tasks never meet: even for training, odd for evaluation.
        seed, seconds = 2 * start.init + held_out, self._config.episode_seconds
        return self._bank.add(generate(kind, seed, seconds=seconds), name=f"{kind}-{seed}-{seconds:g}")

    def _disturb(self, n: int, noise: np.random.Generator) -> None:
        """Move the ego a little from where its log begins."""
        side, turn, speed = np.clip(noise.standard_normal(3), -2.0, 2.0) * self._config.start_noise
        motion = self.simulator.state.motion[n, 0]
        motion[:2] += side * np.array([-np.sin(motion[2]), np.cos(motion[2])])
        motion[2] += 0.1 * turn
        motion[3] = min(max(motion[3] + 0.5 * speed, 0.0), self._config.vehicle.max_speed)

    def _act(self, action: Array, active: Array) -> Array:
        """Execute one action (N, A) where active (N,), and return the rewards (N,)."""
        simulator, scoring, weights = self.simulator, self._scoring, self._config.reward
        action = np.clip(action, self._low, self._high)
        plans = self._config.action == "plan"
        if plans:
            index = np.flatnonzero(active)
            simulator.follow(action[index].reshape(len(index), tracker.PLAN_STEPS, 3), index)
        reward = np.zeros(self.num_envs)
        moving = active.copy()
        for _ in range(self._config.steps_per_action):
            before, failed = scoring.progress.copy(), scoring.failed
            idle = np.flatnonzero(~moving)
            kept = simulator.snapshot(idle) if len(idle) else None
            simulator.step(None if plans else action)
            if kept is not None:
                simulator.restore(kept, idle)
            smooth = scoring.update(simulator, moving)
            gain = np.where(scoring.log_length >= metrics.SHORT_LOG, scoring.progress - before, 0.0)
            paid = weights.progress * gain * np.where(smooth, 1.0, weights.discomfort)
            reward += np.where(moving, paid - weights.failure * (scoring.failed & ~failed), 0.0)
            over = scoring.failed | scoring.left_corridor | simulator.ended()
            self._terminated |= moving & over
            moving &= ~over
        self._steps[active] += 1
        self._truncated |= active & ~self._terminated & (self._steps >= self.spec.max_episode_steps)
        return reward

    def _look(self, index: Array) -> None:
        """Write observations and metrics of worlds (n,)."""
        simulator, shown = self.simulator, self._observation
        motion = simulator.state.motion[index, 0]
        turn = motion[:, 3] * np.tan(motion[:, 4]) / self._config.vehicle.wheelbase
        shown["observation.state"][index] = np.stack((motion[:, 3], motion[:, 5], motion[:, 4], turn), -1)
        tables = self._bank.tables()
        for n, row in zip(index.tolist(), motion, strict=True):
            points, valid = route_ahead(tables, int(simulator.state.scene[n]), row[:3])
            shown["observation.route"][n], shown["observation.route_valid"][n] = points, valid
            shown["observation.command"][n] = np.arange(len(COMMANDS)) == command_of(points, valid)
        who = np.stack((index, np.zeros(len(index), np.int64)), -1)
        everything = simulator.observe(who)
        cuts = np.cumsum((layout.EGO_ENTRIES, layout.PARTNERS * layout.PARTNER_ENTRIES))
        for key, part in zip((_EGO, _PARTNERS, _ROAD), np.split(everything, cuts, axis=1), strict=True):
            shown[key][index] = part.reshape(len(index), *self.spec.observation[key].shape)
        place, gap = simulator.progress()
        left = 1.0 - self._steps[index] / self.spec.max_episode_steps
        shown[_PLACE][index] = np.stack((gap[index], place[index], left), -1)
        for name, value in self._figures().items():
            self._metrics[name][index] = value[index]

    def _figures(self) -> dict[str, Array]:
        scoring = self._scoring
        score = scoring.scene_score()
        return {
            "success": score >= 1.0,
            "scene_score": score,
            "collision_at_fault": scoring.collision_at_fault,
            "collision_any": scoring.collision_any,
            "offroad": scoring.offroad,
            "left_corridor": scoring.left_corridor,
            "progress": scoring.progress,
            "dist_to_gt_trajectory": scoring.dist_to_gt_trajectory,
            "km_per_incident": scoring.dist_traveled_m / 1000.0,
            "incidents": scoring.failed,
            "comfortable": scoring.comfortable,
            "jerk": scoring.peaks["jerk"],
            "lateral_acceleration": scoring.peaks["lateral_acceleration"],
        }

    def _copy(self) -> Observation:
        return {key: item.copy() for key, item in self._observation.items()}
