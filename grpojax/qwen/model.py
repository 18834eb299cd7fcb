"""The Qwen transformer. The only file that imports Flax: everybody else sees functions on a nested dict of arrays.

A parameter tree looks like this; weights are [out, in], as in checkpoints, embedding and head are [V, D]:

    embed.embedding   norm.scale   head.weight (untied models only)   layers.{input_norm,post_norm}.scale
    layers.attention.{q,k,v,o}.{weight,bias}   layers.attention.{q_norm,k_norm}.scale   layers.mlp.{gate,up,down}.weight

Each array under `layers` holds that of all layers, [n, ...], and one compiled layer runs over them. `unstacked` makes a
list of layers of it, for a decode step: that has little to do in each, and reads its weights where they lie.

Positions and masks are arguments: the model never guesses padding from a token id.
"""

import functools
import itertools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from grpojax.products import Noted, product, rows, values
from grpojax.qwen.config import QwenConfig

Params = dict[str, Any]
Cache = Any
"""A list of blocks, each a pair of arrays: the keys [n, B, K, h, L] and values [n, B, K, L, h] of L tokens in the compute
dtype, in n layers with K key heads of size h; or a list of n such lists without the first axis, beside unstacked layers.
Keys lie so that a decode step, which reads all of them for few queries, reads them in order."""

BLOCK_SLOTS, MAX_BLOCKS = 128, 4
"""A cache to be filled has blocks of so many slots, or so many blocks. A block that nobody looks at yet is not read."""

COMPILER_OPTIONS = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}
"""For programs that run the stacked layers. XLA's CPU backend slices no bfloat16: it converts to float32 first, and were it
allowed to move what does not change out of the loop over layers, it would convert all layers at once."""


class Prefix(NamedTuple):
    """What P sequences have in common with the B that follow them: row b goes on from prefix b // (B / P)."""

    cache: Cache  # of the prefixes, P rows
    attend: Array  # [P, L] bool, which of its tokens are there (the others are padding)


def init_params(config: QwenConfig, key: Array) -> Params:
    """Random float32 parameters (normal, 0.02; norm scales 1), for models that are trained from nothing."""
    embed, head, layers = jax.random.split(key, 3)
    table = lambda key: 0.02 * jax.random.normal(key, (config.vocab_size, config.hidden_size))
    position, attend = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    x, rope = jnp.zeros((1, 1, config.hidden_size)), _rope_angles(position, config.head_dim, config.rope_theta)
    layer = lambda key: _Layer(config).init(key, x, rope, attend, None, 0, None)["params"]
    params = {
        "embed": {"embedding": table(embed)},
        "layers": jax.vmap(layer)(jax.random.split(layers, config.num_layers)),
        "norm": {"scale": jnp.ones(config.hidden_size)},
    }
    return params if config.tie_word_embeddings else params | {"head": {"weight": table(head)}}


def param_shapes(config: QwenConfig) -> Params:
    """The tree of `init_params` with a ShapeDtypeStruct for each array; nothing is computed."""
    return jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))


def unstacked(config: QwenConfig, layers: Any) -> list[Any]:
    """Arrays [n, ...] of all layers, parameters or cache, as a list of the n layers' own."""
    return [jax.tree.map(lambda x: x[i], layers) for i in range(config.num_layers)]


def decoding_params(config: QwenConfig, params: Params) -> Params:
    """The parameters as a loop of decode steps wants them: unstacked, and the matrices in the compute dtype."""
    cast = lambda x: x.astype(config.compute_dtype) if x.ndim == 2 else x
    return jax.tree.map(cast, params | {"layers": unstacked(config, params["layers"])})


