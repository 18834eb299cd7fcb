"""Variants: what one is, the settings that change one, and the table of them.

A variant has two parts. Its `Loss` is compiled: functions and flags are structure, numbers are data, so another
`clip_low` never compiles again. Its `Recipe` stays on the host: rewards, sampling, epochs, and text.

A number that is absent is the only way to say "off": without `kl_coeff` there is no KL term and no reference model.

Adding a variant is a row here and its tests, or `register_variant` from outside (docs/python.md).
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.errors import InputError, did_you_mean
from grpojax.loss import advantages, objectives, penalties, reduce
from grpojax.loss.pieces import ADVANTAGES, KL_ESTIMATORS, RATIOS, REDUCTIONS, Piece
from grpojax.loss.policy_loss import ARRAYS, NUMBERS, Loss, parameters, policy_loss
from grpojax.plugins import import_object
from grpojax.settings import check_setting, is_number, setting, settings_of


@dataclass(frozen=True)
class Recipe:
    """Everything of a variant that is not compiled: how it is trained, and how it is explained."""

    summary: str = ""  # one line
    source: str = ""  # book section or paper
    notes: str = ""  # how it differs from the book's script or the papers
    sources: tuple[tuple[str, str], ...] = ()  # (number, source) where it is not `source`

    advantage: Callable = advantages.group_advantages  # rewards [P, G] -> [P, G], or ([K, P, G], weights [K]) -> [P, G]
    rewards: dict[str, float] = field(default_factory=lambda: {"correct": 1.0})  # name of the reward function -> weight
    conditional_reward: bool = False  # pay the format reward only to correct answers
    overlong_cache: float | None = None  # tokens over which the overlong punishment grows; None: a fifth of the budget
    kl_domains: dict[str, float] = field(default_factory=dict)  # factor on kl_coeff by a problem's domain
    reference_refresh: int = 0  # steps after which the policy becomes the reference; 0: never
    keep_sampling_mask: bool = False  # take log-probs over the ids that could be sampled
    sampling_temperature: bool = False  # take log-probs at the sampling temperature instead of 1
    mask_truncated: bool = False  # leave answers that hit the token budget out of the loss
    dynamic_sampling: int = 0  # most rounds of prompts a step draws to fill itself with groups that disagree; 0: off
    inner_epochs: int = 1  # passes over the rollouts of one frozen old policy
    rollout_reuse: str = "pool"  # the passes share one pool of rollouts, or draw "fresh" ones from the old policy
    model: str = "tiny-base"  # the embedded model to try it on


@dataclass(frozen=True)
class Variant:
    """A way to turn rollouts into weight updates. Under `jit` only its loss counts, not its name or recipe."""

    name: str
    loss: Loss
    recipe: Recipe


@dataclass(frozen=True)
class _NotCompiled:
    """Name and recipe of a variant in a jit key, where all of them are equal."""

    name: str = field(compare=False)
    recipe: Recipe = field(compare=False)


jax.tree_util.register_pytree_node(
    Variant,
    lambda variant: ((variant.loss,), _NotCompiled(variant.name, variant.recipe)),
    lambda host, children: Variant(host.name, *children, host.recipe),
)

_setting = functools.partial(setting, None)  # a field of the loss or the recipe, or a short form
_number = functools.partial(setting, None, number=True, at_least=0)  # one of the loss's numbers
_weights = functools.partial(setting, None, weights=True)  # a dict of numbers by name; as a flag such as a=1,b=0.5


def _piece(help: str, pieces: Mapping[str, Piece], **more: Any) -> Any:
    return setting(None, help, choices=pieces, pieces=pieces, **more)


@dataclass(frozen=True, kw_only=True)
class VariantSettings:
    """The variant. A setting that is not given keeps the variant's value. `get_variant` takes the same settings."""

    clip_eps: float | None = _setting("how far the ratio may move from 1; sets clip_low and clip_high", at_least=0)
    clip_low: float | None = _number("how far the ratio may fall below 1")
    clip_high: float | None = _number("how far the ratio may rise above 1")
    clip_dual: float | None = _number("largest ratio of an answer with A < 0; 0: no such bound", zero_is_off=True)
    ratio_cap: float | None = _number("cispo: largest weight of a token, the bound itself", at_least=None, above=0)
    sapo_tau_pos: float | None = _number("sapo: how sharply the gate closes for A > 0", at_least=None, above=0)
    sapo_tau_neg: float | None = _number("sapo: how sharply the gate closes for A <= 0", at_least=None, above=0)
    numbers: str | None = _weights("numbers of your own variant, such as my_number=0.5")
    ratio: str | None = _piece("importance ratio", RATIOS)
    reduction: str | None = _piece("from token values to one loss", REDUCTIONS)
    token_budget: float | None = _number("constant divisor of an answer's tokens; 0: max_new_tokens", zero_is_off=True)
    advantage: str | None = _piece("from rewards to advantages", ADVANTAGES)
    kl_coeff: float | None = _number("weight of the KL term; 0: no KL term and no reference model", zero_is_off=True)
    kl_estimator: str | None = _piece("estimator of the KL term", KL_ESTIMATORS, field="penalty")
    kl_level: str | None = _setting("KL of each token or of whole answers", choices=("token", "sequence"))
    kl_reweight: bool | None = _setting("multiply the KL estimate by the importance ratio")
    length_normalize: bool | None = _setting("divide the KL estimate by the answer's length")
    kl_domains: str | None = _weights("factors on kl_coeff by a problem's domain, such as math=0,code=2")
    reference_refresh: int | None = _setting("steps after which the policy becomes the reference; 0: never", at_least=0)
    tis_cap: float | None = _number(
        "truncated importance sampling of trainer against sampler: largest weight; 0: off", zero_is_off=True
    )
    sequence_mask_cap: float | None = _number(
        "leave out answers whose weight of trainer over sampler is larger; 0: off", zero_is_off=True
    )
    off_policy_delta: float | None = _number(
        "leave out answers with A < 0 that became less likely by more than this, in nats a token; 0: off",
        zero_is_off=True,
    )
    keep_sampling_mask: bool | None = _setting("take log-probs over the ids that could be sampled")
    sampling_temperature: bool | None = _setting("take log-probs at the sampling temperature instead of 1")
    rewards: str | None = _weights(
        "reward functions and weights in place of the variant's, such as correct=1,format=0.5"
    )
    format_reward_weight: float | None = _setting("weight of the think-format reward; 0: off", at_least=0)
    conditional_reward: bool | None = _setting("pay the format reward only to correct answers")
    overlong_cache: float | None = _setting(
        "tokens before the budget over which the overlong punishment grows; 0: a fifth of the budget", at_least=0
    )
    mask_truncated: bool | None = _setting("leave answers that hit the token budget out of the loss")
    dynamic_sampling: int | None = _setting(
        "most rounds of prompts a step draws until its groups have some, not all answers right; 0: off", at_least=0
    )
    inner_epochs: int | None = _setting("passes over the rollouts of one frozen old policy", at_least=1)
    rollout_reuse: str | None = _setting(
        "inner epochs draw fresh rollouts from the old policy, or share one pool", choices=("fresh", "pool")
    )


