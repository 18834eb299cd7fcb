"""How long do the three programs take to compile, by number of layers, without and with the compilation cache on disk?

    python benchmarks/compile_times.py
    python benchmarks/compile_times.py --layers 28

Prints a row per number of layers and program. Cold: with an empty cache folder. Warm: the same process clears its
programs and reads them from the folder, as the next run would; tracing (Python to StableHLO) is repeated. Lines of
StableHLO measure the size of a program: a decode step repeats each layer, the other programs contain it once. Nothing
is computed and no weights are made.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import timing

from grpojax.qwen.model import param_shapes
from grpojax.training.rollout import generate
from grpojax.training.sampling import make_sampler
from grpojax.training.update import init_optimizer, make_optimizer, score, update_in_place
from grpojax.variants import get_variant


def main() -> None:
    parser = timing.make_parser(__doc__, repeats=0)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8], help="numbers of layers (default: 2 4 8)")
    parser.add_argument("--prompt", type=int, default=100, help="tokens in the prompt (default: 100)")
    parser.add_argument("--rollouts", type=int, default=8, help="answers to the prompt (default: 8)")
    parser.add_argument("--new", type=int, default=32, help="tokens per answer (default: 32)")
    args = parser.parse_args()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        rows = [row for layers in args.layers for row in rows_of(layers, args)]
    work = f"prompt of {args.prompt} tokens, {args.rollouts} answers of {args.new}, the update with all of them at once"
    timing.report(args, rows, f"Qwen3-0.6B's shape, vocabulary 151,936, float32; {work}.")


def rows_of(layers: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name, lower in programs_of(layers, args).items():
        trace, cold, lines = seconds_of(lower)
        jax.clear_caches()
        trace_again, warm, _ = seconds_of(lower)
        rows.append({
            "layers": layers, "program": name, "lines of StableHLO": lines, "tracing s": trace, "compiling s": cold,
            "cold s": trace + cold, "warm s": trace_again + warm,
        })  # fmt: skip
    return rows


def seconds_of(lower: Callable[[], Any]) -> tuple[float, float, int]:
    """Seconds of tracing, seconds of compiling, and lines of StableHLO."""
    start = time.perf_counter()
    lowered = lower()
    traced = time.perf_counter()
    lowered.compile()
    done = time.perf_counter()
    return traced - start, done - traced, lowered.as_text().count("\n")


def programs_of(layers: int, args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    config, optimizer, variant = timing.whole_config(layers), make_optimizer(), get_variant("clipped").loss
    params = param_shapes(config)
    moments = jax.eval_shape(lambda params: init_optimizer(optimizer, params), params)
    batch = timing.random_batch(config, args.prompt, args.rollouts, args.new)
    prompt = jax.ShapeDtypeStruct((1, args.prompt), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
    sampler, key = make_sampler(0.8, 0.9), jax.random.key(0)
    return {
        "generate": lambda: generate.lower(
            config, params, *prompt, key, sampler, num_rollouts=args.rollouts, max_new_tokens=args.new, stop_ids=(),
            known_ids=config.vocab_size,
        ),
        "score": lambda: score.lower(config, params, batch),
        "update": lambda: update_in_place.lower(
            config, optimizer, params, moments, variant, batch, 1e-5, args.rollouts
        ),
    }  # fmt: skip


if __name__ == "__main__":
    main()
