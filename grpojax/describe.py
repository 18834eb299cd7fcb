"""Variants in words: formulas, numbers with their sources, and notes on settings that do nothing."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from grpojax.loss import advantages, objectives, penalties, reduce
from grpojax.loss.pieces import OBJECTIVES, SAFEGUARDS
from grpojax.loss.pieces import formula as formula_of
from grpojax.loss.policy_loss import ARRAYS, Loss, call
from grpojax.settings import settings_of
from grpojax.variants import VARIANTS, Variant, VariantSettings, get_variant

_SHOWN = (
    "inner_epochs", "rollout_reuse", "conditional_reward", "overlong_cache", "mask_truncated", "dynamic_sampling",
    "reference_refresh",
)  # fmt: skip
"""The recipe's settings that `explain` lists if they are on; the others are in the formula."""


def formula(variant: Variant) -> str:
    """The loss in plain mathematics, made from its pieces: a line for the loss, then those that define its symbols."""
    loss, recipe = variant.loss, variant.recipe
    per_answer = _is_per_answer(loss)
    objective = formula_of(loss.objective)
    if loss.objective in [piece.function for piece in OBJECTIVES.values()]:  # a user's own says which ratio it means
        objective = objective.replace("(r", "(r_i" if per_answer else "(r_it")
    masks = [piece.formula for number, piece in SAFEGUARDS.items() if number in loss.numbers]
    average = "mean_i" if per_answer else formula_of(loss.reduction)
    text = f"loss = - {average} {'m ' if masks else ''}{objective}"
    lines = [] if loss.ratio is None else [formula_of(loss.ratio)]
    if loss.objective is objectives.sapo:
        lines.append("tau = sapo_tau_pos where A_i > 0, else sapo_tau_neg")
    lines += masks
    if "kl_coeff" in loss.numbers:
        text += f" + kl_coeff {_kl_formula(loss)}"
        lines += [f"kl_coeff of domain {name} is {factor:g} kl_coeff" for name, factor in recipe.kl_domains.items()]
    if recipe.keep_sampling_mask:
        lines.append("p is over the ids that could be sampled, the others have probability 0")
    if recipe.sampling_temperature:
        lines.append("p is at the sampling temperature")
    if recipe.advantage not in (advantages.gdpo_advantages, advantages.gdpo_group_advantages):
        terms = []
        for name, weight in recipe.rewards.items():
            factor = " correct_i" if name == "format" and recipe.conditional_reward else ""
            terms.append(f"{'' if weight == 1 else f'{weight:g} '}{name}_i{factor}")
        lines.append(f"R_i = {' + '.join(terms)}")
    if "overlong" in recipe.rewards:
        lines.append("overlong_i = min(0, max(-1, (budget - overlong_cache - |y_i|) / overlong_cache))")
        if recipe.overlong_cache is None:
            lines.append("overlong_cache is a fifth of the budget")
    if loss.reduction is reduce.constant_divisor and not per_answer:
        lines.append("B answers a step; token_budget is max_new_tokens unless it is given")
    return "\n".join([text, *lines, formula_of(recipe.advantage)])


def _is_per_answer(loss: Loss) -> bool:
    """Whether the ratio is one value for each answer, not for each token."""
    arrays = {name: jax.ShapeDtypeStruct((1,) if name == "advantages" else (1, 2), jnp.float32) for name in ARRAYS}
    numbers = {"token_budget": 2} | loss.numbers
    return loss.ratio is not None and jax.eval_shape(functools.partial(call, loss.ratio), numbers | arrays).ndim == 1


def _kl_formula(loss: Loss) -> str:
    if loss.kl_level == "token":
        y, average = "y_it", formula_of(reduce.mean_per_sequence if loss.length_normalize else loss.reduction)
    else:
        y, average = "y_i", "mean_i 1 / |y_i|" if loss.length_normalize else "mean_i"
    ratio = f"p_new({y}) / p_old({y}) " if loss.kl_reweight else ""
    return f"{average} {ratio}[{formula_of(loss.penalty).format(new=f'log p_new({y})', ref=f'log p_ref({y})')}]"


