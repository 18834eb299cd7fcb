"""How close is a decode step to the limits of the machine, by batch size?

    python benchmarks/decode.py
    python benchmarks/decode.py --layers 28 --batches 8 --dtypes float32       the whole model, two rows

Prints a row per dtype, sampler and batch size. A step takes the time of rollouts of 33 tokens, minus the prefill of
their one prompt, divided by 32; so it includes sampling and bookkeeping. Stop tokens are disabled. Every step reads
all weights once and multiplies them by each row, which takes longer than reading if the batch is large. The shares
are of the read bandwidth and of the rate of matrix products, both measured first (peers/machine.py; for bfloat16 its
own rate or float32's, whichever is higher). Reading keys and values is not counted. Checked first: in float32 an
answer and its log-probs are the same in every batch.
"""

import argparse
import functools
from typing import Any

import jax
import numpy as np
import timing
from jax import Array

from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import Params, causal_inputs, head_logits, hidden_states
from grpojax.training.rollout import generate
from grpojax.training.sampling import GREEDY, make_sampler

SAMPLERS = {"greedy": GREEDY, "T 0.8, top-p 0.9": make_sampler(0.8, 0.9)}


def main() -> None:
    parser = timing.make_parser(__doc__, layers=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--prompt", type=int, default=100, help="tokens in the prompt (default: 100)")
    parser.add_argument("--new", type=int, default=33, help="tokens per answer (default: 33)")
    args = parser.parse_args()
    bandwidth, products = timing.read_bandwidth(), timing.product_rates()
    rows = [row for dtype in args.dtypes for row in rows_of(dtype, args, bandwidth, products[dtype])]
    model = timing.part_of_model(timing.part_config(args.layers))
    rates = f"Read bandwidth {bandwidth:.1f} GB/s, matrix products {products['float32']:.0f} GFLOP/s in float32"
    rates = f"{rates}, {products['bfloat16']:.0f} in bfloat16."
    timing.report(args, rows, f"{model}; prompt of {args.prompt} tokens.", rates)


def rows_of(dtype: str, args: argparse.Namespace, bandwidth: float, products: float) -> list[dict[str, Any]]:
    config = timing.part_config(args.layers, dtype)
    params = timing.random_params(config, dtype)
    size, weights = (sum(getattr(leaf, what) for leaf in jax.tree.leaves(params)) for what in ("nbytes", "size"))
    prompts, lengths = timing.random_batch(config, args.prompt, 1, 1).prompts, np.array([args.prompt], np.int32)
    prefill, _ = timing.compiled(jax.jit(first_logits, static_argnames="config"), config, params, prompts)
    programs, compile_seconds, checked = {"prefill": functools.partial(prefill, params, prompts)}, {}, {}
    for name in args.samplers:
        for batch in args.batches:
            inputs = (params, prompts, lengths, jax.random.key(0), SAMPLERS[name])
            program, compile_seconds[name, batch] = timing.compiled(
                generate, config, *inputs, num_rollouts=batch, max_new_tokens=args.new, stop_ids=(),
                known_ids=config.vocab_size,
            )  # fmt: skip
            programs[name, batch] = functools.partial(program, *inputs)
            out = programs[name, batch]()
            first = checked.setdefault(name, out)
            if dtype == "float32":
                timing.check_same("answers", out["answers"][:1], first["answers"][:1], bound=0)
                timing.check_same("log-probs", out["logps"][:1], first["logps"][:1])
    seconds = timing.median_of(programs, args.repeats)
    rows = []
    for name in args.samplers:
        for batch in args.batches:
            step = (seconds[name, batch] - seconds["prefill"]) / (args.new - 1)
            read, multiplied = size / step / 1e9, 2 * weights * batch / step / 1e9
            rows.append({
                "dtype": dtype, "sampler": name, "batch": batch, "ms per step": 1e3 * step, "tokens/s": batch / step,
                "reads GB/s": read, "of bandwidth": f"{100 * read / bandwidth:.0f} %",
                "products GFLOP/s": multiplied, "of their rate": f"{100 * multiplied / products:.0f} %",
                "compile s": compile_seconds[name, batch],
            })  # fmt: skip
    return rows


def first_logits(config: QwenConfig, params: Params, prompts: Array) -> Array:
    """The part of the rollouts before the first token is sampled."""
    hidden, _ = hidden_states(config, params, prompts, *causal_inputs(prompts))
    return head_logits(config, params, hidden[:, -1])


if __name__ == "__main__":
    main()
