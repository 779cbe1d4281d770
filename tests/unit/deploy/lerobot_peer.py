"""lerobot's side of AsyncInference as its messages, without lerobot: what a pickle holds is decided by names only."""

import pickle
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

HELPERS = "lerobot.async_inference.helpers"


class _Fields:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def _stand_in(name: str) -> type[_Fields]:
    return type(name, (_Fields,), {"__module__": HELPERS})


RemotePolicyConfig = _stand_in("RemotePolicyConfig")
TimedObservation = _stand_in("TimedObservation")


@contextmanager
def _importable() -> Iterator[None]:
    """Let ``pickle.dumps`` find the stand-ins under the names of lerobot's classes."""
    module = types.ModuleType(HELPERS)
    module.RemotePolicyConfig = RemotePolicyConfig  # type: ignore[attr-defined]
    module.TimedObservation = TimedObservation  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in ("lerobot", "lerobot.async_inference", HELPERS)}
    sys.modules.update({"lerobot": module, "lerobot.async_inference": module, HELPERS: module})
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


def dumps(value: Any, protocol: int = 4) -> bytes:
    with _importable():
        return pickle.dumps(value, protocol)


def features(names: tuple[str, ...] = ("a.pos", "b.pos", "c.pos"), **cameras: tuple[int, int, int]) -> dict[str, Any]:
    """What ``hw_to_dataset_features`` makes of a robot."""
    found: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": (len(names),), "names": list(names)},
    }
    for key, shape in cameras.items():
        found[f"observation.images.{key}"] = {
            "dtype": "image",
            "shape": shape,
            "names": ["height", "width", "channels"],
            "info": {"is_depth_map": False},
        }
    return found


def setup(**changes: Any) -> bytes:
    fields = {
        "policy_type": "act",
        "pretrained_name_or_path": "/somewhere/else",
        "lerobot_features": features(wrist=(8, 6, 3)),
        "actions_per_chunk": 3,
        "device": "cpu",
        "rename_map": {},
    }
    return dumps(RemotePolicyConfig(**{**fields, **changes}))


def values(**changes: Any) -> dict[str, Any]:
    picture = np.zeros((8, 6, 3), np.uint8)
    return {"a.pos": 0.1, "b.pos": 0.2, "c.pos": 0.3, "wrist": picture, "task": "press", **changes}


def observation(timestep: int = 0, *, must_go: bool = True, protocol: int = 4, **changes: Any) -> bytes:
    return dumps(
        TimedObservation(timestamp=100.0, timestep=timestep, observation=values(**changes), must_go=must_go), protocol
    )
