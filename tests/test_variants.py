"""The table of variants: its rows, overrides and errors."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax import VARIANTS, get_variant
from grpojax.errors import InputError
from grpojax.loss import advantages, objectives, penalties, reduce
from grpojax.variants import NUMBERS, variant_advantages

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
            name_of(row.ratio), name_of(row.objective), name_of(row.reduction), name_of(row.advantage),
            row.numbers, row.rewards, row.inner_epochs, row.rollout_reuse,
        )
        for name, row in VARIANTS.items()
    }  # fmt: skip
    assert rows == ROWS
    assert all(row.name == name for name, row in VARIANTS.items())
    assert not any(row.conditional_reward or row.mask_truncated or row.length_normalize for row in VARIANTS.values())
    assert {name for name, row in VARIANTS.items() if row.keep_sampling_mask} == {"deepseek-v3.2", "book-deepseek-v3.2"}
    assert {name for name, row in VARIANTS.items() if row.sampling_temperature} == {"deepseek-v3.2"}
    assert {name: row.dynamic_sampling for name, row in VARIANTS.items() if row.dynamic_sampling} == {
        "dapo": 10, "olmo3": 10, "book-olmo3": 8,
    }  # fmt: skip
    assert {name for name, row in VARIANTS.items() if row.model == "tiny-reasoning"} == {
        "format", "gdpo", "book-7.6", "book-gdpo",
    }  # fmt: skip
    assert {name: row.kl_domains for name, row in VARIANTS.items() if row.kl_domains} == {"deepseek-v3.2": {"math": 0.0}}


def test_kl_terms():
    found = {name: (VARIANTS[name].penalty.__name__, VARIANTS[name].kl_level, VARIANTS[name].kl_reweight) for name in KL}
    assert found == KL


def test_every_row_says_what_it_is():
    for row in VARIANTS.values():
        assert row.summary and row.source and row.notes
        assert "\n" not in row.summary
        assert set(row.numbers) <= set(NUMBERS)
        assert {name for name, _ in row.sources} <= set(row.numbers) | set(row.rewards)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_number_is_used(name):
    """A number that no piece names would be a setting without effect."""
    row = VARIANTS[name]
    pieces = [row.ratio, row.objective, row.reduction, row.advantage]
    used = {parameter for piece in pieces if piece for parameter in inspect.signature(piece).parameters}
    assert set(row.numbers) <= used | {"kl_coeff", "tis_cap", "off_policy_delta"}


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
        ("dapo", {"overlong_cache": 8}, {"clip_low": 0.2, "clip_high": 0.28, "overlong_cache": 8.0}),
        ("cispo", {"ratio_cap": 1.2}, {"ratio_cap": 1.2}),
        ("sapo", {"sapo_tau_neg": 2}, {"sapo_tau_pos": 1.0, "sapo_tau_neg": 2.0}),
    ],
)
def test_overridden_numbers(name, overrides, numbers):
    row = get_variant(name, **overrides)
    assert row.numbers == numbers
    assert all(type(value) is float for value in row.numbers.values())
    assert row == dataclasses.replace(VARIANTS[name], numbers=numbers)  # and nothing else


def test_a_floor_for_bad_answers_changes_the_objective():
    row = get_variant("grpo", clip_dual=3)
    assert row.objective is objectives.clip_two_sided and row.numbers["clip_dual"] == 3.0
    assert get_variant("grpo", clip_dual=0) == VARIANTS["grpo"]


def test_overridden_rewards():
    assert get_variant("clipped", rewards={"correct": 1, "boxed": 0.5}).rewards == {"correct": 1.0, "boxed": 0.5}
    assert get_variant("format", format_reward_weight=0.1).rewards == {"correct": 1.0, "format": 0.1}
    assert get_variant("format", format_reward_weight=0).rewards == CORRECT
    assert get_variant("tracking", format_reward_weight=2).rewards == {"correct": 1.0, "format": 2.0}
    assert get_variant("dapo", rewards={"correct": 1, "overlong": 0}).rewards == CORRECT


def test_overridden_structure():
    row = get_variant("format", inner_epochs=3, conditional_reward=True)
    assert (row.inner_epochs, row.conditional_reward) == (3, True)
    row = get_variant("clipped", conditional_reward=True, format_reward_weight=0.1)
    assert row.conditional_reward and row.rewards["format"] == 0.1
    row = get_variant("kl", kl_estimator="k2", kl_level="token", kl_reweight=True, length_normalize=True)
    assert (row.penalty, row.kl_level, row.kl_reweight, row.length_normalize) == (penalties.k2, "token", True, True)
    assert get_variant("gspo", ratio="gspo-token").ratio is objectives.gspo_token_ratio
    row = get_variant("clipped", advantage="leave-one-out", reduction="token", kl_domains={"code": 2}, reference_refresh=400)
    assert (row.advantage, row.reduction) == (advantages.leave_one_out_advantages, reduce.token_mean)
    assert (row.kl_domains, row.reference_refresh) == ({"code": 2.0}, 400)


def test_the_table_itself_is_not_changed():
    before = dict(VARIANTS["kl"].numbers)
    get_variant("kl", clip_eps=0.2, kl_coeff=0)
    assert VARIANTS["kl"].numbers == before
    assert get_variant("kl").numbers is not VARIANTS["kl"].numbers
    assert get_variant("kl").rewards is not VARIANTS["kl"].rewards


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("cliped", {}, r"unknown variant 'cliped'; choose one of baseline, .*book-gdpo\. Did you mean 'clipped'\?$"),
        ("zzz", {}, r"unknown variant 'zzz'; choose one of .*book-gdpo\.$"),
        ("clipped", {"clip_hihg": 1.0}, r"unknown setting 'clip_hihg'; known are .* Did you mean 'clip_high'\?"),
        ("tracking", {"clip_low": 0.2}, "variant 'tracking' does not use clip_low; leave it out, or choose a variant that does such as 'clipped'"),
        ("tracking", {"clip_eps": 0.2}, "variant 'tracking' does not use clip_eps; leave it out"),
        ("clipped", {"ratio_cap": 2.0}, "'clipped' does not use ratio_cap; leave it out, or choose a variant that does such as 'cispo'"),
        ("cispo", {"clip_dual": 3.0}, "'cispo' does not use clip_dual; leave it out"),
        ("grpo", {"token_budget": 64}, "'grpo' does not use token_budget"),
        ("grpo", {"overlong_cache": 64}, "'grpo' does not use overlong_cache"),
        ("grpo", {"clip_dual": 1.1}, r"clip_dual is 1\.1; it must be above 1 \+ clip_high, 1\.2\."),
        ("cispo", {"ratio_cap": 0}, "ratio_cap and the sapo_tau of variant 'cispo' must be above 0"),
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
        ("clipped", {"rewards": {"correct": -1}}, "the weight of reward 'correct' is -1; it must be a finite number"),
        ("clipped", {"inner_epochs": 0}, "inner_epochs is 0; it must be a whole number, at least 1"),
        ("clipped", {"dynamic_sampling": -1}, "dynamic_sampling is -1; it must be a whole number, at least 0"),
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
    assert sorted(leaves) == [0.001, 0.2, 0.2, 1.0]  # the last is the weight of the reward
    assert jax.tree.unflatten(tree, leaves) == row
    assert tree == jax.tree.structure(get_variant("kl", clip_eps=0.9, kl_coeff=0.5))
    assert tree != jax.tree.structure(get_variant("kl", kl_coeff=0))
    assert tree != jax.tree.structure(get_variant("book-7.5"))
    assert hash(tree) == hash(jax.tree.structure(get_variant("kl")))


def test_a_variant_passes_through_jit():
    traces = []

    @jax.jit
    def doubled(row):
        traces.append(row.name)
        return jax.tree.map(lambda x: 2 * x, row)

    row = doubled(get_variant("clipped", clip_eps=0.2))
    assert row.name == "clipped" and row.objective is objectives.clip_pessimistic
    assert row.numbers == {"clip_low": jnp.float32(0.4), "clip_high": jnp.float32(0.4)}
    doubled(get_variant("clipped", clip_eps=3, rewards={"correct": 2}))
    assert traces == ["clipped"]
    doubled(get_variant("clipped", inner_epochs=1))
    assert len(traces) == 2
