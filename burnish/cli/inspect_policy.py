"""A burnish policy for inspect-robots, which finds it as ``burnish`` through an entry point of this package.

``inspect-robots run --policy burnish -P source=runs/better ...``; the source may also be an exported folder, or the
address of a policy server.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
from inspect_robots.policy import PolicyBase, PolicyConfig, PolicyInfo
from inspect_robots.scene import Scene
from inspect_robots.spaces import ActionSemantics, Box, CameraSpec, ObservationSpace, StateField, StateSpec
from inspect_robots.types import Action, ActionChunk, Observation

from burnish.cli.acting import Acting, load_acting, with_key
from burnish.core.errors import ConfigError, ProtocolError
from burnish.core.seeding import stream
from burnish.core.spec import IMAGE_PREFIX, TASK_KEY, ArraySpec, PolicySpec, fingerprint
from burnish.deploy.observations import ObservationReader
from burnish.deploy.remote import Config as RemoteConfig
from burnish.deploy.remote import RemotePolicy

_STATE_PREFIX = "observation."


class BurnishPolicy(PolicyBase):
    """Answers with the chunks of a checkpoint, an exported folder, or a policy server."""

    def __init__(
        self,
        source: str,
        *,
        control_mode: str = "joint_pos",
        frame: str = "base",
        deterministic: bool = True,
        seed: int = 0,
    ) -> None:
        """Load a policy.

        Args:
            source: Folder of a checkpoint or an exported policy, or ``ws://HOST:PORT``.
            control_mode: What an action means, in inspect-robots' words; burnish's specs have units and names only.
            frame: Frame of the action, in inspect-robots' words.
            deterministic: Most likely chunk instead of a sample.
            seed: Seed of samples.
        """
        acting = _remote(source) if source.startswith(("ws://", "wss://")) else load_acting(Path(source))
        spec = acting.policy.spec
        self._policy = acting.policy
        self._reader = ObservationReader(spec, statistics=acting.statistics)
        self._keys = {_state_name(key): key for key, item in spec.observation.items() if not item.is_image}
        self._cameras = {key.removeprefix(IMAGE_PREFIX): key for key, item in spec.observation.items() if item.is_image}
        self._deterministic = deterministic
        self._seed = seed
        self._decisions = 0
        self._hz = 1.0 / acting.control_dt if acting.control_dt else None
        self.info = PolicyInfo(
            name=f"burnish/{spec.id}",
            action_space=_box(spec.action, control_mode, frame),
            observation_space=_observation_space(spec),
            control_hz=self._hz,
            checkpoint=fingerprint(acting.description) if acting.description else source,
        )
        self.config = PolicyConfig(action_horizon=spec.chunk_steps, replan_interval=acting.replan_steps or None)

    def reset(self, scene: Scene) -> None:
        """Begin a scene: a server gets a new connection, and samples begin again."""
        del scene
        self._decisions = 0
        if isinstance(self._policy, RemotePolicy):
            self._policy.reset()

    def act(self, observation: Observation) -> ActionChunk:
        """Return the policy's whole chunk.

        Raises:
            ProtocolError: If the observation is not what the policy reads; it says what was expected.
        """
        begin = time.perf_counter()
        message: dict[str, Any] = {TASK_KEY: observation.instruction or ""}
        for name, item in observation.state.items():
            message[self._keys.get(name, name)] = np.asarray(item, np.float32)
        for name, picture in observation.images.items():
            message[self._cameras.get(name, name)] = picture
        read, warnings = self._reader.read(message)
        generator = stream(self._seed, "inspect", self._decisions)
        self._decisions += 1
        sample = self._policy.act(read, generator=generator, deterministic=self._deterministic)
        chunk = np.asarray(sample.action_chunk, np.float64)[0]
        if not np.isfinite(chunk).all():
            raise ProtocolError(f"Policy '{self._policy.spec.id}' answered with values that are not finite.")
        return ActionChunk(
            actions=[Action(row) for row in chunk],
            control_hz=self._hz,
            inference_latency_s=time.perf_counter() - begin,
            meta={"warnings": warnings} if warnings else {},
        )


def _remote(url: str) -> Acting:
    policy = RemotePolicy(url, with_key(RemoteConfig()))
    return Acting(url, policy, {}, policy.control_dt, policy.replan_steps)


def _state_name(key: str) -> str:
    return key.removeprefix(_STATE_PREFIX)


def _box(spec: ArraySpec, control_mode: Any, frame: Any) -> Box:
    low, high = spec.bounds()
    bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    try:
        semantics = ActionSemantics(control_mode=control_mode, frame=frame, dim_labels=spec.names or None)
        return Box(spec.shape, low if bounded else None, high if bounded else None, semantics)
    except ValueError as error:
        raise ConfigError(f"inspect-robots refuses the action space: {error}.") from error


def _observation_space(spec: PolicySpec) -> ObservationSpace:
    cameras = tuple(
        CameraSpec(key.removeprefix(IMAGE_PREFIX), item.shape[0], item.shape[1])
        for key, item in spec.observation.items()
        if item.is_image
    )
    fields = tuple(
        StateField(_state_name(key), item.shape, item.unit, item.dtype)
        for key, item in spec.observation.items()
        if not item.is_image
    )
    return ObservationSpace(cameras, frozenset(field.key for field in fields), StateSpec(fields) if fields else None)
