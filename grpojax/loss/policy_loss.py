"""What every variant's loss is: one composition of ratio, objective, safeguards, penalty and reduction."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape
from grpojax.loss.objectives import sequence_sum_ratio, token_ratio
from grpojax.loss.penalties import k1, k3
from grpojax.loss.pieces import SAFEGUARDS
from grpojax.loss.reduce import answer_mean, mean_per_sequence, sequence_mean, token_mean

ARRAYS = ("new_logps", "old_logps", "sampler_logps", "logps", "advantages", "mask", "whole_mask")
"""The arrays a piece can ask for by parameter name, beside the numbers of its loss. `logps` is another name of `new_logps`."""

NUMBERS = ("kl_coeff", "score_temperature", *SAFEGUARDS)
"""The numbers that `policy_loss` and the log-probs read themselves; any other must be a parameter of a piece."""


@dataclass(frozen=True)
class Loss:
    """The compiled part of a variant. Functions and flags are structure: changing one compiles again. Numbers are data.

    Each piece names the arrays (`ARRAYS`) and numbers it needs as parameters, without defaults.
    """

    ratio: Callable | None  # (...) -> [B, S] or [B]; None: the objective gets new_logps instead of a ratio
    objective: Callable  # (ratio, advantages, ...) -> value to be maximised, and bool where its bound holds
    reduction: Callable  # (values [B, S], ...) -> []; values [B] are averaged over the answers
    numbers: dict[str, float] = field(default_factory=dict)  # a KL term or safeguard is on if its number is here

    # The KL term, if there is a kl_coeff.
    penalty: Callable = k3
    kl_level: str = "token"  # or "sequence": of the summed log-probs
    kl_reweight: bool = False  # times the importance ratio
    length_normalize: bool = False  # divided by the answer's length


jax.tree_util.register_dataclass(
    Loss, data_fields=["numbers"], meta_fields=[f.name for f in fields(Loss) if f.name != "numbers"]
)


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
    """loss = -reduce(safeguards * objective(ratio, advantages)) + kl_coeff * reduce(penalty(new, ref)).

    Pure and jittable. Positions where the mask is 0 contribute nothing to the value or the gradient.

    Args:
      variant: a `Variant` or a `Loss`.
      new_logps: [B, S] float32 nats, of the policy being trained; gradients flow into this argument only.
      old_logps: [B, S], of the policy that sampled the answers.
      ref_logps: [B, S], of the reference policy; None without a KL term.
      advantages: [B].
      mask: [B, S], 1 at answer tokens.
      whole_mask: the mask of all sequences of the step, if these are one micro-batch of it. Loss and every entry of aux
        are then this micro-batch's share; the shares of a step add up to its value.
      sampler_logps: [B, S], recorded by the sampler, if they differ from old_logps; only safeguards read them.
      kl_scale: [B], a factor on kl_coeff for each sequence (by its problem's domain); None: 1.

    Returns:
      loss [] and aux, scalars: pg_loss; kl_loss (with its coefficient); policy_ratio, the mean ratio (over sequences or
      tokens); clip_frac, the share of ratios at which the bound holds; safeguard_weight, the mean weight of the
      safeguards over answer tokens; kl_k1 and kl_k3, token means against the reference. NaN: the loss has no such term.

    Raises:
      ValueError: if shapes do not fit, a loss with a KL term gets no ref_logps, or a piece takes an array or number that
        does not exist.
    """
    loss: Loss = variant if isinstance(variant, Loss) else variant.loss
    for name, array in (("old_logps", old_logps), ("mask", mask)):
        check_shape(name, array, new_logps.shape)
    check_shape("advantages", advantages, new_logps.shape[:1])
    has_kl = "kl_coeff" in loss.numbers
    if has_kl and ref_logps is None:
        raise ValueError("a loss with a KL term (kl_coeff) needs ref_logps.")
    whole_mask = mask if whole_mask is None else whole_mask
    sampler_logps = old_logps if sampler_logps is None else sampler_logps
    check_shape("sampler_logps", sampler_logps, new_logps.shape)
    new_logps, old_logps, sampler_logps = (jnp.where(mask > 0, x, 0.0) for x in (new_logps, old_logps, sampler_logps))
    advantages = jax.lax.stop_gradient(advantages)
    given = {"token_budget": mask.shape[1]} | loss.numbers | {
        "new_logps": new_logps, "old_logps": old_logps, "sampler_logps": sampler_logps, "logps": new_logps,
        "advantages": advantages, "mask": mask, "whole_mask": whole_mask,
    }  # fmt: skip

    ratio = new_logps if loss.ratio is None else call(loss.ratio, given)
    objective, clipped = call(loss.objective, given, ratio, _fit(advantages, ratio))
    weights = [call(piece.function, given) for number, piece in SAFEGUARDS.items() if number in loss.numbers]
    for weight in weights:
        objective = objective * _fit(weight, objective, mask)
    pg_loss = -_reduced(loss.reduction, objective, given)

    absent = jnp.float32(jnp.nan)
    aux = dict.fromkeys(("policy_ratio", "clip_frac", "safeguard_weight", "kl_k1", "kl_k3"), absent) | {"pg_loss": pg_loss}
    if loss.ratio is not None:
        aux["policy_ratio"] = _mean(ratio, mask, whole_mask)
        aux["clip_frac"] = _mean(clipped.astype(jnp.float32), mask, whole_mask)
    if weights:
        product = jnp.ones_like(mask)
        for weight in weights:
            product = product * _fit(weight, mask)
        aux["safeguard_weight"] = token_mean(product, mask, whole_mask)
    if ref_logps is not None:
        check_shape("ref_logps", ref_logps, new_logps.shape)
        ref_logps = jnp.where(mask > 0, ref_logps, 0.0)
        aux["kl_k1"] = token_mean(k1(new_logps, ref_logps), mask, whole_mask)
        aux["kl_k3"] = token_mean(k3(new_logps, ref_logps), mask, whole_mask)
    kl_loss = loss.numbers["kl_coeff"] * _kl_term(loss, ref_logps, kl_scale, given) if has_kl else jnp.float32(0.0)
    aux["kl_loss"] = kl_loss
    return pg_loss + kl_loss, jax.lax.stop_gradient(aux)


def _kl_term(loss: Loss, ref_logps: Array, kl_scale: Array | None, given: dict[str, Any]) -> Array:
    """The KL estimate that kl_coeff multiplies: per token or per answer, reweighted if asked for, reduced."""
    mask, new_logps, of_tokens = given["mask"], given["new_logps"], loss.kl_level == "token"
    if of_tokens:
        values = loss.penalty(new_logps, ref_logps)
    else:
        values = loss.penalty(jnp.sum(new_logps, axis=1), jnp.sum(ref_logps, axis=1))
    if loss.kl_reweight:
        values = values * call(token_ratio if of_tokens else sequence_sum_ratio, given)
    if kl_scale is not None:
        check_shape("kl_scale", kl_scale, mask.shape[:1])
        values = values * _fit(kl_scale, values)
    if of_tokens:
        return _reduced(mean_per_sequence if loss.length_normalize else loss.reduction, values, given)
    if loss.length_normalize:
        values = values / jnp.maximum(jnp.sum(mask, axis=1), 1.0)
    return _reduced(loss.reduction, values, given)


def _reduced(reduction: Callable, values: Array, given: dict[str, Any]) -> Array:
    """Token values [B, S] by the reduction; answer values [B] by their mean, in which an answer without tokens counts 0."""
    if values.ndim == 2:
        return call(reduction, given, values)
    return sequence_mean(jnp.where(jnp.any(given["mask"] > 0, axis=1), values, 0.0), given["whole_mask"])


def _mean(values: Array, mask: Array, whole_mask: Array) -> Array:
    return sequence_mean(values, whole_mask) if values.ndim == 1 else token_mean(values, mask, whole_mask)


def _fit(values: Array, like: Array, mask: Array | None = None) -> Array:
    """Answer values repeated over tokens, or token values averaged over each answer, to the shape of `like`."""
    if values.ndim == like.ndim:
        return values
    return jnp.broadcast_to(values[:, None], like.shape) if like.ndim == 2 else answer_mean(values, mask)


def call(piece: Callable, given: Mapping[str, Any], *arrays: Array) -> Any:
    """Calls a piece with its first arrays, and with `given[name]` for each of its other parameters."""
    names = parameters(piece)[len(arrays) :]
    for name in names:
        if name not in given:
            raise ValueError(
                f"the loss piece {piece.__name__} takes {name!r}, which is neither one of the loss's numbers nor an array "
                f"({', '.join(ARRAYS)})."
            )
    return piece(*arrays, **{name: given[name] for name in names})


def parameters(piece: Callable) -> list[str]:
    """The parameter names of a piece.

    Raises:
      ValueError: if one has a default, which would hide that nothing was given for it.
    """
    found = inspect.signature(piece).parameters
    for name, parameter in found.items():
        if parameter.default is not parameter.empty or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise ValueError(f"parameter {name!r} of the loss piece {piece.__name__} must be a plain one, without a default.")
    return list(found)
