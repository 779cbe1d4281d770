"""Transforms of one sample, shared by datasets, evaluation and deployment, so that all three see the same numbers.

A sample is a dict of numpy arrays without batch axis, and texts. A transform is a frozen value: it returns a new dict,
touches no array that it was given, and can be written as JSON. What goes in and what comes out belong together, so they
are pushed onto a :class:`Group` in one call: inputs run in the order of pushing, outputs in the opposite one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from burnish.core.config import from_plain, to_plain
from burnish.core.errors import ConfigError, SpecError, suggest
from burnish.core.spec import Array

type Sample = dict[str, Any]


class Transform(Protocol):
    """Anything that takes a sample and returns another one."""

    def __call__(self, sample: Sample) -> Sample:
        """Return the changed sample; the one given stays as it is."""
        ...


@dataclass(frozen=True)
class Rename:
    """Give entries other keys; all others stay."""

    names: tuple[tuple[str, str], ...]
    """(old key, new key) pairs."""

    def __post_init__(self) -> None:
        """Refuse two entries under one key."""
        for side, keys in (("old", [old for old, _ in self.names]), ("new", [new for _, new in self.names])):
            if len(set(keys)) < len(keys):
                raise ConfigError(f"Rename names a {side} key twice: {', '.join(keys)}.")

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with new keys.

        Raises:
            SpecError: If an old key is missing, or a new one is taken.
        """
        new_key = dict(self.names)
        for old, new in self.names:
            _find(sample, old, "Rename")
            if new in sample and new not in new_key:
                raise SpecError(f"Rename cannot put '{old}' under '{new}': the sample has that key already.")
        return {new_key.get(key, key): item for key, item in sample.items()}

    def inverse(self) -> "Rename":
        """Return the transform that gives the old keys back."""
        return Rename(tuple((new, old) for old, new in self.names))


@dataclass(frozen=True)
class Concatenate:
    """Join vectors into one; their keys disappear."""

    keys: tuple[str, ...]
    """Vectors (D_i,) in order."""
    into: str
    """Key of the result (D,)."""

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with the joined vector.

        Raises:
            SpecError: If a key is missing or no vector.
        """
        parts = [np.asarray(_find(sample, key, "Concatenate")) for key in self.keys]
        for key, part in zip(self.keys, parts, strict=True):
            if part.ndim != 1:
                raise SpecError(f"Concatenate joins vectors, but '{key}' has shape {part.shape}.")
        rest = {key: item for key, item in sample.items() if key not in self.keys}
        return {**rest, self.into: np.concatenate(parts)}


@dataclass(frozen=True)
class Normalise:
    """(value - mean) / scale along the last axis, in float32."""

    key: str
    """Entry (..., D)."""
    mean: tuple[float, ...]
    """(D,)"""
    scale: tuple[float, ...]
    """(D,), above 0."""

    def __post_init__(self) -> None:
        """Refuse statistics that do not fit each other, or cannot be undone."""
        if len(self.mean) != len(self.scale):
            raise ConfigError(f"Normalise '{self.key}': mean has {len(self.mean)} entries, scale {len(self.scale)}.")
        if not (np.isfinite(self.mean).all() and np.isfinite(self.scale).all() and min(self.scale, default=1.0) > 0.0):
            raise ConfigError(f"Normalise '{self.key}': mean must be finite and scale above 0, found {self.scale}.")

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with the entry normalised.

        Raises:
            SpecError: If the key is missing or of another size.
        """
        value = _vector(sample, self.key, len(self.mean), "Normalise")
        changed = (value - np.asarray(self.mean)) / np.asarray(self.scale)
        return {**sample, self.key: changed.astype(np.float32)}

    def inverse(self) -> "Unnormalise":
        """Return the transform that gives the unit back."""
        return Unnormalise(self.key, self.mean, self.scale)


@dataclass(frozen=True)
class Unnormalise:
    """Value * scale + mean along the last axis, in float32."""

    key: str
    """Entry (..., D)."""
    mean: tuple[float, ...]
    """(D,)"""
    scale: tuple[float, ...]
    """(D,), above 0."""

    def __post_init__(self) -> None:
        """Refuse what :class:`Normalise` refuses."""
        Normalise(self.key, self.mean, self.scale)

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with the entry in its unit.

        Raises:
            SpecError: If the key is missing or of another size.
        """
        value = _vector(sample, self.key, len(self.mean), "Unnormalise")
        changed = value * np.asarray(self.scale) + np.asarray(self.mean)
        return {**sample, self.key: changed.astype(np.float32)}

    def inverse(self) -> Normalise:
        """Return the transform that normalises."""
        return Normalise(self.key, self.mean, self.scale)


@dataclass(frozen=True)
class ResizeWithPad:
    """Scale pictures to fit without distortion, and centre them on black."""

    keys: tuple[str, ...]
    """(H, W, 3) uint8 entries."""
    height: int
    """Pixels H of the result."""
    width: int
    """Pixels W of the result."""

    def __post_init__(self) -> None:
        """Refuse an empty picture."""
        if self.height < 1 or self.width < 1:
            raise ConfigError(f"ResizeWithPad needs at least 1 x 1 pixels, found {self.height} x {self.width}.")

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample with resized pictures.

        Raises:
            SpecError: If a key is missing or no picture.
        """
        changed = dict(sample)
        for key in self.keys:
            picture = np.asarray(_find(sample, key, "ResizeWithPad"))
            if picture.ndim != 3 or picture.shape[-1] != 3 or picture.dtype != np.uint8:
                raise SpecError(f"ResizeWithPad needs (H, W, 3) uint8, '{key}' is {picture.dtype} {picture.shape}.")
            changed[key] = resize_with_pad(picture, self.height, self.width)
        return changed


