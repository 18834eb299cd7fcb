"""Weights against off-policy data. They multiply the objective, never the KL term, and carry no gradient.

They correct two gaps: between trainer and sampler (same weights, other kernels or precision), and between the current policy
and the one that sampled. In each function new_logps, old_logps, sampler_logps and mask are [B, S], advantages [B]; old_logps
are the trainer's, for the weights that sampled, and sampler_logps what the sampler recorded.
"""

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.objectives import sequence_sum_ratio, token_ratio
from grpojax.loss.reduce import answer_mean


def truncated_importance(old_logps: Array, sampler_logps: Array, mask: Array, tis_cap: float) -> Array:
    """m_it = stopgrad(min(p_old(y_it) / p_sampler(y_it), tis_cap)): truncated importance sampling, [B, S].

    Source: F. Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025);
    arXiv:2512.13961 (Olmo 3).
    """
    return jax.lax.stop_gradient(jnp.minimum(token_ratio(old_logps, sampler_logps, mask), tis_cap))


def sequence_importance_mask(old_logps: Array, sampler_logps: Array, mask: Array, sequence_mask_cap: float) -> Array:
    """m_i = w_i if w_i = stopgrad(p_old(y_i) / p_sampler(y_i)) <= sequence_mask_cap, else 0: masked importance sampling, [B].

    Source: J. Liu et al., "When Speed Kills Stability" (2025).
    """
    ratio = sequence_sum_ratio(old_logps, sampler_logps, mask)
    return jax.lax.stop_gradient(jnp.where(ratio <= sequence_mask_cap, ratio, 0.0))


def off_policy_mask(
    new_logps: Array, sampler_logps: Array, advantages: Array, mask: Array, off_policy_delta: float
) -> Array:
    """m_i = 0 if A_i < 0 and mean_t log(p_sampler(y_it) / p_new(y_it)) > off_policy_delta, else 1: [B].

    Source: arXiv:2512.02556 (DeepSeek-V3.2), section 3.1, off-policy sequence masking.
    """
    gap = answer_mean(sampler_logps - new_logps, mask)
    return jax.lax.stop_gradient(jnp.where((advantages < 0) & (gap > off_policy_delta), 0.0, 1.0))

