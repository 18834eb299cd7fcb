"""The display of a run: lines for files, a bar for terminals, the first step, the time left."""

import io
import re

import pytest

from grpojax.records import Evaluation, StepRecord
from grpojax.reporting.progress import progress_display
from grpojax.reporting.runlog import format_line

METRICS = {"loss": 0.5, "reward_avg": 0.625, "avg_response_len": 231.0, "entropy_avg": 0.31, "tokens_per_sec": 812.0}


class Terminal(io.StringIO):
    """A terminal for rich."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


@pytest.fixture
def clock(monkeypatch):
    """A manual clock: clock.now += seconds."""

    class Clock:
        now = 100.0

    monkeypatch.setattr("grpojax.reporting.progress.monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture(autouse=True)
def no_forced_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def record(step, total=12, seconds=2.0, **more):
    return StepRecord(step, total, METRICS | {"step_seconds": seconds}, [], **more)


def plain(text):
    """Terminal output without its control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "\n")


def test_plain_lines_with_a_time_left_without_compilation(clock):
    stream = io.StringIO()
    with progress_display(12, stream=stream) as display:
        clock.now += 100  # an evaluation of 10 s, then compilation
        display.update(record(1, seconds=90.0))
        clock.now += 2
        display.update(record(2))
        clock.now += 4
        display.update(record(3))
    lines = stream.getvalue().splitlines()
    assert lines == [
        f"{format_line(record(1))}  left -",
        "first step took 1 min 30 s, compilation included",
        f"{format_line(record(2))}  left 20.0 s",  # 10 steps of 2 s, not of 46 s
        f"{format_line(record(3))}  left 27.0 s",  # 9 steps of (2 + 4) / 2 s
    ]


def test_the_time_left_is_based_on_the_last_twenty_steps(clock):
    """After 30 quick steps and 20 of 5 s, the remaining 50 are expected to take 5 s each."""
    stream = io.StringIO()
    with progress_display(100, stream=stream) as display:
        for step in range(1, 51):
            clock.now += 1 if step <= 30 else 5
            display.update(record(step, total=100))
    assert stream.getvalue().endswith("left 4 min 10 s\n")


def test_a_resumed_run_reports_its_own_first_step(clock):
    stream = io.StringIO()
    with progress_display(12, start_step=10, stream=stream) as display:
        clock.now += 30
        display.update(record(11, seconds=30.0))
        clock.now += 2
        display.update(record(12))
    assert "first step took 30.0 s" in stream.getvalue()
    assert stream.getvalue().endswith("left 0.0 s\n")


def test_evaluations_checkpoints_and_messages_are_lines(clock):
    stream = io.StringIO()
    evaluation = Evaluation(10, "gsm8k", 9, 20, 180.0, 0.1, 12.0, [])
    with progress_display(12, start_step=9, stream=stream) as display:
        display.message("evaluating")
        display.update(record(10, evaluation=evaluation, checkpoint="out/checkpoints/10"))
    assert stream.getvalue().splitlines()[0] == "evaluating"
    assert stream.getvalue().splitlines()[-2:] == [
        "evaluation after step 10: 45.0 % (9 of 20 of gsm8k), 180.0 tokens on average, 10 % cut off, 12.0 s",
        "checkpoint out/checkpoints/10",
    ]


def test_missing_values_are_dashes_on_both_displays(terminal):
    for stream in (io.StringIO(), terminal):
        with progress_display(3, stream=stream) as display:
            display.update(StepRecord(1, 3, {"reward_avg": 0.0, "policy_ratio": None, "entropy_avg": None}, []))
        assert "entropy -" in plain(stream.getvalue())


def test_standard_output_is_the_default_stream(capsys):
    with progress_display(3) as display:
        display.message("hello")
    assert capsys.readouterr().out == "hello\n"


def test_a_terminal_gets_a_bar_with_numbers_below_the_messages(terminal, clock):
    evaluation = Evaluation(2, "gsm8k", 9, 20, 180.0, 0.1, 12.0, [])
    with progress_display(12, stream=terminal) as display:
        clock.now += 90
        display.update(record(1, seconds=90.0))
        clock.now += 2
        display.update(record(2, evaluation=evaluation, checkpoint="out/[bold]/2"))
    text = plain(terminal.getvalue())
    assert "\x1b[" in terminal.getvalue() and "━" in text
    last = [line for line in text.splitlines() if "step 2/12" in line][-1]
    assert "left 20.0 s  reward 0.62  length 231  entropy 0.31  tok/s 812" in last
    assert "first step took 1 min 30 s, compilation included\n" in text
    assert "evaluation after step 2: 45.0 % (9 of 20 of gsm8k)" in text
    assert "checkpoint out/[bold]/2\n" in text  # not interpreted as markup


def test_the_bar_of_a_resumed_run_starts_at_its_step(terminal):
    with progress_display(12, start_step=10, stream=terminal):
        pass
    assert "step 10/12" in plain(terminal.getvalue())


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_shows_the_step_and_the_time_left_on_one_line(terminal, clock, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress_display(1000, stream=terminal) as display:
        for step in (1, 2):
            clock.now += 1
            display.update(record(step, total=1000))
    last = [line for line in plain(terminal.getvalue()).splitlines() if "step 2/1000" in line][-1]
    assert "left 17 min" in last and len(last) <= columns


def test_a_dumb_terminal_gets_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with progress_display(12, stream=terminal) as display:
        display.update(record(1))
    assert terminal.getvalue().splitlines()[0] == f"{format_line(record(1))}  left -"


def test_an_error_in_the_block_passes_through(terminal):
    for stream in (io.StringIO(), terminal):
        with pytest.raises(KeyboardInterrupt), progress_display(12, stream=stream):
            raise KeyboardInterrupt