def explain(variant: Variant | str) -> str:
    """A variant's objective in mathematics, every number with its source, and how it differs from book and papers.

    Args:
      variant: what `get_variant` returns, or a name.
    """
    variant = get_variant(variant) if isinstance(variant, str) else variant
    loss, recipe = variant.loss, variant.recipe
    original = VARIANTS.get(variant.name, variant)
    settings, sources = settings_of(VariantSettings), dict(recipe.sources)

    def line(name: str, value: float, meaning: str, default: float | None) -> str:
        source = sources.get(name, recipe.source) if value == default else "given"
        return f"  {name} = {value:g}   {meaning}   [{source}]"

    def meaning(name: str) -> str:
        return settings[name].metadata["help"] if name in settings else "a number of this variant"

    numbers = [line(key, value, meaning(key), original.loss.numbers.get(key)) for key, value in loss.numbers.items()]
    weights = [
        line(key, value, f"weight of the reward {key!r}", original.recipe.rewards.get(key))
        for key, value in recipe.rewards.items()
    ]
    return "\n".join(
        [
            f"{variant.name}: {recipe.summary}",
            f"Source: {recipe.source}",
            "",
            formula(variant),
            "",
            "Numbers:",
            *(numbers or ["  none"]),
            "Rewards:",
            *weights,
            "Settings:",
            *[f"  {name} = {getattr(recipe, name)}   {meaning(name)}" for name in _SHOWN if getattr(recipe, name)],
            f"Embedded model: {recipe.model}",
            "",
            recipe.notes,
        ]
    )


def notices(variant: Variant, updates: int) -> Iterator[str]:
    """One sentence for each setting that does nothing, or not what its name says.

    Args:
      updates: how many updates are made from one batch of rollouts.
    """
    loss, recipe, numbers = variant.loss, variant.recipe, variant.loss.numbers
    bounds = [numbers[name] for name in ("clip_low", "clip_high") if name in numbers]
    geometric = loss.ratio in (objectives.sequence_mean_ratio, objectives.gspo_token_ratio)
    if loss.ratio is not None and updates == 1:
        cancels = _is_per_answer(loss) or loss.reduction is reduce.mean_per_sequence
        is_zero = cancels and loss.objective not in (objectives.sapo, objectives.cispo)
        yield (
            "with one update per batch the ratio is 1, so the bound cannot act"
            + (" and the printed pg_loss is about 0 by construction" if is_zero else "")
            + "; its gradient is that of log-probability times advantage"
        )
    if geometric and len(bounds) == 2 and max(bounds) >= 0.05:
        yield (
            f"bounds of {bounds[0]:g} and {bounds[1]:g} will hardly ever act on a geometric mean of token ratios, "
            "which stays within a few thousandths of 1; GSPO's are 0.0003 and 0.0004"
        )
    if loss.ratio is objectives.sequence_sum_ratio and len(bounds) == 2 and max(bounds) < 0.01:
        yield (
            "bounds this narrow clip almost every ratio of whole answers, because that ratio multiplies those of all "
            "tokens"
        )
    for cap, meaning in (
        ("ratio_cap", " and scales every update down; the cap is the bound itself, not 1 plus it"),
        ("tis_cap", ", the weight when trainer and sampler agree"),
        ("sequence_mask_cap", ", the weight when trainer and sampler agree"),
    ):
        if numbers.get(cap, 1.0) < 1:
            yield f"a {cap} of {numbers[cap]:g} is below 1{meaning}"
    if "kl_coeff" in numbers:
        if loss.penalty is penalties.k1 and not loss.kl_reweight:
            yield (
                "the gradient of this KL term does not contain the reference: it makes sampled answers less likely, "
                "and in the book's 7.5 run it ended in uniform noise; watch entropy_avg"
            )
    else:
        idle = {
            "kl_reweight": loss.kl_reweight, "length_normalize": loss.length_normalize,
            "kl_domains": recipe.kl_domains, "reference_refresh": recipe.reference_refresh,
        }  # fmt: skip
        if any(idle.values()):
            yield f"{', '.join(name for name, on in idle.items() if on)} has no KL term to act on; give a kl_coeff"
    if "off_policy_delta" in numbers and updates == 1 and not recipe.dynamic_sampling:
        yield "with one update per batch no answer is off-policy, so off_policy_delta leaves none out"
