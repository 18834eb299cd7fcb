"""From logits to the next token: temperature, top-k, top-p (exact, without a sort), greedy."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.errors import InputError

_PROBABILITY_BITS, _PASS_BITS = 30, 5  # of a float32 up to 1.0, 0x3F800000; the bits of non-negative floats are ordered like the floats


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
    scaled = logits / sampler.temperature
    likely = keep_likely(scaled, sampler.top_p, sampler.top_k, device)
    # The most likely token is always kept. A CPU finds its logit in a pass it makes anyway; elsewhere it is known already.
    weights = jnp.exp(likely - jnp.max(likely if device == "cpu" else scaled, axis=-1, keepdims=True))
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

    Bits of t are found from the highest down: of the values that they could give t, the largest that reaches top_p. A CPU is
    limited by comparisons and finds one bit in each pass over the probabilities; a GPU or TPU is limited by passes and
    finds five.
    """
    low = jnp.zeros((probs.shape[0], 1), jnp.int32)
    if device == "cpu":

        def find_bit(i: Array, low: Array) -> Array:
            candidate = low + (1 << (_PROBABILITY_BITS - 1 - i))
            mass = jnp.sum(jnp.where(probs >= _as_float(candidate), probs, 0.0), axis=1, keepdims=True)
            return jnp.where(mass >= top_p, candidate, low)

        return _as_float(jax.lax.fori_loop(0, _PROBABILITY_BITS, find_bit, low))
    axis = {"cuda": 2, "tpu": 1}[device]  # of the 31 candidates, where the compiler needs fewer kernels and less time
    wide, counts = (lambda x: jnp.expand_dims(x, axis)), jnp.expand_dims(jnp.arange(1, 2**_PASS_BITS), (0, 3 - axis))
    for shift in reversed(range(0, _PROBABILITY_BITS, _PASS_BITS)):
        steps = (jax.lax.bitcast_convert_type(probs, jnp.int32) - low) >> shift  # from `low`, of this pass's size
        masses = jnp.sum(jnp.where(wide(steps) >= counts, wide(probs), 0.0), axis=3 - axis)
        low += jnp.sum(masses >= top_p, axis=1, keepdims=True, dtype=jnp.int32) << shift
    return _as_float(low)  # 0 if rounding keeps every set below a top_p near 1: all stay


def _as_float(bits: Array) -> Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
