"""From elementwise values to one number. The divisor is always that of the whole step.

Each function takes the values of some sequences and `whole_mask`, the mask [B, S] of all sequences of the step, so that
the sums over micro-batches add up to the value over all of them at once.
"""

import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape


def sequence_mean(values: Array, whole_mask: Array) -> Array:
    """Mean over the sequences of the step, of one value each: [b] -> []."""
    check_shape("values", values, (None,))
    return jnp.sum(values) / whole_mask.shape[0]


def sum_per_sequence(values: Array, mask: Array, whole_mask: Array) -> Array:
    """Sum over each answer's tokens, mean over the sequences: [b, S] -> []. Long answers weigh more. Source: book 6, 7."""
    check_shape("mask", mask, values.shape)
    return sequence_mean(jnp.sum(jnp.where(mask > 0, values, 0.0), axis=1), whole_mask)


def token_mean(values: Array, mask: Array, whole_mask: Array) -> Array:
    """Mean over all answer tokens of the step, every token alike: [b, S] -> []. Zero where there is none."""
    check_shape("mask", mask, values.shape)
    return jnp.sum(jnp.where(mask > 0, values, 0.0)) / jnp.maximum(jnp.sum(whole_mask), 1.0)
