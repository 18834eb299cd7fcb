"""Variants in words: every formula is made of the pieces in force, every number has its source, nothing inert is silent."""

import dataclasses

import pytest

from grpojax import VARIANTS, explain, get_variant
from grpojax.describe import formula, notices
from grpojax.loss.objectives import token_ratio
from grpojax.settings import settings_of
from grpojax.variants import VariantSettings

MEANING = {name: field.metadata["help"] for name, field in settings_of(VariantSettings).items()}

LOSS = {
    "baseline": "loss = - mean_i sum_t A_i log p_new(y_it)",
    "clipped": "loss = - mean_i min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i)",
    "grpo": "loss = - mean_i mean_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i) + kl_coeff mean_i mean_t "
    "[exp(log p_ref(y_it) - log p_new(y_it)) - 1 - (log p_ref(y_it) - log p_new(y_it))]",
    "dapo": "loss = - mean over all tokens it of the step of min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)",
    "dr-grpo": "loss = - 1 / (B token_budget) sum_i sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)",
    "gspo": "loss = - mean_i min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i)",
    "cispo": "loss = - mean over all tokens it of the step of stopgrad(min(r_it, ratio_cap)) A_i log p_new(y_it)",
    "sapo": "loss = - mean_i mean_t 4 / tau sigmoid(tau (r_it - 1)) A_i",
    "olmo3": "loss = - mean over all tokens it of the step of m min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)",
    "book-7.4": "loss = - mean_i A_i min(r_i, 1 + clip_high)",
    "book-gdpo": "loss = - mean_i A_i min(r_i, 1 + clip_high) + kl_coeff mean_i [log p_new(y_i) - log p_ref(y_i)]",
}


@pytest.mark.parametrize("name", LOSS)
def test_formulas(name):
    assert formula(VARIANTS[name]).splitlines()[0] == LOSS[name]


@pytest.mark.parametrize(
    ("name", "overrides", "part"),
    [
        ("kl", {"kl_estimator": "k2", "kl_level": "token"}, "kl_coeff mean_i sum_t [(log p_new(y_it) - log p_ref(y_it))^2 / 2]"),
        ("kl", {"kl_reweight": True}, "kl_coeff mean_i p_new(y_i) / p_old(y_i) [log p_new(y_i) - log p_ref(y_i)]"),
        ("kl", {"length_normalize": True}, "kl_coeff mean_i 1 / |y_i| [log"),
        ("dapo", {"kl_coeff": 1, "length_normalize": True}, "kl_coeff mean_i mean_t [exp("),
        ("deepseek-v3.2", {}, "kl_coeff of domain math is 0 kl_coeff"),
        ("deepseek-v3.2", {}, "p is over the ids that could be sampled"),
        ("grpo", {"advantage": "leave-one-out"}, "A_i = R_i - mean of the others of the group"),
        ("grpo", {"reduction": "sum"}, "loss = - mean_i sum_t min(r_it"),
        ("grpo", {"clip_dual": 3}, "clip_dual A_i"),
        ("format", {"conditional_reward": True, "format_reward_weight": 0.5}, "R_i = correct_i + 0.5 format_i correct_i"),
        ("clipped", {"sequence_mask_cap": 2}, "m_i = w_i where w_i <= sequence_mask_cap"),
        ("gspo", {"ratio": "token"}, "loss = - mean_i mean_t min(r_it"),
    ],
)
def test_formulas_show_the_pieces_in_force(name, overrides, part):
    assert part in formula(get_variant(name, **overrides))
    assert not overrides or part not in formula(VARIANTS[name])


@pytest.mark.parametrize("name", VARIANTS)
def test_explanations_name_every_number_with_its_source(name):
    row = VARIANTS[name]
    text = explain(get_variant(name))
    assert text.startswith(f"{name}: ") and f"Source: {row.recipe.source}" in text and text.endswith(row.recipe.notes)
    sources = dict(row.recipe.sources)
    for number, value in row.loss.numbers.items():
        assert f"  {number} = {value:g}   {MEANING[number]}   [{sources.get(number, row.recipe.source)}]" in text
        assert number in formula(row) or (number == "clip_low" and name.startswith("book")), number
    for reward, weight in row.recipe.rewards.items():
        assert f"  {reward} = {weight:g} " in text
    assert ("R_i" in text) == ("R_i" in text.split("A_i = ")[1])  # no letter is defined that nothing uses
    assert f"inner_epochs = {row.recipe.inner_epochs} " in text


def test_a_ratio_may_take_the_token_budget():
    """It has no number in the loss until a run gives it."""

    def ratio(new_logps, old_logps, mask, token_budget):
        """r_it = (p_new(y_it) / p_old(y_it))^(1 / token_budget)"""
        return token_ratio(new_logps / token_budget, old_logps / token_budget, mask)

    grpo = VARIANTS["grpo"]
    text = formula(dataclasses.replace(grpo, loss=dataclasses.replace(grpo.loss, ratio=ratio)))
    assert text.splitlines()[:2] == [LOSS["grpo"], ratio.__doc__]


def test_explain_takes_a_name():
    assert explain("kl") == explain(get_variant("kl"))


def test_explanations_say_what_was_given():
    text = explain(get_variant("kl", clip_eps=0.25, kl_coeff=0.02, inner_epochs=7, format_reward_weight=0.5))
    for part in ("clip_low = 0.25 ", "clip_high = 0.25 ", "kl_coeff = 0.02 ", "format = 0.5 "):
        (line,) = [line for line in text.splitlines() if part in line]
        assert line.endswith("[given]")
    assert "inner_epochs = 7 " in text
    assert "Numbers:\n  none" in explain(get_variant("tracking"))


@pytest.mark.parametrize(
    ("name", "overrides", "updates", "notice"),
    [
        ("clipped", {}, 1, "so the bound cannot act and the printed pg_loss is about 0 by construction; its gradient"),
        ("grpo", {}, 1, "so the bound cannot act and the printed pg_loss is about 0 by construction; its gradient"),
        ("dapo", {}, 1, "so the bound cannot act; its gradient"),  # answers of unlike length do not even out
        ("sapo", {}, 1, "so the bound cannot act; its gradient"),
        ("gspo", {"clip_eps": 0.2}, 2, "will hardly ever act on a geometric mean"),
        ("clipped", {"clip_eps": 0.001}, 2, "clip almost every ratio of whole answers"),
        ("cispo", {"ratio_cap": 0.28}, 2, "a ratio_cap of 0.28 is below 1"),
        ("olmo3", {"tis_cap": 0.5}, 2, "a tis_cap of 0.5 is below 1"),
        ("kl", {}, 2, "gradient of this KL term does not contain the reference"),
        ("clipped", {"kl_reweight": True}, 2, "kl_reweight has no KL term to act on"),
        ("clipped", {"reference_refresh": 5, "length_normalize": True}, 2, "length_normalize, reference_refresh has no KL term"),
        ("clipped", {"kl_domains": {"math": 0}}, 2, "kl_domains has no KL term to act on"),
        ("deepseek-v3.2", {}, 1, "no answer is off-policy"),
    ],
)
def test_inert_and_contradictory_settings_are_said_aloud(name, overrides, updates, notice):
    assert any(notice in line for line in notices(get_variant(name, **overrides), updates))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("clipped", {}), ("gspo", {}), ("cispo", {}), ("grpo", {}), ("kl", {"kl_estimator": "k3"}), ("deepseek-v3.2", {})],
)
def test_settings_that_do_what_they_say_need_no_notice(name, overrides):
    assert list(notices(get_variant(name, **overrides), 2)) == []
