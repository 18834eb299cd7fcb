"""Rewards of a group -> advantages, on numbers that can be redone on paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.loss.advantages import gdpo_advantages, group_advantages


def test_chapter_example():
    # mean 1/2, std over G - 1 is sqrt(4 * 0.25 / 3) = 0.57735; 0.5 / 0.57745 = 0.8659. Over G it would be 0.9998.
    got = np.asarray(group_advantages(jnp.array([[1.0, 1.0, 0.0, 0.0]])))
    np.testing.assert_allclose(got, [[0.8659, 0.8659, -0.8659, -0.8659]], atol=5e-5)
    assert got.std(ddof=1) == pytest.approx(0.9998, abs=5e-5)


def test_one_right_answer_of_four():
    # mean 1/4, squares 0.5625 + 3 * 0.0625 = 0.75, std sqrt(0.75 / 3) = 0.5: (0.75, -0.25, -0.25, -0.25) / 0.5001
    got = group_advantages(jnp.array([[1.0, 0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(got, [[1.4997, -0.49990, -0.49990, -0.49990]], atol=5e-5)


def test_eps_is_added_to_the_std():
    # 0.57735 + 0.42265 = 1, so the centred rewards come out as they are; sqrt(var + eps) would give 0.575
    got = group_advantages(jnp.array([[1.0, 1.0, 0.0, 0.0]]), eps=0.42265)
    np.testing.assert_allclose(got, [[0.5, 0.5, -0.5, -0.5]], atol=1e-5)


def test_statistics_are_of_each_group():
    got = np.asarray(group_advantages(jnp.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])))
    np.testing.assert_allclose(got[0], [0.8659, 0.8659, -0.8659, -0.8659], atol=5e-5)
    assert (got[1] == 0).all()  # statistics of the batch would give -0.54


CONSTANT_GROUPS = {size: np.repeat(np.float32([0.1, 0.35, 0.7, 1.1]), size).reshape(4, size) for size in range(2, 17)}
"""Of equal rewards whose float32 mean can miss them by a rounding; over a std of 0 that would become 6e-4."""


@pytest.mark.parametrize("size", [3, 7, 8, 11])
def test_constant_group_is_exactly_zero(size):
    assert (np.asarray(group_advantages(CONSTANT_GROUPS[size])) == 0).all()


def test_constant_group_is_exactly_zero_compiled():
    got = jax.jit(lambda groups: jax.tree.map(group_advantages, groups))(CONSTANT_GROUPS)
    assert all((np.asarray(values) == 0).all() for values in got.values()), got


def test_shift_and_scale_of_rewards_do_not_count():
    rewards = jnp.array([[1.0, 0.0, 0.3, 0.0, 1.1]])
    got = group_advantages(rewards)
    np.testing.assert_allclose(group_advantages(rewards + 0.37), got, atol=1e-6)
    # eps is not scaled: std 0.53, so the quotient moves by 1e-4 / 0.53 at most
    np.testing.assert_allclose(group_advantages(3 * rewards), got, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.int32, np.float64, jnp.bfloat16])
def test_result_is_float32(dtype):
    got = group_advantages(np.array([[1, 1, 0, 0]], dtype))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got[0, 0], 0.8659, atol=5e-5)


def test_a_nan_reward_does_not_hide_or_spread():
    got = np.asarray(group_advantages(jnp.array([[jnp.nan, 1.0, 0.0], [1.0, 0.0, 0.0]])))
    assert np.isnan(got[0]).all() and np.isfinite(got[1]).all()


def test_one_rollout_is_refused():
    with pytest.raises(ValueError, match="rewards has 1 rollout per prompt; a group needs at least 2 to be compared"):
        group_advantages(jnp.ones((3, 1)))


@pytest.mark.parametrize(
    ("rewards", "weights", "message"),
    [
        (np.ones(4), None, r"rewards has shape \(4,\), expected \(any, any\)"),
        (np.ones((2, 4)), np.ones(2), r"rewards has shape \(2, 4\), expected \(any, any, any\)"),
        (np.ones((2, 1, 4)), np.ones(3), r"weights has shape \(3,\), expected \(2\)"),
        (np.ones((2, 1, 4)), np.float32(1), r"weights has shape \(\), expected \(2\)"),
    ],
)
def test_shapes_are_named(rewards, weights, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards) if weights is None else gdpo_advantages(rewards, weights)


def test_gdpo_normalises_the_sum_over_the_batch():
    # Group 1: +-0.8659, squares sum 3 (0.57735 / 0.57745)^2 = 2.9990. Group 2: 1.4997, -0.4999 x 3, 3 (0.5 / 0.5001)^2
    # = 2.9988. Batch mean 0, std sqrt(5.9978 / 7) = 0.92565: 0.8659 / 0.92575 = 0.93535, 1.4997 / 0.92575 = 1.6200.
    # Inside the groups the second normalisation would give 0.8659 and 1.4997 again.
    got = gdpo_advantages(jnp.array([[[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]]), jnp.array([1.0]))
    a, b, c = 0.93535, 1.6200, -0.5400
    np.testing.assert_allclose(got, [[a, a, -a, -a], [b, c, c, c]], atol=1e-4)


def test_gdpo_against_the_added_reward():
    # Nobody is right, three have the format, weight 0.1. Added rewards (0.1, 0.1, 0.1, 0): 0.025 / (0.05 + 1e-4).
    # GDPO: 0.1 * (0.25 / 0.5001, -0.75 / 0.5001), std 0.09998, so 0.049990 / 0.10008 and -0.14997 / 0.10008.
    correct, form = np.zeros((1, 4)), np.array([[1.0, 1.0, 1.0, 0.0]])
    added = group_advantages(correct + 0.1 * form)
    np.testing.assert_allclose(added, [[0.4990, 0.4990, 0.4990, -1.4970]], atol=5e-5)
    got = gdpo_advantages(np.stack([correct, form]), np.array([1.0, 0.1]))
    np.testing.assert_allclose(got, [[0.4995, 0.4995, 0.4995, -1.4985]], atol=5e-5)


def test_gdpo_keeps_the_order_that_added_rewards_lose():
    # Added, (1, 0) and (0, 1) are the same reward 1. GDPO tells them apart where one reward is rarer than the other:
    # first reward (1, 0, 0, 0) -> 1.4997 and -0.4999; second (0, 1, 1, 0) -> +-0.8659.
    first, second = np.array([[1.0, 0.0, 0.0, 0.0]]), np.array([[0.0, 1.0, 1.0, 0.0]])
    added = np.asarray(group_advantages(first + second))
    assert added[0, 0] == added[0, 1]
    got = np.asarray(gdpo_advantages(np.stack([first, second]), np.ones(2)))
    # sums (0.6338, 0.3660, 0.3660, -1.3658), mean 0, std sqrt((0.4017 + 2 * 0.13396 + 1.8654) / 3) = 0.91925
    np.testing.assert_allclose(got, [[0.6894, 0.3981, 0.3981, -1.4856]], atol=1e-3)


def test_gdpo_reward_on_which_all_agree_adds_nothing():
    varied, same = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]), np.full((2, 4), 0.7)
    alone = gdpo_advantages(varied[None], np.array([1.0]))
    np.testing.assert_array_equal(gdpo_advantages(np.stack([varied, same]), np.array([1.0, 5.0])), alone)
    assert (np.asarray(gdpo_advantages(np.stack([same, same]), np.ones(2))) == 0).all()
