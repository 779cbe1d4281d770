"""A policy behind an openpi server as if it were here: the runtime drives a robot with it over the network.

A burnish server says in its metadata what it reads and answers. Any other openpi server (openpi's own sends an empty
map) is described by the robot and by ``keys``: what to send under which name.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.core.errors import ConfigError, ProtocolError, SpecError, suggest
from burnish.core.spec import (
    TASK_KEY,
    Array,
    EnvSpec,
    Observation,
    PolicySpec,
    array_spec_from_json,
    fingerprint,
)
from burnish.core.step import ActionSample
from burnish.deploy.client import Client, ConnectionLostError, metadata_problems

_LOG = logging.getLogger(__name__)
_CHANNEL_FIRST = "@chw"
_IDENTITY = ("policy", "observation", "action", "chunk_steps", "control_dt", "fingerprint")


@dataclass(frozen=True)
class Config:
    """How a remote policy is reached."""

    api_key: str = ""
    """Sent as ``Authorization: Api-Key <key>``; the environment variable BURNISH_API_KEY when empty."""
    timeout_s: float = 5.0
    """How long one answer may take before the run stops [s]."""
    connect_timeout_s: float = 60.0
    """How long connecting may take, and the first answer, since many servers compile at the first request [s]."""
    reconnects: int = 1
    """How often one request may be sent again over a new connection when the connection breaks."""
    keys: tuple[str, ...] = ()
    """For servers that do not say what they read: ``wire_name=key`` each, for example
    ``observation/image=observation.images.front prompt=task``; ``images/cam_high=observation.images.front@chw`` sends
    (channel, height, width)."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if min(self.timeout_s, self.connect_timeout_s) <= 0 or self.reconnects < 0:
            raise ConfigError(
                "remote: timeout_s and connect_timeout_s must be positive and reconnects >= 0, found "
                f"{self.timeout_s}, {self.connect_timeout_s}, {self.reconnects}."
            )


