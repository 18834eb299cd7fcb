"""Rewards of a group -> advantages, on numbers that can be checked on paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.loss.advantages import (
    batch_std_advantages,
    centred_advantages,
    gdpo_advantages,
    gdpo_group_advantages,
    group_advantages,
    leave_one_out_advantages,
    total_reward,
)


def test_chapter_example():
    # mean 1/2, std over G - 1 is sqrt(4 * 0.25 / 3) = 0.57735; 0.5 / 0.57745 = 0.8659. Over G it would be 0.9998.
    got = np.asarray(group_advantages(np.float32([[1.0, 1.0, 0.0, 0.0]])))
    np.testing.assert_allclose(got, [[0.8659, 0.8659, -0.8659, -0.8659]], atol=5e-5)
    assert got.std(ddof=1) == pytest.approx(0.9998, abs=5e-5)


def test_one_right_answer_of_four():
    # mean 1/4, squares 0.5625 + 3 * 0.0625 = 0.75, std sqrt(0.75 / 3) = 0.5: (0.75, -0.25, -0.25, -0.25) / 0.5001
    got = group_advantages(np.float32([[1.0, 0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(got, [[1.4997, -0.49990, -0.49990, -0.49990]], atol=5e-5)


def test_eps_is_added_to_the_std():
    # 0.57735 + 0.42265 = 1, so the centred rewards come out as they are; sqrt(var + eps) would give 0.575
    got = group_advantages(np.float32([[1.0, 1.0, 0.0, 0.0]]), eps=0.42265)
    np.testing.assert_allclose(got, [[0.5, 0.5, -0.5, -0.5]], atol=1e-5)


def test_statistics_are_of_each_group():
    got = np.asarray(group_advantages(np.float32([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])))
    np.testing.assert_allclose(got[0], [0.8659, 0.8659, -0.8659, -0.8659], atol=5e-5)
    assert (got[1] == 0).all()  # statistics of the batch would give -0.54


CONSTANT_GROUPS = {size: np.repeat(np.float32([0.1, 0.35, 0.7, 1.1]), size).reshape(4, size) for size in range(2, 17)}
"""Groups of equal rewards whose float32 mean can be off by a rounding error; divided by 1e-4 that would be 6e-4."""


ONE_REWARD = {  # rewards [P, G] -> advantages; compiled once for each shape
    "group": group_advantages,
    "centred": centred_advantages,
    "batch std": batch_std_advantages,
    "leave one out": leave_one_out_advantages,
    "gdpo": lambda rewards: gdpo_advantages(jnp.stack([rewards, rewards]), np.float32([1.0, 0.1])),
    "gdpo in the group": lambda rewards: gdpo_group_advantages(jnp.stack([rewards, rewards]), np.float32([1.0, 0.1])),
}
ONE_REWARD = {name: jax.jit(piece) for name, piece in ONE_REWARD.items()}


@pytest.mark.parametrize("size", [3, 7, 8, 11])
def test_constant_group_is_exactly_zero(size):
    assert (np.asarray(group_advantages(CONSTANT_GROUPS[size])) == 0).all()


@pytest.mark.parametrize("name", ONE_REWARD)
def test_constant_groups_are_exactly_zero_compiled(name):
    """Compiled sums may run in another order. Each size compiles once, so only "group" is tried with all of them."""
    groups = {size: CONSTANT_GROUPS[size] for size in (CONSTANT_GROUPS if name == "group" else (3, 11, 16))}
    got = jax.jit(lambda groups: jax.tree.map(ONE_REWARD[name], groups))(groups)
    assert all((np.asarray(values) == 0).all() for values in got.values()), got


@pytest.mark.parametrize("name", ONE_REWARD)
def test_a_constant_group_stays_zero_beside_one_that_varies(name):
    """Batch statistics must not leave a residue in it."""
    rewards = np.float32([[1.0, 0.0, 0.0], [0.7, 0.7, 0.7], [0.1, 0.35, 0.1]])
    got = np.asarray(ONE_REWARD[name](rewards))
    assert (got[1] == 0).all() and (got[[0, 2]] != 0).all()


def test_centred_has_no_std():
    # means 1/2 and 1/4
    got = centred_advantages(np.float32([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    np.testing.assert_array_equal(got, [[0.5, 0.5, -0.5, -0.5], [0.75, -0.25, -0.25, -0.25]])


def test_batch_std_scales_all_groups_alike():
    # All eight rewards: mean 3/8, squares 3 - 8 * 9/64 = 1.875, over 7 0.267857, std 0.517549 (over 8 0.484123).
    # Minus the mean of the group, over 0.517649: 0.5 -> 0.965905, 0.75 -> 1.448858, -0.25 -> -0.482953.
    got = batch_std_advantages(np.float32([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    a, b, c = 0.965905, 1.448858, -0.482953
    np.testing.assert_allclose(got, [[a, a, -a, -a], [b, c, c, c]], atol=2e-6)


def test_leave_one_out_compares_with_the_others():
    # 1 - 1/3, 0 - 2/3; 1 - 0, 0 - 1/3
    got = leave_one_out_advantages(np.float32([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(got, [[2 / 3, 2 / 3, -2 / 3, -2 / 3], [1, -1 / 3, -1 / 3, -1 / 3]], rtol=1e-6)


def test_gdpo_in_the_group_normalises_each_group_twice():
    # +-0.865875 has std 0.865875 sqrt(4/3) = 0.999826: 0.865875 / 0.999926 = 0.865939.
    # 1.499700 and -0.499900 have mean 0 and std sqrt((2.249100 + 3 * 0.249900) / 3) = 0.999800: / 0.999900.
    got = gdpo_group_advantages(np.float32([[[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]]), np.float32([1.0]))
    a, b, c = 0.865939, 1.499850, -0.499950
    np.testing.assert_allclose(got, [[a, a, -a, -a], [b, c, c, c]], atol=5e-6)


class TestAbstention:
    """A NaN reward: the answer is left out of mean and std, and its advantage is 0."""

    # The other three are (1, 0, 0) wherever the NaN stands: mean 1/3, squares 4/9 + 2/9, std sqrt(1/3) = 0.577350
    REWARDS = np.float32([[1.0, np.nan, 0.0, 0.0], [np.nan, 1.0, 0.0, 0.0]])
    BY_PIECE = {
        "group": (1.154500, -0.577250),  # 2/3 / 0.577450; as a reward of 0 it would give 1.4997
        "centred": (2 / 3, -1 / 3),
        # six rewards: mean 1/3, squares 2 - 6/9 = 4/3, over 5, std 0.516398; / 0.516498
        "batch std": (1.290744, -0.645372),
        "leave one out": (1.0, -0.5),
        # (1 + 0.1) times the group's: 1.269950, -0.634975; squares of the six 2 * 1.612773 + 4 * 0.403193 = 4.838319,
        # over 5 0.967664, std 0.983699: / 0.983799
        "gdpo": (1.290864, -0.645432),
        # of the three: (1.612773 + 2 * 0.403193) / 2 = 1.209580, std 1.099809: / 1.099909
        "gdpo in the group": (1.154596, -0.577298),
    }

    @pytest.mark.parametrize("name", ONE_REWARD)
    def test_the_others_are_compared_among_themselves(self, name):
        got = ONE_REWARD[name](self.REWARDS)
        a, b = self.BY_PIECE[name]
        np.testing.assert_allclose(got, [[a, 0, b, b], [0, a, b, b]], atol=5e-6)
        assert (np.asarray(got)[np.isnan(self.REWARDS)] == 0).all()

    @pytest.mark.parametrize("name", ONE_REWARD)
    def test_too_few_others_to_compare(self, name):
        rewards = np.float32([[np.nan, np.nan, 1.0], [np.nan] * 3, [0.7, 0.7, np.nan]])
        assert (np.asarray(ONE_REWARD[name](rewards)) == 0).all()

    def test_of_one_reward_of_two(self):
        # First reward (1, 1, 0, 0): +-0.865875. Second, of three answers, (nan, 1, 0, 0): 1.154500, -0.577250, at 1/2.
        # Sums 0.865875, 1.443125, -1.154500, -1.154500: mean 0, squares 0.749740 + 2.082610 + 2 * 1.332870 = 5.498090,
        # over 3 1.832697, std 1.353771: / 1.353871
        rewards = np.float32([[[1.0, 1.0, 0.0, 0.0]], [[np.nan, 1.0, 0.0, 0.0]]])
        got = gdpo_advantages(rewards, np.float32([1.0, 0.5]))
        np.testing.assert_allclose(got, [[0.639555, 1.065925, -0.852740, -0.852740]], atol=5e-6)

    def test_of_one_of_two_added_rewards(self):
        # 1 + nan -> 1, nan + 0.5 * 1 -> 0.5, 0 + 0.5 * 1; nan where both abstain
        rewards = np.float32([[[1.0, np.nan, 0.0, np.nan]], [[np.nan, 1.0, 1.0, np.nan]]])
        np.testing.assert_array_equal(total_reward(rewards, np.float32([1.0, 0.5])), [[1.0, 0.5, 0.5, np.nan]])


def test_added_rewards():
    # 1 + 0.1, 1 + 0, 0 + 0.1
    rewards = np.float32([[[1.0, 1.0, 0.0]], [[1.0, 0.0, 1.0]]])
    np.testing.assert_allclose(total_reward(rewards, np.float32([1.0, 0.1])), [[1.1, 1.0, 0.1]], rtol=1e-6)


def test_shift_and_scale_of_rewards_do_not_count():
    rewards = np.float32([[1.0, 0.0, 0.3, 0.0, 1.1]])
    got = group_advantages(rewards)
    np.testing.assert_allclose(group_advantages(rewards + 0.37), got, atol=1e-6)
    # eps is not scaled: std 0.53, so the quotient moves by 1e-4 / 0.53 at most
    np.testing.assert_allclose(group_advantages(3 * rewards), got, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.int32, np.float64, jnp.bfloat16])
def test_result_is_float32(dtype):
    got = group_advantages(np.array([[1, 1, 0, 0]], dtype))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got[0, 0], 0.8659, atol=5e-5)


@pytest.mark.parametrize("name", ONE_REWARD)
def test_one_rollout_is_refused(name):
    with pytest.raises(ValueError, match="rewards has 1 rollout per prompt; a group needs at least 2"):
        ONE_REWARD[name](np.ones((3, 1)))


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
    got = gdpo_advantages(np.float32([[[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]]), np.float32([1.0]))
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
