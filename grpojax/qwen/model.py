"""The Qwen transformer. The only module that imports Flax: all others see functions on a nested dict of arrays.

The parameter tree; weights are [out, in], as in checkpoints, embedding and head are [V, D]:

    embed.embedding   norm.scale   head.weight (untied models only)   layers.{input_norm,post_norm}.scale
    layers.attention.{q,k,v,o}.{weight,bias}   layers.attention.{q_norm,k_norm}.scale   layers.mlp.{gate,up,down}.weight

Each array under `layers` has the n layers as its first axis, and one compiled layer runs over them. For decoding, `unstacked`
makes a list of layers of it: a decode step does little in each layer and must read its weights without copying them.

Positions and masks are arguments: the model never infers padding from a token id.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from grpojax.precision import Float32Grad, embed, linear, unwrap
from grpojax.qwen.config import QwenConfig

Params = dict[str, Any]

BLOCK_SIZE, MAX_BLOCKS = 128, 4
"""A cache for decoding has blocks of at least so many positions, and at most so many blocks."""

COMPILER_OPTIONS = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}
"""For programs that loop over stacked layers. XLA's CPU backend converts bfloat16 to float32 before it slices it. If it could
move code that does not change out of the loop over layers, it would convert all layers at once."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of earlier tokens, in blocks of consecutive positions, in the compute dtype.

    B sequences, K key heads of size h, L positions of a block. A cache of stacked layers has the n layers as its first axis
    and is [n, ...]; beside unstacked layers there is a list of n caches. A decode step reads all keys for few queries;
    in this layout it reads them in order. A block that no row attends to is not read.
    """

    keys: tuple[Array, ...]  # of each block: [B, K, h, L]
    values: tuple[Array, ...]  # of each block: [B, K, L, h]

    @classmethod
    def empty(cls, config: QwenConfig, batch: int, length: int, one_block: bool = False) -> "KVCache":
        """A cache of zeros for `length` positions of each of `batch` sequences, with stacked layers."""
        shape, dtype = (config.num_layers, batch, config.num_kv_heads), config.compute_dtype
        size = length if one_block else max(BLOCK_SIZE, -(-length // MAX_BLOCKS))
        sizes = [min(size, length - start) for start in range(0, length, size)]
        return cls(
            tuple(jnp.zeros((*shape, config.head_dim, n), dtype) for n in sizes),
            tuple(jnp.zeros((*shape, n, config.head_dim), dtype) for n in sizes),
        )

    def update(self, k: Array, v: Array, index: Array | int) -> "KVCache":
        """The cache of one layer with new tokens written to positions [index, index + T).

        Args:
          k: [B, K, h, T]; v: [B, K, T, h].
          index: a number, or [B] positions, one for each sequence. With several blocks or [B] positions T is 1.
        """
        if len(self.keys) == 1 and not jnp.ndim(index):
            write = lambda held, new, axis: jax.lax.dynamic_update_slice_in_dim(held, new.astype(held.dtype), index, axis)
            return KVCache((write(self.keys[0], k, 3),), (write(self.values[0], v, 2),))
        keys, values, start = [], [], 0
        rows = jnp.arange(len(k)) if jnp.ndim(index) else slice(None)
        for block_keys, block_values in zip(self.keys, self.values, strict=True):
            size = block_values.shape[2]
            at = jnp.where((start <= index) & (index < start + size), index - start, size)  # past the end: not written
            keys.append(block_keys.at[rows, :, :, at].set(k[..., 0].astype(block_keys.dtype), mode="drop"))
            values.append(block_values.at[rows, :, at].set(v[:, :, 0].astype(block_values.dtype), mode="drop"))
            start += size
        return KVCache(tuple(keys), tuple(values))


class Prefix(NamedTuple):
    """Keys and values of P prefixes, shared by the B sequences that continue them: row b continues prefix b // (B / P)."""

    cache: KVCache | list[KVCache]  # P rows, one block
    mask: Array  # [P, L] bool, true at tokens, false at padding


@functools.partial(jax.jit, static_argnames="config")
def init_params(config: QwenConfig, key: Array) -> Params:
    """Random float32 parameters (normal, 0.02; norm scales 1), to train a model from scratch."""
    embed, head, layers = jax.random.split(key, 3)
    table = lambda key: 0.02 * jax.random.normal(key, (config.vocab_size, config.hidden_size))
    position, mask = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    x, rope = jnp.zeros((1, 1, config.hidden_size)), _rope_angles(position, config.head_dim, config.rope_theta)
    layer = lambda key: _Layer(config).init(key, x, rope, mask, None, 0, None)["params"]
    params = {
        "embed": {"embedding": table(embed)},
        "layers": jax.vmap(layer)(jax.random.split(layers, config.num_layers)),
        "norm": {"scale": jnp.ones(config.hidden_size)},
    }
    return params if config.tie_word_embeddings else params | {"head": {"weight": table(head)}}


