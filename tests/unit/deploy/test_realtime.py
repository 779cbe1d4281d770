from typing import Any

import numpy as np
import pytest

from burnish.core.errors import ConfigError
from burnish.deploy.realtime import Config, DelayEstimate, make_prefix


def test_the_delay_is_a_quantile_of_the_last_few_and_forgets() -> None:
    estimate = DelayEstimate(Config(delay_window=4, delay_quantile=0.75, initial_delay_steps=3))
    assert estimate.steps == 3
    for ticks, wanted in [(40, 40), (2, 40), (2, 40), (3, 3), (2, 2), (2, 2)]:
        estimate.add(ticks)
        assert estimate.steps == wanted


def test_one_slow_answer_does_not_stay_for_ever() -> None:
    """A maximum over all time would freeze 40 actions from then on."""
    estimate = DelayEstimate(Config(delay_window=10, delay_quantile=1.0))
    estimate.add(40)
    for _ in range(10):
        estimate.add(2)
    assert estimate.steps == 2


PLAN = np.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize(
    ("planned", "delay", "overlap", "wanted"),
    [
        (PLAN, 2, 0, (6, 2)),
        (PLAN, 2, 4, (4, 2)),
        (PLAN, 5, 4, (5, 5)),  # what is frozen is always told
        (PLAN[:2], 5, 0, (2, 2)),  # what is not planned is not invented
        (PLAN, 0, 0, None),
        (PLAN[:0], 2, 0, None),
        (PLAN * np.nan, 2, 0, None),
    ],
)
def test_what_a_policy_is_told(planned: Any, delay: int, overlap: int, wanted: tuple[int, int] | None) -> None:
    prefix = make_prefix(planned, delay, Config(overlap_steps=overlap))
    assert (prefix and (len(prefix.action), prefix.frozen_steps)) == wanted
    if prefix is not None:
        np.testing.assert_array_equal(prefix.action, planned[: len(prefix.action)])


@pytest.mark.parametrize(
    "fields",
    [
        {"overlap_steps": -1},
        {"initial_delay_steps": -1},
        {"delay_window": 0},
        {"delay_quantile": 0.0},
        {"max_guidance": 0},
    ],
)
def test_wrong_numbers_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="inpaint"):
        Config(**fields)
