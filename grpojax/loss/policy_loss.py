"""The one composition of ratio, objective, penalty and reduction that every variant uses."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape
from grpojax.loss.penalties import k1, k3
from grpojax.loss.reduce import sequence_mean, token_mean


def policy_loss(
    variant: Any,
    new_logps: Array,
    old_logps: Array,
    ref_logps: Array | None,
    advantages: Array,
    mask: Array,
    whole_mask: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The loss of a variant: -reduce(objective(ratio, advantage)) + kl_coeff * reduce(penalty).

    Pure and jittable. Positions where the mask is 0 contribute nothing, neither value nor gradient.

    Args:
      variant: a row of `grpojax.VARIANTS` or what `get_variant` returns. Its pieces are structure, its numbers are data.
      new_logps: [B, S] float32 nats, of the policy being trained; the only argument a gradient should flow into.
      old_logps: [B, S], of the policy that sampled the answers.
      ref_logps: [B, S], of the reference policy; None for a variant without a KL term.
      advantages: [B].
      mask: [B, S], 1 at answer tokens.
      whole_mask: the mask of all sequences of the step, where these are only a micro-batch of them. Loss and every
        entry of aux are then this micro-batch's share, and the shares add up.

    Returns:
      loss [] and aux, scalars: pg_loss; kl_loss (with its coefficient); policy_ratio, the mean ratio (over sequences or
      tokens, as the variant has it); clip_frac, the share of ratios whose gradient the bound took away; kl_k1 and kl_k3,
      token means against the reference. NaN stands for what a variant does not have.

    Raises:
      ValueError: if shapes do not fit, or a variant with a KL term gets no ref_logps.
    """
    for name, array in (("old_logps", old_logps), ("mask", mask)):
        check_shape(name, array, new_logps.shape)
    check_shape("advantages", advantages, new_logps.shape[:1])
    has_kl = "kl_coeff" in variant.numbers
    if has_kl and ref_logps is None:
        raise ValueError(f"variant {variant.name!r} has a KL term and needs ref_logps.")
    whole_mask = mask if whole_mask is None else whole_mask

    def reduced(values):
        return sequence_mean(values, whole_mask) if values.ndim == 1 else variant.reduction(values, mask, whole_mask)

    advantages = jax.lax.stop_gradient(advantages)
    if variant.ratio is None:
        term = jnp.where(mask > 0, new_logps, 0.0)
    else:
        term = _call(variant.ratio, new_logps, old_logps, mask, numbers=variant.numbers)
    weights = advantages if term.ndim == 1 else jnp.broadcast_to(advantages[:, None], term.shape)
    objective, clipped = _call(variant.objective, term, weights, numbers=variant.numbers)
    pg_loss = -reduced(objective)

    absent = jnp.float32(jnp.nan)
    aux = {"pg_loss": pg_loss, "policy_ratio": absent, "clip_frac": absent, "kl_k1": absent, "kl_k3": absent}
    if variant.ratio is not None:
        aux["policy_ratio"] = _mean(term, mask, whole_mask)
        aux["clip_frac"] = _mean(clipped.astype(jnp.float32), mask, whole_mask)
    if ref_logps is not None:
        check_shape("ref_logps", ref_logps, new_logps.shape)
        aux["kl_k1"] = token_mean(k1(new_logps, ref_logps), mask, whole_mask)
        aux["kl_k3"] = token_mean(k3(new_logps, ref_logps), mask, whole_mask)
    kl_loss = jnp.float32(0.0)
    if has_kl:
        penalty = _call(variant.penalty, new_logps, ref_logps, mask, numbers=variant.numbers)
        kl_loss = variant.numbers["kl_coeff"] * reduced(penalty)
    aux["kl_loss"] = kl_loss
    return pg_loss + kl_loss, jax.lax.stop_gradient(aux)


def _mean(values: Array, mask: Array, whole_mask: Array) -> Array:
    return sequence_mean(values, whole_mask) if values.ndim == 1 else token_mean(values, mask, whole_mask)


def _call(piece: Callable, *arrays: Array, numbers: dict[str, Any]) -> Any:
    """Calls a piece with its arrays and those of the variant's numbers that it names as parameters."""
    wanted = inspect.signature(piece).parameters
    return piece(*arrays, **{name: value for name, value in numbers.items() if name in wanted})
