"""The table of variants: a row names its pieces and its numbers. Adding a variant is a row, and its tests.

Pieces (functions, counts, flags) are structure and fixed at compile time; numbers are data and never compile again.
A number that is absent is the only way to say "off": no `kl_coeff` means no KL term and no reference model.
"""

import dataclasses
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from grpojax.errors import InputError, did_you_mean
from grpojax.loss import advantages, objectives, penalties, reduce


@dataclass(frozen=True)
class Variant:
    """A way to turn rollouts into a loss."""

    name: str
    summary: str  # one line
    source: str  # where it comes from
    formula: str  # the loss without its KL term, in plain mathematics; definitions on further lines
    kl_formula: str  # what kl_coeff multiplies
    notes: str  # what differs from the book's script or the papers
    ratio: Callable | None  # (new_logps, old_logps, mask) -> [B] or [B, S]; None: log-probs themselves
    objective: Callable  # (ratio, advantages, its numbers) -> values, clipped
    penalty: Callable  # (new_logps, ref_logps, mask) -> [B] or [B, S]; used where numbers has kl_coeff
    reduction: Callable  # ([B, S] values, mask, whole_mask) -> []
    advantage: Callable  # rewards [P, G] -> [P, G]
    numbers: dict[str, float]
    inner_epochs: int  # updates from one frozen old policy
    conditional_reward: bool  # format reward only where the answer is correct
    model: str  # the embedded model it is tried on by default


jax.tree_util.register_dataclass(
    Variant,
    data_fields=["numbers"],
    meta_fields=[field.name for field in dataclasses.fields(Variant) if field.name != "numbers"],
)

NUMBERS = {
    "clip_low": "how far the ratio may fall below 1",
    "clip_high": "how far the ratio may rise above 1",
    "kl_coeff": "weight of the KL term; absent or 0: no KL term and no reference model",
    "format_reward_weight": "weight of the think-format reward; absent or 0: not part of the reward",
}
"""Every number a row may have, with its meaning."""

_SWITCHES = ("kl_coeff", "format_reward_weight")  # numbers any row can be given, and 0 takes away
_STRUCTURE = ("inner_epochs", "conditional_reward")

_TRACKING = Variant(
    name="baseline",
    summary="GRPO without ratio and KL: log-probability times advantage",
    source="book chapter 6 and 7.3",
    formula="loss = - mean_i A_i sum_t log p(y_it)",
    kl_formula="mean_i sum_t [log p_new(y_it) - log p_ref(y_it)]",
    notes="Equal to the book's scripts. One update per batch, so no ratio is needed.",
    ratio=None,
    objective=objectives.reinforce,
    penalty=penalties.sequence_k1,
    reduction=reduce.sum_per_sequence,
    advantage=advantages.group_advantages,
    numbers={},
    inner_epochs=1,
    conditional_reward=False,
    model="tiny-base",
)
_CLIPPED = replace(
    _TRACKING,
    name="clipped",
    summary="clipped ratio of whole-sequence probabilities",
    source="book 7.4; the bound of arXiv:1707.06347, eq. 7",
    formula="loss = - mean_i min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i)\n"
    "r_i = exp(sum_t [log p_new(y_it) - log p_old(y_it)])",
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
    "towards the uniform distribution. The chapter keeps it to show it fail (its 7.5 log ends at entropy 11.93 = ln V).",
    numbers=_CLIPPED.numbers | {"kl_coeff": 0.001},
)
_FORMAT = replace(
    _CLIPPED,
    name="format",
    summary="clipped, with a reward for <think> ... </think> beside the one for correctness",
    source="book 7.6",
    notes="format_i is 1 where the first <think> comes before the first </think>. With conditional_reward it counts "
    "only in correct answers. One update per batch: the ratio is 1 and the printed loss about 0, its gradient is not.",
    numbers=_CLIPPED.numbers | {"format_reward_weight": 1.0},
    inner_epochs=1,
    model="tiny-reasoning",
)


def _as_printed(row: Variant, name: str, section: str) -> Variant:
    """The book's script to the last digit: the same row with the first printing's clip."""
    return replace(
        row,
        name=name,
        summary=f"the book's script of section {section}: {row.summary}",
        source=f"book {section}, first printing",
        formula=row.formula.replace("min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i)", "A_i min(r_i, 1 + clip_high)"),
        notes="First printing's clip: min for A >= 0, max for A < 0. Tested against the script's own numbers.",
        objective=objectives.clip_first_printing,
    )


