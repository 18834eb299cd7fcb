"""Graders by name, and their worker pool: threads, forks, batches in the background, and no process left over."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grpojax.errors import InputError
from grpojax.grading.book import normalize
from grpojax.grading.grader import GRADERS, Grader

ANSWERS = Path(__file__).parents[1] / "answers"
PAIRS = [
    json.loads(line)
    for path in sorted(ANSWERS.glob("*.jsonl"))
    if path.stem != "hostile"
    for line in path.read_text("utf-8").splitlines()
]


def test_an_unknown_name_is_an_error_that_suggests_the_nearest_one():
    with pytest.raises(
        InputError,
        match=r"unknown grader 'math_verify'; choose one of grpojax, book, math-verify\. Did you mean 'math-verify'\?",
    ):
        Grader("math_verify")


def test_a_grader_that_is_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package math-verify, .*`pip install grpojax\[verify\]`"):
        Grader("math-verify")
    assert Grader("book").name == "book"


@pytest.mark.parametrize("name", GRADERS)
def test_each_grader_decides_and_counts_what_is_too_long(name):
    if name == "math-verify":
        pytest.importorskip("math_verify")
    grader = Grader(name, time_limit=20.0)
    pairs = [("4", "4"), ("0.5", r"\frac{1}{2}"), ("3", "4"), ("", "4"), ("9" * 2001, "4")]
    assert grader.grade_many(pairs) == [True, True, False, False, False]
    assert grader.timeouts == 1
    grader.close()


# Verdicts of the reference's grader, found by running it, that differ from those of the default grader.
REFERENCE = [
    (r"\frac{4}{3}", r"\frac43", False),
    ("2^{x+1}", "2^x+1", True),
    ("3^{2n}", "3^2n", True),
    ("-3 1/2", "-2.5", True),
    ("-3 1/2", "-3.5", False),
    (r"3\frac{1}{2}", "7/2", False),
    ("32348", r"\$32,\!348", False),
    ("y=2x+3", "y = 2x + 3", False),
    ("x<3", r"(-\infty,3)", False),
    (r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}", False),
    ("(3,4]", "(3,4)", True),
    ("(1,2)", "[1,2]", True),
    ("1,2", "2,1", False),
    ("west", "stew", True),
    ("R", "r", True),
    ("63_8", "638", True),
    ("b. 7", "7", True),
    ("0.1+0.2", "0.3", False),  # in floating-point numbers
]


def test_the_verdicts_of_the_reference():
    grader = Grader("book", time_limit=20.0)
    verdicts = grader.grade_many([(answer, gold) for answer, gold, _ in REFERENCE])
    grader.close()
    assert [(*pair[:2], verdict) for pair, verdict in zip(REFERENCE, verdicts, strict=True)] == REFERENCE


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (r"\left( 3, \dfrac{\pi}{2} \right)", r"( 3, (\pi)/(2) )"),
        (r"90^{\circ}", "90"),
        (r"\text{East}", "east"),
        (r"\text{a} and \text{b}", r"a and \textb"),  # the last brace closes the first \text
        (r"x \text{ cm}", r"x \text cm"),
        ("x² ⁺ 1", "x**2 + 1"),
        (r"\sqrt{x} + \sqrt 2", "sqrt(x) + sqrt(2)"),
        ("1,234,567", "1234567"),
        ("2 1/3", "2+1/3"),
        ("<|im_end|>5", "5"),
    ],
)
def test_the_normal_form_of_the_reference(text, normal):
    assert normalize(text) == normal


@pytest.mark.parity
def test_the_corpus_in_the_reference_itself():
    """Verdict by verdict; the answers that the reference would run as code are left out."""
    pytest.importorskip("torch")
    reference = pytest.importorskip("reasoning_from_scratch.ch03")
    code = ("print", "getattr", "exit", "__", "[5][0]", "lambda", "if True")
    pairs = [(p["answer"], p["gold"]) for p in PAIRS if not any(word in p["answer"] for word in code)]
    expected = [bool(reference.grade_answer(*pair)) for pair in pairs]
    grader = Grader("book", time_limit=60.0)
    seen = grader.grade_many(pairs)
    grader.close()
    assert [pair for pair, one, other in zip(pairs, seen, expected, strict=True) if one != other] == []


def test_a_batch_is_graded_by_all_workers_while_the_caller_goes_on():
    grader = Grader(time_limit=20.0, workers=2)
    pairs = [
        (rf"\sqrt{{{k * k * 7}}}+\sqrt{{{k}+\sqrt{{3}}}}", rf"{k}\sqrt7+\sqrt{{\sqrt{{3}}+{k}}}") for k in range(2, 22)
    ]
    handle = grader.submit(pairs)
    assert not handle.done()  # the workers have not even started
    assert handle.result() == [True] * 20
    assert len(grader._pool._workers) == 2
    assert grader.submit([]).result() == []
    grader.close()


def test_an_error_in_a_submitted_batch_is_raised_by_its_future(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(RuntimeError, match="did not start"):
        Grader().submit([(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")]).result()


def test_a_slow_pair_holds_up_neither_the_others_of_its_batch_nor_pairs_that_take_no_worker():
    grader = Grader(time_limit=1.0)
    grader.grade(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")
    slow = (r"\int_0^9 x^{x^x} dx", "5")  # takes the whole time limit
    quick = [(rf"\sqrt[3]{{{k**3 * 3}}}", rf"{k}\sqrt[3]3") for k in range(2, 8)]
    handle = grader.submit([*quick[:3], slow, *quick[3:]])
    assert grader.grade("0.5", r"\frac12")
    assert not handle.done()
    assert handle.result() == [True] * 3 + [False] + [True] * 3
    assert grader.timeouts == 1
    grader.close()


def test_an_interrupted_batch_leaves_no_reply_for_the_next(monkeypatch):
    grader = Grader(time_limit=20.0)
    assert grader.grade(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")

    def interrupted(replies):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(grader._pool, "_collect", interrupted)
        grader.grade(r"\sqrt[3]2\sqrt[3]5", r"\sqrt[3]{10}")  # the reply would be "="
    assert not grader.grade(r"\sqrt[3]2\sqrt[3]5", r"\sqrt[3]{11}")
    grader.close()


def children() -> set[int]:
    """The worker processes of this process."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_ten_thousand_answers_leave_no_processes_and_no_open_files():
    before, files = children(), len(os.listdir("/proc/self/fd"))
    grader = Grader(time_limit=0.3, workers=2)
    easy = [(f"{k}/{k + 7}", rf"\frac{{{k}}}{{{k + 7}}}") for k in range(1, 9_801)]
    algebra = [(rf"\sqrt[3]{{{k**3 * 3}}}", rf"{k}\sqrt[3]3") for k in range(2, 200)]
    slow = [(rf"\int_0^{p} x^{{x^x}} dx", "5") for p in (2, 3)]
    pairs = easy + algebra[:99] + slow + algebra[99:]
    assert len(pairs) == 10_000
    verdicts = grader.grade_many(pairs)
    assert len(children() - before) <= 2
    assert sum(verdicts) >= 10_000 - 2 - grader.timeouts  # on a busy machine more may time out
    assert grader.timeouts >= 2
    grader.close()
    assert children() <= before
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_grader_that_goes_out_of_scope_ends_its_workers():
    grader = Grader(time_limit=20.0)
    assert grader.grade(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")
    process = grader._pool._workers[0]._process
    del grader
    assert process.poll() is not None


FORKED = r"""
import os, sys, threading
from grpojax.grading.grader import Grader
grader = Grader(time_limit=60.0)
assert grader.grade(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")
worker = grader._pool._workers[0]._process.pid
grader._lock.acquire()          # as a thread that grades while another one forks
grader._pool_lock.acquire()
child = os.fork()
if child == 0:
    right = grader.grade(r"\sqrt[3]2\sqrt[3]5", r"\sqrt[3]{10}")
    sys.exit(0 if right and grader._pool._workers[0]._process.pid != worker else 1)
grader._lock.release()
grader._pool_lock.release()
assert os.waitpid(child, 0)[1] == 0
os.kill(worker, 0)              # the end of the child did not end the parent's worker
assert grader.grade(r"\sqrt[3]2\sqrt[3]7", r"\sqrt[3]{14}") and grader._pool._workers[0]._process.pid == worker
print("fine")
"""

JITTED = r"""
import threading, time
import jax, jax.numpy as jnp
from grpojax.grading.grader import Grader
step = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: jnp.tanh(y @ y), x))
x = step(jnp.eye(128)).block_until_ready()
grader = Grader(time_limit=60.0)
handle = grader.submit([(r"\sqrt[3]{%d}" % (k**3 * 3), r"%d\sqrt[3]3" % k) for k in range(2, 12)])
while not handle.done():
    x = step(x)
    x.block_until_ready()
assert handle.result() == [True] * 10
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [FORKED, JITTED], ids=["fork", "jit"])
def test_after_a_fork_and_while_a_compiled_program_runs(script):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_verdicts_are_cached_for_both_orders():
    grader = Grader(time_limit=20.0, workers=2)
    assert grader.grade(r"\sqrt[3]{24}", r"2\sqrt[3]3")
    assert len(grader._pool._workers) == 1  # no more than there is work for
    grader.close()
    grader._pool.ask = lambda questions: pytest.fail("asked again")
    assert grader.grade(r"2\sqrt[3]3", r"\sqrt[3]{24}")
    assert grader.grade_many([(r"\sqrt[3]{24}", r"2\sqrt[3]3")] * 3) == [True] * 3


def test_many_threads_share_a_grader(grader):
    """They grade and submit at the same time; some pairs are new to each thread, some are the same in all of them."""
    verdicts, handles = {}, {}

    def work(thread: int) -> None:
        handles[thread] = grader.submit(
            [(rf"\sqrt[3]{{{k**3 * thread}}}", rf"{k}\sqrt[3]{{{thread}}}") for k in range(2, 8)]
        )
        shared = [(rf"\sqrt[3]{{{k**3 * 3}}}", rf"{k}\sqrt[3]3") for k in range(2, 8)]
        verdicts[thread] = grader.grade_many([*shared, ("0.5", "1/2"), (rf"\sqrt{{{thread}}}", "x")])

    numbers = (2, 3, 5, 6, 7, 10)
    threads = [threading.Thread(target=work, args=(k,)) for k in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == {k: [True] * 7 + [False] for k in numbers}
    assert all(handle.result() == [True] * 6 for handle in handles.values())
