import re
from typing import Any

import numpy as np
import pytest

from burnish.core.check import check_controller, check_env, check_sampler, check_teacher
from burnish.core.errors import CheckError
from burnish.core.seeding import stream
from burnish.rl.check import check_labeler, check_objective, check_policy
from tests.contract import broken
from tests.contract.broken import SPEC, Broken


def run_env(make: Any) -> list[str]:
    return check_env(make)


def run_policy(make: Any) -> list[str]:
    return check_policy(broken.in_class(make), SPEC)


def run_teacher(make: Any) -> list[str]:
    return check_teacher(make(), broken.ENV.build(3))


def run_sampler(make: Any) -> list[str]:
    def build(generator: np.random.Generator) -> Any:
        return make(generator)

    return check_sampler(build, SPEC)


def run_controller(make: Any) -> list[str]:
    return check_controller(make)


def run_labeler(make: Any) -> list[str]:
    return check_labeler(make(), broken.make_policy(), SPEC)


def run_objective(make: Any) -> list[str]:
    return check_objective(make(), broken.make_policy(), SPEC)


CASES = {
    "env": (run_env, broken.Wrapped, broken.ENVS),
    "policy": (run_policy, broken.mlp.MLPPolicy, broken.POLICIES),
    "teacher": (run_teacher, broken.GoalSeeker, broken.TEACHERS),
    "sampler": (run_sampler, broken.GoodSampler, broken.SAMPLERS),
    "controller": (run_controller, broken.GoodController, broken.CONTROLLERS),
    "labeler": (run_labeler, broken.GoodLabeler, broken.LABELERS),
    "objective": (run_objective, broken.GoodObjective, broken.OBJECTIVES),
}


@pytest.mark.parametrize("kind", CASES)
def test_the_good_twin_passes_every_check_and_each_has_a_broken_one(kind: str) -> None:
    run, good, cases = CASES[kind]
    passed = run(good)
    covered = {case.check for case in cases}
    assert covered - {"precompute"} == set(passed)  # the good policy has nothing to precompute


@pytest.mark.parametrize(
    ("kind", "case"), [(kind, case) for kind, (_, _, cases) in CASES.items() for case in cases], ids=str
)
def test_each_broken_component_is_found_by_its_check(kind: str, case: Broken) -> None:
    with pytest.raises(CheckError, match=re.escape(case.message)) as caught:
        CASES[kind][0](case.make)
    assert f"fails the check '{case.check}'" in str(caught.value)


def test_a_check_leaves_the_policy_as_it_was() -> None:
    policy = broken.make_policy()
    before = {name: item.clone() for name, item in policy.state_dict().items()}
    check_policy(policy, SPEC)
    check_objective(broken.GoodObjective(), policy, SPEC)
    assert all(item.equal(before[name]) for name, item in policy.state_dict().items())
    assert all(parameter.grad is None for parameter in policy.parameters())
    sample = policy.act({broken.STATE: np.zeros((1, 6), np.float32)}, generator=stream(0))
    assert sample.action_chunk.shape == (1, 4, 2)
