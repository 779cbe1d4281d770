"""Replay parity: log-probs recomputed before the first update must equal those of collection, or learning is wrong.

Causes found in the wild: dropout or batch norm in training mode, an observation that was changed or cast between acting
and storing, a chunk cut before its log-prob was taken, log-probs in half precision, features cached for other weights.
"""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from burnish.core.contracts import TrainablePolicy
from burnish.core.errors import CheckError
from burnish.core.spec import Array
from burnish.data.rollout import Batch, Rollout
from burnish.nn.tensors import executed_mask
from burnish.rl.pieces import pieces


def check_replay(
    policy: TrainablePolicy,
    batch: Batch,
    rollout: Rollout,
    *,
    tolerance: float,
    checksums: Sequence[Mapping[str, int]] = (),
) -> float:
    """Return the largest |ratio - 1| of any executed entry.

    Args:
        policy: The one that acted.
        batch: The rollout's executed decisions, perhaps with cached features.
        rollout: As collected, without cached features.
        tolerance: Largest allowed |ratio - 1|, of single entries and of whole decisions.
        checksums: ``Collector.checksums``.

    Raises:
        CheckError: If it is larger than ``tolerance``, with the likely cause.
    """
    difference = _difference(policy, batch)
    whole = difference.sum(1, dtype=np.float64)
    error = float(np.abs(np.expm1(whole)).max()) if np.isfinite(whole).all() else float("inf")
    if error <= tolerance:
        return error
    ranked = np.where(np.isfinite(whole), np.abs(whole), np.inf)
    worst = int(ranked.argmax())
    chosen = np.flatnonzero(rollout.executed.reshape(-1) > 0)
    t, n = divmod(int(chosen[worst]), rollout.executed.shape[1])
    entry = int(np.nan_to_num(np.abs(difference[worst]), nan=np.inf).argmax())
    place = f"action {entry} of the chunk" if difference.shape[1] > 1 else "the chunk as a whole"
    count = int((ranked > tolerance).sum())
    stored = float(batch.sample.log_prob[worst, entry])
    raise CheckError(
        f"Replay parity failed: before any update, policy '{policy.spec.id}' gives other log-probs than when it acted. "
        f"Largest |ratio - 1| is {error:.3g} (allowed {tolerance:g}), in {count} of {len(whole)} decisions; worst at "
        f"chunk t={t} of environment {n}, {place} (log-prob {stored:.6g} when acting, "
        f"{stored + float(difference[worst, entry]):.6g} when replayed). "
        f"{_cause(policy, batch, rollout, difference, worst, checksums)}"
    )


def _difference(policy: TrainablePolicy, batch: Batch) -> Array:
    """Return (B, G) replayed minus stored log-prob, 0 past ``executed``."""
    with torch.no_grad():
        replayed = torch.cat([policy.evaluate(p.observation, p.sample, p.executed).log_prob for p in pieces(batch)])
    difference = replayed.float() - batch.sample.log_prob
    if difference.shape[1] > 1:
        difference = torch.where(executed_mask(batch.executed, difference.shape[1]), difference, 0.0)
    plain: Array = difference.numpy()
    return plain


def _cause(
    policy: TrainablePolicy,
    batch: Batch,
    rollout: Rollout,
    difference: Array,
    worst: int,
    checksums: Sequence[Mapping[str, int]],
) -> str:
    changed = changed_parts(rollout, checksums)
    if changed:
        return (
            f"Differs from what was seen or answered while acting: {'; '.join(changed)}. "
            "Something wrote into these arrays, or cast them, after act() was called."
        )
    again = _difference(policy, batch)
    if not np.array_equal(again, difference, equal_nan=True):
        return (
            "The observation and the chunk are as they were, and evaluate() gives another answer when it is called "
            "twice: look for dropout, noise or a module in training mode."
        )
    if set(batch.observation) != set(rollout.observation):
        raw = _difference(policy, rollout.batch())
        if np.abs(raw).max() < 0.1 * np.abs(difference).max():
            features = sorted(set(batch.observation) - set(rollout.observation))
            return f"With the observation as collected the log-probs agree: {features} made by precompute() differ."
    alone = _difference(policy, batch.part(worst, worst + 1))
    if np.abs(alone).max() < 0.1 * np.abs(difference[worst]).max():
        return (
            "Evaluated alone, that decision agrees: evaluate() mixes rows of a batch (batch norm in training mode, or "
            "a padding that depends on the batch)."
        )
    keys = ", ".join(rollout.observation)
    return (
        f"The observation ({keys}), the chunk and the trace are as they were when acting: act() and evaluate() of this "
        "policy compute different log-probs (weights changed in between, clipping, units, precision)."
    )


def changed_parts(rollout: Rollout, checksums: Sequence[Mapping[str, int]]) -> list[str]:
    """Return which stored arrays are no longer what the policy saw or answered, each with its first chunk."""
    arrays: dict[str, Array] = {f"observation/{key}": item for key, item in rollout.observation.items()}
    arrays |= {"action_chunk": rollout.action_chunk, "log_prob": rollout.log_prob}
    arrays |= {f"trace/{key}": item for key, item in rollout.trace.items()}
    found: list[str] = []
    for key in checksums[0] if checksums else ():
        if key not in arrays:
            found.append(f"{key} (not stored)")
            continue
        bad = [t for t, sums in enumerate(checksums) if checksum(arrays[key][t]) != sums[key]]
        if bad:
            found.append(f"{key} (from chunk t={bad[0]}, {len(bad)} of {len(checksums)} chunks)")
    return found


def checksum(item: object) -> int:
    """Return a checksum of an array's bytes, or of a list of strings."""
    if isinstance(item, np.ndarray) and item.dtype != object:
        return zlib.crc32(np.ascontiguousarray(item).tobytes() if item.ndim == 0 else np.ascontiguousarray(item))
    return zlib.crc32("\n".join(map(str, item)).encode())  # type: ignore[call-overload]
