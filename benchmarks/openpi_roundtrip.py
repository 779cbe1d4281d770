"""Round trip of the openpi server with two 224x224 cameras: milliseconds from request to answer, on this machine.

A policy that answers at once, so that what is measured is the protocol: packing and sending 301 kB, checking the
observation, handing it to the inference thread, and the way back. The client is burnish's own. The bare websocket sends
the same number of bytes and gets a chunk back, with nothing packed or checked: the floor. Wall time, since a round trip
is waiting; other programs on the machine make it longer.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import harness
import numpy as np
from harness import Case
from websockets.asyncio.server import serve
from websockets.sync.client import connect

from burnish.core.spec import ArraySpec, PolicySpec
from burnish.core.step import ActionSample
from burnish.deploy.client import Client
from burnish.deploy.codec import pack
from burnish.deploy.openpi import Config, Identity, Server, running

CAMERAS = ("observation.images.front", "observation.images.wrist")
STATE = "observation.state"
SPEC = PolicySpec(
    "instant",
    {STATE: ArraySpec((14,)), **{key: ArraySpec((224, 224, 3), "uint8") for key in CAMERAS}},
    ArraySpec((14,)),
    50,
)


class Instant:
    """Answers with zeros."""

    spec = SPEC

    def act(self, observation: Any, *, generator: Any, deterministic: bool = False) -> ActionSample:
        """Return chunks (N, 50, 14)."""
        rows = len(observation[STATE])
        return ActionSample(np.zeros((rows, 50, 14), np.float32), np.zeros((rows, 50), np.float32))


def observation() -> dict[str, Any]:
    """Return one observation without batch axis."""
    draw = np.random.default_rng(0)
    pictures = {key: draw.integers(0, 256, (224, 224, 3)).astype(np.uint8) for key in CAMERAS}
    return {**pictures, STATE: np.zeros(14, np.float32)}


def timed(ask: Any, requests: int) -> np.ndarray:
    """Return the milliseconds of each request, after twenty that do not count."""
    took = []
    for number in range(requests + 20):
        begin = time.perf_counter()
        ask()
        if number >= 20:
            took.append((time.perf_counter() - begin) * 1e3)
    return np.array(took)


@contextmanager
def bare(answer: bytes) -> Iterator[str]:
    """A websocket that answers every message with the same bytes."""
    loop, started, address = asyncio.new_event_loop(), threading.Event(), []
    stop = asyncio.Event()

    async def handle(connection: Any) -> None:
        async for _ in connection:
            await connection.send(answer)

    async def run() -> None:
        async with serve(handle, "127.0.0.1", 0, compression=None, max_size=1 << 26) as server:
            address.append(next(iter(server.sockets)).getsockname()[1])
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    started.wait()
    try:
        yield f"ws://127.0.0.1:{address[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def main() -> None:
    """Measure and write."""
    chosen = harness.options("openpi_roundtrip", __doc__)
    requests = 50 if chosen.quick else 2000
    seen = observation()
    message = pack(seen)
    with running(Server(Instant(), Identity(control_dt=0.05), Config(port=0))) as server, Client(server.url) as client:
        ours = timed(lambda: client.infer(seen), requests)
    with bare(pack({"actions": np.zeros((50, 14), np.float32)})) as url, connect(url, compression=None) as connection:

        def ask() -> None:
            connection.send(message)
            connection.recv()

        floor = timed(ask, requests)
    cases = {
        name: Case(float(np.quantile(ours, share)), {"bare websocket": float(np.quantile(floor, share))})
        for name, share in (("median", 0.5), ("p99", 0.99))
    }
    harness.write(
        "openpi_roundtrip",
        cases,
        chosen,
        unit="wall ms per round trip",
        about=__doc__ or "",
        packages=("websockets", "msgpack"),
        note="The bare websocket is the floor, not a peer to beat: it neither unpacks nor checks what it is sent.",
        requests=requests,
        request_bytes=len(message),
    )


if __name__ == "__main__":
    main()
