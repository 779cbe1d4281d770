"""The AR(1) Gaussian against scipy's multivariate normal, and its reduction to white noise."""

import numpy as np
import pytest
import torch
from scipy import stats

from burnish.nn import correlated, gaussian

RHO = 0.8


def covariance(steps: int, rho: float, std: float) -> np.ndarray:
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    return std**2 * rho**lag


@pytest.mark.parametrize("executed", [1, 2, 4])
def test_a_sum_over_a_prefix_is_the_joint_density_of_the_prefix(executed):
    generator = np.random.default_rng(0)
    action, mean = generator.normal(size=(2, 4, 1))
    found = correlated.log_prob(torch.tensor(action), torch.tensor(mean), torch.log(torch.tensor([0.3])), RHO)
    joint = stats.multivariate_normal(mean[:executed, 0], covariance(executed, RHO, 0.3))
    assert float(found[:executed].sum()) == pytest.approx(joint.logpdf(action[:executed, 0]), rel=1e-5)


def test_kl_is_that_of_the_joint_gaussians():
    generator = np.random.default_rng(1)
    p, q = generator.normal(size=(2, 3, 1))
    found = correlated.kl(
        torch.tensor(p), torch.log(torch.tensor([0.3])), torch.tensor(q), torch.log(torch.tensor([0.5])), RHO
    )
    s_p, s_q = covariance(3, RHO, 0.3), covariance(3, RHO, 0.5)
    inverse, d = np.linalg.inv(s_q), (q - p)[:, 0]
    expected = 0.5 * (np.trace(inverse @ s_p) - 3 + d @ inverse @ d + np.log(np.linalg.det(s_q) / np.linalg.det(s_p)))
    assert float(found.sum()) == pytest.approx(expected, rel=1e-5)


def test_entropy_is_that_of_the_joint_gaussian():
    found = correlated.entropy(torch.zeros(3, 1), torch.log(torch.tensor([0.3])), RHO)
    expected = stats.multivariate_normal(np.zeros(3), covariance(3, RHO, 0.3)).entropy()
    assert float(found.sum()) == pytest.approx(expected, rel=1e-5)


def test_noise_keeps_its_width_and_has_the_correlation():
    noise = correlated.correlate(np.random.default_rng(2).standard_normal((20000, 5, 1)), RHO)[..., 0]
    np.testing.assert_allclose(np.cov(noise.T), covariance(5, RHO, 1.0), atol=0.05)


def test_whitening_undoes_correlation():
    white = np.random.default_rng(3).standard_normal((2, 6, 3))
    back = correlated.whiten(torch.from_numpy(correlated.correlate(white, RHO)), RHO)
    np.testing.assert_allclose(back.numpy(), white, atol=1e-12)


def test_without_correlation_it_is_the_diagonal_gaussian():
    action, mean = torch.randn(2, 5, 3, 2, generator=torch.Generator().manual_seed(0))
    log_std = torch.tensor([-1.0, 0.2])
    assert torch.equal(correlated.log_prob(action, mean, log_std, 0.0), gaussian.log_prob(action, mean, log_std))
    assert torch.equal(correlated.entropy(mean, log_std, 0.0), gaussian.entropy(log_std).expand(5, 3))
