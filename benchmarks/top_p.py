"""What does exact top-p cost without a sort, and sampling without a random number for every id?

    python benchmarks/top_p.py

Prints the milliseconds of both ways at [8, 151936]: the top-p set by bisection and by a sort; a token sampled with
two uniform numbers and as the largest of V Gumbel numbers (jax.random.categorical); and `sample` against sort and
Gumbel numbers together. Logits are normal with a standard deviation of 0.6, as with random weights, and of 3, where
fewer ids have most of the probability.

Checked first: both ways keep the same ids, except some that float32 sums cannot distinguish (less than 1e-5
probability together; the table has their number), and both sample each of 64 ids as often as its probability says,
within five standard deviations.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import timing
from jax import Array

from grpojax.training.sampling import draw, keep_likely, make_sampler, sample

TEMPERATURE, TOP_P = 0.8, 0.9
DRAWS = 100_000


def main() -> None:
    parser = timing.make_parser(__doc__, repeats=9)
    parser.add_argument("--rows", type=int, default=8, help="rows of logits (default: 8)")
    parser.add_argument("--vocab", type=int, default=151_936, help="ids in the vocabulary (default: 151936)")
    args = parser.parse_args()
    check_draws()
    keys, sampler = jax.random.split(jax.random.key(1), args.rows), make_sampler(TEMPERATURE, TOP_P)
    shape = jax.ShapeDtypeStruct((args.rows, args.vocab), jnp.float32)
    pairs = {
        "top-p: bisection, sort": (lambda x, keys: by_bisection(x), lambda x, keys: by_sort(x)),
        "draw: two numbers, Gumbel": (
            lambda x, keys: jax.vmap(draw)(keys, jnp.exp(x)), lambda x, keys: jax.vmap(jax.random.categorical)(keys, x)
        ),
        "sample: ours, sort and Gumbel": (functools.partial(sample, sampler=sampler), plain_sample),
    }  # fmt: skip
    programs = {what: [timing.compiled(jax.jit(way), shape, keys) for way in pair] for what, pair in pairs.items()}
    rows: list[dict[str, Any]] = []
    for deviation in (0.6, 3.0):
        logits = deviation * jax.random.normal(jax.random.key(0), (args.rows, args.vocab))
        kept, differing = check_kept(logits)
        for what, ((ours, ours_compile), (plain, plain_compile)) in programs.items():
            both = {"ours": functools.partial(ours, logits, keys), "plain": functools.partial(plain, logits, keys)}
            seconds = timing.median_of(both, args.repeats)
            rows.append({
                "std": deviation, "": what, "ours ms": 1e3 * seconds["ours"], "plain ms": 1e3 * seconds["plain"],
                "plain / ours": seconds["plain"] / seconds["ours"], "ids kept per row": kept,
                "kept by only one": differing, "compile ours s": ours_compile, "compile plain s": plain_compile,
            })  # fmt: skip
    timing.report(args, rows, f"[{args.rows}, {args.vocab}] float32, temperature {TEMPERATURE}, top-p {TOP_P}.")


def by_bisection(logits: Array) -> Array:
    return keep_likely(logits, TOP_P, None)


def by_sort(logits: Array) -> Array:
    """Keeps an id if the more likely ids have a total probability below TOP_P."""
    ordered = -jnp.sort(-logits, axis=-1)
    probs = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(probs, axis=-1) - probs
    smallest = jnp.min(jnp.where(before < TOP_P, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits >= smallest, logits, -jnp.inf)


def plain_sample(logits: Array, keys: Array) -> tuple[Array, Array]:
    likely = by_sort(logits / TEMPERATURE)
    return jax.vmap(jax.random.categorical)(keys, likely).astype(jnp.int32), ~jnp.isneginf(likely)


def check_kept(logits: Array) -> tuple[int, int]:
    """Ids kept per row, on average, and ids kept by only one of the two ways, over all rows."""
    ours, theirs = (~np.isneginf(np.asarray(jax.jit(keep)(logits))) for keep in (by_bisection, by_sort))
    odd = np.sum(np.where(ours != theirs, np.asarray(jax.nn.softmax(logits, axis=-1)), 0), axis=-1).max()
    if not odd <= timing.SAME:
        raise SystemExit(f"the kept sets differ by a probability of {odd:.1e}; nothing is timed")
    return int(ours.sum(axis=-1).mean()), int((ours != theirs).sum())


def check_draws() -> None:
    logits = 2 * jax.random.normal(jax.random.key(2), (64,))
    probs = np.asarray(jax.nn.softmax(logits))
    keys = jax.random.split(jax.random.key(3), DRAWS)
    ways = {"draw": lambda key: draw(key, jnp.exp(logits)), "Gumbel": lambda key: jax.random.categorical(key, logits)}
    for name, way in ways.items():
        share = np.bincount(np.asarray(jax.jit(jax.vmap(way))(keys)), minlength=64) / DRAWS
        off = np.max(np.abs(share - probs) / np.sqrt(probs * (1 - probs) / DRAWS))
        if not off <= 5:
            raise SystemExit(f"frequencies of {name} are off by {off:.1f} standard deviations; nothing is timed")


if __name__ == "__main__":
    main()
