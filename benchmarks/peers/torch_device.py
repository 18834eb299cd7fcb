"""What the peers on torch share: device, threads, memory."""

from collections.abc import Callable

import torch

from peers.workload import Task


def prepare(task: Task) -> tuple[torch.device, Callable[[], None]]:
    """The device, with every core at work on a CPU and TF32 off on a GPU; and what waits for the work on it."""
    torch.manual_seed(0)
    if task.device == "gpu":
        return torch.device("cuda"), torch.cuda.synchronize
    torch.set_num_threads(task.cores)
    return torch.device("cpu"), lambda: None


def peak_bytes() -> int:
    """Largest memory that tensors held on the GPU."""
    return torch.cuda.max_memory_allocated()
