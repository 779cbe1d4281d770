import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import serve

from burnish.core.errors import ConfigError, ProtocolError, SpecError
from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.deploy.client import metadata_problems
from burnish.deploy.codec import pack, unpack
from burnish.deploy.openpi import Config as ServerConfig
from burnish.deploy.openpi import Identity, Server, running
from burnish.deploy.remote import Config, RemotePolicy, parse_keys
from tests.unit.deploy.affine import STATE, WRIST, AffinePolicy, make_observation, make_spec

IDENTITY = Identity(control_dt=0.05, env_id="toy", fingerprint="abc", replan_steps=2)
ROBOT = EnvSpec(
    "arm",
    {STATE: ArraySpec((3,), unit="rad"), WRIST: ArraySpec((8, 6, 3), "uint8")},
    ArraySpec((2,), unit="m/s", low=-1.0, high=1.0),
    0.05,
    100,
    ("press",),
)
KEYS = ("observation/state=observation.state", "image=observation.images.wrist@chw", "prompt=task")


def batch(**changes: Any) -> dict[str, Any]:
    observation = make_observation(**changes)
    return {key: [item] if isinstance(item, str) else item[None] for key, item in observation.items()}


def ask(policy: RemotePolicy, observation: dict[str, Any]) -> np.ndarray:
    chunk: np.ndarray = policy.act(observation, generator=stream(0), deterministic=True).action_chunk
    return chunk


@contextmanager
def foreign(metadata: Any = None, width: int = 2, answers: int | None = None) -> Iterator[tuple[str, list[Any]]]:
    """A server that says nothing, as openpi's own; ``answers`` is after how many it breaks the connection."""
    seen: list[Any] = []
    loop = asyncio.new_event_loop()
    started = threading.Event()
    address: list[str] = []

    async def handle(connection: Any) -> None:
        await connection.send(pack(metadata or {}))
        left = answers
        async for message in connection:
            if left == 0:
                await connection.close(1012)
                return
            seen.append(unpack(message))
            await connection.send(pack({"actions": np.full((5, width), 0.25)}))
            left = None if left is None else left - 1

    async def main() -> None:
        async with serve(handle, "127.0.0.1", 0, compression=None) as server:
            address.append(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}")
            started.set()
            await stop.wait()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    started.wait(10)
    try:
        yield address[0], seen
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_a_burnish_server_says_what_it_reads_and_answers_as_the_policy() -> None:
    policy = AffinePolicy()
    with running(Server(policy, IDENTITY, ServerConfig(port=0))) as server, RemotePolicy(server.url) as remote:
        assert remote.spec == make_spec()
        assert (remote.control_dt, remote.replan_steps) == (0.05, 2)
        two = {
            key: [*item, *item] if isinstance(item, list) else np.repeat(item, 2, 0) for key, item in batch().items()
        }
        np.testing.assert_array_equal(ask(remote, two), np.tile(np.float32([0.1, 0.2]), (2, 4, 1)))
        assert policy.seen[-1]["task"] == ["press"]


def test_reset_is_a_new_connection_only_if_it_was_used() -> None:
    with running(Server(AffinePolicy(), IDENTITY, ServerConfig(port=0))) as server, RemotePolicy(server.url) as remote:
        first = remote._client
        remote.reset()
        assert remote._client is first
        ask(remote, batch())
        remote.reset()
        assert remote._client is not first
        ask(remote, batch())


def test_a_broken_connection_is_made_again_and_the_question_repeated() -> None:
    with foreign(answers=2) as (url, seen), RemotePolicy(url, Config(keys=KEYS), robot=ROBOT) as remote:
        for _ in range(4):
            assert ask(remote, batch()).shape == (1, 5, 2)
        assert len(seen) == 5  # one to learn the chunk


def test_a_connection_that_keeps_breaking_is_an_error() -> None:
    config = Config(keys=KEYS, reconnects=0)
    with foreign(answers=1) as (url, _), RemotePolicy(url, config, robot=ROBOT) as remote:
        with pytest.raises(ProtocolError, match="closed the connection"):
            ask(remote, batch())
        assert ask(remote, batch()).shape == (1, 5, 2)


