"""RunConfig: what `resolved` fills in, and a one-sentence error for every setting that cannot be used."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.config import RunConfig, suggestions
from grpojax.errors import InputError
from grpojax.settings import allowed, check_setting, setting, settings_of
from grpojax.training.update import init_optimizer, make_optimizer
from grpojax.variants import VARIANTS, VariantSettings


def resolved(**settings) -> RunConfig:
    return RunConfig(**settings).resolved()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_resolves_to_its_own_model_and_epochs(name):
    config = resolved(variant=name)
    assert (config.model, config.inner_epochs) == (VARIANTS[name].recipe.model, VARIANTS[name].recipe.inner_epochs)
    assert config.steps == 200


def test_another_model_starts_from_the_settings_of_the_book():
    config = resolved(model="some/folder")
    assert (config.steps, config.lr, config.max_new_tokens, config.prompts_per_step) == (500, 1e-5, 512, 1)
    assert (config.num_rollouts, config.temperature, config.top_p, config.weight_decay) == (8, 0.8, 0.9, 0.01)
    assert config.eval_on_checkpoint == 0


def test_what_is_given_stays():
    given = {
        "steps": 7,
        "lr": 0.5,
        "prompts_per_step": 3,
        "max_new_tokens": 5,
        "checkpoint_every": 0,
        "inner_epochs": 4,
    }
    for model in ("tiny-base", "other"):
        config = resolved(model=model, eval_on_checkpoint=1, **given)
        assert {name: getattr(config, name) for name in given} == given


def test_resolved_leaves_only_optional_settings_none():
    assert suggestions("tiny-base") == {"steps": 200, "max_new_tokens": 48, "eval_on_checkpoint": 200}
    assert suggestions("other") == {"steps": 500, "max_new_tokens": 512, "eval_on_checkpoint": 0}
    config = resolved()
    may_be_none = {"eval_dataset", "prompt_template", "out", "micro_batch", "compute_dtype", "tokenizer_kind", "reward"}
    of_the_variant = {f.name for f in dataclasses.fields(VariantSettings)}  # None: as its row has it
    of_the_variant -= {"inner_epochs", "rollout_reuse"}
    assert {f.name for f in dataclasses.fields(config) if getattr(config, f.name) is None} == may_be_none | of_the_variant


def test_a_resolved_config_survives_json_and_resolves_to_itself():
    config = resolved(variant="kl", clip_eps=0.2, model="x", thinking=False)
    again = RunConfig(**json.loads(json.dumps(dataclasses.asdict(config))))
    assert again == config
    assert again.resolved() == config


def test_numbers_reach_the_variant():
    variant = resolved(variant="kl", clip_eps=0.2, clip_high=0.3, kl_coeff=0.5, inner_epochs=3).make_variant()
    assert variant.loss.numbers == {"clip_low": 0.2, "clip_high": 0.3, "kl_coeff": 0.5}
    assert variant.recipe.inner_epochs == 3
    without = resolved(variant="kl", kl_coeff=0.0).make_variant()
    assert "kl_coeff" not in without.loss.numbers


def test_the_size_of_an_update():
    config = resolved(model="x", prompts_per_step=3, num_rollouts=4, rollout_reuse="pool", minibatches=2)
    assert config.update_size == 6


ERRORS = [
    ({"variant": "cliped"}, r"unknown variant 'cliped'; choose one of baseline, .* Did you mean 'clipped'\?"),
    ({"num_rollouts": 1}, r"num_rollouts is 1; it must be a whole number, 2 or more\."),
    ({"num_rollouts": -8}, r"num_rollouts is -8; it must be a whole number, 2 or more"),
    ({"steps": 0}, r"steps is 0; it must be a whole number, 1 or more\."),
    ({"prompts_per_step": 0}, r"prompts_per_step is 0; it must be a whole number, 1 or more\."),
    ({"max_new_tokens": 0}, r"max_new_tokens is 0; it must be a whole number, 1 or more\."),
    ({"minibatches": 0}, r"minibatches is 0; it must be a whole number, 1 or more\."),
    ({"seed": -1}, r"seed is -1; it must be a whole number from 0 to 4294967295\."),
    ({"seed": 2**32}, r"seed is 4294967296; it must be a whole number from 0 to 4294967295\."),
    ({"checkpoint_every": -1}, r"checkpoint_every is -1; it must be a whole number, 0 or more\."),
    ({"keep_checkpoints": 0}, r"keep_checkpoints is 0; it must be a whole number, 1 or more\."),
    ({"eval_on_checkpoint": -1}, r"eval_on_checkpoint is -1; it must be a whole number, 0 or more\."),
    ({"temperature": -0.1}, r"temperature is -0\.1; it must be a finite number, 0 or more\."),
    ({"temperature": float("nan")}, r"temperature is nan; it must be a finite number, 0"),
    ({"temperature": float("inf")}, r"temperature is inf; it must be a finite number, 0"),
    ({"top_p": 0.0}, r"top_p is 0\.0; it must be a finite number above 0 and at most 1\."),
    ({"top_p": -0.1}, r"top_p is -0\.1; it must be a finite number above 0"),
    ({"top_p": 1.5}, r"top_p is 1\.5; it must be a finite number above 0 and at most 1"),
    ({"top_p": float("nan")}, r"top_p is nan; it must be a finite number above 0"),
    ({"top_k": -1}, r"top_k is -1; it must be a whole number, 0 or more\."),
    ({"clip_eps": -0.2}, r"clip_eps is -0\.2; it must be a finite number, 0 or more\."),
    ({"clip_high": -0.2}, r"clip_high is -0\.2; it must be a finite number, 0 or more\."),
    ({"kl_coeff": float("nan")}, r"kl_coeff is nan; it must be a finite number, 0 or more\."),
    ({"inner_epochs": 0}, "inner_epochs is 0; it must be a whole number, 1 or more"),
    ({"variant": "baseline", "clip_eps": 0.2}, r"variant 'baseline' does not use clip_eps; leave it out"),
    ({"conditional_reward": True}, r"conditional_reward has nothing to act on: variant 'clipped' has no format reward"),
    ({"lr": -1e-3}, r"lr is -0\.001; it must be a finite number, 0 or more\."),
    ({"lr": float("inf")}, r"lr is inf; it must be a finite number"),
    ({"weight_decay": -1.0}, r"weight_decay is -1\.0; it must be a finite number"),
    ({"max_grad_norm": float("nan")}, r"max_grad_norm is nan; it must be a finite number above 0\."),
    ({"max_grad_norm": 0.0}, r"max_grad_norm is 0\.0; it must be a finite number above 0\."),
    ({"steps": True}, r"steps is True; it must be a whole number, 1 or more\."),
    ({"steps": 2.5}, r"steps is 2\.5; it must be a whole number"),
    ({"lr": "fast"}, r"lr is 'fast'; it must be a finite number, 0 or more\."),
    ({"lr": None}, r"lr is None; it must be a finite number"),
    ({"resume": 1}, r"resume is 1; it must be True or False\."),
    ({"dataset": 3}, r"dataset is 3; it must be text\."),
    ({"param_dtype": "float16"}, r"unknown param_dtype 'float16'; choose one of float32, bfloat16\. Did you mean 'bfloat16'\?"),
    ({"minibatches": 2}, r"minibatches splits a pool of rollouts; add --rollout-reuse pool, or leave it at 1\."),
]


@pytest.mark.parametrize(("settings", "message"), ERRORS)
def test_settings_that_cannot_be_used(settings, message):
    with pytest.raises(InputError, match=f"^{message}") as caught:
        resolved(**settings)
    assert "\n" not in str(caught.value)


def test_parts_that_do_not_divide_list_the_ones_that_do():
    # Field report f01: an actionable message names both settings and the values that work.
    with pytest.raises(InputError) as caught:
        resolved(model="x", num_rollouts=8, micro_batch=3)
    assert (
        str(caught.value)
        == "micro_batch is 3 and does not divide the sequences of one update, 8; choose one of 1, 2, 4, 8."
    )
    with pytest.raises(InputError) as caught:
        resolved(model="x", num_rollouts=6, prompts_per_step=2, rollout_reuse="pool", minibatches=5)
    assert str(caught.value) == (
        "minibatches is 5 and does not divide prompts_per_step * num_rollouts, 12; choose one of 1, 2, 3, 4, 6, 12."
    )
    with pytest.raises(InputError, match="^micro_batch is 4 and does not divide the sequences of one update, 6;"):
        resolved(model="x", num_rollouts=6, prompts_per_step=2, rollout_reuse="pool", minibatches=2, micro_batch=4)
    with pytest.raises(InputError, match="^micro_batch is 0; it must be a whole number, 1 or more"):
        resolved(micro_batch=0)


def test_the_edges_are_allowed():
    resolved(
        num_rollouts=2, steps=1, temperature=0.0, top_p=1.0, top_k=0, lr=0.0, clip_eps=0.0, checkpoint_every=0, micro_batch=1
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "rewards"),
    [
        ({}, {"correct": 1.0}),
        ({"rewards": "correct=2, boxed=0.5"}, {"correct": 2.0, "boxed": 0.5}),
        ({"rewards": "boxed"}, {"boxed": 1.0}),
        ({"reward": "my_module:my_function"}, {"correct": 1.0, "my_module:my_function": 1.0}),
        ({"reward": "boxed=0.1,repetition=0.2"}, {"correct": 1.0, "boxed": 0.1, "repetition": 0.2}),
        ({"rewards": "boxed", "reward": "overlong"}, {"boxed": 1.0, "overlong": 1.0}),
        ({"variant": "format", "reward": "boxed"}, {"correct": 1.0, "format": 1.0, "boxed": 1.0}),
    ],
)
def test_rewards_in_place_of_the_variants_or_beside_them(given, rewards):
    assert RunConfig(**given).make_variant().recipe.rewards == rewards


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rewards": "correct=much"}, r"rewards has 'correct=much'; write name=number, separated by commas"),
        ({"rewards": "correct=1,correct=2"}, "rewards has 'correct=2', which has no name or repeats one"),
        ({"kl_domains": "=1"}, "kl_domains has '=1', which has no name"),
        ({"reward": "boxed="}, "reward has 'boxed='; write name=number"),
        ({"kl_domains": "math=x"}, "kl_domains has 'math=x'; write name=number"),
        ({"rewards": ""}, "rewards is empty; name at least one reward function"),
    ],
)
def test_lists_of_weights_that_cannot_be_read(given, message):
    with pytest.raises(InputError, match=message):
        RunConfig(**given).resolved()


def test_numbers_that_come_from_the_run():
    assert resolved(variant="dr-grpo", max_new_tokens=77).make_variant().loss.numbers["token_budget"] == 77.0
    assert resolved(variant="dr-grpo", token_budget=5.0).make_variant().loss.numbers["token_budget"] == 5.0
    assert resolved(variant="deepseek-v3.2", temperature=0.7).make_variant().loss.numbers["score_temperature"] == 0.7
    assert "score_temperature" not in resolved(variant="book-deepseek-v3.2").make_variant().loss.numbers


@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), float("inf")])
def test_bounds_of_the_gradient_norm_that_cannot_be_used(bound):
    with pytest.raises(InputError, match=f"^max_grad_norm is {bound}; it must be a finite number above 0"):
        make_optimizer(max_grad_norm=bound)


@pytest.mark.parametrize("bound", [1e-30, 1.0])
def test_a_gradient_of_zero_gives_no_update(bound):
    """The factor is bound / max(0, bound) = 1, not 0 / 0; Adam's direction is 0 / (0 + 1e-8)."""
    optimizer, params = make_optimizer(max_grad_norm=bound, weight_decay=0.0), {"w": jnp.array([2.0, -3.0])}
    updates, _ = optimizer.update({"w": jnp.zeros(2)}, init_optimizer(optimizer, params), params)
    np.testing.assert_array_equal(updates["w"], np.zeros(2))


