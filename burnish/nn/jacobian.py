"""The velocity of a flow network as :mod:`burnish.core.inpainting` wants it: numpy in and out, with its Jacobian."""

from collections.abc import Callable

import numpy as np
import torch

from burnish.core.inpainting import Velocity, Vjp
from burnish.core.spec import Array


def velocity_with_vjp(network: Callable[[torch.Tensor, float], torch.Tensor], device: str = "cpu") -> Velocity:
    """Return a velocity whose vector-Jacobian product comes from autograd, also inside ``torch.inference_mode``.

    The input becomes a leaf before the network sees it, so that the graph holds the whole Jacobian; weights get no
    gradients.

    Args:
        network: Takes x (K, A) float32 and tau, returns the velocity (K, A); must be differentiable in x, and use no
            tensors that were made under ``torch.inference_mode``.
        device: Where ``x`` goes.
    """

    def velocity(x: Array, tau: float) -> tuple[Array, Vjp]:
        with torch.inference_mode(False), torch.enable_grad():
            leaf = torch.tensor(np.asarray(x), dtype=torch.float32, device=device, requires_grad=True)
            speed = network(leaf, tau)

        def vjp(g: Array) -> Array:
            with torch.inference_mode(False), torch.enable_grad():
                cotangent = torch.tensor(np.asarray(g), dtype=speed.dtype, device=device)
                (product,) = torch.autograd.grad(speed, leaf, cotangent, retain_graph=True)
            carried: Array = product.cpu().numpy().astype(float)
            return carried

        return speed.detach().cpu().numpy().astype(float), vjp

    return velocity
