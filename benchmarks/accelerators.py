"""What a GPU or TPU will run: compiles every program for a device that need not be there.

    pip install "jax[tpu]" grpojax        # for TPUs, or jax[cuda13] for GPUs; each in an environment of its own
    python benchmarks/accelerators.py --target h100
    python benchmarks/accelerators.py --target tpu-v5e:2x2 --target tpu-v6e:2x2 --json result.json

Targets: h100, a100, or tpu- and the name of a slice, such as tpu-v5e:2x2, tpu-v6e:2x2 or tpu-v5p:2x2x1. Programs are compiled
for one device of it. XLA's compilers for both need a description of the device, not the device.

By default the work is Qwen3-0.6B's shape: 8 answers of 512 tokens to a prompt of 112, bfloat16 products, float32 weights,
temperature 0.8 and top-p 0.9.

Columns. Memory: arguments, results that do not reuse an argument's memory, and temporaries. Bytes and operations: what a run
moves to and from memory, and its products, from the shapes in the program (hlo.py). A loop whose number of turns is not known
at compile time counts as one turn. The JSON file also has the TPU compiler's own count, for which every loop is one turn.
Compile: seconds.

A decode step is a turn of the loop in `generate`. Kernels are what the device is told to do in it; a conditional makes a GPU's
host wait. Least time is the time to move its bytes at the data sheet's bandwidth, or to compute its products at the peak rate,
whichever is longer; of the update too. Attention reads the filled part of a cache, on average the prompt and half of the answer. Launch-bound is
the time to start its kernels on a GPU, at 2 microseconds each. The update's operations are 6 per parameter of the
layers and token, and per parameter of the head and answer token.

Exit code 0: all programs compiled. 2: the target's compiler is not installed, or there is no such target.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu asks the cloud which TPU this is
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no TPU is held, so processes can compile side by side

import hlo
import jax
import jax.numpy as jnp
import timing
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from peers.workload import WORKLOADS

from grpojax.device import Device
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import param_shapes
from grpojax.training import stream
from grpojax.training.rollout import generate
from grpojax.training.sampling import make_sampler
from grpojax.training.update import Batch, fitting_micro_batch, init_optimizer, make_optimizer, score, update_in_place
from grpojax.variants import get_variant

LAUNCH_SECONDS = 2e-6


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A data sheet: bytes of memory, bytes and bfloat16 operations a second, of one device."""

    memory: float
    bandwidth: float
    peak: float


# NVIDIA: H100 SXM and A100 SXM 80 GB data sheets, without sparsity. Google: cloud.google.com/tpu/docs, system architecture.
SHEETS = {
    "h100": Sheet(80e9, 3.35e12, 989e12),
    "a100": Sheet(80e9, 2.039e12, 312e12),
    "tpu-v4": Sheet(32e9, 1.228e12, 275e12),
    "tpu-v5e": Sheet(16e9, 0.819e12, 197e12),
    "tpu-v5p": Sheet(95e9, 2.765e12, 459e12),
    "tpu-v6e": Sheet(32e9, 1.64e12, 918e12),
}

# What XLA must know of a GPU to compile for it, as a `stream_executor.GpuTargetConfigProto`: numbers of the data sheets and of
# NVIDIA's CUDA programming guide, table of compute capabilities.
_GPU = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {units}
  shared_memory_per_block: 49152 shared_memory_per_core: {shared} shared_memory_per_block_optin: {optin}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {l2} clock_rate_ghz: {clock} device_memory_size: {memory}
  cuda_compute_capability {{ major: {major} }} registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
