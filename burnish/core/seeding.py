"""Random streams: independent generators from one seed, saved and restored exactly; nothing global is seeded."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.core.errors import CheckpointError


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """Return the generator that belongs to a seed and a path of names.

    The same arguments give the same stream on every machine; any other path is independent of it.

    Args:
        seed: Root seed, >= 0.
        names: Path, for example ``("collect", "policy")`` or ``("episode", 3)``.
    """
    words = [seed & 0xFFFFFFFF, seed >> 32]
    for name in names:
        digest = hashlib.sha256(f"{type(name).__name__}:{name}".encode()).digest()
        words.append(int.from_bytes(digest[:4], "little"))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def save_generator(generator: np.random.Generator) -> dict[str, Any]:
    """Return the exact state of a generator as JSON values."""
    state: dict[str, Any] = _plain(generator.bit_generator.state)
    return state


def restore_generator(state: Mapping[str, Any]) -> np.random.Generator:
    """Rebuild a generator from :func:`save_generator`.

    Raises:
        CheckpointError: If the state is not that of a PCG64 generator.
    """
    if state.get("bit_generator") != "PCG64":
        raise CheckpointError(f"Expected the state of a PCG64 generator, found {state.get('bit_generator')!r}.")
    bits = np.random.PCG64()
    bits.state = dict(state)  # type: ignore[assignment]
    return np.random.Generator(bits)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return int(value) if isinstance(value, np.integer) else value
