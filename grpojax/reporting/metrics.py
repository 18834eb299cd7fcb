"""Reading the numbers of a run back: metrics.csv, ours or the book's, evaluations, and the moving average."""

import csv
import io
import json
from pathlib import Path

import numpy as np

from grpojax.errors import InputError, did_you_mean
from grpojax.records import METRIC_COLUMNS


def read_metrics(path: str | Path) -> dict[str, np.ndarray]:
    """The columns of a run's metrics, one value per training step, steps strictly increasing.

    A log in which the steps start again (a second attempt appended to the first, as in the book's 7.3 log) tells the
    later history: a row drops the earlier rows of its own step and of the steps after it. Only the eval_acc of a
    dropped row stands, for its step, where the later row has none. A last line torn by a crash is ignored.

    Args:
      path: a run folder, or a csv file whose header names "step" and at least one more of METRIC_COLUMNS.

    Returns:
      Column name -> [steps] float64, in the units of METRIC_COLUMNS; an empty cell is NaN.

    Raises:
      InputError: the file is missing, is no metrics file, has no rows, or holds a line that cannot be read.
    """
    path = metrics_file(path)
    columns, rows = _read_rows(path)
    if not rows:
        raise InputError(f"{path} has a header but no rows yet; wait until the run has finished its first step")
    return dict(zip(columns, np.array(rows).T, strict=True))


def read_evaluations(path: str | Path) -> list[tuple[int, float]]:
    """The evaluations of a run by step: (updates made before it, accuracy in percent).

    They come from the eval_acc cells and, in a run folder, from evals/summary.jsonl, where also the evaluation of the
    untrained model stands (step 0). Of two evaluations at one step the later line counts.

    Args:
      path: a run folder, or a metrics csv as for read_metrics.

    Raises:
      InputError: as for read_metrics; no rows is no error here, as step 0 may have been evaluated already.
    """
    path = metrics_file(path)
    columns, rows = _read_rows(path)
    accuracies: dict[int, float] = {}
    if "eval_acc" in columns:
        step, accuracy = columns.index("step"), columns.index("eval_acc")
        accuracies = {int(row[step]): row[accuracy] for row in rows if not np.isnan(row[accuracy])}
    summary = path.with_name("evals") / "summary.jsonl"
    if path.name == "metrics.csv" and summary.exists():
        accuracies |= {row["step"]: float(row["accuracy"]) for row in _read_summary(summary)}
    return sorted(accuracies.items())


def metrics_file(path: str | Path) -> Path:
    """The csv file meant by a run folder or a file.

    Raises:
      InputError: there is none.
    """
    path = Path(path)
    if path.is_dir():
        if not (path / "metrics.csv").exists():
            raise InputError(
                f"{path} is no run folder, it holds no metrics.csv; give a run folder or a metrics csv file"
            )
        return path / "metrics.csv"
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        raise InputError(f"{path} does not exist; give a run folder or a metrics csv file.{near}")
    return path


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Trailing mean: at each position, of the last `window` finite values up to and including it.

    At the start of the series, where there are fewer, it is the mean of those there are. NaN and infinite values are
    passed over: they neither count nor use up the window. Before the first finite value the result is NaN.

    >>> moving_average(np.array([np.nan, 4.0, 2.0, np.nan, 6.0]), window=2)
    array([nan,  4.,  3.,  3.,  4.])

    Args:
      values: [steps] float.
      window: how many values one mean is made of, at least 1.

    Returns:
      [steps] float64.

    Raises:
      InputError: window is smaller than 1.
    """
    if window < 1:
        raise InputError(f"the window of a moving average is {window}, but it must be at least 1 step")
    finite = np.isfinite(values)
    averages = np.full(len(values), np.nan)
    if not finite.any():
        return averages
    # Each window is summed by itself: differences of a running sum would lose everything after one huge value.
    padded = np.concatenate([np.full(window - 1, np.nan), values[finite]])
    means = np.nanmean(np.lib.stride_tricks.sliding_window_view(padded, window), axis=1)
    seen = np.cumsum(finite)
    averages[seen > 0] = means[seen[seen > 0] - 1]
    return averages


def _read_rows(path: Path) -> tuple[list[str], list[list[float]]]:
    """Header and rows of a metrics csv, torn and superseded rows left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = list(csv.reader(io.StringIO(text)))
    except (UnicodeDecodeError, csv.Error):
        text, lines = "", []  # a picture, a file of weights: no metrics file either
    columns = lines[0] if lines else []
    if "step" not in columns or not set(columns) & set(METRIC_COLUMNS) - {"step"}:
        raise InputError(
            f"{path} is not a metrics file: its first line must name 'step' and other columns such as 'loss' or "
            "'reward_avg'; give a run folder or a metrics csv"
        )
    if len(lines) > 1 and not text.endswith("\n") and _is_torn(lines[-1], columns):
        lines.pop()
    rows: list[list[float]] = []
    step = columns.index("step")
    accuracy = columns.index("eval_acc") if "eval_acc" in columns else None
    accuracies: dict[float, float] = {}
    for number, cells in enumerate(lines[1:], start=2):
        if not cells:
            continue
        row = _read_row(cells, columns, f"{path}, line {number}")
        while rows and rows[-1][step] >= row[step]:
            rows.pop()
        rows.append(row)
        if accuracy is not None and np.isnan(row[accuracy]):
            row[accuracy] = accuracies.get(row[step], np.nan)
        elif accuracy is not None:
            accuracies[row[step]] = row[accuracy]
    return columns, rows


def _is_torn(cells: list[str], columns: list[str]) -> bool:
    """Whether a last line without a line end was cut off. The book's logs end without one; ours never do."""
    return tuple(columns[: len(METRIC_COLUMNS)]) == METRIC_COLUMNS or len(cells) < len(columns)


def _read_row(cells: list[str], columns: list[str], place: str) -> list[float]:
    """The numbers of one line; place says where it stands, for the message."""
    if len(cells) != len(columns):
        raise InputError(
            f"{place} has {len(cells)} cells where the header has {len(columns)}; repair or remove that line"
        )
    row = []
    for name, cell in zip(columns, cells, strict=True):
        try:
            row.append(float(cell) if cell.strip() else np.nan)
        except ValueError:
            raise InputError(f"{place} has {cell!r} as {name}, expected a number; repair or remove that line") from None
    if not np.isfinite(row[columns.index("step")]):
        raise InputError(f"{place} has no step number; repair or remove that line")
    return row


def _read_summary(path: Path) -> list[dict]:
    """The lines of evals/summary.jsonl; what stands after the last line end is torn and ignored."""
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
            rows.append({"step": int(row["step"]), "accuracy": float(row["accuracy"])})
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}, line {number} is no evaluation; repair or remove that line") from None
    return rows
