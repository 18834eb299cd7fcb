"""Command lines: a dataclass's fields as flags, and errors of one sentence."""

import argparse
import dataclasses
import re
import signal
import sys
import types
import typing
from collections.abc import Callable, Sequence

from grpojax.errors import InputError, RunError, did_you_mean


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are InputErrors, and whose flags may be typed with _ or -."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # argparse's own takes -1e-3 for a flag

    def error(self, message: str) -> typing.NoReturn:
        raise InputError(f"{message}; see {self.prog} --help.")

    def parse_args(self, args=None, namespace=None):
        args = [_dashed(word) for word in (sys.argv[1:] if args is None else args)]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hint = did_you_mean(unknown[0], [flag for flag in self.known_flags() if flag != unknown[0]])
            raise InputError(f"unknown argument {unknown[0]!r}; {self.prog} --help lists the known ones.{hint}")
        return parsed

    def known_flags(self) -> list[str]:
        """Every flag of this parser and of its subcommands."""
        flags = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                flags += [flag for parser in action.choices.values() for flag in parser.known_flags()]
        return flags


def add_fields(parser: Parser, cls: type) -> None:
    """Adds a flag for each field of a dataclass; its metadata holds the help text and, if any, the choices.

    The parsed namespace holds only the flags that were typed.
    """
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = next(t for t in _alternatives(hints[field.name]) if t is not type(None))
        options = {"default": argparse.SUPPRESS, "help": _help(field), "dest": field.name}
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": kind, "metavar": kind.__name__.upper(), "choices": field.metadata.get("choices")}
        parser.add_argument("--" + field.name.replace("_", "-"), **options)


def parse_fields(cls: type, argv: Sequence[str] | None, prog: str, description: str) -> tuple[typing.Any, set[str]]:
    """An instance of the dataclass from a command line, and the names of the fields that were typed."""
    parser = Parser(prog=prog, description=description)
    add_fields(parser, cls)
    return fields_of(cls, parser.parse_args(argv))


def fields_of(cls: type, parsed: argparse.Namespace) -> tuple[typing.Any, set[str]]:
    """An instance of the dataclass from what `add_fields` parsed, and the names of the fields that were typed."""
    typed = {field.name: getattr(parsed, field.name) for field in dataclasses.fields(cls) if hasattr(parsed, field.name)}
    return cls(**typed), set(typed)


def exit_code(command: Callable[[], int | None]) -> int:
    """Runs a command; an InputError prints as one line and gives 2, a RunError 1, Ctrl-C 130."""
    try:
        return command() or 0
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # outside of training, or the second Ctrl-C within it
        print("error: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.stderr.close()
        return 0


def _dashed(word: str) -> str:
    flag, equals, value = word.partition("=")
    return (flag.replace("_", "-") + equals + value) if flag.startswith("--") else word


def _alternatives(hint) -> tuple:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _help(field: dataclasses.Field) -> str:
    text = field.metadata["help"].replace("%", "%%")
    return text if field.default is None or isinstance(field.default, bool) else f"{text} (default: {field.default})"
