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
    return sequence_mean(jnp.sum(_masked(values, mask), axis=1), whole_mask)


def mean_per_sequence(values: Array, mask: Array, whole_mask: Array) -> Array:
    """Mean over each answer's tokens, mean over the sequences: [b, S] -> []. A token of a long answer weighs less.

    Source: arXiv:2402.03300, eq. 3.
    """
    return sequence_mean(answer_mean(values, mask), whole_mask)


def token_mean(values: Array, mask: Array, whole_mask: Array) -> Array:
    """Mean over all answer tokens of the step, every token alike: [b, S] -> []. Zero where there is none.

    Source: arXiv:2503.14476 (DAPO), section 3.3.
    """
    return jnp.sum(_masked(values, mask)) / jnp.maximum(jnp.sum(whole_mask), 1.0)


def constant_divisor(values: Array, mask: Array, whole_mask: Array, token_budget: float | None = None) -> Array:
    """Sum over all answer tokens, over sequences times a constant: [b, S] -> []. No length changes a token's weight.

    Args:
      token_budget: the tokens an answer may have; None: the S positions there are.

    Source: arXiv:2503.20783 (Dr. GRPO), appendix A.
    """
    budget = mask.shape[1] if token_budget is None else token_budget
    return jnp.sum(_masked(values, mask)) / (whole_mask.shape[0] * budget)


def answer_mean(values: Array, mask: Array) -> Array:
    """Mean over each answer's tokens: [b, S] -> [b]. Zero for an answer without any."""
    return jnp.sum(_masked(values, mask), axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1.0)


def _masked(values: Array, mask: Array) -> Array:
    check_shape("mask", mask, values.shape)
    return jnp.where(mask > 0, values, 0.0)
