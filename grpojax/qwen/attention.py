"""Attention over a cache of keys and values and a shared prefix, in the form that suits the device.

    cpu     plain products; the cache is in blocks, and a block that no row attends to is not read
    cuda    cuDNN's fused attention; the cache is one array, which holds the prompt too, and of which only the filled
            positions are read
    tpu     the splash kernel for whole sequences; a decode step as on the CPU

No fused form keeps scores [.., T, L] in memory. They need bfloat16 or float16; with float32 products the plain form is
used everywhere.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.qwen.config import QwenConfig

BLOCK_SIZE, MAX_BLOCKS = 128, 4
"""The smallest block of a cache for decoding, in positions, and the largest number of blocks."""

SPLASH_BLOCK = 512
"""Queries and keys of one tile of the TPU's kernel. Sequences are padded to a multiple of it, or of 128 if they are shorter."""


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
    def of(cls, k: Array, v: Array) -> "KVCache":
        """The cache of one layer with these keys and values, both [B, T, K, h]."""
        return cls((k.transpose(0, 2, 3, 1),), (v.transpose(0, 2, 1, 3),))

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
          k: [B, T, K, h]; v: [B, T, K, h].
          index: a number, or [B] positions, one for each sequence. With several blocks or [B] positions T is 1.
        """
        (k,), (v,) = vars(KVCache.of(k, v)).values()
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

    def put(self, rows: Array, new: "KVCache") -> "KVCache":
        """The cache of one layer and block with the first positions of some rows replaced; a row out of range is skipped."""
        width = new.values[0].shape[2]
        keys = self.keys[0].at[rows, :, :, :width].set(new.keys[0], mode="drop")
        return KVCache((keys,), (self.values[0].at[rows, :, :width].set(new.values[0], mode="drop"),))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowCache:
    """The same as `KVCache`, for a fused kernel: one block, in the layout in which keys and values are computed.

    The kernel reads one cache for each row, so the answers to a prompt each begin with a copy of its keys and values.
    """

    keys: Array  # [B, L, K, h]
    values: Array  # [B, L, K, h]

    @classmethod
    def of(cls, k: Array, v: Array) -> "RowCache":
        return cls(k, v)

    @classmethod
    def empty(cls, config: QwenConfig, batch: int, length: int, one_block: bool = True) -> "RowCache":
        shape = (config.num_layers, batch, length, config.num_kv_heads, config.head_dim)
        return cls(jnp.zeros(shape, config.compute_dtype), jnp.zeros(shape, config.compute_dtype))

    def update(self, k: Array, v: Array, index: Array | int) -> "RowCache":
        def write(held, new):
            new = new.astype(held.dtype)
            if jnp.ndim(index):
                return held.at[jnp.arange(len(new)), index].set(new[:, 0], mode="drop")
            return jax.lax.dynamic_update_slice_in_dim(held, new, index, 1)

        return RowCache(write(self.keys, k), write(self.values, v))

    def put(self, rows: Array, new: "RowCache") -> "RowCache":
        write = lambda whole, part: whole.at[rows, : part.shape[1]].set(part, mode="drop")
        return jax.tree.map(write, self, new)


Cache = KVCache | RowCache

Kernel = Callable[..., Array]
"""Attention of q [B, T, H, h] over k and v [B, L, K, h]: [B, T, H, h]."""


def cache_type(config: QwenConfig) -> type[Cache]:
    """The form of cache that attention on the config's device reads."""
    return RowCache if config.device.kind == "cuda" else KVCache


def fused_attention(config: QwenConfig) -> bool:
    """Whether attention over whole sequences keeps no scores in memory."""
    return config.device.accelerated and config.compute_dtype != "float32"


def causal_kernel(config: QwenConfig) -> Kernel | None:
    """What computes causal attention over whole sequences without being given a mask; None: the plain form, with one."""
    if config.device.kind == "cuda":
        return functools.partial(_cuda_kernel(config), is_causal=True)
    return _splash if config.device.kind == "tpu" and fused_attention(config) else None


def _cuda_kernel(config: QwenConfig) -> Kernel:
    implementation = "cudnn" if fused_attention(config) else "xla"
    return functools.partial(jax.nn.dot_product_attention, implementation=implementation)


def causal_mask(batch: int, length: int) -> Array:
    """[B, T, T] bool: each token attends to those up to itself."""
    return jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, length, length))


class Prefix(NamedTuple):
    """Keys and values of P prefixes, shared by the B sequences that continue them: row b continues prefix b // (B / P)."""

    cache: Any  # P rows, one block; a list by layer beside unstacked layers
    mask: Array  # [P, L] bool, true at tokens, false at padding on the right


