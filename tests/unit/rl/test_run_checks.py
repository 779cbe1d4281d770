from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.core.contracts import Objective
from burnish.core.errors import CheckError, ConfigError
from burnish.core.seeding import stream
from burnish.core.step import Start
from burnish.data.rollout import Batch
from burnish.policies.mlp import MLPPolicy
from burnish.rl.collect import Collector
from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
from burnish.rl.objectives.divergence import Config as Divergence
from burnish.rl.objectives.entropy import Config as Entropy
from burnish.rl.objectives.imitation import Config as Imitation
from burnish.rl.objectives.value import Config as Value
from burnish.rl.prepare import prepare
from burnish.rl.run_checks import DegenerateGroups, check_objectives, check_same_run
from burnish.rl.samplers.fixed import FixedSampler
from tests.unit.rl.count_env import count_envs
from tests.unit.rl.test_replay import make


class Indifferent(MLPPolicy):
    """Claims to have a divergence, and ignores it, as published systems do."""

    def divergence(self, observation: Any, sample: Any, reference: Any, executed: Any) -> torch.Tensor:
        return 0.0 * super().divergence(observation, sample, reference, executed)


class Constant(MLPPolicy):
    """Has a divergence that hangs on no parameter."""

    def divergence(self, observation: Any, sample: Any, reference: Any, executed: Any) -> torch.Tensor:
        return torch.ones(len(executed))


def batch_of(policy: MLPPolicy) -> Batch:
    collector = Collector(count_envs(2)[0], policy)
    sampler = FixedSampler([Start("terminate", 6, 1 << 20)])
    return prepare(collector.collect_chunks(policy, sampler, 4, generator=stream(0)), policy).batch()


@pytest.mark.parametrize(
    "config",
    [ClippedRatio(), Value(), Imitation(), Entropy(coefficient=0.01), Divergence(to="previous"), Divergence()],
    ids=lambda config: type(config).__module__.rsplit(".", 1)[-1],
)
def test_objectives_act_on_a_gaussian_policy(config: Any) -> None:
    policy = make()
    before = {key: item.clone() for key, item in policy.state_dict().items()}
    check_objectives(policy, batch_of(policy), [config.build()], ["actor", "critic"])
    assert all(torch.equal(item, before[key]) for key, item in policy.state_dict().items())
    assert all(item.grad is None for item in policy.parameters())


@pytest.mark.parametrize("kind", [Indifferent, Constant])
@pytest.mark.parametrize("to", ["previous", "reference"])
def test_a_divergence_that_does_nothing_is_refused(kind: type[MLPPolicy], to: Any) -> None:
    policy = make(kind)
    with pytest.raises(ConfigError, match=f"'divergence_{to}' has coefficient 3, but its gradient is zero"):
        check_objectives(policy, batch_of(policy), [Divergence(to=to, coefficient=3.0).build()], ["actor"])


def test_a_coefficient_of_zero_is_not_looked_at() -> None:
    policy = make(Indifferent)
    check_objectives(policy, batch_of(policy), [Divergence(coefficient=0.0).build()], ["actor"])


def test_an_objective_without_trained_parameters_is_refused() -> None:
    policy = make()
    with pytest.raises(ConfigError, match=r"'clipped_ratio'.*parameter groups critic"):
        check_objectives(policy, batch_of(policy), [ClippedRatio().build()], ["critic"])


def test_objectives_need_different_names() -> None:
    policy = make()
    twice: list[Objective] = [Value().build(), Value().build()]
    with pytest.raises(ConfigError, match=r"different names, found \['value', 'value'\]"):
        check_objectives(policy, batch_of(policy), twice, ["critic"])


def test_degenerate_groups_are_counted_and_bounded() -> None:
    groups = DegenerateGroups(share=0.5, patience=2)
    bad, good = {"groups": 4.0, "degenerate_groups": 3.0}, {"groups": 4.0, "degenerate_groups": 2.0}
    assert groups.after({}) == {}
    assert groups.after(bad) == {"degenerate_share": 0.75}
    groups.after(bad)
    groups.after(good)
    groups.after(bad)
    groups.after(bad)
    again = DegenerateGroups(share=0.5, patience=2)
    again.load_state_dict(groups.state_dict())
    for item in (groups, again):
        with pytest.raises(CheckError, match=r"75% of the groups.*3 iterations in a row"):
            item.after(bad)


def test_another_run_cannot_be_resumed() -> None:
    numbers = {"epochs": 4, "iterations": 10}
    found = {"env_spec": {"id": "count"}}
    state = {"numbers": numbers}
    check_same_run(Path("c"), found, state, found, {**numbers, "iterations": 20})
    with pytest.raises(ConfigError, match=r"env_spec.id was 'count' and is 'other'; numbers.epochs was 4 and is 5"):
        check_same_run(Path("c"), found, state, {"env_spec": {"id": "other"}}, {**numbers, "epochs": 5})
