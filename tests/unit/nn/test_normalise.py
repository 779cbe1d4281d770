import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.core.spec import ArraySpec
from burnish.nn.normalise import RunningMoments, affine, affine_of

SPEC = ArraySpec((3,), low=(-1.0, 0.0, -np.inf), high=(1.0, 4.0, np.inf))


def test_limits_are_used_where_nothing_was_recorded():
    mean, scale = affine("x", SPEC, None)
    assert mean.tolist() == [0, 2, 0]
    assert scale.tolist() == [1, 2, 1]


def test_statistics_come_first_and_constant_entries_keep_the_limits():
    mean, scale = affine("x", SPEC, {"x": {"mean": [0.5, 1.0, 2.0], "std": [0.1, 0.0, 3.0]}})
    assert mean.tolist() == [0.5, 1, 2]
    assert scale == pytest.approx([0.1, 2, 3])


@pytest.mark.parametrize("bad", [{"mean": [0.0]}, {"mean": [0.0] * 3, "std": [np.nan] * 3}, {}])
def test_statistics_of_another_size_are_refused(bad):
    with pytest.raises(ConfigError, match="Statistics of 'x'"):
        affine("x", SPEC, {"x": bad})


def test_vectors_are_joined_in_order():
    mean, _ = affine_of(("b", "a"), {"a": ArraySpec((1,), low=0.0, high=2.0), "b": ArraySpec((2,))}, None)
    assert mean.tolist() == [0, 0, 1]
    assert affine_of((), {}, None)[1].shape == (0,)


def test_running_moments_equal_those_of_all_rows():
    rows = np.random.default_rng(0).normal(5, 2, (100, 4))
    running = RunningMoments(4)
    for part in np.split(rows, [1, 7, 7, 60]):
        running.update(part)
    assert running.count == 100
    np.testing.assert_allclose(running.mean, rows.mean(0))
    np.testing.assert_allclose(running.variance, rows.var(0))
