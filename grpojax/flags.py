"""Command lines: settings as flags, and errors in one sentence."""

import argparse
import dataclasses
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from grpojax.errors import InputError, RunError, did_you_mean
from grpojax.settings import check_settings, settings_of


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are InputErrors, and whose flags may be typed with _ or -."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # argparse's own pattern takes -1e-3 for a flag

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help.")

    def parse_args(self, args=None, namespace=None):
        args = [_dashed(word) for word in (sys.argv[1:] if args is None else args)]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            hint = did_you_mean(unknown[0], [flag for flag in self.known_flags() if flag != unknown[0]])
            raise InputError(f"unknown argument {unknown[0]!r}; {self.prog} --help lists the known ones.{hint}")
        return parsed

    def known_flags(self) -> list[str]:
        """The flags of this parser and of its subcommands."""
        flags = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                flags += [flag for parser in action.choices.values() for flag in parser.known_flags()]
        return flags


def add_settings(parser: Parser, cls: type) -> None:
    """Adds a flag for each setting of a dataclass, in one group for each class that declares some.

    The parsed namespace holds only the flags that were typed.
    """
    groups = [base for base in cls.__mro__ if "__annotations__" in base.__dict__]
    for base in groups:
        group = parser.add_argument_group(base.__doc__.partition(". ")[0].rstrip(".")) if len(groups) > 1 else parser
        for name in base.__annotations__:
            field = settings_of(cls)[name]
            options = {"default": argparse.SUPPRESS, "help": _help(field), "dest": name}
            if field.type is bool:
                options["action"] = argparse.BooleanOptionalAction
            else:
                choices, kind = field.metadata["choices"], field.type
                options |= {"type": kind, "choices": choices, "metavar": None if choices else kind.__name__.upper()}
            flags = filter(None, [name, field.metadata.get("alias")])
            group.add_argument(*("--" + flag.replace("_", "-") for flag in flags), **options)


def parse_settings(cls: type, argv: Sequence[str] | None, prog: str, description: str) -> tuple[Any, set[str]]:
    """An instance of the dataclass from a command line, and the names of the settings that were typed."""
    parser = Parser(prog=prog, description=description)
    add_settings(parser, cls)
    return typed_settings(cls, parser.parse_args(argv))


def typed_settings(cls: type, parsed: argparse.Namespace) -> tuple[Any, set[str]]:
    """An instance of the dataclass from what `add_settings` parsed, and the names of the settings that were typed."""
    typed = {name: getattr(parsed, name) for name in settings_of(cls) if hasattr(parsed, name)}
    return cls(**typed), set(typed)


def checked_settings(cls: type, parsed: argparse.Namespace) -> Any:
    """An instance of the dataclass from what `add_settings` parsed.

    Raises:
      InputError: for the first setting that is out of bounds.
    """
    settings, _ = typed_settings(cls, parsed)
    check_settings(settings)
    return settings


def exit_code(command: Callable[[], int | None]) -> int:
    """Runs a command; an InputError prints as one line and gives 2, a RunError 1, Ctrl-C 130."""
    try:
        return command() or 0
    except (InputError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:  # outside of training, or the second Ctrl-C within it
        print("error: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read our output is gone, as with `| head`
        sys.stderr.close()
        return 0


def _dashed(word: str) -> str:
    flag, equals, value = word.partition("=")
    return (flag.replace("_", "-") + equals + value) if flag.startswith("--") else word


def _help(field: dataclasses.Field) -> str:
    text = field.metadata["help"].replace("%", "%%")
    if "suggested" in field.metadata:
        embedded, other = field.metadata["suggested"]
        return f"{text} (default: {embedded} for the embedded models, else {other})"
    return text if field.default is None or isinstance(field.default, bool) else f"{text} (default: {field.default})"
