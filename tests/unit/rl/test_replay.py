import re
from typing import Any

import numpy as np
import pytest
import torch

from burnish.core.errors import CheckError
from burnish.core.seeding import stream
from burnish.core.spec import Observation
from burnish.core.step import ActionSample, Evaluation, Start
from burnish.data.rollout import Rollout
from burnish.policies.mlp import Config as Mlp
from burnish.policies.mlp import MLPPolicy
from burnish.rl.collect import Collector
from burnish.rl.prepare import prepare
from burnish.rl.samplers.fixed import FixedSampler
from tests.unit.rl.count_env import SPEC, count_envs


class Noisy(MLPPolicy):
    """Forgets to switch dropout off."""

    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        found = super().evaluate(observation, sample, executed)
        return Evaluation(found.log_prob + 0.01 * torch.rand(()), found.entropy)


class Mixing(MLPPolicy):
    """Shifts its answer by the mean of the batch, as batch norm in training mode does."""

    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        found = super().evaluate(observation, sample, executed)
        state = observation["observation.state"]
        shift = (state - state.mean(0)).abs().sum(1, keepdim=True)
        return Evaluation(found.log_prob + 0.1 * shift, found.entropy)


class LastAction(MLPPolicy):
    """Scores the last action of a chunk in another unit than it acted in."""

    def evaluate(self, observation: Observation, sample: ActionSample, executed: Any) -> Evaluation:
        found = super().evaluate(observation, sample, executed)
        return Evaluation(found.log_prob + 0.5 * torch.tensor([0.0, 0.0, 0.0, 1.0]), found.entropy)


class Caching(MLPPolicy):
    """Hands its state on as a cached feature, times ``factor``."""

    factor = 1.0

    def precompute(self, observation: Observation) -> Observation:
        return {"features.state": observation["observation.state"] * self.factor}

    def _gather(self, observation: Any, keys: tuple[str, ...]) -> torch.Tensor:
        if "features.state" in observation and self.log_std.shape[0]:
            return torch.as_tensor(observation["features.state"])
        return super()._gather(observation, keys)


def make(kind: type[MLPPolicy] = MLPPolicy) -> MLPPolicy:
    config = Mlp(chunk_steps=4, hidden=(8,))
    spec = config.build(SPEC, generator=stream(0)).spec
    return kind(config, spec, generator=stream(0, "weights"), statistics=None)


def collected(policy: MLPPolicy) -> tuple[Rollout, Collector]:
    collector = Collector(count_envs(2)[0], policy)
    sampler = FixedSampler([Start("terminate", init, 1 << 20) for init in (5, 2, 9)])
    return collector.collect_chunks(policy, sampler, 6, generator=stream(0, "c")), collector


def refused(policy: MLPPolicy, rollout: Rollout, collector: Collector) -> str:
    with pytest.raises(CheckError, match=re.escape("Replay parity failed")) as caught:
        prepare(rollout, policy, checksums=collector.checksums)
    return str(caught.value)


def test_an_honest_policy_passes() -> None:
    policy = make()
    rollout, collector = collected(policy)
    prepared = prepare(rollout, policy, checksums=collector.checksums)
    assert prepared.metrics["replay_error"] < 1e-5


def test_values_are_put_where_they_belong() -> None:
    policy = make()
    rollout, _ = collected(policy)
    prepared = prepare(rollout, policy)
    assert prepared.value is not None
    assert prepared.next_value is not None
    with torch.no_grad():
        for t, n in np.ndindex(rollout.executed.shape):
            state = torch.from_numpy(rollout.observation["observation.state"][t, n][None])
            wanted = policy.value({"observation.state": state})
            assert prepared.value[t, n] == pytest.approx(wanted.item(), abs=1e-5)
        for i, (t, n) in enumerate(rollout.last_index):
            state = torch.from_numpy(rollout.last_observation["observation.state"][i][None])
            wanted = policy.value({"observation.state": state})
            assert prepared.next_value[t, n] == pytest.approx(wanted.item(), abs=1e-5)
    assert prepared.next_value[0, 0] == prepared.value[1, 0]


@pytest.mark.parametrize("name", ["observation", "action_chunk", "log_prob"])
def test_a_changed_array_is_named_with_its_chunk(name: str) -> None:
    policy = make()
    rollout, collector = collected(policy)
    array = rollout.observation["observation.state"] if name == "observation" else getattr(rollout, name)
    array[3] += 0.3
    message = refused(policy, rollout, collector)
    assert f"Differs from what was seen or answered while acting: {name}" in message
    assert "(from chunk t=3, 1 of 6 chunks)" in message
    assert "worst at chunk t=3 of environment" in message


def test_noise_in_evaluate_is_named() -> None:
    policy = make(Noisy)
    assert "dropout" in refused(policy, *collected(policy))


def test_mixing_rows_is_named() -> None:
    policy = make(Mixing)
    assert "mixes rows of a batch" in refused(policy, *collected(policy))


def test_the_action_of_the_chunk_is_named() -> None:
    policy = make(LastAction)
    message = refused(policy, *collected(policy))
    assert "action 3 of the chunk" in message
    assert "act() and evaluate() of this policy compute different log-probs" in message


def test_changed_weights_are_noticed() -> None:
    policy = make()
    rollout, collector = collected(policy)
    with torch.no_grad():
        policy.log_std += 0.1
    assert "weights changed in between" in refused(policy, rollout, collector)


def test_a_log_prob_that_is_not_a_number_is_noticed() -> None:
    policy = make()
    rollout, _ = collected(policy)
    rollout.log_prob[2, 1, 0] = np.nan
    with pytest.raises(CheckError, match="worst at chunk t=2 of environment 1, action 0"):
        prepare(rollout, policy)


def test_only_executed_actions_are_compared() -> None:
    policy = make()
    rollout, _ = collected(policy)
    past = np.arange(4) >= rollout.executed[..., None]
    rollout.log_prob[past] = 100.0
    assert prepare(rollout, policy).metrics["replay_error"] < 1e-5


def test_features_are_cached_once_and_checked() -> None:
    policy = make(Caching)
    rollout, collector = collected(policy)
    prepared = prepare(rollout, policy, checksums=collector.checksums)
    assert set(prepared.observation) == {"features.state"}
    np.testing.assert_array_equal(prepared.observation["features.state"], rollout.observation["observation.state"])
    assert set(prepared.last_observation) == {"features.state"}
    assert prepared.value is not None
    policy.factor = 1.5  # type: ignore[attr-defined]
    assert "['features.state'] made by precompute() differ" in refused(policy, rollout, collector)


def test_a_rollout_without_decisions_is_refused() -> None:
    policy = make()
    rollout, _ = collected(policy)
    with pytest.raises(CheckError, match="no executed decision"):
        prepare(rollout.replace(executed=np.zeros_like(rollout.executed)), policy)
