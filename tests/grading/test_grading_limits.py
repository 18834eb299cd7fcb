"""Limits of size and time. Worker processes are replaced when they die and end with the process that started them."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grpojax.grading import symbolic
from grpojax.grading.fold import fold
from grpojax.grading.grader import Grader, grade
from grpojax.grading.latex import TooLarge, Unreadable, read_answer

TOO_LARGE = [
    r"9^{9^{9^9}}",
    r"2^{2^{2^{100}}}",
    "10^{100000000}",
    "10^100000000",
    "x^{10^9}",
    r"((9^{9999})^{9999})^{9999}",
    r"\binom{10^9}{5*10^8}",
    "100000!",
    "((20!)!)!",
    "*".join(["2006!"] * 300),
    "+".join(["1/2006!"] * 240),
    "9" * 900 + "^{" + "9" * 900 + "}",
    "(" * 500 + "1" + ")" * 500,
    "{" * 500 + "1" + "}" * 500,
    "[" * 500,
    "|" * 500 + "1" + "|" * 500,
    "2^{" * 300 + "2" + "}" * 300,
    r"\sqrt{" * 200 + "2" + "}" * 200,
    r"\sqrt" * 300 + "2",
    r"\frac" * 300,
    r"\sin" * 300 + "x",
    r"\begin{pmatrix}" * 100,
    "x^" + "-" * 500 + "1",
    ",".join("123456789" * 20),
]


@pytest.mark.parametrize("answer", TOO_LARGE)
def test_size_limits_come_before_any_work(answer, hang_guard):
    with hang_guard(), pytest.raises((TooLarge, Unreadable)):
        fold(read_answer(answer))


def test_nested_fractions_after_numbers_are_read_once(hang_guard):
    nested = r"2\frac{" * 19 + "x" + "}{3}" * 19
    with hang_guard():  # reading each of them twice takes minutes
        fold(read_answer("+".join([nested] * 8)))


def test_pairs_that_hit_a_limit_are_counted():
    grader = Grader(time_limit=0.3)
    assert not grader.grade(r"9^{9^{9^9}}", "5")  # by size
    assert grader.timeouts == 1
    assert not grader.grade("1" * 3000, "5")  # by length
    assert grader.timeouts == 2
    assert not grader.grade(r"\int_0^9 x^{x^x} dx", "5")  # by time
    assert grader.timeouts == 3
    assert not grader.grade("5", r"\int_0^9 x^{x^x} dx")  # cached, in both orders
    assert grader.timeouts == 3
    assert not grader.grade("4", "5")  # merely wrong
    assert not grader.grade("exit()", "5")  # merely unreadable
    assert grader.timeouts == 3
    grader.close()


@pytest.mark.slow
def test_a_worker_that_died_is_replaced():
    grader = Grader(time_limit=20.0)
    assert grader.grade(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")
    process = grader._pool._workers[0]._process
    os.kill(process.pid, 9)
    process.wait()
    assert grader.grade(r"\sqrt[3]2\sqrt[3]7", r"\sqrt[3]{14}")
    assert grader.timeouts == 0
    grader.close()


def test_the_default_grader_from_a_thread():
    verdicts = []
    thread = threading.Thread(
        target=lambda: verdicts.extend([grade(r"\frac{1}{3}", r"\frac{1}{3}"), grade("0.5", "1/2")])
    )
    thread.start()
    thread.join()
    assert verdicts == [True, True]


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr("grpojax.grading.grader.CACHE_SIZE", 3)
    grader = Grader()
    assert not any(grader.grade(str(k), "-1") for k in range(10))
    assert len(grader._known) == 3


def test_algebra_that_fails_or_runs_out_of_memory_gives_a_verdict(monkeypatch):
    assert symbolic.verdict(r"\sqrt2+(1,2)", "x") == "!"  # a tuple inside a sum is not a value

    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr(symbolic, "same_answer", exhausted)
    assert symbolic.verdict("x", "y") == "?"


SCRIPT = r"""
import sys, threading
import grpojax.tasks.rewards, grpojax.tasks.problems, grpojax.tasks.prompts
from grpojax.grading import grader
assert not {"jax", "sympy", "numpy"} & set(sys.modules), "a light import"
thread = threading.Thread(target=lambda: print(grader.grade(r"\sqrt[3]{16}", r"2\sqrt[3]2", 60.0)))
thread.start(); thread.join()
assert "sympy" not in sys.modules, "algebra stays in the worker"
print(grader._shared_grader(60.0)._pool._workers[0]._process.pid)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "import os; sys.stdout.flush(); os._exit(0)", "raise SystemExit(3)"])
def test_a_script_without_main_guard_leaves_no_process(tmp_path, ending):
    """The script has no `if __name__ == "__main__"`, and a fake sympy in its folder is not imported."""
    (tmp_path / "sympy.py").write_text("raise ImportError('the wrong one')")
    script = tmp_path / "user_script.py"
    script.write_text(SCRIPT + ending)
    environment = {**os.environ, "PYTHONPATH": str(Path(symbolic.__file__).parents[2])}
    command = [sys.executable, "-P", str(script)]
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    verdict, pid = done.stdout.split()
    assert verdict == "True", done.stderr
    deadline = time.monotonic() + 30
    while is_running(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_worker_that_cannot_start_says_how_to_see_why(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(
        RuntimeError,
        match=r"the grading process did not start; `/bin/true -m grpojax\.grading\.worker grpojax` shows why",
    ):
        Grader().grade(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")
