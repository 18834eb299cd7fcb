"""The one composition of ratio, objective, safeguards, penalty and reduction that every variant uses."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape
from grpojax.loss.objectives import sequence_sum_ratio, token_ratio
from grpojax.loss.penalties import k1, k3
from grpojax.loss.reduce import answer_mean, mean_per_sequence, sequence_mean, token_mean
from grpojax.loss.safeguards import SAFEGUARDS


def policy_loss(
    variant: Any,
    new_logps: Array,
    old_logps: Array,
    ref_logps: Array | None,
    advantages: Array,
    mask: Array,
    whole_mask: Array | None = None,
    sampler_logps: Array | None = None,
    kl_scale: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """The loss of a variant: -reduce(safeguards * objective(ratio, advantage)) + kl_coeff * reduce(penalty).

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
      sampler_logps: [B, S], what the sampler recorded, where that is not old_logps; only safeguards read it.
      kl_scale: [B], a factor on kl_coeff for each sequence (by its problem's domain); None: 1.

    Returns:
      loss [] and aux, scalars: pg_loss; kl_loss (with its coefficient); policy_ratio, the mean ratio (over sequences or
      tokens, as the variant has it); clip_frac, the share of ratios at which the bound holds; safeguard_weight, the
      mean weight of the safeguards over answer tokens; kl_k1 and kl_k3, token means against the reference. NaN stands for
      what a variant does not have.

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
    sampler_logps = old_logps if sampler_logps is None else sampler_logps
    check_shape("sampler_logps", sampler_logps, new_logps.shape)
    new_logps, old_logps, sampler_logps = (jnp.where(mask > 0, x, 0.0) for x in (new_logps, old_logps, sampler_logps))
    advantages = jax.lax.stop_gradient(advantages)
    given = variant.numbers | {
        "new_logps": new_logps, "old_logps": old_logps, "sampler_logps": sampler_logps, "logps": new_logps,
        "advantages": advantages, "mask": mask, "whole_mask": whole_mask,
    }  # fmt: skip

    term = new_logps if variant.ratio is None else _call(variant.ratio, **given)
    objective, clipped = _call(variant.objective, term, _fitting(advantages, term), **given)
    weights = [_call(safeguard, **given) for number, safeguard in SAFEGUARDS.items() if number in variant.numbers]
    for weight in weights:
        objective = objective * _fitting(weight, objective, mask)
    pg_loss = -_reduced(variant.reduction, objective, given)

    absent = jnp.float32(jnp.nan)
    aux = dict.fromkeys(("policy_ratio", "clip_frac", "safeguard_weight", "kl_k1", "kl_k3"), absent) | {"pg_loss": pg_loss}
    if variant.ratio is not None:
        aux["policy_ratio"] = _mean(term, mask, whole_mask)
        aux["clip_frac"] = _mean(clipped.astype(jnp.float32), mask, whole_mask)
    if weights:
        product = jnp.ones_like(mask)
        for weight in weights:
            product = product * _fitting(weight, mask)
        aux["safeguard_weight"] = token_mean(product, mask, whole_mask)
    if ref_logps is not None:
        check_shape("ref_logps", ref_logps, new_logps.shape)
        ref_logps = jnp.where(mask > 0, ref_logps, 0.0)
        aux["kl_k1"] = token_mean(k1(new_logps, ref_logps), mask, whole_mask)
        aux["kl_k3"] = token_mean(k3(new_logps, ref_logps), mask, whole_mask)
    kl_loss = variant.numbers["kl_coeff"] * _kl_term(variant, ref_logps, kl_scale, given) if has_kl else jnp.float32(0.0)
    aux["kl_loss"] = kl_loss
    return pg_loss + kl_loss, jax.lax.stop_gradient(aux)


def _kl_term(variant: Any, ref_logps: Array, kl_scale: Array | None, given: dict[str, Any]) -> Array:
    """What kl_coeff multiplies: the estimate of each token or of each whole answer, weighted if so, reduced."""
    mask, new_logps, of_tokens = given["mask"], given["new_logps"], variant.kl_level == "token"
    if of_tokens:
        values = variant.penalty(new_logps, ref_logps)
    else:
        values = variant.penalty(jnp.sum(new_logps, axis=1), jnp.sum(ref_logps, axis=1))
    if variant.kl_reweight:
        values = values * _call(token_ratio if of_tokens else sequence_sum_ratio, **given)
    if kl_scale is not None:
        check_shape("kl_scale", kl_scale, mask.shape[:1])
        values = values * _fitting(kl_scale, values)
    if of_tokens:
        return _reduced(mean_per_sequence if variant.length_normalize else variant.reduction, values, given)
    if variant.length_normalize:
        values = values / jnp.maximum(jnp.sum(mask, axis=1), 1.0)
    return sequence_mean(values, given["whole_mask"])


def _reduced(reduction: Callable, values: Array, given: dict[str, Any]) -> Array:
    """Values of tokens as the reduction has it; values of whole answers have one reduction, the mean over them."""
    return sequence_mean(values, given["whole_mask"]) if values.ndim == 1 else _call(reduction, values, **given)


def _mean(values: Array, mask: Array, whole_mask: Array) -> Array:
    return sequence_mean(values, whole_mask) if values.ndim == 1 else token_mean(values, mask, whole_mask)


def _fitting(values: Array, like: Array, mask: Array | None = None) -> Array:
    """Values of answers spread over tokens, or values of tokens averaged over each answer, to fit `like`."""
    if values.ndim == like.ndim:
        return values
    return jnp.broadcast_to(values[:, None], like.shape) if like.ndim == 2 else answer_mean(values, mask)


def _call(piece: Callable, *arrays: Array, **given: Any) -> Any:
    """Calls a piece with its first arrays, and with whatever else it names as a parameter."""
    wanted = list(inspect.signature(piece).parameters)[len(arrays) :]
    return piece(*arrays, **{name: given[name] for name in wanted if name in given})
