"""Settings of the process: glibc's memory, XLA's compiler flags, and the cache of compiled programs."""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import sys

import jax

from grpojax.tasks.problems import cache_folder

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of mallopt(3)


def prepare_process() -> None:
    """Sets up memory and compilation for a command. Call it before the first use of a device.

    Compiled programs are kept on disk, so that only the first run on a machine waits for them, in the folder that the
    user set (`JAX_COMPILATION_CACHE_DIR`) or in grpojax's cache.
    """
    keep_freed_memory()
    compile_quickly()
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next request instead of returning it to the system.

    XLA allocates a program's temporary memory, gigabytes of it, at each call. By default glibc gets it from the system
    each time, page by page: half of the time of an update at Qwen3-0.6B's size.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
        libc.mallopt(_M_ARENA_MAX, 1)


def compile_quickly() -> None:
    """Sets flags with which XLA's CPU backend compiles in two thirds of the time, to code of the same speed.

    The speed is the same because matrix products are library calls. The flags are set only if JAX can find nothing but
    the CPU: because it is told so, or no other backend is installed. A flag that XLA does not know ends the process, so
    the one that may be removed is set only for versions that have it.
    """
    others = importlib.metadata.entry_points(group="jax_plugins") or importlib.util.find_spec("libtpu")
    if jax.config.jax_platforms != "cpu" and others:
        return
    quick = {"xla_backend_optimization_level": "1"}
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        quick["xla_cpu_use_fusion_emitters"] = "false"
    flags = os.environ.get("XLA_FLAGS", "")
    new = [f"--{name}={value}" for name, value in quick.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *new]).strip()
