"""Programs in their forms for a GPU and a TPU give the numbers of those for a CPU. They run on the CPU, in float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import TINY, tokenizer

from grpojax import get_variant
from grpojax.device import CPU_COMPILER_OPTIONS, Device, Program, faster_dtype, this_device
from grpojax.qwen.model import param_bytes, param_shapes
from grpojax.qwen.weights import Policy, load_policy
from grpojax.training import update as module
from grpojax.training.evaluate import _fitting_batch
from grpojax.training.rollout import make_rollouts
from grpojax.training.sampling import make_sampler
from grpojax.training.stream import stream_answers
from grpojax.training.update import fitting_micro_batch, init_optimizer, make_batch, make_optimizer, score, update

PROMPTS = [[5, 9, 14, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]
KINDS = ("cpu", "cuda", "tpu")


def on(kind, memory=None):
    return dataclasses.replace(TINY, device=Device(kind, memory))


@pytest.fixture(scope="module")
def params():
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape) * 0.4, jnp.float32), param_shapes(TINY))


@pytest.fixture(scope="module")
def rollouts(params):
    """By device: two prompts, or one that all answers share."""

    def make(kind, prompts):
        policy = Policy(on(kind), params, tokenizer((3, 17), 20))
        return make_rollouts(policy, params, prompts, jax.random.key(0), make_sampler(0.8, 0.9), 2, 6)

    return {(kind, count): make(kind, PROMPTS[:count]) for kind in KINDS for count in (1, 2)}


@pytest.mark.parametrize("kind", ["cuda", "tpu"])
@pytest.mark.parametrize("count", [1, 2])
def test_rollouts(rollouts, kind, count):
    """The same tokens for the same seed; log-probs and entropies to rounding."""
    got, want = rollouts[kind, count], rollouts["cpu", count]
    np.testing.assert_array_equal(got.answers, want.answers)
    np.testing.assert_allclose(got.logps, want.logps, atol=1e-5)
    np.testing.assert_allclose(got.entropies, want.entropies, atol=1e-5)
    assert want.answer_lens.max() > 2


@pytest.mark.parametrize("kind", ["cuda", "tpu"])
def test_logits_of_whole_sequences(params, kind):
    tokens = np.array([PROMPTS[2], PROMPTS[2][::-1]])
    got, want = (Policy(on(device), params).apply(params, tokens) for device in (kind, "cpu"))
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cuda", "tpu"])
def test_answers_in_slots(params, kind):
    """Slots are taken again, by prompts of other lengths."""

    def answers(kind):
        policy, keys = Policy(on(kind), params, tokenizer((3, 17), 20)), jax.random.split(jax.random.key(1), 3)
        groups = stream_answers(policy, params, PROMPTS, keys, make_sampler(0.8, 0.9), 2, 6, slots=2)
        return sorted(answered for group in groups for answered in group)

    assert answers(kind) == answers("cpu")


@pytest.mark.parametrize("count", [1, 2])
def test_scores_and_update(params, rollouts, count):
    """Log-probs of the answers, new weights and moments, one answer at a time and all together."""
    rows, optimizer, loss = 2 * count, make_optimizer(), get_variant("kl").loss
    advantages = np.float32([[1.0, -1.0], [0.5, -2.0]])[:count]
    batch = make_batch(rollouts["cpu", count], advantages)
    results = []
    for kind, micro_batch in (("cpu", rows), ("cuda", rows), ("cuda", 1)):
        logps = score(on(kind), params, batch, None, micro_batch)
        scored = dataclasses.replace(batch, old_logps=np.asarray(logps) + 0.1, ref_logps=np.asarray(logps) - 0.2)
        results.append((logps, *update(on(kind), optimizer, params, init_optimizer(optimizer, params), loss, scored, 1e-3, micro_batch)))
    for got in results[1:]:
        np.testing.assert_allclose(got[0], results[0][0], atol=1e-5)
        assert {name: float(value) for name, value in got[3].items()} == pytest.approx(
            {name: float(value) for name, value in results[0][3].items()}, rel=1e-4, abs=1e-5, nan_ok=True
        )
        moments = lambda result: jax.tree.leaves(result[2][1].mu)
        for one, other in zip(moments(got), moments(results[0]), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
        # Adam's first step is lr times the sign of the gradient, wherever it is not about 0.
        far = [np.abs(a - b) > 2e-6 for a, b in zip(*map(jax.tree.leaves, (got[1], results[0][1])), strict=True)]
        assert sum(x.sum() for x in far) <= 0.001 * sum(x.size for x in far)


def casts(jaxpr, inside=()):
    """(names of the enclosing equations, shape) of every cast from float32 to bfloat16."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "convert_element_type" and equation.params["new_dtype"] == jnp.bfloat16:
            yield inside, equation.invars[0].aval.shape
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if inner := getattr(inner, "jaxpr", inner if hasattr(inner, "eqns") else None):
                yield from casts(inner, (*inside, equation.primitive.name))


