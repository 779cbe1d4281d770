"""Real-time chunking as formulas; the defects that other implementations published are among the tests."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.core.contracts import InpaintingPolicy
from burnish.core.errors import ConfigError, SpecError
from burnish.core.inpainting import (
    Prefix,
    check_vjp,
    denoise,
    guidance_scale,
    guided_velocity,
    prefix_weights,
)
from tests.unit.core.gaussian_flow import STATE, GaussianFlowPolicy, covariance, gaussian_velocity

STEPS = 16
C = covariance(STEPS)
MEAN = np.zeros((STEPS, 2))


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("linear", [1, 1, 0.8, 0.6, 0.4, 0.2]),
        ("exp", [1, 1, *[c * (math.e**c - 1) / (math.e - 1) for c in (0.8, 0.6, 0.4, 0.2)]]),
        ("ones", [1] * 6),
        ("zeros", [1, 1, 0, 0, 0, 0]),
    ],
)
def test_weights_by_hand(schedule: Any, wanted: list[float]) -> None:
    # d = 2 frozen, H - s = 6 planned: c_i = (6 - i) / (6 - 2 + 1)
    np.testing.assert_allclose(prefix_weights(2, 6, schedule), wanted, rtol=1e-12)


@given(st.integers(0, 20), st.integers(1, 20), st.sampled_from(["linear", "exp", "ones", "zeros"]))
def test_weights_start_at_one_and_never_rise(frozen: int, planned: int, schedule: Any) -> None:
    weight = prefix_weights(frozen, planned, schedule)
    assert weight.shape == (planned,)
    assert (weight[: min(frozen, planned)] == 1).all()
    assert (np.diff(weight) <= 0).all()
    assert ((weight >= 0) & (weight <= 1)).all()


def test_guidance_scale_by_hand() -> None:
    assert guidance_scale(0.5, 5.0) == pytest.approx(2.0)  # (0.25 + 0.25) / 0.25
    assert guidance_scale(0.2, 5.0) == pytest.approx((0.04 + 0.64) / 0.16)
    assert guidance_scale(0.01, 5.0) == 5.0
    assert guidance_scale(0.0, 5.0) == guidance_scale(1.0, 5.0) == 5.0


def test_guidance_goes_through_the_jacobian_and_not_the_identity() -> None:
    # v(x) = J x with J = [[-1, 0], [2, 0]], so the estimate's Jacobian at tau = 0.5 is I + 0.5 J = [[0.5, 0], [1, 1]].
    j = np.array([[-1.0, 0.0], [2.0, 0.0]])
    x = np.array([[4.0], [1.0]])
    prefix = Prefix(np.array([[5.0], [6.0]]), 2)
    weight = np.ones(2)
    found = guided_velocity(lambda x, tau: (j @ x, lambda g: j.T @ g), x, 0.5, prefix, weight)
    # estimate x + 0.5 J x = (2, 5), difference (3, 1), carried back (0.5 * 3 + 1 * 1, 1) = (2.5, 1), scale 2
    np.testing.assert_allclose(found, j @ x + 2.0 * np.array([[2.5], [1.0]]))
    identity = j @ x + 2.0 * np.array([[3.0], [1.0]])
    assert not np.allclose(found, identity)


def conditional_mean(prefix: np.ndarray, known: int) -> np.ndarray:
    """Return the mean of the rest of a chunk, given its first actions exactly."""
    carried: np.ndarray = C[known:, :known] @ np.linalg.solve(C[:known, :known], prefix[:known])
    return carried


def draw(prefix: Prefix | None, seeds: int = 40, steps: int = 10) -> np.ndarray:
    velocity = gaussian_velocity(MEAN, C)
    return np.stack(
        [
            denoise(velocity, np.random.default_rng(seed).standard_normal((STEPS, 2)), prefix=prefix, steps=steps)
            for seed in range(seeds)
        ]
    )


def test_in_painted_chunks_keep_the_frozen_prefix_and_go_on_from_it() -> None:
    old = np.random.default_rng(99).multivariate_normal(np.zeros(STEPS), C, 2).T
    prefix = Prefix(old[6:], 4)  # six of the old chunk have run
    free, painted = draw(None), draw(prefix)
    error = np.abs(painted[:, :4] - prefix.action[:4]).mean()
    assert error < 0.15 * np.abs(free[:, :4] - prefix.action[:4]).mean()
    # the change from the last frozen action to the first free one is that of a smooth chunk, not a jump
    step = np.abs(painted[:, 4] - prefix.action[3]).mean()
    assert step < 1.5 * np.abs(np.diff(free, axis=1)).mean()
    assert step < 0.25 * np.abs(free[:, 4] - prefix.action[3]).mean()


def test_what_is_free_follows_the_policys_own_distribution() -> None:
    plan = np.full((4, 2), 0.8)
    expected = conditional_mean(plan, 4)
    assert (expected[:4] > 0.5).all()
    painted = draw(Prefix(plan, 4), seeds=150).mean(0)
    free = draw(None, seeds=150).mean(0)
    np.testing.assert_array_less(0.35 * expected[:4], painted[4:8])
    np.testing.assert_array_less(np.abs(free[4:8]), 0.12)
    assert (np.abs(painted[12:] - free[12:]) < 0.1).all()  # far ahead the plan says nothing


def test_the_plan_is_not_padded() -> None:
    """A chunk asked for with P planned actions does not depend on any value past them."""
    plan = np.full((5, 2), 0.8)
    padded = np.concatenate([plan, np.zeros((STEPS - 5, 2))])
    assert not np.allclose(draw(Prefix(plan, 2, "ones"), 1), draw(Prefix(padded, 2, "ones"), 1))
    velocity = gaussian_velocity(MEAN, C)
    x = np.random.default_rng(0).standard_normal((STEPS, 2))
    pull = guided_velocity(velocity, x, 0.0, Prefix(plan, 2, "ones"), np.ones(5)) - velocity(x, 0.0)[0]
    # at tau = 0 the estimate is the mean for every x (J = -I), so nothing pulls; later only the plan does
    np.testing.assert_allclose(pull, 0, atol=1e-12)
    seen: list[np.ndarray] = []

    def spy(x: np.ndarray, tau: float) -> Any:
        speed, vjp = velocity(x, tau)
        return speed, lambda g: (seen.append(g), vjp(g))[1]

    guided_velocity(spy, x, 0.3, Prefix(plan, 2, "ones"), np.ones(5))
    assert (seen[0][5:] == 0).all()
    assert (seen[0][:5] != 0).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, STEPS), st.integers(0, STEPS), st.sampled_from(["linear", "exp", "ones", "zeros"]))
def test_any_prefix_gives_a_finite_chunk(planned: int, frozen: int, schedule: Any) -> None:
    prefix = Prefix(np.full((planned, 2), 3.0), min(frozen, planned), schedule)
    assert np.isfinite(draw(prefix, 1)).all()


def test_the_check_passes_a_true_product_and_refuses_the_identity_and_zero() -> None:
    velocity = gaussian_velocity(MEAN, C)
    x = np.random.default_rng(0).standard_normal((STEPS, 2))
    check_vjp(velocity, x, 0.6, generator=np.random.default_rng(1))
    for wrong in (lambda g: g, lambda g: 0 * g, lambda g: np.nan * g):
        with pytest.raises(SpecError, match="vector-Jacobian product is off by"):
            check_vjp(lambda x, tau: (velocity(x, tau)[0], wrong), x, 0.6, generator=np.random.default_rng(1))  # noqa: B023


def test_a_policy_that_can_is_recognised() -> None:
    policy = GaussianFlowPolicy()
    assert isinstance(policy, InpaintingPolicy)
    observation = {STATE: np.zeros((1, 2), np.float32)}
    sample = policy.act_with_prefix(observation, Prefix(np.ones((3, 2)), 2), generator=np.random.default_rng(0))
    assert sample.action_chunk.shape == (1, 16, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((np.zeros((0, 2)), 0), SpecError, r"P >= 1, found the shape \(0, 2\)"),
        ((np.zeros((2, 2)), 3), SpecError, "frozen_steps is 3; the prefix has 2"),
        ((np.full((2, 2), np.nan), 1), SpecError, "finite"),
        ((np.zeros((2, 2)), 1, "exp", 0.0), ConfigError, "max_guidance must be positive"),
    ],
)
def test_wrong_prefixes_are_refused(arguments: tuple[Any, ...], error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        Prefix(*arguments)


def test_a_prefix_that_does_not_fit_and_an_unknown_schedule_are_named() -> None:
    with pytest.raises(SpecError, match=r"prefix of shape \(17, 2\) does not fit a chunk of shape \(16, 2\)"):
        draw(Prefix(np.zeros((17, 2)), 1), 1)
    with pytest.raises(ConfigError, match="no schedule 'cosine'; there are exp, linear, ones, zeros"):
        prefix_weights(1, 2, "cosine")  # type: ignore[arg-type]
