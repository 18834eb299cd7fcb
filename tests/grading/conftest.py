"""What the tests of grading share."""

import contextlib
import signal
from collections.abc import Callable, Iterator

import pytest

from grpojax.grading.grader import Grader

HANG = 120  # seconds: far beyond what any answer takes on a busy machine, far below what an unbounded one would


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    """A grader with a time limit that no test reaches, even on a busy machine."""
    grader = Grader(time_limit=20.0)
    yield grader
    grader.close()


@pytest.fixture
def hang_guard() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """`with hang_guard():` fails a block that hangs instead of waiting for it."""

    @contextlib.contextmanager
    def guard() -> Iterator[None]:
        def fail(*_):
            pytest.fail(f"it takes more than {HANG} s")

        previous = signal.signal(signal.SIGALRM, fail)
        signal.alarm(HANG)
        try:
            yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)

    return guard
