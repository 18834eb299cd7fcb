"""Log-probabilities, entropies and answer masks of token sequences. Logits become float32 nats here."""

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape
from grpojax.precision import Float32Grad, linear

CHUNK_ELEMENTS = 2**26
"""How many logits `chunked_logps` holds at a time (256 MiB of float32): about 440 positions of Qwen's 151,936 ids."""


def token_logps(logits: Array, tokens: Array, temperature: float = 1.0, keep: Array | None = None) -> Array:
    """Log-probability of each token given those before it.

    Args:
      logits: [B, T, V]; position t scores token t + 1. The last position is not used.
      tokens: [B, T] int.
      temperature: logits are divided by it first, > 0.
      keep: [B, S, V] bool, the ids that could be sampled (top-k/top-p); others get probability 0. None keeps all.

    Returns:
      [B, S] float32, nats. Minus infinity for a token outside `keep`.

    Raises:
      ValueError: if the shapes do not fit.

    Two ids with logits (0, ln 3) have probabilities 1/4 and 3/4, and ln(3/4) = -0.2877:

    >>> logits = jnp.log(jnp.array([[[1.0, 3.0], [1.0, 3.0]]]))
    >>> print(token_logps(logits, jnp.array([[0, 1]])).round(4))
    [[-0.2877]]
    """
    check_shape("logits", logits, (*tokens.shape, None))
    logits = logits[:, :-1].astype(jnp.float32) / temperature
    if keep is not None:
        check_shape("keep", keep, logits.shape)
        logits = jnp.where(keep, logits, -jnp.inf)
    return _pick(logits, tokens[:, 1:])


def token_entropy(logits: Array) -> Array:
    """-sum p ln p of each distribution, in nats: [..., V] -> [...] float32.

    An id with probability zero (logit minus infinity) adds 0 to value and gradient.

    >>> print(token_entropy(jnp.array([0.0, 0.0, -jnp.inf])))  # two equal ids: ln 2
    0.6931472
    """
    return logsumexp_and_entropy(logits)[1]


def logsumexp_and_entropy(logits: Array) -> tuple[Array, Array]:
    """ln(sum exp(logit)), which subtracted from a logit gives its log-prob, and `token_entropy`, from the same sums."""
    logits = logits.astype(jnp.float32)
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    shifted = logits - top
    possible = ~jnp.isneginf(shifted)  # NaN stays NaN
    shifted = jnp.where(possible, shifted, 0.0)  # before exp and the product, so that no gradient becomes inf * 0
    weights = jnp.where(possible, jnp.exp(shifted), 0.0)
    total = jnp.sum(weights, axis=-1)
    # p = weight / total, so -sum p ln p = ln(total) - sum(weight * shifted) / total: both sums in one pass.
    return top[..., 0] + jnp.log(total), jnp.log(total) - jnp.sum(weights * shifted, axis=-1) / total


def answer_mask(tokens: Array, prompt_lens: Array, stop_ids: tuple[int, ...]) -> Array:
    """1 where a position predicts an answer token: from the end of the prompt to the first stop token, included.

    Args:
      tokens: [B, T] int, prompt and answer, padded on the right with any ids.
      prompt_lens: [B] int, >= 1.
      stop_ids: the ids that end an answer. An answer without a stop token ends with its row.

    Returns:
      [B, S] float32 of zeros and ones.

    A prompt of two, then 5, the stop token 0, and padding; positions 1 and 2 predict the answer:

    >>> print(answer_mask(jnp.array([[7, 8, 5, 0, 0, 0]]), jnp.array([2]), (0,)))
    [[0. 1. 1. 0. 0.]]
    """
    check_shape("prompt_lens", prompt_lens, tokens.shape[:1])
    after_prompt = jnp.arange(tokens.shape[1])[None, :] >= prompt_lens[:, None]
    stops = after_prompt & jnp.isin(tokens, jnp.asarray(stop_ids, tokens.dtype))
    stops_before = jnp.cumsum(stops, axis=1) - stops
    return (after_prompt & (stops_before == 0))[:, 1:].astype(jnp.float32)


@jax.jit(static_argnames="size")
def length_mask(lengths: Array, size: int) -> Array:
    """[B] answer lengths -> [B, size] float32, 1 at the first `lengths[b]` positions of row b."""
    return (jnp.arange(size)[None, :] < lengths[:, None]).astype(jnp.float32)


def pack_keep(keep: Array) -> Array:
    """A set of ids as bits: [..., V] bool -> [..., ceil(V / 8)] uint8, id 0 in the highest bit of the first byte.

    >>> print(pack_keep(jnp.array([True, False, False, False, False, False, False, True, True])))
    [129 128]
    """
    return jnp.packbits(keep, axis=-1)


def unpack_keep(bits: Array, vocab_size: int) -> Array:
    """The inverse of `pack_keep`: [..., ceil(V / 8)] uint8 -> [..., V] bool."""
    return jnp.unpackbits(bits, axis=-1, count=vocab_size).astype(bool)


def chunked_logps(
    hidden: Array,
    head: Array | Float32Grad,
    targets: Array,
    chunk_elements: int = CHUNK_ELEMENTS,
    temperature: float | None = None,
    keep: Array | None = None,
) -> Array:
    """Log-probabilities of `targets` without holding all logits, in the forward and in the backward pass.

    Logits are computed for a few positions at a time, and again for the backward pass.

    Args:
      hidden: [B, N, D], last hidden states of the positions that predict, in the compute dtype.
      head: [V, D] output head; used in the dtype of `hidden`.
      targets: [B, N] int, the predicted tokens.
      chunk_elements: how many logits can exist at a time.
      temperature: logits are divided by it first, > 0; None: 1.
      keep: [B, N, ceil(V / 8)] uint8, the ids that could be sampled, packed by `pack_keep`; others get probability 0.

    Returns:
      [B, N] float32, nats.
    """
    check_shape("targets", targets, hidden.shape[:2])
    if keep is not None:
        check_shape("keep", keep, (*targets.shape, -(-head.shape[0] // 8)))
    rows, width = targets.size, hidden.shape[-1]
    chunks = -(-rows // max(1, chunk_elements // head.shape[0]))
    chunk = -(-rows // chunks)  # chunks of equal size need little padding
    padding = chunks * chunk - rows
    flat = jnp.pad(hidden.reshape(rows, width), ((0, padding), (0, 0))).reshape(chunks, chunk, width)
    ids = jnp.pad(targets.reshape(rows), (0, padding)).reshape(chunks, chunk)
    bits = None
    if keep is not None:  # padding keeps all ids, because an empty set has no log-probs
        flat_bits = keep.reshape(rows, keep.shape[-1])
        bits = jnp.pad(flat_bits, ((0, padding), (0, 0)), constant_values=0xFF).reshape(chunks, chunk, keep.shape[-1])

    @jax.checkpoint
    def logps_of(piece):
        states, wanted, kept = piece
        logits = linear(states[None], head)[0]
        logits = logits if temperature is None else logits / temperature
        logits = logits if kept is None else jnp.where(unpack_keep(kept, head.shape[0]), logits, -jnp.inf)
        return _pick(logits, wanted)

    pieces = (flat, ids, bits)
    logps = logps_of(jax.tree.map(lambda x: x[0], pieces)) if chunks == 1 else jax.lax.map(logps_of, pieces)
    return logps.reshape(-1)[:rows].reshape(targets.shape)


def _pick(logits: Array, tokens: Array) -> Array:
    """Log-softmax at the given tokens: [..., V], [...] -> [...]."""
    chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)
