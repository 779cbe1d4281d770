import copy
import pickle

import numpy as np
import pytest
import torch

from burnish.nn.mlp import ACTIVATIONS, Views, forward_numpy, make_mlp, torch_generator


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numpy_forward_equals_torch_and_follows_the_weights(activation):
    network = make_mlp((5, 16, 3), generator=torch_generator(np.random.default_rng(0)), activation=activation)
    x, views = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32), Views()
    for _ in range(2):
        found = forward_numpy(views.of(list(network.parameters())), x, activation)
        np.testing.assert_allclose(found, network(torch.from_numpy(x)).detach(), atol=1e-6)
        with torch.no_grad():
            network[0].weight.add_(0.1)


def test_views_follow_moved_tensors_and_are_not_copied():
    weight, views = torch.nn.Parameter(torch.zeros(2)), Views()
    first = views.of([weight])
    assert views.of([weight]) is first
    weight.data = torch.ones(2)
    assert views.of([weight])[0].tolist() == [1, 1]
    for twin in (copy.deepcopy(views), pickle.loads(pickle.dumps(views))):
        assert twin.of([torch.full((2,), 5.0)])[0].tolist() == [5, 5]


def test_weights_come_from_the_generator_alone():
    def weights(seed):
        return make_mlp((4, 4), generator=torch_generator(np.random.default_rng(seed)))[0].weight

    before = torch.random.get_rng_state()
    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))
    assert torch.equal(before, torch.random.get_rng_state())
