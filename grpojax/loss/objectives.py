"""Importance ratios, and the objectives built on them. Elementwise, to be maximised; nothing is averaged here.

A ratio is [B, S] (one per token) or [B] (one per answer). An objective takes either, with advantages of the same shape, and
returns its value, and a bool where its bound makes the gradient zero.
"""

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this before exp: e^20 = 4.9e8 is far outside every bound and finite in float32."""


def token_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """r_it = p_new(y_it) / p_old(y_it): [B, S]; exactly 1 outside the mask.

    Source: arXiv:2402.03300, eq. 3.
    """
    return _exp(_difference(new_logps, old_logps, mask))


def capped_token_ratio(new_logps: Array, old_logps: Array, mask: Array, clip_high: float) -> Array:
    """r_it = min(p_new(y_it) / p_old(y_it), 1 + clip_high): [B, S]. Below the cap it has the gradient of the ratio.

    Source: the book's script olmo3_style.py of section 7.6.3, which calls it truncated importance sampling; the method of
    that name is `safeguards.truncated_importance`.
    """
    ratio = token_ratio(new_logps, old_logps, mask)
    return jnp.where(ratio > 1.0 + clip_high, 1.0 + clip_high, ratio)  # not jnp.minimum, which splits the gradient at a tie


def sequence_sum_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """r_i = exp(sum_t [log p_new(y_it) - log p_old(y_it)]): [B], the ratio of whole-answer probabilities.

    Source: book 7.4.

    >>> print(sequence_sum_ratio(jnp.array([[-1.0, -2.0]]), jnp.array([[-1.5, -2.5]]), jnp.ones((1, 2))))  # e^1
    [2.7182817]
    """
    return _exp(jnp.sum(_difference(new_logps, old_logps, mask), axis=1))


def sequence_mean_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """r_i = exp(mean_t [log p_new(y_it) - log p_old(y_it)]): [B], the geometric mean of token ratios; 1 without tokens.

    Source: arXiv:2507.18071 (GSPO), eq. 7.

    >>> print(sequence_mean_ratio(jnp.array([[-1.0, -2.0]]), jnp.array([[-1.5, -2.0]]), jnp.ones((1, 2))))  # e^(1/4)
    [1.2840254]
    """
    difference = _difference(new_logps, old_logps, mask)
    return _exp(jnp.sum(difference, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1.0))


def gspo_token_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """r_it = stopgrad(r_i) p_new(y_it) / stopgrad(p_new(y_it)): [B, S], r_i in value, with the gradient of token t alone.

    With the same advantage for all tokens of an answer this is GSPO; it also allows one advantage per token.

    Source: arXiv:2507.18071 (GSPO-token), eq. 14.
    """
    sequence = jax.lax.stop_gradient(sequence_mean_ratio(new_logps, old_logps, mask))
    one = _exp(_difference(new_logps, jax.lax.stop_gradient(new_logps), mask))  # 1 in value, with the gradient of p / stopgrad(p)
    return jnp.where(mask > 0, sequence[:, None] * one, 1.0)


def reinforce(logps: Array, advantages: Array) -> tuple[Array, Array]:
    """A log p: log-probability times advantage, the plain policy gradient without ratio or bound.

    Source: arXiv:2402.03300 without ratio and KL, as in book chapter 6 and 7.3.
    """
    check_shape("advantages", advantages, logps.shape)
    return logps * advantages, jnp.zeros(logps.shape, bool)


def clip_pessimistic(ratio: Array, advantages: Array, clip_low: float, clip_high: float) -> tuple[Array, Array]:
    """PPO's bound: min(r A, clip(r, 1 - low, 1 + high) A).

    Args:
      ratio: [...] float32, new over old probability, > 0.
      advantages: [...] float32, same shape; no gradient should flow into it.
      clip_low, clip_high: how far below and above 1 the ratio can move before the gradient stops.

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
    # Not jnp.minimum and jnp.clip: JAX splits the gradient where their arguments tie, as a ratio of 1 does at eps 0.
    return jnp.where(clipped, bound, ratio) * advantages, clipped


