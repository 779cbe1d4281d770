import json
import re
from dataclasses import replace

import numpy as np
import pytest

from burnish.core import spec as specs
from burnish.core.errors import SpecError
from burnish.core.spec import ArraySpec, EnvSpec, MetricSpec, PolicySpec, check_fit, fingerprint, to_json

ENV = EnvSpec(
    id="toy",
    observation={
        "observation.images.top": ArraySpec((8, 8, 3), dtype="uint8"),
        "observation.state": ArraySpec((2,), unit="m", frame="world", names=("x", "y")),
        "privileged.goal": ArraySpec((2,), unit="m", frame="world"),
    },
    action=ArraySpec((2,), unit="m/s", frame="world", low=-1.0, high=(1.0, 2.0)),
    control_dt=0.1,
    max_episode_steps=20,
    tasks=("left", "right"),
    splits={"train": ("left",)},
    metrics={"success": MetricSpec("binary"), "peak": MetricSpec("mean", unit="N", beside=("success",))},
    protocol={"friction": 0.5},
)
POLICY = PolicySpec(
    id="tiny",
    observation={"observation.state": ENV.observation["observation.state"]},
    action=ENV.action,
    chunk_steps=4,
    critic_observation={"privileged.goal": ENV.observation["privileged.goal"]},
)


def test_bounds_broadcast_and_are_infinite_without_limits() -> None:
    low, high = ENV.action.bounds()
    assert low.tolist() == [-1.0, -1.0]
    assert high.tolist() == [1.0, 2.0]
    low, high = ArraySpec((3,)).bounds()
    assert np.isneginf(low).all()
    assert np.isposinf(high).all()


def test_properties_of_an_env_spec() -> None:
    assert ENV.action_dim == 2
    assert list(ENV.public_observation) == ["observation.images.top", "observation.state"]
    assert ENV.image_keys == ("observation.images.top",)
    assert ENV.observation["observation.images.top"].is_image
    assert not ENV.observation["observation.state"].is_image


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ArraySpec((2,), low=(0.0,)), "ArraySpec.low has 1 entries, but the shape is (2,)"),
        (lambda: ArraySpec((2,), high=(0.0, 1.0, 2.0)), "ArraySpec.high has 3 entries"),
        (lambda: ArraySpec((2,), names=("x",)), "ArraySpec.names has 1 entries"),
        (lambda: replace(ENV, tasks=()), "EnvSpec 'toy' lists no task"),
        (lambda: replace(ENV, control_dt=0.0), "control_dt (0.0) and max_episode_steps (20) must be positive"),
        (lambda: replace(ENV, max_episode_steps=0), "max_episode_steps (0)"),
        (lambda: replace(ENV, splits={"test": ("up",)}), "split 'test' names unknown tasks ['up']"),
        (lambda: replace(ENV, metrics={"a": MetricSpec("mean", per="b")}), "metric 'a' refers to unknown metric 'b'"),
        (lambda: replace(ENV, metrics={"a": MetricSpec("mean", beside=("c",))}), "refers to unknown metric 'c'"),
        (lambda: replace(POLICY, observation=ENV.observation), "asks for ['privileged.goal']: privileged entries"),
        (lambda: replace(POLICY, chunk_steps=0), "chunk_steps must be at least 1, found 0"),
    ],
)
def test_specs_refuse_what_contradicts_itself(make: object, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (3,), "names": ()}, "shape is (3,), expected (2,)"),
        ({"dtype": "float64"}, "dtype is 'float64', expected 'float32'"),
        ({"unit": "mm"}, "unit is 'mm', expected 'm'"),
        ({"frame": "base"}, "frame is 'base', expected 'world'"),
        ({"names": ("a", "b")}, ""),
        ({"low": 0.0}, ""),
    ],
)
def test_mismatch_says_what_differs(change: dict[str, object], message: str) -> None:
    mine = ENV.observation["observation.state"]
    assert mine.mismatch(replace(mine, **change)) == message  # type: ignore[arg-type]


def test_a_policy_that_fits() -> None:
    check_fit(POLICY, ENV)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            replace(POLICY, observation={"observation.force": ArraySpec((3,))}),
            "Policy 'tiny' reads 'observation.force', which environment 'toy' does not give. It gives: "
            "observation.images.top, observation.state, privileged.goal.",
        ),
        (
            replace(POLICY, critic_observation={"privileged.goal": ArraySpec((2,), unit="cm", frame="world")}),
            "Policy 'tiny' and environment 'toy' disagree on 'privileged.goal': unit is 'm', expected 'cm'.",
        ),
        (replace(POLICY, action=ArraySpec((3,))), "disagree on the action: shape is (2,), expected (3,)"),
    ],
)
def test_a_policy_that_does_not_fit(policy: PolicySpec, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        check_fit(policy, ENV)


def test_specs_go_through_json() -> None:
    assert specs.env_spec_from_json(json.loads(json.dumps(to_json(ENV)))) == ENV
    assert specs.policy_spec_from_json(json.loads(json.dumps(to_json(POLICY)))) == POLICY


def test_fingerprint_depends_on_values_not_on_order() -> None:
    assert fingerprint({"a": 1, "b": [2.5]}) == fingerprint({"b": [2.5], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"a": 1}) == "015abd7f5cc57a2d"  # the same on every machine and in every version