# --- settings: kinds and bounds ---


@dataclasses.dataclass(frozen=True)
class Kinds:
    """One setting of each kind and bound."""

    any_int: int = setting(0, "")
    count: int = setting(1, "", at_least=1)
    seed: int = setting(0, "", at_least=0, at_most=9)
    any_number: float | None = setting(None, "")
    weight: float = setting(0.0, "", at_least=0)
    rate: float = setting(1.0, "", above=0)
    share: float = setting(1.0, "", above=0, at_most=1)
    text: str | None = setting(None, "")
    mode: str = setting("slow", "", choices=("slow", "fast"))
    flag: bool | None = setting(None, "")


NAN, INF = float("nan"), float("inf")
KINDS = {  # setting -> the values it may have in words, some that fit, some that do not
    "any_int": ("a whole number", (-3, 0, 10**30, np.int32(4)), (1.0, np.float32(1), True, "1", None)),
    "count": ("a whole number, 1 or more", (1, 2), (0, -1, 1.5, True)),
    "seed": ("a whole number from 0 to 9", (0, 9), (-1, 10, NAN, INF)),
    "any_number": ("a finite number", (-1e30, 0, 3, np.float32(0.5), np.int64(2)), (NAN, INF, -INF, np.float32("nan"), "1", True, [1])),
    "weight": ("a finite number, 0 or more", (0, 0.0, 2.5), (-1e-9, NAN, INF)),
    "rate": ("a finite number above 0", (1e-30, 1), (0, 0.0, -1, NAN, INF)),
    "share": ("a finite number above 0 and at most 1", (0.5, 1), (0, 1.0001, NAN)),
    "text": ("text", ("", "a"), (1, b"a", True)),
    "mode": ("one of slow, fast", ("slow", "fast"), ("", "Slow", 1, ["slow"])),
    "flag": ("True or False", (True, False), (0, 1, "true")),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_settings(name):
    field, (words, good, bad) = settings_of(Kinds)[name], KINDS[name]
    assert allowed(field) == words
    for value in good:
        check_setting(field, value)
    for value in bad:
        with pytest.raises(InputError) as caught:
            check_setting(field, value)
        assert str(caught.value).startswith((f"{name} is {value!r}; it must be {words}.", f"unknown {name} {value!r}; choose {words}."))


def test_every_kind_is_here():
    assert KINDS.keys() == settings_of(Kinds).keys()


# --- bounds of every number of a run ---

REFUSES_ZERO = {
    "steps", "prompts_per_step", "num_rollouts", "max_new_tokens", "top_p", "minibatches", "max_grad_norm", "micro_batch",
    "keep_checkpoints", "ratio_cap", "sapo_tau_pos", "sapo_tau_neg", "inner_epochs",
}  # fmt: skip


@pytest.mark.parametrize(("name", "field"), [(n, f) for n, f in settings_of(RunConfig).items() if f.type in (int, float)])
def test_bounds_of_every_number(name, field):
    refused = [-1, NAN, INF, "1", True] + [0] * (name in REFUSES_ZERO) + [1.5] * (field.type is int)
    for value in refused:
        with pytest.raises(InputError, match=f"^{name} is "):
            check_setting(field, value)
    check_setting(field, (1 if field.type is float else 2) if name in REFUSES_ZERO else 0)
    assert allowed(field).startswith("a whole number" if field.type is int else "a finite number")


def test_every_setting_says_what_it_means():
    for name, field in settings_of(RunConfig).items():
        assert field.metadata["help"] and field.type in (int, float, bool, str), name
