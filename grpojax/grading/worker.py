"""The worker process of the graders: compares pairs of answers, one after the other, with limited memory.

`python -m grpojax.grading.worker NAME` reads a line of JSON for each pair, [seconds, answer, gold], and writes a
character: `=` the same, `!` not the same, `?` too large; first a `.` when it is ready. It ends with its input, or by an
alarm of the operating system a second after a time limit. It cannot write to files; what libraries print is lost.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable

MAX_MEMORY = 1 << 30  # bytes of address space

# The module of each grader, and a pair that makes it load what it otherwise loads on first use.
_GRADERS = {
    "grpojax": ("grpojax.grading.symbolic", (r"\sqrt{x^{2}+2x}+\sqrt2", r"\sqrt{(x+2)x}+\frac{2}{\sqrt2}")),
    "book": ("grpojax.grading.book", (r"sqrt(8)x", r"2*sqrt(2)x")),
    "math-verify": ("grpojax.grading.math_verify", (r"\frac{\sqrt8}{2}", r"\sqrt{2}")),
}


def main(name: str) -> None:
    sys.stdout.flush()
    replies = os.dup(1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    module, pair = _GRADERS[name]
    verdict: Callable[[str, str], str] = importlib.import_module(module).verdict
    verdict(*pair)
    limit_resources()
    os.write(replies, b".")
    for line in sys.stdin:
        seconds, answer, gold = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)
        reply = verdict(answer, gold)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(replies, reply.encode())


def limit_resources() -> None:
    """Limits the memory; no files, no core dumps. A limit that the system does not have is skipped (macOS: memory)."""
    for name, size in (("AS", MAX_MEMORY), ("DATA", MAX_MEMORY), ("FSIZE", 0), ("CORE", 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (size, size))


if __name__ == "__main__":
    main(sys.argv[1])
