"""What the divergence of every Gaussian policy must do."""

import numpy as np
import torch

from burnish.core.seeding import stream


def gradient_norm(policy, loss):
    """Return the summed norms of the actor's gradients of a loss (B,)."""
    policy.zero_grad()
    loss.mean().backward()
    return sum(float(p.grad.norm()) for p in policy.parameter_groups()["actor"] if p.grad is not None)


def perturb(policy, amount=0.05):
    """Move every parameter that is trained a little, and return the policy."""
    with torch.no_grad():
        for i, parameter in enumerate(policy.parameters()):
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
                parameter.add_(amount * noise)
    return policy


def check_divergence(policy, observation):
    """Check that it is 0 at the reference and grows away from it, on five decisions of up to four steps."""
    reference = policy.clone()
    sample, executed = policy.act(observation, generator=stream(1)), np.array([1, 2, 3, 4, 4])
    at_rest = policy.divergence(observation, sample, reference, executed)
    assert torch.equal(at_rest, torch.zeros(5))
    assert gradient_norm(policy, at_rest) == 0
    moved = perturb(policy).divergence(observation, sample, reference, executed)
    assert (moved > 0).all()
    assert gradient_norm(policy, moved) > 1e-3
