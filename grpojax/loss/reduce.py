"""From elementwise values to one number. The divisor is always that of the whole step.

Each function takes the values of some sequences, and `whole_mask`, the mask [B, S] of all sequences of the step; so the
results of micro-batches add up to the result for the whole step.
"""

import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape


def sequence_mean(values: Array, whole_mask: Array) -> Array:
    """mean_i v_i over the sequences of the step: [b] -> []."""
    check_shape("values", values, (None,))
    return jnp.sum(values) / whole_mask.shape[0]


def sum_per_sequence(values: Array, mask: Array, whole_mask: Array) -> Array:
    """mean_i sum_t v_it: [b, S] -> []. Long answers weigh more. Source: book chapters 6 and 7."""
    return sequence_mean(jnp.sum(_masked(values, mask), axis=1), whole_mask)


def mean_per_sequence(values: Array, mask: Array, whole_mask: Array) -> Array:
    """mean_i mean_t v_it: [b, S] -> []. A token of a long answer weighs less.

    Source: arXiv:2402.03300, eq. 3.
    """
    return sequence_mean(answer_mean(values, mask), whole_mask)


def token_mean(values: Array, mask: Array, whole_mask: Array) -> Array:
    """Mean of v_it over all answer tokens it of the step: [b, S] -> []. All tokens weigh the same; zero without tokens.

    Source: arXiv:2503.14476 (DAPO), section 3.3.
    """
    return jnp.sum(_masked(values, mask)) / jnp.maximum(jnp.sum(whole_mask), 1.0)


def constant_divisor(values: Array, mask: Array, whole_mask: Array, token_budget: float) -> Array:
    """sum_i sum_t v_it / (B token_budget): [b, S] -> []. A token weighs the same in answers of any length.

    Args:
      token_budget: the most tokens an answer can have.

    Source: arXiv:2503.20783 (Dr. GRPO), appendix A.
    """
    return jnp.sum(_masked(values, mask)) / (whole_mask.shape[0] * token_budget)


def answer_mean(values: Array, mask: Array) -> Array:
    """mean_t v_it: [b, S] -> [b]. Zero for an answer without tokens."""
    return jnp.sum(_masked(values, mask), axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1.0)


def _masked(values: Array, mask: Array) -> Array:
    check_shape("mask", mask, values.shape)
    return jnp.where(mask > 0, values, 0.0)
