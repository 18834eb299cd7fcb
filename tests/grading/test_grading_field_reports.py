"""Errors reported against other graders, one test each, named after the report.

a01 lmms-eval 1508, a03 and a05 lm-evaluation-harness 3652, a08 Math-Verify 14, a10 Math-Verify 60, a11 Math-Verify 26,
a13 Math-Verify 41, a15 Math-Verify 71, a18 Math-Verify 64, a20 lm-evaluation-harness 2212, a21 khan-exercises 133444,
a23 Math-Verify 57, a25 verl 5839, a27 trl 5281, a29 slime 1586, a31 NeMo-RL 3635, a33 EasyR1 26, a35 Math-Verify 20.
"""

import threading

import pytest

from grpojax.grading.answers import extract_answer
from grpojax.grading.grader import Grader
from grpojax.tasks.prompts import DEFAULT_TEMPLATE


@pytest.mark.parametrize(
    ("report", "answer", "gold", "same"),
    [
        ("a01", r"\frac{4}{3}", r"\frac43", True),
        ("a01", "4/3", r"\frac43", True),
        ("a01", "6/5", r"\frac65", True),
        ("a01", r"\frac{5}{9}", r"\frac 59", True),
        ("a01", r"\frac{9}{19}", r"\frac9{19}", True),
        ("a01", "0.25", r"\frac14", True),
        ("a01", "3/4", r"\frac 34", True),
        ("a01", r"\frac{3}{4}", r"\frac43", False),
        ("a03", "C", r"\text{(C)}", True),
        ("a03", r"\text{East}", r"\text{east}", True),
        ("a03", "D", r"\text{(C)}", False),
        ("a05", "10080", r"10,\!080", True),
        ("a05", "58,500", "58500", True),
        ("a05", "32348", r"\$32,\!348", True),
        ("a08", r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}", False),
        ("a08", r"\frac{1}{2006!}", r"\frac{1}{2004!}", False),
        ("a10", "3x + 4y + 14=0", "3*x-1*y+13=0", False),
        ("a10", "y=2x+4", "y = 2x + 3", False),
        ("a11", "y=2x+3", "y = 2x + 3", True),
        ("a11", r"y=-\frac{1}{2}x+\frac{3}{4}", "2x+4y-3=0", True),
        ("a13", "2^{x+1}", "2^x+1", False),
        ("a13", "3^{2n}", "3^2n", False),
        ("a15", "x<3", r"(-\infty,3)", True),
        ("a15", r"x \in [-2,7]", "[-2,7]", True),
        ("a18", r"\sqrt{1/n}", r"\frac{1}{\sqrt{n}}", True),
        ("a18", r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", True),
        ("a21", "-3 1/2", "-3.5", True),
        ("a21", r"3\frac{1}{2}", "7/2", True),
        ("a21", "2 1/3", "7/3", True),
        ("a21", "-3 1/2", "-2.5", False),
        ("a27", r"\frac{1}{3}", r"\frac{1}{3}", True),
        ("a27", "0.5", "1/2", True),
        ("a35", "0.333333", "1/3", False),
        ("a35", "0.30", "0.3", True),
        ("a35", "0.5", "1/2", True),
    ],
)
def test_pairs_in_both_orders_and_from_a_thread(grader, report, answer, gold, same):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(grader.grade(answer, gold)))
    thread.start()
    thread.join()
    assert [*seen, grader.grade(answer, gold), grader.grade(gold, answer)] == [same] * 3