def param_shapes(config: QwenConfig) -> Params:
    """The tree of `init_params` with a ShapeDtypeStruct for each array, without computing it."""
    return init_params.eval_shape(config, jax.random.key(0))


def unstacked(config: QwenConfig, layers: Any) -> list[Any]:
    """Parameters or a cache with stacked layers, [n, ...], as a list of n layers."""
    return [jax.tree.map(lambda x: x[i], layers) for i in range(config.num_layers)]


def decoding_params(config: QwenConfig, params: Params) -> Params:
    """The parameters for a decode loop: layers unstacked, and matrices in the compute dtype."""
    cast = lambda x: x.astype(config.compute_dtype) if x.ndim == 2 else x
    return jax.tree.map(cast, params | {"layers": unstacked(config, params["layers"])})


def hidden_states(
    config: QwenConfig,
    params: Params,
    tokens: Array,
    positions: Array,
    mask: Array,
    cache: KVCache | list[KVCache] | None = None,
    cache_index: Array | int = 0,
    prefix: Prefix | None = None,
    remat: bool = False,
) -> tuple[Array, KVCache | list[KVCache]]:
    """Runs the layers, up to and including the last norm.

    Args:
      params: with layers stacked, or as a list; then the caches are lists too.
      tokens: [B, T] int32.
      positions: [B, T] int32, each token's position in its sequence (for RoPE).
      mask: [B, T, L] bool, true where token t attends to key l. Without a cache the keys are those of the tokens.
      cache: keys and values of earlier tokens; those of `tokens` are written at `cache_index`, see `KVCache.update`.
      prefix: what the sequences begin with, computed before; every token attends to all of its prefix.
      remat: for the backward pass, keep only the input of each layer, not the results of its matrix products. Everything
        else is always computed again.

    Returns:
      [B, T, D] in the compute dtype, and the updated cache (without one: keys and values of `tokens`).
    """
    layers, x = params["layers"], embed(params["embed"]["embedding"], tokens).astype(config.compute_dtype)
    rope = _rope_angles(positions, config.head_dim, config.rope_theta)

    def run(x, layer):
        layer_params, layer_cache, layer_prefix = layer
        own_prefix = None if layer_prefix is None else Prefix(layer_prefix, prefix.mask)
        return _Layer(config).apply({"params": unwrap(layer_params)}, x, rope, mask, layer_cache, cache_index, own_prefix)

    kept = () if remat else ("linear",)
    run = jax.checkpoint(run, prevent_cse=False, policy=jax.checkpoint_policies.save_only_these_names(*kept))
    prefix_cache = None if prefix is None else prefix.cache
    if isinstance(layers, list):
        updated, none = [], [None] * len(layers)
        for layer in zip(layers, cache or none, prefix_cache or none, strict=True):
            x, layer_cache = run(x, layer)
            updated.append(layer_cache)
    else:
        x, updated = jax.lax.scan(run, x, (layers, cache, prefix_cache), config.num_layers)
    return _RMSNorm(config).apply({"params": unwrap(params["norm"])}, x), updated


def head_matrix(config: QwenConfig, params: Params) -> Array | Float32Grad:
    """The output head, [V, D]; in a tied model it is the embedding."""
    return params["embed"]["embedding"] if config.tie_word_embeddings else params["head"]["weight"]


def head_logits(config: QwenConfig, params: Params, hidden: Array) -> Array:
    """[..., D] hidden states -> [..., V] logits, float32."""
    return linear(hidden, head_matrix(config, params))


def causal_inputs(tokens: Array) -> tuple[Array, Array]:
    """Positions [B, T] and causal mask [B, T, T] of sequences that start at index 0, with padding on the right."""
    batch, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))
    return positions, mask


def forward(config: QwenConfig, params: Params, tokens: Array) -> Array:
    """[B, T] tokens -> [B, T, V] float32 logits. Padding must be on the right, where no token attends to it."""
    hidden, _ = hidden_states(config, params, tokens, *causal_inputs(tokens))
    return head_logits(config, params, hidden)


class _Layer(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x, rope, mask, cache, cache_index, prefix):
        c = self.config
        normed = _RMSNorm(c, name="input_norm")(x)
        attended, cache = _Attention(c, name="attention")(normed, rope, mask, cache, cache_index, prefix)
        x = x + attended
        return x + _MLP(c, name="mlp")(_RMSNorm(c, name="post_norm")(x)), cache


