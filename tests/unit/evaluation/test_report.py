import json
from dataclasses import replace
from functools import cache

import pytest

from burnish.core.errors import CheckError, ConfigError
from burnish.core.spec import MetricSpec
from burnish.evaluation.evaluate import evaluate
from burnish.evaluation.report import Films, figure_text, render, write_report
from burnish.evaluation.videos import record_videos
from tests.unit.evaluation.press_env import PressPolicy, press_env, starts


@cache
def run(force, **changes):
    return evaluate(PressPolicy(force), press_env(4), starts(30), **{"replan_steps": 5, **changes})


def test_a_comparison_shows_everything(tmp_path):
    policy, env = PressPolicy(22.0), press_env(2)
    before, after = run(22.0), run(40.0)
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"iteration": i, "collect/success": i / 9}) + "\n" for i in range(9))
    )
    films = Films(before=record_videos(policy, env, before, tmp_path / "videos", successes=1, failures=1))
    file = write_report(
        tmp_path / "deep" / "report.html",
        [after],
        before=[before],
        runs=[tmp_path],
        films=films,
        commands=["burnish compare a b"],
        title="A <report>",
    )
    text = file.read_text()
    assert "A &lt;report&gt;" in text
    for part in ("results", "tasks", "curves", "histograms", "videos", "cost", "protocol"):
        assert f'<section id="{part}"' in text
    assert text.count("<video") == 2
    assert "exact McNemar" in text
    assert "burnish compare a b" in text
    assert before.fingerprint in text
    assert "<script" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_one_evaluation_needs_no_comparison():
    text = render([run(40.0)])
    assert "30 episodes" in text
    assert '<section id="tasks"' not in text
    assert '<section id="videos"' not in text
    assert "misleading" not in text.split("</style>")[1]


def test_several_seeds_are_compared_together():
    text = render([run(40.0), run(41.0)], before=[run(22.0)])
    assert "for 2 training seeds" in text
    assert "paired permutation of Starts" in text
    assert '<section id="seeds"' in text
    assert '<section id="seeds"' not in render([run(40.0)], before=[run(22.0)])


def test_a_shortcut_stands_at_the_head():
    text = render([run(-150.0)], before=[run(50.0)])
    assert "Read this first" in text
    assert "no readings any more" in text
    assert 'class="badge misleading"' in text


def test_other_protocols_and_no_result_are_refused():
    with pytest.raises(CheckError, match="replan_steps"):
        render([run(40.0)], before=[run(40.0, replan_steps=1)])
    with pytest.raises(ConfigError, match="at least one evaluation"):
        render([])


def test_text_from_outside_is_escaped():
    result = replace(run(40.0), policy={"id": "<b>bold</b>"}, alarms=("<i>alarm</i>",))
    text = render([result])
    assert "<b>bold" not in text
    assert "&lt;i&gt;alarm" in text


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (0.613, MetricSpec("binary"), "61.3 %"),
        (61.25, MetricSpec("mean", unit="N"), "61.25 N"),
        (0.0123, MetricSpec("mean", per="x"), "0.012"),
        (float("nan"), MetricSpec("mean"), "none"),
    ],
)
def test_figures_read_well(value, spec, text):
    assert figure_text(value, spec) == text