def attend(
    config: QwenConfig,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    cache: Cache | None,
    index: Array | int,
    prefix: Prefix | None,
) -> tuple[Array, Cache]:
    """Attention of new tokens to each other, to a cache and to a prefix.

    Args:
      q: [B, T, H, h]; k, v: [B, T, K, h], of the new tokens; H / K queries share a key head.
      mask: [B, T, L] bool, the keys of the cache that each token attends to. On a GPU the one token of a row attends to the
        first positions of its cache. None, if there is no cache and a `causal_kernel`: the tokens up to itself.
      cache: of one layer; k and v are written at `index` first.

    Returns:
      [B, T, H, h], and the cache (without one: that of k and v).
    """
    updated = cache_type(config).of(k, v) if cache is None else cache.update(k, v, index)
    if mask is None:
        return _causal(q, k, v, prefix, causal_kernel(config)), updated
    if config.device.kind != "cuda":
        return _plain(q, updated, mask, prefix), updated
    if prefix is not None:
        raise ValueError("on a GPU a prefix is for whole sequences, without a mask; a decode step has it in its cache.")
    if cache is not None and q.shape[1] == 1:
        return _decode(q, updated, mask, _cuda_kernel(config)), updated
    return _cuda_kernel(config)(q, updated.keys, updated.values, mask=mask[:, None]), updated


# --- fused forms ---


def _causal(q: Array, k: Array, v: Array, prefix: Prefix | None, kernel: Kernel) -> Array:
    """Causal attention of whole sequences after their prefixes, of which there is one for all rows or one for each.

    Prefix and sequence are joined without a gap, so that a plain causal mask fits; queries of the prefix are zeros, and what
    comes of them is dropped.
    """
    if prefix is None:
        return kernel(q, k, v)
    length, lens = q.shape[1], jnp.sum(prefix.mask, axis=1)  # [P]
    starts = jnp.broadcast_to(lens, (len(q),))

    def joined(front: Array | None, x: Array) -> Array:
        width = prefix.mask.shape[1]
        room = jnp.zeros((len(x), width + length, *x.shape[2:]), x.dtype)
        if front is not None:
            room = room.at[:, :width].set(front.astype(x.dtype))  # broadcast, if there is one prefix
        if len(lens) == 1:
            return jax.lax.dynamic_update_slice_in_dim(room, x, lens[0], 1)
        return jax.vmap(lambda room, x, start: jax.lax.dynamic_update_slice_in_dim(room, x, start, 0))(room, x, starts)

    keys, values = _rows(prefix.cache)
    out = kernel(joined(None, q), joined(keys, k), joined(values, v))
    if len(lens) == 1:
        return jax.lax.dynamic_slice_in_dim(out, lens[0], length, 1)
    return jax.vmap(lambda out, start: jax.lax.dynamic_slice_in_dim(out, start, length, 0))(out, starts)


def _rows(cache: Cache) -> tuple[Array, Array]:
    """Keys and values of a cache of one block, [P, L, K, h]."""
    if isinstance(cache, RowCache):
        return cache.keys, cache.values
    return cache.keys[0].transpose(0, 3, 1, 2), cache.values[0].transpose(0, 2, 1, 3)


def _decode(q: Array, cache: RowCache, mask: Array, kernel: Kernel) -> Array:
    """One new token of each row, [B, 1, H, h], which attends to the first positions of its cache."""
    filled = jnp.maximum(jnp.sum(mask[:, 0], axis=1, dtype=jnp.int32), 1)  # a row that is done attends to something too
    return kernel(q, cache.keys, cache.values, key_value_seq_lengths=filled)


def _splash(q: Array, k: Array, v: Array, interpret: bool = False) -> Array:
    """Causal attention [B, T, H, h] with the TPU's kernel."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    batch, length, heads, dim = q.shape
    key_heads = k.shape[2]
    tile = SPLASH_BLOCK if length >= SPLASH_BLOCK else 128 * -(-length // 128)
    padded, wide = -(-length // tile) * tile, -(-dim // 128) * 128
    pad = lambda x: jnp.pad(x, ((0, 0), (0, padded - length), (0, 0), (0, wide - dim)))  # causal: nothing sees the padding
    q = pad(q * jnp.asarray(dim**-0.5, q.dtype)).reshape(batch, padded, key_heads, heads // key_heads, wide)
    kernel = splash.make_splash_mqa_single_device(
        masks.MultiHeadMask([masks.CausalMask((padded, padded))] * (heads // key_heads)),
        block_sizes=splash.BlockSizes(**{name: tile for name in _TILES}, use_fused_bwd_kernel=False),
        interpret=interpret,
    )
    by_head = jax.vmap(jax.vmap(kernel))  # over rows and key heads: q [H / K, T, h], k and v [T, h]
    out = by_head(q.transpose(0, 2, 3, 1, 4), pad(k).transpose(0, 2, 1, 3), pad(v).transpose(0, 2, 1, 3))
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, padded, heads, wide)[:, :length, :, :dim]


_TILES = (
    "block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute", "block_q_dq", "block_kv_dq",
)  # fmt: skip


# --- the plain form ---


def _plain(q: Array, cache: KVCache, mask: Array, prefix: Prefix | None) -> Array:
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
