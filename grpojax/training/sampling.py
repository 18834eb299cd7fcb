"""From logits to the next token: temperature, top-k, top-p (exact, without a sort), greedy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.errors import InputError

_PROBABILITY_BITS = 30  # of a float32 up to 1.0, 0x3F800000; the bits of non-negative floats are ordered like the floats

_SEARCH = {"cpu": (1, 1), "cuda": (5, 2), "tpu": (5, 1)}
"""Bits of the top-p threshold found in one pass over the probabilities, and the axis of the values that are tried in it. A CPU
is limited by comparisons, of which 31 find 5 bits; a GPU or TPU by passes."""


@dataclasses.dataclass(frozen=True)
class Sampler:
    """How tokens are drawn. None turns a step off and is structure; numbers are data, and changing them never compiles again."""

    temperature: float | None  # logits are divided by it; None: greedy
    top_p: float | None = None  # keep the smallest set of most likely tokens with this much probability
    top_k: int | None = None  # keep the k most likely tokens (a size: another k compiles again)


jax.tree_util.register_dataclass(Sampler, data_fields=["temperature", "top_p"], meta_fields=["top_k"])

GREEDY = Sampler(temperature=None)


def make_sampler(temperature: float, top_p: float = 1.0, top_k: int = 0) -> Sampler:
    """A sampler from user settings: temperature 0 is greedy, top_p 1 and top_k 0 keep every token.

    Raises:
      InputError: if a number is out of range.
    """
    if not 0 <= temperature < float("inf"):
        raise InputError(f"temperature is {temperature}; it must be 0 (greedy) or a positive number such as 0.8.")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p is {top_p}; it must be above 0 and at most 1 (1 keeps every token).")
    if top_k < 0:
        raise InputError(f"top_k is {top_k}; it must be 0 (keep every token) or more.")
    if temperature == 0:
        return GREEDY
    return Sampler(float(temperature), None if top_p == 1 else float(top_p), top_k or None)


def sample(logits: Array, keys: Array, sampler: Sampler, device: str = "cpu") -> tuple[Array, Array]:
    """Draws one token per row.

    Args:
      logits: [B, V] float32.
      keys: [B] random keys, consumed.
      device: "cpu", "cuda" or "tpu": how the top-p set is found; the result is the same.

    Returns:
      [B] int32 tokens, and [B, V] bool, the ids that could be drawn (greedy: only the one that was).
    """
    if sampler.temperature is None:
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return token, jnp.arange(logits.shape[-1])[None, :] == token[:, None]
    likely = keep_likely(logits / sampler.temperature, sampler.top_p, sampler.top_k, device)
    weights = jnp.exp(likely - jnp.max(likely, axis=-1, keepdims=True))
    return jax.vmap(draw)(keys, weights), ~jnp.isneginf(likely)


def draw(key: Array, weights: Array) -> Array:
    """An index drawn with probability weights[i] / sum(weights), int32; never one with weight 0.

    Args:
      weights: [V] float32, nonnegative, not all 0.

    Two uniform numbers choose a block of about sqrt(V) weights and an index in it, so one pass over the weights is enough.
    (Gumbel noise for every weight takes ten times as long.)
    """
    columns = math.isqrt(weights.size - 1) + 1
    blocks = jnp.pad(weights, (0, -weights.size % columns)).reshape(-1, columns)
    for_block, for_column = jax.random.uniform(key, (2,))
    block = _index_of(for_block, jnp.sum(blocks, axis=1))
    return block * columns + _index_of(for_column, blocks[block])


def _index_of(uniform: Array, weights: Array) -> Array:
    """The first index at which the cumulative weight exceeds `uniform`, in [0, 1), times the total."""
    sums = jnp.cumsum(weights)
    index = jnp.sum(sums <= uniform * sums[-1]).astype(jnp.int32)
    last = weights.size - 1 - jnp.argmax(weights[::-1] > 0).astype(jnp.int32)  # rounding can go past it
    return jnp.minimum(index, last)


def keep_likely(logits: Array, top_p: float | None, top_k: int | None, device: str = "cpu") -> Array:
    """Logits [B, V] with minus infinity outside the top-k and then the top-p set. Ties are kept or dropped together.

    The top-p set is the smallest set of most likely tokens whose probability reaches top_p; it is never empty.

    Source: arXiv:1904.09751 section 3.1.
    """
    if top_k is not None and top_k < logits.shape[-1]:
        smallest = jax.lax.top_k(logits, top_k)[0][:, -1:]
        logits = jnp.where(logits >= smallest, logits, -jnp.inf)
    if top_p is not None:
        weights = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
        total = jnp.sum(weights, axis=-1, keepdims=True)
        probs = weights / total
        # A top_p near 0 keeps the most likely token, of weight 1.
        threshold = jnp.minimum(_nucleus_threshold(probs, top_p, device), 1 / total)
        logits = jnp.where(probs >= threshold, logits, -jnp.inf)
    return logits


def _nucleus_threshold(probs: Array, top_p: float, device: str) -> Array:
    """The largest probability t with sum(probs >= t) >= top_p, [B, 1], exact.

    Bits of t are found from the highest down, a few in each pass over the probabilities: of all values that they could give
    t, the largest that reaches top_p.
    """
    bits, axis = _SEARCH[device]
    along = 3 - axis  # the axis of the probabilities; the other one is that of the candidates

    def find(i: Array | int, low: Array) -> Array:
        shift = _PROBABILITY_BITS - bits * (i + 1)
        wide, shape = jnp.expand_dims(probs, axis), [len(probs), probs.shape[1], probs.shape[1]]
        shape[axis] = 2**bits - 1
        counts = jax.lax.broadcasted_iota(jnp.int32, tuple(shape), axis) + 1
        candidates = jax.lax.bitcast_convert_type(low[:, :, None] + (counts << shift), jnp.float32)
        masses = jnp.sum(jnp.where(wide >= candidates, wide, 0.0), axis=along)
        return low + (jnp.sum(masses >= top_p, axis=1, keepdims=True, dtype=jnp.int32) << shift)

    low, passes = jnp.zeros((probs.shape[0], 1), jnp.int32), _PROBABILITY_BITS // bits
    low = jax.lax.fori_loop(0, passes, find, low, unroll=device != "cpu")  # elsewhere a turn costs more than a pass
    return jax.lax.bitcast_convert_type(low, jnp.float32)  # 0 if rounding keeps every set below a top_p near 1: all stay
