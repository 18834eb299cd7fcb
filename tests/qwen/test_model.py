"""The forward pass: masks, positions, cache, norms, rotation, biases and the head."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.qwen import attention, model
from grpojax.qwen.attention import KVCache, Prefix
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import causal_inputs, param_shapes

# Compiled whole, or each small operation is compiled by itself.
forward = jax.jit(model.forward, static_argnames="config")
hidden_states = jax.jit(model.hidden_states, static_argnames=("config", "remat"))
head_logits = jax.jit(model.head_logits, static_argnames="config")
rope_angles = jax.jit(model._rope_angles, static_argnums=(1, 2))
rotate = jax.jit(model._rotate)

QWEN3_06B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
QWEN25_05B = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
QWEN2 = {"model_type": "qwen2", "tie_word_embeddings": False}
FAMILIES = [{"model_type": "qwen3"}, pytest.param(QWEN2, marks=pytest.mark.slow)]


def _random(config, seed=0):
    """Parameters all of which matter: norm scales around 1, everything else, biases too, around 0."""
    noise = np.random.default_rng(seed)

    def draw(path, leaf):
        return (0.2 * noise.normal(size=leaf.shape) + (path[-1].key == "scale")).astype(np.float32)

    return jax.tree.map_with_path(draw, param_shapes(config))


def _tokens(config, batch, length, seed=5):
    return np.random.default_rng(seed).integers(0, config.vocab_size, (batch, length), np.int32)


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_decoding_in_pieces_equals_the_full_forward_pass(tiny_config, family):
    config = tiny_config(**family)
    params, tokens, length = _random(config), _tokens(config, 2, 9), 12  # three positions are never filled
    cache, pieces, start = KVCache.empty(config, 2, length), [], 0
    for count in (4, 3, 1, 1):
        positions = np.broadcast_to(np.arange(start, start + count), (2, count))
        mask = np.arange(length)[None, None, :] <= positions[:, :, None]
        piece = tokens[:, start : start + count]
        hidden, cache = hidden_states(config, params, piece, positions, mask, cache, start)
        pieces.append(head_logits(config, params, hidden))
        start += count
    np.testing.assert_allclose(np.concatenate(pieces, 1), forward(config, params, tokens), atol=2e-5)


@pytest.mark.parametrize("length, sizes", [(4, [4]), (5, [4, 1]), (26, [9, 9, 8])])
def test_blocks_of_a_cache_are_filled_in_turn_and_read_only_if_attended_to(tiny_config, monkeypatch, length, sizes):
    """Blocks of 4 positions, or 3 blocks if that is too few; blocks that no token has reached hold NaN."""
    monkeypatch.setattr(attention, "BLOCK_SIZE", 4)
    monkeypatch.setattr(attention, "MAX_BLOCKS", 3)
    config = tiny_config()
    params, tokens = _random(config), _tokens(config, 2, length)
    blank = KVCache.empty(config, 2, length)
    assert [keys.shape[-1] for keys in blank.keys] == [values.shape[-2] for values in blank.values] == sizes

    @jax.jit
    def step(token, cache, index):
        mask = jnp.broadcast_to(jnp.arange(length) <= index, (2, 1, length))
        position = jnp.full((2, 1), index)
        hidden, cache = hidden_states(config, layers, token, position, mask, cache, index)
        return head_logits(config, params, hidden), cache

    layers, whole = model.decoding_params(config, params), np.asarray(forward(config, params, tokens))
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    fresh = model.unstacked(config, blank)
    cache = model.unstacked(config, jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), blank))
    for index in range(length):
        if index in starts:
            block = starts.index(index)
            put = lambda blocks, new: (*blocks[:block], new[block], *blocks[block + 1 :])
            cache = [KVCache(put(c.keys, f.keys), put(c.values, f.values)) for c, f in zip(cache, fresh, strict=True)]
        logits, cache = step(tokens[:, index : index + 1], cache, index)
        np.testing.assert_allclose(logits, whole[:, index : index + 1], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_that_share_a_prefix_equal_whole_ones(tiny_config, family):
    """Six answers of three tokens to two prompts of 5 and 3 tokens, against six full passes: logits and gradient."""
    config = tiny_config(**family)
    params, lengths, share = _random(config), np.array([5, 3]), 3
    prompts, answers = _tokens(config, 2, 5), _tokens(config, 6, 3, seed=6)
    mask = np.arange(5)[None, :] < lengths[:, None]

    def shared(params):
        _, cache = hidden_states(config, params, prompts, *causal_inputs(prompts))
        positions, causal = causal_inputs(answers)
        positions += np.repeat(lengths, share)[:, None]
        hidden, _ = hidden_states(config, params, answers, positions, causal, prefix=Prefix(cache, mask))
        return head_logits(config, params, hidden)

    starts = np.repeat(lengths, share)
    sequences = np.zeros((6, 8), np.int32)  # padded right
    for row, start, prompt, answer in zip(sequences, starts, np.repeat(prompts, share, axis=0), answers, strict=True):
        row[: start + 3] = [*prompt[:start], *answer]

    def whole(params):
        logits = forward(config, params, sequences)
        return jnp.take_along_axis(logits, (starts[:, None] + np.arange(3)[None, :])[:, :, None], axis=1)

    np.testing.assert_allclose(jax.jit(shared)(params), jax.jit(whole)(params), atol=2e-5)
    weights = jax.random.normal(jax.random.key(8), (6, 3, config.vocab_size))
    got, want = (jax.jit(jax.grad(lambda p, f=f: jnp.sum(weights * f(p))))(params) for f in (shared, whole))
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), got, want)


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_rows_equal_single_rows(tiny_config, family):
    config = tiny_config(**family)
    params, tokens, lengths, width = _random(config), _tokens(config, 2, 8), (3, 6), 8
    # On the right: what follows a row's tokens is noise that no real token sees.
    right = np.asarray(forward(config, params, tokens))
    # On the left: positions count from the first real token, and the noise before it is masked.
    pads = width - np.array(lengths)
    shifted = np.stack([np.roll(row, pad) for row, pad in zip(tokens, pads, strict=True)])
    columns = np.arange(width)
    positions = np.maximum(columns[None, :] - pads[:, None], 0)
    _, causal = causal_inputs(shifted)
    hidden, _ = hidden_states(
        config, params, shifted, positions, causal & (columns[None, None, :] >= pads[:, None, None])
    )
    left = np.asarray(head_logits(config, params, hidden))
    assert np.isfinite(left).all()  # also where a padding token sees nothing at all
    for row, length in enumerate(lengths):
        single = np.asarray(forward(config, params, tokens[row : row + 1, :length]))[0]
        np.testing.assert_allclose(right[row, :length], single, atol=2e-5)
        np.testing.assert_allclose(left[row, width - length :], single, atol=2e-5)


def test_a_changed_token_leaves_earlier_logits_alone(tiny_config):
    config = tiny_config()
    params, tokens = _random(config), _tokens(config, 1, 8)
    changed = tokens.copy()
    changed[0, 5] = (tokens[0, 5] + 1) % config.vocab_size
    before, after = (np.asarray(forward(config, params, x)) for x in (tokens, changed))
    np.testing.assert_array_equal(before[:, :5], after[:, :5])
    assert (np.abs(before[:, 5:] - after[:, 5:]).max(axis=-1) > 1e-3).all()


def test_shapes_of_qwen3_06b():
    """head_dim is 128, not 1024 / 16 = 64; the parameters are the published 596 million."""
    shapes = param_shapes(QwenConfig.from_hf(QWEN3_06B))
    attention = shapes["layers"]["attention"]
    assert {name: attention[name]["weight"].shape for name in "qkvo"} == {
        "q": (28, 2048, 1024),
        "k": (28, 1024, 1024),
        "v": (28, 1024, 1024),
        "o": (28, 1024, 2048),
    }
    assert attention["q_norm"]["scale"].shape == (28, 128)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 596_049_920
    assert "head" not in shapes


def test_shapes_of_qwen25_05b():
    """No head_dim in the file, so 896 / 14 = 64; biases on q, k and v; the published 494 million parameters."""
    shapes = param_shapes(QwenConfig.from_hf(QWEN25_05B))
    attention = shapes["layers"]["attention"]
    assert attention["q"]["bias"].shape == (24, 896) and attention["v"]["bias"].shape == (24, 128)
    assert "bias" not in attention["o"] and "q_norm" not in attention
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 494_032_768


def test_queries_and_keys_are_normalised_head_by_head(tiny_config):
    """Ten times the queries of one head changes nothing with a norm per head; without one it does (Qwen2)."""
    for family, same in (("qwen3", True), ("qwen2", False)):
        config = tiny_config(model_type=family, rms_norm_eps=1e-12)
        params, tokens = _random(config), _tokens(config, 1, 6)
        before = np.asarray(forward(config, params, tokens))
        params["layers"]["attention"]["q"]["weight"][0, : config.head_dim] *= 10.0
        difference = np.abs(before - forward(config, params, tokens)).max()
        assert (difference < 1e-5) if same else (difference > 1e-2)


def test_rope_frequencies():
    """1e6 ** (-126 / 128) = 10 ** -5.90625 = 1.2409e-6; at position 1 the angle is the frequency."""
    cos, sin = map(np.asarray, rope_angles(np.array([[0, 1]]), 128, 1e6))
    assert cos.shape == sin.shape == (1, 2, 1, 2, 64)
    np.testing.assert_allclose(sin[0, 1, 0, :, -1], [-1.2409e-6, 1.2409e-6], rtol=1e-4)
    np.testing.assert_allclose(cos[0, 1, 0, :, 0], [0.5403, 0.5403], atol=1e-4)
    np.testing.assert_allclose(sin[0, 1, 0, :, 0], [-0.8415, 0.8415], atol=1e-4)


def test_rope_pairs_the_halves():
    """Head size 4, theta 1e4, position 2: (x0, x2) turn by 2 and (x1, x3) by 2 / 100. Even/odd pairs would differ."""
    rope = rope_angles(np.array([[2]]), 4, 1e4)
    rotated = [rotate(np.eye(4, dtype=np.float32)[i][None, None, None], rope) for i in range(2)]
    np.testing.assert_allclose(rotated[0], [[[[np.cos(2), 0, np.sin(2), 0]]]], atol=1e-6)
    np.testing.assert_allclose(rotated[1], [[[[0, np.cos(0.02), 0, np.sin(0.02)]]]], atol=1e-6)


def test_rope_is_the_identity_at_position_0():
    x = np.random.default_rng(0).normal(size=(1, 1, 3, 128)).astype(np.float32)
    np.testing.assert_array_equal(rotate(x, rope_angles(np.array([[0]]), 128, 1e6)), x)


def test_a_bias_of_the_values_equals_a_bias_of_the_output(tiny_config):
    """Attention weights sum to 1, so every query head adds its key head's v bias; `o` turns their concatenation."""
    config = tiny_config(attention_bias=True, num_hidden_layers=1)
    params, tokens = _random(config), _tokens(config, 2, 5)
    attention = params["layers"]["attention"]
    on_values = forward(config, params, tokens)
    bias = attention["v"]["bias"].reshape(config.num_kv_heads, config.head_dim)
    heads = np.repeat(bias, config.num_heads // config.num_kv_heads, axis=0)  # heads 0, 1 use key head 0
    attention["o"]["bias"] = attention["o"]["bias"] + (attention["o"]["weight"][0] @ heads.reshape(-1))[None]
    attention["v"]["bias"] = np.zeros_like(attention["v"]["bias"])
    np.testing.assert_allclose(forward(config, params, tokens), on_values, atol=2e-5)


def test_a_tied_head_is_the_embedding(tiny_config):
    tied, untied = tiny_config(), tiny_config(tie_word_embeddings=False)
    params, tokens = _random(tied), _tokens(tied, 1, 6)
    own = params | {"head": {"weight": 2.0 * params["embed"]["embedding"]}}
    want = 2.0 * np.asarray(forward(tied, params, tokens))
    np.testing.assert_allclose(forward(untied, own, tokens), want, rtol=1e-5, atol=1e-5)


def test_remat_changes_no_value_and_no_gradient(tiny_config):
    config = tiny_config()
    params, tokens = _random(config), _tokens(config, 1, 6)

    def loss(params, remat):
        hidden, _ = hidden_states(config, params, tokens, *causal_inputs(tokens), remat=remat)
        return jnp.sum(head_logits(config, params, hidden) ** 2)

    (value, gradient), (again, gradient_again) = (
        jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, remat) for remat in (False, True)
    )
    np.testing.assert_allclose(value, again, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), gradient, gradient_again)


def test_compute_dtype_leaves_logits_in_float32(tiny_config):
    config = tiny_config()
    half = dataclasses.replace(config, compute_dtype="bfloat16")
    params, tokens = _random(config), _tokens(config, 2, 9)
    hidden, _ = hidden_states(half, params, tokens, *causal_inputs(tokens))
    logits, exact = (np.asarray(x) for x in (model.head_logits(half, params, hidden), forward(config, params, tokens)))
    assert hidden.dtype == jnp.bfloat16 and logits.dtype == jnp.float32
    # Root mean square, because a sharp attention weight amplifies single roundings.
    error = np.sqrt(np.mean((logits - exact) ** 2) / np.mean(exact**2))
    assert 0 < error < 2e-2
