"""A variant in words: its loss in plain mathematics, its numbers with their sources, and what its settings do unasked."""

from collections.abc import Iterator

from grpojax.loss import advantages, objectives, penalties, reduce
from grpojax.variants import NUMBERS, VARIANTS, Variant

_RATIOS = {
    objectives.token_ratio: "r_it = p_new(y_it) / p_old(y_it)",
    objectives.capped_token_ratio: "r_it = min(p_new(y_it) / p_old(y_it), 1 + clip_high)",
    objectives.sequence_sum_ratio: "r_i = exp(sum_t [log p_new(y_it) - log p_old(y_it)])",
    objectives.sequence_mean_ratio: "r_i = exp(mean_t [log p_new(y_it) - log p_old(y_it)])",
    objectives.gspo_token_ratio: "r_it = exp(mean_t [log p_new - log p_old]) in value, with the gradient of token t alone",
}
_OF_ANSWERS = (objectives.sequence_sum_ratio, objectives.sequence_mean_ratio)
_OBJECTIVES = {
    objectives.reinforce: "A_i log p_new(y_it)",
    objectives.clip_pessimistic: "min(r A_i, clip(r, 1 - clip_low, 1 + clip_high) A_i)",
    objectives.clip_two_sided: "{A_i > 0: min(r, 1 + clip_high) A_i; A_i < 0: max(min(r A_i, (1 - clip_low) A_i), clip_dual A_i)}",
    objectives.clip_first_printing: "A_i min(r, 1 + clip_high)",
    objectives.cispo: "stopgrad(min(r, ratio_cap)) A_i log p_new(y_it)",
    objectives.sapo: "4 / tau sigmoid(tau (r - 1)) A_i",
}
_REDUCTIONS = {
    reduce.sum_per_sequence: "mean_i sum_t",
    reduce.mean_per_sequence: "mean_i mean_t",
    reduce.token_mean: "mean over all tokens it of the step of",
    reduce.constant_divisor: "1 / (B token_budget) sum_i sum_t",
}
_ADVANTAGES = {
    advantages.group_advantages: "A_i = (R_i - mean of the group) / (std of the group over G - 1, + 1e-4)",
    advantages.centred_advantages: "A_i = R_i - mean of the group",
    advantages.batch_std_advantages: "A_i = (R_i - mean of the group) / (std of all rewards of the step, + 1e-4)",
    advantages.leave_one_out_advantages: "A_i = R_i - mean of the others of the group",
    advantages.gdpo_advantages: "A_i = S_i normalised over the step; S_i = sum_k weight_k (r_ik - mean) / (std + 1e-4), each in its group",
    advantages.gdpo_group_advantages: "A_i = S_i normalised in its group; S_i = sum_k weight_k (r_ik - mean) / (std + 1e-4), each in its group",
}
_SAFEGUARDS = {
    "tis_cap": "m_it = stopgrad(min(p_old(y_it) / p_sampler(y_it), tis_cap))",
    "sequence_mask_cap": "m_i = w_i where w_i <= sequence_mask_cap, else 0; w_i = stopgrad(p_old(y_i) / p_sampler(y_i))",
    "off_policy_delta": "m_i = 0 where A_i < 0 and mean_t log(p_sampler(y_it) / p_new(y_it)) > off_policy_delta, else 1",
}
_PENALTIES = {
    penalties.k1: "{new} - {ref}",
    penalties.k2: "({new} - {ref})^2 / 2",
    penalties.k3: "exp({ref} - {new}) - 1 - ({ref} - {new})",
}


def formula(variant: Variant) -> str:
    """The loss in plain mathematics, from the pieces in force; the first line is the loss, the others define its letters."""
    of_answers = variant.ratio in _OF_ANSWERS
    objective = _OBJECTIVES[variant.objective].replace("(r", "(r_i" if of_answers else "(r_it").replace("tau_it", "tau_i")
    masks = [text for number, text in _SAFEGUARDS.items() if number in variant.numbers]
    average = "mean_i" if of_answers else _REDUCTIONS[variant.reduction]
    loss = f"loss = - {average} {'m ' if masks else ''}{objective}"
    lines = [] if variant.ratio is None else [_RATIOS[variant.ratio]]
    if variant.objective is objectives.sapo:
        lines.append("tau = sapo_tau_pos where A_i > 0, else sapo_tau_neg")
    lines += masks
    if "kl_coeff" in variant.numbers:
        loss += f" + kl_coeff {_kl_formula(variant)}"
        lines += [f"kl_coeff of domain {name} is {factor:g} kl_coeff" for name, factor in variant.kl_domains.items()]
    if variant.keep_sampling_mask:
        lines.append("p is over the ids that could be sampled, the others have probability 0")
    if variant.sampling_temperature:
        lines.append("p is at the temperature of sampling")
    terms = []
    for name, weight in variant.rewards.items():
        terms.append(("" if weight == 1 else f"{weight:g} ") + f"{name}_i" + (" correct_i" if name == "format" and variant.conditional_reward else ""))
    if variant.advantage not in (advantages.gdpo_advantages, advantages.gdpo_group_advantages):
        lines.append(f"R_i = {' + '.join(terms)}")
    if "overlong" in variant.rewards:
        lines.append("overlong_i = min(0, max(-1, (budget - overlong_cache - |y_i|) / overlong_cache))")
    if variant.reduction is reduce.constant_divisor and not of_answers:
        lines.append("B answers a step; token_budget is max_new_tokens where it is not given")
    return "\n".join([loss, *lines, _ADVANTAGES[variant.advantage]])


