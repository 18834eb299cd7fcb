"""Reductions, on cases where each way to divide gives another number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.loss.reduce import sequence_mean, sum_per_sequence, token_mean

MASK = jnp.array([[1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]])


def test_lengths_weigh_differently():
    # answers of 2 and 6 tokens with losses -1 and +1 a token: sums (-2 + 6) / 2 = 2, tokens (-2 + 6) / 8 = 0.5
    losses = jnp.broadcast_to(jnp.array([[-1.0], [1.0]]), MASK.shape)
    assert float(sum_per_sequence(losses, MASK, MASK)) == 2.0
    assert float(token_mean(losses, MASK, MASK)) == 0.5
    assert float(sequence_mean(jnp.array([-1.0, 3.0]), MASK)) == 1.0


def test_the_divisor_is_that_of_the_whole_step():
    # parts with 2 tokens, loss sum 2, and 6 tokens, loss sum 12: 14 / 8 = 1.75; the mean of means would be 1.5
    losses = jnp.broadcast_to(jnp.array([[1.0], [2.0]]), MASK.shape)
    for reduction, whole in ((token_mean, 1.75), (sum_per_sequence, 7.0)):
        parts = [reduction(losses[i : i + 1], MASK[i : i + 1], MASK) for i in (0, 1)]
        assert float(sum(parts)) == whole == float(reduction(losses, MASK, MASK))


@pytest.mark.parametrize("reduction", [token_mean, sum_per_sequence])
def test_masked_values_do_not_count(reduction):
    values = jnp.where(MASK > 0, 1.0, jnp.nan)
    value, gradient = jax.value_and_grad(lambda x: reduction(x, MASK, MASK))(values)
    assert float(value) == {token_mean: 1.0, sum_per_sequence: 4.0}[reduction]
    weight = {token_mean: 1 / 8, sum_per_sequence: 1 / 2}[reduction]
    np.testing.assert_array_equal(gradient, np.asarray(MASK) * weight)


def test_no_answer_tokens_give_zero():
    nothing = jnp.zeros((2, 3))
    value, gradient = jax.value_and_grad(lambda x: token_mean(x, nothing, nothing))(jnp.ones((2, 3)))
    assert float(value) == 0 and (np.asarray(gradient) == 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sequence_mean(jnp.ones((2, 1)), MASK), r"values has shape \(2, 1\), expected \(any\)"),
        (lambda: sum_per_sequence(jnp.ones((2, 8)), MASK[:1], MASK), r"mask has shape \(1, 8\), expected \(2, 8\)"),
        (lambda: token_mean(jnp.ones((2, 8)), MASK[:, :1], MASK), r"mask has shape \(2, 1\), expected \(2, 8\)"),
    ],
)
def test_shapes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
