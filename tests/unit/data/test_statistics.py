from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.errors import DatasetError
from burnish.data.statistics import (
    array_statistics,
    dataset_statistics,
    image_statistics,
    merge_statistics,
    read_statistics,
    statistics_from_json,
    write_statistics,
)


def test_by_hand() -> None:
    found = array_statistics(np.array([[1.0, 10.0], [3.0, 10.0]], np.float32))
    assert found["mean"] == [2.0, 10.0]
    assert found["std"] == [1.0, 0.0]
    assert (found["min"], found["max"]) == ([1.0, 10.0], [3.0, 10.0])
    assert found["q50"] == [2.0, 10.0]
    assert found["count"] == [2.0]


def test_images_per_channel_in_unit_range() -> None:
    image = np.zeros((2, 1, 2, 3), np.uint8)
    image[..., 0] = 255
    image[0, :, :, 1] = 51
    found = image_statistics(image)
    np.testing.assert_allclose(found["mean"], [1.0, 0.1, 0.0], atol=1e-12)
    np.testing.assert_allclose(found["std"], [0.0, 0.1, 0.0], atol=1e-12)
    np.testing.assert_allclose(found["max"], [1.0, 0.2, 0.0], atol=1e-12)


def test_images_equal_those_of_the_scaled_array() -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    flat = array_statistics(image.reshape(-1, 3) / 255.0)
    found = dataset_statistics({"observation.images.top": image})["observation.images.top"]
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(found[name], flat[name], atol=1e-12)
    np.testing.assert_allclose(found["q50"], flat["q50"], atol=0.02)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(0, 1000))
def test_merging_equals_computing_together(sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    parts = [generator.normal(i, 1 + i, (size, 3)) for i, size in enumerate(sizes)]
    merged = merge_statistics([{"x": array_statistics(part)} for part in parts])["x"]
    together = array_statistics(np.concatenate(parts))
    for name in merged:
        np.testing.assert_allclose(merged[name], together[name], rtol=1e-9, atol=1e-9)


def test_json_round_trip_is_exact(tmp_path: Path) -> None:
    statistics = dataset_statistics({"action": np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)})
    write_statistics(tmp_path / "stats.json", statistics)
    assert read_statistics(tmp_path / "stats.json") == statistics
    assert [path.name for path in tmp_path.iterdir()] == ["stats.json"]


GOOD = {"mean": [0.0], "std": [1.0], "min": [0.0], "max": [1.0]}


@pytest.mark.parametrize(
    ("plain", "match"),
    [
        ([], "expected a JSON object"),
        ({"action": {"mean": [0.0], "std": [1.0]}}, "'action' lack min, max"),
        ({"action": 3}, "lack mean"),
        ({"action": {**GOOD, "std": ["a"]}}, "not all numbers"),
        ({"action": {**GOOD, "std": [float("nan")]}}, "'std' of 'action' is not finite"),
        ({"action": {**GOOD, "max": [1.0, 2.0]}}, "'max' of 'action' has 2 entries, 'mean' has 1"),
    ],
)
def test_bad_statistics(plain: Any, match: str) -> None:
    with pytest.raises(DatasetError, match=match):
        statistics_from_json(plain, "stats.json")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no statistics file"):
        read_statistics(tmp_path / "stats.json")
    (tmp_path / "stats.json").write_text("{", encoding="utf-8")
    with pytest.raises(DatasetError, match="is not JSON"):
        read_statistics(tmp_path / "stats.json")


def test_empty_arrays() -> None:
    with pytest.raises(DatasetError, match="at least one sample"):
        array_statistics(np.empty((0, 3)))
    with pytest.raises(DatasetError, match="at least one image"):
        image_statistics(np.empty((0, 2, 2, 3), np.uint8))


@pytest.mark.parametrize("parts", [[], [{"x": GOOD}], [{"x": {**GOOD, "count": [1.0]}}, {}]])
def test_what_cannot_be_merged(parts: list[Any]) -> None:
    with pytest.raises(DatasetError, match="merge"):
        merge_statistics(parts)
