import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.rl.advantages import chunk_gae, chunk_reward, group_relative, normalise


def column(*rows: object) -> np.ndarray:
    """Return (T, 1, ...) from T entries."""
    return np.array(rows, np.float64)[:, None]


def gae(reward, executed, value, next_value, terminated=None, truncated=None, **numbers):
    steps = len(executed)
    flags = [column(*(flag or [0] * steps)).astype(bool) for flag in (terminated, truncated)]
    options = {"discount": 0.5, "gae_lambda": 0.5, **numbers}
    advantage, return_ = chunk_gae(
        column(*reward), column(*executed).astype(np.int64), column(*value), column(*next_value), *flags, **options
    )
    return advantage[:, 0], return_[:, 0]


def test_chunk_reward_discounts_inside_and_ignores_what_did_not_run() -> None:
    reward = column([1.0, 2.0, 4.0], [1.0, 2.0, 99.0])
    executed = np.array([[3], [2]])
    np.testing.assert_allclose(chunk_reward(reward, executed, 0.5), [[1 + 1 + 1], [1 + 1]])
    np.testing.assert_allclose(chunk_reward(reward, executed, 0.5, discount_per_chunk=True), [[7], [3]])


def test_gae_by_hand_with_chunks_of_different_length() -> None:
    # k = 2: R = 1 + .5 * 2 = 2, gamma^k = .25; delta_0 = 2 + .25 * 4 - 1 = 2; k = 1: delta_1 = 3 + .5 * 8 - 4 = 3
    advantage, return_ = gae([[1, 2], [3, 0]], [2, 1], [1, 4], [4, 8])
    np.testing.assert_allclose(advantage, [2 + 0.25 * 0.5 * 3, 3])
    np.testing.assert_allclose(return_, [2 + 0.25 * 0.5 * 3 + 1, 3 + 4])


def test_termination_does_not_bootstrap_and_nothing_crosses_it() -> None:
    advantage, _ = gae([[1, 0], [7, 7]], [1, 2], [2, 0], [1000, 0], terminated=[1, 0])
    assert advantage[0] == pytest.approx(1 - 2)


def test_truncation_bootstraps_from_the_last_observation_and_nothing_crosses_it() -> None:
    advantage, _ = gae([[1, 0], [7, 7]], [1, 2], [2, 0], [10, 0], truncated=[1, 0])
    assert advantage[0] == pytest.approx(1 + 0.5 * 10 - 2)


def test_a_success_in_the_middle_of_a_chunk_is_kept() -> None:
    advantage, _ = gae([[0, 1, 0, 0]], [2], [0], [5], terminated=[1])
    assert advantage[0] == pytest.approx(0.5)


def test_a_terminated_and_truncated_step_does_not_bootstrap() -> None:
    advantage, _ = gae([[1]], [1], [0], [10], terminated=[1], truncated=[1])
    assert advantage[0] == pytest.approx(1)


def test_idle_decisions_get_nothing_and_pass_nothing_on() -> None:
    advantage, return_ = gae([[1, 0], [9, 9]], [1, 0], [0, 3], [0, np.nan], terminated=[1, 0])
    np.testing.assert_allclose(advantage, [1, 0])
    assert np.isfinite(return_).all()


def test_discount_per_chunk_is_the_other_convention() -> None:
    advantage, _ = gae([[1, 2], [3, 0]], [2, 1], [1, 4], [4, 8], discount_per_chunk=True)
    delta = (3 + 0.5 * 4 - 1, 3 + 0.5 * 8 - 4)
    np.testing.assert_allclose(advantage, [delta[0] + 0.25 * delta[1], delta[1]])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1.0))
def test_with_lambda_one_the_target_is_the_discounted_return_however_it_is_cut(seed: int, discount: float) -> None:
    generator = np.random.default_rng(seed)
    reward = generator.normal(size=12)
    wanted = float(reward @ discount ** np.arange(12))
    cuts = [0, *sorted(generator.choice(np.arange(1, 12), 3, replace=False).tolist()), 12]
    executed = np.diff(cuts)
    chunks = np.full((4, 1, 12), 77.0)
    for i, (start, stop) in enumerate(itertools.pairwise(cuts)):
        chunks[i, 0, : stop - start] = reward[start:stop]
    value = generator.normal(size=(4, 1))
    after = np.vstack((value[1:], [[np.inf]]))
    ended = np.array([[False], [False], [False], [True]])
    _, return_ = chunk_gae(
        chunks, executed[:, None], value, after, ended, ended & False, discount=discount, gae_lambda=1.0
    )
    assert return_[0, 0] == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_group_relative_by_hand() -> None:
    result = group_relative(np.array([1.0, 3.0, 5.0, 5.0]), np.array([7, 7, 9, 9]))
    np.testing.assert_allclose(result.advantage, [-1, 1, 0, 0])
    assert (result.groups, result.degenerate) == (2, 1)


def test_group_relative_without_std_and_leave_one_out() -> None:
    return_, group = np.array([0.0, 0.0, 3.0]), np.zeros(3, np.int64)
    np.testing.assert_allclose(group_relative(return_, group, divide_by_std=False).advantage, [-1, -1, 2])
    loo = group_relative(return_, group, divide_by_std=False, leave_one_out=True).advantage
    np.testing.assert_allclose(loo, [-1.5, -1.5, 3])
    divided = group_relative(return_, group).advantage
    np.testing.assert_allclose(divided, np.array([-1, -1, 2]) / np.sqrt(2), rtol=1e-6)


def test_episodes_without_a_group_are_degenerate_groups_of_one() -> None:
    result = group_relative(np.array([1.0, 9.0]), np.array([-1, -1]))
    np.testing.assert_array_equal(result.advantage, [0, 0])
    assert (result.groups, result.degenerate) == (2, 2)


def test_normalise_counts_only_what_ran() -> None:
    advantage = np.array([[1.0, 3.0, 100.0]], np.float32)
    scaled = normalise(advantage, np.array([[True, True, False]]))
    np.testing.assert_allclose(scaled, [[-1, 1, 0]], atol=1e-6)
    np.testing.assert_array_equal(normalise(advantage, np.zeros((1, 3), bool)), np.zeros((1, 3)))