class _Attention(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x, rope, mask, cache, cache_index, prefix):
        c = self.config
        batch, length, _ = x.shape
        q = _Linear(c, c.num_heads * c.head_dim, c.qkv_bias, name="q")(x).reshape(batch, length, c.num_heads, -1)
        k = _Linear(c, c.num_kv_heads * c.head_dim, c.qkv_bias, name="k")(x).reshape(batch, length, c.num_kv_heads, -1)
        v = _Linear(c, c.num_kv_heads * c.head_dim, c.qkv_bias, name="v")(x).reshape(batch, length, c.num_kv_heads, -1)
        if c.qk_norm:  # over each head, before RoPE
            q, k = _RMSNorm(c, name="q_norm")(q), _RMSNorm(c, name="k_norm")(k)
        q, k, v = _rotate(q, rope), _rotate(k, rope).transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
        cache = KVCache((k,), (v,)) if cache is None else cache.update(k, v, cache_index)
        out = _attention(q, cache, mask, prefix).reshape(batch, length, -1).astype(c.compute_dtype)
        return _Linear(c, c.hidden_size, c.output_bias, name="o")(out), cache


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
        y = linear(x, weight)
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = y + bias.astype(jnp.float32).reshape((1,) * (y.ndim - 1) + (-1,))
        return checkpoint_name(y.astype(dtype), "linear")


class _RMSNorm(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + self.config.rms_norm_eps)
        return (x32 * scale.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


def _rope_angles(positions: Array, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Cosines and sines [B, T, 1, 2, head_dim / 2] of position times frequency, float32, for both halves of a head. The sines
    of the first half are negative.

    Concatenated, because XLA's CPU backend fuses a cosine into its uses and computes it again for every element of every
    layer, but computes a concatenation once.
    """
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[:, :, None, None, None].astype(jnp.float32) * frequencies[None, None, None, None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([cos, cos], axis=-2), jnp.concatenate([-sin, sin], axis=-2)


def _rotate(x: Array, rope: tuple[Array, Array]) -> Array:
    """Rotates the pairs (i, i + head_dim / 2): the split-half form that Qwen checkpoints expect."""
    cos, sin = rope
    halves = x.astype(jnp.float32).reshape(*x.shape[:-1], 2, -1)
    # Without a concatenation, which XLA's CPU backend does element by element.
    rotated = halves * cos + halves[..., ::-1, :] * sin
    return rotated.reshape(x.shape).astype(x.dtype)


def _attention(q: Array, cache: KVCache, mask: Array, prefix: Prefix | None) -> Array:
    """Attention of [B, T, H, h] queries over the blocks of a cache and over their prefix, as one softmax: [B, T, H, h] float32.

    H / K queries share a key head. The first block is always read, another one only if some token attends to it. All rows
    that share a prefix are multiplied with its keys in one product.
    """
    parts, start = [], 0
    for k, v in zip(cache.keys, cache.values, strict=True):
        block = (k, v, mask[:, None, :, start : start + v.shape[2]])
        if start == 0:
            parts.append(_partial_attention(q, *block))
            skipped = jax.tree.map(jnp.zeros_like, parts[0])._replace(max=jnp.full_like(parts[0].max, jnp.finfo(jnp.float32).min))
        else:
            parts.append(jax.lax.cond(jnp.any(block[2]), _partial_attention, lambda *_: skipped, q, *block))
        start += v.shape[2]
    if prefix is not None:
        parts.append(_partial_attention(q, *prefix.cache.keys, *prefix.cache.values, prefix.mask[:, None, None, :]))
    top = functools.reduce(jnp.maximum, [part.max for part in parts])
    factors = [jnp.exp(part.max - top) for part in parts]
    total = sum(factor * part.sum for factor, part in zip(factors, parts, strict=True))
    return sum(factor * part.out for factor, part in zip(factors, parts, strict=True)) / total


class _Partial(NamedTuple):
    """Attention of [B, T, H] queries over some of their keys, to be combined with that over the others."""

    max: Array  # [B, T, H, 1], the largest score
    sum: Array  # [B, T, H, 1], the sum of exp(score - max)
    out: Array  # [B, T, H, h], the sum of exp(score - max) times value


def _partial_attention(q: Array, k: Array, v: Array, mask: Array) -> _Partial:
    """q: [B, T, H, h]; k: [P, K, h, L], v: [P, K, L, h], shared by B / P rows each; mask: broadcasts to [P, B / P, T, L]."""
    batch, length, heads, dim = q.shape
    prefixes, key_heads = k.shape[:2]
    shared = q.reshape(prefixes, -1, length, key_heads, heads // key_heads, dim).transpose(0, 3, 1, 4, 2, 5)
    scores = _matmul(shared.reshape(prefixes, key_heads, -1, dim), k) * dim**-0.5
    scores = scores.reshape(*shared.shape[:-1], k.shape[-1])  # [P, K, B / P, H / K, T, L]
    scores = jnp.where(mask[:, None, :, None], scores, jnp.finfo(jnp.float32).min)
    top = jnp.max(jax.lax.stop_gradient(scores), axis=-1, keepdims=True)
    weights = jnp.exp(scores - top)
    out = _matmul(weights.reshape(prefixes, key_heads, -1, k.shape[-1]).astype(v.dtype), v)
    by_row = lambda x: x.transpose(0, 2, 4, 1, 3, 5).reshape(batch, length, heads, -1)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return _Partial(by_row(top), by_row(total), by_row(out.reshape(*shared.shape[:-1], dim)))


def _matmul(a: Array, b: Array) -> Array:
    """Batched a @ b in float32, with the operands in this order, which einsum might swap."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)