# Forms of the answers in MATH and GSM8K, with other numbers.
FORMS = [
    "17", "-4", "-2,5", "3, 6, 8", ".4721", "0.35", r"\frac 47", r"\frac58", r"\frac7{11}", r"\dfrac{13}{40}", r"\frac{23}{4}",
    r"-\frac{31}{8}", r"\frac{13+5b}{24}", r"4\sqrt3", r"17 \sqrt{5} + 17", r"\frac{\sqrt{29}}{7}", r"2 \pm \sqrt{17}",
    r"5 \pm 3 \sqrt{2}", r"\{2\pm\sqrt{7},-3\}", r"-\frac{\pi}{9}", r"340 \pi", "7 - 4i", "-3 + 5i", "1+311i", r"10,\!240",
    r"33,\! 333,\! 333,\! 300", "61,500", r"\$41", r"\$27.40", r"\$51,\!204", r"6.2 \text{ cents}", r"23\mbox{ cm}^2",
    r"512 \mbox{ inches}^2", r"\frac{310}9\text{ degrees}", r"116^\circ", r"141 \frac{1}{2}", r"2\frac{3}{5}", "61_8",
    "3210_{5}", "(-1,9)", r"(-\infty, 4]", r"(-\infty, 1) \cup (5, \infty)", r"(-\sqrt{5}, \sqrt{5})", "(3,5]",
    r"\left(\frac{2}{7},\frac{9}{4}\right]", r"\left[ \frac{\pi^2}{9}, \frac{7 \pi^2}{4} \right]", r"x \in [-3,8]",
    r"\left( 4, \frac{\pi}{3} \right)", r"\left( \frac{5}{2}, -17 \right)", "(2,-15,-3,44)", "x=7", "y = -3x", "y = 4x + 1",
    "3x - 8y + 12z + 5 = 0", "-17x+4", "(a+7)(b+3)", "q - r", "5R^2", "4k+6", "7n^2 + 3n + 2", r"\tan x",
    "x^5 + x^4 + x^3 + x^2 + x + 1", r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", r"\begin{pmatrix} 2/7 \\ -9/7 \end{pmatrix}",
    r"\begin{pmatrix} -14 \\ 33 \\ 80 \end{pmatrix}", r"\text{(D)}", r"\text{west}", r"\text{Marta}", r"\text{odd}", "1,250", "2.5",
]  # fmt: skip


@pytest.mark.parametrize("gold", FORMS)
def test_a20_every_form_of_a_right_answer_equals_itself_with_any_spacing(grader, gold):
    spaced = gold.replace("{", "{ ").replace("=", " = ")
    if r"\left" not in gold and r"\text" not in gold:
        spaced = spaced.replace("(", r"\left( ").replace(")", r"\right) ")
    assert grader.grade(gold, gold)
    assert grader.grade(f"$ {spaced} $", gold)
    assert not grader.grade(gold, "12345.5")


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        (r"the answer is \boxed{1}. ... so \boxed{1}", "1", True),
        (r"\boxed{3} wait \boxed{4}", "3", False),
        (r"\boxed{3} wait \boxed{4}", "4", True),
    ],
)
def test_a23_only_the_last_box_counts(grader, text, gold, right):
    assert grader.grade(extract_answer(text), gold) is right


@pytest.mark.parametrize("bomb", ["9^{9^{9^9}}", "2^{2^{2^{100}}}", "10^{100000000}"])
def test_a25_a_bomb_is_wrong_at_once_and_counted(bomb, hang_guard):
    grader = Grader()
    with hang_guard():
        assert grader.grade(extract_answer(rf"\boxed{{{bomb}}}"), "5") is False
    assert grader.timeouts == 1 and grader._pool._workers == []  # by size, without a worker


@pytest.mark.parametrize("code", ["getattr(x,'__class__')", "x.__class__", "exit()", "(lambda: 1)()"])
def test_a29_code_is_text(code):
    grader = Grader()
    assert not grader.grade(extract_answer(rf"\boxed{{{code}}}"), "1")
    assert grader.timeouts == 0 and grader._pool._workers == []


def test_a31_verdicts_are_in_the_order_of_the_pairs(grader):
    texts = [r"\boxed{1}", "no idea", r"\boxed{3}", "", r"\boxed{5}"]
    pairs = [(extract_answer(text), gold) for text, gold in zip(texts, "12345", strict=True)]
    assert grader.grade_many(pairs) == [True, False, True, False, True]


def test_a33_the_box_in_the_prompt_is_not_an_answer(grader):
    assert extract_answer(DEFAULT_TEMPLATE + r"\boxed{ANSWER}") == "ANSWER"  # what a grader that reads the prompt would find
    assert extract_answer("the result is 12") == ""
    assert not grader.grade("", "12")
