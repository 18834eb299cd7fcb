"""The Qwen transformer. The only file that imports Flax: everybody else sees functions on a nested dict of arrays.

A parameter tree looks like this; kernels are [in, out], embedding and head are [V, D]:

    embed.embedding   layers_<i>.{input_norm,post_norm}.scale   norm.scale   head.kernel (untied models only)
    layers_<i>.attention.{q,k,v,o}.{kernel,bias}   layers_<i>.attention.{q_norm,k_norm}.scale
    layers_<i>.mlp.{gate,up,down}.kernel

Positions and masks are arguments: the model never guesses padding from a token id.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from grpojax.qwen.config import QwenConfig

Params = dict[str, Any]
Cache = tuple[tuple[Array, Array], ...]
"""Per layer the keys and values, each [B, L, num_kv_heads, head_dim] in the compute dtype; L slots."""


def init_params(config: QwenConfig, key: Array) -> Params:
    """Random float32 parameters (normal, 0.02; norm scales 1), for models that are trained from nothing."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    variables = _Decoder(config).init(key, tokens, tokens, jnp.ones((1, 1, 1), bool), None, 0, False)
    return nn.meta.unbox(variables["params"])


def param_shapes(config: QwenConfig) -> Params:
    """The tree of `init_params` with a ShapeDtypeStruct for each array; nothing is computed."""
    return jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))


def empty_cache(config: QwenConfig, batch: int, slots: int) -> Cache:
    """A cache of zeros with `slots` places for each of `batch` sequences."""
    shape = (batch, slots, config.num_kv_heads, config.head_dim)
    return tuple(
        (jnp.zeros(shape, config.compute_dtype), jnp.zeros(shape, config.compute_dtype)) for _ in range(config.num_layers)
    )


def hidden_states(
    config: QwenConfig,
    params: Params,
    tokens: Array,
    positions: Array,
    attend: Array,
    cache: Cache | None = None,
    slot: Array | int = 0,
    remat: bool = False,
) -> tuple[Array, Cache | None]:
    """Runs the layers, up to and with the last norm.

    Args:
      tokens: [B, T] int32.
      positions: [B, T] int32, each token's place in its sequence (for RoPE).
      attend: [B, T, L] bool, true where token t may look at key l. Without a cache the keys are the tokens themselves.
      cache: keys and values of earlier tokens; those of `tokens` are written to slots [slot, slot + T).
      remat: recompute each layer in the backward pass instead of keeping its activations.

    Returns:
      [B, T, D] in the compute dtype, and the cache with the new keys and values (None without one).
    """
    return _Decoder(config).apply({"params": params}, tokens, positions, attend, cache, slot, remat)


def head_matrix(config: QwenConfig, params: Params) -> Array:
    """The output head, [V, D]: the embedding itself where the checkpoint ties them."""
    return params["embed"]["embedding"] if config.tie_word_embeddings else params["head"]["kernel"]


def head_logits(config: QwenConfig, params: Params, hidden: Array) -> Array:
    """[..., D] hidden states -> [..., V] logits, float32."""
    head = head_matrix(config, params).astype(config.compute_dtype)
    return jnp.einsum("...d,vd->...v", hidden, head, preferred_element_type=jnp.float32)


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


class _Decoder(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, tokens, positions, attend, cache, slot, remat):
        c = self.config
        embedding = _Table(c.vocab_size, c.hidden_size, "embedding", name="embed")()
        x = embedding[tokens].astype(c.compute_dtype)
        rope = _rope_angles(positions, c.head_dim, c.rope_theta)
        layer = nn.remat(_Layer) if remat else _Layer
        filled = []
        for i in range(c.num_layers):
            x, kv = layer(c, name=f"layers_{i}")(x, rope, attend, None if cache is None else cache[i], slot)
            filled.append(kv)
        if not c.tie_word_embeddings:
            _Table(c.vocab_size, c.hidden_size, "kernel", name="head")()  # declared here, used by head_logits
        return _RMSNorm(c, name="norm")(x), None if cache is None else tuple(filled)


class _Layer(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x, rope, attend, kv, slot):
        c = self.config
        attended, kv = _Attention(c, name="attention")(_RMSNorm(c, name="input_norm")(x), rope, attend, kv, slot)
        x = x + attended
        return x + _MLP(c, name="mlp")(_RMSNorm(c, name="post_norm")(x)), kv


class _Attention(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x, rope, attend, kv, slot):
        c = self.config
        batch, length, _ = x.shape
        q = _Linear(c, c.num_heads * c.head_dim, c.qkv_bias, name="q")(x).reshape(batch, length, c.num_heads, -1)
        k = _Linear(c, c.num_kv_heads * c.head_dim, c.qkv_bias, name="k")(x).reshape(batch, length, c.num_kv_heads, -1)
        v = _Linear(c, c.num_kv_heads * c.head_dim, c.qkv_bias, name="v")(x).reshape(batch, length, c.num_kv_heads, -1)
        if c.qk_norm:  # over each head by itself, before RoPE
            q, k = _RMSNorm(c, name="q_norm")(q), _RMSNorm(c, name="k_norm")(k)
        q, k = _rotate(q, rope), _rotate(k, rope)
        if kv is not None:
            k = jax.lax.dynamic_update_slice_in_dim(kv[0], k.astype(kv[0].dtype), slot, axis=1)
            v = jax.lax.dynamic_update_slice_in_dim(kv[1], v.astype(kv[1].dtype), slot, axis=1)
        out = _grouped_attention(q, k, v, attend).reshape(batch, length, -1).astype(c.compute_dtype)
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
        kernel = self.param("kernel", nn.initializers.normal(0.02), (x.shape[-1], self.features))
        # A float32 result keeps XLA on its fast path for bfloat16 products of few rows.
        y = jnp.matmul(x, kernel.astype(dtype), preferred_element_type=jnp.float32)
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = y + bias.astype(jnp.float32).reshape((1,) * (y.ndim - 1) + (-1,))
        return y.astype(dtype)


class _RMSNorm(nn.Module):
    config: QwenConfig

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        x32 = x.astype(jnp.float32)
        x32 = x32 * jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + self.config.rms_norm_eps)
        return (x32 * scale.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


class _Table(nn.Module):
    rows: int
    columns: int
    label: str

    @nn.compact
    def __call__(self):
        return self.param(self.label, nn.initializers.normal(0.02), (self.rows, self.columns))


def _rope_angles(positions: Array, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Cosines and sines [B, T, 1, head_dim / 2] of position times frequency, float32."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies[None, None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(x: Array, rope: tuple[Array, Array]) -> Array:
    """Rotates the pairs (i, i + head_dim / 2): the split-half form that Qwen checkpoints expect."""
    cos, sin = rope
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)


def _grouped_attention(q: Array, k: Array, v: Array, attend: Array) -> Array:
    """q [B, T, H, h], k and v [B, L, K, h] with H / K queries to a key head, attend [B, T, L] -> [B, T, H, h]."""
    batch, length, heads, dim = q.shape
    groups = q.reshape(batch, length, k.shape[2], heads // k.shape[2], dim)
    scores = jnp.einsum("btkgh,blkh->bkgtl", groups, k, preferred_element_type=jnp.float32) * dim**-0.5
    scores = jnp.where(attend[:, None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bkgtl,blkh->btkgh", weights, v, preferred_element_type=jnp.float32).reshape(q.shape)
