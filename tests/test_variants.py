"""The table of variants: its rows, overrides, errors and explanations."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from grpojax import VARIANTS, get_variant
from grpojax.errors import InputError
from grpojax.loss import objectives
from grpojax.variants import NUMBERS, explain


def test_rows():
    """Name -> ratio?, numbers, inner epochs, embedded model."""
    clip = {"clip_low": 10.0, "clip_high": 10.0}
    rows = {name: (row.ratio is not None, row.numbers, row.inner_epochs, row.model) for name, row in VARIANTS.items()}
    plain = (False, {}, 1, "tiny-base")
    clipped = (True, clip, 2, "tiny-base")
    kl = (True, clip | {"kl_coeff": 0.001}, 2, "tiny-base")
    form = (True, clip | {"format_reward_weight": 1.0}, 1, "tiny-reasoning")
    assert rows == {
        "baseline": plain, "tracking": plain, "clipped": clipped, "kl": kl, "format": form,
        "book-7.3": plain, "book-7.4": clipped, "book-7.5": kl, "book-7.6": form,
    }  # fmt: skip
    assert all(row.name == name for name, row in VARIANTS.items())
    assert not any(row.conditional_reward for row in VARIANTS.values())


def test_book_rows_have_the_clip_of_the_first_printing():
    for name in ("clipped", "kl", "format"):
        assert VARIANTS[name].objective is objectives.clip_pessimistic
    for name in ("book-7.4", "book-7.5", "book-7.6"):
        assert VARIANTS[name].objective is objectives.clip_first_printing
        assert "A_i min(r_i, 1 + clip_high)" in VARIANTS[name].formula
        assert "1 - clip_low" not in VARIANTS[name].formula
    assert VARIANTS["book-7.3"].objective is objectives.reinforce


def test_every_row_says_what_it_is():
    for row in VARIANTS.values():
        assert row.summary and row.source and "loss = - mean_i " in row.formula
        assert "\n" not in row.summary
        assert set(row.numbers) <= set(NUMBERS)
        for number in row.numbers:
            assert number in explain(row).split("Numbers:")[0] or (
                number == "clip_low" and row.name.startswith("book")
            ), (row.name, number)


@pytest.mark.parametrize(
    ("name", "overrides", "numbers"),
    [
        ("clipped", {}, {"clip_low": 10.0, "clip_high": 10.0}),
        ("clipped", {"clip_eps": 0.2}, {"clip_low": 0.2, "clip_high": 0.2}),
        ("clipped", {"clip_low": 0.1}, {"clip_low": 0.1, "clip_high": 10.0}),
        ("clipped", {"clip_high": 0.3, "clip_eps": 0.2}, {"clip_low": 0.2, "clip_high": 0.3}),  # the named side wins
        ("clipped", {"clip_eps": 0}, {"clip_low": 0.0, "clip_high": 0.0}),  # a bound of 0 is a bound
        ("kl", {"kl_coeff": 0.02}, {"clip_low": 10.0, "clip_high": 10.0, "kl_coeff": 0.02}),
        ("kl", {"kl_coeff": 0.0}, {"clip_low": 10.0, "clip_high": 10.0}),  # off is absent
        ("clipped", {"kl_coeff": 0.5}, {"clip_low": 10.0, "clip_high": 10.0, "kl_coeff": 0.5}),
        ("tracking", {"kl_coeff": 0.5, "format_reward_weight": 2}, {"kl_coeff": 0.5, "format_reward_weight": 2.0}),
        ("book-7.6", {"format_reward_weight": 0}, {"clip_low": 10.0, "clip_high": 10.0}),
    ],
)
def test_overridden_numbers(name, overrides, numbers):
    row = get_variant(name, **overrides)
    assert row.numbers == numbers
    assert all(type(value) is float for value in row.numbers.values())
    assert row == dataclasses.replace(VARIANTS[name], numbers=numbers)  # and nothing else


def test_overridden_structure():
    row = get_variant("format", inner_epochs=3, conditional_reward=True)
    assert (row.inner_epochs, row.conditional_reward) == (3, True)
    row = get_variant("clipped", conditional_reward=True, format_reward_weight=0.1)
    assert row.conditional_reward and row.numbers["format_reward_weight"] == 0.1


def test_the_table_itself_is_not_changed():
    before = dict(VARIANTS["kl"].numbers)
    get_variant("kl", clip_eps=0.2, kl_coeff=0)
    assert VARIANTS["kl"].numbers == before
    assert get_variant("kl").numbers is not VARIANTS["kl"].numbers


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("cliped", {}, r"unknown variant 'cliped'; choose one of baseline, .*book-7\.6\. Did you mean 'clipped'\?$"),
        ("zzz", {}, r"unknown variant 'zzz'; choose one of .*book-7\.6\.$"),
        ("clipped", {"clip_hihg": 1.0}, r"unknown setting 'clip_hihg'; known are .* Did you mean 'clip_high'\?"),
        ("tracking", {"clip_low": 0.2}, "variant 'tracking' does not use clip_low; leave it out, or choose a variant"),
        ("tracking", {"clip_eps": 0.2}, "variant 'tracking' does not use clip_eps; leave it out"),
        ("clipped", {"clip_eps": -0.1}, r"clip_low is -0\.1; it must be a finite number, 0 or more\."),
        ("clipped", {"clip_high": float("nan")}, "clip_high is nan; it must be a finite number"),
        ("kl", {"kl_coeff": float("inf")}, "kl_coeff is inf; it must be a finite number"),
        ("kl", {"kl_coeff": -1}, "kl_coeff is -1; it must be a finite number"),
        ("format", {"format_reward_weight": -1.0}, r"format_reward_weight is -1\.0; it must be a finite number"),
        ("clipped", {"inner_epochs": 0}, "inner_epochs is 0; it must be a whole number, at least 1"),
        ("clipped", {"conditional_reward": True}, "variant 'clipped' has no format reward; give a format_"),
        ("format", {"conditional_reward": True, "format_reward_weight": 0}, "conditional_reward has nothing to act on"),
    ],
)  # fmt: skip
def test_errors(name, overrides, message):
    with pytest.raises(InputError, match=message):
        get_variant(name, **overrides)


def test_explanations_name_every_number():
    for name in VARIANTS:
        text = explain(get_variant(name))
        assert text.startswith(f"{name}: ")
        assert f"Source: {VARIANTS[name].source}" in text and VARIANTS[name].notes in text
        assert all(line in text for line in VARIANTS[name].formula.splitlines())
        for number, value in VARIANTS[name].numbers.items():
            assert f"  {number} = {value:g}   {NUMBERS[number]}" in text
        assert f"inner_epochs = {VARIANTS[name].inner_epochs} " in text
    assert "Numbers:\n  none" in explain(get_variant("tracking"))


def test_explanations_show_the_numbers_in_force():
    text = explain(get_variant("kl", clip_eps=0.25, kl_coeff=0.02, inner_epochs=7))
    assert "clip_low = 0.25 " in text and "clip_high = 0.25 " in text and "kl_coeff = 0.02 " in text
    assert "inner_epochs = 7 " in text


@pytest.mark.parametrize(
    ("name", "number", "value"),
    [
        ("clipped", "kl_coeff", 0.1),
        ("tracking", "kl_coeff", 0.1),
        ("kl", "kl_coeff", 0),
        ("format", "format_reward_weight", 0),
    ],
)
def test_explanations_show_the_terms_in_force(name, number, value):
    formula = explain(get_variant(name, **{number: value})).split("Numbers:")[0]
    assert (number in formula) == (value > 0)


def test_a_variant_is_a_tree_of_its_numbers():
    row = get_variant("kl", clip_eps=0.2)
    leaves, tree = jax.tree.flatten(row)
    assert sorted(leaves) == [0.001, 0.2, 0.2]
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
    doubled(get_variant("clipped", clip_eps=3))
    assert traces == ["clipped"]
    doubled(get_variant("clipped", inner_epochs=1))
    assert len(traces) == 2
