"""The pieces a loss is made of: name, function and formula, one table for each kind.

Names are what flags and `get_variant` take. Formulas are what `grpojax variants --explain` prints: i counts answers, t the
tokens of an answer, r is the ratio, A the advantage, y the sampled tokens.
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple

from grpojax.loss import advantages, objectives, penalties, reduce, safeguards


class Piece(NamedTuple):
    """A function with its formula."""

    function: Callable
    formula: str


RATIOS = {
    "token": Piece(objectives.token_ratio, "r_it = p_new(y_it) / p_old(y_it)"),
    "capped-token": Piece(objectives.capped_token_ratio, "r_it = min(p_new(y_it) / p_old(y_it), 1 + clip_high)"),
    "sequence-sum": Piece(objectives.sequence_sum_ratio, "r_i = exp(sum_t [log p_new(y_it) - log p_old(y_it)])"),
    "sequence-mean": Piece(objectives.sequence_mean_ratio, "r_i = exp(mean_t [log p_new(y_it) - log p_old(y_it)])"),
    "gspo-token": Piece(
        objectives.gspo_token_ratio, "r_it = exp(mean_t [log p_new - log p_old]) in value, with the gradient of token t alone"
    ),
}
OBJECTIVES = {
    "reinforce": Piece(objectives.reinforce, "A_i log p_new(y_it)"),
    "clip": Piece(objectives.clip_pessimistic, "min(r A_i, clip(r, 1 - clip_low, 1 + clip_high) A_i)"),
    "clip-two-sided": Piece(
        objectives.clip_two_sided,
        "{A_i > 0: min(r, 1 + clip_high) A_i; A_i < 0: max(min(r A_i, (1 - clip_low) A_i), clip_dual A_i)}",
    ),
    "clip-first-printing": Piece(objectives.clip_first_printing, "A_i min(r, 1 + clip_high)"),
    "cispo": Piece(objectives.cispo, "stopgrad(min(r, ratio_cap)) A_i log p_new(y_it)"),
    "sapo": Piece(objectives.sapo, "4 / tau sigmoid(tau (r - 1)) A_i"),
}
REDUCTIONS = {
    "sum": Piece(reduce.sum_per_sequence, "mean_i sum_t"),
    "sequence": Piece(reduce.mean_per_sequence, "mean_i mean_t"),
    "token": Piece(reduce.token_mean, "mean over all tokens it of the step of"),
    "constant": Piece(reduce.constant_divisor, "1 / (B token_budget) sum_i sum_t"),
}
ADVANTAGES = {
    "group": Piece(advantages.group_advantages, "A_i = (R_i - mean of the group) / (std of the group over G - 1, + 1e-4)"),
    "centred": Piece(advantages.centred_advantages, "A_i = R_i - mean of the group"),
    "batch-std": Piece(
        advantages.batch_std_advantages, "A_i = (R_i - mean of the group) / (std of all rewards of the step, + 1e-4)"
    ),
    "leave-one-out": Piece(advantages.leave_one_out_advantages, "A_i = R_i - mean of the others of the group"),
    "gdpo": Piece(
        advantages.gdpo_advantages,
        "A_i = S_i normalised over the step; S_i = sum_k weight_k (r_ik - mean) / (std + 1e-4), each in its group",
    ),
    "gdpo-group": Piece(
        advantages.gdpo_group_advantages,
        "A_i = S_i normalised in its group; S_i = sum_k weight_k (r_ik - mean) / (std + 1e-4), each in its group",
    ),
}
KL_ESTIMATORS = {
    "k1": Piece(penalties.k1, "{new} - {ref}"),
    "k2": Piece(penalties.k2, "({new} - {ref})^2 / 2"),
    "k3": Piece(penalties.k3, "exp({ref} - {new}) - 1 - ({ref} - {new})"),
}
SAFEGUARDS = {
    "tis_cap": Piece(
        safeguards.truncated_importance, "m_it = stopgrad(min(p_old(y_it) / p_sampler(y_it), tis_cap))"
    ),
    "sequence_mask_cap": Piece(
        safeguards.sequence_importance_mask,
        "m_i = w_i where w_i <= sequence_mask_cap, else 0; w_i = stopgrad(p_old(y_i) / p_sampler(y_i))",
    ),
    "off_policy_delta": Piece(
        safeguards.off_policy_mask,
        "m_i = 0 where A_i < 0 and mean_t log(p_sampler(y_it) / p_new(y_it)) > off_policy_delta, else 1",
    ),
}
"""By the number that turns them on: a loss has the safeguard if it has the number."""


def formula(function: Callable) -> str:
    """The formula of a piece; for a function that is in no table, the first line of its docstring, or its name."""
    for table in (RATIOS, OBJECTIVES, REDUCTIONS, ADVANTAGES, KL_ESTIMATORS, SAFEGUARDS):
        for piece in table.values():
            if piece.function is function:
                return piece.formula
    return (inspect.getdoc(function) or function.__name__).splitlines()[0]
