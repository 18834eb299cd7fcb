"""Evaluations on disk and on paper: the file of results, its statistics, the report, and the comparison of two.

The unit is the problem: problems are what an evaluation draws from a larger world, and several answers to one problem
tell less about that world than answers to several. All shares are from 0 to 1; the report prints percent.
"""

import collections
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpojax.errors import InputError

Z95 = 1.959963984540054
"""The standard normal distribution has 95 % of its mass within this distance of 0."""

SUFFIX = {"boxed": "", "boxed-or-last-number": "_or_last_number"}
"""How an answer is found -> suffix of the fields of a row that tell what was found so."""

_FIELDS = ("problem", "gold", "extracted", "correct", "length", "truncated")


# --- statistics ---


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """The 95 % score interval of a share seen in `count` independent trials (of a number that need not be whole).

    >>> [round(bound, 4) for bound in wilson_interval(8 / 10, 10)]
    [0.4902, 0.9433]

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    z2 = Z95 * Z95
    center = share + z2 / (2 * count)
    reach = Z95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, (center - reach) / (1 + z2 / count)), min(1.0, (center + reach) / (1 + z2 / count))


def share_interval(shares: Sequence[float], trials: float = 1) -> tuple[float, float]:
    """The 95 % interval of a mean over problems, each of which has a share of its own, such as 3 of 8 answers right.

    It is Wilson's interval for an effective number of problems: n / r, where r compares the spread of the shares with
    the most they could have, that of problems answered all right or all wrong. For one answer a problem r is 1, and
    this is Wilson's interval itself. As few problems show their spread badly, r is taken with two more problems all
    right and two all wrong, the device of Agresti and Coull; so the interval of 0 right answers is that of n problems,
    however many samples each had.

    >>> [round(bound, 4) for bound in share_interval([1, 1, 1, 1, 1, 1, 1, 1, 0, 0])]
    [0.4902, 0.9433]

    Args:
      shares: one per problem, 0 to 1.
      trials: how many independent trials a share is made of; r is at least 1 / trials.

    Source: an effective sample size in Wilson's interval: Franco, Little, Louis, Slud, Comparative study of confidence
    intervals for proportions in complex sample surveys, J. Survey Stat. Methodol. 7 (2019). Two and two: Agresti,
    Coull, Approximate is better than "exact" for interval estimation of binomial proportions, Am. Stat. 52 (1998).
    """
    values = np.asarray(shares, float)
    mean = (values.sum() + 2) / (len(values) + 4)
    spread = (np.sum(values * values) + 2) / (len(values) + 4) - mean * mean
    ratio = max(spread / (mean * (1 - mean)), 1 / trials)
    return wilson_interval(float(values.mean()), len(values) / float(ratio))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The probability that of k answers drawn without repetition from `samples`, `correct` of them right, one is right.

    Over the draw of the samples its mean is the probability that one of k fresh answers is right; 1 - (1 - c/n)^k, the
    obvious estimate, falls short of that.

    >>> pass_at_k(4, 1, 2), 1 - (1 - 1 / 4) ** 2
    (0.5, 0.4375)

    Source: arXiv:2107.03374, eq. 1.
    """
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def majority_correct(same_as: Sequence[int | None], correct: Sequence[bool]) -> bool:
    """Whether the answer given most often is right; of equally frequent ones the first given counts.

    >>> majority_correct([0, 1, 1, None], [True, False, False, False])
    False

    Args:
      same_as: for each answer the place of the first equal one; None (no answer) has no vote.
      correct: for each answer.
    """
    votes = collections.Counter(place for place in same_as if place is not None)
    return bool(votes) and bool(correct[votes.most_common(1)[0][0]])