def _row(base: Variant, name: str, **changes: Any) -> Variant:
    """`base` under another name, with some fields of its loss and its recipe replaced."""
    loss = {key: changes.pop(key) for key in list(changes) if key in Loss.__dataclass_fields__}
    return Variant(name, replace(base.loss, **loss), replace(base.recipe, **changes))


def _bounds(source: str, source_high: str | None = None) -> tuple[tuple[str, str], ...]:
    return ("clip_low", source), ("clip_high", source_high or source)


_PPO_BOUNDS = _bounds("not printed in the paper; PPO's (arXiv:1707.06347, table 1)", "as clip_low")

# --- (a) the chapter ---

_BASELINE = Variant(
    "baseline",
    Loss(None, objectives.reinforce, reduce.sum_per_sequence, penalty=penalties.k1, kl_level="sequence"),
    Recipe(
        summary="GRPO without ratio and KL: log-probability times advantage",
        source="book chapter 6 and 7.3",
        notes="Equal to the book's scripts. One update per batch, so no ratio is needed.",
        rollout_reuse="fresh",
    ),
)
_TRACKING = _row(_BASELINE, "tracking", summary=f"{_BASELINE.recipe.summary} (the same as baseline)")
_CLIPPED = _row(
    _BASELINE,
    "clipped",
    ratio=objectives.sequence_sum_ratio,
    objective=objectives.clip_pessimistic,
    numbers={"clip_low": 10.0, "clip_high": 10.0},
    summary="clipped ratio of whole-sequence probabilities",
    source="book 7.4; the bound of arXiv:1707.06347, eq. 7",
    notes="The book as first printed takes max instead of min for A < 0, so its lower bound never acts (book-7.4 does "
    "that). In the first inner epoch new and old policy are the same and r_i is 1.",
    inner_epochs=2,
)
_KL = _row(
    _CLIPPED,
    "kl",
    numbers=_CLIPPED.loss.numbers | {"kl_coeff": 0.001},
    summary="clipped, plus a KL term towards the starting policy",
    source="book 7.5",
    notes="The gradient of this KL estimate does not contain the reference: it makes the sampled answers less likely, "
    "which pushes towards the uniform distribution. The chapter uses it to show the failure (its 7.5 log ends at "
    "entropy 11.93 = ln V). Remedies: --kl-estimator k2 or k3, --kl-level token, --kl-reweight, --length-normalize.",
)
_FORMAT = _row(
    _CLIPPED,
    "format",
    summary="clipped, with a reward for <think> ... </think> beside the one for correctness",
    source="book 7.6",
    notes="format is 1 if the first <think> comes before the first </think>. With conditional_reward it counts only in "
    "correct answers. One update per batch: the ratio is 1 and the printed loss about 0; its gradient is not.",
    rewards={"correct": 1.0, "format": 1.0},
    inner_epochs=1,
    model="tiny-reasoning",
)

