"""Reductions, on cases where each way to divide gives another number."""

import functools

import jax
import numpy as np
import pytest

from grpojax.loss.reduce import constant_divisor, mean_per_sequence, sequence_mean, sum_per_sequence, token_mean

MASK = np.float32([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]])


def over_all_positions(values, mask, whole_mask):
    """constant_divisor with as many tokens as there are positions."""
    return constant_divisor(values, mask, whole_mask, mask.shape[1])


@functools.partial(jax.jit, static_argnums=0)
def value_and_grad(reduction, values, mask, whole_mask):
    """By the values. Compiled as a whole; eagerly, each operation would be compiled separately."""
    return jax.value_and_grad(reduction)(values, mask, whole_mask)


def reduced(reduction, values, mask, whole_mask):
    return float(value_and_grad(reduction, values, mask, whole_mask)[0])


def test_lengths_weigh_differently():
    # answers of 2 and 6 tokens with losses -1 and +1 a token: sums (-2 + 6) / 2 = 2, tokens (-2 + 6) / 8 = 0.5
    losses = np.broadcast_to(np.float32([[-1.0], [1.0]]), MASK.shape)
    assert float(sum_per_sequence(losses, MASK, MASK)) == 2.0
    assert float(token_mean(losses, MASK, MASK)) == 0.5
    assert float(sequence_mean(np.float32([-1.0, 3.0]), MASK)) == 1.0
    # means (-1 + 1) / 2 = 0; constants (-2 + 6) / (2 * 8) = 0.25 with a budget of 8, 0.125 with one of 16
    assert float(mean_per_sequence(losses, MASK, MASK)) == 0.0
    assert float(constant_divisor(losses, MASK, MASK, 8.0)) == 0.25
    assert float(constant_divisor(losses, MASK, MASK, 16.0)) == 0.125


# Weight of each token of the answers of 2 and of 6: 1 / (2 * 2), 1 / (2 * 6); 1 / 8; 1 / 2; 1 / (2 * 8)
WEIGHTS = {
    mean_per_sequence: (1 / 4, 1 / 12),
    token_mean: (1 / 8, 1 / 8),
    sum_per_sequence: (1 / 2, 1 / 2),
    over_all_positions: (1 / 16, 1 / 16),
}


@pytest.mark.parametrize("reduction", WEIGHTS)
def test_weight_of_every_token(reduction):
    """Zero outside the answers, whatever is there."""
    values = np.where(MASK > 0, np.float32(1), np.float32(np.nan))
    value, gradient = value_and_grad(reduction, values, MASK, MASK)
    weights = MASK * np.array(WEIGHTS[reduction])[:, None]
    np.testing.assert_allclose(gradient, weights, rtol=1e-6)
    np.testing.assert_allclose(value, weights.sum(), rtol=1e-6)


@pytest.mark.parametrize("reduction", WEIGHTS)
def test_parts_of_a_step_add_up(reduction):
    """Of 4 answers, one without any token: in 1, 2 and 4 parts."""
    lengths = np.array([[2], [6], [0], [3]])
    mask = (np.arange(8) < lengths).astype(np.float32)
    values = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    whole = reduced(reduction, values, mask, mask)
    for parts in (2, 4):
        rows = np.split(np.arange(4), parts)
        shares = [reduced(reduction, values[i], mask[i], mask) for i in rows]
        np.testing.assert_allclose(sum(shares), whole, rtol=1e-6)


def test_an_answer_without_tokens_adds_nothing_and_counts_as_a_sequence():
    """It halves the mean over sequences and is no part of the token mean."""
    mask = np.float32([[1.0, 1.0], [0.0, 0.0]])
    values = np.float32([[3.0, 5.0], [np.nan, np.nan]])
    expected = {mean_per_sequence: 2.0, token_mean: 4.0, sum_per_sequence: 4.0, over_all_positions: 2.0}
    for reduction, want in expected.items():
        value, gradient = value_and_grad(reduction, values, mask, mask)
        assert float(value) == want and (np.asarray(gradient)[1] == 0).all(), reduction


def test_the_divisor_is_that_of_the_whole_step():
    # parts with 2 tokens, loss sum 2, and 6 tokens, loss sum 12: 14 / 8 = 1.75; the mean of means would be 1.5
    losses = np.broadcast_to(np.float32([[1.0], [2.0]]), MASK.shape)
    # sums 2 and 12: 14 / 2 = 7; means 1 and 2: 3 / 2 = 1.5; constants 14 / (2 * 8) = 0.875
    expected = {token_mean: 1.75, sum_per_sequence: 7.0, mean_per_sequence: 1.5, over_all_positions: 0.875}
    for reduction, whole in expected.items():
        parts = [reduced(reduction, losses[i : i + 1], MASK[i : i + 1], MASK) for i in (0, 1)]
        assert sum(parts) == whole == reduced(reduction, losses, MASK, MASK)


def test_no_answer_tokens_give_zero():
    nothing = np.zeros_like(MASK)
    for reduction in WEIGHTS:
        value, gradient = value_and_grad(reduction, np.ones_like(MASK), nothing, nothing)
        assert float(value) == 0 and (np.asarray(gradient) == 0).all(), reduction


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sequence_mean(np.ones((2, 1)), MASK), r"values has shape \(2, 1\), expected \(any\)"),
        (lambda: sum_per_sequence(np.ones((2, 8)), MASK[:1], MASK), r"mask has shape \(1, 8\), expected \(2, 8\)"),
        (lambda: token_mean(np.ones((2, 8)), MASK[:, :1], MASK), r"mask has shape \(2, 1\), expected \(2, 8\)"),
    ],
)
def test_shapes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
