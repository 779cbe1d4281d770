from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from burnish.core.contracts import Decision, TrainablePolicy
from burnish.core.errors import CheckError, ConfigError
from burnish.core.seeding import stream
from burnish.core.spec import Observation
from burnish.core.step import ActionSample, Evaluation
from burnish.data.rollout import Batch
from burnish.policies.mlp import MLPPolicy
from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
from burnish.rl.objectives.divergence import Config as Divergence
from burnish.rl.objectives.entropy import Config as Entropy
from burnish.rl.objectives.value import Config as Value
from burnish.rl.update import Optimiser, SharedEvaluation, update
from tests.unit.rl.test_replay import make
from tests.unit.rl.test_run_checks import batch_of

RATES = {"actor": 1e-2, "critic": 1e-2}


class Counting(MLPPolicy):
    calls = 0

    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        type(self).calls += 1
        return super().evaluate(observation, sample, executed)


def run(policy: MLPPolicy, batch: Batch, objectives: Any, **options: Any) -> tuple[dict[str, float], Decision]:
    optimiser = options.pop("optimiser", None) or Optimiser(policy, RATES, epsilon=1e-5)
    defaults: dict[str, Any] = {
        "epochs": 2,
        "minibatch_size": 4,
        "max_grad_norm": 0.5,
        "generator": stream(0, "u"),
        "after_epoch": lambda metrics: Decision(),
    }
    frozen = policy.clone()
    return update(policy, batch, objectives, optimiser, previous=frozen, reference=frozen, **defaults | options)


