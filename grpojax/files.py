"""Replacing a file as a whole, and reading and appending JSON lines.

A file is written under a temporary name and renamed: a crash leaves it old or new, never half written. Of a file that
grows line by line a crash can cut off the last line, so a line counts once its line end is written.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grpojax.errors import InputError


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file under a temporary name and renames it."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Replaces a file by indented JSON."""
    replace_file(path, _json(value, indent=2).encode() + b"\n")


def append_text(path: Path, text: str) -> None:
    """Appends UTF-8 text; it is in the file when this returns."""
    with path.open("ab") as file:
        file.write(text.encode())


def json_lines(rows: Iterable[Any]) -> str:
    r"""One line of JSON per row.

    >>> json_lines([{"step": 1}, {"step": 2}])
    '{"step": 1}\n{"step": 2}\n'
    """
    return "".join(_json(row) + "\n" for row in rows)


def complete_lines(path: Path) -> list[bytes]:
    """The lines of a file, each with its line end; a last line without one was cut off by a crash and is left out."""
    return [line + b"\n" for line in path.read_bytes().split(b"\n")[:-1]]


def read_json_lines(path: Path, *, complete_only: bool = True) -> Iterator[tuple[str, Any]]:
    """The rows of a .jsonl file, each with its place for error messages, such as "samples.jsonl, line 3".

    Args:
      complete_only: leave out a last line without a line end, like `complete_lines`; False for files written by users.

    Raises:
      InputError: if a line is not valid JSON. Blank lines are skipped.
      OSError: if the file cannot be read.
    """
    lines = complete_lines(path) if complete_only else path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield f"{path}, line {number}", json.loads(line)
            except ValueError:
                raise InputError(f"{path}, line {number} is not valid JSON; fix or delete the line.") from None


def _json(value: Any, indent: int | None = None) -> str:
    """Array scalars become numbers, other unknown objects, such as paths, their text."""
    plain = lambda value: value.item() if hasattr(value, "item") else str(value)
    return json.dumps(value, indent=indent, ensure_ascii=False, default=plain)
