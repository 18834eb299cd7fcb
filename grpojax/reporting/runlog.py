"""Writing a run folder, so that a crash loses at most the current step and a resumed run keeps its history.

config.json     settings to repeat the run       evals/step-00010.jsonl  one row per problem
metrics.csv     one row per step                 evals/summary.jsonl     one row per evaluation
metrics.txt     the same for people to read      summary.json            the outcome
samples.jsonl   graded answers of some steps     checkpoints/, plots/    written elsewhere
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grpojax.errors import InputError, did_you_mean
from grpojax.files import append_text, complete_lines, json_lines, replace_file, write_json
from grpojax.records import METRIC_COLUMNS, Evaluation, StepRecord

_RUN_FILES = ("config.json", "metrics.csv", "metrics.txt", "samples.jsonl", "evals", "checkpoints", "summary.json")
_SUMMARY_FIELDS = (
    "step", "dataset", "accuracy", "correct", "total", "avg_response_len", "truncated_frac", "seconds",
)  # fmt: skip
_STEP_OF = {  # the step of a line, by the file's suffix
    ".csv": lambda line: 0 if line.startswith(b"step,") else int(line.split(b",")[0]),
    ".txt": lambda line: int(line.removeprefix(b"step").split(b"/")[0]),
    ".jsonl": lambda line: int(json.loads(line)["step"]),
}
_LINE_FIELDS = (  # word, column, decimals
    ("loss", "loss", 4),
    ("reward", "reward_avg", 3),
    ("correct", "correct_avg", 3),
    ("length", "avg_response_len", 1),
    ("entropy", "entropy_avg", 3),
    ("ratio", "policy_ratio", 3),
    ("grad_norm", "grad_norm", 3),
    ("tokens/s", "tokens_per_sec", 1),
    ("eval %", "eval_acc", 1),
)


@dataclasses.dataclass(frozen=True)
class RunLog:
    """The log of a run; see RunLog.create and RunLog.resume. Nothing is buffered, so there is nothing to close."""

    folder: Path
    samples_every: int = 10
    columns: tuple[str, ...] = METRIC_COLUMNS  # of metrics.csv

    @classmethod
    def create(
        cls, folder: str | Path, config: dict[str, Any], samples_every: int = 10, more_columns: tuple[str, ...] = ()
    ) -> "RunLog":
        """Starts a run: writes config.json and the header of metrics.csv.

        Args:
          samples_every: answers are written every this many steps, at step 1 and at the last step.
          more_columns: columns after METRIC_COLUMNS.

        Raises:
          InputError: if the folder contains a file of a run, or cannot be created; nothing was written.
        """
        folder = Path(folder)
        found = [name for name in _RUN_FILES if (folder / name).exists()]
        if found:
            raise InputError(f"{folder} already contains a run ({found[0]}); choose another --out or add --resume")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot create the run folder {folder}: {error.strerror}; choose another --out") from None
        log = cls(folder, samples_every, (*METRIC_COLUMNS, *more_columns))
        log.settings(config)
        replace_file(folder / "metrics.csv", _csv_line(log.columns).encode())
        return log

    @classmethod
    def resume(cls, folder: str | Path, step: int, samples_every: int = 10) -> "RunLog":
        """Continues a run after `step`. Records of later steps, which are repeated, and torn lines are removed.

        config.json, summary.json and checkpoints/ are not touched.

        Raises:
          InputError: if the folder contains no run, other columns, or a line that cannot be read; nothing was changed.
        """
        folder = Path(folder)
        metrics = folder / "metrics.csv"
        if not metrics.exists():
            raise InputError(f"{folder} contains no run to resume (no metrics.csv); check --out, or omit --resume")
        growing = (metrics, folder / "metrics.txt", folder / "samples.jsonl", folder / "evals" / "summary.jsonl")
        kept = {path: _lines_until(path, step) for path in growing if path.exists()}
        columns = tuple(next(csv.reader(kept[metrics].decode().splitlines()), ()))
        if columns[: len(METRIC_COLUMNS)] != METRIC_COLUMNS:
            raise InputError(
                f"{metrics} has different columns from those this version writes; start a new run with another --out"
            )
        for path, content in kept.items():
            replace_file(path, content)
        for path in folder.glob("evals/step-*.jsonl"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        return cls(folder, samples_every, columns)

    def settings(self, config: dict[str, Any]) -> None:
        """Writes config.json."""
        write_json(self.folder / "config.json", config)

    def append(self, record: StepRecord) -> None:
        """Writes one step: its evaluation if any, its samples if due, its line of metrics.txt, its row of metrics.csv.

        None becomes an empty cell; NaN and inf are written as such.

        Raises:
          ValueError: if a metric is not a column of this run.
        """
        values = _values(record, self.columns)
        if record.evaluation is not None:
            self.evaluation(record.evaluation)
        if record.step % self.samples_every == 0 or record.step in (1, record.total_steps):
            rows = [{"step": record.step, **dataclasses.asdict(sample)} for sample in record.samples]
            append_text(self.folder / "samples.jsonl", json_lines(rows))
        append_text(self.folder / "metrics.txt", format_line(record) + "\n")
        append_text(self.folder / "metrics.csv", _csv_line(_cell(values[name]) for name in self.columns))

    def evaluation(self, evaluation: Evaluation) -> None:
        """Writes evals/step-<step>.jsonl, one row per problem, and a row of evals/summary.jsonl."""
        evals = self.folder / "evals"
        evals.mkdir(exist_ok=True)
        rows = json_lines(row.to_json() for row in evaluation.rows)
        replace_file(evals / f"step-{evaluation.step:05d}.jsonl", rows.encode())
        summary = {name: getattr(evaluation, name) for name in _SUMMARY_FIELDS}
        if evaluation.correct_or_last_number is not None:
            summary["accuracy_or_last_number"] = 100.0 * evaluation.correct_or_last_number / evaluation.total
        append_text(evals / "summary.jsonl", json_lines([summary]))

    def summary(self, outcome: dict[str, Any]) -> None:
        """Writes summary.json."""
        write_json(self.folder / "summary.json", outcome)


def format_line(record: StepRecord) -> str:
    """One step as a line of text; '-' stands for values that do not apply.

    >>> format_line(StepRecord(7, 200, {"loss": -0.25, "reward_avg": 0.5, "policy_ratio": None}, []))[:70]
    'step   7/200  loss -0.2500  reward 0.500    correct -        length - '
    """
    values = _values(record, (*METRIC_COLUMNS, *record.metrics))
    width = len(str(record.total_steps))
    fields = [f"{word} {format_number(values[column], decimals):<8}" for word, column, decimals in _LINE_FIELDS]
    return " ".join([f"step {record.step:>{width}}/{record.total_steps} ", *fields]).rstrip()


def format_evaluation(evaluation: Evaluation) -> str:
    """One evaluation as a line of text.

    >>> format_evaluation(Evaluation(10, "arithmetic", 3, 8, 20.5, 0.25, 1.5, []))
    'evaluation after step 10: 37.5 % (3 of 8 of arithmetic), 20.5 tokens on average, 25 % cut off, 1.5 s'
    >>> format_evaluation(Evaluation(10, "arithmetic", 3, 8, 20.5, 0.25, 1.5, [], correct_or_last_number=4))[26:96]
    '37.5 % (3 of 8 of arithmetic; 4 if a last number counts without a box)'
    """
    or_last_number = evaluation.correct_or_last_number
    more = "" if or_last_number is None else f"; {or_last_number} if a last number counts without a box"
    return (
        f"evaluation after step {evaluation.step}: {evaluation.accuracy:.1f} % "
        f"({evaluation.correct} of {evaluation.total} of {evaluation.dataset}{more}), "
        f"{evaluation.avg_response_len:.1f} tokens on average, {100 * evaluation.truncated_frac:.0f} % cut off, "
        f"{evaluation.seconds:.1f} s"
    )


def format_number(value: float | None, decimals: int) -> str:
    """A number with fixed decimals, or with an exponent if it is too small or too large for that.

    >>> [format_number(value, 3) for value in (0.5, None, math.nan, -2e-7, 3e9)]
    ['0.500', '-', 'nan', '-2.0e-07', '3.0e+09']
    """
    if value is None:
        return "-"
    size = abs(value)
    if math.isfinite(size) and size != 0 and not 10**-decimals <= size < 1e6:
        return f"{value:.1e}"
    return f"{value + 0.0:.{decimals}f}"  # + 0.0 turns -0.0 into 0.0


def _values(record: StepRecord, columns: Sequence[str]) -> dict[str, float | None]:
    """The value of each column; None if the record has none."""
    unknown = sorted(set(record.metrics) - set(columns))
    if unknown:
        hint = did_you_mean(unknown[0], columns)
        raise ValueError(f"{unknown[0]!r} is not a column of metrics.csv; add it to METRIC_COLUMNS.{hint}")
    values = dict.fromkeys(columns) | record.metrics
    values |= {"step": record.step, "total_steps": record.total_steps}
    if record.evaluation is not None:
        values["eval_acc"] = record.evaluation.accuracy
    return values


def _csv_line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None else f"{float(value):.9g}"  # 9 digits distinguish any two float32 values


def _lines_until(path: Path, step: int) -> bytes:
    """The complete lines of a file up to a step."""
    kept = []
    for number, line in enumerate(complete_lines(path), start=1):
        try:
            if _STEP_OF[path.suffix](line) <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}, line {number} cannot be read; fix or delete the line, or start a new run with another --out"
            ) from None
    return b"".join(kept)
