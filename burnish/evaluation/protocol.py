"""What must be equal for two evaluations to be comparable, as JSON values, and in words what is not."""

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.core.errors import CheckError
from burnish.core.packages import versions
from burnish.core.spec import EnvSpec, fingerprint
from burnish.core.step import Start

VERSIONED = ("burnish", "mujoco")
"""Packages whose version can change what an environment does."""

REASONS = {
    "env": "another environment is another task",
    "env_config": "the environment is configured differently",
    "env_protocol": "the environment says that this must be equal",
    "metrics": "the figure is defined differently",
    "max_episode_steps": "a longer limit gives more time to succeed",
    "control_dt": "seconds between two actions",
    "tasks": "other tasks are easier or harder",
    "starts": "other episodes were run, so nothing is paired",
    "decoding": "sampling and the mode of the distribution succeed at different rates",
    "replan_steps": "how many actions of a chunk run before the policy is asked again",
    "versions": "another version can simulate differently",
}
"""Entries of a protocol, and why a difference matters."""


def protocol_of(
    spec: EnvSpec,
    starts: Sequence[Start],
    *,
    replan_steps: int,
    deterministic: bool,
    env_config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the protocol of an evaluation as JSON values; the policy and its weights are no part of it.

    Args:
        spec: Of the environment; its ``protocol`` (contact parameters, render profile, ...) is taken over whole.
        starts: Every episode that is run, in any order.
        replan_steps: Actions executed of each chunk.
        deterministic: Whether the policy answers with its mode.
        env_config: Id and configuration of the environment as ``registry.to_json`` gives it; None where unknown.
    """
    return {
        "env": spec.id,
        "env_config": dict(env_config.get("config", env_config)) if env_config else {},
        "env_protocol": dict(spec.protocol),
        "metrics": {
            name: {"kind": item.kind, "unit": item.unit, "per": item.per} for name, item in spec.metrics.items()
        },
        "max_episode_steps": spec.max_episode_steps,
        "control_dt": spec.control_dt,
        "tasks": sorted({start.task for start in starts}),
        "starts": {"episodes": len(starts), "fingerprint": starts_fingerprint(starts)},
        "decoding": "deterministic" if deterministic else "sampled",
        "replan_steps": replan_steps,
        "versions": versions(VERSIONED),
    }


def starts_fingerprint(starts: Sequence[Start]) -> str:
    """Return a hash of a list of Starts, whatever their order."""
    return fingerprint([[start.task, start.init, start.seed] for start in sorted(starts)])


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return in words everything in which two protocols differ; empty where their numbers are comparable.

    Args:
        first: From :func:`protocol_of`, or read from an evaluation file.
        second: The other one.
    """
    found: list[str] = []
    for entry in (*REASONS, *sorted((first.keys() | second.keys()) - REASONS.keys())):
        for path, mine, theirs in _leaves(entry, first.get(entry), second.get(entry)):
            reason = REASONS.get(entry)
            found.append(f"{path}: {_word(mine)} against {_word(theirs)}" + (f" ({reason})" if reason else ""))
    return found


def check_comparable(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Refuse to compare numbers of different protocols.

    Raises:
        CheckError: Lists every difference and what to do.
    """
    found = differences(first, second)
    if found:
        lines = "\n".join(f"  - {line}" for line in found)
        raise CheckError(
            f"These two evaluations are not comparable, since their protocols differ in {len(found)} "
            f"{'place' if len(found) == 1 else 'places'}:\n{lines}\n"
            "Evaluate both again with the same settings and Starts."
        )


_ABSENT = object()


def _leaves(path: str, mine: Any, theirs: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        rows: list[tuple[str, Any, Any]] = []
        for key in sorted(mine.keys() | theirs.keys()):
            rows += _leaves(f"{path}.{key}", mine.get(key, _ABSENT), theirs.get(key, _ABSENT))
        return rows
    return [] if _plain(mine) == _plain(theirs) else [(path, mine, theirs)]


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _word(value: Any) -> str:
    if value is _ABSENT or value is None:
        return "nothing"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return str(value)