def empty_cache(config: QwenConfig, batch: int, slots: int, one_block: bool = False) -> Cache:
    """A cache of zeros with `slots` places for each of `batch` sequences."""
    shape, dtype = (config.num_layers, batch, config.num_kv_heads), config.compute_dtype
    size = slots if one_block else max(BLOCK_SLOTS, -(-slots // MAX_BLOCKS))
    sizes = [min(size, slots - start) for start in range(0, slots, size)]
    return [(jnp.zeros((*shape, config.head_dim, n), dtype), jnp.zeros((*shape, n, config.head_dim), dtype)) for n in sizes]


def hidden_states(
    config: QwenConfig,
    params: Params,
    tokens: Array,
    positions: Array,
    attend: Array,
    cache: Cache | None = None,
    slot: Array | int = 0,
    prefix: Prefix | None = None,
    remat: bool = False,
) -> tuple[Array, Cache]:
    """Runs the layers, up to and with the last norm.

    Args:
      params: with layers stacked, or as a list; then the caches are lists too.
      tokens: [B, T] int32.
      positions: [B, T] int32, each token's place in its sequence (for RoPE).
      attend: [B, T, L] bool, true where token t may look at key l. Without a cache the keys are the tokens themselves.
      cache: keys and values of earlier tokens; those of `tokens` are written to slots [slot, slot + T). One token at a
        time goes into a cache of several blocks, or into slots [B] of its own for each sequence.
      prefix: what the sequences begin with, computed before; every token looks at all that is there of its own.
      remat: for the backward pass keep of each layer what went into it, not the results of its products as well; the rest
        is always computed again.

    Returns:
      [B, T, D] in the compute dtype, and the cache with the new keys and values (without one: those of `tokens`).
    """
    layers, x = params["layers"], rows(params["embed"]["embedding"], tokens).astype(config.compute_dtype)
    rope = _rope_angles(positions, config.head_dim, config.rope_theta)

    def run(x, layer):
        layer_params, kv, common = layer
        common = None if common is None else (*common[0], prefix.attend[:, None, None, :])
        return _Layer(config).apply({"params": values(layer_params)}, x, rope, attend, kv, slot, common)

    kept = () if remat else ("product",)
    run = jax.checkpoint(run, prevent_cse=False, policy=jax.checkpoint_policies.save_only_these_names(*kept))
    common = None if prefix is None else prefix.cache
    if isinstance(layers, list):
        filled, none = [], [None] * len(layers)
        for layer in zip(layers, cache or none, common or none, strict=True):
            x, kv = run(x, layer)
            filled.append(kv)
    else:
        x, filled = jax.lax.scan(run, x, (layers, cache, common), config.num_layers)
    return _RMSNorm(config).apply({"params": values(params["norm"])}, x), filled


def head_matrix(config: QwenConfig, params: Params) -> Array | Noted:
    """The output head, [V, D]: the embedding itself where the checkpoint ties them."""
    return params["embed"]["embedding"] if config.tie_word_embeddings else params["head"]["weight"]


def head_logits(config: QwenConfig, params: Params, hidden: Array) -> Array:
    """[..., D] hidden states -> [..., V] logits, float32."""
    return product(hidden, head_matrix(config, params))


def causal_inputs(tokens: Array) -> tuple[Array, Array]:
    """Positions [B, T] and causal mask [B, T, T] of sequences that start at index 0 (padding, if any, on the right)."""
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    attend = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))
    return positions, attend


def forward(config: QwenConfig, params: Params, tokens: Array) -> Array:
    """[B, T] tokens -> [B, T, V] float32 logits. Padding belongs on the right, where no real token sees it."""
    hidden, _ = hidden_states(config, params, tokens, *causal_inputs(tokens))
    return head_logits(config, params, hidden)


class _Layer(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x, rope, attend, kv, slot, common):
        c = self.config
        normed = _RMSNorm(c, name="input_norm")(x)
        attended, kv = _Attention(c, name="attention")(normed, rope, attend, kv, slot, common)
        x = x + attended
        return x + _MLP(c, name="mlp")(_RMSNorm(c, name="post_norm")(x)), kv


class _Attention(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x, rope, attend, kv, slot, common):
        c = self.config
        batch, length, _ = x.shape
        q = _Linear(c, c.num_heads * c.head_dim, c.qkv_bias, name="q")(x).reshape(batch, length, c.num_heads, -1)
        k = _Linear(c, c.num_kv_heads * c.head_dim, c.qkv_bias, name="k")(x).reshape(batch, length, c.num_kv_heads, -1)
        v = _Linear(c, c.num_kv_heads * c.head_dim, c.qkv_bias, name="v")(x).reshape(batch, length, c.num_kv_heads, -1)
        if c.qk_norm:  # over each head by itself, before RoPE
            q, k = _RMSNorm(c, name="q_norm")(q), _RMSNorm(c, name="k_norm")(k)
        q, k, v = _rotate(q, rope), _rotate(k, rope).transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
        blocks = [(k, v)] if kv is None else _written(kv, k, v, slot)
        ends = itertools.accumulate(v.shape[2] for _, v in blocks)
        segments = [(k, v, attend[:, None, :, end - v.shape[2] : end]) for (k, v), end in zip(blocks, ends, strict=True)]
        out = _grouped_attention(q, segments, common).reshape(batch, length, -1).astype(c.compute_dtype)
        return _Linear(c, c.hidden_size, c.output_bias, name="o")(out), blocks


class _MLP(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x):
        c = self.config
        gate = _Linear(c, c.intermediate_size, name="gate")(x)
        up = _Linear(c, c.intermediate_size, name="up")(x)
        return _Linear(c, c.hidden_size, name="down")(nn.silu(gate) * up)


class _Linear(nn.Module):
    config: QwenConfig
    features: int
    bias: bool = False

    @nn.compact
    def __call__(self, x):
        dtype = self.config.compute_dtype
        weight = self.param("weight", nn.initializers.normal(0.02), (self.features, x.shape[-1]))
        y = product(x, weight)
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = y + bias.astype(jnp.float32).reshape((1,) * (y.ndim - 1) + (-1,))
        return checkpoint_name(y.astype(dtype), "product")