device_description_str: "{name}"
"""
GPUS = {
    "h100": dict(cores=132, units=128, shared=233472, optin=232448, l2=52428800, clock=1.98, major=9, name="NVIDIA H100 80GB HBM3"),
    "a100": dict(cores=108, units=64, shared=167936, optin=166912, l2=41943040, clock=1.41, major=8, name="NVIDIA A100-SXM4-80GB"),
}


class NoTarget(Exception):
    """There is no such target, or its compiler is not installed."""


def target_device(name: str) -> Any:
    """A device of JAX to compile for; JAX itself stays on the CPU."""
    jax.config.update("jax_platforms", "cpu")
    kind = _kind(name)
    try:
        if kind.startswith("tpu-"):
            return topologies.get_topology_desc(platform="tpu", topology_name=name.removeprefix("tpu-")).devices[0]
        return _cuda_topology(kind).devices[0]
    except (ImportError, RuntimeError, ValueError) as error:
        extra = "jax[tpu]" if kind.startswith("tpu-") else "jax[cuda13]"
        raise NoTarget(f"cannot compile for {name} ({str(error).splitlines()[0]}); is {extra} installed here?") from error


def _cuda_topology(kind: str) -> Any:
    import jax_plugins.xla_cuda13 as plugin

    try:
        plugin.initialize()
    except Exception as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
    numbers = GPUS[kind] | {"bandwidth": int(SHEETS[kind].bandwidth), "memory": int(SHEETS[kind].memory)}
    return topologies.get_topology_desc(
        platform="cuda", topology_name="", target_config=_GPU.format(**numbers), topology="1x1x1"
    )


def _kind(name: str) -> str:
    kind = name.partition(":")[0]
    if kind not in SHEETS:
        raise NoTarget(f"unknown target {name!r}; targets are {', '.join(SHEETS)}, TPUs with a slice such as tpu-v5e:2x2.")
    return kind


@dataclasses.dataclass(frozen=True)
class Work:
    """The work that programs are compiled for."""

    layers: int = 28
    vocab_size: int = 151_936
    answers: int = 8
    new_tokens: int = 512
    prompt: int = 112
    dtype: str = "bfloat16"
    variant: str = "clipped"

    def config(self, name: str) -> QwenConfig:
        device = Device("cuda" if _kind(name) in GPUS else "tpu", int(SHEETS[_kind(name)].memory))
        whole = timing.whole_config(self.layers, self.dtype)
        return dataclasses.replace(whole, vocab_size=self.vocab_size, device=device)

    @property
    def update_operations(self) -> float:
        """Of the update's products with weights."""
        return dataclasses.replace(
            WORKLOADS["600m"], num_layers=self.layers, vocab_size=self.vocab_size, rollouts=self.answers,
            new_tokens=self.new_tokens, prompt_tokens=self.prompt,
        ).update_operations  # fmt: skip


