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
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from grpojax.device import Device
from grpojax.precision import Float32Grad, embed, linear, unwrap
from grpojax.qwen.attention import Cache, Prefix, RowCache, attend, cache_type, causal_kernel, causal_mask
from grpojax.qwen.config import QwenConfig

Params = dict[str, Any]

@functools.partial(jax.jit, static_argnames="config")
def init_params(config: QwenConfig, key: Array) -> Params:
    """Random float32 parameters (normal, 0.02; norm scales 1), to train a model from scratch."""
    embed, head, layers = jax.random.split(key, 3)
    table = lambda key: 0.02 * jax.random.normal(key, (config.vocab_size, config.hidden_size))
    position, mask = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    x, rope = jnp.zeros((1, 1, config.hidden_size)), _rope_angles(position, config.head_dim, config.rope_theta)
    layer = lambda key: _Layer(dataclasses.replace(config, device=Device())).init(key, x, rope, mask, None, 0, None)["params"]
    params = {
        "embed": {"embedding": table(embed)},
        "layers": jax.vmap(layer)(jax.random.split(layers, config.num_layers)),
        "norm": {"scale": jnp.ones(config.hidden_size)},
    }
    return params if config.tie_word_embeddings else params | {"head": {"weight": table(head)}}


def param_shapes(config: QwenConfig) -> Params:
    """The tree of `init_params` with a ShapeDtypeStruct for each array, without computing it."""
    return init_params.eval_shape(config, jax.random.key(0))


@functools.cache
def param_bytes(config: QwenConfig) -> int:
    """The size of the parameters in float32."""
    return 4 * sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config)))


def unstacked(config: QwenConfig, layers: Any) -> list[Any]:
    """Parameters or a cache with stacked layers, [n, ...], as a list of n layers."""
    return [jax.tree.map(lambda x: x[i], layers) for i in range(config.num_layers)]


def compute_params(config: QwenConfig, params: Params) -> Params:
    """The parameters with their matrices in the compute dtype."""
    cast = lambda path, x: x.astype(config.compute_dtype) if path[-1].key in ("weight", "embedding") else x
    return jax.tree.map_with_path(cast, params)


def decoding_params(config: QwenConfig, params: Params) -> Params:
    """The parameters for a decode loop: layers unstacked, and matrices in the compute dtype."""
    params = compute_params(config, params)
    return params | {"layers": unstacked(config, params["layers"])}


def answer_caches(
    config: QwenConfig, prompts: Cache, mask: Array, lengths: Array, share: int, max_new_tokens: int
) -> tuple[list[Cache], Prefix | None, Array | int]:
    """Caches by layer in which `share` answers to each of P prompts are decoded.

    Args:
      prompts: their keys and values, with stacked layers; mask: [P, Tp], true at their tokens; lengths: [P].

    Returns:
      The caches, the prefix that the answers share (None: the caches hold it), and the position of an answer's first token
      in its cache, [B] or one number.
    """
    if cache_type(config) is RowCache:
        room = ((0, 0), (0, 0), (0, max_new_tokens), (0, 0), (0, 0))
        caches = jax.tree.map(lambda x: jnp.pad(jnp.repeat(x, share, axis=1), room), prompts)
        return unstacked(config, caches), None, jnp.repeat(lengths, share)
    empty = cache_type(config).empty(config, len(lengths) * share, max_new_tokens)
    return unstacked(config, empty), Prefix(unstacked(config, prompts), mask), 0


def hidden_states(
    config: QwenConfig,
    params: Params,
    tokens: Array,
    positions: Array,
    mask: Array | None = None,
    cache: Cache | list[Cache] | None = None,
    cache_index: Array | int = 0,
    prefix: Prefix | None = None,
    remat: bool = False,
) -> tuple[Array, Cache | list[Cache]]:
    """Runs the layers, up to and including the last norm.

    Args:
      params: with layers stacked, or as a list; then the caches are lists too.
      tokens: [B, T] int32.
      positions: [B, T] int32, each token's position in its sequence (for RoPE).
      mask: [B, T, L] bool, true where token t attends to key l. Without a cache the keys are those of the tokens. None:
        causal, without a cache. On a GPU, a single token attends to the first positions of its row's cache.
      cache: keys and values of earlier tokens; those of `tokens` are written at `cache_index`, see `KVCache.update`.
      prefix: what the sequences begin with, computed before; every token attends to all of its prefix.
      remat: for the backward pass, keep only the input of each layer, not the results of its matrix products. Everything
        else is always computed again.

    Returns:
      [B, T, D] in the compute dtype, and the updated cache (without one: keys and values of `tokens`).
    """
    layers, x = params["layers"], embed(params["embed"]["embedding"], tokens).astype(config.compute_dtype)
    rope = _rope_angles(positions, config.head_dim, config.rope_theta)
    if mask is None and causal_kernel(config) is None:
        mask = causal_mask(*tokens.shape)  # once, not in every layer

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


def sequence_positions(tokens: Array) -> Array:
    """Positions [B, T] of sequences that start at index 0."""
    return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)


def causal_inputs(tokens: Array) -> tuple[Array, Array]:
    """Positions [B, T] and causal mask [B, T, T] of sequences that start at index 0, with padding on the right."""
    return sequence_positions(tokens), causal_mask(*tokens.shape)


def forward(config: QwenConfig, params: Params, tokens: Array) -> Array:
    """[B, T] tokens -> [B, T, V] float32 logits. Padding must be on the right, where no token attends to it."""
    hidden, _ = hidden_states(config, params, tokens, sequence_positions(tokens))
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
        out, cache = attend(c, _rotate(q, rope), _rotate(k, rope), v, mask, cache, cache_index, prefix)
        out = out.reshape(batch, length, -1).astype(c.compute_dtype)
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
