"""What the machine can do: `python -m peers.machine CORES [bandwidth]` prints one JSON object.

read_gb_s: how fast 1 GiB of float32 is read, the best of five passes of several ways that use every core: numpy's
maximum of a slice in each of CORES threads, torch's and jax's sum, jax's and torch's product of a matrix and a vector
(which is what decoding does). On a GPU, jax's alone.

gflops: operations a second of a product of two 2048 x 2048 matrices (8192 on a GPU), by dtype and library, the best of
five. bfloat16 of jax is with a float32 result.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = 2**28


def best_seconds(run: Callable[[], Any], passes: int = 5) -> float:
    """The shortest of some passes, after one that does not count."""
    run()
    seconds = []
    for _ in range(passes):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def read_rates(cores: int) -> dict[str, float]:
    """GB/s of each way to read."""
    on_cpu, runs = jax.default_backend() == "cpu", {}
    values = np.ones(FLOATS, np.float32)
    matrix = jnp.asarray(values).reshape(-1, 4096)
    for name, function in {"jax sum": jnp.sum, "jax matrix-vector": lambda x: x @ x[0]}.items():
        program = jax.jit(function)
        runs[name] = lambda program=program: jax.block_until_ready(program(matrix))
    if on_cpu:
        pool, parts = ThreadPoolExecutor(cores), np.array_split(values, cores)
        runs["numpy max"] = lambda: list(pool.map(np.max, parts))
    if on_cpu and importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(cores)
        tensor = torch.from_numpy(values).view(-1, 4096)
        runs["torch sum"], runs["torch matrix-vector"] = tensor.sum, lambda: tensor @ tensor[0]
    return {name: round(4e-9 * FLOATS / best_seconds(run), 1) for name, run in runs.items()}


def matrix_rates(cores: int) -> dict[str, dict[str, float]]:
    """GFLOP/s by dtype and library."""
    on_cpu = jax.default_backend() == "cpu"
    size = 2048 if on_cpu else 8192
    product = jax.jit(lambda x: jnp.matmul(x, x, preferred_element_type=jnp.float32, precision="highest"))
    rates: dict[str, dict[str, float]] = {}
    for dtype in ("float32", "bfloat16"):
        square = jnp.ones((size, size), dtype)
        runs = {"jax": lambda square=square: jax.block_until_ready(product(square))}
        passes = dict.fromkeys(runs, 5)
        if on_cpu and importlib.util.find_spec("torch"):
            import torch

            torch.set_num_threads(cores)
            # Where torch has no fast product of bfloat16, one of 2048 takes a minute: ask for a small one.
            width = size if dtype == "float32" else 512
            tensor = torch.ones(width, width, dtype=getattr(torch, dtype))
            runs["torch"] = lambda tensor=tensor: tensor @ tensor
            passes["torch"] = 5 if dtype == "float32" else 2
        rates[dtype] = {}
        for library, run in runs.items():
            width = size if library == "jax" or dtype == "float32" else 512
            rates[dtype][library] = round(2e-9 * width**3 / best_seconds(run, passes[library]), 1)
    return rates


def main() -> None:
    cores = int(sys.argv[1])
    found: dict[str, Any] = {"read_gb_s": read_rates(cores)}
    if sys.argv[2:] != ["bandwidth"]:
        found |= {"gflops": matrix_rates(cores), "jax": jax.__version__}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