def test_another_policy_behind_the_same_address_is_refused() -> None:
    with running(Server(AffinePolicy(), IDENTITY, ServerConfig(port=0))) as server:
        remote = RemotePolicy(server.url)
        port = server.port
    other = Identity(control_dt=0.05, env_id="toy", fingerprint="other", replan_steps=2)
    with (
        running(Server(AffinePolicy(), other, ServerConfig(port=port))),
        remote,
        pytest.raises(ProtocolError, match="serves another policy"),
    ):
        ask(remote, batch())


def test_a_late_answer_is_an_error_and_never_taken_for_the_next_one() -> None:
    policy = AffinePolicy()
    with running(Server(policy, IDENTITY, ServerConfig(port=0))) as server:
        remote = RemotePolicy(server.url, Config(timeout_s=0.2))
        ask(remote, batch())
        policy.latency_s = 1.0
        with pytest.raises(ProtocolError, match="no answer within"):
            ask(remote, batch(**{STATE: np.float32([0.9, 0.9, 0.9])}))
        policy.latency_s = 0.0
        remote.config = Config(timeout_s=10.0)
        np.testing.assert_array_equal(ask(remote, batch())[0, 0], np.float32([0.1, 0.2]))
        remote.close()


def test_the_servers_refusal_is_passed_on_and_not_repeated() -> None:
    policy = AffinePolicy()
    with running(Server(policy, IDENTITY, ServerConfig(port=0))) as server, RemotePolicy(server.url) as remote:
        before = len(policy.seen)
        with pytest.raises(ProtocolError, match="refused: The policy failed"):
            ask(remote, batch(**{STATE: np.float32([13, 13, 13])}))
        assert len(policy.seen) == before + 1


def test_a_foreign_server_is_driven_by_keys() -> None:
    with foreign() as (url, seen), RemotePolicy(url, Config(keys=KEYS), robot=ROBOT) as remote:
        assert remote.spec.chunk_steps == 5
        assert remote.spec.reads_task
        assert set(remote.spec.observation) == {STATE, WRIST}
        assert ask(remote, batch())[0, 0].tolist() == [0.25, 0.25]
        assert set(seen[-1]) == {"observation/state", "image", "prompt"}
        assert seen[-1]["image"].shape == (3, 8, 6)
        assert seen[-1]["prompt"] == "press"


def test_a_foreign_server_without_keys_or_of_another_width_is_refused() -> None:
    with foreign(metadata={"reset_pose": [0, 0]}, width=7) as (url, _):
        with pytest.raises(ConfigError, match=r"says \['reset_pose'\]\). Say it with --remote-keys"):
            RemotePolicy(url)
        with pytest.raises(SpecError, match="not made for each other"):
            RemotePolicy(url, Config(keys=KEYS), robot=ROBOT)


@pytest.mark.parametrize(
    ("items", "match"),
    [
        (("state",), "wants wire_name=key"),
        (("state=observation.pose",), "has no 'observation.pose'"),
        (("a=observation.state@chw",), "is for images"),
        (("a=observation.state", "a=task"), "each name once"),
    ],
)
def test_wrong_keys_are_named(items: tuple[str, ...], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_keys(items, ROBOT)


def good_metadata() -> dict[str, Any]:
    return Server(AffinePolicy(), IDENTITY).metadata()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"observation": None}, "does not say which observation"),
        ({"observation": {}}, "observation is empty"),
        ({"observation": {STATE: {"shape": [0], "dtype": "float32"}}}, "sizes > 0"),
        ({"observation": {STATE: {"shape": [3], "dtype": "object"}}}, "dtype must be one of"),
        ({"observation": {STATE: 3}}, "expected a description"),
        ({"observation": {STATE: {"shape": [2], "dtype": "float32", "low": [0, 1, 2]}}}, "low has 3 entries"),
        ({"action": {"shape": [2], "dtype": "float32", "low": 1.0, "high": -1.0}}, r"entry 0 has limits \[1, -1\]"),
        ({"action": {"shape": [2, 2], "dtype": "float32"}}, "expected a vector"),
        ({"control_dt": -1}, "control_dt must be"),
        ({"chunk_steps": 0}, "chunk_steps must be"),
        ({"replan_steps": 9}, r"within \[1, 4\]"),
        ({"aliases": {"x": "nowhere"}}, "lead to keys"),
    ],
)
def test_metadata_that_cannot_be_right_is_named(change: dict[str, Any], match: str) -> None:
    assert metadata_problems(good_metadata()) == []
    assert re.search(match, " ".join(metadata_problems({**good_metadata(), **change})))
