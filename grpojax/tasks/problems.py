"""Problems with their answers: generated arithmetic, published data sets, or a user's own file."""

import dataclasses
import hashlib
import http.client
import json
import os
import random
import re
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpojax.errors import InputError, did_you_mean
from grpojax.files import read_json_lines, replace_file


@dataclasses.dataclass(frozen=True)
class Problem:
    """A question and its correct answer."""

    text: str
    answer: str
    subject: str = ""
    level: int | None = None  # difficulty, from 1; None if unknown
    domain: str = "math"  # a variant can weight its KL term by domain


SPLITS = ("train", "eval")
DATASETS = ("arithmetic", "gsm8k", "math", "math500")
ARITHMETIC_COUNT = {"train": 4096, "eval": 200}


def load_problems(source: str | Path, split: str, seed: int = 0, limit: int | None = None) -> list[Problem]:
    """The problems of a data set or a file, in a fixed order.

    Args:
      source: "arithmetic" (generated), "gsm8k", "math" (12,000 problems; its eval split is "math500"), "math500" (the
        same 500 problems for both splits), or a .json or .jsonl file (the same rows for both splits).
      split: "train" or "eval".
      seed: selects the arithmetic problems and their order; other sources keep the order of the file.
      limit: return only the first `limit` problems; for arithmetic, how many to generate (default: 4096 and 200).

    Raises:
      InputError: for an unknown source or split, an unusable or empty file, or a failed download.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}.")
    if limit is not None and limit < 1:
        raise InputError(f"the number of problems must be at least 1, not {limit}.")
    if source == "arithmetic":
        return arithmetic_problems(seed, limit or ARITHMETIC_COUNT[split], split)
    if source in DATASETS:
        path = _downloaded(PUBLISHED[_published_name(str(source), split)])
    else:
        path = _own_file(source)
    return read_problems(path)[:limit]


def has_eval_split(source: str | Path) -> bool:
    """Whether the "eval" split of a data set has other problems than its "train" split.

    Where it has none, `split_held_out` sets problems aside for evaluation.

    >>> [has_eval_split(source) for source in ("gsm8k", "math500", "my_problems.jsonl")]
    [True, False, False]
    """
    return source in ("arithmetic", "gsm8k", "math")


def split_held_out(problems: Sequence[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Splits problems into a training part and a held-out part of about one problem in ten.

    A hash of the problem's text decides, ignoring case and white space. So the split does not depend on the order of
    the problems, and problems with the same text are on the same side.

    >>> train, held_out = split_held_out([Problem(f"{n} + 1", str(n + 1)) for n in range(1000)])
    >>> len(train), len(held_out)
    (910, 90)
    """
    train: list[Problem] = []
    held_out: list[Problem] = []
    for problem in problems:
        (held_out if _is_held_out(" ".join(problem.text.casefold().split())) else train).append(problem)
    return train, held_out


def _is_held_out(text: str) -> bool:
    """True for about one text in ten."""
    return hashlib.sha256(text.encode()).digest()[0] % 10 == 0


# --- arithmetic ---


def arithmetic_problems(seed: int, count: int, split: str) -> list[Problem]:
    """Generates distinct problems, cycling through levels 1 to 5. A shorter list is a prefix of a longer one.

    The text of a problem decides its split, whatever the seed and the order of its numbers, so the splits share no
    problem. When a level runs out of problems, the other levels continue.

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
    """Evaluates an arithmetic expression step by step: products before sums, each from left to right.

    >>> worked_steps("12 + 3 * 4")
    ['3 * 4 = 12', '12 + 12 = 24']

    Raises:
      InputError: if the text is not made of integers, + - * and parentheses.
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
    """Draws a problem of the split that is not in `seen`; None after 1000 failed draws."""
    for _ in range(1000):
        text = draw(rng)
        if text not in seen and _arithmetic_split(text) == split:
            return text
    return None


def _arithmetic_split(text: str) -> str:
    """The split of a problem; reordering its numbers and signs does not change it."""
    return "eval" if _is_held_out(" ".join(sorted(re.findall(r"\d+|\S", text)))) else "train"


class _Expression:
    """An arithmetic expression, evaluated while it is parsed: its `value` and the `steps` that lead to it."""

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
        return InputError(f"cannot read the expression {self._text!r}; use integers, + - * and parentheses.")


# --- files ---


def read_problems(path: Path) -> list[Problem]:
    """Reads a .jsonl file (one row per line) or a .json file (a list of rows).

    A row has `problem` or `question`, and `answer`; for GSM8K the answer is the text after `####`. `subject`, `level`
    (a number, or "Level 3") and `domain` are optional.
    """
    try:
        rows = read_json_lines(path, complete_only=False) if path.suffix == ".jsonl" else _read_json_list(path)
        problems = [_problem(where, row) for where, row in rows]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the data set {path} ({error}); give a UTF-8 .json or .jsonl file.") from None
    if not problems:
        raise InputError(f"the data set {path} is empty; it needs at least one row with a problem and its answer.")
    return problems


def _read_json_list(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {error.lineno} is not valid JSON ({error.msg}); "
            "a file with one row per line needs the suffix .jsonl."
        ) from None
    if not isinstance(rows, list):
        raise InputError(f"{path} is not a JSON list; expected [{{'problem': ..., 'answer': ...}}, ...].")
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", row


def _problem(where: str, row: Any) -> Problem:
    if not isinstance(row, dict):
        raise InputError(f"{where} is not a JSON object; expected {{'problem': ..., 'answer': ...}}.")
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
        raise InputError(f"{where} needs text in {wanted}; its fields are {', '.join(row) or 'none'}.")
    return text


def _own_file(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.suffix in (".json", ".jsonl"):
        if not path.is_file():
            raise InputError(f"the data set file {path} does not exist; give a .json or .jsonl file.")
        return path
    names = ", ".join(DATASETS)
    hint = did_you_mean(str(source), DATASETS)
    raise InputError(f"unknown data set {str(source)!r}; choose one of {names}, or a .json or .jsonl file.{hint}")


# --- published data sets ---


@dataclasses.dataclass(frozen=True)
class Published:
    """A file at a fixed commit of a public git repository."""

    name: str  # in the cache
    url: str
    blob: str  # the git object id of the content


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
    """The folder for files that later runs use again: `$GRPOJAX_CACHE`, or `~/.cache/grpojax`."""
    return Path(os.environ.get("GRPOJAX_CACHE") or "~/.cache/grpojax").expanduser()


def _downloaded(published: Published) -> Path:
    """The path of a published file in the cache. Downloads it if it is missing, and checks its content each time."""
    path = cache_folder() / "datasets" / published.name
    if path.exists():
        if _blob_id(path.read_bytes()) != published.blob:
            raise InputError(
                f"{path} differs from the published file {published.url}; delete it to download it again, "
                f"or use it as it is with --dataset {path}."
            )
        return path
    try:
        with urllib.request.urlopen(published.url, timeout=30) as response:
            content = response.read()
        if _blob_id(content) != published.blob:
            raise OSError("the content differs from the published file")
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"could not download {published.url} ({error}); run again, save the file as {path} yourself, "
            "or use your own file with --dataset path.jsonl."
        ) from None
    return path


def _blob_id(content: bytes) -> str:
    """The id of the content as a git object."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
