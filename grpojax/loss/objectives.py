"""Importance ratios, and the objectives built on them. Elementwise, to be maximised; nothing is averaged here.

A ratio is [B, S] (one per token) or [B] (one per sequence); an objective takes either, with advantages that fit, and
returns its value and where its bound took the gradient away.
"""

import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here before exp: e^20 = 4.9e8 is far outside every bound and still finite in float32."""


def sequence_sum_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """Probability of the whole answer now, over that when it was sampled: exp(sum of log-prob differences), [B].

    Source: book 7.4.

    >>> print(sequence_sum_ratio(jnp.array([[-1.0, -2.0]]), jnp.array([[-1.5, -2.5]]), jnp.ones((1, 2))))  # e^1
    [2.7182817]
    """
    return _exp(jnp.sum(_difference(new_logps, old_logps, mask), axis=1))


def reinforce(logps: Array, advantages: Array) -> tuple[Array, Array]:
    """Log-probability times advantage: the plain policy gradient, without ratio or bound.

    Source: arXiv:2402.03300 without ratio and KL, as in book chapter 6 and 7.3.
    """
    check_shape("advantages", advantages, logps.shape)
    return logps * advantages, jnp.zeros(logps.shape, bool)


def clip_pessimistic(ratio: Array, advantages: Array, clip_low: float, clip_high: float) -> tuple[Array, Array]:
    """PPO's bound: min(r A, clip(r, 1 - low, 1 + high) A).

    Args:
      ratio: [...] float32, new over old probability, > 0.
      advantages: [...] float32, same shape; no gradient should flow into it.
      clip_low, clip_high: how far below and above 1 the ratio may move before the gradient stops.

    Returns:
      [...] float32, and [...] bool where the bound holds (the gradient is zero there).

    Source: arXiv:1707.06347, eq. 7.

    >>> value, clipped = clip_pessimistic(jnp.array([1.5, 1.5]), jnp.array([1.0, -1.0]), 0.2, 0.2)
    >>> print(value, clipped)
    [ 1.2 -1.5] [ True False]
    """
    check_shape("advantages", advantages, ratio.shape)
    clipped = ((advantages > 0) & (ratio > 1.0 + clip_high)) | ((advantages < 0) & (ratio < 1.0 - clip_low))
    bound = jnp.where(advantages > 0, 1.0 + clip_high, 1.0 - clip_low)
    # Not min and clip themselves: where their arguments tie, JAX would split the gradient, and a ratio of 1 at eps 0 ties.
    return jnp.where(clipped, bound, ratio) * advantages, clipped


def clip_first_printing(ratio: Array, advantages: Array, clip_low: float, clip_high: float) -> tuple[Array, Array]:
    """The clip of the book's first printing: min of the two terms for A >= 0, max for A < 0.

    This is A min(r, 1 + high) whatever the sign, so the lower bound never acts, and a rising bad answer is let go.
    Arguments and results as in `clip_pessimistic`. Source: book 7.4; its repository changed it in pull request 240.

    >>> value, clipped = clip_first_printing(jnp.array([1.5, 0.5]), jnp.array([-1.0, -1.0]), 0.2, 0.2)
    >>> print(value, clipped)
    [-1.2 -0.5] [ True False]
    """
    check_shape("advantages", advantages, ratio.shape)
    del clip_low  # named because it belongs to the script's settings; the formula never reaches it
    clipped = (advantages != 0) & (ratio > 1.0 + clip_high)
    return jnp.where(clipped, 1.0 + clip_high, ratio) * advantages, clipped


def _difference(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """Log-ratios [B, S], exactly zero where the mask is zero, whatever stands there."""
    check_shape("old_logps", old_logps, new_logps.shape)
    check_shape("mask", mask, new_logps.shape)
    return jnp.where(mask > 0, new_logps - old_logps, 0.0)


def _exp(log_ratio: Array) -> Array:
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
