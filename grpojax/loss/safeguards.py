"""Weights against data that the trained policy would not have sampled. They multiply the objective, never the KL term.

Two gaps are meant: between trainer and sampler (the same weights, other kernels or another precision), and between the
policy of today and the one that sampled. Weights carry no gradient. In each function: new_logps, old_logps,
sampler_logps, mask [B, S]; advantages [B]; old_logps are the trainer's own for the weights that sampled, sampler_logps
what the sampler recorded.
"""

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.objectives import sequence_sum_ratio, token_ratio
from grpojax.loss.reduce import answer_mean


def truncated_importance(old_logps: Array, sampler_logps: Array, mask: Array, tis_cap: float) -> Array:
    """Truncated importance sampling of trainer against sampler: min(p_old / p_sampler, tis_cap) per token, [B, S].

    Source: F. Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025);
    arXiv:2512.13961 (Olmo 3).
    """
    return jax.lax.stop_gradient(jnp.minimum(token_ratio(old_logps, sampler_logps, mask), tis_cap))


def sequence_importance_mask(old_logps: Array, sampler_logps: Array, mask: Array, sequence_mask_cap: float) -> Array:
    """Masked importance sampling: w = p_old / p_sampler of the whole answer where w <= sequence_mask_cap, else 0; [B].

    Source: J. Liu et al., "When Speed Kills Stability" (2025).
    """
    ratio = sequence_sum_ratio(old_logps, sampler_logps, mask)
    return jax.lax.stop_gradient(jnp.where(ratio <= sequence_mask_cap, ratio, 0.0))


def off_policy_mask(
    new_logps: Array, sampler_logps: Array, advantages: Array, mask: Array, off_policy_delta: float
) -> Array:
    """0 for a bad answer (A < 0) that the policy has moved away from: mean_t log(p_sampler / p_new) > delta; else 1. [B].

    Source: arXiv:2512.02556 (DeepSeek-V3.2), section 3.1, off-policy sequence masking.
    """
    gap = answer_mean(sampler_logps - new_logps, mask)
    return jax.lax.stop_gradient(jnp.where((advantages < 0) & (gap > off_policy_delta), 0.0, 1.0))


SAFEGUARDS = {
    "tis_cap": truncated_importance,
    "sequence_mask_cap": sequence_importance_mask,
    "off_policy_delta": off_policy_mask,
}
"""Each by the number that turns it on: a variant has the safeguard where it has the number."""
