import math

import pytest
import torch

from burnish.core.errors import ConfigError
from burnish.nn.tensors import executed_mask
from burnish.rl.ratios import chunk_log_prob, kl_k1, kl_k2, kl_k3, log_ratio

NEW = torch.tensor([[0.1, 0.2, float("inf")], [1.0, 2.0, 3.0]])
OLD = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]])
EXECUTED = torch.tensor([2, 3])


def test_mask_and_chunk_log_prob_count_executed_actions_only() -> None:
    assert executed_mask(EXECUTED, 3).tolist() == [[True, True, False], [True, True, True]]
    torch.testing.assert_close(chunk_log_prob(NEW, EXECUTED), torch.tensor([0.3, 6.0]))
    torch.testing.assert_close(chunk_log_prob(NEW[:, :1], EXECUTED), torch.tensor([0.1, 1.0]))


def test_ratio_per_chunk_is_the_product_over_executed_actions() -> None:
    change, mask = log_ratio(NEW, OLD, EXECUTED, chunk_steps=3)
    torch.testing.assert_close(change, torch.tensor([0.3, 4.5]))
    assert mask is None


def test_ratio_per_action_is_masked() -> None:
    change, mask = log_ratio(NEW, OLD, EXECUTED, chunk_steps=3, granularity="action")
    torch.testing.assert_close(change, torch.tensor([[0.1, 0.2, 0.0], [0.5, 1.5, 2.5]]))
    assert mask is not None
    assert mask.tolist() == [[True, True, False], [True, True, True]]


def test_a_policy_with_one_log_prob_per_chunk_has_no_ratio_per_action() -> None:
    with pytest.raises(ConfigError, match=r"G = K = 3.*G = 1"):
        log_ratio(NEW[:, :1], OLD[:, :1], EXECUTED, chunk_steps=3, granularity="action")
    change, _ = log_ratio(NEW[:, :1], OLD[:, :1], EXECUTED, chunk_steps=3)
    torch.testing.assert_close(change, torch.tensor([0.1, 0.5]))


def test_actions_that_did_not_run_get_no_gradient() -> None:
    new = torch.zeros(2, 3, requires_grad=True)
    log_ratio(new, OLD, EXECUTED, chunk_steps=3)[0].sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [[1, 1, 0], [1, 1, 1]]


def test_kl_estimators_agree_with_the_closed_form() -> None:
    # KL(N(0, 1) || N(.3, 1.2)) on samples of the first
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(400_000, generator=generator, dtype=torch.float64)
    behaviour = torch.distributions.Normal(0.0, 1.0)
    policy = torch.distributions.Normal(0.3, 1.2)
    exact = torch.distributions.kl_divergence(behaviour, policy).item()
    change = policy.log_prob(sample) - behaviour.log_prob(sample)
    assert kl_k1(change).mean().item() == pytest.approx(exact, rel=0.03)
    assert kl_k3(change).mean().item() == pytest.approx(exact, rel=0.02)
    assert kl_k2(change).mean().item() == pytest.approx(exact, rel=0.3)
    assert kl_k3(change).min() >= 0


@pytest.mark.parametrize(("estimator", "wanted"), [(kl_k1, -0.5), (kl_k2, 0.125), (kl_k3, math.exp(0.5) - 1 - 0.5)])
def test_kl_estimators_by_hand(estimator, wanted: float) -> None:
    assert estimator(torch.tensor(0.5)).item() == pytest.approx(wanted, rel=1e-5)
