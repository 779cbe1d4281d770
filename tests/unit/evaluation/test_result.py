"""What evaluations print."""

import pytest

from burnish.evaluation.result import number


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (0.00044, "0.00044"), (1e-17, "0.000"), (0.25, "0.250"), (12.346, "12.35"), (456.78, "456.8")],
)
def test_a_figure_has_as_many_digits_as_it_deserves(value, text):
    assert number(value) == text
