"""A pool of worker processes. A worker that takes too long for a question is killed and replaced."""

import collections
import json
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path

from grpojax.errors import RunError

START_SECONDS = 120.0  # for sympy to load on a busy machine


class Pool:
    """Worker processes of `worker.py`, started when they are needed. Not thread-safe.

    Args:
      grader: the name of the grader, see `worker.py`.
      size: the most processes.
      time_limit: seconds for one question.
    """

    def __init__(self, grader: str, size: int, time_limit: float):
        self._command = [sys.executable, "-P", "-m", "grpojax.grading.worker", grader]
        self._size = size
        self._time_limit = time_limit
        self._workers: list[_Worker] = []

    def ask(self, questions: Sequence[tuple[str, str]]) -> list[str]:
        """The reply to each question, one character; "" if there was none in time or the worker died."""
        replies = [""] * len(questions)
        waiting = collections.deque(range(len(questions)))
        try:
            while waiting or self._busy():
                for _ in range(min(self._size, len(waiting) + len(self._busy())) - len(self._workers)):
                    self._workers.append(_Worker(self._command))
                for worker in [one for one in self._workers if one.ready and one.index is None][: len(waiting)]:
                    index = waiting.popleft()
                    if not worker.send(index, questions[index], self._time_limit):
                        waiting.appendleft(index)  # the worker had died before
                        self._drop(worker)
                self._collect(replies)
        except BaseException:
            self.close()  # so that no reply is left in a pipe for the next question
            raise
        return replies

    def close(self) -> None:
        """Ends the worker processes; they start again when they are needed."""
        for worker in [*self._workers]:
            self._drop(worker)

    def forget(self) -> None:
        """In a forked child: forgets the workers, which belong to the parent."""
        for worker in self._workers:
            worker.forget()
        self._workers = []

    def _busy(self) -> list["_Worker"]:
        return [worker for worker in self._workers if worker.index is not None]

    def _drop(self, worker: "_Worker") -> None:
        self._workers.remove(worker)
        worker.end()

    def _collect(self, replies: list[str]) -> None:
        """Waits for the next replies or the next deadline."""
        watched = [worker for worker in self._workers if not worker.ready or worker.index is not None]
        if not watched:
            return
        first = min(worker.deadline for worker in watched)
        arrived = connection.wait(watched, max(first - time.monotonic(), 0.0))
        for worker in watched:
            if worker not in arrived and time.monotonic() < worker.deadline:
                continue
            reply = worker.read() if worker in arrived else ""
            if not worker.ready:
                if reply != ".":
                    self._drop(worker)
                    shown = " ".join(part for part in self._command if part != "-P")
                    raise RunError(f"the grading process did not start; `{shown}` shows why")
                worker.ready = True
                continue
            replies[worker.index] = reply
            worker.index = None
            if not reply:
                self._drop(worker)
                self._workers.append(_Worker(self._command))  # starts while others work


class _Worker:
    """One process, started as a separate program: not a fork of this process, and without importing its main module.

    Attributes:
      ready: whether it has loaded what it needs.
      index: of the question it works on, or None.
      deadline: when it must be ready or have replied, in seconds of the monotonic clock.
    """

    def __init__(self, command: Sequence[str]) -> None:
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the parent process, which saves first
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
                "PYTHONHASHSEED": "0",  # what sympy can simplify depends on its order of terms, and that on hashes
            },
        )
        self.ready = False
        self.index: int | None = None
        self.deadline = time.monotonic() + START_SECONDS
        self.end = weakref.finalize(self, _end, self._process)  # also at exit

    def send(self, index: int, question: tuple[str, str], seconds: float) -> bool:
        """Sends a question; returns whether the process received it."""
        try:
            self._process.stdin.write(json.dumps([seconds, *question]).encode() + b"\n")
        except BrokenPipeError:
            return False
        self.index = index
        self.deadline = time.monotonic() + seconds
        return True

    def fileno(self) -> int:
        return self._process.stdout.fileno()

    def read(self) -> str:
        return os.read(self.fileno(), 1).decode()

    def forget(self) -> None:
        self.end.detach()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.returncode = 0  # not a child of this process, so nothing to wait for


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
