import json

import numpy as np
import pytest
from PIL import Image

from burnish.core.errors import ConfigError, SpecError
from burnish.core.transforms import (
    Concatenate,
    Group,
    Normalise,
    Rename,
    ResizeWithPad,
    Sample,
    group_from_json,
    group_to_json,
    resize_with_pad,
)


def test_rename_and_back() -> None:
    rename = Rename((("a", "b"), ("b", "a")))  # a swap is allowed
    sample = {"a": np.ones(2), "b": np.zeros(2), "task": "go"}
    changed = rename(sample)
    assert changed["a"] is sample["b"]
    assert changed["task"] == "go"
    assert rename.inverse()(changed) == sample


def test_concatenate_by_hand() -> None:
    sample: Sample = {"x": np.array([1.0, 2.0]), "y": np.array([3.0]), "task": "go"}
    joined = Concatenate(("y", "x"), "state")(sample)
    assert joined["state"].tolist() == [3.0, 1.0, 2.0]
    assert sorted(joined) == ["state", "task"]
    assert "x" in sample  # what was given stays


def test_normalise_by_hand_and_back() -> None:
    normalise = Normalise("action", (1.0, 2.0), (0.5, 4.0))
    sample = {"action": np.array([[2.0, 2.0], [1.0, 6.0]], np.float32)}
    changed = normalise(sample)
    np.testing.assert_array_equal(changed["action"], [[2.0, 0.0], [0.0, 1.0]])
    assert changed["action"].dtype == np.float32
    np.testing.assert_array_equal(normalise.inverse()(changed)["action"], sample["action"])
    assert normalise.inverse().inverse() == normalise


@pytest.mark.parametrize(("rows", "columns"), [(48, 64), (64, 48), (100, 31), (7, 9), (20, 20)])
def test_resize_agrees_with_pillow(rows: int, columns: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    ours = resize_with_pad(picture, 24, 32)
    factor = min(24 / rows, 32 / columns)
    inner = (max(1, int(columns * factor)), max(1, int(rows * factor)))
    theirs = np.asarray(Image.fromarray(picture).resize(inner, Image.Resampling.BILINEAR), int)
    top, left = (24 - inner[1]) // 2, (32 - inner[0]) // 2
    part = ours[top : top + inner[1], left : left + inner[0]]
    assert np.abs(part - theirs).max() <= 1
    assert ours.sum() == part.sum()  # all around is black


def test_resize_to_the_same_size_copies() -> None:
    picture = np.zeros((4, 6, 3), np.uint8)
    same = resize_with_pad(picture, 4, 6)
    assert same is not picture
    assert np.array_equal(same, picture)


def test_layers_of_a_group_unwind_in_the_opposite_order() -> None:
    group = (
        Group()
        .push_inverse(Rename((("joints", "action"),)))
        .push_inverse(Normalise("action", (1.0,), (2.0,)))
        .push(into=Normalise("state", (0.0,), (10.0,)))
    )
    read = group.to_policy({"joints": np.array([5.0]), "state": np.array([20.0])})
    assert read["action"].tolist() == [2.0]
    assert read["state"].tolist() == [2.0]
    answer = group.from_policy({"action": np.array([2.0])})
    assert answer["joints"].tolist() == [5.0]


def test_a_group_goes_through_json() -> None:
    group = Group().push(Concatenate(("x", "y"), "s")).push(ResizeWithPad(("camera",), 8, 8))
    group = group.push_inverse(Normalise("s", (0.0, 1.0), (1.0, 2.0)))
    assert group_from_json(json.loads(json.dumps(group_to_json(group)))) == group


def test_third_party_transforms_run_but_have_no_json() -> None:
    def doubled(sample: Sample) -> Sample:
        return {key: 2 * item for key, item in sample.items()}

    group = Group().push(doubled)
    assert group.to_policy({"x": 3}) == {"x": 6}
    with pytest.raises(ConfigError, match="'function' cannot be written as JSON"):
        group_to_json(group)


SAMPLE: Sample = {"state": np.zeros(3), "camera": np.zeros((4, 4, 3), np.uint8)}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Rename((("stat", "x"),)), r"Rename needs 'stat'. Did you mean 'state'"),
        (Rename((("state", "camera"),)), "cannot put 'state' under 'camera'"),
        (Concatenate(("state", "camera"), "x"), r"'camera' has shape \(4, 4, 3\)"),
        (Normalise("state", (0.0,), (1.0,)), r"statistics of 1 entries, but the value has shape \(3,\)"),
        (ResizeWithPad(("state",), 4, 4), r"needs \(H, W, 3\) uint8, 'state' is float64 \(3,\)"),
    ],
)
def test_samples_that_do_not_fit(transform: Rename, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        transform(SAMPLE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rename((("a", "x"), ("b", "x"))), "names a new key twice: x, x"),
        (lambda: Normalise("a", (0.0,), (1.0, 2.0)), "mean has 1 entries, scale 2"),
        (lambda: Normalise("a", (0.0,), (0.0,)), "scale above 0"),
        (lambda: ResizeWithPad((), 0, 4), "found 0 x 4"),
        (lambda: group_from_json({"inputs": [{"kind": "Renam"}], "outputs": []}), "Did you mean 'Rename'"),
        (
            lambda: group_from_json({"inputs": [], "outputs": [{"kind": "Concatenate", "key": 1}]}),
            r"outputs\[0\]: unknown field 'key'. Did you mean 'keys'",
        ),
    ],
)
def test_bad_transforms(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]
