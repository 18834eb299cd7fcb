"""The forms of attention for other devices against the plain one: values, gradients, caches and prefixes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.device import Device
from grpojax.qwen import attention
from grpojax.qwen.attention import KVCache, Prefix, RowCache, attend, cache_type, causal_mask, fused_attention

CUDA = Device("cuda")
B, T, H, K, DIM, WIDTH = 4, 6, 4, 2, 8, 5


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture
def config(tiny_config):
    return tiny_config(num_attention_heads=H, num_key_value_heads=K, head_dim=DIM)


@pytest.fixture
def new():
    """Queries, keys and values of T new tokens."""
    return normal(0, B, T, H, DIM), normal(1, B, T, K, DIM), normal(2, B, T, K, DIM)


def prefix_of(cache, count):
    """`count` prefixes of 5 positions, of which 3, 5, 1 and 4 are tokens; padding holds large numbers."""
    lens = np.array([3, 5, 1, 4])[:count]
    mask = np.arange(WIDTH)[None, :] < lens[:, None]
    keys, values = (np.where(mask[:, :, None, None], normal(seed, count, WIDTH, K, DIM), 1e3).astype(np.float32) for seed in (3, 4))
    return Prefix(cache.of(keys, values), mask)


@pytest.mark.parametrize("prefixes", [0, 1, 4])
@pytest.mark.parametrize("kernel", ["cuda", "splash"])
def test_whole_sequences(config, new, prefixes, kernel):
    """Causal, after no prefix, one that all rows share, or one for each row: values, and gradients of every input."""

    def plain(q, k, v, keys, values):
        prefix = Prefix(KVCache.of(keys, values), mask) if prefixes else None
        return attend(config, q, k, v, causal_mask(B, T), None, 0, prefix)[0]

    def fused(q, k, v, keys, values):
        prefix = Prefix(RowCache.of(keys, values), mask) if prefixes else None
        if kernel == "splash":
            return attention._causal(q, k, v, prefix, functools.partial(attention._splash, interpret=True))
        return attend(dataclasses.replace(config, device=CUDA), q, k, v, None, None, 0, prefix)[0]

    cache, mask = prefix_of(RowCache, prefixes or 1)
    inputs = (*new, cache.keys, cache.values)
    weights = normal(5, B, T, H, DIM)
    summed = lambda f: jax.jit(jax.value_and_grad(lambda *x: jnp.sum(weights * f(*x)), argnums=(0, 1, 2, 3, 4)))
    np.testing.assert_allclose(jax.jit(fused)(*inputs), jax.jit(plain)(*inputs), atol=2e-6)
    (value, slopes), (want, want_slopes) = summed(fused)(*inputs), summed(plain)(*inputs)
    assert value == pytest.approx(float(want), rel=1e-5)
    for got, slope in zip(slopes, want_slopes, strict=True):
        np.testing.assert_allclose(got, slope, atol=2e-5)


def test_one_token_after_a_cache_that_begins_with_the_prompt(config):
    """Rows of 2, 3, 6 and 1 tokens; the new one is written after them. Against a softmax of the filled positions alone."""
    q, k, v = normal(0, B, 1, H, DIM), normal(1, B, 1, K, DIM), normal(2, B, 1, K, DIM)
    held, filled = (normal(3, B, 8, K, DIM), normal(4, B, 8, K, DIM)), np.array([2, 3, 6, 1])
    mask = (np.arange(8)[None, :] <= filled[:, None])[:, None]
    cuda = dataclasses.replace(config, device=CUDA)
    got, cache = jax.jit(functools.partial(attend, cuda))(q, k, v, mask, RowCache(*held), filled, None)
    for row, n in enumerate(filled):
        keys, values = (np.concatenate([whole[row, :n], one[row]]) for whole, one in zip(held, (k, v), strict=True))
        np.testing.assert_array_equal(cache.keys[row, : n + 1], keys)
        np.testing.assert_array_equal(cache.values[row, n + 1 :], held[1][row, n + 1 :])
        for head in range(H):
            scores = keys[:, head // (H // K)] @ q[row, 0, head] / np.sqrt(DIM)
            weights = np.exp(scores - scores.max())
            want = weights @ values[:, head // (H // K)] / weights.sum()
            np.testing.assert_allclose(got[row, 0, head], want, atol=1e-6)


@pytest.mark.parametrize("cached", [False, True])
def test_a_gpu_takes_any_mask_of_several_tokens(config, new, cached):
    """Six tokens, alone or written to positions 2 to 7 of a cache of 9, with a random mask in which each sees itself."""
    q, k, v = new
    start, length = (2, 9) if cached else (0, T)
    mask = np.random.default_rng(7).random((B, T, length)) < 0.5
    mask[:, np.arange(T), start + np.arange(T)] = True
    held = (normal(3, B, length, K, DIM), normal(4, B, length, K, DIM)) if cached else None

    def run(device, kind):
        cache = kind.of(*map(jnp.asarray, held)) if cached else None
        return attend(dataclasses.replace(config, device=device), q, k, v, mask, cache, start, None)[0]

    np.testing.assert_allclose(run(CUDA, RowCache), run(Device(), KVCache), atol=2e-6)


def test_a_gpu_has_no_prefix_beside_a_mask(config, new):
    prefix, mask = prefix_of(RowCache, 1), np.ones((B, T, T), bool)
    with pytest.raises(ValueError, match="on a GPU a prefix is for whole sequences, without a mask"):
        attend(dataclasses.replace(config, device=CUDA), *new, mask, None, 0, prefix)


@pytest.mark.parametrize("kind", [KVCache, RowCache])
def test_rows_of_a_cache_are_replaced(kind):
    """Two of four rows get three positions; row 9 does not exist."""
    whole = kind.of(jnp.asarray(normal(0, 4, 5, K, DIM)), jnp.asarray(normal(1, 4, 5, K, DIM)))
    new = kind.of(normal(2, 3, 3, K, DIM), normal(3, 3, 3, K, DIM))
    keys, values = attention._rows(whole.put(np.array([2, 0, 9]), new))
    for got, before, after in zip((keys, values), attention._rows(whole), attention._rows(new), strict=True):
        np.testing.assert_array_equal(got[2, :3], after[0])
        np.testing.assert_array_equal(got[0, :3], after[1])
        np.testing.assert_array_equal(got[1], before[1])
        np.testing.assert_array_equal(got[:, 3:], before[:, 3:])


def test_the_form_follows_device_and_dtype(config):
    on = lambda kind, dtype: dataclasses.replace(config, device=Device(kind), compute_dtype=dtype)
    assert cache_type(on("cuda", "float32")) is RowCache
    assert cache_type(on("tpu", "bfloat16")) is cache_type(on("cpu", "bfloat16")) is KVCache
    fused = {(kind, dtype): fused_attention(on(kind, dtype)) for kind in ("cpu", "cuda", "tpu") for dtype in ("float32", "bfloat16")}
    assert [key for key, value in fused.items() if value] == [("cuda", "bfloat16"), ("tpu", "bfloat16")]


def test_a_tpu_uses_its_kernel(config, new):
    """What is traced, without compiling it. (For cuDNN, which must be installed, see tests/benchmarks/test_accelerators.py.)"""
    config = dataclasses.replace(config, device=Device("tpu"), compute_dtype="bfloat16")
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in new)
    assert "pallas_call" in str(jax.make_jaxpr(lambda q, k, v: attend(config, q, k, v, None, None, 0, None)[0])(q, k, v))