def paired_p_value(differences: Sequence[int]) -> float:
    """Two-sided p-value of the hypothesis that A and B answer each problem alike, so that each difference could as well
    have had the other sign: the share of all sign patterns whose sum is as far from 0 as the observed one. Exact.

    With one answer a problem, differences are -1, 0 and 1, and this is McNemar's exact test.

    >>> paired_p_value([1, 1, 1, 1, 1, -1, 0, 0])  # 2 (C(6,0) + C(6,1)) / 2^6
    0.21875

    Args:
      differences: right answers of B minus those of A, problem by problem.

    Source: R. A. Fisher, The design of experiments (1935), section 21; Q. McNemar, Psychometrika 12 (1947).
    """
    sizes = [abs(int(difference)) for difference in differences if difference]
    total, middle = sum(sizes), sum(sizes)
    chances = np.zeros(2 * total + 1)  # of each sum, from -total to total
    chances[middle] = 1.0
    for size in sizes:
        chances = 0.5 * (np.roll(chances, size) + np.roll(chances, -size))  # the ends are still 0: nothing goes around
    sums = np.arange(-total, total + 1)
    return min(1.0, float(chances[np.abs(sums) >= abs(sum(differences))].sum()))


def difference_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean of paired differences of shares, -1 to 1.

    It is the normal one with two more problems, whose differences have sum 0 and squared sum 1; so it has a width where
    all differences are equal, too.

    >>> [round(bound, 4) for bound in difference_interval([1, 1, 1, -1, 0, 0, 0, 0, 0, 0])]
    [-0.1862, 0.5195]

    Source: Agresti, Min, Simple improved confidence intervals for comparing matched proportions, Stat. Med. 24 (2005),
    where each difference is -1, 0 or 1.
    """
    values = np.asarray(differences, float)
    count = len(values) + 2
    mean = float(values.sum()) / count
    reach = Z95 * math.sqrt(((float(np.sum(values * values)) + 1) / count - mean * mean) / count)
    return max(-1.0, mean - reach), min(1.0, mean + reach)


# --- the report ---


def format_report(rows: Sequence[dict[str, Any]], extract: str = "boxed") -> str:
    """What an evaluation found, as a table.

    Args:
      rows: one per problem, as `answer_problems` yields and `read_results` reads them.
      extract: "boxed" or "boxed-or-last-number": the rule that comes first, and by which all but the second line count.
    """
    other = next(rule for rule in SUFFIX if rule != extract)
    suffix = SUFFIX[extract]
    correct = _column(rows, f"correct{suffix}")
    samples = len(correct[0])
    lines = [_share_line(f"accuracy, {extract}", correct)]
    if f"correct{SUFFIX[other]}" in rows[0]:
        lines.append(_share_line(f"accuracy, {other}", _column(rows, f"correct{SUFFIX[other]}")))
    for k in _powers_of_two(samples):
        shares = [pass_at_k(samples, sum(group), k) for group in correct]
        lines.append((f"pass@{k}", shares, samples / k, ""))
    if samples > 1:
        same_as = _column(rows, f"same_as{suffix}")
        right = [majority_correct(*pair) for pair in zip(same_as, correct, strict=True)]
        lines.append((f"majority of {samples}", right, 1, f"{sum(right)} of {len(rows)} problems"))
    for name in ("level", "subject"):
        values = sorted({row[name] for row in rows if row.get(name) not in (None, "")})
        for value in values if len(values) > 1 else ():
            group = [one for one, row in zip(correct, rows, strict=True) if row.get(name) == value]
            lines.append(_share_line(f"{name} {value}" if name == "level" else str(value), group))
    lengths = np.array(_column(rows, "length"))
    cut = 100 * np.mean(_column(rows, "truncated"))
    boxless = 100 * np.mean([[not answer for answer in group] for group in _column(rows, "extracted")])
    tail = (
        f"{lengths.mean():.1f} tokens on average, the longest answer {lengths.max()}; "
        f"{cut:.1f} % cut off, {boxless:.1f} % without an answer in a box"
    )
    return "\n".join([*_table(lines), tail])


def format_comparison(path_a: str | Path, path_b: str | Path, extract: str = "boxed") -> str:
    """Two evaluations of the same problems, side by side and problem by problem.

    Raises:
      InputError: a file cannot be read or is not finished, the problems or the numbers of samples differ, or the rows
        come from a version that did not grade by `extract`.
    """
    field = f"correct{SUFFIX[extract]}"
    paths = (path_a, path_b)
    named = [_by_problem(read_results(path, field)) for path in paths]
    if named[0].keys() != named[1].keys():
        raise InputError(_other_problems(paths, named))
    correct = [_column([rows[problem] for problem in named[0]], field) for rows in named]
    samples = [len(group[0]) for group in correct]
    if samples[0] != samples[1]:
        raise InputError(
            f"{path_a} has {_count(samples[0], 'answer')} a problem and {path_b} has {samples[1]}; "
            "evaluate both with the same --samples."
        )
    differences = [sum(b) - sum(a) for a, b in zip(*correct, strict=True)]
    low, high = difference_interval([difference / samples[0] for difference in differences])
    gain = 100 * sum(differences) / (samples[0] * len(differences))
    better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    test = "McNemar's exact test" if samples[0] == 1 else "exact sign-flip test over problems"
    named_shares = [
        _share_line(f"{letter}  {path}", group) for letter, path, group in zip("AB", paths, correct, strict=True)
    ]
    lines = [
        *_table(named_shares, f"accuracy, {extract}"),
        f"of {_count(len(differences), 'problem')} B is better on {better}, A on {worse}",
        f"B - A: {gain:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}",
        f"p {_p_value(paired_p_value(differences))} ({test})",
    ]
    settings = [_read_settings(path) for path in paths]
    differing = _differing(*(one | {"model": ""} for one in settings)) if all(settings) else []
    if differing:
        lines.append(f"they also differ in {', '.join(differing)}")
    return "\n".join(lines)


def _by_problem(rows: list[dict[str, Any]]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The rows by problem, right answer, and how often the two came before: no order of a file matters."""
    seen: collections.Counter = collections.Counter()
    named = {}
    for row in rows:
        problem = row["problem"], row["gold"]
        named[*problem, seen[problem]] = row
        seen[problem] += 1
    return named


