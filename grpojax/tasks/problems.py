"""Problems with their answers: generated arithmetic, published data sets, or a file of the user's own."""

import dataclasses
import hashlib
import http.client
import json
import os
import random
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grpojax.errors import InputError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Problem:
    """A question with its right answer."""

    text: str
    answer: str
    subject: str = ""
    level: int | None = None  # difficulty, from 1; None where it is unknown
    domain: str = "math"  # a variant may weigh its KL term by it


SPLITS = ("train", "eval")
DATASETS = ("arithmetic", "gsm8k", "math", "math500")
ARITHMETIC_COUNT = {"train": 4096, "eval": 200}


def load_problems(source: str | Path, split: str, seed: int = 0, limit: int | None = None) -> list[Problem]:
    """The problems of a data set or a file, in a fixed order.

    Args:
      source: "arithmetic" (generated), "gsm8k", "math" (12,000 problems; its eval split is "math500"), "math500" (the
        same 500 problems for both splits), or a .json or .jsonl file (the same rows for both splits).
      split: "train" or "eval".
      seed: which arithmetic problems, and their order; the other sources keep the order of their file.
      limit: the first so many; for arithmetic, how many to generate (4096 and 200 where it is None).

    Raises:
      InputError: for an unknown source or split, a file that cannot be used, an empty data set, a failed download.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}.")
    if limit is not None and limit < 1:
        raise InputError(f"the number of problems must be at least 1, not {limit}.")
    if source == "arithmetic":
        return arithmetic_problems(seed, limit or ARITHMETIC_COUNT[split], split)
    if source in DATASETS:
        path = _cached(PUBLISHED[_published_name(str(source), split)])
    else:
        path = _own_file(source)
    return read_problems(path)[:limit]


# --- arithmetic ---


def arithmetic_problems(seed: int, count: int, split: str) -> list[Problem]:
    """Generated problems, levels 1 to 5 in turn, without repetition; a shorter list is the start of a longer one.

    Whether a problem is for training or evaluation follows from its own text, and stays the same when its numbers
    change places, so no seed can put one problem in both. A level that has run out leaves its turns to the others.

    >>> [(p.level, p.text, p.answer) for p in arithmetic_problems(0, 3, "eval")]
    [(1, '83 - 94', '-11'), (2, '77 * 7', '539'), (3, '75 - 94 - 84', '-103')]
    """
    rng = random.Random(f"arithmetic {split} {seed}")
    levels = list(range(1, len(_LEVELS) + 1))
    seen: set[str] = set()
    problems: list[Problem] = []
    while len(problems) < count and levels:
        for level in tuple(levels):
            text = _draw_new(_LEVELS[level - 1], rng, split, seen)
            if text is None:
                levels.remove(level)
            else:
                seen.add(text)
                problems.append(Problem(text, str(_Expression(text).value), "arithmetic", level))
    return problems[:count]


def worked_steps(text: str) -> list[str]:
    """The evaluation of an arithmetic expression, one operation a line, in the order a careful person works.

    >>> worked_steps("12 + 3 * 4")
    ['3 * 4 = 12', '12 + 12 = 24']

    Raises:
      InputError: if the text is anything but integers, + - * and round brackets.
    """
    return _Expression(text).steps


def _level_1(rng: random.Random) -> str:
    return f"{rng.randint(1, 99)} {rng.choice('+-')} {rng.randint(1, 99)}"


def _level_2(rng: random.Random) -> str:
    factors = [rng.randint(11, 99), rng.randint(2, 9)]
    rng.shuffle(factors)
    return f"{factors[0]} * {factors[1]}"


def _level_3(rng: random.Random) -> str:
    return f"{_level_1(rng)} {rng.choice('+-')} {rng.randint(1, 99)}"


def _level_4(rng: random.Random) -> str:
    return f"{rng.randint(1, 99)} {rng.choice('+-')} {rng.randint(2, 19)} * {rng.randint(2, 9)}"


def _level_5(rng: random.Random) -> str:
    bracket = f"({rng.randint(1, 20)} {rng.choice('+-')} {rng.randint(1, 20)})"
    return f"{bracket} * {rng.randint(2, 9)} {rng.choice('+-')} {rng.randint(1, 99)}"


_LEVELS: tuple[Callable[[random.Random], str], ...] = (_level_1, _level_2, _level_3, _level_4, _level_5)


def _draw_new(draw: Callable[[random.Random], str], rng: random.Random, split: str, seen: set[str]) -> str | None:
    """A problem of the split that is not in `seen`; None if 1000 draws find none."""
    for _ in range(1000):
        text = draw(rng)
        if text not in seen and _arithmetic_split(text) == split:
            return text
    return None


def _arithmetic_split(text: str) -> str:
    """One problem in ten is for evaluation, and with it all that use the same numbers and signs in another order."""
    parts = " ".join(sorted(re.findall(r"\d+|\S", text)))
    return "eval" if hashlib.sha256(parts.encode()).digest()[0] % 10 == 0 else "train"


class _Expression:
    """An arithmetic expression, evaluated while it is read: `value` and the `steps` that lead to it."""

    def __init__(self, text: str):
        self.steps: list[str] = []
        self._text = text
        self._tokens = re.findall(r"\d+|\S", text)
        self.value = self._sum()
        if self._tokens:
            raise self._error()

    def _sum(self) -> int:
        value = self._product()
        while self._tokens and self._tokens[0] in "+-":
            value = self._step(value, self._tokens.pop(0), self._product())
        return value

    def _product(self) -> int:
        value = self._atom()
        while self._tokens and self._tokens[0] == "*":
            value = self._step(value, self._tokens.pop(0), self._atom())
        return value

    def _atom(self) -> int:
        token = self._tokens.pop(0) if self._tokens else ""
        if token.isdecimal():
            return int(token)
        if token != "(":
            raise self._error()
        value = self._sum()
        if not self._tokens or self._tokens.pop(0) != ")":
            raise self._error()
        return value

    def _step(self, left: int, operator: str, right: int) -> int:
        value = {"+": left + right, "-": left - right, "*": left * right}[operator]
        self.steps.append(f"{left} {operator} {right} = {value}")
        return value

    def _error(self) -> InputError:
        return InputError(f"cannot read the expression {self._text!r}; use integers, + - * and round brackets.")


# --- files ---


def read_problems(path: Path) -> list[Problem]:
    """The problems of a .json (a list) or .jsonl (a row a line) file: `problem` or `question`, and `answer`.

    A GSM8K answer is what follows `####`. `subject`, `level` (a number, or "Level 3") and `domain` are kept where
    they stand.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the data set {path} ({error}); give a UTF-8 .json or .jsonl file.") from None
    rows = _json_lines(path, text) if path.suffix == ".jsonl" else _json_list(path, text)
    problems = [_problem(where, row) for where, row in rows]
    if not problems:
        raise InputError(f"the data set {path} is empty; it needs at least one row with a problem and its answer.")
    return problems


