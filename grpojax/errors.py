"""Errors caused by user input: what is wrong and how to fix it."""

import difflib
from collections.abc import Iterable
from typing import Any


class InputError(ValueError):
    """Input that cannot be used. The message says what was wrong, what was expected and what to do.

    Commands print it as `error: <message>` and exit with code 2, before anything is written.
    """


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A hint with the nearest known name, or nothing if none is near.

    >>> did_you_mean("cliped", ["clipped", "kl"])
    " Did you mean 'clipped'?"
    """
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


class RunError(RuntimeError):
    """A run that cannot continue, for example because a loss is not finite. Commands print it and exit with code 1.

    `state` is the last good training state, if there is one to save.
    """

    def __init__(self, message: str, state: Any = None):
        super().__init__(message)
        self.state = state