def _kl_formula(variant: Variant) -> str:
    if variant.kl_level == "token":
        new, ref, ratio = "log p_new(y_it)", "log p_ref(y_it)", "p_new(y_it) / p_old(y_it)"
        average = "mean_i mean_t" if variant.length_normalize else _REDUCTIONS[variant.reduction]
    else:
        new, ref, ratio = "log p_new(y_i)", "log p_ref(y_i)", "p_new(y_i) / p_old(y_i)"
        average = "mean_i 1 / |y_i|" if variant.length_normalize else "mean_i"
    estimate = _PENALTIES[variant.penalty].format(new=new, ref=ref)
    return f"{average} {ratio + ' ' if variant.kl_reweight else ''}[{estimate}]"


def explain(variant: Variant) -> str:
    """The objective in plain mathematics, every number with its source, and what differs from book and paper."""
    sources = dict(variant.sources)
    original = VARIANTS[variant.name]

    def line(name: str, value: float, meaning: str, default: float | None) -> str:
        source = f"[{sources.get(name, variant.source)}]" if value == default else "[given]"
        return f"  {name} = {value:g}   {meaning}   {source}"

    numbers = [line(key, value, NUMBERS[key], original.numbers.get(key)) for key, value in variant.numbers.items()]
    weights = [line(key, value, f"weight of the reward {key!r}", original.rewards.get(key)) for key, value in variant.rewards.items()]
    settings = {
        "inner_epochs": "passes over the rollouts of one old policy",
        "rollout_reuse": "the passes share one pool of rollouts, or draw fresh ones from the old policy",
        "conditional_reward": "format reward only where the answer is correct",
        "mask_truncated": "answers cut off by the budget are left out of the loss",
        "dynamic_sampling": "most rounds of prompts a step draws until its groups have some, not all answers right",
        "reference_refresh": "every so many steps the policy becomes the reference",
    }
    shown = {key: meaning for key, meaning in settings.items() if getattr(variant, key)}
    return "\n".join(
        [
            f"{variant.name}: {variant.summary}",
            f"Source: {variant.source}",
            "",
            formula(variant),
            "",
            "Numbers:",
            *(numbers or ["  none"]),
            "Rewards:",
            *weights,
            "Settings:",
            *[f"  {key} = {getattr(variant, key)}   {meaning}" for key, meaning in shown.items()],
            f"Embedded model: {variant.model}",
            "",
            variant.notes,
        ]
    )


def notices(variant: Variant, updates: int) -> Iterator[str]:
    """What a setting does that its name does not say: inert or contradictory settings, one sentence each.

    Args:
      updates: how many updates are made from one batch of rollouts.
    """
    bounds = variant.numbers.get("clip_low"), variant.numbers.get("clip_high")
    if variant.ratio is not None and updates == 1:
        evens_out = variant.ratio in _OF_ANSWERS or variant.reduction is reduce.mean_per_sequence
        is_zero = evens_out and variant.objective not in (objectives.sapo, objectives.cispo)
        yield (
            "with one update per batch the ratio is 1, so the bound cannot act"
            + (" and the printed pg_loss is about 0 by construction" if is_zero else "")
            + "; its gradient is that of log-probability times advantage"
        )
    if variant.ratio in (objectives.sequence_mean_ratio, objectives.gspo_token_ratio) and max(bounds) >= 0.05:
        yield (
            f"bounds of {bounds[0]:g} and {bounds[1]:g} will hardly ever act on a geometric mean of token ratios, which stays within "
            "a few thousandths of 1; GSPO's are 0.0003 and 0.0004"
        )
    if variant.ratio is objectives.sequence_sum_ratio and max(bounds) < 0.01:
        yield "bounds this narrow clip almost every ratio of whole answers, which adds up the change of every token"
    if variant.numbers.get("ratio_cap", 1.0) < 1:
        yield f"a ratio_cap of {variant.numbers['ratio_cap']:g} is below 1: it scales every update down; the cap is the bound itself, not 1 plus it"
    for cap in ("tis_cap", "sequence_mask_cap"):
        if variant.numbers.get(cap, 1.0) < 1:
            yield f"a {cap} of {variant.numbers[cap]:g} is below 1, the weight where trainer and sampler agree"
    if "kl_coeff" in variant.numbers:
        if variant.penalty is penalties.k1 and not variant.kl_reweight:
            yield (
                "the gradient of this KL term does not contain the reference: it lowers the probability of sampled answers, and "
                "in the book's 7.5 run it ended in uniform noise; watch entropy_avg"
            )
    else:
        idle = [key for key in ("kl_reweight", "length_normalize", "kl_domains", "reference_refresh") if getattr(variant, key)]
        if idle:
            yield f"{', '.join(idle)} has no KL term to act on; give a kl_coeff"
    if "off_policy_delta" in variant.numbers and updates == 1 and not variant.dynamic_sampling:
        yield "with one update per batch no answer is off-policy, so off_policy_delta leaves none out"
