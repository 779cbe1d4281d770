import math

import pytest
import torch

from burnish.core.errors import ConfigError
from burnish.rl.losses import clipped_surrogate, explained_variance, value_loss, weighted_mean


@pytest.mark.parametrize(
    ("ratio", "advantage", "wanted"),
    [
        (1.1, 1.0, -1.1),  # inside
        (1.5, 1.0, -1.3),  # clipped: no more gain from above
        (0.5, 1.0, -0.5),  # not clipped: a good action has become rare
        (0.5, -1.0, 0.9),  # clipped: no more gain from below
        (1.5, -1.0, 1.5),  # not clipped: a bad action has become frequent
    ],
)
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, wanted: float) -> None:
    loss = clipped_surrogate(torch.tensor(math.log(ratio)), torch.tensor(advantage), clip_low=0.1, clip_high=0.3)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)


def test_dual_clip_bounds_bad_actions_only() -> None:
    change, advantage = torch.log(torch.tensor([50.0, 50.0])), torch.tensor([-1.0, 1.0])
    loss = clipped_surrogate(change, advantage, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    torch.testing.assert_close(loss, torch.tensor([3.0, -1.2]))


def test_clipped_surrogate_has_the_gradient_of_finite_differences() -> None:
    change = torch.tensor([0.05, 0.5, -0.5, -0.5, 0.5], dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: clipped_surrogate(x, advantage, clip_low=0.2, clip_high=0.2, dual_clip=3.0), change
    )


def test_gradient_at_ratio_one_is_the_policy_gradient() -> None:
    change = torch.zeros(3, requires_grad=True)
    advantage = torch.tensor([1.0, -2.0, 0.5])
    clipped_surrogate(change, advantage, clip_low=0.2, clip_high=0.2).sum().backward()
    torch.testing.assert_close(change.grad, -advantage)


@pytest.mark.parametrize("numbers", [(1.0, 0.2, 0.0), (-0.1, 0.2, 0.0), (0.2, -0.1, 0.0), (0.2, 0.2, 0.5)])
def test_clip_limits_are_checked(numbers: tuple[float, float, float]) -> None:
    low, high, dual = numbers
    with pytest.raises(ConfigError, match="Clip limits"):
        clipped_surrogate(torch.zeros(1), torch.zeros(1), clip_low=low, clip_high=high, dual_clip=dual)


def test_value_loss_plain_clipped_and_huber() -> None:
    value, return_, old = torch.tensor([3.0]), torch.tensor([0.0]), torch.tensor([5.0])
    assert value_loss(value, return_).item() == pytest.approx(4.5)
    # within 1 of the old value it would be 4: the larger loss counts
    assert value_loss(value, return_, old_value=old, clip=1.0).item() == pytest.approx(8.0)
    assert value_loss(value, return_, huber_delta=1.0).item() == pytest.approx(2.5)
    with pytest.raises(ConfigError, match="old_value"):
        value_loss(value, return_, clip=1.0)


def test_weighted_mean() -> None:
    item, weight = torch.tensor([1.0, 2.0, 30.0]), torch.tensor([1.0, 1.0, 0.0])
    assert weighted_mean(item, weight).item() == pytest.approx(1.5)
    assert weighted_mean(item).item() == pytest.approx(11.0)
    assert weighted_mean(item, torch.zeros(3)).item() == 0.0


def test_explained_variance() -> None:
    return_ = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(return_, return_) == 1.0
    assert explained_variance(torch.full((3,), 2.0), return_) == pytest.approx(0.0)
    assert math.isnan(explained_variance(return_, torch.ones(3)))
