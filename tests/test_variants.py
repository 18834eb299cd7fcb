"""The table of variants: its rows, overrides and errors."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax import VARIANTS, Loss, Recipe, RunConfig, explain, get_variant, policy_loss, register_variant
from grpojax.errors import InputError
from grpojax.loss import advantages, objectives, penalties, reduce
from grpojax.loss.policy_loss import NUMBERS, parameters
from grpojax.variants import Variant, VariantSettings, variant_advantages

CLIP10 = {"clip_low": 10.0, "clip_high": 10.0}
PPO = {"clip_low": 0.2, "clip_high": 0.2}
CORRECT = {"correct": 1.0}
FORMAT = {"correct": 1.0, "format": 1.0}

# name -> ratio, objective, reduction, advantage, numbers, rewards, inner epochs, rollouts
ROWS = {
    "baseline": (None, "reinforce", "sum_per_sequence", "group_advantages", {}, CORRECT, 1, "fresh"),
    "tracking": (None, "reinforce", "sum_per_sequence", "group_advantages", {}, CORRECT, 1, "fresh"),
    "clipped": ("sequence_sum_ratio", "clip_pessimistic", "sum_per_sequence", "group_advantages", CLIP10, CORRECT, 2, "fresh"),
    "kl": ("sequence_sum_ratio", "clip_pessimistic", "sum_per_sequence", "group_advantages", CLIP10 | {"kl_coeff": 0.001}, CORRECT, 2, "fresh"),
    "format": ("sequence_sum_ratio", "clip_pessimistic", "sum_per_sequence", "group_advantages", CLIP10, FORMAT, 1, "fresh"),
    "grpo": ("token_ratio", "clip_pessimistic", "mean_per_sequence", "group_advantages", PPO | {"kl_coeff": 0.04}, CORRECT, 1, "pool"),
    "dapo": ("token_ratio", "clip_pessimistic", "token_mean", "group_advantages", {"clip_low": 0.2, "clip_high": 0.28}, CORRECT | {"overlong": 0.5}, 2, "pool"),
    "dr-grpo": ("token_ratio", "clip_pessimistic", "constant_divisor", "centred_advantages", PPO, CORRECT, 2, "pool"),
    "gspo": ("sequence_mean_ratio", "clip_pessimistic", "mean_per_sequence", "group_advantages", {"clip_low": 3e-4, "clip_high": 4e-4}, CORRECT, 2, "pool"),
    "cispo": ("token_ratio", "cispo", "token_mean", "group_advantages", {"ratio_cap": 5.0}, CORRECT, 2, "pool"),
    "sapo": ("token_ratio", "sapo", "mean_per_sequence", "group_advantages", {"sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05}, CORRECT, 2, "pool"),
    "olmo3": ("token_ratio", "clip_pessimistic", "token_mean", "centred_advantages", {"clip_low": 0.2, "clip_high": 0.272, "tis_cap": 2.0}, CORRECT, 2, "pool"),
    "deepseek-v3.2": ("token_ratio", "clip_pessimistic", "mean_per_sequence", "centred_advantages", PPO | {"kl_coeff": 0.02, "off_policy_delta": 0.1}, CORRECT, 2, "pool"),
    "gdpo": ("token_ratio", "clip_pessimistic", "mean_per_sequence", "gdpo_advantages", PPO, FORMAT, 2, "pool"),
    "book-7.3": (None, "reinforce", "sum_per_sequence", "group_advantages", {}, CORRECT, 1, "fresh"),
    "book-7.4": ("sequence_sum_ratio", "clip_first_printing", "sum_per_sequence", "group_advantages", CLIP10, CORRECT, 2, "fresh"),
    "book-7.5": ("sequence_sum_ratio", "clip_first_printing", "sum_per_sequence", "group_advantages", CLIP10 | {"kl_coeff": 0.001}, CORRECT, 2, "fresh"),
    "book-7.6": ("sequence_sum_ratio", "clip_first_printing", "sum_per_sequence", "group_advantages", CLIP10, FORMAT, 1, "fresh"),
    "book-olmo3": ("capped_token_ratio", "clip_first_printing", "token_mean", "centred_advantages", {"clip_low": 0.2, "clip_high": 10.0}, CORRECT, 2, "fresh"),
    "book-deepseek-v3.2": ("sequence_sum_ratio", "clip_first_printing", "sum_per_sequence", "group_advantages", CLIP10 | {"off_policy_delta": 0.1}, CORRECT, 2, "fresh"),
    "book-gdpo": ("sequence_sum_ratio", "clip_first_printing", "sum_per_sequence", "gdpo_group_advantages", CLIP10 | {"kl_coeff": 0.02}, {"correct_or_number": 1.0, "boxed": 0.1}, 2, "fresh"),
}  # fmt: skip

# (estimator, level, reweighted) of the rows with a KL term, or that get one
KL = {
    "kl": ("k1", "sequence", False),
    "clipped": ("k1", "sequence", False),
    "book-7.5": ("k1", "sequence", False),
    "book-gdpo": ("k1", "sequence", False),
    "book-deepseek-v3.2": ("k1", "sequence", True),
    "grpo": ("k3", "token", False),
    "deepseek-v3.2": ("k3", "token", True),
}


def name_of(piece):
    return piece and piece.__name__


def test_rows():
    rows = {
        name: (
            name_of(row.loss.ratio), name_of(row.loss.objective), name_of(row.loss.reduction), name_of(row.recipe.advantage),
            row.loss.numbers, row.recipe.rewards, row.recipe.inner_epochs, row.recipe.rollout_reuse,
        )
        for name, row in VARIANTS.items()
    }  # fmt: skip
    assert rows == ROWS
    assert all(row.name == name for name, row in VARIANTS.items())
    assert not any(row.recipe.conditional_reward or row.recipe.mask_truncated or row.loss.length_normalize for row in VARIANTS.values())
    assert {name for name, row in VARIANTS.items() if row.recipe.keep_sampling_mask} == {"deepseek-v3.2", "book-deepseek-v3.2"}
    assert {name for name, row in VARIANTS.items() if row.recipe.sampling_temperature} == {"deepseek-v3.2"}
    assert {name: row.recipe.dynamic_sampling for name, row in VARIANTS.items() if row.recipe.dynamic_sampling} == {
        "dapo": 10, "olmo3": 10, "book-olmo3": 8,
    }  # fmt: skip
    assert {name for name, row in VARIANTS.items() if row.recipe.model == "tiny-reasoning"} == {
        "format", "gdpo", "book-7.6", "book-gdpo",
    }  # fmt: skip
    assert {name: row.recipe.kl_domains for name, row in VARIANTS.items() if row.recipe.kl_domains} == {"deepseek-v3.2": {"math": 0.0}}


def test_kl_terms():
    losses = {name: VARIANTS[name].loss for name in KL}
    found = {name: (loss.penalty.__name__, loss.kl_level, loss.kl_reweight) for name, loss in losses.items()}
    assert found == KL


def test_every_row_says_what_it_is():
    for row in VARIANTS.values():
        assert row.recipe.summary and row.recipe.source and row.recipe.notes
        assert "\n" not in row.recipe.summary
        assert set(row.loss.numbers) <= {field.name for field in dataclasses.fields(VariantSettings)}
        assert {name for name, _ in row.recipe.sources} <= set(row.loss.numbers) | set(row.recipe.rewards)


def test_every_number_is_used():
    """A number that no piece names would be a setting without effect."""
    for row in VARIANTS.values():
        pieces = [row.loss.ratio, row.loss.objective, row.loss.reduction]
        used = {parameter for piece in pieces if piece for parameter in parameters(piece)}
        assert set(row.loss.numbers) <= used | set(NUMBERS), row.name


@pytest.mark.parametrize(
    ("name", "overrides", "numbers"),
    [
        ("clipped", {}, CLIP10),
        ("clipped", {"clip_eps": 0.2}, PPO),
        ("clipped", {"clip_low": 0.1}, {"clip_low": 0.1, "clip_high": 10.0}),
        ("clipped", {"clip_high": 0.3, "clip_eps": 0.2}, {"clip_low": 0.2, "clip_high": 0.3}),  # the named side wins
        ("clipped", {"clip_eps": 0}, {"clip_low": 0.0, "clip_high": 0.0}),  # a bound of 0 is a bound
        ("kl", {"kl_coeff": 0.02}, CLIP10 | {"kl_coeff": 0.02}),
        ("kl", {"kl_coeff": 0.0}, CLIP10),  # off is absent
        ("clipped", {"kl_coeff": 0.5}, CLIP10 | {"kl_coeff": 0.5}),
        ("tracking", {"kl_coeff": 0.5}, {"kl_coeff": 0.5}),
        ("olmo3", {"tis_cap": 0}, {"clip_low": 0.2, "clip_high": 0.272}),
        ("clipped", {"tis_cap": 3, "off_policy_delta": 0.2}, CLIP10 | {"tis_cap": 3.0, "off_policy_delta": 0.2}),
        ("deepseek-v3.2", {"off_policy_delta": 0, "kl_coeff": 0}, PPO),
        ("gspo", {"sequence_mask_cap": 2}, {"clip_low": 3e-4, "clip_high": 4e-4, "sequence_mask_cap": 2.0}),
        ("dr-grpo", {"token_budget": 64}, PPO | {"token_budget": 64.0}),
        ("cispo", {"ratio_cap": 1.2}, {"ratio_cap": 1.2}),
        ("sapo", {"sapo_tau_neg": 2}, {"sapo_tau_pos": 1.0, "sapo_tau_neg": 2.0}),
    ],
)
def test_overridden_numbers(name, overrides, numbers):
    row = get_variant(name, **overrides)
    assert row.loss.numbers == numbers
    assert all(type(value) is float for value in row.loss.numbers.values())
    original = VARIANTS[name]
    assert row == Variant(name, dataclasses.replace(original.loss, numbers=numbers), original.recipe)  # and nothing else


def test_a_floor_for_bad_answers_changes_the_objective():
    row = get_variant("grpo", clip_dual=3)
    assert row.loss.objective is objectives.clip_two_sided and row.loss.numbers["clip_dual"] == 3.0
    assert get_variant("grpo", clip_dual=0) == VARIANTS["grpo"]


def test_overridden_rewards():
    assert get_variant("clipped", rewards={"correct": 1, "boxed": 0.5}).recipe.rewards == {"correct": 1.0, "boxed": 0.5}
    assert get_variant("format", format_reward_weight=0.1).recipe.rewards == {"correct": 1.0, "format": 0.1}
    assert get_variant("format", format_reward_weight=0).recipe.rewards == CORRECT
    assert get_variant("tracking", format_reward_weight=2).recipe.rewards == {"correct": 1.0, "format": 2.0}
    assert get_variant("dapo", rewards={"correct": 1, "overlong": 0}).recipe.rewards == CORRECT


def test_overlong_cache_is_a_setting_of_the_reward():
    row = get_variant("dapo", overlong_cache=8)
    assert row.recipe.overlong_cache == 8.0 and row.loss == VARIANTS["dapo"].loss
    assert get_variant("dapo", overlong_cache=0).recipe.overlong_cache is None  # a fifth of the budget


def test_overridden_structure():
    row = get_variant("format", inner_epochs=3, conditional_reward=True)
    assert (row.recipe.inner_epochs, row.recipe.conditional_reward) == (3, True)
    row = get_variant("clipped", conditional_reward=True, format_reward_weight=0.1)
    assert row.recipe.conditional_reward and row.recipe.rewards["format"] == 0.1
    row = get_variant("kl", kl_estimator="k2", kl_level="token", kl_reweight=True, length_normalize=True)
    assert (row.loss.penalty, row.loss.kl_level, row.loss.kl_reweight, row.loss.length_normalize) == (penalties.k2, "token", True, True)
    assert get_variant("gspo", ratio="gspo-token").loss.ratio is objectives.gspo_token_ratio
    row = get_variant("clipped", advantage="leave-one-out", reduction="token", kl_domains={"code": 2}, reference_refresh=400)
    assert (row.recipe.advantage, row.loss.reduction) == (advantages.leave_one_out_advantages, reduce.token_mean)
    assert (row.recipe.kl_domains, row.recipe.reference_refresh) == ({"code": 2.0}, 400)


def test_the_table_itself_is_not_changed():
    before = dict(VARIANTS["kl"].loss.numbers)
    get_variant("kl", clip_eps=0.2, kl_coeff=0)
    assert VARIANTS["kl"].loss.numbers == before
    assert get_variant("kl").loss.numbers is not VARIANTS["kl"].loss.numbers
    assert get_variant("kl").recipe.rewards is not VARIANTS["kl"].recipe.rewards


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("cliped", {}, r"unknown variant 'cliped'; choose one of baseline, .*book-gdpo, or your own as module:name\. Did you mean 'clipped'\?$"),
        ("zzz", {}, r"unknown variant 'zzz'; choose one of .*book-gdpo, or your own as module:name\.$"),
        ("clipped", {"clip_hihg": 1.0}, r"unknown setting 'clip_hihg'; known are .* Did you mean 'clip_high'\?"),
        ("tracking", {"clip_low": 0.2}, "variant 'tracking' does not use clip_low; leave it out, or choose a variant that does such as 'clipped'"),
        ("tracking", {"clip_eps": 0.2}, "variant 'tracking' does not use clip_eps; leave it out"),
        ("clipped", {"ratio_cap": 2.0}, "'clipped' does not use ratio_cap; leave it out, or choose a variant that does such as 'cispo'"),
        ("cispo", {"clip_dual": 3.0}, "'cispo' does not use clip_dual; leave it out"),
        ("grpo", {"token_budget": 64}, "'grpo' does not use token_budget"),
        ("grpo", {"overlong_cache": 64}, "'grpo' does not use overlong_cache"),
        ("grpo", {"clip_dual": 1.1}, r"clip_dual is 1\.1; it must be above 1 \+ clip_high, 1\.2\."),
        ("cispo", {"ratio_cap": 0}, "ratio_cap is 0; it must be a finite number above 0"),
        ("sapo", {"sapo_tau_neg": 0}, "sapo_tau_neg is 0; it must be a finite number above 0"),
        ("clipped", {"clip_eps": -0.1}, r"clip_eps is -0\.1; it must be a finite number, 0 or more\."),
        ("clipped", {"clip_high": float("nan")}, "clip_high is nan; it must be a finite number"),
        ("clipped", {"clip_high": True}, "clip_high is True; it must be a finite number"),
        ("kl", {"kl_coeff": float("inf")}, "kl_coeff is inf; it must be a finite number"),
        ("kl", {"kl_coeff": -1}, "kl_coeff is -1; it must be a finite number"),
        ("kl", {"kl_domains": {"math": -1}}, "kl_domains math is -1; it must be a finite number"),
        ("kl", {"kl_estimator": "k4"}, "unknown kl_estimator 'k4'; choose one of k1, k2, k3"),
        ("kl", {"kl_level": "tokens"}, r"unknown kl_level 'tokens'; choose one of token, sequence\. Did you mean 'token'\?"),
        ("grpo", {"advantage": "grup"}, r"unknown advantage 'grup'; choose one of .* Did you mean 'group'\?"),
        ("baseline", {"ratio": "token"}, "variant 'baseline' has no ratio to choose"),
        ("grpo", {"ratio": "tokens"}, r"unknown ratio 'tokens'; choose one of .* Did you mean 'token'\?"),
        ("cispo", {"ratio": "sequence-mean"}, "its ratio is of tokens; choose token or gspo-token"),
        ("format", {"format_reward_weight": -1.0}, r"format_reward_weight is -1\.0; it must be a finite number"),
        ("clipped", {"rewards": "correct=1"}, r"rewards is 'correct=1'; it must be a dict of numbers by name"),
        ("clipped", {"kl_domains": "math=0"}, "kl_domains is 'math=0'; it must be a dict"),
        ("clipped", {"advantage": [1]}, r"unknown advantage \[1\]; choose one of group"),
        ("clipped", {"rewards": {}}, "rewards is empty; name at least one reward function"),
        ("clipped", {"rewards": {"correct": -1}}, "rewards correct is -1; it must be a finite number, 0 or more"),
        ("clipped", {"inner_epochs": 0}, "inner_epochs is 0; it must be a whole number, 1 or more"),
        ("clipped", {"dynamic_sampling": -1}, "dynamic_sampling is -1; it must be a whole number, 0 or more"),
        ("clipped", {"keep_sampling_mask": 1}, "keep_sampling_mask is 1; it must be True or False"),
        ("clipped", {"conditional_reward": True}, "variant 'clipped' has no format reward; give a format_"),
        ("format", {"conditional_reward": True, "format_reward_weight": 0}, "conditional_reward has nothing to act on"),
    ],
)  # fmt: skip
def test_errors(name, overrides, message):
    with pytest.raises(InputError, match=message):
        get_variant(name, **overrides)


def test_advantages_of_one_or_several_rewards():
    """Rewards (1, 0, 0, 0) and 0.5 (1, 1, 0, 0): together 1.5, 0.5, 0, 0; mean 0.5, so centred 1, 0, -0.5, -0.5."""
    rewards = np.array([[[1.0, 0, 0, 0]], [[1.0, 1, 0, 0]]])
    row = get_variant("dr-grpo", rewards={"correct": 1, "boxed": 0.5})
    np.testing.assert_allclose(variant_advantages(row, rewards), [[1.0, 0.0, -0.5, -0.5]], rtol=1e-6)
    row = get_variant("gdpo", rewards={"correct": 1, "boxed": 0.5})
    expected = advantages.gdpo_advantages(jnp.array(rewards), jnp.array([1.0, 0.5]))
    np.testing.assert_array_equal(variant_advantages(row, rewards), expected)


def test_a_variant_is_a_tree_of_its_numbers():
    row = get_variant("kl", clip_eps=0.2)
    leaves, tree = jax.tree.flatten(row)
    assert sorted(leaves) == [0.001, 0.2, 0.2]
    assert jax.tree.unflatten(tree, leaves) == row
    assert tree == jax.tree.structure(get_variant("kl", clip_eps=0.9, kl_coeff=0.5, rewards={"boxed": 2}, inner_epochs=1))
    assert tree != jax.tree.structure(get_variant("kl", kl_coeff=0))
    assert tree != jax.tree.structure(get_variant("book-7.5"))


# --- variants of a user's own ---


def my_objective(ratio, advantages, my_number):
    """my_number r A"""
    return my_number * ratio * advantages, jnp.zeros(ratio.shape, bool)


def my_advantages(rewards):
    """A_i = 2 R_i"""
    return 2 * rewards


MINE = Variant(
    "mine",
    Loss(ratio=objectives.token_ratio, objective=my_objective, reduction=reduce.token_mean, numbers={"my_number": 3.0}),
    Recipe(summary="an example", source="nowhere", advantage=my_advantages, rewards={"correct": 1.0, "boxed": 0.5}),
)


@pytest.fixture
def registered():
    yield register_variant(MINE)
    del VARIANTS["mine"]


def test_a_registered_variant_is_like_ours(registered):
    assert registered is MINE and VARIANTS["mine"] is MINE
    row = get_variant("mine", my_number=-0.5, inner_epochs=2, kl_coeff=0.1)
    assert row.loss.numbers == {"my_number": -0.5, "kl_coeff": 0.1} and row.recipe.inner_epochs == 2
    assert get_variant("mine", numbers={"my_number": 5}).loss.numbers == {"my_number": 5.0}
    # ratio 1, A 1 and -3: -2 (1 * 1 - 3 * 2) / 3
    ones, mask = np.zeros((2, 2), np.float32), np.float32([[1, 0], [1, 1]])
    loss, _ = policy_loss(get_variant("mine", my_number=2), ones, ones, None, np.float32([1, -3]), mask)
    assert float(loss) == pytest.approx(10 / 3)
    # 1 + 0.5 * 1 and 0: twice that
    np.testing.assert_allclose(variant_advantages(row, np.float32([[[1, 0]], [[1, 0]]])), [[3.0, 0.0]])
    text = explain(get_variant("mine", my_number=2))
    assert "loss = - mean over all tokens it of the step of my_number r A\n" in text and "A_i = 2 R_i" in text
    assert "my_number = 2   a number of this variant   [given]" in text
    config = RunConfig(variant="mine", numbers="my_number=0.25").resolved()
    assert config.make_variant().loss.numbers == {"my_number": 0.25} and config.model == "tiny-base"


def test_a_variant_from_a_module_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rows.py").write_text(
        "import dataclasses, grpojax as gj\n"
        "def objective(ratio, advantages, my_number):\n"
        "    return my_number * ratio * advantages, ratio > my_number\n"
        "GRPO = gj.VARIANTS['grpo']\n"
        "LOSS = dataclasses.replace(GRPO.loss, objective=objective, numbers={'my_number': 1.0})\n"
        "ROW = gj.Variant('my-row', LOSS, GRPO.recipe)\n"
        "NO_ROW = 3\n"
    )
    try:
        assert get_variant("my_rows:ROW", my_number=0.3).loss.numbers == {"my_number": 0.3}
        assert get_variant("my-row").loss.numbers == {"my_number": 1.0}  # registered
        config = RunConfig(variant="my_rows:ROW", numbers="my_number=2").resolved()
        assert config.make_variant().loss.numbers == {"my_number": 2.0} and config.inner_epochs == 1
        for name, message in (
            ("my_rows:NO_ROW", "variant 'my_rows:NO_ROW' has type int; it must be a grpojax.Variant"),
            ("my_rows:NONE", "variant 'my_rows:NONE': module 'my_rows' has no 'NONE'; check the spelling"),
            ("no_rows:ROW", r"variant 'no_rows:ROW': module 'no_rows' cannot be imported \(ModuleNotFoundError: .*\); it must be"),
        ):
            with pytest.raises(InputError, match=message):
                get_variant(name)
    finally:
        VARIANTS.pop("my-row", None)
        sys.modules.pop("my_rows", None)


def lacking(ratio, advantages, no_such_array):
    return ratio, ratio > 0


def failing(ratio, advantages):
    raise RuntimeError("boom\nand more")


def silent(ratio, advantages):
    raise ValueError


def defaulted(ratio, advantages, width=1.0):
    return ratio * advantages, ratio > width


def vector(values, mask, whole_mask):
    return values.sum(axis=1)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("grpo", {}, "'grpo' is a variant of grpojax; choose another name for your own"),
        ("mine", {"objective": lacking}, r"the objective lacking of variant 'mine' takes 'no_such_array', which is neither one of its numbers \(my_number\) nor"),
        ("mine", {"numbers": {"my_number": 1.0, "other": 1.0}}, "variant 'mine' does not use other; leave it out"),
        ("mine", {"objective": defaulted, "numbers": {}}, "variant 'mine': parameter 'width' of the loss piece defaulted must be a plain one"),
        ("a:b", {}, "the name 'a:b' has a colon, which separates module and name"),
        ("mine", {"numbers": {"my_number": float("nan")}}, "my_number is nan; it must be a finite number"),
        ("mine", {"numbers": {"my_number": 1.0, "mask": 1.0}}, "variant 'mine' has a number named 'mask', like an array"),
        ("mine", {"objective": functools.partial(my_objective, my_number=2)}, "variant 'mine': its objective is functools.partial.*; it must be a plain function"),
        ("mine", {"objective": "clip"}, "variant 'mine': its objective is 'clip'; it must be a plain function"),
        ("mine", {"objective": failing, "numbers": {}}, r"the loss of variant 'mine' cannot be computed \(RuntimeError: boom\); fix its functions"),
        ("mine", {"objective": silent, "numbers": {}}, r"the loss of variant 'mine' cannot be computed \(ValueError\); fix its functions"),
        ("mine", {"reduction": vector}, r"the loss of variant 'mine' has shape \(2,\); its reduction must return one number"),
    ],
)  # fmt: skip
def test_variants_that_cannot_be_registered(name, changes, message):
    with pytest.raises(InputError, match=message):
        register_variant(Variant(name, dataclasses.replace(MINE.loss, **changes), MINE.recipe))
    assert "mine" not in VARIANTS


def misspelt(scores):
    return undefined  # noqa: F821


def one_for_each_group(rewards):
    return rewards.mean(axis=1)


@pytest.mark.parametrize(
    ("advantage", "message"),
    [
        (misspelt, r"the advantage of variant 'mine' cannot be computed \(NameError: name 'undefined' is not defined\); fix its functions\."),
        (one_for_each_group, r"the advantage of variant 'mine' has shape \(2,\) for 2 groups of 3 answers; it must return \(2, 3\)\."),
    ],
)  # fmt: skip
def test_advantages_that_cannot_be_registered(advantage, message):
    with pytest.raises(InputError, match=message):
        register_variant(dataclasses.replace(MINE, recipe=dataclasses.replace(MINE.recipe, advantage=advantage)))
    assert "mine" not in VARIANTS


def test_registering_again_replaces_ones_own(registered):
    other = dataclasses.replace(MINE, recipe=Recipe(summary="another"))
    assert register_variant(other) is VARIANTS["mine"] is other
    with pytest.raises(InputError, match=r"variant 'mine' has no number 'youre'; its numbers are my_number\."):
        get_variant("mine", numbers={"youre": 1})
    with pytest.raises(InputError, match=r"my_number is nan; it must be a finite number\."):
        get_variant("mine", my_number=float("nan"))
