"""Large batches worked through in pieces that fit into caches and memory; small ones stay whole."""

from collections.abc import Iterator

import numpy as np
import torch

from burnish.core.spec import Observation
from burnish.data.rollout import Batch

PIECE_BYTES = 32 << 20
"""Observations larger than this are worked through in pieces."""


def rows_per_piece(observation: Observation, rows: int) -> int:
    """Return how many of ``rows`` observations go into one piece."""
    size = sum(
        item.nbytes if isinstance(item, (np.ndarray, torch.Tensor)) else 0 for item in observation.values()
    ) / max(rows, 1)
    return int(max(1, min(rows, PIECE_BYTES // max(size, 1))))


def pieces(batch: Batch) -> Iterator[Batch]:
    """Yield a batch in order, in pieces that fit into caches and memory."""
    size = rows_per_piece(batch.observation, len(batch))
    for start in range(0, len(batch), size):
        yield batch.part(start, start + size)


def observation_pieces(observation: Observation, rows: int) -> Iterator[Observation]:
    """Yield an observation of ``rows`` entries in order, in pieces."""
    size = rows_per_piece(observation, rows)
    for start in range(0, rows, size):
        yield {key: item[start : start + size] for key, item in observation.items()}
