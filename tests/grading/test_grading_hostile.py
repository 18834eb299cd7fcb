"""tests/answers/hostile.jsonl: every answer is wrong, in time; none is ever run, writes a file or leaves a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpojax.grading.grader import Grader, quick_verdict
from grpojax.grading.latex import MAX_LENGTH

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "answers" / "hostile.jsonl").read_text("utf-8").splitlines()
]
ANSWERS = [row["answer"] if "answer" in row else "".join(text * times for text, times in row["parts"]) for row in ROWS]
LIMIT = 0.3


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # before the workers start: theirs too
    return tmp_path


def test_the_corpus_has_every_kind():
    assert len(ROWS) >= 100
    kinds = {"code", "bomb", "nested", "large", "million characters", "look-alike", "unbalanced", "odd"}
    assert {row["kind"] for row in ROWS} == kinds
    assert any("\0" in answer for answer in ANSWERS)
    assert any(answer.count(r"\boxed") > 1 for answer in ANSWERS)


@pytest.mark.slow
def test_every_answer_is_wrong_in_time_and_leaves_nothing(empty_folder, capfd, hang_guard):
    grader = Grader(time_limit=LIMIT)
    for answer in ANSWERS:
        with hang_guard():
            assert grader.grade(answer, "5") is False, answer[:60]
    assert grader.grade(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")  # still at work
    long = sum(len(answer) > MAX_LENGTH for answer in ANSWERS)
    assert grader.timeouts > long > 10
    workers = [worker._process for worker in grader._pool._workers]
    grader.close()
    assert all(process.poll() is not None for process in workers)
    assert list(empty_folder.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_what_is_decided_without_algebra_does_not_hang(hang_guard):
    """In both orders, and also against right answers with letters, which no rule for numbers decides early."""
    for gold in (
        "5",
        r"\sqrt{5}+x",
        "1,2",
        r"(1,2)\cup(3,4)",
        r"\{1,\{2,3\}\}",
        r"\begin{pmatrix} 5 \\ x \end{pmatrix}",
    ):
        for answer in ANSWERS:
            if len(answer) <= MAX_LENGTH:
                with hang_guard():
                    verdicts = {quick_verdict(answer, gold), quick_verdict(gold, answer)}
                assert "=" not in verdicts, answer[:60]


@pytest.mark.slow
def test_the_reference_grader_runs_no_code_either(empty_folder, capfd):
    grader = Grader("book", time_limit=5.0)
    answers = [answer for row, answer in zip(ROWS, ANSWERS, strict=True) if row["kind"] == "code"]
    answers += ["9^{9^{9^9}}", "10^{100000000}", "100000!", "(10^9)!", "x" * 5000]
    verdicts = dict(zip(answers, grader.grade_many([(answer, "5") for answer in answers]), strict=True))
    right = ["5#comment", "max(5,4)", "min(5,6)", "{{5}}}}{"]  # the reference accepts these; it drops braces and comments
    assert [answer for answer, verdict in verdicts.items() if verdict] == right
    grader.close()
    assert list(empty_folder.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_worker_has_little_memory_and_writes_no_file(tmp_path):
    code = (
        "from grpojax.grading.worker import limit_resources; limit_resources()\n"
        "try: bytearray(3 << 30)\n"
        "except MemoryError: print('bounded')\n"
        "try: print('5', file=open('canary', 'w'), flush=True)\n"
        "except OSError: print('refused')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert "refused" in done.stdout
    if sys.platform == "linux":
        assert "bounded" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_bounded_while_it_grows():
    """An answer whose expansion has millions of terms: the worker is ended by time or memory, never beyond 1 GiB."""
    grader = Grader(time_limit=3.0)
    assert grader.grade(r"\sqrt[3]2\sqrt[3]3", r"\sqrt[3]6")
    limits = Path(f"/proc/{grader._pool._workers[0]._process.pid}/limits").read_text()
    line = next(line for line in limits.splitlines() if line.startswith("Max address space"))
    assert int(line.split()[3]) == 1 << 30
    assert not grader.grade("(a+b+c+d+f+g+h)^{60}", "(h+g+f+d+c+b+a)^{60}+a-b+(b-a)c/c+1")
    grader.close()
