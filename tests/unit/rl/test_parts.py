"""Samplers, labelers, objectives and controllers, by hand-computed cases."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from burnish.core.errors import ConfigError
from burnish.core.seeding import stream
from burnish.core.step import TRAINING_SEED_START, Start
from burnish.data.rollout import Rollout
from burnish.policies.mlp import MLPPolicy
from burnish.rl.collect import Collector
from burnish.rl.controllers.compute_budget import Config as ComputeBudget
from burnish.rl.controllers.early_stop import Config as EarlyStop
from burnish.rl.controllers.kl_target import Config as KlTarget
from burnish.rl.labelers.advantage_normalisation import Config as AdvantageNormalisation
from burnish.rl.labelers.behaviour_prior import Config as BehaviourPrior
from burnish.rl.labelers.gae import Config as Gae
from burnish.rl.labelers.group_relative import Config as GroupRelative
from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
from burnish.rl.objectives.divergence import Config as Divergence
from burnish.rl.objectives.entropy import Config as Entropy
from burnish.rl.objectives.imitation import Config as Imitation
from burnish.rl.objectives.value import Config as Value
from burnish.rl.prepare import prepare
from burnish.rl.samplers.fixed import Config as Fixed
from burnish.rl.samplers.fixed import FixedSampler
from burnish.rl.samplers.group import Config as Group
from burnish.rl.samplers.uniform import Config as Uniform
from tests.unit.rl.count_env import SPEC, count_envs
from tests.unit.rl.test_replay import make


def episodes_of(policy: MLPPolicy, inits: Sequence[int], num_envs: int = 2) -> Rollout:
    collector = Collector(count_envs(num_envs)[0], policy)
    sampler = FixedSampler([Start("terminate", init, 1 << 20) for init in inits])
    rollout = collector.collect_episodes(policy, sampler, len(inits), generator=stream(0, "c"))
    return prepare(rollout, policy)


# samplers


@pytest.mark.parametrize("config", [Uniform(), Group(size=3), Fixed(count=5)])
def test_samplers_draw_training_starts_and_go_on_from_their_state(config: Any) -> None:
    one, two = (config.build(SPEC, generator=stream(3, "sampler")) for _ in range(2))
    drawn = one.next(7)
    assert all(start.seed >= TRAINING_SEED_START and start.task in SPEC.tasks and start.init < 20 for start in drawn)
    assert two.next(3) + two.next(4) == drawn
    wanted = one.next(6)
    two.report([])
    state = two.state_dict()
    assert two.next(6) == wanted
    two.load_state_dict(state)
    assert two.next(6) == wanted


def test_group_gives_each_start_as_often_as_it_says() -> None:
    starts = Group(size=3).build(SPEC, generator=stream(0)).next(9)
    assert [starts[i] == starts[i + 1] for i in range(8)] == [True, True, False] * 2 + [True, True]


def test_fixed_runs_a_list_in_turn() -> None:
    sampler = Fixed(count=3, tasks=("truncate", "terminate")).build(SPEC, generator=stream(0))
    starts = sampler.next(6)
    assert starts[:3] == starts[3:]
    assert [start.task for start in starts[:3]] == ["truncate", "terminate", "truncate"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "tran"}, "no split 'tran'. Did you mean 'train'"),
        ({"tasks": ("x",)}, "no task 'x'"),
        ({"split": "train", "tasks": ("terminate",)}, "not both"),
    ],
)
def test_samplers_refuse_what_the_environment_does_not_have(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Uniform(**options).build(SPEC, generator=stream(0))
    assert {start.task for start in Uniform(split="train").build(SPEC, generator=stream(0)).next(9)} == {"terminate"}


# labelers


def test_gae_labels_the_rollout_with_the_chunk_estimates() -> None:
    policy = make()
    rollout = Gae(discount=1.0, gae_lambda=1.0).build().label(episodes_of(policy, [5], 1), policy, policy)
    assert rollout.return_ is not None
    # 1 + ... + 6, from the second chunk on 5 + 6
    np.testing.assert_allclose(rollout.return_[:, 0], [21, 11], rtol=1e-5)
    with pytest.raises(ConfigError, match="has no value"):
        Gae().build().label(rollout.replace(value=None), policy, policy)


def test_advantage_normalisation_needs_and_scales_advantages() -> None:
    policy = make()
    rollout = episodes_of(policy, [5, 2, 9])
    with pytest.raises(ConfigError, match="put it after"):
        AdvantageNormalisation().build().label(rollout, policy, policy)
    labelled = AdvantageNormalisation().build().label(Gae().build().label(rollout, policy, policy), policy, policy)
    assert labelled.advantage is not None
    chosen = labelled.advantage[labelled.executed > 0]
    assert chosen.mean() == pytest.approx(0, abs=1e-5)
    assert chosen.std() == pytest.approx(1, abs=1e-5)


def test_group_relative_gives_every_decision_of_an_episode_its_advantage() -> None:
    # Group 0 holds two equal episodes, the others one each: all are degenerate until groups are joined by hand.
    policy = make()
    rollout = episodes_of(policy, [5, 5, 2, 9])
    labelled = GroupRelative().build().label(rollout, policy, policy)
    assert labelled.metrics["groups"] == 3
    assert labelled.metrics["degenerate_groups"] == 3
    assert not np.any(labelled.advantage)
    joined = rollout.replace(group=np.zeros_like(rollout.group))
    labelled = GroupRelative(divide_by_std=False).build().label(joined, policy, policy)
    assert labelled.advantage is not None
    return_ = {0: 21.0, 1: 21.0, 2: 6.0, 3: 55.0}
    mean = np.mean(list(return_.values()))
    for t, n in np.ndindex(rollout.executed.shape):
        wanted = return_[int(rollout.episode[t, n])] - mean if rollout.executed[t, n] else 0.0
        assert labelled.advantage[t, n] == pytest.approx(wanted)


def test_group_relative_refuses_parts_of_episodes() -> None:
    policy = make()
    collector = Collector(count_envs(1)[0], policy)
    sampler = FixedSampler([Start("terminate", 9, 1 << 20)])
    rollout = collector.collect_chunks(policy, sampler, 2, generator=stream(0))
    with pytest.raises(ConfigError, match=r"1 of 1 episodes begin before or end after.*rollout_episodes"):
        GroupRelative().build().label(rollout, policy, policy)
    rollout = collector.collect_chunks(policy, sampler, 1, generator=stream(0))
    with pytest.raises(ConfigError, match="first: episode 0"):
        GroupRelative().build().label(rollout, policy, policy)


def test_behaviour_prior_of_an_unchanged_policy_is_nothing() -> None:
    policy = make()
    rollout = episodes_of(policy, [5, 2])
    labelled = BehaviourPrior().build().label(rollout, policy, policy.clone())
    np.testing.assert_allclose(labelled.reward, rollout.reward, atol=1e-6)


def test_behaviour_prior_by_hand() -> None:
    # The mean moves by .5 in both action entries; std .3: KL per action = 2 * .5 * (.5 / .3)^2, MSE = .25.
    policy = make()
    reference = policy.clone()
    with torch.no_grad():
        policy.actor[-1].bias += 0.5
    rollout = episodes_of(policy, [5, 2, 9])
    before = rollout.reward.copy()
    labelled = BehaviourPrior(coefficient=2.0, kl=0.1).build().label(rollout, policy, reference)
    penalty = 2.0 * (0.1 * (0.5 / 0.3) ** 2 + 0.25)
    ran = rollout.executed > 0
    np.testing.assert_allclose(before[ran][:, 0] - labelled.reward[ran][:, 0], penalty, rtol=1e-4)
    np.testing.assert_array_equal(labelled.reward[..., 1:], before[..., 1:])
    np.testing.assert_array_equal(labelled.reward[~ran], before[~ran])
    np.testing.assert_array_equal(rollout.reward, before)
    assert labelled.metrics["prior_mse"] == pytest.approx(0.25, rel=1e-4)
    limited = BehaviourPrior(coefficient=2.0, limit=0.2).build().label(rollout, policy, reference)
    np.testing.assert_allclose(before[ran][:, 0] - limited.reward[ran][:, 0], 0.4, rtol=1e-4)


# objectives


def labelled_batch(policy: MLPPolicy) -> Any:
    rollout = Gae().build().label(episodes_of(policy, [5, 2, 9]), policy, policy)
    return rollout.batch()


def test_clipped_ratio_starts_at_minus_the_mean_advantage() -> None:
    policy = make()
    batch = labelled_batch(policy)
    loss, metrics = ClippedRatio().build().loss(policy, batch, previous=policy, reference=policy)
    assert loss.item() == pytest.approx(-batch.advantage.mean().item(), rel=1e-4)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["clipped"] == 0
    loss, _ = ClippedRatio(granularity="action").build().loss(policy, batch, previous=policy, reference=policy)
    wanted = -(batch.advantage * batch.executed).sum() / batch.executed.sum()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-4)


@pytest.mark.parametrize("granularity", ["chunk", "action"])
def test_clipped_ratio_sees_no_action_that_did_not_run(granularity: Any) -> None:
    policy = make()
    batch = labelled_batch(policy)
    objective = ClippedRatio(granularity=granularity).build()
    before = objective.loss(policy, batch, previous=policy, reference=policy)[0].item()
    past = torch.arange(4) >= batch.executed[:, None]
    batch.sample.action_chunk[past] = 5.0
    assert objective.loss(policy, batch, previous=policy, reference=policy)[0].item() == pytest.approx(before)


def test_value_objective_and_its_clip() -> None:
    policy = make()
    batch = labelled_batch(policy)
    loss, metrics = Value().build().loss(policy, batch, previous=policy, reference=policy)
    wanted = 0.5 * (batch.value - batch.return_).square().mean().item()
    assert loss.item() == pytest.approx(wanted, rel=1e-4)
    assert metrics["error"] == pytest.approx(math.sqrt(2 * wanted), rel=1e-4)
    clipped, _ = Value(clip=0.2).build().loss(policy, batch, previous=policy, reference=policy)
    assert clipped.item() == pytest.approx(wanted, rel=1e-4)


def test_divergence_exact_and_sampled() -> None:
    policy = make()
    batch = labelled_batch(policy)
    previous = policy.clone()
    with torch.no_grad():
        policy.actor[-1].bias += 0.06
    exact, _ = Divergence(to="previous").build().loss(policy, batch, previous=previous, reference=previous)
    per_action = 2 * 0.5 * (0.06 / 0.3) ** 2
    assert exact.item() == pytest.approx(per_action * batch.executed.float().mean().item(), rel=1e-4)
    mean, _ = Divergence(per_action=True).build().loss(policy, batch, previous=previous, reference=previous)
    assert mean.item() == pytest.approx(per_action, rel=1e-4)
    sampled = Divergence(to="previous", estimator="sample").build()
    found, _ = sampled.loss(policy, batch, previous=previous, reference=previous)
    assert 0.0 < found.item() < 10 * exact.item()
    with pytest.raises(ConfigError, match="samples of the other policy"):
        Divergence(to="reference", estimator="sample")


def test_entropy_and_imitation_follow_the_policy() -> None:
    policy = make()
    batch = labelled_batch(policy)
    _, metrics = Entropy(coefficient=0.1).build().loss(policy, batch, previous=policy, reference=policy)
    assert metrics["nats"] == pytest.approx(2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.3)), rel=1e-4)
    loss, _ = Imitation().build().loss(policy, batch, previous=policy, reference=policy)
    wanted = policy.imitation_loss(batch.observation, batch.sample.action_chunk, batch.executed).mean()
    torch.testing.assert_close(loss, wanted)


def test_weights_choose_what_counts() -> None:
    policy = make()
    batch = labelled_batch(policy)
    batch.weight[:] = 0.0
    batch.weight[1] = 2.0
    loss, _ = Value().build().loss(policy, batch, previous=policy, reference=policy)
    assert loss.item() == pytest.approx(0.5 * (batch.value[1] - batch.return_[1]).item() ** 2, rel=1e-4)


# controllers


def test_kl_target_adapts_the_learning_rate_within_limits() -> None:
    controller = KlTarget(target=0.01, factor=2.0, lowest=0.25).build()
    high, low, good = ({"clipped_ratio/kl": kl} for kl in (0.1, 0.001, 0.012))
    assert controller.after("epoch", high).learning_rate_factor == 1.0
    assert controller.after("iteration", good).learning_rate_factor == 1.0
    assert [controller.after("iteration", high).learning_rate_factor for _ in range(3)] == [0.5, 0.5, 1.0]
    again = KlTarget(target=0.01, factor=2.0, lowest=0.25).build()
    again.load_state_dict(controller.state_dict())
    assert again.after("iteration", high).learning_rate_factor == 1.0
    assert again.after("iteration", low).learning_rate_factor == 2.0


def test_kl_target_adapts_a_coefficient_the_other_way() -> None:
    controller = KlTarget(adapt="coefficient", initial_coefficient=3.0, factor=2.0).build()
    assert controller.after("iteration", {"clipped_ratio/kl": 0.1}).coefficients == {"divergence_previous": 6.0}
    assert controller.after("iteration", {"clipped_ratio/kl": 0.0}).coefficients == {"divergence_previous": 3.0}


def test_a_controller_names_a_figure_that_the_run_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"no figure 'clipped_ratio/kl'.*value/loss"):
        KlTarget().build().after("iteration", {"value/loss": 1.0})


@pytest.mark.parametrize(
    ("kl", "action"), [(0.01, "go_on"), (0.05, "stop_epochs"), (0.2, "revert"), (float("nan"), "revert")]
)
def test_early_stop(kl: float, action: str) -> None:
    controller = EarlyStop(limit=0.03, revert_above=0.1).build()
    assert controller.after("epoch", {"clipped_ratio/kl": kl}).action == action
    assert controller.after("iteration", {}).action == "go_on"
    controller.load_state_dict(controller.state_dict())


def test_compute_budget_ends_the_run() -> None:
    controller = ComputeBudget(env_steps=100).build()
    assert controller.after("iteration", {"env_steps": 99.0}).action == "go_on"
    decision = controller.after("iteration", {"env_steps": 100.0})
    assert decision.action == "stop"
    assert "100 env_steps" in decision.reason


@pytest.mark.parametrize(
    "make_config",
    [
        lambda: Gae(discount=1.5),
        lambda: Group(size=1),
        lambda: Fixed(count=0),
        lambda: BehaviourPrior(mse=-1.0),
        lambda: ClippedRatio(clip_low=1.0),
        lambda: Value(clip=-1.0),
        lambda: KlTarget(target=0.0),
        lambda: EarlyStop(limit=0.1, revert_above=0.05),
        ComputeBudget,
    ],
)
def test_configs_refuse_impossible_numbers(make_config: Any) -> None:
    with pytest.raises(ConfigError, match="found"):
        make_config()
