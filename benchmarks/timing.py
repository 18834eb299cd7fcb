"""What the benchmarks share: Qwen3-0.6B's shape, a timer, and the printed table with its JSON file."""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from compare import busy_seconds, processor_name
from peers.machine import matrix_rates, read_rates
from peers.workload import WORKLOADS

from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import Params, param_shapes
from grpojax.process import compile_quickly, keep_freed_memory
from grpojax.training.update import Batch

LAYERS = WORKLOADS["600m"].num_layers
SAME = 1e-5
"""How much float32 sums may differ if summed in another order."""


# --- the model ---


def whole_config(layers: int, compute_dtype: str = "float32") -> QwenConfig:
    """Qwen3-0.6B's shape with this number of layers, and its vocabulary of 151,936."""
    shape = dataclasses.asdict(WORKLOADS["600m"])
    shape = {field.name: shape[field.name] for field in dataclasses.fields(QwenConfig) if field.name in shape}
    return QwenConfig(
        model_type="qwen3", max_position_embeddings=40960, tie_word_embeddings=True, qk_norm=True, qkv_bias=False,
        output_bias=False, eos_token_ids=(), compute_dtype=compute_dtype, **shape | {"num_layers": layers},
    )  # fmt: skip


def part_config(layers: int, compute_dtype: str = "float32") -> QwenConfig:
    """The same, with layers and vocabulary reduced by the same factor, so that head and layers keep their proportion.

    Ratios are then those of the whole model, seconds a fraction of its seconds.
    """
    whole = whole_config(layers, compute_dtype)
    return dataclasses.replace(whole, vocab_size=whole.vocab_size * layers // LAYERS)


def part_of_model(config: QwenConfig) -> str:
    """A phrase that says what part of the model this is."""
    return f"Qwen3-0.6B's shape, {config.num_layers} of {LAYERS} layers, vocabulary {config.vocab_size:,}"


def random_params(config: QwenConfig, dtype: str = "float32") -> Params:
    """Normal weights with standard deviation 0.02 and norm scales 1, made of the same four million numbers."""
    numbers = normal_numbers()

    def fill(path, shape):
        if path[-1].key == "scale":
            return jnp.ones(shape.shape, dtype)
        shift = 7919 * sum(jax.tree_util.keystr(path).encode())  # so that arrays differ
        return jnp.asarray(np.resize(np.roll(numbers, shift), shape.shape), dtype)

    return jax.tree_util.tree_map_with_path(fill, param_shapes(config))


def normal_numbers() -> np.ndarray:
    """Normal numbers with standard deviation 0.02; a prime count, so that no two rows of a matrix of them are equal."""
    return np.random.default_rng(0).normal(0, 0.02, 4_194_301).astype(np.float32)


def random_batch(config: QwenConfig, prompt_tokens: int, answers: int, width: int) -> Batch:
    """Random answers to one random prompt, each `width` tokens long."""
    draw = np.random.default_rng(0)
    return Batch(
        prompts=draw.integers(0, config.vocab_size, (1, prompt_tokens), np.int32),
        prompt_lens=np.array([prompt_tokens], np.int32),
        prompt_of=np.zeros(answers, np.int32),
        targets=draw.integers(0, config.vocab_size, (answers, width), np.int32),
        mask=np.ones((answers, width), np.float32),
        old_logps=np.zeros((answers, width), np.float32),  # so only for a loss that does not use them
        advantages=draw.normal(size=answers).astype(np.float32),
    )


# --- the timer ---


def compiled(function: Any, *args: Any, **options: Any) -> tuple[Any, float]:
    """The program of a jitted function for these arguments, and the seconds that tracing and compiling took."""
    start = time.perf_counter()
    program = function.lower(*args, **options).compile()
    return program, time.perf_counter() - start


def median_of(runs: dict[Any, Callable[[], Any]], repeats: int) -> dict[Any, float]:
    """Median seconds of each of several compiled programs, which run in alternation."""
    seconds: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def check_same(what: str, ours: Any, theirs: Any, relative: bool = False, bound: float = SAME) -> float:
    """The largest difference between two trees of arrays; if `relative`, as a share of the largest value of each array.

    Raises:
      SystemExit: if it exceeds the bound, because programs with different results are not timed.
    """
    found = max(jax.tree.leaves(jax.tree.map(lambda x, y: _difference(x, y, relative), ours, theirs)))
    if not found <= bound:
        raise SystemExit(f"{what} differ by {found:.1e}, more than {bound:.0e}; nothing is timed")
    return found


def _difference(x: Any, y: Any, relative: bool) -> float:
    x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
    largest = np.abs(x - y).max()
    return float(largest / np.abs(y).max()) if relative and largest else float(largest)


# --- input and output ---


def make_parser(doc: str, layers: int | None = None, repeats: int = 3) -> argparse.ArgumentParser:
    """A parser with --json, and with --repeats and --layers if they have a default.

    Sets the process up as `grpojax` does, but without the compilation cache on disk.
    """
    keep_freed_memory()
    compile_quickly()
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results as JSON")
    if repeats:
        parser.add_argument("--repeats", type=int, default=repeats, help=f"timed rounds (default: {repeats})")
    if layers:
        parser.add_argument("--layers", type=int, default=layers, help=f"layers, of {LAYERS} (default: {layers})")
    parser.set_defaults(started=_clocks())
    return parser


def machine() -> dict[str, Any]:
    return {
        "processor": processor_name(), "cores": os.cpu_count(), "system": platform.platform(),
        "device": jax.devices()[0].device_kind, "python": platform.python_version(), "jax": jax.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def read_bandwidth() -> float:
    """Read bandwidth in GB/s, the best of several ways to read (peers/machine.py)."""
    return max(read_rates(os.cpu_count()).values())


def product_rates() -> dict[str, float]:
    """GFLOP/s of matrix products by dtype, of the fastest library; bfloat16 ones may be computed in float32."""
    best = {dtype: max(rates.values()) for dtype, rates in matrix_rates(os.cpu_count()).items()}
    return {dtype: max(rate, best["float32"]) for dtype, rate in best.items()}


def report(args: argparse.Namespace, rows: Sequence[dict[str, Any]], *notes: str) -> None:
    """Prints the rows as a table, then the notes and the machine, and writes the file of --json."""
    print(f"| {' | '.join(rows[0])} |\n|{' --- |' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(_cell(value) for value in row.values())} |")
    about, (seconds, busy, own) = machine(), (now - then for now, then in zip(_clocks(), args.started, strict=True))
    about["others_busy_cores"] = round(max(0.0, busy - own) / seconds, 2)
    print("", *notes, sep="\n")
    print(f"{about['processor']}, {about['cores']} cores, {about['device']}; jax {about['jax']}; {about['date']}")
    print(f"Other programs used {about['others_busy_cores']} cores.")
    if args.json:
        args.json.write_text(json.dumps({"machine": about, "notes": notes, "results": rows}, indent=2) + "\n")


def _clocks() -> tuple[float, float, float]:
    """Seconds of the clock, of all cores (0 outside Linux, where they are unknown) and of this process."""
    busy = busy_seconds() if Path("/proc/stat").exists() else 0.0
    return time.perf_counter(), busy, time.process_time()


def _cell(value: Any) -> str:
    """A float with three significant digits."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
