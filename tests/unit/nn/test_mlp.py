import numpy as np
import pytest
import torch

from burnish.nn.mlp import ACTIVATIONS, forward_numpy, make_mlp, torch_generator


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numpy_forward_equals_torch_and_follows_the_weights(activation):
    network = make_mlp((5, 16, 3), generator=torch_generator(np.random.default_rng(0)), activation=activation)
    x = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    for _ in range(2):
        np.testing.assert_allclose(forward_numpy(network, x), network(torch.from_numpy(x)).detach(), atol=1e-6)
        with torch.no_grad():
            network[0].weight.add_(0.1)


def test_weights_come_from_the_generator_alone():
    def weights(seed):
        return make_mlp((4, 4), generator=torch_generator(np.random.default_rng(seed)))[0].weight

    before = torch.random.get_rng_state()
    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))
    assert torch.equal(before, torch.random.get_rng_state())
