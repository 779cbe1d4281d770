import json
from dataclasses import replace

import pytest

from burnish.core.errors import CheckError
from burnish.evaluation.protocol import check_comparable, differences, protocol_of, starts_fingerprint
from tests.unit.evaluation.press_env import SPEC, starts


def protocol(spec=SPEC, count=4, seed=0, **changes):
    settings = {"replan_steps": 5, "deterministic": True, "env_config": {"id": "press", "config": {"a": {"b": 1}}}}
    return protocol_of(spec, starts(count, seed), **{**settings, **changes})


def test_equal_settings_give_equal_protocols():
    assert differences(protocol(), protocol()) == []
    check_comparable(protocol(), protocol())


def test_the_order_of_starts_does_not_matter():
    assert starts_fingerprint(starts(5)) == starts_fingerprint(starts(5)[::-1])


def test_a_protocol_survives_json():
    spec = replace(SPEC, protocol={"size": (1, 2)})
    assert differences(protocol(spec), json.loads(json.dumps(protocol(spec)))) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (protocol(replan_steps=1), "replan_steps: 5 against 1 (how many"),
        (protocol(deterministic=False), "decoding: deterministic against sampled"),
        (protocol(env_config={"id": "press", "config": {"a": {"b": 2}}}), "env_config.a.b: 1 against 2"),
        (protocol(env_config=None), "env_config.a: {'b': 1} against nothing"),
        (protocol(seed=1), "starts.fingerprint"),
        (protocol(count=6), "starts.episodes: 4 against 6"),
        (protocol(count=1), "tasks: hard, soft against soft"),
        (protocol(replace(SPEC, id="other")), "env: test/press against other"),
        (protocol(replace(SPEC, max_episode_steps=20)), "max_episode_steps: 10 against 20"),
        (protocol(replace(SPEC, control_dt=0.05)), "control_dt: 0.1 against 0.05"),
        (protocol(replace(SPEC, protocol={"stiffness": 1.0, "render_profile": "fast"})), "env_protocol.stiffness"),
        (
            protocol(replace(SPEC, protocol={"stiffness": 1000.0, "render_profile": "full"})),
            "env_protocol.render_profile: fast against full",
        ),
        (protocol(replace(SPEC, metrics={"success": SPEC.metrics["success"]})), "metrics.coverage"),
        ({**protocol(), "versions": {"burnish": "9", "mujoco": "9"}}, "versions.burnish"),
        ({**protocol(), "weather": "rain"}, "weather: nothing against rain"),
    ],
)
def test_every_entry_that_differs_is_named(other, words):
    assert any(line.startswith(words) for line in differences(protocol(), other))
    with pytest.raises(CheckError, match="not comparable"):
        check_comparable(protocol(), other)
