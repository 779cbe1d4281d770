import math

import numpy as np
import pytest
import torch

from burnish.nn import gaussian
from burnish.nn.tensors import executed_mask


def test_log_prob_by_hand():
    # Two entries, std 0.5 and 2, one and half a std away: -0.5 (1 + 0.25) - ln 0.5 - ln 2 - ln 2 pi.
    action, mean = torch.tensor([[1.5, 2.0]]), torch.tensor([[1.0, 1.0]])
    log_std = torch.tensor([math.log(0.5), math.log(2.0)])
    expected = -0.625 - math.log(2 * math.pi)
    assert gaussian.log_prob(action, mean, log_std).tolist() == pytest.approx([expected])
    assert gaussian.log_prob_numpy(action.numpy(), mean.numpy(), log_std.numpy()) == pytest.approx(expected)


def test_entropy_by_hand():
    assert float(gaussian.entropy(torch.zeros(3))) == pytest.approx(1.5 * (1 + math.log(2 * math.pi)))


def test_kl_by_hand():
    # KL(N(1, 1) || N(0, 2^2)) = ln 2 + (1 + 1) / 8 - 1/2.
    zero, one = torch.zeros(1), torch.ones(1)
    expected = math.log(2) + 0.25 - 0.5
    assert float(gaussian.kl(one, zero, zero, torch.tensor([math.log(2)]))) == pytest.approx(expected)


def test_kl_is_that_of_torch_and_never_negative():
    draw = torch.Generator().manual_seed(0)
    mean_p, log_p, mean_q, log_q = torch.randn(4, 50, 3, generator=draw)
    p, q = torch.distributions.Normal(mean_p, log_p.exp()), torch.distributions.Normal(mean_q, log_q.exp())
    found = gaussian.kl(mean_p, log_p, mean_q, log_q)
    torch.testing.assert_close(found, torch.distributions.kl_divergence(p, q).sum(-1))
    assert (found >= 0).all()
    assert torch.equal(gaussian.kl(mean_p, log_p, mean_p, log_p), torch.zeros(50))


def test_masks_count_executed_steps():
    executed = np.array([0, 2, 3])
    mask = executed_mask(executed, 3)
    assert mask.tolist() == [[False, False, False], [True, True, False], [True, True, True]]
    assert gaussian.masked_mean(torch.tensor([[9.0, 9, 9], [1, 3, 9], [1, 2, 3]]), mask).tolist() == [0, 2, 2]
    mean, action = torch.ones(3, 5, 2), torch.zeros(3, 3, 2)
    mean[1, 0, 1], mean[2, 2], mean[1, 2] = 3.0, -4.0, 99.0
    assert gaussian.chunk_error(mean, action, executed).tolist() == [0.0, 1.5, 2.0]
