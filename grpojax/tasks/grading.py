r"""Comparing an answer with the right one: exact, symmetric, from any thread, and within limits for every input.

Equal text and rational numbers are decided here. What takes algebra goes to a worker process with sympy, which is
killed and replaced when one pair takes too long or too much memory.
"""

import functools
import json
import os
import selectors
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

from grpojax.tasks.answers import normalize_answer
from grpojax.tasks.equality import Undecided, fold, same_answer
from grpojax.tasks.latex import MAX_LENGTH, TooLarge, Unreadable, read_answer

CACHE_SIZE = 65_536
START_SECONDS = 120.0  # for sympy to load on a busy machine


def grade(answer: str, gold: str, time_limit: float = 2.0) -> bool:
    r"""Whether an answer is the right one, for a reader of mathematics.

    >>> grade("0.5", r"\frac12"), grade("0.333333", r"\frac13"), grade("2, 1", "1,2"), grade("(2, 1)", "(1,2)")
    (True, False, True, False)

    Args:
      answer, gold: what stood in the box, and the right answer; LaTeX or plain text. The two may change places.
      time_limit: seconds for the pair; an answer that passes it, or a limit of size, is wrong.
    """
    return _shared_grader(time_limit).grade(answer, gold)


def grade_many(pairs: Iterable[tuple[str, str]], time_limit: float = 2.0) -> list[bool]:
    """`grade` for each (answer, gold), in order."""
    return _shared_grader(time_limit).grade_many(pairs)


@functools.cache
def _shared_grader(time_limit: float) -> "Grader":
    return Grader(time_limit)


class Grader:
    """Grades pairs, and remembers them.

    Attributes:
      timeouts: how many pairs were given up at a limit of time, memory or size; each counts as wrong.
    """

    def __init__(self, time_limit: float = 2.0):
        self.timeouts = 0
        self._time_limit = time_limit
        self._worker: _Worker | None = None
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], bool] = {}

    def grade_many(self, pairs: Iterable[tuple[str, str]]) -> list[bool]:
        return [self.grade(answer, gold) for answer, gold in pairs]

    def grade(self, answer: str, gold: str) -> bool:
        answer, gold = answer.strip(), gold.strip()
        if not answer or not gold:
            return False
        if answer == gold:
            return True
        with self._lock:
            if max(len(answer), len(gold)) > MAX_LENGTH:
                self.timeouts += 1
                return False
            left, right = sorted((normalize_answer(answer), normalize_answer(gold)))
            if (left, right) not in self._known:
                while len(self._known) >= CACHE_SIZE:
                    del self._known[next(iter(self._known))]
                self._known[left, right] = self._decide(left, right)
            return self._known[left, right]

    def close(self) -> None:
        """End the worker process; it starts again when it is needed."""
        with self._lock:
            self._end_worker()

    def _decide(self, left: str, right: str) -> bool:
        if left == right or _same_label(left, right):
            return left != ""
        try:
            return same_answer(fold(read_answer(left)), fold(read_answer(right)))
        except Unreadable:
            return False
        except TooLarge:
            self.timeouts += 1
            return False
        except Undecided:
            return self._ask_worker(left, right)

    def _ask_worker(self, left: str, right: str) -> bool:
        if self._worker is None:
            self._worker = _Worker()
        reply = self._worker.ask(left, right, self._time_limit)
        if reply not in ("=", "!"):
            self.timeouts += 1
            self._end_worker()
        return reply == "="

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def _same_label(left: str, right: str) -> bool:
    r"""The same word, or choice letter: C, (c), \text{(C)}. A lone bare letter is a variable, whose case counts."""
    words = [_bare_word(text) for text in (left, right)]
    marked = words != [left, right]
    return words[0].lower() == words[1].lower() and words[0].isalpha() and (marked or len(words[0]) > 1)


def _bare_word(text: str) -> str:
    if text.startswith("\\text{"):
        text = text[6:].removesuffix("}")
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return text.replace(" ", "")


class _Worker:
    """A process of `symbolic.py`, started as a program of its own: no fork, and no import of the main module."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "grpojax.tasks.symbolic"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which saves first
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))},
        )
        self.end = weakref.finalize(self, _end, self._process)  # also at exit
        if self._reply(START_SECONDS) != ".":
            self.end()
            raise RuntimeError(
                f"the grading process did not start; `{sys.executable} -m grpojax.tasks.symbolic` shows why"
            )

    def ask(self, left: str, right: str, seconds: float) -> str:
        """The reply, or "" when there was none in time."""
        try:
            self._process.stdin.write(json.dumps([seconds, left, right]).encode() + b"\n")
        except BrokenPipeError:
            return ""
        return self._reply(seconds)

    def _reply(self, seconds: float) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(seconds)
        return os.read(self._process.stdout.fileno(), 1).decode() if ready else ""


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
