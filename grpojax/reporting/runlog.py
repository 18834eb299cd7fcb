"""Writing a run folder, so that a crash loses at most the step under way and a resumed run keeps its history.

config.json     what repeats the run          evals/step-00010.jsonl  one row per problem
metrics.csv     one row a step                  evals/summary.jsonl     one line per evaluation
metrics.txt     the same, readable            summary.json            the outcome
samples.jsonl   graded answers, now and then  checkpoints/ plots/     written by others
"""

import csv
import dataclasses
import io
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from grpojax.errors import InputError, did_you_mean
from grpojax.records import METRIC_COLUMNS, Evaluation, StepRecord

_SIGNS_OF_A_RUN = ("config.json", "metrics.csv", "metrics.txt", "samples.jsonl", "evals", "checkpoints", "summary.json")
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
    """The open log of a run. Make one with RunLog.create or RunLog.resume.

    Files are opened, written and closed at each step: nothing waits in a buffer, and there is nothing to close.
    """

    folder: Path
    samples_every: int = 10
    columns: tuple[str, ...] = METRIC_COLUMNS  # of metrics.csv, fixed from the first step

    @classmethod
    def create(
        cls, folder: str | Path, config: dict[str, Any], samples_every: int = 10, more_columns: tuple[str, ...] = ()
    ) -> "RunLog":
        """Start a run in a folder that holds none, and write its config.json and the header of metrics.csv.

        Args:
          folder: made if it is missing, with its parents. Files that are no part of a run may be there already.
          config: everything that repeats the run.
          samples_every: answers are kept at every so many steps, at step 1 and at the last step.
          more_columns: columns of this run behind METRIC_COLUMNS.

        Raises:
          InputError: the folder holds a run (or any file a run would write), or cannot be made; nothing was written.
        """
        folder = Path(folder)
        found = [name for name in _SIGNS_OF_A_RUN if (folder / name).exists()]
        if found:
            raise InputError(f"{folder} already holds a run (it has {found[0]}); choose another --out or add --resume")
        config_text = _json(config, indent=2)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the run folder {folder}: {error.strerror}; choose another --out") from None
        _replace(folder / "config.json", config_text.encode() + b"\n")
        columns = (*METRIC_COLUMNS, *more_columns)
        _replace(folder / "metrics.csv", _csv_line(columns).encode())
        return cls(folder, samples_every, columns)

    @classmethod
    def resume(cls, folder: str | Path, step: int, samples_every: int = 10) -> "RunLog":
        """Take up a run after `step`: what it recorded later is dropped, since those steps will be made again.

        Rows 1 to `step` of metrics.csv stay byte for byte, and so do the lines and evaluations up to `step` elsewhere;
        lines torn by a crash go. A row may be missing where the crash fell between a checkpoint and its row.
        config.json, summary.json and checkpoints/ are left alone.

        Raises:
          InputError: the folder holds no run, other columns, or a line that cannot be read; nothing was changed.
        """
        folder = Path(folder)
        if not (folder / "metrics.csv").exists():
            raise InputError(f"{folder} holds no run to resume (no metrics.csv); check --out, or leave out --resume")
        evals = folder / "evals"
        kept = {
            path: _lines_until(path, step, step_of)
            for path, step_of in (
                (folder / "metrics.csv", _step_of_csv_line),
                (folder / "metrics.txt", _step_of_text_line),
                (folder / "samples.jsonl", _step_of_json_line),
                (evals / "summary.jsonl", _step_of_json_line),
            )
            if path.exists()
        }
        columns = tuple(next(csv.reader(kept[folder / "metrics.csv"].decode().splitlines()), ()))
        if columns[: len(METRIC_COLUMNS)] != METRIC_COLUMNS:
            raise InputError(
                f"{folder / 'metrics.csv'} has other columns than this version writes; "
                "start a new run with another --out"
            )
        for path, content in kept.items():
            _replace(path, content)
        for path in evals.glob("step-*.jsonl"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()
        return cls(folder, samples_every, columns)

    def settings(self, config: dict[str, Any]) -> None:
        """Write config.json anew, whole or not at all."""
        _replace(self.folder / "config.json", _json(config, indent=2).encode() + b"\n")

    def append(self, record: StepRecord) -> None:
        """Write one step: its evaluation if it has one, its samples when due, its line, and last its row.

        A None becomes an empty cell; NaN and inf are written as such.

        Raises:
          ValueError: a metric is no column of this run.
        """
        values = _values(record, self.columns)
        if record.evaluation is not None:
            self.evaluation(record.evaluation)
        if record.step % self.samples_every == 0 or record.step in (1, record.total_steps):
            rows = [{"step": record.step, **dataclasses.asdict(sample)} for sample in record.samples]
            _append(self.folder / "samples.jsonl", "".join(_json(row) + "\n" for row in rows))
        _append(self.folder / "metrics.txt", format_line(record) + "\n")
        _append(self.folder / "metrics.csv", _csv_line(_cell(values[name]) for name in self.columns))

    def evaluation(self, evaluation: Evaluation) -> None:
        """Write evals/step-<step>.jsonl, one row per problem, and a line in evals/summary.jsonl."""
        evals = self.folder / "evals"
        evals.mkdir(exist_ok=True)
        rows = "".join(_json(row) + "\n" for row in evaluation.rows)
        _replace(evals / f"step-{evaluation.step:05d}.jsonl", rows.encode())
        line = {
            "step": evaluation.step,
            "dataset": evaluation.dataset,
            "accuracy": evaluation.accuracy,
            "correct": evaluation.correct,
            "total": evaluation.total,
            "avg_response_len": evaluation.avg_response_len,
            "truncated_frac": evaluation.truncated_frac,
            "seconds": evaluation.seconds,
        }
        if evaluation.correct_or_last_number is not None:
            line["accuracy_or_last_number"] = 100.0 * evaluation.correct_or_last_number / evaluation.total
        _append(evals / "summary.jsonl", _json(line) + "\n")

    def summary(self, outcome: dict[str, Any]) -> None:
        """Write summary.json, whole or not at all."""
        _replace(self.folder / "summary.json", _json(outcome, indent=2).encode() + b"\n")


def format_line(record: StepRecord) -> str:
    """One step as a person reads it; '-' stands for what does not apply.

    >>> format_line(StepRecord(7, 200, {"loss": -0.25, "reward_avg": 0.5, "policy_ratio": None}, []))[:70]
    'step   7/200  loss -0.2500  reward 0.500    correct -        length - '
    """
    values = _values(record, (*METRIC_COLUMNS, *record.metrics))
    width = len(str(record.total_steps))
    fields = [f"{word} {format_number(values[column], decimals):<8}" for word, column, decimals in _LINE_FIELDS]
    return " ".join([f"step {record.step:>{width}}/{record.total_steps} ", *fields]).rstrip()


def format_evaluation(evaluation: Evaluation) -> str:
    """One evaluation as a person reads it.

    >>> format_evaluation(Evaluation(10, "arithmetic", 3, 8, 20.5, 0.25, 1.5, []))
    'evaluation after step 10: 37.5 % (3 of 8 of arithmetic), 20.5 tokens on average, 25 % cut off, 1.5 s'
    >>> format_evaluation(Evaluation(10, "arithmetic", 3, 8, 20.5, 0.25, 1.5, [], correct_or_last_number=4))[26:96]
    '37.5 % (3 of 8 of arithmetic; 4 if a last number counts without a box)'
    """
    unboxed = evaluation.correct_or_last_number
    more = "" if unboxed is None else f"; {unboxed} if a last number counts without a box"
    return (
        f"evaluation after step {evaluation.step}: {evaluation.accuracy:.1f} % "
        f"({evaluation.correct} of {evaluation.total} of {evaluation.dataset}{more}), "
        f"{evaluation.avg_response_len:.1f} tokens on average, {100 * evaluation.truncated_frac:.0f} % cut off, "
        f"{evaluation.seconds:.1f} s"
    )


def format_number(value: float | None, decimals: int) -> str:
    """A number with fixed decimals, or with an exponent where those would hide it or run on.

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
    """What a record has to say, column by column."""
    unknown = sorted(set(record.metrics) - set(columns))
    if unknown:
        hint = did_you_mean(unknown[0], columns)
        raise ValueError(f"{unknown[0]!r} is no column of metrics.csv; name it in METRIC_COLUMNS.{hint}")
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
    return "" if value is None else f"{float(value):.9g}"  # 9 digits tell any two float32 apart


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Array scalars as Python numbers; the rest, such as a path, as text."""
    return value.item() if hasattr(value, "item") else str(value)


def _append(path: Path, text: str) -> None:
    with path.open("ab") as file:
        file.write(text.encode())


def _replace(path: Path, content: bytes) -> None:
    """Write beside the file and rename, so that no half file ever carries its name."""
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(content)
    os.replace(aside, path)


def _lines_until(path: Path, step: int, step_of: Callable[[bytes], int]) -> bytes:
    """The lines of a file up to a step, byte for byte; what stands after the last line end is torn and left out."""
    kept = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            if step_of(line) <= step:
                kept.append(line + b"\n")
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"{path}, line {number} cannot be read; repair or remove that line, "
                "or start a new run with another --out"
            ) from None
    return b"".join(kept)


def _step_of_csv_line(line: bytes) -> int:
    return 0 if line.startswith(b"step,") else int(line.split(b",")[0])


def _step_of_text_line(line: bytes) -> int:
    return int(line.removeprefix(b"step").split(b"/")[0])


def _step_of_json_line(line: bytes) -> int:
    return int(json.loads(line)["step"])
