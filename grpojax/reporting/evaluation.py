"""Evaluation results: statistics, the report, the comparison of two evaluations, and the results file.

The statistical unit is the problem: several answers to one problem say less about the population of problems than one
answer to each of several problems. Scores are fractions from 0 to 1; the report prints percent.
"""

import collections
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grpojax.errors import InputError
from grpojax.files import append_text, complete_lines, json_lines, read_json_lines, replace_file, write_json
from grpojax.records import EvalRow

Z95 = 1.959963984540054
"""95 % of the standard normal distribution is within this distance of 0."""

SUFFIX = {"boxed": "", "boxed-or-last-number": "_or_last_number"}
"""The rule that finds an answer -> suffix of the fields of `EvalRow` that belong to it."""

_REQUIRED = ("problem", "gold", "text", "extracted", "correct", "length", "truncated")


# --- statistics ---


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """The 95 % Wilson score interval of a proportion.

    >>> [round(bound, 4) for bound in wilson_interval(8 / 10, 10)]
    [0.4902, 0.9433]

    Args:
      share: the observed proportion, 0 to 1.
      count: the number of independent trials; it need not be an integer.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).
    """
    z2 = Z95 * Z95
    center, scale = share + z2 / (2 * count), 1 + z2 / count
    reach = Z95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, (center - reach) / scale), min(1.0, (center + reach) / scale)