# --- (b) the papers' recipes ---

_GRPO = Variant(
    "grpo",
    Loss(
        ratio=objectives.token_ratio,
        objective=objectives.clip_pessimistic,
        reduction=reduce.mean_per_sequence,
        numbers={"clip_low": 0.2, "clip_high": 0.2, "kl_coeff": 0.04},
    ),
    Recipe(
        summary="GRPO as first published: clipped token ratios, mean per answer, k3 towards the start",
        source="arXiv:2402.03300 (DeepSeekMath), eq. 3 and 4, section 4.2",
        notes="The paper makes one update per batch, so its bound cannot act; give --inner-epochs 2 to see it. The "
        "chapter's variants differ in three ways: ratio of whole answers, sum instead of mean over an answer's tokens, "
        "k1.",
        sources=(*_PPO_BOUNDS, ("kl_coeff", "section 4.2")),
    ),
)
_paper = functools.partial(_row, _GRPO, inner_epochs=2)  # two passes, so that the bounds can act in one small batch

_DAPO = _paper(
    "dapo",
    reduction=reduce.token_mean,
    numbers={"clip_low": 0.2, "clip_high": 0.28},
    summary="higher upper bound, mean over all tokens, overlong punishment, only groups that disagree, no KL",
    source="arXiv:2503.14476, eq. 8 to 13",
    notes="Eq. 8 can be read as a mean over the tokens of each prompt's group; here, as in verl and TRL, it is over "
    "all tokens of the step. The paper rewards 1 and -1; here correct is 1 or 0, so the overlong punishment has half "
    "the weight. The paper makes 16 updates in one pass over each batch; here there are two passes, so that the bounds "
    "can act in one small batch.",
    sources=(*_bounds("section 4.1"), ("overlong", "section 3.4, halved with the scale of correct")),
    rewards={"correct": 1.0, "overlong": 0.5},
    dynamic_sampling=10,
)
_DR_GRPO = _paper(
    "dr-grpo",
    reduction=reduce.constant_divisor,
    numbers={"clip_low": 0.2, "clip_high": 0.2},
    summary="GRPO done right: no std, and a constant instead of each answer's length, no KL",
    source="arXiv:2503.20783, section 3.2 and appendix A",
    notes="Both changes belong together: the std favours problems that are nearly always or never solved, the mean per "
    "answer favours long wrong answers. The divisor is the generation budget (max_new_tokens).",
    sources=_bounds("table 6"),
    advantage=advantages.centred_advantages,
)
_GSPO = _paper(
    "gspo",
    ratio=objectives.sequence_mean_ratio,
    numbers={"clip_low": 3e-4, "clip_high": 4e-4},
    summary="one ratio per answer, the geometric mean of its tokens', with bounds of a few ten-thousandths",
    source="arXiv:2507.18071, eq. 5 to 7, section 5.1",
    notes="The bounds suit the geometric mean: 0.2 would never act on it. The chapter's ratio is this one to the power "
    "|y|. The paper makes four updates in one pass; here there are two passes.",
    sources=_bounds("section 5.1"),
)
_CISPO = _paper(
    "cispo",
    objective=objectives.cispo,
    reduction=reduce.token_mean,
    numbers={"ratio_cap": 5.0},
    summary="log-probability times advantage, weighted by the ratio up to a cap; no token loses its gradient",
    source="arXiv:2506.13585 (MiniMax-M1), eq. 4 and 5",
    notes="The paper bounds the ratio only from above and does not print its bound. ratio_cap is the bound itself, not "
    "1 plus it.",
    sources=(("ratio_cap", "arXiv:2510.13786 (ScaleRL), as in TRL's recipe"),),
)
_SAPO = _paper(
    "sapo",
    objective=objectives.sapo,
    numbers={"sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05},
    summary="a soft gate that fades with the ratio's distance from 1, faster for bad answers, in place of the clip",
    source="arXiv:2511.20347, eq. 5 and 6",
    notes="The printed loss is not near 0 at ratio 1: the gate's value there is 2 / tau. Its slope is GRPO's.",
    sources=(("sapo_tau_pos", "section 5"), ("sapo_tau_neg", "section 5")),
)
_OLMO3 = _paper(
    "olmo3",
    reduction=reduce.token_mean,
    numbers={"clip_low": 0.2, "clip_high": 0.272, "tis_cap": 2.0},
    summary="OlmoRL: mean over all tokens, no std, no KL, higher upper bound, truncated importance sampling, "
    "active sampling",
    source="arXiv:2512.13961 (Olmo 3), section 4.4",
    notes="Truncated importance sampling weighs trainer against sampler, without gradient; the book's script caps new "
    "over old instead, with gradient (book-olmo3). In float32 trainer and sampler agree to rounding, and the weight is "
    "1.",
    sources=(*_bounds("table 49"), ("tis_cap", "table 49: 32B Think and RL-Zero; the 7B models had no cap")),
    advantage=advantages.centred_advantages,
    dynamic_sampling=10,
)
_DEEPSEEK = _paper(
    "deepseek-v3.2",
    numbers={"clip_low": 0.2, "clip_high": 0.2, "kl_coeff": 0.02, "off_policy_delta": 0.1},
    kl_reweight=True,
    summary="GRPO with unbiased k3, off-policy masking of bad answers, kept sampling masks, no std",
    source="arXiv:2512.02556 (DeepSeek-V3.2), section 3.1",
    notes="The paper prints neither bounds nor delta nor the KL weight, and says that mathematics can do without KL: "
    "problems of domain math have kl_domains 0 here (--kl-domains math=1 restores it). The book's script divides by "
    "the std, weighs k1 by the ratio of whole answers, and takes the mask's statistic from the trainer "
    "(book-deepseek-v3.2).",
    sources=(*_PPO_BOUNDS, ("kl_coeff", "the book's script"), ("off_policy_delta", "the book's script")),
    advantage=advantages.centred_advantages,
    kl_domains={"math": 0.0},
    keep_sampling_mask=True,
    sampling_temperature=True,
)
_GDPO = _paper(
    "gdpo",
    numbers={"clip_low": 0.2, "clip_high": 0.2},
    summary="several rewards, each normalised in its group before they are added, then over the batch",
    source="arXiv:2601.05242, eq. 3 to 7",
    notes="If rewards are added before they are normalised, different pairs of rewards give the same advantage; "
    "normalised first they stay apart. The book's script does the second normalisation within its one group.",
    sources=_PPO_BOUNDS,
    advantage=advantages.gdpo_advantages,
    rewards={"correct": 1.0, "format": 1.0},
    model="tiny-reasoning",
)

# --- (c) the book's scripts, to the last digit ---


def _as_printed(row: Variant, name: str, section: str) -> Variant:
    return _row(
        row,
        name,
        objective=objectives.clip_first_printing,
        summary=f"the book's script of section {section}: {row.recipe.summary}",
        source=f"book {section}, first printing",
        notes="The clip as first printed: min for A >= 0, max for A < 0. Tested against the script's own numbers.",
    )


_BOOK_7_6_3 = _as_printed(_CLIPPED, "", "7.6.3")
_BOOK_OLMO3 = _row(
    _BOOK_7_6_3,
    "book-olmo3",
    ratio=objectives.capped_token_ratio,
    reduction=reduce.token_mean,
    numbers={"clip_low": 0.2, "clip_high": 10.0},
    summary="the book's olmo3_style.py: capped token ratios, mean over all tokens, no std, active sampling",
    notes="What the script calls truncated importance sampling caps new over old at 1 + clip_high. Its active sampling "
    "tries up to 8 problems in each inner epoch; here the second epoch keeps the problem of the first.",
    advantage=advantages.centred_advantages,
    dynamic_sampling=8,
)
_BOOK_DEEPSEEK = _row(
    _BOOK_7_6_3,
    "book-deepseek-v3.2",
    numbers=_CLIPPED.loss.numbers | {"off_policy_delta": 0.1},
    kl_reweight=True,
    summary="the book's deepseek_v32_style.py: kept sampling masks, off-policy masking, k1 times the ratio of whole "
    "answers",
    notes="Log-probs keep the sampled set but not the sampling temperature; the entropy the script logs is NaN under "
    "its mask, here it is finite. Its KL weight is 0 unless given. The mask compares with what the sampler recorded, "
    "which in float32 equals the trainer's.",
    keep_sampling_mask=True,
)
_BOOK_GDPO = _row(
    _BOOK_7_6_3,
    "book-gdpo",
    numbers=_CLIPPED.loss.numbers | {"kl_coeff": 0.02},
    summary="the book's gdpo.py: correctness and a box, each normalised, summed, normalised again in the group",
    notes="An answer without a box is graded by its last number. Everything else is the script of 7.5.",
    advantage=advantages.gdpo_group_advantages,
    rewards={"correct_or_number": 1.0, "boxed": 0.1},
    model="tiny-reasoning",
)

_ROWS = (
    _BASELINE, _TRACKING, _CLIPPED, _KL, _FORMAT,
    _GRPO, _DAPO, _DR_GRPO, _GSPO, _CISPO, _SAPO, _OLMO3, _DEEPSEEK, _GDPO,
    _row(_BASELINE, "book-7.3", summary=f"the book's script of section 7.3: {_BASELINE.recipe.summary}"),
    _as_printed(_CLIPPED, "book-7.4", "7.4"),
    _as_printed(_KL, "book-7.5", "7.5"),
    _as_printed(_FORMAT, "book-7.6", "7.6"),
    _BOOK_OLMO3, _BOOK_DEEPSEEK, _BOOK_GDPO,
)  # fmt: skip

VARIANTS: dict[str, Variant] = {row.name: row for row in _ROWS}
"""Every variant by name; `register_variant` adds to it."""


# --- finding, registering and changing a variant ---


def register_variant(variant: Variant) -> Variant:
    """Adds a variant of your own to `VARIANTS` under its name, or replaces it, and returns it.

    Raises:
      InputError: the name belongs to one of grpojax's variants, or loss or advantages cannot be computed: a piece asks
        for an array or number that does not exist, nothing reads one of the numbers, or a shape is wrong.
    """
    if variant.name in {row.name for row in _ROWS}:
        raise InputError(f"{variant.name!r} is a variant of grpojax; choose another name for your own.")
    if ":" in variant.name:
        raise InputError(f"the name {variant.name!r} has a colon, which separates module and name; choose another.")
    for key, value in variant.loss.numbers.items():
        _check_number(key, value)
    _check_numbers(variant)
    _check_traces(variant)
    VARIANTS[variant.name] = variant
    return variant


def find_variant(name: str) -> Variant:
    """A variant by name, or one of your own as "my_module:MY_VARIANT", which is imported and registered.

    Raises:
      InputError: there is no such variant.
    """
    if ":" in name:
        found = import_object("variant", name)
        if not isinstance(found, Variant):
            raise InputError(f"variant {name!r} has type {type(found).__name__}; it must be a grpojax.Variant.")
        return register_variant(found)
    if name not in VARIANTS:
        hint = did_you_mean(name, VARIANTS)
        names = ", ".join(VARIANTS)
        raise InputError(f"unknown variant {name!r}; choose one of {names}, or your own as module:name.{hint}")
    return VARIANTS[name]


def get_variant(name: str, **overrides: Any) -> Variant:
    """A variant with some of its settings changed.

    Args:
      name: one of `VARIANTS`, or "my_module:MY_VARIANT".
      overrides: any setting of `VariantSettings`; `rewards`, `kl_domains` and `numbers` are dicts of numbers by name. A
        number of a variant of your own may be given by its name.

    Raises:
      InputError: for an unknown name or setting, a setting the variant does not use, or a value out of range.

    >>> get_variant("clipped", clip_eps=0.2).loss.numbers
    {'clip_low': 0.2, 'clip_high': 0.2}
    """
    variant, settings = find_variant(name), settings_of(VariantSettings)
    given = _spelled_out(variant, overrides)
    numbers, changes = dict(variant.loss.numbers), {"rewards": dict(variant.recipe.rewards)}
    for key, value in given.items():
        meta = settings[key].metadata if key in settings else {"number": True}
        if "number" in meta:
            numbers[key] = value
        else:
            changes[meta.get("field", key)] = meta["pieces"][value].function if "pieces" in meta else value
    off = {key for key, field in settings.items() if "zero_is_off" in field.metadata and numbers.get(key) == 0}
    numbers = {key: float(value) for key, value in numbers.items() if key not in off}
    _check_ratio(variant, changes)
    if changes.get("overlong_cache") == 0:
        changes["overlong_cache"] = None
    if "clip_dual" in numbers and variant.loss.objective is objectives.clip_pessimistic:
        changes["objective"] = objectives.clip_two_sided
        least = 1 + numbers["clip_high"]
        if numbers["clip_dual"] <= least:
            raise InputError(f"clip_dual is {numbers['clip_dual']:g}; it must be above 1 + clip_high, {least:g}.")
    variant = _row(variant, variant.name, numbers=numbers, **changes)
    _check_numbers(variant, given)
    _check_rewards(variant)
    return variant


def variant_advantages(variant: Variant, rewards: Array) -> Array:
    """The advantages of a step: rewards [K, P, G], in the order of recipe.rewards -> [P, G].

    An advantage function with a parameter `weights` gets all K rewards, any other their weighted sum.
    """
    recipe = variant.recipe
    weights = jnp.asarray(list(recipe.rewards.values()), jnp.float32)
    if "weights" in inspect.signature(recipe.advantage).parameters:
        return recipe.advantage(rewards, weights)
    return recipe.advantage(advantages.total_reward(rewards, weights))


def _spelled_out(variant: Variant, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Checked overrides without the short forms `clip_eps`, `format_reward_weight` and `numbers`."""
    settings, given = settings_of(VariantSettings), dict(overrides)
    for key, value in overrides.items():
        if key in settings and "weights" in settings[key].metadata:
            given[key] = _checked_weights(key, value)
        elif key in settings:
            check_setting(settings[key], value)
        elif key in variant.loss.numbers:
            _check_number(key, value)
        else:
            known = list(dict.fromkeys([*settings, *variant.loss.numbers]))
            raise InputError(f"unknown setting {key!r}; known are {', '.join(known)}.{did_you_mean(key, known)}")
    if "clip_eps" in given:
        if "clip_low" not in variant.loss.numbers:
            raise InputError(_unused(variant, "clip_eps"))
        eps = given.pop("clip_eps")
        given = {"clip_low": eps, "clip_high": eps} | given
    for key, value in given.pop("numbers", {}).items():
        if key not in variant.loss.numbers:
            own = ", ".join(variant.loss.numbers) or "none"
            raise InputError(f"variant {variant.name!r} has no number {key!r}; its numbers are {own}.")
        given[key] = value
    if "rewards" in given or "format_reward_weight" in given:
        rewards = dict(given.pop("rewards", variant.recipe.rewards))
        if "format_reward_weight" in given:
            rewards["format"] = float(given.pop("format_reward_weight"))
        given["rewards"] = {name: weight for name, weight in rewards.items() if weight != 0}
    return given


def _check_ratio(variant: Variant, changes: Mapping[str, Any]) -> None:
    """Raises an InputError if the variant cannot have another ratio, or not this one."""
    if "ratio" in changes and variant.loss.ratio is None:
        raise InputError(
            f"variant {variant.name!r} has no ratio to choose; leave it out, or choose a variant with one such as "
            "'clipped'."
        )
    sequence = (objectives.sequence_sum_ratio, objectives.sequence_mean_ratio)
    if changes.get("ratio") in sequence and variant.loss.objective is objectives.cispo:
        raise InputError("cispo weighs each token's log-prob, so its ratio is of tokens; choose token or gspo-token.")


def _check_numbers(variant: Variant, given: Mapping[str, Any] = {}) -> None:
    """Raises an InputError if a piece lacks one of its parameters, or nothing reads one of the numbers."""
    loss, read, named = variant.loss, set(), f"variant {variant.name!r}"
    for kind, own in (("ratio", 0), ("objective", 2), ("reduction", 1)):
        piece = getattr(loss, kind)
        try:
            wanted = [] if piece is None else parameters(piece)[own:]
        except ValueError as error:
            raise InputError(f"{named}: {error}") from None
        except (TypeError, AttributeError):
            raise InputError(f"{named}: its {kind} is {piece!r}; it must be a plain function.") from None
        lacking = [name for name in wanted if name not in (*ARRAYS, *loss.numbers, "token_budget")]
        if lacking:
            numbers, arrays = ", ".join(loss.numbers) or "none", ", ".join(ARRAYS)
            raise InputError(
                f"the {kind} {piece.__name__} of {named} takes {lacking[0]!r}, which is neither one of its numbers "
                f"({numbers}) nor an array ({arrays}); add the number, or name an array."
            )
        read |= set(wanted)
    for key in loss.numbers:
        if key in ARRAYS:
            raise InputError(f"{named} has a number named {key!r}, like an array; choose another name.")
        if key not in read and key not in NUMBERS:
            raise InputError(_unused(variant, key))
    if given.get("overlong_cache") and "overlong" not in variant.recipe.rewards:
        raise InputError(_unused(variant, "overlong_cache"))


def _check_traces(variant: Variant) -> None:
    """Raises an InputError if the loss of 2 answers of 3 tokens, or advantages of 2 groups of 3, cannot be traced."""
    floats = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    tokens = floats(2, 3)
    loss, _ = _traced("loss", variant, policy_loss, variant.loss, tokens, tokens, tokens, floats(2), tokens)
    if loss.shape:
        raise InputError(
            f"the loss of variant {variant.name!r} has shape {loss.shape}; its reduction must return one number."
        )
    rewards = floats(len(variant.recipe.rewards), 2, 3)
    got = _traced("advantage", variant, functools.partial(variant_advantages, variant), rewards)
    if got.shape != (2, 3):
        raise InputError(
            f"the advantage of variant {variant.name!r} has shape {got.shape} for 2 groups of 3 answers; "
            "it must return (2, 3)."
        )


def _traced(name: str, variant: Variant, function: Callable, *arguments: Any) -> Any:
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:  # a user's function can raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
        message = f"the {name} of variant {variant.name!r} cannot be computed ({reason}); fix its functions."
        raise InputError(message) from error


def _check_rewards(variant: Variant) -> None:
    if not variant.recipe.rewards:
        raise InputError(
            "rewards is empty; name at least one reward function with a weight above 0, such as correct=1."
        )
    if variant.recipe.conditional_reward and "format" not in variant.recipe.rewards:
        raise InputError(
            f"conditional_reward has nothing to act on: variant {variant.name!r} has no format reward; "
            "give a format_reward_weight, or choose the variant 'format'."
        )


def _checked_weights(key: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise InputError(f"{key} is {value!r}; it must be a dict of numbers by name, such as {{'correct': 1.0}}.")
    for name, weight in value.items():
        _check_number(f"{key} {name}", weight, least=-math.inf if key == "numbers" else 0)
    return {name: float(weight) for name, weight in value.items()}


def _check_number(name: str, value: Any, least: float = -math.inf) -> None:
    if not is_number(value) or value < least:
        bound = ", 0 or more" if least == 0 else ""
        raise InputError(f"{name} is {value!r}; it must be a finite number{bound}.")


def _unused(variant: Variant, key: str) -> str:
    number = "clip_low" if key == "clip_eps" else key
    fitting = [name for name, other in VARIANTS.items() if number in other.loss.numbers]
    hint = f" such as {fitting[0]!r}" if fitting else ""
    return f"variant {variant.name!r} does not use {key}; leave it out, or choose a variant that does{hint}."