@pytest.mark.parametrize(("kind", "once"), [("cpu", False), ("tpu", True)])
def test_matrices_are_cast_once_an_update(params, rollouts, kind, once):
    """On a GPU or TPU all layers of a matrix together, outside every loop; on a CPU each layer where it is used."""
    batch = make_batch(rollouts["cpu", 2], np.ones((2, 2), np.float32))
    half = dataclasses.replace(on(kind), compute_dtype="bfloat16")
    gradient = lambda params, batch: module.gradients(half, params, get_variant("baseline").loss, batch, 1)
    found = list(casts(jax.make_jaxpr(gradient)(params, batch).jaxpr))
    whole = params["layers"]["mlp"]["up"]["weight"].shape
    assert (((), whole) in found) == once


def test_a_non_finite_update_changes_nothing(params, rollouts):
    batch, optimizer = make_batch(rollouts["cpu", 1], np.float32([[np.nan, 1.0]])), make_optimizer()
    state = init_optimizer(optimizer, params)
    before = jax.tree.map(np.array, state)
    got, new, metrics = update(on("cuda"), optimizer, params, state, get_variant("baseline").loss, batch, 1e-3, 2)
    assert not np.isfinite(metrics["loss"])
    jax.tree.map(np.testing.assert_array_equal, got, params)
    jax.tree.map(np.testing.assert_array_equal, new, before)


def test_sizes_follow_from_the_memory(rollouts):
    """Unknown: today's constants. 80 GB: all answers at once, even long ones; a little more than the model: one at a time."""
    batch = make_batch(rollouts["cpu", 2], np.ones((2, 2), np.float32))
    assert module.activation_budget(on("cuda"), False) == module.ACTIVATION_BYTES
    large = on("cuda", 80 * 10**9)
    assert module.activation_budget(large, False) == int(0.9 * 80e9 - 4.5 * param_bytes(large)) // 4
    assert module.activation_budget(large, True) == int(0.9 * 80e9 - 5.5 * param_bytes(large)) // 4
    wide = dataclasses.replace(large, intermediate_size=2**19)
    assert fitting_micro_batch(wide, batch) == 4
    assert fitting_micro_batch(dataclasses.replace(wide, device=Device("cuda", 10**9), intermediate_size=2**23), batch) == 1
    policy = lambda config: Policy(config, None, tokenizer((3, 17), 20))
    assert (_fitting_batch(policy(TINY), 100), _fitting_batch(policy(on("tpu", 80 * 10**9)), 100)) == (64, 512)


def test_a_loaded_policy_is_for_this_machines_device(tiny_folder):
    assert load_policy(tiny_folder).config.device == this_device() == Device("cpu")


@pytest.mark.parametrize(
    ("kind", "dtype", "exact"), [("cpu", "float32", False), ("cuda", "float32", True), ("tpu", "float32", True), ("tpu", "bfloat16", False)]
)
def test_float32_products_are_float32(kind, dtype, exact):
    """Elsewhere than on a CPU they would be TF32 or bfloat16."""
    config = dataclasses.replace(on(kind), compute_dtype=dtype)
    text = Program(lambda config, x: x @ x, static_argnums=0).lower(config, np.ones((2, 2), np.float32)).as_text()
    assert ("HIGHEST" in text) == exact


@pytest.mark.parametrize(("seconds", "dtype"), [((1.0, 0.74), "bfloat16"), ((1.0, 0.76), "float32"), ((1.0, 6.0), "float32")])
def test_the_faster_dtype_of_a_cpu(monkeypatch, seconds, dtype):
    measured = iter(seconds)  # of float32, then of bfloat16

    def timeit(run, number):
        run()
        return next(measured)

    monkeypatch.setattr("timeit.timeit", timeit)
    assert faster_dtype() == dtype


def test_compiler_options_are_for_the_cpu_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(jax, "jit", lambda function, **options: asked.append(options) or function)
    Program(lambda config: None, static_argnums=0)
    assert asked == [{"static_argnums": 0, "compiler_options": CPU_COMPILER_OPTIONS}, {"static_argnums": 0}]
