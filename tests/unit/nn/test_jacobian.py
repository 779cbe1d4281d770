import numpy as np
import pytest
import torch

from burnish.core.inpainting import Prefix, check_vjp, denoise
from burnish.nn.jacobian import velocity_with_vjp


def make_network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 6))


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
def test_the_product_is_the_jacobians_under_any_mode(mode: str) -> None:
    network = make_network()
    velocity = velocity_with_vjp(lambda x, tau: network(x.reshape(-1)).reshape(3, 2) * (1 + tau))
    x = np.random.default_rng(0).standard_normal((3, 2))
    prefix = Prefix(np.ones((2, 2)), 1)
    outside = denoise(velocity, x, prefix=prefix)
    contexts = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
    with contexts[mode]():
        check_vjp(velocity, x, 0.3, generator=np.random.default_rng(1), step=1e-2)
        inside = denoise(velocity, x, prefix=prefix)
    np.testing.assert_array_equal(inside, outside)
    assert np.abs(inside - denoise(velocity, x)).max() > 0.1  # guided
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_jacobian_of_the_whole_input_is_found() -> None:
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    _, vjp = velocity_with_vjp(lambda x, tau: weight @ x)(np.zeros((2, 1)), 0.0)
    np.testing.assert_allclose(vjp(np.array([[1.0], [10.0]])), [[31.0], [42.0]])
