"""What do log-probs and their gradient cost at a vocabulary of 151,936, with all logits at once and in chunks?

    python benchmarks/log_probs.py

Prints seconds and memory of each way for hidden states [8, 64, 1024] and a head [151936, 1024], in float32. Whole:
the logits [8, 64, V], their log-softmax, and the targets picked from it. Chunks: `chunked_logps`, which holds the
logits of a few positions at a time and recomputes them for the gradient. The gradient is that of a weighted sum of
the log-probs with respect to hidden states and head. Memory is the temporary memory reported by the compiled program
(the head's gradient is an output and not included). Checked first: values and gradients are the same.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import timing
from jax import Array

from grpojax.loss.logprobs import CHUNK_ELEMENTS, chunked_logps


def main() -> None:
    parser = timing.make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=8, help="answers (default: 8)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer (default: 64)")
    parser.add_argument("--chunks", type=int, nargs="+", default=[32, 128, 256], help="positions per chunk")
    args = parser.parse_args()
    config = timing.whole_config(1)
    shape, vocab = (args.rows, args.tokens), config.vocab_size
    draw = np.random.default_rng(0)
    hidden = draw.normal(size=(*shape, config.hidden_size)).astype(np.float32)
    head = np.resize(timing.normal_numbers(), (vocab, config.hidden_size))
    targets, weights = draw.integers(0, vocab, shape, np.int32), draw.normal(size=shape).astype(np.float32)
    inputs = tuple(map(jnp.asarray, (hidden, head, targets)))
    ways = {"whole": whole_logps} | {
        f"chunks of {size}": functools.partial(chunked_logps, chunk_elements=size * vocab) for size in args.chunks
    }
    ways[f"chunks of {CHUNK_ELEMENTS // vocab} (default)"] = chunked_logps
    values, grads, compile_seconds, temporary = {}, {}, {}, {}
    for name, way in ways.items():
        weighted = lambda *inputs, way=way: jnp.sum(weights * way(*inputs))
        value_program, _ = timing.compiled(jax.jit(way), *inputs)
        grad_program, compile_seconds[name] = timing.compiled(jax.jit(jax.grad(weighted, argnums=(0, 1))), *inputs)
        temporary[name] = [p.memory_analysis().temp_size_in_bytes / 1e9 for p in (value_program, grad_program)]
        values[name], grads[name] = functools.partial(value_program, *inputs), functools.partial(grad_program, *inputs)
        logps, grad = values[name](), grads[name]()
        if name == "whole":
            whole, whole_grad = logps, grad
        timing.check_same(f"log-probs ({name})", logps, whole)
        timing.check_same(f"gradients ({name})", grad, whole_grad, relative=True)
        del grad
    del whole_grad
    value_seconds, grad_seconds = timing.median_of(values, args.repeats), timing.median_of(grads, args.repeats)
    rows = [
        {
            "": name, "log-probs s": value_seconds[name], "gradient s": grad_seconds[name],
            "log-probs GB": temporary[name][0], "gradient GB": temporary[name][1],
            "gradient, whole / this": grad_seconds["whole"] / grad_seconds[name],
            "compile gradient s": compile_seconds[name],
        }
        for name in ways
    ]  # fmt: skip
    timing.report(args, rows, f"{args.rows} x {args.tokens} positions, vocabulary {vocab:,}, float32.")


def whole_logps(hidden: Array, head: Array, targets: Array) -> Array:
    logits = jnp.einsum("bnd,vd->bnv", hidden, head, preferred_element_type=jnp.float32)
    return jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]


if __name__ == "__main__":
    main()
