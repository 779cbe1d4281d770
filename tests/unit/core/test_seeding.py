import json

import numpy as np
import pytest

from burnish.core.errors import CheckpointError
from burnish.core.seeding import restore_generator, save_generator, stream


def test_a_path_names_one_stream_for_ever() -> None:
    assert stream(3, "collect", 1).integers(1 << 30, size=3).tolist() == [997862810, 631278587, 713537735]


@pytest.mark.parametrize(
    "path",
    [(3, "collect"), (4, "collect", 1), (3, "collect", 2), (3, "collect", "1"), (3, 1, "collect"), (3 + (1 << 32),)],
)
def test_other_paths_are_other_streams(path: tuple[int | str, ...]) -> None:
    seed, *names = path
    first = stream(3, "collect", 1).integers(1 << 60, size=8)
    assert not np.array_equal(first, stream(int(seed), *names).integers(1 << 60, size=8))


def test_streams_are_not_correlated() -> None:
    samples = np.stack([stream(0, "episode", n).standard_normal(2000) for n in range(20)])
    correlation = np.corrcoef(samples) - np.eye(20)
    assert np.abs(correlation).max() < 0.1


def test_a_saved_generator_goes_on_exactly() -> None:
    generator = stream(1, "x")
    generator.standard_normal(7)
    generator.integers(0, 5, dtype=np.int32)  # leaves half of a word behind
    state = json.loads(json.dumps(save_generator(generator)))
    again = restore_generator(state)
    assert np.array_equal(generator.integers(0, 5, 9, dtype=np.int32), again.integers(0, 5, 9, dtype=np.int32))
    assert np.array_equal(generator.standard_normal(9), again.standard_normal(9))


def test_a_restored_generator_is_independent_of_the_saved_state() -> None:
    state = save_generator(stream(2))
    first = restore_generator(state).random(3)
    assert np.array_equal(first, restore_generator(state).random(3))


@pytest.mark.parametrize("state", [{}, {"bit_generator": "MT19937"}])
def test_other_generators_are_refused(state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="state of a PCG64 generator, found"):
        restore_generator(state)
