"""The table of variants: a row names its pieces and its numbers. Adding a variant is a row, and its tests.

Pieces (functions, counts, flags) are structure and fixed at compile time; numbers are data and never compile again.
A number that is absent is the only way to say "off": no `kl_coeff` means no KL term and no reference model.
"""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from grpojax.errors import InputError, did_you_mean
from grpojax.loss import advantages, objectives, penalties, reduce


@dataclass(frozen=True)
class Variant:
    """A way to turn rollouts into a loss."""

    name: str
    summary: str  # one line
    source: str  # where it comes from
    notes: str  # what differs from the book's script or the papers

    # Pieces: what they take is in their own docstrings.
    ratio: Callable | None  # None: log-probs themselves
    objective: Callable
    reduction: Callable  # of token values; those of whole answers are averaged
    advantage: Callable

    # Numbers, and where each comes from. Presence turns a piece on.
    numbers: dict[str, float]
    rewards: dict[str, float]  # name of the reward function -> weight
    sources: tuple[tuple[str, str], ...] = ()  # (number, source), where it is not that of the row

    # The KL term, where numbers has kl_coeff.
    penalty: Callable = penalties.k3
    kl_level: str = "token"  # or "sequence": of the summed log-probs
    kl_reweight: bool = False  # times the importance ratio
    length_normalize: bool = False  # over the answer's length
    kl_domains: dict[str, float] = dataclasses.field(default_factory=dict)  # factor on kl_coeff by a problem's domain
    reference_refresh: int = 0  # every so many steps the policy becomes the reference; 0: it stays the starting policy

    # What reaches beyond the loss.
    keep_sampling_mask: bool = False  # log-probs over the ids that could be sampled
    sampling_temperature: bool = False  # log-probs at the temperature of sampling, not 1
    conditional_reward: bool = False  # format reward only where the answer is correct
    mask_truncated: bool = False  # answers cut off by the budget are left out of the loss
    dynamic_sampling: int = 0  # rounds of prompts a step may draw to fill itself with groups that disagree; 0: no such thing
    inner_epochs: int = 1  # passes over one frozen old policy's rollouts
    rollout_reuse: str = "pool"  # inner epochs go over one pool of rollouts, or draw "fresh" ones from the old policy
    model: str = "tiny-base"  # the embedded model it is tried on by default


_DATA = ("numbers", "rewards", "kl_domains")
jax.tree_util.register_dataclass(
    Variant, data_fields=_DATA, meta_fields=[f.name for f in dataclasses.fields(Variant) if f.name not in _DATA]
)

NUMBERS = {
    "clip_low": "how far the ratio may fall below 1",
    "clip_high": "how far the ratio may rise above 1",
    "clip_dual": "largest ratio of an answer with A < 0; absent: none",
    "ratio_cap": "largest weight of a token, the bound itself",
    "sapo_tau_pos": "how sharply the gate closes for A > 0",
    "sapo_tau_neg": "how sharply the gate closes for A <= 0",
    "token_budget": "tokens an answer may have, the constant divisor; absent: max_new_tokens",
    "kl_coeff": "weight of the KL term; absent or 0: no KL term and no reference model",
    "tis_cap": "truncated importance sampling: largest weight of trainer over sampler; absent: none",
    "sequence_mask_cap": "answers whose weight of trainer over sampler is larger are left out; absent: none",
    "off_policy_delta": "bad answers this much (nats a token) less likely than when sampled are left out; absent: none",
    "overlong_cache": "tokens before the budget's end over which the overlong punishment grows; absent: a fifth of the budget",
    "score_temperature": "temperature of the log-probs; absent: 1",
}
"""Every number a row may have, with its meaning."""

# Numbers any row can be given, and those that 0 takes away again.
_OPTIONAL = ("clip_dual", "kl_coeff", "tis_cap", "sequence_mask_cap", "off_policy_delta", "overlong_cache", "token_budget")
_OFF_AT_ZERO = tuple(_OPTIONAL)

