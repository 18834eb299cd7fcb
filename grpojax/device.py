"""The device that programs are compiled for: its kind, its memory, and the options of its compiler."""

import contextlib
import functools
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

CPU_COMPILER_OPTIONS = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}
"""For programs that loop over stacked layers. XLA's CPU backend converts bfloat16 to float32 before it slices it. If it could
move code that does not change out of the loop over layers, it would convert all layers at once."""


@dataclass(frozen=True)
class Device:
    """A device to compile for. Hashable, so that it can be part of a static argument."""

    kind: str = "cpu"  # or "cuda" or "tpu": the form of attention, sampling and update
    memory: int | None = None  # bytes that programs can use; None: unknown, so sizes are small

    @property
    def accelerated(self) -> bool:
        return self.kind != "cpu"


@functools.cache
def this_device() -> Device:
    """The device that JAX uses by default."""
    device = jax.devices()[0]
    kind = {"gpu": "cuda", "tpu": "tpu"}.get(device.platform, "cpu")
    stats = (device.memory_stats() if kind != "cpu" else None) or {}
    return Device(kind, stats.get("bytes_limit"))


def faster_dtype() -> str:
    """The dtype of the faster matrix products here, float32 or bfloat16, by a measurement of about a tenth of a second.

    Most CPUs have no instructions for bfloat16 products, and convert; those with AMX compute them at twice the rate of float32. So
    bfloat16 is faster only if it takes less than 3/4 of the time.
    """
    seconds = {}
    for dtype in ("float32", "bfloat16"):
        x, weight = jnp.ones((128, 1024), dtype), jnp.ones((1024, 1024), dtype)
        product = jax.jit(functools.partial(jnp.matmul, preferred_element_type=jnp.float32))
        jax.block_until_ready(product(x, weight))  # compiles
        seconds[dtype] = timeit.timeit(lambda: jax.block_until_ready(product(x, weight)), number=10)  # noqa: B023
    return "bfloat16" if seconds["bfloat16"] < 0.75 * seconds["float32"] else "float32"


def on_host() -> contextlib.AbstractContextManager:
    """A context in which JAX computes on the CPU: for a few numbers that the host waits for while the device has other work."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS leaves out the CPU
        return contextlib.nullcontext()


class Program:
    """`jax.jit` of a function whose first argument is a `QwenConfig`, compiled as the config's device and dtype ask."""

    def __init__(self, function: Callable, **options: Any):
        self._on_cpu = jax.jit(function, **options, compiler_options=CPU_COMPILER_OPTIONS)
        self._accelerated = jax.jit(function, **options)
        functools.update_wrapper(self, function)

    def _jitted(self, config: Any) -> Any:
        return self._accelerated if config.device.accelerated else self._on_cpu

    def __call__(self, config: Any, *args: Any, **kwargs: Any) -> Any:
        with product_precision(config):
            return self._jitted(config)(config, *args, **kwargs)

    def lower(self, config: Any, *args: Any, **kwargs: Any) -> Any:
        with product_precision(config):
            return self._jitted(config).lower(config, *args, **kwargs)

    def _cache_size(self) -> int:
        return self._on_cpu._cache_size() + self._accelerated._cache_size()


def product_precision(config: Any) -> contextlib.AbstractContextManager:
    """A context in which products are traced as exact as the compute dtype: JAX's default for float32 is TF32 on a GPU, bfloat16 on a TPU."""
    exact = config.device.accelerated and config.compute_dtype == "float32"
    return jax.default_matmul_precision("highest") if exact else contextlib.nullcontext()


def program(**options: Any) -> Callable[[Callable], Program]:
    """`Program` as a decorator."""
    return functools.partial(Program, **options)
