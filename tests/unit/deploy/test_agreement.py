import numpy as np

from burnish.core.spec import ArraySpec
from burnish.deploy.agreement import agreement


def test_agreement_by_hand() -> None:
    policy = [np.array([0.0, 1.0]), np.array([1.0, 1.0]), np.array([2.0, 1.0])]
    actual = [np.array([0.0, 0.0]), np.array([2.0, 2.0]), np.array([4.0, 1.0])]
    found = agreement(policy, actual)
    assert found is not None
    assert found.ticks == 3
    np.testing.assert_allclose(found.mean, [-1.0, 0.0])
    np.testing.assert_allclose(found.rms, [np.sqrt(5 / 3), np.sqrt(2 / 3)])
    np.testing.assert_allclose(found.largest, [2.0, 1.0])
    np.testing.assert_allclose(found.p95, [1.9, 1.0])
    np.testing.assert_allclose(found.correlation, [1.0, np.nan])
    text = found.text(ArraySpec((2,), unit="m", names=("x", "z")))
    assert text[0] == "agreement over 3 ticks (policy - actual m)"
    assert " ".join(text[1].split()) == "x rms 1.29, bias -1, p95 1.9, largest 2, correlation 1.00"


def test_nothing_to_compare() -> None:
    assert agreement([], []) is None