def _other_problems(paths: Sequence[str | Path], named: Sequence[dict[tuple[str, str, int], Any]]) -> str:
    """What to say of two evaluations that cannot be paired."""
    only = next((i, problem) for i in (0, 1) for problem in named[i] if problem not in named[1 - i])
    text = only[1][0] if len(only[1][0]) <= 60 else only[1][0][:57] + "..."
    return (
        f"{paths[0]} and {paths[1]} are of different problems, {len(named[0])} and {len(named[1])}: {text!r} with the "
        f"answer {only[1][1]!r} is in {paths[only[0]]} alone; evaluate both on the same --dataset and --limit."
    )


def _share_line(label: str, correct: list[list[bool]]) -> tuple[str, list[float], float, str]:
    """Label, share of each problem, trials behind a share, and the counts in words."""
    samples = len(correct[0])
    counts = f"{sum(map(sum, correct))} of {samples * len(correct)}"
    if samples > 1:
        counts += f" answers, {_count(len(correct), 'problem')}"
    return label, [sum(group) / samples for group in correct], samples, counts


def _table(lines: list[tuple[str, list[float], float, str]], head: str = "") -> list[str]:
    """Lines as `_share_line` gives them, under a head, with their means and intervals in percent."""
    width = max(len(label) for label in [head, *(label for label, *_ in lines)])
    rows = [f"{head:{width}}      %   95 % interval"]
    for label, shares, trials, counts in lines:
        low, high = share_interval(shares, trials)
        interval = f"{100 * low:5.1f} to {100 * high:5.1f}"
        rows.append(f"{label:{width}}  {100 * np.mean(shares):5.1f}   {interval}   {counts}".rstrip())
    return rows


def _column(rows: Sequence[dict[str, Any]], name: str) -> list[list[Any]]:
    """A field of every row, as a list of the problem's answers."""
    return [row[name] if isinstance(row[name], list) else [row[name]] for row in rows]


def _powers_of_two(most: int) -> list[int]:
    """2, 4, 8, ... below `most`, and `most` itself; nothing for 1."""
    return [2**power for power in range(1, most.bit_length()) if 2**power < most] + [most] * (most > 1)


def _p_value(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.4f}" if p < 0.1 else f"= {p:.2f}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


# --- files ---


