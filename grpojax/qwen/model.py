"""The Qwen transformer. The only file that imports Flax: everybody else sees functions on a nested dict of arrays.

A parameter tree looks like this; weights are [out, in], as in checkpoints, embedding and head are [V, D]:

    embed.embedding   norm.scale   head.weight (untied models only)   layers.{input_norm,post_norm}.scale
    layers.attention.{q,k,v,o}.{weight,bias}   layers.attention.{q_norm,k_norm}.scale   layers.mlp.{gate,up,down}.weight

Each array under `layers` holds that of all layers, [n, ...], and one compiled layer runs over them. `unstacked` makes a
list of layers of it, for a decode step: that has little to do in each, and reads its weights where they lie.

Positions and masks are arguments: the model never guesses padding from a token id.
"""

import functools
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
"""A pair of arrays: the keys [n, B, K, h, L] and values [n, B, K, L, h] of L tokens in the compute dtype, in n layers with K
key heads of size h; or a list of n pairs without the first axis, beside unstacked layers. Keys lie so that a decode step,
which reads all of them for few queries, reads them in order."""

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


def empty_cache(config: QwenConfig, batch: int, slots: int) -> Cache:
    """A cache of zeros with `slots` places for each of `batch` sequences."""
    shape, dtype = (config.num_layers, batch, config.num_kv_heads), config.compute_dtype
    return jnp.zeros((*shape, config.head_dim, slots), dtype), jnp.zeros((*shape, slots, config.head_dim), dtype)


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
      cache: keys and values of earlier tokens; those of `tokens` are written to slots [slot, slot + T).
      prefix: what the sequences begin with, computed before; every token looks at all that is there of its own.
      remat: for the backward pass keep of each layer what went into it, not the results of its products as well; the rest
        is always computed again.

    Returns:
      [B, T, D] in the compute dtype, and the cache with the new keys and values (without one: those of `tokens`).
    """
    layers, x = params["layers"], rows(params["embed"]["embedding"], tokens).astype(config.compute_dtype)
    # The barrier keeps XLA from computing the same cosines again in every layer.
    rope = jax.lax.optimization_barrier(_rope_angles(positions, config.head_dim, config.rope_theta))

    def run(x, layer):
        layer_params, kv, common = layer
        common = None if common is None else (*common, prefix.attend[:, None, None, :])
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
        if kv is not None:
            k = jax.lax.dynamic_update_slice_in_dim(kv[0], k.astype(kv[0].dtype), slot, axis=3)
            v = jax.lax.dynamic_update_slice_in_dim(kv[1], v.astype(kv[1].dtype), slot, axis=2)
        segments = [(k, v, attend[:, None])] + ([] if common is None else [common])
        out = _grouped_attention(q, segments).reshape(batch, length, -1).astype(c.compute_dtype)
        return _Linear(c, c.hidden_size, c.output_bias, name="o")(out), (k, v)


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
    """Cosines and sines [B, T, 1, head_dim / 2] of position times frequency, float32."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies[None, None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(x: Array, rope: tuple[Array, Array]) -> Array:
    """Rotates the pairs (i, i + head_dim / 2): the split-half form that Qwen checkpoints expect."""
    cos, sin = (angle[..., None, :] for angle in rope)
    halves = x.astype(jnp.float32).reshape(*x.shape[:-1], 2, -1)
    # Written without a concatenation, which XLA's CPU backend makes element by element.
    turned = halves * cos + halves[..., ::-1, :] * jnp.concatenate([-sin, sin], axis=-2)
    return turned.reshape(x.shape).astype(x.dtype)


def _grouped_attention(q: Array, segments: list[tuple[Array, Array, Array]]) -> Array:
    """Attention over the keys of several segments as if they stood side by side.

    Args:
      q: [B, T, H, h], H / K queries to a key head.
      segments: keys [P, K, h, L], values [P, K, L, h] and attend, bool, broadcast to [P, B / P, T, L]. Rows of q that share
        a segment's keys meet them in one product.

    Returns:
      [B, T, H, h] float32.
    """
    batch, length, heads, dim = q.shape

    def scores_of(k, attend):  # [P, K, B / P, H / K, T, L]
        places, key_heads = k.shape[:2]
        shared = q.reshape(places, -1, length, key_heads, heads // key_heads, dim).transpose(0, 3, 1, 4, 2, 5)
        scores = _matmul(shared.reshape(places, key_heads, -1, dim), k) * dim**-0.5
        scores = scores.reshape(*shared.shape[:-1], k.shape[-1])
        return jnp.where(attend[:, None, :, None], scores, jnp.finfo(jnp.float32).min)

    def values_of(weights, v):  # [P, K, B / P, H / K, T, h]
        rows = weights.reshape(*weights.shape[:2], -1, weights.shape[-1])
        return _matmul(rows.astype(v.dtype), v).reshape(*weights.shape[:-1], dim)

    def by_row(x):  # [P, K, B / P, H / K, T, ...] -> [B, T, H, ...]
        order = (0, 2, 4, 1, 3, *range(5, x.ndim))
        return x.transpose(order).reshape(batch, length, heads, *x.shape[5:])

    def by_segment(x, like):  # [B, T, H] -> [P, K, B / P, H / K, T, 1]
        places, key_heads, rows, groups = like.shape[:4]
        return x.reshape(places, rows, length, key_heads, groups).transpose(0, 3, 1, 4, 2)[..., None]

    scores = [scores_of(k, attend) for k, _, attend in segments]
    top = functools.reduce(jnp.maximum, [by_row(jnp.max(jax.lax.stop_gradient(s), axis=-1)) for s in scores])
    weights = [jnp.exp(s - by_segment(top, s)) for s in scores]
    total = sum(by_row(jnp.sum(w, axis=-1)) for w in weights)
    out = sum(by_row(values_of(w, v)) for w, (_, v, _) in zip(weights, segments, strict=True))
    return out / total[..., None]


def _matmul(a: Array, b: Array) -> Array:
    """Batched a @ b in this order of operands (einsum may turn it round), float32."""
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)
