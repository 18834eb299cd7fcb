"""Importance ratios, and the objectives built on them. Elementwise, to be maximised; nothing is averaged here.

A ratio is [B, S] (one per token) or [B] (one per sequence); an objective takes either, with advantages that fit, and
returns its value and where its bound took the gradient away.
"""

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here before exp: e^20 = 4.9e8 is far outside every bound and still finite in float32."""


def token_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """Probability of each token now, over that when it was sampled, [B, S]; exactly 1 outside the mask.

    Source: arXiv:2402.03300, eq. 3.
    """
    return _exp(_difference(new_logps, old_logps, mask))


def capped_token_ratio(new_logps: Array, old_logps: Array, mask: Array, clip_high: float) -> Array:
    """min(token ratio, 1 + clip_high), with the gradient of the ratio below the cap. [B, S].

    Source: the book's script olmo3_style.py of section 7.6.3, which calls it truncated importance sampling; the method of
    that name is `safeguards.truncated_importance`.
    """
    ratio = token_ratio(new_logps, old_logps, mask)
    return jnp.where(ratio > 1.0 + clip_high, 1.0 + clip_high, ratio)  # not min, which splits the gradient of a tie


def sequence_sum_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """Probability of the whole answer now, over that when it was sampled: exp(sum of log-prob differences), [B].

    Source: book 7.4.

    >>> print(sequence_sum_ratio(jnp.array([[-1.0, -2.0]]), jnp.array([[-1.5, -2.5]]), jnp.ones((1, 2))))  # e^1
    [2.7182817]
    """
    return _exp(jnp.sum(_difference(new_logps, old_logps, mask), axis=1))


def sequence_mean_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """Geometric mean of an answer's token ratios: exp(mean of log-prob differences), [B]. 1 for an answer without tokens.

    Source: arXiv:2507.18071 (GSPO), eq. 7.

    >>> print(sequence_mean_ratio(jnp.array([[-1.0, -2.0]]), jnp.array([[-1.5, -2.0]]), jnp.ones((1, 2))))  # e^(1/4)
    [1.2840254]
    """
    difference = _difference(new_logps, old_logps, mask)
    return _exp(jnp.sum(difference, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1.0))


def gspo_token_ratio(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """The value of `sequence_mean_ratio` at each token, with the gradient of that token's own log-prob. [B, S].

    With one advantage for all tokens of an answer and a mean over them it is GSPO; it allows one advantage per token.

    Source: arXiv:2507.18071 (GSPO-token), eq. 14.
    """
    sequence = jax.lax.stop_gradient(sequence_mean_ratio(new_logps, old_logps, mask))
    one = _exp(_difference(new_logps, jax.lax.stop_gradient(new_logps), mask))  # 1 in value, p / sg(p) in gradient
    return jnp.where(mask > 0, sequence[:, None] * one, 1.0)


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


def clip_two_sided(
    ratio: Array, advantages: Array, clip_low: float, clip_high: float, clip_dual: float
) -> tuple[Array, Array]:
    """PPO's bound, and for A < 0 a floor: max(min(r A, clip(r) A), clip_dual A), which PPO leaves open.

    Without it one bad answer whose probability rose a hundredfold weighs a hundredfold. Arguments and results as in
    `clip_pessimistic`; clip_dual > 1 + clip_high is the largest ratio of a bad answer.

    Source: arXiv:1912.09729 (dual-clip PPO), eq. 5; arXiv:2505.07291 (INTELLECT-2), section 4.1, "two-sided" with delta.

    >>> print(clip_two_sided(jnp.array([9.0]), jnp.array([-1.0]), 0.2, 0.2, 3.0))
    (Array([-3.], dtype=float32), Array([ True], dtype=bool))
    """
    values, clipped = clip_pessimistic(ratio, advantages, clip_low, clip_high)
    beyond = (advantages < 0) & (ratio > clip_dual)
    return jnp.where(beyond, clip_dual * advantages, values), clipped | beyond


def cispo(ratio: Array, advantages: Array, logps: Array, ratio_cap: float) -> tuple[Array, Array]:
    """Log-probability times advantage, weighted by the ratio up to a cap and without its gradient: sg(min(r, cap)) A log p.

    Every token keeps a gradient; the bound limits its weight instead of taking it away.

    Args:
      ratio: [B, S] token ratios.
      advantages: [B, S].
      logps: [B, S] float32 nats, the new policy's; the gradient flows through these.
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
    """A soft gate in place of the clip: 4 / tau * sigmoid(tau (r - 1)) * A, with tau by the sign of A.

    At r = 1 its slope in r is A, as without a bound; away from 1 it fades, faster for a larger tau. The value there is
    2 A / tau, not A.

    Args:
      ratio: [...] float32; advantages: [...].
      sapo_tau_pos, sapo_tau_neg: how sharply the gate closes for A > 0 and for A <= 0, > 0.

    Returns:
      [...] values to be maximised; nothing is ever cut off, so the second part is False everywhere.

    Source: arXiv:2511.20347 (SAPO), eq. 5 and 6.

    >>> print(sapo(jnp.array([1.0]), jnp.array([1.0]), 1.0, 1.05)[0])
    [2.]
    """
    check_shape("advantages", advantages, ratio.shape)
    tau = jnp.where(advantages > 0, sapo_tau_pos, sapo_tau_neg)
    return jax.nn.sigmoid(tau * (ratio - 1.0)) * 4.0 / tau * advantages, jnp.zeros(ratio.shape, bool)


def _difference(new_logps: Array, old_logps: Array, mask: Array) -> Array:
    """Log-ratios [B, S], exactly zero where the mask is zero, whatever stands there."""
    check_shape("old_logps", old_logps, new_logps.shape)
    check_shape("mask", mask, new_logps.shape)
    return jnp.where(mask > 0, new_logps - old_logps, 0.0)


def _exp(log_ratio: Array) -> Array:
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