def test_objectives_share_one_evaluation_per_minibatch() -> None:
    policy = make(Counting)
    batch = batch_of(policy)
    Counting.calls = 0
    objectives = [
        ClippedRatio().build(),
        Entropy(coefficient=0.01).build(),
        Divergence(to="previous", estimator="sample").build(),
    ]
    metrics, _ = run(policy, batch, objectives, minibatch_size=len(batch) // 2)
    assert Counting.calls == 2 * 2
    assert metrics["epochs"] == 2
    assert metrics["entropy/nats"] > 0


def test_another_observation_is_another_evaluation() -> None:
    policy = make()
    batch = batch_of(policy)
    shared = SharedEvaluation(policy)
    one = shared.evaluate(batch.observation, batch.sample, batch.executed)
    assert shared.evaluate(batch.observation, batch.sample, batch.executed) is one
    other = shared.evaluate(dict(batch.observation), batch.sample, batch.executed)
    assert other is not one
    shared.forget()
    assert shared.evaluate(batch.observation, batch.sample, batch.executed) is not one
    assert shared.spec is policy.spec


def test_every_decision_is_used_once_per_epoch() -> None:
    policy = make()
    batch = batch_of(policy)

    class Recording:
        name = "recording"
        coefficient = 1.0

        def loss(self, policy: TrainablePolicy, batch: Batch, **others: Any) -> tuple[torch.Tensor, dict[str, float]]:
            sizes.append(len(batch))
            seen.extend(batch.sample.log_prob[:, 0].tolist())
            return Value().build().loss(policy, batch, **others)

    for gather in (True, False):
        sizes: list[int] = []
        seen: list[float] = []
        with pytest.MonkeyPatch.context() as patch:
            if not gather:
                patch.setattr("burnish.rl.update.GATHER_BYTES", 0)
            run(policy, batch, [Recording()], epochs=1, minibatch_size=3)
        assert sorted(seen) == sorted(batch.sample.log_prob[:, 0].tolist())
        assert max(sizes) - min(sizes) <= 1


def test_the_update_lowers_the_loss() -> None:
    policy = make()
    batch = batch_of(policy)
    first, _ = run(policy, batch, [Value().build()], epochs=1, minibatch_size=100)
    last, _ = run(policy, batch, [Value().build()], epochs=30, minibatch_size=100)
    assert last["value/loss"] < first["value/loss"]


def test_an_epoch_can_end_the_update() -> None:
    policy = make()
    asked: list[Mapping[str, float]] = []

    def after(metrics: Mapping[str, float]) -> Decision:
        asked.append(metrics)
        return Decision("stop_epochs" if len(asked) == 2 else "go_on")

    metrics, decision = run(policy, batch_of(policy), [Value().build()], epochs=9, after_epoch=after)
    assert metrics["epochs"] == 2
    assert decision.action == "stop_epochs"


def test_keep_and_restore_undo_parameters_and_moments() -> None:
    policy, twin = make(), make()
    batch = batch_of(policy)
    optimisers = [Optimiser(item, RATES, epsilon=1e-5) for item in (policy, twin)]
    objectives = [Value().build()]
    for item, optimiser in zip((policy, twin), optimisers, strict=True):
        run(item, batch, objectives, optimiser=optimiser)
    optimisers[0].keep()
    objectives.append(ClippedRatio().build())  # type: ignore[arg-type]
    run(policy, batch, objectives, optimiser=optimisers[0], generator=stream(5))
    optimisers[0].restore()
    for item, optimiser in zip((policy, twin), optimisers, strict=True):
        run(item, batch, objectives[:1], optimiser=optimiser)
    for key, tensor in twin.critic.state_dict().items():
        torch.testing.assert_close(policy.critic.state_dict()[key], tensor, rtol=0, atol=0)


def test_gradients_are_clipped_role_by_role() -> None:
    policy = make()
    optimiser = Optimiser(policy, RATES, epsilon=1e-5)
    loss = 100.0 * policy.critic[-1].bias.sum() + 0.03 * policy.log_std.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    norms = optimiser.step(0.5)
    assert norms["grad_norm/critic"] == pytest.approx(100.0)
    assert norms["grad_norm/actor"] == pytest.approx(0.03 * 2**0.5)
    assert policy.critic[-1].bias.grad.item() == pytest.approx(0.5, rel=1e-4)
    torch.testing.assert_close(policy.log_std.grad, torch.full((1, 2), 0.03))


def test_only_active_roles_move() -> None:
    policy = make()
    before = policy.actor[0].weight.detach().clone()
    optimiser = Optimiser(policy, RATES, epsilon=1e-5)
    optimiser.active = ("critic",)
    metrics, _ = run(policy, batch_of(policy), [ClippedRatio().build(), Value().build()], optimiser=optimiser)
    assert torch.equal(policy.actor[0].weight, before)
    assert "grad_norm/critic" in metrics
    assert "grad_norm/actor" not in metrics


def test_the_state_of_the_optimiser_makes_a_round_trip() -> None:
    policies = [make(), make()]
    batch = batch_of(policies[0])
    one = Optimiser(policies[0], RATES, epsilon=1e-5)
    run(policies[0], batch, [Value().build(), ClippedRatio().build()], optimiser=one)
    policies[1].load_state_dict(policies[0].state_dict())
    two = Optimiser(policies[1], RATES, epsilon=1e-5)
    two.load_state_dict(one.state_dict())
    for policy, optimiser in zip(policies, (one, two), strict=True):
        optimiser.set_factor(0.5)
        assert optimiser.adam.param_groups[0]["lr"] == 5e-3
        run(policy, batch, [Value().build(), ClippedRatio().build()], optimiser=optimiser)
    for key, tensor in policies[0].state_dict().items():
        assert torch.equal(policies[1].state_dict()[key], tensor)


@pytest.mark.parametrize(
    ("rates", "message"),
    [({"actors": 1.0}, "names 'actors'.*Did you mean 'actor'"), ({}, "names no parameter group")],
)
def test_rates_must_name_groups(rates: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Optimiser(make(), rates, epsilon=1e-5)


def test_a_loss_that_is_not_finite_names_the_objective() -> None:
    policy = make()
    batch = batch_of(policy)
    batch.return_[0] = np.nan
    with pytest.raises(CheckError, match="loss of objective 'value' is nan"):
        run(policy, batch, [Value().build()])


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    policy = make()

    class Steep:
        name = "steep"
        coefficient = 1.0

        def loss(self, policy: Any, batch: Batch, **others: Any) -> tuple[torch.Tensor, dict[str, float]]:
            zero = policy.value(batch.observation).sum() * 0.0
            return zero.abs().sqrt(), {}

    with pytest.raises(CheckError, match="gradient is not finite"):
        run(policy, batch_of(policy), [Steep()])


def test_steps_are_those_of_torch() -> None:
    ours, theirs = make(), make()
    optimiser = Optimiser(ours, RATES, epsilon=1e-5)
    groups = [{"params": theirs.parameter_groups()[role], "lr": rate} for role, rate in RATES.items()]
    adam = torch.optim.AdamW(groups, eps=1e-5, weight_decay=0.0, fused=True)
    for step in range(4):
        for policy in (ours, theirs):
            policy.zero_grad()
            loss = sum(
                (item * (step + 1)).sin().sum() for group in policy.parameter_groups().values() for item in group
            )
            loss.backward()
        optimiser.step(0.0)
        adam.step()
    for key, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], tensor, rtol=0, atol=0)
