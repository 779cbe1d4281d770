"""What the contract checks share: running them by name, comparing values bit for bit, and inputs drawn from a spec."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from burnish.core.errors import CheckError
from burnish.core.spec import PRIVILEGED_PREFIX, TASK_KEY, Array, ArraySpec, EnvSpec, Observation
from burnish.core.step import Start

Check = Callable[[], None]
"""Returns where the contract is kept, raises :class:`CheckError` where it is not."""


def run_checks(subject: str, checks: Mapping[str, Check]) -> list[str]:
    """Run checks in order and return their names.

    Args:
        subject: What is checked, for the message.
        checks: Name to check.

    Raises:
        CheckError: From the first that fails; an exception of the component becomes one too.
    """
    for name, check in checks.items():
        try:
            check()
        except CheckError as error:
            raise CheckError(f"{subject} fails the check '{name}': {error}") from error
        except Exception as error:  # a component may raise anything
            raise CheckError(
                f"{subject} fails the check '{name}': it raised {type(error).__name__}: {error}"
            ) from error
    return list(checks)


def expect(condition: bool, message: str) -> None:
    """Raise a :class:`CheckError` with a message unless the condition holds."""
    if not condition:
        raise CheckError(message)


def expect_array(value: Any, name: str, *, shape: Sequence[int], dtype: str) -> None:
    """Refuse what is not a finite numpy array of this shape and dtype.

    Raises:
        CheckError: Says what was found.
    """
    expect(isinstance(value, np.ndarray), f"{name} must be a numpy array, found {type(value).__name__}.")
    expect(value.shape == tuple(shape), f"{name} has shape {value.shape}, expected {tuple(shape)}.")
    expect(value.dtype == np.dtype(dtype), f"{name} has dtype {value.dtype}, expected {dtype}.")
    bad = np.argwhere(~np.isfinite(value))
    expect(not len(bad), f"{name} is not finite at {tuple(bad[0].tolist()) if len(bad) else ()}.")


def expect_within(value: Array, spec: ArraySpec, name: str) -> None:
    """Refuse values (N, ...) outside the limits of a spec; rounding to the spec's dtype is forgiven.

    Raises:
        CheckError: Names the first entry that is outside.
    """
    low, high = spec.bounds()
    slack = 1e-6 * np.maximum(1.0, np.where(np.isfinite(high - low), high - low, 1.0))
    bad = np.argwhere((value < low - slack) | (value > high + slack))
    if len(bad):
        index = tuple(bad[0].tolist())
        entry = index[1:]
        raise CheckError(
            f"{name} is {value[index]:.6g} at {index}, outside [{low[entry]:.6g}, {high[entry]:.6g}] of its spec."
        )


def difference(first: Any, second: Any, name: str = "") -> str:
    """Return "" where two values are equal bit for bit, else what differs first in one phrase."""
    if isinstance(first, Mapping):
        if set(first) != set(second):
            return f"{name} has keys {sorted(first)} and {sorted(second)}"
        found = (difference(item, second[key], f"{name}['{key}']") for key, item in first.items())
        return next((text for text in found if text), "")
    one, two = np.asarray(first), np.asarray(second)
    if one.shape != two.shape or one.dtype != two.dtype:
        return f"{name} is {one.dtype} {one.shape} and {two.dtype} {two.shape}"
    numbers = np.issubdtype(one.dtype, np.floating)
    equal = (one == two) | (np.isnan(one) & np.isnan(two)) if numbers else one == two
    if np.all(equal):
        return ""
    index = tuple(np.argwhere(~equal)[0].tolist())
    return f"{name}{list(index) if index else ''} is {one[index]!s} and {two[index]!s}"


def copy_of(value: Any) -> Any:
    """Return an independent copy of nested dicts of arrays and lists."""
    if isinstance(value, Mapping):
        return {key: copy_of(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else np.array(value)


def rows_of(value: Any, rows: Sequence[int]) -> Any:
    """Return some environments of nested dicts whose leading axis is N."""
    if isinstance(value, Mapping):
        return {key: rows_of(item, rows) for key, item in value.items()}
    return [value[n] for n in rows] if isinstance(value, list) else value[list(rows)]


def draw(spec: ArraySpec, leading: Sequence[int], generator: np.random.Generator) -> Array:
    """Return random values (*leading, *shape) within a spec's limits, standard normal where it has none."""
    shape = (*leading, *spec.shape)
    kind = np.dtype(spec.dtype)
    low, high = spec.bounds()
    if kind == np.uint8 and not np.isfinite(high).all():
        return generator.integers(0, 256, shape, dtype=np.uint8)
    if kind == np.bool_:
        return generator.random(shape) < 0.5
    limited = np.isfinite(low) & np.isfinite(high)
    uniform = np.where(limited, low, 0.0) + generator.random(shape) * np.where(limited, high - low, 1.0)
    value: Array = np.where(limited, uniform, np.clip(generator.standard_normal(shape), low, high)).astype(kind)
    return value


def draw_observation(
    spec: EnvSpec, count: int, generator: np.random.Generator, *, privileged: bool = True
) -> Observation:
    """Return a random observation of ``count`` environments, with ``task``; for what needs no real state."""
    observation: Observation = {
        key: draw(item, (count,), generator)
        for key, item in spec.observation.items()
        if privileged or not key.startswith(PRIVILEGED_PREFIX)
    }
    observation[TASK_KEY] = [spec.tasks[i % len(spec.tasks)] for i in range(count)]
    return observation


def draw_starts(spec: EnvSpec, count: int, *, seed: int = 0) -> list[Start]:
    """Return different Starts, tasks and initial conditions in turn."""
    return [
        Start(task=spec.tasks[i % len(spec.tasks)], init=(7 * i) % spec.num_inits, seed=seed + 1000 + i)
        for i in range(count)
    ]


def generator_state(generator: np.random.Generator) -> str:
    """Return a text that changes when a generator is used."""
    return repr(generator.bit_generator.state)