def resize_with_pad(picture: Array, height: int, width: int) -> Array:
    """Return a picture (H, W, 3) uint8 scaled by one factor and centred on black (height, width, 3).

    Bilinear with a filter as wide as the reduction, as Pillow's ``BILINEAR``, so that shrinking does not alias.
    """
    rows, columns = picture.shape[:2]
    if (rows, columns) == (height, width):
        return picture.copy()
    factor = min(height / rows, width / columns)
    inner_rows, inner_columns = max(1, int(rows * factor)), max(1, int(columns * factor))
    vertical, horizontal = _weights(rows, inner_rows), _weights(columns, inner_columns)
    scaled = np.einsum("hr,rcd,wc->hwd", vertical, picture.astype(np.float32), horizontal, optimize=True)
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - inner_rows) // 2, (width - inner_columns) // 2
    canvas[top : top + inner_rows, left : left + inner_columns] = np.clip(np.floor(scaled + 0.5), 0, 255)
    return canvas


@cache
def _weights(size: int, new_size: int) -> Array:
    """Return the (new_size, size) matrix of a triangle filter."""
    reduction = max(size / new_size, 1.0)
    centre = (np.arange(new_size) + 0.5) * size / new_size
    distance = np.abs(np.arange(size) + 0.5 - centre[:, None]) / reduction
    weights = np.maximum(1.0 - distance, 0.0)
    rows: Array = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return rows


@dataclass(frozen=True)
class Group:
    """What happens to a policy's inputs and to its outputs; pushed in pairs, so that one cannot miss the other."""

    inputs: tuple[Transform, ...] = ()
    """Run on an observation, first to last."""
    outputs: tuple[Transform, ...] = ()
    """Run on an answer, first to last: the last pushed comes first."""

    def push(self, into: Transform | None = None, out: Transform | None = None) -> "Group":
        """Return the group with one more layer next to the policy.

        Args:
            into: Runs after all inputs so far.
            out: Runs before all outputs so far.
        """
        inputs = self.inputs if into is None else (*self.inputs, into)
        outputs = self.outputs if out is None else (out, *self.outputs)
        return Group(inputs, outputs)

    def push_inverse(self, into: Rename | Normalise | Unnormalise) -> "Group":
        """Return the group with a transform of the inputs and its inverse for the outputs."""
        return self.push(into, into.inverse())

    def to_policy(self, sample: Sample) -> Sample:
        """Return what the policy reads."""
        return _run(self.inputs, sample)

    def from_policy(self, sample: Sample) -> Sample:
        """Return the answer as the outside expects it."""
        return _run(self.outputs, sample)


_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Rename, Concatenate, Normalise, Unnormalise, ResizeWithPad)
}


def group_to_json(group: Group) -> dict[str, Any]:
    """Return a group as JSON values.

    Raises:
        ConfigError: If a transform is none of this module.
    """

    def plain(transform: Transform) -> dict[str, Any]:
        name = type(transform).__name__
        if _KINDS.get(name) is not type(transform):
            raise ConfigError(f"Transform '{name}' cannot be written as JSON.{suggest(name, _KINDS)}")
        return {"kind": name, **to_plain(transform)}

    return {"inputs": [plain(item) for item in group.inputs], "outputs": [plain(item) for item in group.outputs]}


def group_from_json(value: Mapping[str, Any]) -> Group:
    """Rebuild a group from :func:`group_to_json`.

    Raises:
        ConfigError: If a transform or a field does not exist.
    """

    def build(item: Mapping[str, Any], where: str) -> Transform:
        kind = str(item.get("kind"))
        if kind not in _KINDS:
            raise ConfigError(f"{where}: there is no transform '{kind}'.{suggest(kind, _KINDS)}")
        rest = {name: field for name, field in item.items() if name != "kind"}
        transform: Transform = from_plain(_KINDS[kind], rest, where)
        return transform

    sides = {
        side: tuple(build(item, f"transforms: {side}[{i}]") for i, item in enumerate(value[side]))
        for side in ("inputs", "outputs")
    }
    return Group(**sides)


def _run(transforms: tuple[Transform, ...], sample: Sample) -> Sample:
    for transform in transforms:
        sample = transform(sample)
    return sample


def _find(sample: Sample, key: str, who: str) -> Any:
    if key not in sample:
        raise SpecError(f"{who} needs '{key}'.{suggest(key, sample)}")
    return sample[key]


def _vector(sample: Sample, key: str, size: int, who: str) -> Array:
    value = np.asarray(_find(sample, key, who), np.float64)
    if value.shape[-1:] != (size,):
        raise SpecError(f"{who} of '{key}' has statistics of {size} entries, but the value has shape {value.shape}.")
    return value