class RemotePolicy:
    """Has what :class:`burnish.deploy.observations.ActingPolicy` asks for; a context manager.

    Whether answers are samples or the most likely chunks is the server's choice, not the caller's.
    """

    spec: PolicySpec

    def __init__(self, url: str, config: Config | None = None, *, robot: EnvSpec | None = None) -> None:
        """Connect and find out what the server reads.

        Args:
            url: For example ``ws://127.0.0.1:8000``.
            config: Timeouts and keys.
            robot: What is driven; needed for servers that do not say what they read.

        Raises:
            ProtocolError: If the server cannot be reached, or says things that cannot be right.
            ConfigError: If it says nothing, and ``keys`` and ``robot`` do not say it either.
            SpecError: If it answers with actions of another width than the robot takes.
        """
        self.url = url
        self.config = config or Config()
        self._answered = False
        self._client = self._connect(self.config.connect_timeout_s)
        self.metadata: Mapping[str, Any] = self._client.metadata
        try:
            if self.config.keys or "observation" not in self.metadata:
                self._keys, self.spec = self._foreign(robot)
            else:
                problems = metadata_problems(self.metadata)
                if problems:
                    raise ProtocolError(f"{url} says things that cannot be right:\n  " + "\n  ".join(problems))
                self._keys, self.spec = _own(self.metadata)
        except BaseException:
            self.close()
            raise
        self._identity = self._fingerprint(self.metadata)
        self._fresh = True

    @property
    def replan_steps(self) -> int:
        """Actions of a chunk to execute; 0 where the server does not say."""
        return int(self.metadata.get("replan_steps", 0))

    @property
    def control_dt(self) -> float:
        """Seconds between two actions; 0.0 where the server does not say."""
        return float(self.metadata.get("control_dt", 0.0))

    def act(
        self, observation: Observation, *, generator: np.random.Generator, deterministic: bool = False
    ) -> ActionSample:
        """Return the server's chunks (N, K, A), asking N times.

        Raises:
            ProtocolError: If no answer comes in time, the connection breaks more often than allowed, or the server
                refuses, has another policy since, or answers with another shape.
        """
        del generator, deterministic
        rows = len(next(iter(observation.values())))
        chunk = np.stack([self._ask(self._message(observation, n)) for n in range(rows)])
        return ActionSample(chunk, np.zeros(chunk.shape[:2], np.float32))

    def reset(self) -> None:
        """Begin an episode: a new connection, which is what resets a server, unless this one was not used yet."""
        if not self._fresh:
            self._reconnect()

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._client.close()

    def __enter__(self) -> "RemotePolicy":
        """Return the policy."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def _connect(self, timeout_s: float) -> Client:
        return Client(self.url, api_key=self.config.api_key, timeout_s=timeout_s)

    def _reconnect(self) -> None:
        self._client.close()
        self._client = self._connect(self.config.timeout_s)
        if self._fingerprint(self._client.metadata) != self._identity:
            self._client.close()
            raise ProtocolError(f"{self.url} serves another policy since the last connection; begin a new run.")
        self._fresh = True

    def _ask(self, message: Mapping[str, Any]) -> Array:
        for left in range(self.config.reconnects, -1, -1):
            try:
                if self._client.closed:
                    self._reconnect()
                self._client.timeout_s = self.config.timeout_s if self._answered else self.config.connect_timeout_s
                answer = self._client.infer(message)
                break
            except ConnectionLostError as error:
                if not left:
                    raise
                _LOG.warning("%s Connecting again.", error)
        self._fresh, self._answered = False, True
        for warning in answer.get("warnings", ()):
            _LOG.warning("%s: %s", self.url, warning)
        chunk: Array = answer["actions"]
        wanted = (self.spec.chunk_steps, *self.spec.action.shape)
        if chunk.shape != wanted or chunk.dtype.kind not in "fiu":
            raise ProtocolError(
                f"{self.url} answered {chunk.dtype}{list(chunk.shape)}, expected numbers of shape {wanted}."
            )
        return chunk.astype(np.float32)

    def _message(self, observation: Observation, n: int) -> dict[str, Any]:
        message: dict[str, Any] = {}
        for name, key in self._keys.items():
            plain = key.removesuffix(_CHANNEL_FIRST)
            item = observation[plain][n]
            message[name] = np.ascontiguousarray(np.moveaxis(item, -1, 0)) if plain != key else item
        return message

    def _foreign(self, robot: EnvSpec | None) -> tuple[dict[str, str], PolicySpec]:
        """Return (wire name to key, spec) of a server that says nothing; asks it once, to learn the chunk length."""
        if robot is None or not self.config.keys:
            raise ConfigError(
                f"{self.url} does not say what it reads (it says {sorted(map(str, self.metadata)) or 'nothing'}). Say "
                "it with --remote-keys wire_name=key ..., for example observation/state=observation.state prompt=task."
            )
        keys = parse_keys(self.config.keys, robot)
        read = {key.removesuffix(_CHANNEL_FIRST): None for key in keys.values()}
        observation = {key: robot.observation[key] for key in read if key != TASK_KEY}
        draft = PolicySpec(f"remote {self.url}", observation, robot.action, 1, {}, TASK_KEY in read)
        empty: Observation = {key: np.zeros((1, *item.shape), item.dtype) for key, item in observation.items()}
        self._keys = keys
        answer = self._client.infer(self._message({**empty, TASK_KEY: [robot.tasks[0]]}, 0))["actions"]
        if answer.ndim != 2 or answer.shape[1:] != robot.action.shape:
            raise SpecError(
                f"{self.url} answers with actions of shape {answer.shape}, but '{robot.id}' takes "
                f"(K, {robot.action_dim}). They are not made for each other."
            )
        return keys, PolicySpec(draft.id, observation, robot.action, len(answer), {}, draft.reads_task)

    @staticmethod
    def _fingerprint(metadata: Mapping[str, Any]) -> str:
        return fingerprint({name: metadata.get(name) for name in _IDENTITY})


def parse_keys(items: tuple[str, ...], robot: EnvSpec) -> dict[str, str]:
    """Return wire name to key from ``wire_name=key`` texts.

    Raises:
        ConfigError: If one is no pair, or names a key that the robot does not have.
    """
    known = {*robot.public_observation, TASK_KEY}
    keys: dict[str, str] = {}
    for item in items:
        name, separator, key = item.partition("=")
        plain = key.removesuffix(_CHANNEL_FIRST)
        if not separator or not name or name in keys:
            raise ConfigError(f"--remote-keys wants wire_name=key, each name once; found '{item}'.")
        if plain not in known:
            raise ConfigError(f"--remote-keys: '{robot.id}' has no '{plain}'.{suggest(plain, known)}")
        if plain != key and not robot.observation[plain].is_image:
            raise ConfigError(f"--remote-keys: {_CHANNEL_FIRST} is for images, and '{plain}' is none.")
        keys[name] = key
    return keys


def _own(metadata: Mapping[str, Any]) -> tuple[dict[str, str], PolicySpec]:
    observation = {key: array_spec_from_json(item) for key, item in metadata["observation"].items()}
    spec = PolicySpec(
        id=str(metadata.get("policy", "remote")),
        observation=observation,
        action=array_spec_from_json(metadata["action"]),
        chunk_steps=metadata["chunk_steps"],
        reads_task=bool(metadata.get("reads_task")),
    )
    keys = {key: key for key in observation}
    return {**keys, TASK_KEY: TASK_KEY} if spec.reads_task else keys, spec
