"""Reading the metrics and evaluations of a run, or the book's logs; the moving average."""

import csv
import io
from pathlib import Path

import numpy as np

from grpojax.errors import InputError, did_you_mean
from grpojax.files import read_json_lines
from grpojax.records import METRIC_COLUMNS


def read_metrics(path: str | Path) -> dict[str, np.ndarray]:
    """The metrics of a run, with strictly increasing steps.

    Where the steps of a log start again (as in the book's 7.3 log), each row replaces the earlier rows of its own step
    and of later steps; only the eval_acc of its own step is kept if it has none. A line torn by a crash is ignored.

    Args:
      path: a run folder, or a csv file whose header has "step" and at least one other of METRIC_COLUMNS.

    Returns:
      Column name -> [steps] float64, in the units of METRIC_COLUMNS; an empty cell is NaN.

    Raises:
      InputError: if the file is missing, is not a metrics file, has no rows, or has a line that cannot be read.
    """
    path = metrics_file(path)
    rows = _read_rows(path)
    if not rows:
        raise InputError(f"{path} has a header but no rows yet; wait until the first step is finished")
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def read_evaluations(path: str | Path) -> list[tuple[int, float]]:
    """The evaluations of a run, by step: (number of updates before it, accuracy in percent).

    They come from the eval_acc column and, in a run folder, from evals/summary.jsonl, which also has step 0, the
    untrained model. Of two evaluations at the same step the later line counts.

    Raises:
      InputError: as for read_metrics, except that a file without rows is allowed: step 0 may have been evaluated.
    """
    path = metrics_file(path)
    rows = _read_rows(path)
    accuracies = {int(row["step"]): row["eval_acc"] for row in rows if not np.isnan(row.get("eval_acc", np.nan))}
    summary = path.with_name("evals") / "summary.jsonl"
    if path.name == "metrics.csv" and summary.exists():
        for where, row in read_json_lines(summary):
            try:
                accuracies[int(row["step"])] = float(row["accuracy"])
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{where} is not an evaluation; fix or delete the line") from None
    return sorted(accuracies.items())


def metrics_file(path: str | Path) -> Path:
    """The csv file of a run folder, or the file itself.

    Raises:
      InputError: if it does not exist.
    """
    path = Path(path)
    file = path / "metrics.csv" if path.is_dir() else path
    if file.exists():
        return file
    if path.is_dir():
        raise InputError(f"{path} is not a run folder (it has no metrics.csv); give a run folder or a metrics csv file")
    near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
    raise InputError(f"{path} does not exist; give a run folder or a metrics csv file.{near}")


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Trailing mean: at each position the mean of the last `window` finite values, or of all if there are fewer.

    Before the first finite value it is NaN.

    >>> moving_average(np.array([np.nan, 4.0, 2.0, np.nan, 6.0]), window=2)
    array([nan,  4.,  3.,  3.,  4.])

    Args:
      values: [steps] float; the result is [steps] float64.

    Raises:
      InputError: if window is less than 1.
    """
    if window < 1:
        raise InputError(f"the window of the moving average is {window}; it must be at least 1 step")
    finite = np.isfinite(values)
    if not finite.any():
        return np.full(len(values), np.nan)
    # Not differences of a cumulative sum: one huge value would destroy the precision of all later ones.
    padded = np.concatenate([np.full(window - 1, np.nan), values[finite]])
    means = np.nanmean(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1)
    return np.concatenate([[np.nan], means])[np.cumsum(finite)]


def _read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics csv by column, without torn and superseded rows."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = list(csv.reader(io.StringIO(text)))
    except (UnicodeDecodeError, csv.Error):
        text, lines = "", []  # some other kind of file
    columns = lines[0] if lines else []
    if "step" not in columns or not set(columns) & set(METRIC_COLUMNS) - {"step"}:
        raise InputError(
            f"{path} is not a metrics file: its first line must have 'step' and other columns such as 'loss' or "
            "'reward_avg'; give a run folder or a metrics csv"
        )
    ours = tuple(columns[: len(METRIC_COLUMNS)]) == METRIC_COLUMNS  # the book's logs have no final line end
    if len(lines) > 1 and not text.endswith("\n") and (ours or len(lines[-1]) < len(columns)):
        lines.pop()
    rows: list[dict[str, float]] = []
    accuracies: dict[float, float] = {}
    for number, cells in enumerate(lines[1:], start=2):
        if not cells:
            continue
        where = f"{path}, line {number}"
        if len(cells) != len(columns):
            counts = f"{len(cells)} cells but the header has {len(columns)}"
            raise InputError(f"{where} has {counts}; fix or delete the line")
        row = {name: _number(name, cell, where) for name, cell in zip(columns, cells, strict=True)}
        if not np.isfinite(row["step"]):
            raise InputError(f"{where} has no step number; fix or delete the line")
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
        if "eval_acc" in row:
            if np.isnan(row["eval_acc"]):
                row["eval_acc"] = accuracies.get(row["step"], np.nan)
            accuracies[row["step"]] = row["eval_acc"]
    return rows


def _number(name: str, cell: str, where: str) -> float:
    try:
        return float(cell) if cell.strip() else np.nan
    except ValueError:
        raise InputError(f"{where} has {cell!r} as {name}, expected a number; fix or delete the line") from None