def share_interval(shares: Sequence[float], trials: float = 1) -> tuple[float, float]:
    """The 95 % interval of the mean over problems of a fraction per problem, such as 3 of 8 answers correct.

    This is Wilson's interval for an effective number of problems n / r. r is the variance of the fractions divided by
    its maximum, the variance if each problem had only correct or only wrong answers. It is computed with four more
    problems, two all correct and two all wrong, because few problems estimate a variance badly.

    >>> [round(bound, 4) for bound in share_interval([1, 1, 1, 1, 1, 1, 1, 1, 0, 0])]
    [0.4902, 0.9433]

    Args:
      shares: the fraction of each problem, 0 to 1.
      trials: the number of independent trials behind each fraction; r is at least 1 / trials.

    Source: effective sample size in Wilson's interval: Franco, Little, Louis, Slud, Comparative study of confidence
    intervals for proportions in complex sample surveys, J. Survey Stat. Methodol. 7 (2019). Added problems: Agresti,
    Coull, Approximate is better than "exact" for interval estimation of binomial proportions, Am. Stat. 52 (1998).
    """
    values = np.asarray(shares, float)
    mean = (values.sum() + 2) / (len(values) + 4)
    spread = (np.sum(values * values) + 2) / (len(values) + 4) - mean * mean
    ratio = max(spread / (mean * (1 - mean)), 1 / trials)
    return wilson_interval(float(values.mean()), len(values) / float(ratio))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The probability that at least one of k answers, drawn without replacement from all samples, is correct.

    It estimates without bias whether one of k new answers is correct; the simpler 1 - (1 - c/n)^k is too low.

    >>> pass_at_k(4, 1, 2), 1 - (1 - 1 / 4) ** 2
    (0.5, 0.4375)

    Source: arXiv:2107.03374, eq. 1.
    """
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def majority_correct(same_as: Sequence[int | None], correct: Sequence[bool]) -> bool:
    """Whether the most frequent answer is correct; ties go to the answer that came first.

    >>> majority_correct([0, 1, 1, None], [True, False, False, False])
    False

    Args:
      same_as: for each answer the index of the first equal one; None (no answer) has no vote.
      correct: whether each answer is correct.
    """
    votes = collections.Counter(index for index in same_as if index is not None)
    return bool(votes) and bool(correct[votes.most_common(1)[0][0]])


def paired_p_value(differences: Sequence[int]) -> float:
    """The two-sided p-value of the exact sign-flip test.

    p is the fraction of sign patterns of the differences whose sum is at least as far from 0 as the observed sum: if A
    and B were equally good, all were as likely. With one answer per problem this is McNemar's exact test.

    >>> paired_p_value([1, 1, 1, 1, 1, -1, 0, 0])  # 2 (C(6,0) + C(6,1)) / 2^6
    0.21875

    Args:
      differences: for each problem, correct answers of B minus correct answers of A.

    Source: R. A. Fisher, The design of experiments (1935), section 21; Q. McNemar, Psychometrika 12 (1947).
    """
    sizes = [abs(int(difference)) for difference in differences if difference]
    total = sum(sizes)
    probabilities = np.zeros(2 * total + 1)  # of each sum from -total to total
    probabilities[total] = 1.0
    for size in sizes:
        # Only zeros wrap around: the sum of the sizes so far is below the total.
        probabilities = 0.5 * (np.roll(probabilities, size) + np.roll(probabilities, -size))
    sums = np.arange(-total, total + 1)
    return min(1.0, float(probabilities[np.abs(sums) >= abs(sum(differences))].sum()))


def difference_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences, -1 to 1.

    This is the normal interval with two more problems whose differences have sum 0 and sum of squares 1.

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


class _Line(NamedTuple):
    """A line of a table of scores."""

    label: str
    shares: list[float]  # the score of each problem, 0 to 1
    trials: float  # independent trials behind each score
    counts: str = ""


def format_report(rows: Sequence[EvalRow], extract: str = "boxed") -> str:
    """The results of an evaluation as a table.

    Args:
      rows: one per problem, as yielded by `answer_problems` and returned by `read_results`.
      extract: "boxed" or "boxed-or-last-number": the rule of the first line. All lines but the second follow it.
    """
    correct = _field(rows, "correct", extract)
    samples = len(correct[0])
    rules = [extract, *(rule for rule in SUFFIX if rule != extract and _field(rows, "correct", rule)[0] is not None)]
    lines = [_accuracy_line(f"accuracy, {rule}", _field(rows, "correct", rule)) for rule in rules]
    for k in sorted({*(2**power for power in range(1, samples.bit_length())), samples} - {1}):
        lines.append(_Line(f"pass@{k}", [pass_at_k(samples, sum(group), k) for group in correct], samples / k))
    if samples > 1:
        same_as = _field(rows, "same_as", extract)
        majority = [majority_correct(*pair) for pair in zip(same_as, correct, strict=True)]
        lines.append(_Line(f"majority of {samples}", majority, 1, f"{sum(majority)} of {_count(len(rows), 'problem')}"))
    for name, prefix in (("level", "level "), ("subject", "")):
        groups = collections.defaultdict(list)
        for row, group in zip(rows, correct, strict=True):
            if getattr(row, name) not in (None, ""):
                groups[getattr(row, name)].append(group)
        if len(groups) > 1:
            lines += [_accuracy_line(f"{prefix}{value}", groups[value]) for value in sorted(groups)]
    lengths = np.array([row.length for row in rows])
    truncated = 100 * np.mean([row.truncated for row in rows])
    no_box = 100 * np.mean([[not answer for answer in row.extracted] for row in rows])
    tail = (
        f"{lengths.mean():.1f} tokens on average, the longest answer {lengths.max()}; "
        f"{truncated:.1f} % cut off, {no_box:.1f} % without an answer in a box"
    )
    return "\n".join([*_table(lines), tail])


def format_comparison(path_a: str | Path, path_b: str | Path, extract: str = "boxed") -> str:
    """A paired comparison of two evaluations of the same problems.

    Raises:
      InputError: if a file cannot be read or is not finished, if the problems or the numbers of samples differ, or if a
        file was not graded by the rule `extract`.
    """
    paths = (path_a, path_b)
    by_problem = [_by_problem(read_results(path, f"correct{SUFFIX[extract]}")) for path in paths]
    for path, one, other in zip(paths, by_problem, reversed(by_problem), strict=True):
        alone = [key for key in one if key not in other]
        if alone:
            text, gold, _ = alone[0]
            text = text if len(text) <= 60 else text[:57] + "..."
            raise InputError(
                f"{path_a} and {path_b} have different problems ({len(by_problem[0])} and {len(by_problem[1])}): only "
                f"{path} has {text!r} with the answer {gold!r}; evaluate both on the same --dataset and --limit."
            )
    correct = [_field([rows[problem] for problem in by_problem[0]], "correct", extract) for rows in by_problem]
    samples, samples_b = (len(group[0]) for group in correct)
    if samples != samples_b:
        raise InputError(
            f"{path_a} has {_count(samples, 'answer')} per problem and {path_b} has {samples_b}; "
            "evaluate both with the same --samples."
        )
    differences = [sum(b) - sum(a) for a, b in zip(*correct, strict=True)]
    low, high = difference_interval([difference / samples for difference in differences])
    gain = 100 * sum(differences) / (samples * len(differences))
    better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    test = "McNemar's exact test" if samples == 1 else "exact sign-flip test over problems"
    p = paired_p_value(differences)
    p_text = "< 0.0001" if p < 0.0001 else f"= {p:.4f}" if p < 0.1 else f"= {p:.2f}"
    accuracies = [_accuracy_line(f"A  {path_a}", correct[0]), _accuracy_line(f"B  {path_b}", correct[1])]
    lines = [
        *_table(accuracies, f"accuracy, {extract}"),
        f"of {_count(len(differences), 'problem')} B is better on {better}, A on {worse}",
        f"B - A: {gain:+.1f} points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}",
        f"p {p_text} ({test})",
    ]
    settings = [_read_settings(path) for path in paths]
    differing = _differing(*(one | {"model": ""} for one in settings)) if all(settings) else []
    if differing:
        lines.append(f"they also differ in {', '.join(differing)}")
    return "\n".join(lines)


def _by_problem(rows: list[EvalRow]) -> dict[tuple[str, str, int], EvalRow]:
    """Rows keyed by problem, correct answer, and the number of earlier rows with the same two."""
    seen: collections.Counter = collections.Counter()
    keyed = {}
    for row in rows:
        problem = row.problem, row.gold
        keyed[*problem, seen[problem]] = row
        seen[problem] += 1
    return keyed


def _accuracy_line(label: str, correct: list[list[bool]]) -> _Line:
    samples = len(correct[0])
    counts = f"{sum(map(sum, correct))} of {samples * len(correct)}"
    if samples > 1:
        counts += f" answers, {_count(len(correct), 'problem')}"
    return _Line(label, [sum(group) / samples for group in correct], samples, counts)


def _table(lines: list[_Line], heading: str = "") -> list[str]:
    """Means and intervals in percent, below a line of headings."""
    width = max(len(heading), *(len(line.label) for line in lines))
    table = [f"{heading:{width}}      %   95 % interval"]
    for label, shares, trials, counts in lines:
        low, high = share_interval(shares, trials)
        interval = f"{100 * low:5.1f} to {100 * high:5.1f}"
        table.append(f"{label:{width}}  {100 * np.mean(shares):5.1f}   {interval}   {counts}".rstrip())
    return table


def _field(rows: Sequence[EvalRow], name: str, extract: str) -> list[Any]:
    """A field of every row by one of the rules."""
    return [getattr(row, name + SUFFIX[extract]) for row in rows]


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


# --- files ---


def settings_file(path: str | Path) -> Path:
    """The file with the settings of a results file: results.jsonl -> results.settings.json."""
    path = Path(path)
    return path.with_name(path.name.removesuffix(".jsonl") + ".settings.json")


def open_results(path: str | Path, settings: dict[str, Any]) -> list[EvalRow]:
    """Creates a results file, or opens that of an interrupted evaluation.

    Args:
      path: a .jsonl file; missing folders are created, and a last line torn by a crash is removed.
      settings: everything that affects the rows, and `problems`, their number; written to a file next to the results.

    Returns:
      The rows that are in the file already.

    Raises:
      InputError: if the file was made with other settings, or cannot be read or written; nothing was changed.
    """
    path, beside = Path(path), settings_file(path)
    settings = json.loads(json.dumps(settings))  # as they are read back
    if not beside.exists():
        if path.exists():
            raise InputError(
                f"{path} exists already, and there is no {beside.name} with its settings; choose another --out."
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(beside, settings)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}; choose another --out.") from None
    differing = _differing(_read_settings(path), settings)
    if differing:
        raise InputError(
            f"{path} was started with other settings: {', '.join(differing)}; use the same settings, or choose "
            "another --out."
        )
    path.touch()
    rows = _read_rows(path)
    indices = [row.index for row in rows]
    if len(set(indices)) < len(indices) or not set(indices) <= set(range(settings["problems"])):
        raise InputError(f"{path} has a row twice or a row of another evaluation; choose another --out.")
    replace_file(path, b"".join(complete_lines(path)))
    return rows


def append_result(path: str | Path, row: EvalRow) -> None:
    """Appends a row to a results file."""
    append_text(Path(path), json_lines([row.to_json()]))


def finish_results(path: str | Path) -> None:
    """Sorts the rows by problem, so that equal evaluations are equal files."""
    lines = sorted(complete_lines(Path(path)), key=lambda line: json.loads(line)["index"])
    replace_file(Path(path), b"".join(lines))


def read_results(path: str | Path, *fields: str) -> list[EvalRow]:
    """The rows of a finished evaluation, in the order of its problems.

    Args:
      path: a file written by `grpojax eval --out`, or an evals/step-*.jsonl of a run.
      fields: what the rows must have besides the required fields.

    Raises:
      InputError: if the file is missing, damaged, not finished, or not a results file.
    """
    path = Path(path)
    try:
        rows = _read_rows(path, fields)
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror}); give a file that `grpojax eval --out` wrote, or one of a run's "
            "evals/step-*.jsonl."
        ) from None
    expected = _read_settings(path).get("problems", len(rows))
    if len(rows) != expected or not rows:
        of = _count(expected, "problem")
        raise InputError(f"{path} is not finished: it has {len(rows)} of {of}; run its command again.")
    return sorted(rows, key=lambda row: row.index)


def _read_rows(path: Path, fields: Sequence[str] = ()) -> list[EvalRow]:
    rows = []
    for where, row in read_json_lines(path):
        for name in (*_REQUIRED, *fields):
            if not isinstance(row, dict) or name not in row:
                raise InputError(
                    f"{where} has no {name!r}; give a file that `grpojax eval --out` wrote, or evaluate again."
                )
        rows.append(EvalRow.from_json(row))
    return rows


def _read_settings(path: str | Path) -> dict[str, Any]:
    """The settings of a results file; empty for the evaluations of a run."""
    beside = settings_file(path)
    if not beside.exists():
        return {}
    try:
        settings = json.loads(beside.read_bytes())
        valid = isinstance(settings["problems"], int)
    except (ValueError, KeyError, TypeError):
        valid = False
    if not valid:
        raise InputError(f"{beside} has no settings of an evaluation; evaluate again with another --out.")
    return settings


def _differing(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The settings that differ, with both values if they are short."""
    names = [name for name in old | new if old.get(name) != new.get(name)]
    values = [(json.dumps(old.get(name)), json.dumps(new.get(name))) for name in names]
    return [f"{name} ({a} -> {b})" if len(a + b) < 200 else name for name, (a, b) in zip(names, values, strict=True)]