class _RMSNorm(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + self.config.rms_norm_eps)
        return (x32 * scale.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


def _rope_angles(positions: Array, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Cosines and sines [B, T, 1, 2, head_dim / 2] of position times frequency, float32, for either half of a head; in the
    first half the sines are negative.

    Joined, because XLA's CPU backend copies a cosine into whatever uses it, and computes it again for each number of each
    layer; a concatenation it makes once.
    """
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[:, :, None, None, None].astype(jnp.float32) * frequencies[None, None, None, None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([cos, cos], axis=-2), jnp.concatenate([-sin, sin], axis=-2)


def _rotate(x: Array, rope: tuple[Array, Array]) -> Array:
    """Rotates the pairs (i, i + head_dim / 2): the split-half form that Qwen checkpoints expect."""
    cos, sin = rope
    halves = x.astype(jnp.float32).reshape(*x.shape[:-1], 2, -1)
    # Written without a concatenation, which XLA's CPU backend makes element by element.
    turned = halves * cos + halves[..., ::-1, :] * sin
    return turned.reshape(x.shape).astype(x.dtype)


def _written(blocks: Cache, k: Array, v: Array, slot: Array | int) -> Cache:
    """The blocks of one layer with keys [B, K, h, T] and values [B, K, T, h] of new tokens in slots [slot, slot + T)."""
    if len(blocks) == 1 and not jnp.ndim(slot):
        (keys, values), *_ = blocks
        write = lambda held, new, axis: jax.lax.dynamic_update_slice_in_dim(held, new.astype(held.dtype), slot, axis)
        return [(write(keys, k, 3), write(values, v, 2))]
    written, start = [], 0
    rows = jnp.arange(len(k)) if jnp.ndim(slot) else slice(None)
    for keys, values in blocks:
        size = values.shape[2]
        at = jnp.where((start <= slot) & (slot < start + size), slot - start, size)  # past the end: not written
        written.append((
            keys.at[rows, :, :, at].set(k[..., 0].astype(keys.dtype), mode="drop"),
            values.at[rows, :, at].set(v[:, :, 0].astype(values.dtype), mode="drop"),
        ))  # fmt: skip
        start += size
    return written


def _grouped_attention(q: Array, segments: list[tuple[Array, Array, Array]], common: Any) -> Array:
    """Attention over the keys of several segments as if they stood side by side.

    Args:
      q: [B, T, H, h], H / K queries to a key head.
      segments: keys [B, K, h, L], values [B, K, L, h] and attend, bool, broadcast to [B, 1, T, L]. The first is always
        read, another only if someone looks at it.
      common: None, or a segment of P rows, with attend broadcast to [P, B / P, T, L]. Rows of q that share a segment's
        keys meet them in one product.

    Returns:
      [B, T, H, h] float32.
    """
    first, *others = segments
    parts = [_partial_attention(q, *first)]
    unseen = jax.tree.map(jnp.zeros_like, parts[0])._replace(top=jnp.full_like(parts[0].top, jnp.finfo(jnp.float32).min))
    for segment in others:
        parts.append(jax.lax.cond(jnp.any(segment[2]), _partial_attention, lambda *_: unseen, q, *segment))
    if common is not None:
        parts.append(_partial_attention(q, *common))
    top = functools.reduce(jnp.maximum, [part.top for part in parts])
    factors = [jnp.exp(part.top - top) for part in parts]
    total = sum(factor * part.total for factor, part in zip(factors, parts, strict=True))
    return sum(factor * part.out for factor, part in zip(factors, parts, strict=True)) / total


class _Partial(NamedTuple):
    """Attention of [B, T, H] queries over a part of their keys, before the sum over all of them is known."""

    top: Array  # [B, T, H, 1], the largest score
    total: Array  # [B, T, H, 1], the sum of exp(score - top)
    out: Array  # [B, T, H, h], the sum of exp(score - top) times value


def _partial_attention(q: Array, k: Array, v: Array, attend: Array) -> _Partial:
    batch, length, heads, dim = q.shape
    places, key_heads = k.shape[:2]
    shared = q.reshape(places, -1, length, key_heads, heads // key_heads, dim).transpose(0, 3, 1, 4, 2, 5)
    scores = _matmul(shared.reshape(places, key_heads, -1, dim), k) * dim**-0.5
    scores = scores.reshape(*shared.shape[:-1], k.shape[-1])  # [P, K, B / P, H / K, T, L]
    scores = jnp.where(attend[:, None, :, None], scores, jnp.finfo(jnp.float32).min)
    top = jnp.max(jax.lax.stop_gradient(scores), axis=-1, keepdims=True)
    weights = jnp.exp(scores - top)
    out = _matmul(weights.reshape(places, key_heads, -1, k.shape[-1]).astype(v.dtype), v)
    by_row = lambda x: x.transpose(0, 2, 4, 1, 3, 5).reshape(batch, length, heads, -1)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return _Partial(by_row(top), by_row(total), by_row(out.reshape(*shared.shape[:-1], dim)))


def _matmul(a: Array, b: Array) -> Array:
    """Batched a @ b in this order of operands (einsum may turn it round), float32."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)