RATIOS = {
    "token": objectives.token_ratio,
    "sequence-sum": objectives.sequence_sum_ratio,
    "sequence-mean": objectives.sequence_mean_ratio,
    "gspo-token": objectives.gspo_token_ratio,
}
ADVANTAGES = {
    "group": advantages.group_advantages,
    "centred": advantages.centred_advantages,
    "batch-std": advantages.batch_std_advantages,
    "leave-one-out": advantages.leave_one_out_advantages,
    "gdpo": advantages.gdpo_advantages,
}
REDUCTIONS = {
    "sum": reduce.sum_per_sequence,
    "sequence": reduce.mean_per_sequence,
    "token": reduce.token_mean,
    "constant": reduce.constant_divisor,
}
KL_ESTIMATORS = {"k1": penalties.k1, "k2": penalties.k2, "k3": penalties.k3}
KL_LEVELS = ("token", "sequence")
ROLLOUT_REUSE = ("fresh", "pool")

# --- (a) the chapter ---

_BASELINE = Variant(
    name="baseline",
    summary="GRPO without ratio and KL: log-probability times advantage",
    source="book chapter 6 and 7.3",
    notes="Equal to the book's scripts. One update per batch, so no ratio is needed.",
    ratio=None,
    objective=objectives.reinforce,
    reduction=reduce.sum_per_sequence,
    advantage=advantages.group_advantages,
    numbers={},
    rewards={"correct": 1.0},
    penalty=penalties.k1,
    kl_level="sequence",
    rollout_reuse="fresh",
)
_CLIPPED = replace(
    _BASELINE,
    name="clipped",
    summary="clipped ratio of whole-sequence probabilities",
    source="book 7.4; the bound of arXiv:1707.06347, eq. 7",
    notes="The book's first printing takes max instead of min for A < 0, so that its lower bound never acts "
    "(book-7.4 does that). In the first inner epoch new and old policy are the same and r_i is 1.",
    ratio=objectives.sequence_sum_ratio,
    objective=objectives.clip_pessimistic,
    numbers={"clip_low": 10.0, "clip_high": 10.0},
    inner_epochs=2,
)
_KL = replace(
    _CLIPPED,
    name="kl",
    summary="clipped, plus a KL term towards the starting policy",
    source="book 7.5",
    notes="The gradient of this KL estimate does not contain the reference: it pushes the sampled answers down, "
    "towards the uniform distribution. The chapter keeps it to show it fail (its 7.5 log ends at entropy 11.93 = ln V). "
    "Remedies: --kl-estimator k2 or k3, --kl-level token, --kl-reweight, --length-normalize.",
    numbers=_CLIPPED.numbers | {"kl_coeff": 0.001},
)
_FORMAT = replace(
    _CLIPPED,
    name="format",
    summary="clipped, with a reward for <think> ... </think> beside the one for correctness",
    source="book 7.6",
    notes="format is 1 where the first <think> comes before the first </think>. With conditional_reward it counts "
    "only in correct answers. One update per batch: the ratio is 1 and the printed loss about 0, its gradient is not.",
    rewards={"correct": 1.0, "format": 1.0},
    inner_epochs=1,
    model="tiny-reasoning",
)

# --- (b) the papers' recipes ---