def settings_file(path: str | Path) -> Path:
    """Where the settings of a file of results stand: results.jsonl -> results.settings.json beside it."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(".jsonl") + ".settings.json")


def open_results(path: str | Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Start a file of results, or take up an interrupted one.

    Args:
      path: a .jsonl file. The folder is made if it is missing; what follows the last line end (a torn line) is removed.
      settings: everything that decides a row, and `problems`, how many there are; kept beside the file.

    Returns:
      The rows that are there already.

    Raises:
      InputError: the file was made otherwise, or cannot be read or written; nothing was changed.
    """
    path, beside = Path(path), settings_file(path)
    settings = json.loads(json.dumps(settings))  # as it will be read again
    if not beside.exists():
        if path.exists():
            raise InputError(
                f"{path} exists already, and no {beside.name} beside it says how it was made; choose another --out."
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(beside, json.dumps(settings, indent=2, ensure_ascii=False).encode() + b"\n")
            path.touch()
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}; choose another --out.") from None
        return []
    differing = _differing(_read_settings(path), settings)
    if differing:
        raise InputError(
            f"{path} was begun with another {', another '.join(differing)}; go on with the settings it was begun with, "
            "or choose another --out."
        )
    if not path.exists():
        path.touch()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    rows = _read_rows(path, whole, _FIELDS)
    places = [row.get("index") for row in rows]
    if len(set(places)) < len(places) or not set(places) <= set(range(settings["problems"])):
        raise InputError(f"{path} holds a problem twice or one that is not asked; choose another --out.")
    if whole != content:
        _replace(path, whole)
    return rows


def append_result(path: str | Path, row: dict[str, Any]) -> None:
    """Write one row; nothing waits in a buffer."""
    with Path(path).open("ab") as file:
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def finish_results(path: str | Path) -> None:
    """Put the rows of a finished file into the order of its problems: equal evaluations are equal files."""
    path = Path(path)
    lines = path.read_bytes().splitlines(keepends=True)
    ordered = sorted(lines, key=lambda line: json.loads(line)["index"])
    if ordered != lines:
        _replace(path, b"".join(ordered))


def read_results(path: str | Path, *fields: str) -> list[dict[str, Any]]:
    """The rows of a finished evaluation in the order of its problems.

    Args:
      path: what `grpojax eval --out` wrote, or an evals/step-*.jsonl of a run.
      fields: names the rows must have beyond the usual ones.

    Raises:
      InputError: the file is missing, damaged, no evaluation, or not finished.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror}); give a file that `grpojax eval --out` wrote, or one of a run's "
            "evals/step-*.jsonl."
        ) from None
    rows = _read_rows(path, content[: content.rfind(b"\n") + 1], (*_FIELDS, *fields))
    wanted = _read_settings(path).get("problems", len(rows))
    if len(rows) != wanted or not rows:
        raise InputError(
            f"{path} is not finished: it holds {len(rows)} of {_count(wanted, 'problem')}; run its command again."
        )
    return sorted(rows, key=lambda row: row.get("index", 0))


def _read_rows(path: Path, content: bytes, fields: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError:
            raise InputError(f"{path}, line {number} is no JSON; evaluate again with another --out.") from None
        missing = [name for name in fields if name not in row] if isinstance(row, dict) else fields
        if missing:
            raise InputError(
                f"{path}, line {number} has no {missing[0]!r}, so it is no row of an evaluation that tells it; "
                "give a file that `grpojax eval --out` wrote, or evaluate again."
            )
        rows.append(row)
    return rows


def _read_settings(path: str | Path) -> dict[str, Any]:
    """The settings beside a file of results; none for the evaluations of a run."""
    beside = settings_file(path)
    if not beside.exists():
        return {}
    try:
        settings = json.loads(beside.read_bytes())
    except ValueError:
        settings = None
    if not isinstance(settings, dict) or not isinstance(settings.get("problems"), int):
        raise InputError(f"{beside} holds no settings of an evaluation; evaluate again with another --out.")
    return settings


def _differing(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The settings that differ, each with its two values where these are short."""
    names = [name for name in then | now if then.get(name) != now.get(name)]
    values = [(json.dumps(then.get(name)), json.dumps(now.get(name))) for name in names]
    return [f"{name} ({a} -> {b})" if len(a + b) < 200 else name for name, (a, b) in zip(names, values, strict=True)]


def _replace(path: Path, content: bytes) -> None:
    """Write beside the file and rename, so that no half file ever carries its name."""
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(content)
    os.replace(aside, path)