def clip_first_printing(ratio: Array, advantages: Array, clip_low: float, clip_high: float) -> tuple[Array, Array]:
    """The clip as first printed in the book: min of PPO's two terms for A >= 0, max for A < 0, which is A min(r, 1 + high).

    The lower bound never acts, and a bad answer that becomes more likely loses its gradient. Arguments and results as in
    `clip_pessimistic`. Source: book 7.4; its repository changed it in pull request 240.

    >>> value, clipped = clip_first_printing(jnp.array([1.5, 0.5]), jnp.array([-1.0, -1.0]), 0.2, 0.2)
    >>> print(value, clipped)
    [-1.2 -0.5] [ True False]
    """
    check_shape("advantages", advantages, ratio.shape)
    del clip_low  # a setting of the script that its formula never uses
    clipped = (advantages != 0) & (ratio > 1.0 + clip_high)
    return jnp.where(clipped, 1.0 + clip_high, ratio) * advantages, clipped


def clip_two_sided(
    ratio: Array, advantages: Array, clip_low: float, clip_high: float, clip_dual: float
) -> tuple[Array, Array]:
    """PPO's bound, and for A < 0 also a floor: max(min(r A, clip(r, 1 - low, 1 + high) A), clip_dual A).

    Without the floor, a bad answer that became a hundred times more likely weighs a hundred times as much. Arguments and
    results as in `clip_pessimistic`; clip_dual > 1 + clip_high is the largest ratio of a bad answer.

    Source: arXiv:1912.09729 (dual-clip PPO), eq. 5; arXiv:2505.07291 (INTELLECT-2), section 4.1, "two-sided" with delta.

    >>> print(clip_two_sided(jnp.array([9.0]), jnp.array([-1.0]), 0.2, 0.2, 3.0))
    (Array([-3.], dtype=float32), Array([ True], dtype=bool))
    """
    values, clipped = clip_pessimistic(ratio, advantages, clip_low, clip_high)
    beyond = (advantages < 0) & (ratio > clip_dual)
    return jnp.where(beyond, clip_dual * advantages, values), clipped | beyond


def cispo(ratio: Array, advantages: Array, logps: Array, ratio_cap: float) -> tuple[Array, Array]:
    """stopgrad(min(r, ratio_cap)) A log p: log-probability times advantage, weighted by the ratio up to a cap.

    Every token keeps a gradient; the cap only limits its weight.

    Args:
      ratio: [B, S] token ratios.
      advantages: [B, S].
      logps: [B, S] float32 nats, of the new policy; the gradient flows through these.
      ratio_cap: the largest weight itself (not 1 plus it).

    Returns:
      [B, S] values to be maximised, and where the cap holds.

    Source: arXiv:2506.13585 (MiniMax-M1), eq. 4 and 5, without a lower bound.

    >>> print(cispo(jnp.array([3.0]), jnp.array([1.0]), jnp.array([-2.0]), 1.2))
    (Array([-2.4], dtype=float32), Array([ True], dtype=bool))
    """
    check_shape("advantages", advantages, ratio.shape)
    check_shape("logps", logps, ratio.shape)
    return jax.lax.stop_gradient(jnp.minimum(ratio, ratio_cap)) * advantages * logps, ratio > ratio_cap


def sapo(ratio: Array, advantages: Array, sapo_tau_pos: float, sapo_tau_neg: float) -> tuple[Array, Array]:
    """4 / tau sigmoid(tau (r - 1)) A, with tau by the sign of A: a soft gate in place of the clip.

    At r = 1 its slope in r is A, as without a bound, and its value is 2 A / tau. Away from 1 the slope fades, faster for a
    larger tau.

    Args:
      ratio: [...] float32; advantages: [...].
      sapo_tau_pos, sapo_tau_neg: how sharply the gate closes for A > 0 and for A <= 0, > 0.

    Returns:
      [...] values to be maximised, and False everywhere, because no gradient is ever cut off.

    Source: arXiv:2511.20347 (SAPO), eq. 5 and 6.

    >>> print(sapo(jnp.array([1.0]), jnp.array([1.0]), 1.0, 1.05)[0])
    [2.]
    """
    check_shape("advantages", advantages, ratio.shape)
    tau = jnp.where(advantages > 0, sapo_tau_pos, sapo_tau_neg)
    return jax.nn.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau * advantages, jnp.zeros(ratio.shape, bool)


def _difference(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """Log-ratios [B, S], exactly zero where the mask is zero, whatever the inputs hold there."""
    check_shape("old_logps", old_logps, new_logps.shape)
    check_shape("mask", mask, new_logps.shape)
    return jnp.where(mask > 0, new_logps - old_logps, 0.0)


def _exp(log_ratio: Array) -> Array:
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
