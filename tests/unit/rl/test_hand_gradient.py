from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from burnish.core.seeding import stream
from burnish.core.spec import ArraySpec, EnvSpec
from burnish.core.step import ActionSample
from burnish.data.rollout import Batch
from burnish.policies.mlp import Config as Mlp
from burnish.policies.mlp import MLPPolicy
from burnish.rl.hand_gradient import hand_update
from burnish.rl.objectives.clipped_ratio import Config as ClippedRatio
from burnish.rl.objectives.divergence import Config as Divergence
from burnish.rl.objectives.entropy import Config as Entropy
from burnish.rl.objectives.value import Config as Value
from burnish.rl.update import total_loss

STATE, SECRET = "observation.state", "privileged.goal"
ENV = EnvSpec(
    id="test",
    observation={STATE: ArraySpec((3,)), SECRET: ArraySpec((2,))},
    action=ArraySpec((2,), low=-1.0, high=1.0),
    control_dt=0.1,
    max_episode_steps=10,
    tasks=("t",),
)
PPO = (ClippedRatio(), Value(coefficient=0.5))


def make(**config: Any) -> MLPPolicy:
    return Mlp(**{"chunk_steps": 4, "hidden": (8, 6), **config}).build(ENV, generator=stream(0, "weights"))


def batch_for(policy: MLPPolicy, rows: int = 12, steps: int = 3) -> Batch:
    """Decisions of a policy that has moved since, of which ``steps`` of the chunk were offered and some ran."""
    draw = np.random.default_rng(0)
    seen = {
        STATE: draw.normal(size=(rows, 3)).astype(np.float32),
        SECRET: draw.normal(size=(rows, 2)).astype(np.float32),
    }
    sample = policy.act(seen, generator=draw)
    with torch.no_grad():
        for item in policy.parameters():
            item.add_(0.1 * torch.from_numpy(draw.normal(size=item.shape).astype(np.float32)))
    noise = [torch.from_numpy(draw.normal(size=rows).astype(np.float32)) for _ in range(4)]
    return Batch(
        observation={key: torch.from_numpy(item) for key, item in seen.items()},
        sample=ActionSample(
            torch.from_numpy(sample.action_chunk[:, :steps].copy()), torch.from_numpy(sample.log_prob[:, :steps].copy())
        ),
        executed=torch.from_numpy(draw.integers(1, steps + 1, rows)),
        advantage=noise[0],
        return_=noise[1],
        value=noise[2],
        weight=noise[3].abs(),
    )


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"activation": "relu"},
        {"critic_keys": (SECRET,)},
        {"hidden": ()},
        {"init_std": 0.01, "min_std": 0.01},
    ],
)
@pytest.mark.parametrize("objectives", [PPO, (*PPO, Entropy(coefficient=0.1)), (Value(),), (ClippedRatio(),)])
@pytest.mark.parametrize("steps", [4, 3, 1])
def test_losses_metrics_and_gradients_are_those_of_autograd(config: Any, objectives: Any, steps: int) -> None:
    policy = make(**config)
    batch = batch_for(policy, steps=steps)
    built = [item.build() for item in objectives]
    rows = np.array([3, 1, 11, 7, 5, 0])
    by_hand = hand_update(policy, batch, built)
    assert by_hand is not None
    figures = by_hand.minibatch(rows)
    found = {name: item.grad for name, item in policy.named_parameters()}
    policy.zero_grad()
    part = batch.take(torch.from_numpy(rows))
    loss, wanted = total_loss(policy, part, built, previous=policy, reference=policy)
    loss.backward()  # type: ignore[no-untyped-call]
    assert figures == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    for name, item in policy.named_parameters():
        gradient = torch.zeros_like(item) if item.grad is None else item.grad
        assert found[name] is not None
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=2e-5 * float(gradient.abs().max() + 1))


class Other(MLPPolicy):
    pass


@pytest.mark.parametrize(
    ("config", "objectives"),
    [
        ({"activation": "silu"}, PPO),
        ({"per_step_std": True}, PPO),
        ({}, (*PPO, Divergence())),
        ({}, (ClippedRatio(granularity="action"), Value())),
        ({}, (ClippedRatio(dual_clip=2.0), Value())),
        ({}, (ClippedRatio(), Value(clip=0.2))),
        ({}, (ClippedRatio(), Value(huber_delta=1.0))),
        ({}, ()),
    ],
)
def test_what_is_not_known_by_hand_is_left_to_autograd(config: Any, objectives: Any) -> None:
    policy = make(**config)
    assert hand_update(policy, batch_for(policy), [item.build() for item in objectives]) is None


def test_subclasses_and_frozen_parameters_are_left_to_autograd() -> None:
    policy, objectives = make(), [item.build() for item in PPO]
    batch = batch_for(policy)
    other = Other(policy.config, policy.spec, generator=stream(0), statistics=None)
    assert hand_update(other, batch, objectives) is None
    policy.actor[0].weight.requires_grad_(False)
    assert hand_update(policy, batch, objectives) is None


def test_an_objective_without_weight_does_not_matter() -> None:
    policy = make()
    ignored = replace(Divergence(), coefficient=0.0)
    assert hand_update(policy, batch_for(policy), [item.build() for item in (*PPO, ignored)]) is not None