def lowered_programs(work: Work, config: QwenConfig, device: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name of each program, and a function that lowers it for the device."""
    sharding = SingleDeviceSharding(device)
    on_device = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)
    shaped = lambda shape, dtype: on_device(jax.ShapeDtypeStruct(shape, dtype))
    params, rows, ids = on_device(param_shapes(config)), work.answers, {"stop_ids": (0,), "known_ids": config.vocab_size}
    keys = lambda *shape: on_device(jax.eval_shape(lambda: jnp.broadcast_to(jax.random.key(0), shape)))
    sampler = jax.tree.map(lambda _: shaped((), jnp.float32), make_sampler(0.8, 0.9))
    prompts, lens = shaped((1, work.prompt), jnp.int32), shaped((1,), jnp.int32)
    yield "generate", lambda: generate.lower(
        config, params, prompts, lens, keys(), sampler, num_rollouts=rows, max_new_tokens=work.new_tokens, **ids
    )
    floats = shaped((rows, work.new_tokens), jnp.float32)
    batch = Batch(prompts, lens, shaped((rows,), jnp.int32), shaped(floats.shape, jnp.int32), floats, floats, shaped((rows,), jnp.float32))
    micro_batch = fitting_micro_batch(config, batch)
    scored = fitting_micro_batch(config, batch, backward=False)
    yield f"score, {scored} at a time", lambda: score.lower(config, params, batch, None, scored)
    optimizer, loss = make_optimizer(), get_variant(work.variant).loss
    state = on_device(jax.eval_shape(lambda params: init_optimizer(optimizer, params), params))
    yield f"update, {micro_batch} at a time", lambda: update_in_place.lower(
        config, optimizer, params, state, loss, batch, shaped((), jnp.float32), micro_batch
    )
    slots = on_device(jax.eval_shape(lambda key: stream._empty(config, rows, 1, work.prompt, work.new_tokens, key), keys()))
    many, count = shaped((rows, work.prompt), jnp.int32), shaped((rows,), jnp.int32)
    yield "admit", lambda: stream.admit.lower(config, params, slots, many, count, count, keys(rows), sampler, num_samples=1, **ids)
    layers = on_device(jax.eval_shape(lambda params: stream.decoding_params(config, params), params))
    yield "decode", lambda: stream.decode.lower(config, layers, slots, sampler, shaped((), jnp.int32), **ids)


def rows_of(name: str, work: Work) -> list[dict[str, Any]]:
    """A row for each program; those with a decode loop also say what a step of it takes."""
    device, config, sheet, rows = target_device(name), work.config(name), SHEETS[_kind(name)], []
    filled = (work.prompt + work.new_tokens / 2) / (work.prompt + work.new_tokens)
    for program, lower in lowered_programs(work, config, device):
        lowered, start = lower(), time.perf_counter()
        compiled = lowered.compile()
        seconds, memory = time.perf_counter() - start, compiled.memory_analysis()
        read = hlo.Program(compiled.as_text(), filled)
        cost, own = read.whole(), compiled.cost_analysis() or {}
        row = {
            "target": name, "program": program, "compile": seconds,
            "arguments": memory.argument_size_in_bytes,
            "new": memory.output_size_in_bytes - memory.alias_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "bytes": cost.bytes, "operations": cost.operations,
            "compiler's count": {name: own[name] for name in ("bytes accessed", "flops") if name in own},
            "collectives": read.collectives(), "kernels": cost.kernels, "conditionals": cost.conditionals,
        }  # fmt: skip
        if loops := read.decode_loops():
            step, weights = read.cost(loops[-1]), jax.tree.leaves(param_shapes(config))
            row["step"] = {
                "kernels": step.kernels, "conditionals": step.conditionals, "transfers": step.transfers, "bytes": step.bytes,
                "weights": sum(x.size for x in weights) * jnp.dtype(work.dtype).itemsize,
                "weight_copies": read.copies(loops[-1], {x.shape[-2:] for x in weights if x.ndim > 1}),
                "least": max(step.bytes / sheet.bandwidth, step.operations / sheet.peak),
                "launch": step.kernels * LAUNCH_SECONDS if _kind(name) in GPUS else None,
            }  # fmt: skip
        if program.startswith("update"):
            row["least"] = max(work.update_operations / sheet.peak, cost.bytes / sheet.bandwidth)
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, and a line for each decode step and update."""
    lines = [
        "| target | program | arguments + new + temporaries, GB | bytes, GB | operations, T | compile, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    notes = []
    for row in rows:
        sizes = " + ".join(f"{row[name] / 1e9:.2f}" for name in ("arguments", "new", "temporaries"))
        lines.append(
            f"| {row['target']} | {row['program']} | {sizes} | {row['bytes'] / 1e9:.1f} | {row['operations'] / 1e12:.2f} | "
            f"{row['compile']:.0f} |"
        )
        if step := row.get("step"):
            launch = f"; launch-bound {1e3 * step['launch']:.2f} ms" if step["launch"] is not None else ""
            notes.append(
                f"{row['target']}, a step of {row['program']}: {step['kernels']} kernels, {step['conditionals']} conditionals, "
                f"{step['transfers']} transfers to the host, {step['weight_copies']} copies of weights, "
                f"{step['bytes'] / 1e9:.2f} GB of which weights {step['weights'] / 1e9:.2f}; "
                f"at least {1e3 * step['least']:.2f} ms{launch}"
            )
        if "least" in row:
            notes.append(f"{row['target']}, {row['program']}: at least {1e3 * row['least']:.0f} ms")
    return "\n".join([*lines, "", *notes])


def main() -> int:
    defaults = Work()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", required=True, help="device to compile for; may be given several times")
    for field in dataclasses.fields(Work):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default, help=f"(default: {getattr(defaults, field.name)})")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    args = parser.parse_args()
    work = Work(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Work)})
    try:
        rows = [row for name in args.target for row in rows_of(name, work)]
    except NoTarget as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{work}; jax {jax.__version__}\n\n{table(rows)}")
    if args.json:
        args.json.write_text(json.dumps({"work": dataclasses.asdict(work), "jax": jax.__version__, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
