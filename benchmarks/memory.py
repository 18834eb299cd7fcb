"""How much memory does a step of Qwen3-0.6B take, with 8 answers of 1024 tokens to one prompt?

    python benchmarks/memory.py              both dtypes, 28 layers: nothing is allocated, compiling takes half a minute

Prints what each compiled program reports: arguments, outputs that do not reuse the memory of an argument, and
temporaries. During rollouts and scoring the optimizer's moments are in memory too, and count towards the peak. (The
programs are compiled without LLVM's optimizations, which happen after memory is assigned.)
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import timing

from grpojax.qwen.model import param_shapes
from grpojax.training.rollout import bucket, generate
from grpojax.training.sampling import make_sampler
from grpojax.training.update import fitting_micro_batch, init_optimizer, make_optimizer, score, update_in_place
from grpojax.variants import get_variant


def main() -> None:
    parser = timing.make_parser(__doc__, layers=28, repeats=0)
    parser.add_argument("--prompt", type=int, default=112, help="tokens in the prompt (default: 112)")
    parser.add_argument("--rollouts", type=int, default=8, help="answers to the prompt (default: 8)")
    parser.add_argument("--new", type=int, default=1024, help="tokens per answer (default: 1024)")
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    args = parser.parse_args()
    rows = [row for dtype in args.dtypes for row in rows_of(dtype, args)]
    model = timing.part_of_model(timing.whole_config(args.layers))
    work = f"prompt of {args.prompt} tokens, {args.rollouts} answers of {args.new}"
    timing.report(args, rows, f"{model}; {work}.", "dtype: that of parameters, moments and products.")


def rows_of(dtype: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    config = timing.whole_config(args.layers, dtype)
    cast = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), tree)
    optimizer, params = make_optimizer(), cast(param_shapes(config))
    moments = jax.eval_shape(lambda params: init_optimizer(optimizer, params, dtype), params)
    moment_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(moments))
    batch = timing.random_batch(config, args.prompt, args.rollouts, bucket(args.new))
    micro_batch = fitting_micro_batch(config, batch)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    prompt = jax.ShapeDtypeStruct((1, args.prompt), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
    programs = {
        "generate": generate.lower(
            config, params, *prompt, jax.random.key(0), make_sampler(0.8, 0.9), num_rollouts=args.rollouts,
            max_new_tokens=args.new, stop_ids=(), known_ids=config.vocab_size,
        ),
        "score": score.lower(config, params, batch),
        f"update, micro-batch {micro_batch}": update_in_place.lower(
            config, optimizer, params, moments, get_variant("clipped").loss, batch, 1e-5, micro_batch
        ),
    }  # fmt: skip
    rows = []
    for name, lowered in programs.items():
        memory = lowered.compile({"xla_backend_optimization_level": 0}).memory_analysis()
        new = memory.output_size_in_bytes - memory.alias_size_in_bytes
        beside = 0 if name.startswith("update") else moment_bytes
        sizes = memory.argument_size_in_bytes, new, memory.temp_size_in_bytes, beside
        names = "arguments GB", "new outputs GB", "temporaries GB", "moments GB"
        gigabytes = [f"{size / 1e9:.2f}" for size in (*sizes, sum(sizes))]
        rows.append({"dtype": dtype, "program": name} | dict(zip((*names, "peak GB"), gigabytes, strict=True)))
    return rows


if __name__ == "__main__":
    main()
