"""Returns and advantages over action chunks, as pure numpy functions.

A decision i offers a chunk and executes ``k_i`` of its actions. With discount gamma per action::

    R_i     = sum_{j < k_i} gamma^j r_ij
    delta_i = R_i + gamma^k_i V(s_{i+1}) (1 - terminated_i) - V(s_i)
    A_i     = delta_i + gamma^k_i lambda (1 - done_i) A_{i+1}

Termination does not bootstrap; truncation bootstraps from the episode's last observation; nothing crosses the end of an
episode. Published systems that discount once per chunk are covered by ``discount_per_chunk``.
"""

from dataclasses import dataclass

import numpy as np

from burnish.core.spec import Array


def chunk_reward(reward: Array, executed: Array, discount: float, *, discount_per_chunk: bool = False) -> Array:
    """Return the reward of each chunk, discounted inside it.

    Args:
        reward: (T, N, K), reward of each action.
        executed: (T, N), how many actions ran; what lies past them is ignored.
        discount: gamma, per action.
        discount_per_chunk: Count a whole chunk as one step: sum rewards without discount.

    Returns:
        (T, N) float64
    """
    steps = np.arange(reward.shape[-1])
    factor = np.ones(len(steps)) if discount_per_chunk else discount**steps
    counted = np.where(steps < executed[..., None], reward, 0.0)
    total: Array = counted @ factor
    return total


def chunk_gae(
    reward: Array,
    executed: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    *,
    discount: float,
    gae_lambda: float,
    discount_per_chunk: bool = False,
) -> tuple[Array, Array]:
    """Return generalised advantage estimates over chunks (arXiv 1506.02438, on the equations of this module).

    Args:
        reward: (T, N, K).
        executed: (T, N); decisions with 0 get advantage 0 and pass nothing on.
        value: (T, N), V of the state before each chunk.
        next_value: (T, N), V of the state after each chunk; read only where it bootstraps.
        terminated: (T, N) bool.
        truncated: (T, N) bool.
        discount: gamma, per action (per chunk with ``discount_per_chunk``).
        gae_lambda: lambda, per chunk.
        discount_per_chunk: Apply gamma once per chunk, whatever its length; for ablations.

    Returns:
        (advantage, return_), both (T, N) float32; ``return_`` is advantage + value.
    """
    ran = executed > 0
    factor = np.where(ran, discount, 0.0) if discount_per_chunk else np.where(ran, discount**executed, 0.0)
    after = np.where(terminated | ~ran, 0.0, next_value)
    gain = chunk_reward(reward, executed, discount, discount_per_chunk=discount_per_chunk)
    delta = np.where(ran, gain + factor * after - value, 0.0)
    carry = factor * gae_lambda * ~(terminated | truncated)
    advantage = np.zeros(value.shape, np.float64)
    running = np.zeros(value.shape[1:], np.float64)
    for t in range(len(value) - 1, -1, -1):
        running = delta[t] + carry[t] * running
        advantage[t] = running
    return advantage.astype(np.float32), (advantage + value).astype(np.float32)


@dataclass(frozen=True)
class GroupAdvantages:
    """Advantages of M episodes relative to their groups."""

    advantage: Array
    """(M,) float32; 0 in degenerate groups."""
    groups: int
    """How many groups there were."""
    degenerate: int
    """How many of them say nothing: one member, or all returns equal."""


def group_relative(
    return_: Array, group: Array, *, divide_by_std: bool = True, leave_one_out: bool = False, epsilon: float = 1e-6
) -> GroupAdvantages:
    """Return each episode's return minus the mean of its group (arXiv 2402.03300, section 4.1).

    Args:
        return_: (M,), one per episode.
        group: (M,) int, equal for the episodes of one group; negative for an episode without a group.
        divide_by_std: Divide by the group's standard deviation (population), as GRPO does.
        leave_one_out: Compare with the mean of the *other* members (RLOO, arXiv 2402.14740).
        epsilon: A group whose standard deviation is not above this is degenerate.
    """
    return_ = np.asarray(return_, np.float64)
    keys = np.where(group < 0, -1 - np.arange(len(group)), group)
    _, member, size = np.unique(keys, return_inverse=True, return_counts=True)
    mean = np.bincount(member, return_, minlength=len(size)) / np.maximum(size, 1)
    centred = return_ - mean[member]
    std = np.sqrt(np.bincount(member, centred**2, minlength=len(size)) / np.maximum(size, 1))
    useful = std > epsilon
    if leave_one_out:
        centred = centred * (size / np.maximum(size - 1, 1))[member]
    if divide_by_std:
        centred = centred / np.where(useful, std, 1.0)[member]
    advantage = np.where(useful[member], centred, 0.0).astype(np.float32)
    return GroupAdvantages(advantage, groups=len(size), degenerate=int((~useful).sum()))


def normalise(advantage: Array, counted: Array, *, epsilon: float = 1e-8) -> Array:
    """Return advantages (T, N) with mean 0 and standard deviation 1 over ``counted`` (T, N) entries, 0 elsewhere."""
    chosen = advantage[counted].astype(np.float64)
    if chosen.size == 0:
        return np.zeros_like(advantage)
    scaled: Array = np.where(counted, (advantage - chosen.mean()) / (chosen.std() + epsilon), 0.0).astype(np.float32)
    return scaled