_ROWS = (
    _TRACKING,
    replace(_TRACKING, name="tracking", summary=_TRACKING.summary + " (the same as baseline)"),
    _CLIPPED,
    _KL,
    _FORMAT,
    replace(_TRACKING, name="book-7.3", summary=f"the book's script of section 7.3: {_TRACKING.summary}"),
    _as_printed(_CLIPPED, "book-7.4", "7.4"),
    _as_printed(_KL, "book-7.5", "7.5"),
    _as_printed(_FORMAT, "book-7.6", "7.6"),
)

VARIANTS: dict[str, Variant] = {row.name: row for row in _ROWS}
"""Every variant by name."""


def get_variant(name: str, **overrides: Any) -> Variant:
    """A row of the table, with some of its numbers or settings replaced.

    Args:
      name: one of `VARIANTS`.
      overrides: `clip_eps` (both sides), `clip_low`, `clip_high`, `kl_coeff`, `format_reward_weight`, `inner_epochs`,
        `conditional_reward`. A `kl_coeff` or `format_reward_weight` of 0 takes the term away.

    Raises:
      InputError: for an unknown name or setting, a setting the variant has no use for, or a value out of range.

    >>> get_variant("clipped", clip_eps=0.2).numbers
    {'clip_low': 0.2, 'clip_high': 0.2}
    """
    if name not in VARIANTS:
        raise InputError(f"unknown variant {name!r}; choose one of {', '.join(VARIANTS)}.{did_you_mean(name, VARIANTS)}")
    row = VARIANTS[name]
    if "clip_eps" in overrides:
        eps = overrides.pop("clip_eps")
        if "clip_low" not in row.numbers:
            raise InputError(_unused(row, "clip_eps"))
        overrides = {"clip_low": eps, "clip_high": eps} | overrides
    structure = {key: overrides.pop(key) for key in _STRUCTURE if key in overrides}
    for key, value in overrides.items():
        _check_number(row, key, value)
    numbers = {key: float(value) for key, value in (row.numbers | overrides).items()}
    numbers = {key: value for key, value in numbers.items() if value != 0 or key not in _SWITCHES}
    row = replace(row, numbers=numbers, **structure)
    if not isinstance(row.inner_epochs, int) or row.inner_epochs < 1:
        raise InputError(f"inner_epochs is {row.inner_epochs!r}; it must be a whole number, at least 1.")
    if row.conditional_reward and "format_reward_weight" not in numbers:
        raise InputError(
            f"conditional_reward has nothing to act on: variant {name!r} has no format reward; "
            "give a format_reward_weight, or choose the variant 'format'."
        )
    return row


def _check_number(row: Variant, key: str, value: float) -> None:
    if key not in NUMBERS:
        known = ["clip_eps", *NUMBERS, *_STRUCTURE]
        raise InputError(f"unknown setting {key!r}; known are {', '.join(known)}.{did_you_mean(key, known)}")
    if key not in row.numbers and key not in _SWITCHES:
        raise InputError(_unused(row, key))
    if not isinstance(value, numbers.Real) or not 0 <= value < float("inf"):
        raise InputError(f"{key} is {value!r}; it must be a finite number, 0 or more.")


def _unused(row: Variant, key: str) -> str:
    return f"variant {row.name!r} does not use {key}; leave it out, or choose a variant with a clipped ratio."


def explain(variant: Variant) -> str:
    """The objective in plain mathematics, every number, the source, and what differs."""
    loss, *definitions = variant.formula.splitlines()
    if "kl_coeff" in variant.numbers:
        loss += f" + kl_coeff {variant.kl_formula}"
    reward = "reward_i = correct_i"
    if "format_reward_weight" in variant.numbers:
        reward += " + format_reward_weight format_i" + (" correct_i" if variant.conditional_reward else "")
    numbers = [f"  {key} = {value:g}   {NUMBERS[key]}" for key, value in variant.numbers.items()] or ["  none"]
    return "\n".join(
        [
            f"{variant.name}: {variant.summary}",
            f"Source: {variant.source}",
            "",
            loss,
            *definitions,
            reward,
            "A_i = (reward_i - mean of the group) / (std of the group over G - 1, + 1e-4)",
            "",
            "Numbers:",
            *numbers,
            f"  inner_epochs = {variant.inner_epochs}   updates from one frozen old policy",
            f"  conditional_reward = {variant.conditional_reward}",
            f"Embedded model: {variant.model}",
            "",
            variant.notes,
        ]
    )