def _json_lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"{path}, line {number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}, line {number} is no JSON ({error.msg}); mend or delete it.") from None


def _json_list(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno} is no JSON ({error.msg}); one row a line needs .jsonl."
        ) from None
    if not isinstance(rows, list):
        raise InputError(f"{path} holds no list; expected [{{'problem': ..., 'answer': ...}}, ...].")
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", row


def _problem(where: str, row: Any) -> Problem:
    if not isinstance(row, dict):
        raise InputError(f"{where} is no object; expected {{'problem': ..., 'answer': ...}}.")
    text = _field(where, row, "problem" if "problem" in row else "question")
    answer = _field(where, row, "answer").rpartition("####")[2].strip()
    level = re.search(r"\d+", str(row.get("level", "")))
    subject, domain = str(row.get("subject", "")), str(row.get("domain", "math"))
    return Problem(text, answer, subject, int(level.group()) if level else None, domain)


def _field(where: str, row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    text = value.strip() if isinstance(value, str) else str(value) if type(value) in (int, float) else ""
    if not text:
        wanted = "'problem' or 'question'" if name == "question" else repr(name)
        raise InputError(f"{where} has no text in {wanted}; its fields are {', '.join(row) or 'none'}.")
    return text


def _own_file(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.suffix in (".json", ".jsonl"):
        if not path.is_file():
            raise InputError(f"there is no data set file {path}; give a .json or .jsonl file that exists.")
        return path
    names = ", ".join(DATASETS)
    hint = did_you_mean(str(source), DATASETS)
    raise InputError(f"unknown data set {str(source)!r}; choose one of {names}, or a .json or .jsonl file.{hint}")


# --- published data sets ---


@dataclasses.dataclass(frozen=True)
class Published:
    """A file at a fixed commit of a public git repository, with the id git gives its content."""

    name: str
    url: str
    blob: str


_GITHUB = "https://raw.githubusercontent.com"
_GSM8K = f"{_GITHUB}/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
_MATH = f"{_GITHUB}/rasbt/math_full_minus_math500/1636438eae81f1a7179de613f1c4aa52782b3a18"
_MATH500 = f"{_GITHUB}/rasbt/reasoning-from-scratch/f79c9cd0ae7d824aa4e9a9bc2ca4a85167f81958/ch03/01_main-chapter-code"

PUBLISHED = {
    "gsm8k-train": Published("gsm8k-train.jsonl", f"{_GSM8K}/train.jsonl", "7d97154b91aef28d01c3301741c81ce90039a4b1"),
    "gsm8k-test": Published("gsm8k-test.jsonl", f"{_GSM8K}/test.jsonl", "e4c2ff4942b9a78bd74f04141224c11e28d12dc9"),
    "math": Published(
        "math-train.json", f"{_MATH}/math_full_minus_math500.json", "136896c0c87c9109ee19b74bcff7aca97e73faad"
    ),
    "math500": Published("math500.json", f"{_MATH500}/math500_test.json", "cadaa3de1675cbefbddfe4a9c216a9304d0a2ba3"),
}


def _published_name(source: str, split: str) -> str:
    if source == "gsm8k":
        return "gsm8k-train" if split == "train" else "gsm8k-test"
    return "math" if source == "math" and split == "train" else "math500"


def cache_folder() -> Path:
    """Where files are kept between runs: `$GRPOJAX_CACHE`, or `~/.cache/grpojax`; data sets in `datasets/`."""
    return Path(os.environ.get("GRPOJAX_CACHE") or "~/.cache/grpojax").expanduser()


def _cached(published: Published) -> Path:
    """The checked file in the cache; fetched first where it is missing, without any request where it is there."""
    path = cache_folder() / "datasets" / published.name
    part = path.with_suffix(path.suffix + ".part")
    if path.exists():
        if _blob_id(path) != published.blob:
            raise InputError(
                f"{path} is not the published file {published.url}; delete it to fetch it again, "
                f"or use it as it is with --dataset {path}."
            )
        return path
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        _download(published.url, part)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InputError(
            f"could not download {published.url} ({error}); run again to go on where it stopped, put that file at "
            f"{path} by hand, or give a file of your own with --dataset path.jsonl."
        ) from None
    if _blob_id(part) != published.blob:
        part.unlink()
        raise InputError(
            f"what came from {published.url} is not the published file, and was deleted; run again, "
            f"or put the right file at {path} by hand."
        )
    part.replace(path)
    return path


def _download(url: str, part: Path, timeout: float = 30.0) -> None:
    """Bring `part` to its full length, from where it ends.

    Raises:
      OSError: if the server cannot be reached, refuses, or the connection ends early; `part` keeps what came.
    """
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to fetch; the check of the content decides
            return
        raise
    with response, part.open("ab" if response.status == 206 else "wb") as file:
        left = int(response.headers["Content-Length"])
        while block := response.read(1 << 16):
            file.write(block)
            left -= len(block)
    if left:
        raise OSError(f"the connection ended {left} bytes early")


def _blob_id(path: Path) -> str:
    """The id git gives to the content of a file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def has_eval_split(source) -> bool:
    return str(source) in ("arithmetic", "gsm8k", "math")


def split_held_out(problems):
    held = lambda p: hashlib.sha256(" ".join(p.text.lower().split()).encode()).digest()[0] % 10 == 0
    return [p for p in problems if not held(p)], [p for p in problems if held(p)]
