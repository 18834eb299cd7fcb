"""Compares an answer with the right one: exact, symmetric, from any thread, and within limits for every input.

What takes no algebra is decided in this process; the rest goes to a pool of worker processes with sympy.
"""

import functools
import importlib.util
import os
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future

from grpojax.errors import InputError, did_you_mean
from grpojax.grading.equality import Undecided, same_answer
from grpojax.grading.latex import MAX_LENGTH, TooLarge
from grpojax.grading.pool import Pool

GRADERS = ("grpojax", "book", "math-verify")
CACHE_SIZE = 65_536


def grade(answer: str, gold: str, time_limit: float = 2.0) -> bool:
    r"""Whether an answer is mathematically the same as the right one.

    >>> grade("0.5", r"\frac12"), grade("0.333333", r"\frac13"), grade("2, 1", "1,2"), grade("(2, 1)", "(1,2)")
    (True, False, True, False)

    Args:
      answer, gold: the content of the box, and the right answer; LaTeX or plain text. The order does not matter.
      time_limit: seconds for the pair; an answer that exceeds it, or a size limit, is wrong.
    """
    return _shared_grader(time_limit).grade(answer, gold)


@functools.cache
def _shared_grader(time_limit: float) -> "Grader":
    return Grader(time_limit=time_limit)


class Grader:
    """Grades pairs and caches the verdicts. Safe to use from any thread and after a fork.

    Args:
      name: "grpojax", the rules of docs/grading.md; "book" or "math-verify", the verdicts of those graders.
      time_limit: seconds for a pair; one that exceeds it is wrong.
      workers: the most worker processes; each is started when it is needed.

    Attributes:
      timeouts: how many pairs hit a limit of time, memory or size; they count as wrong.

    Raises:
      InputError: for an unknown name, or a grader that is not installed.
    """

    def __init__(self, name: str = "grpojax", time_limit: float = 2.0, workers: int = 2):
        if name not in GRADERS:
            raise InputError(
                f"unknown grader {name!r}; choose one of {', '.join(GRADERS)}.{did_you_mean(name, GRADERS)}"
            )
        if name == "math-verify" and importlib.util.find_spec("math_verify") is None:
            raise InputError(
                "the grader 'math-verify' needs the package math-verify, which is not installed; "
                "install it with `pip install grpojax[verify]`, or choose the grader 'grpojax'."
            )
        self.name = name
        self.timeouts = 0
        self._pool = Pool(name, workers, time_limit)
        self._lock = threading.Lock()  # for the counter and the cache
        self._pool_lock = threading.Lock()
        self._known: dict[tuple[str, str], bool] = {}
        forked = weakref.WeakMethod(self._after_fork)  # weak, so that a grader nobody uses ends its workers
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())

    def grade(self, answer: str, gold: str) -> bool:
        """Whether an answer is the right one."""
        return self.grade_many([(answer, gold)])[0]

    def grade_many(self, pairs: Iterable[tuple[str, str]]) -> list[bool]:
        """`grade` for each (answer, gold), in order; pairs that take algebra are shared among the workers."""
        keys = [self._key(answer.strip(), gold.strip()) for answer, gold in pairs]
        verdicts = {key: self._known.get(key) for key in keys}
        replies = {key: self._at_once(*key) for key, verdict in verdicts.items() if verdict is None}
        asked = [key for key, reply in replies.items() if reply is None]
        if asked:
            with self._pool_lock:
                replies.update(zip(asked, self._pool.ask(asked), strict=True))
        with self._lock:
            self.timeouts += sum(reply not in ("=", "!") for reply in replies.values())
            new = {key: reply == "=" for key, reply in replies.items()}
            self._known.update((key, verdict) for key, verdict in new.items() if max(map(len, key)) <= MAX_LENGTH)
            while len(self._known) > CACHE_SIZE:
                del self._known[next(iter(self._known))]
        verdicts |= new
        return [verdicts[key] for key in keys]

    def submit(self, pairs: Iterable[tuple[str, str]]) -> "Future[list[bool]]":
        """`grade_many` in its own thread, without waiting: `.result()` waits for the verdicts."""
        pairs = list(pairs)
        future: Future[list[bool]] = Future()

        def work() -> None:
            try:
                future.set_result(self.grade_many(pairs))
            except BaseException as error:  # noqa: BLE001 - raised again by .result()
                future.set_exception(error)

        threading.Thread(target=work, name="grading", daemon=True).start()
        return future

    def close(self) -> None:
        """Ends the worker processes; they start again when they are needed."""
        with self._pool_lock:
            self._pool.close()

    def _key(self, answer: str, gold: str) -> tuple[str, str]:
        """The cache key of a pair. Only the default grader is symmetric, so the others keep the order."""
        return (gold, answer) if self.name == "grpojax" and gold < answer else (answer, gold)

    def _at_once(self, answer: str, gold: str) -> str | None:
        """The reply (see `worker.py`) if no worker is needed, or None."""
        if not answer or not gold:
            return "!"
        if self.name == "grpojax" and answer == gold:
            return "="
        if max(len(answer), len(gold)) > MAX_LENGTH:
            return "?"
        return quick_verdict(answer, gold) if self.name == "grpojax" else None

    def _after_fork(self) -> None:
        """In a child process: the workers belong to the parent, and a thread that is gone may have held a lock."""
        self._lock, self._pool_lock = threading.Lock(), threading.Lock()
        self._pool.forget()


def quick_verdict(answer: str, gold: str) -> str | None:
    """`=`, `!` or `?` (too large) by the rules that need no algebra; None if it takes algebra."""
    try:
        return "=" if same_answer(answer, gold) else "!"
    except (TooLarge, RecursionError):
        return "?"
    except Undecided:
        return None
