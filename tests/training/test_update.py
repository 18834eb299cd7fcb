"""Batches, scores and updates on tiny models; the reference's own numbers are in tests/loss/test_golden_losses.py."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import LOSSES, whole_sequences

from grpojax import get_variant, group_advantages
from grpojax.loss import logprobs
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import param_shapes
from grpojax.qwen.weights import Policy
from grpojax.training import update as update_module
from grpojax.training.rollout import Rollouts, make_rollouts
from grpojax.training.sampling import make_sampler
from grpojax.training.update import (
    activation_bytes,
    fitting_micro_batch,
    gradients,
    init_optimizer,
    make_batch,
    make_optimizer,
    score,
    update,
)

token_logps = jax.jit(logprobs.token_logps)  # compiled as a whole; eagerly, each operation would be compiled separately

TINY = QwenConfig(
    model_type="qwen2", vocab_size=12, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=4, rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=64, tie_word_embeddings=True, qk_norm=False,
    qkv_bias=False, output_bias=False, eos_token_ids=(0,),
)  # fmt: skip
FLAT = dataclasses.replace(TINY, num_layers=0, tie_word_embeddings=False)
"""Without layers the next token depends on the last one alone: enough to test an update, and quick to compile."""
OPTIMIZER = make_optimizer()
KL = get_variant("kl", clip_eps=0.2, kl_coeff=0.05)


def random_params(config, seed=0, dtype=jnp.float32):
    rng, shapes = np.random.default_rng(seed), param_shapes(config)
    shapes = shapes if config.num_layers else shapes | {"layers": []}
    return jax.tree.map(lambda a: (rng.normal(size=a.shape) * 0.4).astype(dtype), shapes)


def rollouts_of(prompts, answers, size):
    """Rollouts with given tokens. The log-prob of token n of answer b is -(100 b + n), which tells positions apart."""
    padded = np.zeros((len(answers), size), np.int32)
    for row, ids in zip(padded, answers, strict=True):
        row[: len(ids)] = ids
    width = 16
    lens = np.array([len(ids) for ids in answers], np.int32)
    logps = -(100.0 * np.arange(len(answers))[:, None] + np.arange(size)[None, :]).astype(np.float32)
    return Rollouts(
        prompts=np.array([ids + [0] * (width - len(ids)) for ids in prompts], np.int32),
        prompt_lens=np.array([len(ids) for ids in prompts], np.int32),
        answers=padded,
        answer_lens=lens,
        truncated=np.zeros(len(answers), bool),
        logps=logps,
        entropies=np.zeros(padded.shape, np.float32),
    )


PROMPTS = [[5, 6, 7], [8]]
ANSWERS = [[1, 2, 0], [3, 0], [4, 4, 4, 4, 0], [0]]


@pytest.fixture(scope="module")
def params():
    return random_params(FLAT)


@pytest.fixture(scope="module")
def batch():
    """Two answers to each of two prompts. Sampler, reference and `params` are three sets of weights."""
    batch = make_batch(rollouts_of(PROMPTS, ANSWERS, size=20), np.float32([[1.0, -1.0], [0.5, -0.5]]))
    old, ref = (np.asarray(score(FLAT, random_params(FLAT, seed), batch)) for seed in (1, 2))
    return dataclasses.replace(batch, old_logps=old, ref_logps=ref)


def step(params, batch, loss=KL.loss, lr=1e-2, micro_batch=4, state=None):
    state = init_optimizer(OPTIMIZER, params) if state is None else state
    return update(FLAT, OPTIMIZER, params, state, loss, batch, lr, micro_batch)


def assert_equal_trees(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


class TestMakeBatch:
    def test_layout(self):
        batch = make_batch(rollouts_of(PROMPTS, ANSWERS, size=20), [[1.0, 2.0], [3.0, 4.0]])
        assert batch.prompts.shape == (2, 16) and batch.targets.shape == (4, 16)
        assert whole_sequences(batch)[:, :9].tolist() == [
            [5, 6, 7, 1, 2, 0, 0, 0, 0],
            [5, 6, 7, 3, 0, 0, 0, 0, 0],
            [8, 4, 4, 4, 4, 0, 0, 0, 0],
            [8, 0, 0, 0, 0, 0, 0, 0, 0],
        ]
        assert batch.prompt_lens.tolist() == [3, 1] and batch.prompt_of.tolist() == [0, 0, 1, 1]
        assert batch.mask.sum(axis=1).tolist() == [3, 2, 5, 1]
        assert batch.mask[1, :3].tolist() == [1, 1, 0]
        assert batch.old_logps[2, :3].tolist() == [-200, -201, -202]
        assert batch.advantages.tolist() == [1, 2, 3, 4] and batch.advantages.dtype == np.float32  # prompt by prompt
        assert batch.ref_logps is None

    def test_widths_follow_the_longest_answer(self):
        long = rollouts_of([[5]], [[1] * 17, [1]], size=20)
        assert make_batch(long, [[1.0, -1.0]]).targets.shape == (2, 32)  # the next bucket, wider than the record
        assert make_batch(rollouts_of([[5]], [[1] * 16, [1]], size=40), [[1.0, -1.0]]).targets.shape == (2, 16)

    def test_rows(self, batch):
        part = batch.rows(np.array([2, 0]))
        np.testing.assert_array_equal(whole_sequences(part), whole_sequences(batch)[[2, 0]])
        np.testing.assert_array_equal(part.ref_logps, batch.ref_logps[[2, 0]])
        assert part.advantages.tolist() == [0.5, 1.0]
        assert dataclasses.replace(batch, ref_logps=None).rows(np.array([1])).ref_logps is None


class TestScore:
    @pytest.fixture(scope="class")
    def params(self):
        return random_params(TINY)

    def test_equals_a_full_pass(self, params, batch):
        tokens = whole_sequences(batch)
        full = np.asarray(token_logps(Policy(TINY, params).apply(params, tokens), tokens))
        got = np.asarray(score(TINY, params, batch))
        for row, (prompt, answer) in enumerate(zip([*PROMPTS[:1] * 2, *PROMPTS[1:] * 2], ANSWERS, strict=True)):
            first = len(prompt) - 1
            np.testing.assert_allclose(got[row, : len(answer)], full[row, first : first + len(answer)], atol=1e-5)
            assert (got[row, len(answer) :] == 0).all()

    def test_a_row_alone_equals_a_row_of_many(self, params, batch):
        together = np.asarray(score(TINY, params, batch))
        np.testing.assert_allclose(score(TINY, params, batch.rows(np.array([2]))), together[2:3], atol=1e-5)

    def test_padding_does_not_matter(self, params, batch):
        is_prompt = np.arange(batch.prompts.shape[1])[None, :] < batch.prompt_lens[:, None]
        other = dataclasses.replace(
            batch, prompts=np.where(is_prompt, batch.prompts, 9), targets=np.where(batch.mask > 0, batch.targets, 9)
        )
        assert_equal_trees(score(TINY, params, other), score(TINY, params, batch))

    def test_equal_weights_have_no_divergence(self, params, batch):
        """Reference and policy score the same inputs by the same program, so their difference is exactly 0."""
        own = np.asarray(score(TINY, params, batch))
        assert_equal_trees(own, score(TINY, jax.tree.map(jnp.copy, params), batch))


class TestUpdate:
    def test_micro_batches_change_nothing(self, params, batch):
        """Sums of four sequences in another order: 1e-5 of what a step of lr moves, and of each metric."""
        whole, _, metrics = step(params, batch)
        assert 0 < float(metrics["clip_frac"]) < 1
        for size in (1, 2):
            parts, _, part_metrics = step(params, batch, micro_batch=size)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), parts, whole)
            for name, value in metrics.items():
                np.testing.assert_allclose(part_metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)

    def test_learning_rate_zero_leaves_the_weights(self, params, batch):
        moved, state, _ = step(params, batch, lr=0.0)
        assert_equal_trees(moved, params)  # no weight decay either
        assert int(state[1].count) == 1  # but Adam has seen the gradient

    def test_weights_move_in_proportion_to_the_learning_rate(self, params, batch):
        one, two = step(params, batch, lr=1e-3)[0], step(params, batch, lr=2e-3)[0]
        # the difference of weights of size 1 is rounded to 1e-7, so of 1e-3 to 1e-4
        one, two = (jax.tree.map(np.subtract, moved, params) for moved in (one, two))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, 2 * a, atol=5e-7), one, two)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_a_loss_that_is_not_finite_changes_nothing(self, params, batch, bad):
        _, state, _ = step(params, batch)
        before = jax.tree.map(np.array, state)
        advantages = batch.advantages.copy()
        advantages[1] = bad
        kept, state, metrics = step(params, dataclasses.replace(batch, advantages=advantages), state=state)
        assert not np.isfinite(metrics["loss"])
        assert_equal_trees(kept, params)
        assert_equal_trees(state, before)

    def test_a_gradient_that_is_not_finite_changes_nothing(self, params, batch):
        """With advantages of 3e37 the loss is still finite, but the norm of its gradient overflows."""
        huge = dataclasses.replace(batch, advantages=batch.advantages * np.float32(3e37))
        state = init_optimizer(OPTIMIZER, params)
        before = jax.tree.map(np.array, state)
        kept, state, metrics = step(params, huge, state=state)
        assert np.isfinite(metrics["loss"]) and not np.isfinite(metrics["grad_norm"])
        assert_equal_trees(kept, params)
        assert_equal_trees(state, before)

    def test_parameters_are_not_donated(self, params, batch):
        """The caller still samples with them as the old policy."""
        own = jax.tree.map(jnp.copy, params)
        step(own, batch)
        assert_equal_trees(own, params)
        score(FLAT, own, batch)

    def test_low_precision_weights_keep_their_type(self, batch):
        params = random_params(FLAT, dtype=jnp.bfloat16)
        state = init_optimizer(OPTIMIZER, params)
        assert {leaf.dtype for leaf in jax.tree.leaves((state[1].mu, state[1].nu))} == {jnp.dtype("float32")}
        moved, state, metrics = step(params, batch, state=state)
        assert {leaf.dtype for leaf in jax.tree.leaves(moved)} == {jnp.dtype("bfloat16")}
        assert {leaf.dtype for leaf in jax.tree.leaves((state[1].mu, state[1].nu))} == {jnp.dtype("float32")}
        assert metrics["loss"].dtype == metrics["grad_norm"].dtype == jnp.float32
        # neighbours below 1 are 4e-3 apart, so a step of 1e-2 shows
        pairs = zip(jax.tree.leaves(moved), jax.tree.leaves(params), strict=True)
        assert all((np.asarray(a) != b).any() for a, b in pairs)

    def test_changed_numbers_do_not_compile_again(self, params, batch):
        step(params, batch), score(FLAT, params, batch)
        before = update._cache_size(), score._cache_size()
        step(params, batch, lr=0.5)
        step(params, batch, get_variant("kl", clip_low=0.1, clip_high=0.7, kl_coeff=2.0).loss)
        step(random_params(FLAT, 5), dataclasses.replace(batch, advantages=-batch.advantages))
        score(FLAT, random_params(FLAT, 5), batch)
        assert (update._cache_size(), score._cache_size()) == before

    @pytest.mark.slow
    def test_low_precision_weights_get_float32_gradients(self, batch):
        """Those of float32 weights of the same values, not rounded, for one micro-batch and for the sum of four."""
        half = random_params(TINY, dtype=jnp.bfloat16)
        whole = jax.tree.map(lambda x: x.astype(jnp.float32), half)
        gradient = jax.jit(lambda p, batch, size: gradients(TINY, p, KL.loss, batch, size)[0], static_argnums=2)
        want = gradient(whole, batch, 4)
        for size in (4, 1):
            got = gradient(half, batch, size)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)

    @pytest.mark.slow
    def test_recomputed_activations_give_equal_gradients(self, batch, monkeypatch):
        params = random_params(TINY)

        def traced(params):
            return gradients(TINY, params, KL.loss, batch, 4)[0]

        def products():
            return str(jax.make_jaxpr(lambda p: traced(p))(params)).count("dot_general")

        before, want = products(), jax.jit(traced)(params)
        monkeypatch.setattr(update_module, "ACTIVATION_BYTES", 0)
        assert products() > before  # those of the layer are computed twice
        got = jax.jit(lambda p: traced(p))(params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, want)


@pytest.mark.parametrize(
    ("prompts", "micro_batch"), [(PROMPTS, 4), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((PROMPTS[:1], 8), (PROMPTS, 1)))]
)
def test_a_shared_prompt_equals_a_copy_for_each_answer(prompts, micro_batch):
    """Log-probs, loss and gradient of eight answers, in one, two and eight micro-batches."""
    params = random_params(TINY)
    share = 8 // len(prompts)
    advantages = np.linspace(-1, 1, 8).reshape(len(prompts), share)
    shared = make_batch(rollouts_of(prompts, ANSWERS * 2, size=20), advantages)
    alone = make_batch(rollouts_of([p for p in prompts for _ in range(share)], ANSWERS * 2, size=20), advantages.reshape(8, 1))
    assert (len(shared.prompts), len(alone.prompts)) == (len(prompts), 8)
    old = np.asarray(score(TINY, params, shared))
    np.testing.assert_allclose(old, score(TINY, params, alone), atol=1e-5)
    shared, alone = (dataclasses.replace(batch, old_logps=old) for batch in (shared, alone))
    loss = get_variant("clipped").loss
    got, metrics = jax.jit(gradients, static_argnums=(0, 4))(TINY, params, loss, shared, micro_batch)
    want, plain = jax.jit(gradients, static_argnums=(0, 4))(TINY, params, loss, alone, 8)
    np.testing.assert_allclose(metrics["loss"], plain["loss"], atol=1e-5)
    scale = max(np.abs(x).max() for x in jax.tree.leaves(want))
    assert scale > 0.1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), got, want)


def test_fitting_micro_batch(monkeypatch):
    """The largest divisor of 12 that fits; 1 if not even one sequence does."""
    batch = make_batch(rollouts_of(PROMPTS[:1], ANSWERS * 3, size=20), np.zeros((1, 12)))
    one = activation_bytes(TINY, batch, 1)
    for limit, size in ((12 * one, 12), (12 * one - 1, 6), (5 * one, 4), (3 * one, 3), (one, 1), (0, 1)):
        monkeypatch.setattr(update_module, "ACTIVATION_BYTES", limit)
        assert fitting_micro_batch(TINY, batch) == size


class TestOptimizer:
    def test_equal_numbers_are_one_optimizer(self):
        """`update` compiles once for each optimizer object."""
        assert make_optimizer(1.0, 0.01) is make_optimizer(1.0, 0.01) is not make_optimizer(1.0, 0.02)

    def moved(self, optimizer, params, grads, lr):
        """One step for each gradient."""
        state, step = init_optimizer(optimizer, params), jax.jit(optimizer.update)
        for grad in grads:
            updates, state = step(grad, state, params)
            params = jax.tree.map(lambda p, u: p - np.float32(lr) * np.asarray(u), params, updates)
        return params

    def test_two_steps_by_hand(self):
        # Step 1, g = 0.5: m = 0.05 / 0.1 = 0.5, v = 0.25, so the direction is 0.5 / 0.5 = 1; decay 0.01 * 2 = 0.02;
        # w = 2 - 0.1 * 1.02 = 1.898.
        # Step 2, g = -1: m = (0.045 - 0.1) / 0.19 = -0.289474; v = (0.00024975 + 0.001) / 0.001999 = 0.625188, root
        # 0.790688; direction -0.366104; decay 0.01898; w = 1.898 - 0.1 * (-0.347124) = 1.932712.
        grads = [{"w": np.float32([0.5])}, {"w": np.float32([-1.0])}]
        start = {"w": np.float32([2.0])}
        np.testing.assert_allclose(self.moved(make_optimizer(), start, grads[:1], lr=0.1)["w"], [1.898], rtol=1e-6)
        np.testing.assert_allclose(self.moved(make_optimizer(), start, grads, lr=0.1)["w"], [1.932712], rtol=1e-6)

    def test_weight_decay_alone(self):
        # no gradient: w (1 - lr * decay) = 2 (1 - 0.1 * 0.5)
        got = self.moved(make_optimizer(weight_decay=0.5), {"w": np.float32([2.0])}, [{"w": np.float32([0.0])}], lr=0.1)
        np.testing.assert_allclose(got["w"], [1.9], rtol=1e-6)

    @pytest.mark.parametrize(("bound", "norms"), [(1.0, (0.6, 0.8)), (2.5, (1.5, 2.0)), (10.0, (3.0, 4.0))])
    def test_the_norm_of_all_gradients_together_is_bounded(self, bound, norms):
        # (3, 4) has norm 5; the first moment is 0.1 of what passes the bound
        grads = {"a": np.float32([3.0]), "b": np.float32([4.0])}
        optimizer = make_optimizer(max_grad_norm=bound)
        _, state = optimizer.update(grads, init_optimizer(optimizer, grads), grads)
        moments = [state[1].mu[name].item() for name in "ab"]
        np.testing.assert_allclose(moments, 0.1 * np.array(norms), rtol=1e-6)


REWARDED = 4


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_a_rewarded_token_becomes_more_likely(name):
    """20 updates, 8 answers of up to 4 tokens each, reward: the share of token 4 in the answer."""
    variant = get_variant(name)
    start = random_params(FLAT)
    policy = Policy(FLAT, start, SimpleNamespace(stop_ids=(0,), size=12))
    params, state = start, init_optimizer(OPTIMIZER, start)
    for number in range(20 // variant.recipe.inner_epochs):
        rollouts = make_rollouts(policy, params, [[5]], jax.random.key(number), make_sampler(1.0), 8, 4)
        rewards = (rollouts.answers == REWARDED).sum(axis=1) / rollouts.answer_lens
        batch = make_batch(rollouts, np.asarray(group_advantages(rewards[None])))
        if "kl_coeff" in variant.loss.numbers:
            batch = dataclasses.replace(batch, ref_logps=np.asarray(score(FLAT, start, batch)))
        for _ in range(variant.recipe.inner_epochs):
            params, state, metrics = update(FLAT, OPTIMIZER, params, state, variant.loss, batch, 0.03, 8)
            assert np.isfinite(metrics["loss"])

    def probability(params):
        return float(jax.nn.softmax(policy.apply(params, np.array([[5]]))[0, 0])[REWARDED])

    assert probability(params) > 2 * probability(start)
