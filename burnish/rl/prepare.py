"""What is computed once per rollout, in one batch: frozen features, replayed log-probs and values."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from burnish.core.contracts import CachingPolicy, TrainablePolicy, ValuePolicy
from burnish.core.errors import CheckError
from burnish.core.spec import Array, Observation
from burnish.data.rollout import Batch, Rollout, next_value, to_tensors
from burnish.rl.pieces import observation_pieces, pieces
from burnish.rl.replay import check_replay


def prepare(
    rollout: Rollout,
    policy: TrainablePolicy,
    *,
    tolerance: float = 1e-4,
    checksums: Sequence[Mapping[str, int]] = (),
) -> Rollout:
    """Return the rollout with cached features and values, after checking that the policy replays its own log-probs.

    Args:
        rollout: As collected.
        policy: The one that acted, unchanged since.
        tolerance: Largest allowed |ratio - 1| of an executed decision.
        checksums: ``Collector.checksums``, for the message of a failed check.

    Raises:
        CheckError: If a replayed ratio strays; says which part of the observation or chunk differs.
    """
    raw = rollout
    if isinstance(policy, CachingPolicy):
        rollout = _cache_features(rollout, policy)
    batch = rollout.batch()
    if len(batch) == 0:
        raise CheckError("The rollout has no executed decision.")
    error = check_replay(policy, batch, raw, tolerance=tolerance, checksums=checksums)
    rollout = rollout.with_metrics(replay_error=error)
    return _set_values(rollout, batch, policy) if isinstance(policy, ValuePolicy) else rollout


def _set_values(rollout: Rollout, batch: Batch, policy: ValuePolicy) -> Rollout:
    value = np.zeros(rollout.executed.shape, np.float32)
    with torch.no_grad():
        value[rollout.executed > 0] = torch.cat([policy.value(part.observation) for part in pieces(batch)]).numpy()
        last = _value_of(policy, rollout.last_observation, len(rollout.last_index))
    return rollout.replace(value=value, next_value=next_value(value, last, rollout.last_index))


def _value_of(policy: ValuePolicy, observation: Observation, rows: int) -> Array:
    if rows == 0:
        return np.zeros(0, np.float32)
    parts = [policy.value(to_tensors(part)) for part in observation_pieces(observation, rows)]
    value: Array = torch.cat(parts).numpy()
    return value


def _cache_features(rollout: Rollout, policy: CachingPolicy) -> Rollout:
    steps, envs = rollout.executed.shape
    first = {key: to_tensors({key: item[0]})[key] for key, item in rollout.observation.items()}
    with torch.no_grad():
        if policy.precompute(first).keys() == first.keys():
            return rollout
    cached = _precompute(policy, rollout.flat_observation(), steps * envs)
    observation: dict[str, Any] = {}
    for key, item in cached.items():
        if isinstance(item, list):
            observation[key] = [item[t * envs : (t + 1) * envs] for t in range(steps)]
        else:
            observation[key] = item.reshape(steps, envs, *item.shape[1:])
    last = _precompute(policy, rollout.last_observation, len(rollout.last_index))
    return rollout.replace(observation=observation, last_observation=last)


def _precompute(policy: CachingPolicy, observation: Observation, rows: int) -> Observation:
    if rows == 0:
        return observation
    done: dict[str, list[Any]] = {}
    with torch.no_grad():
        for part in observation_pieces(observation, rows):
            for key, item in policy.precompute(to_tensors(part)).items():
                done.setdefault(key, []).append(item.numpy() if isinstance(item, torch.Tensor) else item)
    return {
        key: [entry for item in items for entry in item] if isinstance(items[0], list) else np.concatenate(items)
        for key, items in done.items()
    }
