"""The display of a running training: a progress bar on a terminal, plain lines elsewhere."""

import collections
import contextlib
import sys
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TextIO

from grpojax.records import StepRecord
from grpojax.reporting.runlog import format_evaluation, format_line, format_number

_BAR_FIELDS = (  # word, column, decimals
    ("reward", "reward_avg", 2),
    ("length", "avg_response_len", 0),
    ("entropy", "entropy_avg", 2),
    ("tok/s", "tokens_per_sec", 0),
)


class Display:
    """Shows finished steps, and messages between them; see `progress_display`."""

    def __init__(self, total_steps: int, show: Callable[[StepRecord, str], None], message: Callable[[str], None]):
        """`show` shows a step and the time left after it; `message` prints a line."""
        self.message = message
        self._total_steps = total_steps
        self._show = show
        # Starts with the end of the first step, so that compilation does not count.
        self._ends: collections.deque[float] = collections.deque(maxlen=21)

    def update(self, record: StepRecord) -> None:
        """Shows a finished step, and messages about its evaluation and checkpoint if it has them."""
        self._ends.append(monotonic())
        left = "-"
        if len(self._ends) > 1:  # by the mean of the last 20 steps
            step_seconds = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
            left = format_duration(step_seconds * (self._total_steps - record.step))
        self._show(record, left)
        if len(self._ends) == 1 and record.metrics.get("step_seconds") is not None:
            self.message(f"first step took {format_duration(record.metrics['step_seconds'])}, compilation included")
        if record.evaluation is not None:
            self.message(format_evaluation(record.evaluation))
        if record.checkpoint is not None:
            self.message(f"checkpoint {record.checkpoint}")


@contextlib.contextmanager
def progress_display(total_steps: int, start_step: int = 0, stream: TextIO | None = None) -> Iterator[Display]:
    """A context manager that shows the steps start_step + 1 to total_steps, and an estimate of the time left.

    Args:
      total_steps: the last step of the run.
      start_step: number of steps before a resumed run.
      stream: where to print, sys.stdout if None. A terminal gets a bar (rich), anything else one line per step.
    """
    # Imported here to keep commands without a display fast.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    console = Console(file=stream or sys.stdout)
    if not console.is_terminal or console.is_dumb_terminal:

        def message(text: str) -> None:
            print(text, file=console.file, flush=True)

        def show(record: StepRecord, left: str) -> None:
            message(f"{format_line(record)}  left {left}")

        yield Display(total_steps, show, message)
        return

    # On a narrow terminal the bar gets shorter first, then the last numbers are cut off.
    steps = len(f"step {total_steps}/{total_steps}")
    bar = max(5, min(40, console.width - 80))
    numbers = Column(no_wrap=True, max_width=console.width - steps - bar - 5)
    progress = Progress(
        SpinnerColumn(),
        TextColumn("step {task.completed}/{task.total}", table_column=Column(width=steps)),
        BarColumn(bar),
        TextColumn("{task.fields[numbers]}", table_column=numbers),
        console=console,
    )
    task = progress.add_task("", total=total_steps, completed=start_step, numbers="")

    def message(text: str) -> None:
        # No markup for brackets in a message; the terminal breaks long lines.
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(record: StepRecord, left: str) -> None:
        fields = [f"{word} {format_number(record.metrics.get(key), digits)}" for word, key, digits in _BAR_FIELDS]
        progress.update(task, completed=record.step, numbers="  ".join([f"left {left}", *fields]))

    with progress:
        yield Display(total_steps, show, message)


def format_duration(seconds: float) -> str:
    """A duration as text.

    >>> [format_duration(seconds) for seconds in (4.26, 59.96, 192, 1510, 7500)]
    ['4.3 s', '1 min 00 s', '3 min 12 s', '25 min', '2 h 05 min']
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
