import numpy as np
import pytest

from burnish.core.spec import ArraySpec, MetricSpec
from burnish.core.step import Start
from burnish.evaluation.alarms import ActionRange, alarms
from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.result import EpisodeRow
from tests.unit.evaluation.press_env import PressPolicy, press_env, starts

SPEC = ArraySpec((2,), low=-1.0, high=1.0)
SPECS = {"success": MetricSpec("binary"), "share": MetricSpec("mean", per="readings"), "readings": MetricSpec("count")}


def actions(*rows):
    extent = ActionRange.empty(2)
    extent.add(np.array(rows, np.float32), SPEC)
    return extent


FREE = actions((0.1, 0.2), (0.3, 0.4))


def rows(lengths, success=True, readings=4.0, share=1.0, return_=None):
    return [
        EpisodeRow(
            Start("a", i, i),
            success,
            float(i) if return_ is None else return_,
            length,
            True,
            {"success": float(success), "share": share, "readings": readings},
        )
        for i, length in enumerate(lengths)
    ]


def test_a_plain_evaluation_raises_none():
    assert alarms(rows([3, 5, 4]), SPECS, FREE, 10) == []
    assert evaluate(PressPolicy(40.0), press_env(), starts(8), replan_steps=5).alarms == ()


@pytest.mark.parametrize(
    ("episodes", "extent", "words"),
    [
        (rows([1, 1, 1]), FREE, "length 1"),
        (rows([10, 10], success=False), FREE, "limit of 10 steps"),
        (rows([4, 4, 4], return_=1.0), FREE, "equal in every figure"),
        (rows([3])[:1] * 3, FREE, "Only 1 of 3 Starts"),
        (rows([1, 4, 5]), FREE, "1 of 3 episodes succeed at their first action"),
        (rows([3, 4], return_=np.nan), FREE, "2 of 2 episodes is not finite"),
        (rows([3, 4]), actions((0.1, 0.2), (0.1, 0.2)), "actions are all equal"),
        (rows([3, 4]), actions((0.1, 0.2), (0.3, 0.2)), "Action entries [1] never change"),
        (rows([3, 4]), actions((1.0, 1.0), (-1.0, 0.2)), "75 % of the action entries are at a limit"),
        (rows([3, 4], share=np.nan), FREE, "'share' has no readings: it is NaN"),
        (rows([3, 4], readings=0.0), FREE, "'share' has no readings: 'readings' is 0"),
        (rows([3, 4]) + rows([6, 7], readings=0.0), FREE, "2 episodes succeed with no reading of 'readings'"),
    ],
)
def test_every_alarm_fires(episodes, extent, words):
    assert any(words in alarm for alarm in alarms(episodes, SPECS, extent, 10))