_GRPO = Variant(
    name="grpo",
    summary="GRPO as first published: clipped token ratios, mean per answer, k3 towards the start",
    source="arXiv:2402.03300 (DeepSeekMath), eq. 3 and 4, section 4.2",
    notes="The paper makes one update per batch, so its bound cannot act; give --inner-epochs 2 to see it. The chapter's "
    "variants differ in three places: ratio of whole answers, sum instead of mean over an answer's tokens, k1.",
    ratio=objectives.token_ratio,
    objective=objectives.clip_pessimistic,
    reduction=reduce.mean_per_sequence,
    advantage=advantages.group_advantages,
    numbers={"clip_low": 0.2, "clip_high": 0.2, "kl_coeff": 0.04},
    rewards={"correct": 1.0},
    sources=(
        ("clip_low", "not printed in the paper; PPO's (arXiv:1707.06347, table 1)"),
        ("clip_high", "as clip_low"),
        ("kl_coeff", "section 4.2"),
    ),
)
_DAPO = replace(
    _GRPO,
    name="dapo",
    summary="higher upper bound, mean over all tokens, overlong punishment, only groups that disagree, no KL",
    source="arXiv:2503.14476, eq. 8 to 13",
    notes="Eq. 8 can be read as a mean over the tokens of each prompt's group; here, as in verl and TRL, it is over all of the step. "
    "The paper rewards 1 and -1; here correct is 1 or 0, so the overlong punishment weighs half to be the same. The "
    "paper makes 16 updates of one pass over each batch; here two passes, so that the bounds can act in one small batch.",
    reduction=reduce.token_mean,
    numbers={"clip_low": 0.2, "clip_high": 0.28},
    rewards={"correct": 1.0, "overlong": 0.5},
    sources=(("clip_low", "section 4.1"), ("clip_high", "section 4.1"), ("overlong", "section 3.4, halved with the scale of correct")),
    dynamic_sampling=10,
    inner_epochs=2,
)
_DR_GRPO = replace(
    _GRPO,
    name="dr-grpo",
    summary="GRPO done right: no std, and a constant instead of each answer's length, no KL",
    source="arXiv:2503.20783, section 3.2 and appendix A",
    notes="Both changes belong together: the std favours problems that are nearly always or never solved, the mean per answer "
    "favours long wrong answers. The divisor is the generation budget (max_new_tokens).",
    reduction=reduce.constant_divisor,
    advantage=advantages.centred_advantages,
    numbers={"clip_low": 0.2, "clip_high": 0.2},
    sources=(("clip_low", "table 6"), ("clip_high", "table 6")),
    inner_epochs=2,
)
_GSPO = replace(
    _GRPO,
    name="gspo",
    summary="one ratio per answer, the geometric mean of its tokens', with bounds of a few ten-thousandths",
    source="arXiv:2507.18071, eq. 5 to 7, section 5.1",
    notes="The bounds fit the geometric mean: 0.2 would never act on it. The chapter's ratio is its power |y|. The paper makes four "
    "updates of one pass; here two passes.",
    ratio=objectives.sequence_mean_ratio,
    numbers={"clip_low": 3e-4, "clip_high": 4e-4},
    sources=(("clip_low", "section 5.1"), ("clip_high", "section 5.1")),
    inner_epochs=2,
)
_CISPO = replace(
    _GRPO,
    name="cispo",
    summary="log-probability times advantage, weighted by the ratio up to a cap; no token loses its gradient",
    source="arXiv:2506.13585 (MiniMax-M1), eq. 4 and 5",
    notes="The paper bounds the ratio above only and does not print its bound. ratio_cap is the bound itself, not 1 plus it.",
    objective=objectives.cispo,
    reduction=reduce.token_mean,
    numbers={"ratio_cap": 5.0},
    sources=(("ratio_cap", "arXiv:2510.13786 (ScaleRL), as in TRL's recipe"),),
    inner_epochs=2,
)
_SAPO = replace(
    _GRPO,
    name="sapo",
    summary="a soft gate that fades with the ratio's distance from 1, faster for bad answers, in place of the clip",
    source="arXiv:2511.20347, eq. 5 and 6",
    notes="The printed loss is not near 0 at ratio 1: the gate's value there is 2 / tau. Its slope is GRPO's.",
    objective=objectives.sapo,
    numbers={"sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05},
    sources=(("sapo_tau_pos", "section 5"), ("sapo_tau_neg", "section 5")),
    inner_epochs=2,
)
_OLMO3 = replace(
    _GRPO,
    name="olmo3",
    summary="OlmoRL: mean over all tokens, no std, no KL, higher upper bound, truncated importance sampling, active sampling",
    source="arXiv:2512.13961 (Olmo 3), section 4.4",
    notes="Truncated importance sampling weighs trainer against sampler, without gradient; the book's script caps new over old "
    "instead, with gradient (book-olmo3). In float32 here trainer and sampler agree to rounding, and the weight is 1.",
    reduction=reduce.token_mean,
    advantage=advantages.centred_advantages,
    numbers={"clip_low": 0.2, "clip_high": 0.272, "tis_cap": 2.0},
    sources=(
        ("clip_low", "table 49"),
        ("clip_high", "table 49"),
        ("tis_cap", "table 49: 32B Think and RL-Zero; the 7B models had no cap"),
    ),
    dynamic_sampling=10,
    inner_epochs=2,
)
_DEEPSEEK = replace(
    _GRPO,
    name="deepseek-v3.2",
    summary="GRPO with unbiased k3, off-policy masking of bad answers, kept sampling masks, no std",
    source="arXiv:2512.02556 (DeepSeek-V3.2), section 3.1",
    notes="The paper prints neither bounds nor delta nor the KL weight, and says that mathematics may do with none: problems of "
    "domain math have kl_domains 0 here (--kl-domains math=1 gives it back). The book's script divides by the std, weighs k1 by "
    "the ratio of whole answers, and takes the mask's statistic from the trainer (book-deepseek-v3.2).",
    advantage=advantages.centred_advantages,
    numbers={"clip_low": 0.2, "clip_high": 0.2, "kl_coeff": 0.02, "off_policy_delta": 0.1},
    sources=(
        ("clip_low", "not printed in the paper; PPO's (arXiv:1707.06347, table 1)"),
        ("clip_high", "as clip_low"),
        ("kl_coeff", "the book's script"),
        ("off_policy_delta", "the book's script"),
    ),
    kl_reweight=True,
    kl_domains={"math": 0.0},
    keep_sampling_mask=True,
    sampling_temperature=True,
    inner_epochs=2,
)
_GDPO = replace(
    _GRPO,
    name="gdpo",
    summary="several rewards, each normalised in its group before they are added, then over the batch",
    source="arXiv:2601.05242, eq. 3 to 7",
    notes="Added first and normalised then, different pairs of rewards give one advantage; normalised first they stay apart. The "
    "book's script normalises the second time within its one group.",
    advantage=advantages.gdpo_advantages,
    numbers={"clip_low": 0.2, "clip_high": 0.2},
    rewards={"correct": 1.0, "format": 1.0},
    sources=(("clip_low", "not printed in the paper; PPO's (arXiv:1707.06347, table 1)"), ("clip_high", "as clip_low")),
    inner_epochs=2,
    model="tiny-reasoning",
)

# --- (c) the book's scripts, to the last digit ---


def _as_printed(row: Variant, name: str, section: str) -> Variant:
    return replace(
        row,
        name=name,
        summary=f"the book's script of section {section}: {row.summary}",
        source=f"book {section}, first printing",
        notes="First printing's clip: min for A >= 0, max for A < 0. Tested against the script's own numbers.",
        objective=objectives.clip_first_printing,
    )


_BOOK_7_6_3 = replace(_as_printed(_CLIPPED, "", "7.6.3"), rewards={"correct": 1.0})
_BOOK_OLMO3 = replace(
    _BOOK_7_6_3,
    name="book-olmo3",
    summary="the book's olmo3_style.py: capped token ratios, mean over all tokens, no std, active sampling",
    notes="What the script calls truncated importance sampling caps new over old at 1 + clip_high. Its active sampling tries up to 8 "
    "problems in each inner epoch; here the second epoch goes on with the problem of the first.",
    ratio=objectives.capped_token_ratio,
    reduction=reduce.token_mean,
    advantage=advantages.centred_advantages,
    numbers={"clip_low": 0.2, "clip_high": 10.0},
    dynamic_sampling=8,
)
_BOOK_DEEPSEEK = replace(
    _BOOK_7_6_3,
    name="book-deepseek-v3.2",
    summary="the book's deepseek_v32_style.py: kept sampling masks, off-policy masking, k1 times the ratio of whole answers",
    notes="Log-probs keep the sampled set but not the sampling temperature; the entropy the script logs is NaN under its mask, here "
    "it is finite. Its KL weight is 0 unless given. The mask compares with what the sampler recorded, in float32 the same as the trainer's.",
    numbers=_CLIPPED.numbers | {"off_policy_delta": 0.1},
    kl_reweight=True,
    keep_sampling_mask=True,
)
_BOOK_GDPO = replace(
    _BOOK_7_6_3,
    name="book-gdpo",
    summary="the book's gdpo.py: correctness and a box, each normalised, summed, normalised again in the group",
    notes="An answer without a box is graded by its last number. Everything else is the script of 7.5.",
    advantage=advantages.gdpo_group_advantages,
    numbers=_CLIPPED.numbers | {"kl_coeff": 0.02},
    rewards={"correct_or_number": 1.0, "boxed": 0.1},
    model="tiny-reasoning",
)

_ROWS = (
    _BASELINE,
    replace(_BASELINE, name="tracking", summary=_BASELINE.summary + " (the same as baseline)"),
    _CLIPPED, _KL, _FORMAT,
    _GRPO, _DAPO, _DR_GRPO, _GSPO, _CISPO, _SAPO, _OLMO3, _DEEPSEEK, _GDPO,
    replace(_BASELINE, name="book-7.3", summary=f"the book's script of section 7.3: {_BASELINE.summary}"),
    _as_printed(_CLIPPED, "book-7.4", "7.4"),
    _as_printed(_KL, "book-7.5", "7.5"),
    _as_printed(_FORMAT, "book-7.6", "7.6"),
    _BOOK_OLMO3, _BOOK_DEEPSEEK, _BOOK_GDPO,
)  # fmt: skip

VARIANTS: dict[str, Variant] = {row.name: row for row in _ROWS}
"""Every variant by name."""

SETTINGS = {
    "inner_epochs": int, "conditional_reward": bool, "kl_reweight": bool, "length_normalize": bool, "reference_refresh": int,
    "keep_sampling_mask": bool, "sampling_temperature": bool, "mask_truncated": bool, "dynamic_sampling": int,
    "kl_level": KL_LEVELS, "rollout_reuse": ROLLOUT_REUSE, "kl_estimator": KL_ESTIMATORS, "advantage": ADVANTAGES,
    "reduction": REDUCTIONS, "ratio": RATIOS,
}  # fmt: skip
"""Structure that can be chosen beside the numbers: its type, or the choices by name."""


def get_variant(name: str, **overrides: Any) -> Variant:
    """A row of the table, with some of its numbers or settings replaced.

    Args:
      name: one of `VARIANTS`.
      overrides: any of `NUMBERS`, by name; `clip_eps` (clip_low and clip_high at once); `rewards` and `kl_domains`, each a
        dict of numbers by name; `format_reward_weight`, short for the weight of "format" in rewards; any of `SETTINGS`.
        0 takes an optional term away: kl_coeff, format_reward_weight, tis_cap and such.

    Raises:
      InputError: for an unknown name or setting, a setting the variant has no use for, or a value out of range.

    >>> get_variant("clipped", clip_eps=0.2).numbers
    {'clip_low': 0.2, 'clip_high': 0.2}
    """
    if name not in VARIANTS:
        raise InputError(f"unknown variant {name!r}; choose one of {', '.join(VARIANTS)}.{did_you_mean(name, VARIANTS)}")
    row = VARIANTS[name]
    row = replace(row, **{key: dict(getattr(row, key)) for key in _DATA})
    row = _with_settings(row, {key: overrides.pop(key) for key in SETTINGS if key in overrides})
    row = _with_rewards(row, overrides.pop("rewards", None), overrides.pop("format_reward_weight", None))
    if "kl_domains" in overrides:
        domains = _checked_dict("kl_domains", overrides.pop("kl_domains"))
        for domain, factor in domains.items():
            _check_finite(f"kl_domains {domain}", factor)
        row = replace(row, kl_domains={domain: float(factor) for domain, factor in domains.items()})
    if "clip_eps" in overrides:
        eps = overrides.pop("clip_eps")
        if "clip_low" not in row.numbers:
            raise InputError(_unused(row, "clip_eps"))
        _check_finite("clip_eps", eps)
        overrides = {"clip_low": eps, "clip_high": eps} | overrides
    return _with_numbers(row, overrides)


def _with_numbers(row: Variant, given: dict[str, float]) -> Variant:
    for key, value in given.items():
        if key not in NUMBERS:
            known = ["clip_eps", "rewards", "format_reward_weight", "kl_domains", *NUMBERS, *SETTINGS]
            raise InputError(f"unknown setting {key!r}; known are {', '.join(known)}.{did_you_mean(key, known)}")
        if key not in row.numbers and not (key in _OPTIONAL and _can_use(row, key)):
            raise InputError(_unused(row, key))
        _check_finite(key, value)
    merged = {key: float(value) for key, value in (row.numbers | given).items()}
    row = replace(row, numbers={key: value for key, value in merged.items() if value != 0 or key not in _OFF_AT_ZERO})
    if any(row.numbers.get(key) == 0 for key in ("ratio_cap", "sapo_tau_pos", "sapo_tau_neg")):
        raise InputError(f"ratio_cap and the sapo_tau of variant {row.name!r} must be above 0.")
    if "clip_dual" in row.numbers:
        if row.numbers["clip_dual"] <= 1 + row.numbers["clip_high"]:
            least = 1 + row.numbers["clip_high"]
            raise InputError(f"clip_dual is {row.numbers['clip_dual']:g}; it must be above 1 + clip_high, {least:g}.")
        row = replace(row, objective=objectives.clip_two_sided)
    return row


def _can_use(row: Variant, key: str) -> bool:
    """Whether an optional number has a piece to act on."""
    return {
        "clip_dual": row.objective is objectives.clip_pessimistic,
        "token_budget": row.reduction is reduce.constant_divisor,
        "overlong_cache": "overlong" in row.rewards,
    }.get(key, True)


def _with_settings(row: Variant, given: dict[str, Any]) -> Variant:
    for key, value in given.items():
        kind = SETTINGS[key]
        if isinstance(kind, type):
            least = 1 if key == "inner_epochs" else 0
            if not isinstance(value, kind) or (kind is int and (isinstance(value, bool) or value < least)):
                wanted = "True or False" if kind is bool else f"a whole number, at least {least}"
                raise InputError(f"{key} is {value!r}; it must be {wanted}.")
        elif not isinstance(value, str) or value not in kind:
            raise InputError(f"unknown {key} {value!r}; choose one of {', '.join(kind)}.{did_you_mean(str(value), kind)}")
    if "ratio" in given and row.ratio is None:
        raise InputError(f"variant {row.name!r} has no ratio to choose; leave it out, or choose a variant with one such as 'clipped'.")
    if str(given.get("ratio")).startswith("sequence") and row.objective is objectives.cispo:
        raise InputError("cispo weighs each token's log-prob, so its ratio is of tokens; choose token or gspo-token.")
    given = {key: SETTINGS[key][value] if isinstance(SETTINGS[key], dict) else value for key, value in given.items()}
    if "kl_estimator" in given:
        given["penalty"] = given.pop("kl_estimator")
    return replace(row, **given)


def _with_rewards(row: Variant, rewards: dict[str, float] | None, format_weight: float | None) -> Variant:
    rewards = dict(row.rewards if rewards is None else _checked_dict("rewards", rewards))
    if format_weight is not None:
        _check_finite("format_reward_weight", format_weight)
        rewards["format"] = format_weight
    for name, weight in rewards.items():
        _check_finite(f"the weight of reward {name!r}", weight)
    row = replace(row, rewards={name: float(weight) for name, weight in rewards.items() if weight != 0})
    if not row.rewards:
        raise InputError("rewards is empty; name at least one reward function with a weight above 0, such as correct=1.")
    if row.conditional_reward and "format" not in row.rewards:
        raise InputError(
            f"conditional_reward has nothing to act on: variant {row.name!r} has no format reward; "
            "give a format_reward_weight, or choose the variant 'format'."
        )
    return row


def _checked_dict(key: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise InputError(f"{key} is {value!r}; it must be a dict of numbers by name, such as {{'correct': 1.0}}.")
    return value


def _check_finite(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value < float("inf"):
        raise InputError(f"{key} is {value!r}; it must be a finite number, 0 or more.")


def _unused(row: Variant, key: str) -> str:
    fitting = [name for name, other in VARIANTS.items() if ("clip_low" if key == "clip_eps" else key) in other.numbers]
    way_out = f" such as {fitting[0]!r}" if fitting else ""
    return f"variant {row.name!r} does not use {key}; leave it out, or choose a variant that does{way_out}."


def variant_advantages(variant: Variant, rewards: Array) -> Array:
    """Advantages of a step as the variant has them: rewards [K, P, G], in the order of variant.rewards -> [P, G].

    A piece that names `weights` gets the rewards apart, any other their weighted sum.
    """
    weights = jnp.asarray(list(variant.rewards.values()), jnp.float32)
    if "weights" in inspect.signature(variant.advantage).parameters:
        return variant.advantage(rewards, weights)
    return variant.advantage(advantages.total_reward(rewards, weights))
