"""Weights of a policy as a whole: look at them, move them a little, lend those of another."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from burnish.core.contracts import TrainablePolicy
from burnish.core.spec import Array


def nudge(
    target: TrainablePolicy, trainable: TrainablePolicy, generator: np.random.Generator, *, size: float = 0.1
) -> None:
    """Move the weights of a policy a little, those that training would move.

    Args:
        target: Is moved.
        trainable: Of the same family; tells which weights training moves.
        generator: Direction.
        size: Relative to the spread of each tensor's entries.
    """
    own = {item.data_ptr() for group in trainable.parameter_groups().values() for item in group}
    names = {name for name, item in trainable.state_dict().items() if item.data_ptr() in own}
    state = {name: item.detach().clone() for name, item in target.state_dict().items()}
    for name in sorted(names):
        item = state[name]
        if item.is_floating_point():
            spread = float(item.std()) if item.numel() > 1 else 0.0
            noise = torch.from_numpy(generator.standard_normal(tuple(item.shape), dtype=np.float32))
            state[name] = item + size * max(spread, 0.1) * noise.to(item)
    target.load_state_dict(state)


@contextmanager
def weights_of(policy: TrainablePolicy, other: TrainablePolicy) -> Iterator[None]:
    """Give a policy the weights of another for as long as the block runs."""
    own = {name: item.detach().clone() for name, item in policy.state_dict().items()}
    policy.load_state_dict({name: item.detach().clone() for name, item in other.state_dict().items()})
    try:
        yield
    finally:
        policy.load_state_dict(own)


def gradients(policy: TrainablePolicy, loss: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of a loss that are not None, in all trainable parameters."""
    parameters = [item for group in policy.parameter_groups().values() for item in group]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [item for item in found if item is not None]


def arrays_of(policy: TrainablePolicy) -> dict[str, Array]:
    """Return the state of a policy as numpy arrays, which may share its memory."""
    return {name: item.detach().cpu().float().numpy() for name, item in policy.state_dict().items()}
