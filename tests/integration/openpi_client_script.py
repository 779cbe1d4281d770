"""Runs inside the side environment with the unmodified ``openpi-client``; imports nothing of burnish."""

import json
import sys

import numpy as np
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy


def connect(port: int, key: str | None) -> WebsocketClientPolicy:
    return WebsocketClientPolicy(host="127.0.0.1", port=port, api_key=key)


def observation(value: float) -> dict[str, object]:
    return {
        "observation/state": np.array([value, 0.5, 0.0]),
        "observation/wrist": np.zeros((8, 6, 3), np.uint8),
        "prompt": "press the plate",
    }


def main(port: int, key: str) -> dict[str, object]:
    client = connect(port, key)
    result: dict[str, object] = {"numpy": np.__version__, "metadata": client.get_server_metadata()}
    answers = [client.infer(observation(i / 100)) for i in range(50)]
    result["first"] = [float(answer["actions"][0, 0]) for answer in answers]
    result["shape"] = list(answers[0]["actions"].shape)
    result["dtype"] = str(answers[0]["actions"].dtype)
    result["timing"] = sorted(answers[1]["server_timing"])

    try:
        connect(port, "wrong")
    except Exception as error:  # the client raises what its version of websockets raises
        result["wrong_key"] = f"{type(error).__name__}: {error}"

    other = connect(port, key)
    result["two_clients"] = [
        float(each.infer(observation(value))["actions"][0, 0])
        for each, value in ((client, 0.1), (other, 0.2), (client, 0.3))
    ]

    try:
        other.infer({"pose": np.zeros(7)})
    except RuntimeError as error:
        result["refused"] = str(error)
    again = connect(port, key)
    result["reconnected"] = float(again.infer(observation(0.4))["actions"][0, 0])
    broker = ActionChunkBroker(again, action_horizon=3)
    result["broker"] = [float(broker.infer(observation(i / 10))["actions"][0]) for i in range(4)]
    return result


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])))  # noqa: T201
