"""Problems with their answers: generated arithmetic, published data sets, or a user's own file."""

import dataclasses
import hashlib
import http.client
import json
import operator
import os
import random
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

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
    if source in _SPLIT_FILES:
        path = _downloaded(PUBLISHED[_SPLIT_FILES[source][split == "eval"]])
    else:
        path = Path(source).expanduser()
        if path.suffix not in (".json", ".jsonl"):
            raise InputError(
                f"unknown data set {str(source)!r}; choose one of {', '.join(DATASETS)}, or a .json or .jsonl file."
                f"{did_you_mean(str(source), DATASETS)}"
            )
        if not path.is_file():
            raise InputError(f"the data set file {path} does not exist; give a .json or .jsonl file.")
    return read_problems(path)[:limit]


def has_eval_split(source: str | Path) -> bool:
    """Whether the "eval" split of a data set has other problems than its "train" split.

    Where it has none, `split_held_out` sets problems aside for evaluation.

    >>> [has_eval_split(source) for source in ("gsm8k", "math500", "my_problems.jsonl")]
    [True, False, False]
    """
    train, evaluation = _SPLIT_FILES.get(source, ("", ""))
    return source == "arithmetic" or train != evaluation


def split_held_out(problems: Sequence[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Splits problems into a training part and a held-out part of about one problem in ten.

    A hash of the problem's text decides, ignoring case and white space: neither the order of the problems matters nor
    duplicates.

    >>> train, held_out = split_held_out([Problem(f"{n} + 1", str(n + 1)) for n in range(1000)])
    >>> len(train), len(held_out)
    (910, 90)
    """
    parts: tuple[list[Problem], list[Problem]] = ([], [])
    for problem in problems:
        parts[_is_held_out(" ".join(problem.text.casefold().split()))].append(problem)
    return parts


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
    levels = list(_LEVELS)
    problems: dict[str, Problem] = {}
    while len(problems) < count and levels:
        for level in tuple(levels):
            for _ in range(1000):
                text = _draw(level, rng)
                if text not in problems and _arithmetic_split(text) == split:
                    answer = worked_steps(text)[-1].rpartition(" = ")[2]
                    problems[text] = Problem(text, answer, "arithmetic", level)
                    break
            else:
                levels.remove(level)
    return list(problems.values())[:count]


def worked_steps(text: str) -> list[str]:
    """Evaluates an arithmetic expression step by step: products before sums, each from left to right.

    >>> worked_steps("12 + 3 * 4")
    ['3 * 4 = 12', '12 + 12 = 24']

    Raises:
      InputError: if the text is not made of integers, + - * and parentheses.
    """
    steps: list[str] = []
    tokens = [*re.findall(r"\d+|\S", text), ""]  # "" is the end

    def value(rank: int) -> int:
        if rank == len(_OPERATIONS):
            token = tokens.pop(0)
            if token == "(":
                return sum_until(")")
            return int(token) if token.isdecimal() else refuse()
        left = value(rank + 1)
        while tokens[0] in _OPERATIONS[rank]:
            sign = tokens.pop(0)
            right = value(rank + 1)
            result = _OPERATIONS[rank][sign](left, right)
            steps.append(f"{left} {sign} {right} = {result}")
            left = result
        return left

    def sum_until(end: str) -> int:
        number = value(0)
        return number if tokens.pop(0) == end else refuse()

    def refuse() -> NoReturn:
        raise InputError(f"cannot read the expression {text!r}; use integers, + - * and parentheses.")

    sum_until("")
    return steps


_OPERATIONS = ({"+": operator.add, "-": operator.sub}, {"*": operator.mul})  # by rank
_LEVELS = {
    1: "1..99 ? 1..99",
    2: "11..99 * 2..9",
    3: "1..99 ? 1..99 ? 1..99",
    4: "1..99 ? 2..19 * 2..9",
    5: "(1..20 ? 1..20) * 2..9 ? 1..99",
}
"""Problems by level: a..b stands for a number from a to b, and ? for + or -."""


def _draw(level: int, rng: random.Random) -> str:
    """A problem of a level; the factors of level 2 come in either order."""

    def part(match: re.Match) -> str:
        return rng.choice("+-") if match[0] == "?" else str(rng.randint(int(match[1]), int(match[2])))

    text = re.sub(r"(\d+)\.\.(\d+)|\?", part, _LEVELS[level])
    if level == 2:
        factors = text.split(" * ")
        rng.shuffle(factors)
        text = " * ".join(factors)
    return text


def _arithmetic_split(text: str) -> str:
    """The split of a problem; reordering its numbers and signs does not change it."""
    return "eval" if _is_held_out(" ".join(sorted(re.findall(r"\d+|\S", text)))) else "train"


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


_SPLIT_FILES = {"gsm8k": ("gsm8k-train", "gsm8k-test"), "math": ("math", "math500"), "math500": ("math500", "math500")}
"""The training and the evaluation problems of a published data set, by name in `PUBLISHED`."""


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
