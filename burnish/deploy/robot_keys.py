"""From what a lerobot robot calls its sensors to what a policy reads: by name where both have names, else by order."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.core.errors import ProtocolError
from burnish.core.spec import TASK_KEY, Array, ArraySpec, PolicySpec
from burnish.deploy.lerobot_wire import Feature
from burnish.deploy.observations import ObservationReader

_MAX_LISTED = 24
"""How many robot keys one message names."""


class RobotKeys:
    """Turns the observations of one robot into messages for an :class:`ObservationReader`."""

    def __init__(
        self, spec: PolicySpec, features: Mapping[str, Feature], reader: ObservationReader, *, resize: bool
    ) -> None:
        """Compare what the robot has with what the policy reads.

        Args:
            spec: What the policy reads.
            features: What the robot has, by observation key.
            reader: Knows other names of the policy's keys.
            resize: Whether pictures of another size are scaled.

        Raises:
            ProtocolError: Says what is expected and what the robot has.
        """
        self.warnings: list[str] = []
        """What is doubtful, for the log."""
        self._spec = spec
        self._expected = reader.expected()
        self._pictures: dict[str, Feature] = {}
        self._vectors: dict[str, tuple[str, ...]] = {}
        self._features = features
        cameras = {reader.aliases.get(key, key): item for key, item in features.items() if item.is_image}
        numbers = tuple(name for item in features.values() if not item.is_image for name in item.names)
        if len(set(numbers)) < len(numbers):
            raise ProtocolError("The robot names two of its numbers alike.")
        for key, item in spec.observation.items():
            if item.is_image:
                self._pictures[key] = self._camera(key, item, cameras, resize)
        self._share(numbers)
        if spec.action.shape != (len(numbers),):
            self.warnings.append(
                f"The policy answers with {spec.action.shape[0]} numbers, the robot has {len(numbers)}; entry i is for "
                f"the i-th of its action_features{': ' + ', '.join(spec.action.names) if spec.action.names else ''}."
            )
        unread = [name for name in numbers if all(name not in names for names in self._vectors.values())]
        unread += [key for key in cameras if key not in self._pictures]
        if unread:
            self.warnings.append(f"The policy does not read {', '.join(unread[:_MAX_LISTED])}.")

    def message(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return one observation by the policy's keys.

        Args:
            values: By robot key: numbers, pictures (H, W, 3) uint8, and ``task``.

        Raises:
            ProtocolError: Names the robot key that is missing or of another kind.
        """
        message: dict[str, Any] = {TASK_KEY: values.get(TASK_KEY, "")}
        for key, names in self._vectors.items():
            message[key] = np.array([_number(name, values) for name in names], np.float32)
        for key, feature in self._pictures.items():
            picture, spec = _picture(feature, values), self._spec.observation[key]
            message[key] = resize_bilinear(picture, *spec.shape[:2]) if feature.shape != spec.shape else picture
        return message

    def _camera(self, key: str, spec: ArraySpec, cameras: Mapping[str, Feature], resize: bool) -> Feature:
        if key not in cameras:
            raise self._refusal(f"the robot has no camera '{key}'")
        feature = cameras[key]
        if feature.shape[2] != 3 or (feature.shape != spec.shape and not resize):
            raise self._refusal(f"camera '{key}' gives {list(feature.shape)}, the policy reads {list(spec.shape)}")
        if feature.shape != spec.shape:
            self.warnings.append(
                f"Pictures of '{key}' are scaled from {list(feature.shape[:2])} to {list(spec.shape[:2])}; the policy "
                "should have been trained on pictures that were scaled in the same way."
            )
        return feature

    def _share(self, numbers: tuple[str, ...]) -> None:
        """Decide which of the robot's numbers make up each vector."""
        vectors = {key: item for key, item in self._spec.observation.items() if not item.is_image}
        wrong = [key for key, item in vectors.items() if len(item.shape) != 1 or np.dtype(item.dtype).kind != "f"]
        if wrong:
            raise self._refusal(f"'{wrong[0]}' is neither a picture nor a vector, and lerobot's robots have no other")
        if vectors and all(item.names and set(item.names) <= set(numbers) for item in vectors.values()):
            self._vectors = {key: item.names for key, item in vectors.items()}
            return
        wanted = sum(item.shape[0] for item in vectors.values())
        if wanted != len(numbers):
            raise self._refusal(f"the policy reads {wanted} numbers, the robot has {len(numbers)}")
        begin = 0
        for key, item in vectors.items():
            self._vectors[key] = numbers[begin : begin + item.shape[0]]
            begin += item.shape[0]
            if item.names:
                pairs = zip(item.names, self._vectors[key], strict=True)
                listed = ", ".join(f"{mine} <- {theirs}" for mine, theirs in pairs if mine != theirs)
                self.warnings.append(f"'{key}' is filled by order, since the names differ: {listed}. Check the order.")

    def _refusal(self, what: str) -> ProtocolError:
        received = [
            f"{key} uint8{list(item.shape)}" if item.is_image else f"{key} ({', '.join(item.names[:_MAX_LISTED])})"
            for key, item in list(self._features.items())[:_MAX_LISTED]
        ]
        return ProtocolError(
            f"This robot does not fit the policy: {what}. Expected: {self._expected}. "
            f"Received: {', '.join(received) or 'nothing'}."
        )


def resize_bilinear(picture: Array, height: int, width: int) -> Array:
    """Return a picture (H, W, 3) uint8 as (height, width, 3), each pixel mixed from its four nearest.

    The same as ``torch.nn.functional.interpolate(mode="bilinear", align_corners=False)``, which lerobot's own server
    applies; unlike ``resize_with_pad`` it neither keeps proportions nor filters before it shrinks.
    """
    top, bottom, down = _neighbours(picture.shape[0], height)
    left, right, across = _neighbours(picture.shape[1], width)
    rows = picture[top].astype(np.float32) * (1 - down)[:, None, None] + picture[bottom] * down[:, None, None]
    mixed = rows[:, left] * (1 - across)[None, :, None] + rows[:, right] * across[None, :, None]
    resized: Array = np.clip(np.round(mixed), 0, 255).astype(np.uint8)
    return resized


def _neighbours(size: int, new_size: int) -> tuple[Array, Array, Array]:
    """Return (index before, index after, share of the one after), each (new_size,)."""
    centre = np.maximum((np.arange(new_size, dtype=np.float32) + 0.5) * np.float32(size / new_size) - 0.5, 0)
    before = np.minimum(centre.astype(np.int64), size - 1)
    return before, np.minimum(before + 1, size - 1), (centre - before).astype(np.float32)


def _number(name: str, values: Mapping[str, Any]) -> float:
    value = values.get(name)
    if type(value) not in (int, float) and not (isinstance(value, np.generic) and value.dtype.kind in "iuf"):
        raise ProtocolError(f"'{name}': expected a number, received {_kind(value)}.")
    return float(value)  # type: ignore[arg-type]


def _picture(feature: Feature, values: Mapping[str, Any]) -> Array:
    value = values.get(feature.names[0])
    if not isinstance(value, np.ndarray) or value.shape != feature.shape or value.dtype != np.uint8:
        found = f"{value.dtype.name}{list(value.shape)}" if isinstance(value, np.ndarray) else _kind(value)
        raise ProtocolError(
            f"'{feature.names[0]}': expected uint8{list(feature.shape)} as announced, received {found}."
        )
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
