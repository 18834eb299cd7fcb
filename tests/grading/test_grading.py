"""Which answers are the same. Every verdict is asked in both orders."""

import pytest

from grpojax.grading.answers import canonical_answer
from grpojax.grading.fold import fold
from grpojax.grading.latex import Unreadable, read_answer


def both_ways(grader, answer, gold):
    verdict = grader.grade(answer, gold)
    assert grader.grade(gold, answer) == verdict
    return verdict


SAME = [
    # fractions without braces: one token each
    (r"\frac{6}{5}", r"\frac65"),
    ("5/9", r"\frac 59"),
    ("9/19", r"\frac9{19}"),
    (r"\dfrac{3}{4}", r"\frac 34"),
    (r"\tfrac{1}{2}x", "x/2"),
    # labels and words
    ("(c)", r"\text{(C)}"),
    ("Evelyn", r"\text{Evelyn}"),
    # typesetting of numbers
    ("11111111100", r"11,\! 111,\! 111,\! 100"),
    (".5", "1/2"),
    (r"0.1\overline{6}", "1/6"),
    ("+7", "7"),
    ("5.", "5"),
    # units and signs that do not matter
    ("90", r"90^\circ"),
    ("5.4", r"5.4 \text{ cents}"),
    ("864", r"864 \mbox{ inches}^2"),
    ("270/7", r"\frac{270}7\text{ degrees}"),
    ("15 cm", r"15\mbox{ cm}^2"),
    ("50", r"50\%"),
    # mixed numbers are sums, with one sign over both parts
    (r"137 \frac{1}{2}", "137.5"),
    (r"1\frac{4}{5}", "9/5"),
    # names in front
    ("5", "x=5"),
    ("2x+3", "y = 2x + 3"),
    ("2x", "f(x) = 2x"),
    (r"x=1 \text{ or } x=-2", "-2,1"),
    # lists
    ("3, 5, 7", "7,5,3"),
    (r"\{1, 2\}", "2,1"),
    ("1, 2, 2", "1, 2"),
    ("(3, 0.5)", r"\left( 3, \frac{1}{2} \right)"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
    (r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1-\sqrt5, 1+\sqrt5\}"),
    # intervals
    (r"-2 \le x \le 7", "[-2,7]"),
    (r"7 \ge x > -2", "(-2,7]"),
    (r"(2,12) \cup (12,102)", r"(12,102)\cup(2,12)"),
    (r"x<2 \text{ or } x>3", r"(-\infty, 2) \cup (3, \infty)"),
    # matrices
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{bmatrix} 0.2 \\ -3.6 \end{bmatrix}"),
    (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \\ \end{pmatrix}", r"\begin{pmatrix} -1 & 0 \\ 0 & -\frac22 \end{pmatrix}"),
    # algebra
    (r"11\sqrt2", r"\sqrt{242}"),
    (r"\sqrt{3+2\sqrt2}", r"1+\sqrt2"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"(b+2)(a+5)", "ab + 2a + 5b + 10"),
    ("6 - 5i", "-5i+6"),
    (r"(1+i)^2", "2i"),
    (r"288 \pi", r"\pi \cdot 2^5 \cdot 9"),
    (r"\sin^2 x + \cos^2 x", "1"),
    (r"\sin^{-1} x", r"\arcsin x"),
    (r"\log_2 8", "3"),
    (r"\frac{\ln 8}{\ln 2}", "3"),
    (r"\binom{5}{2}", "10"),
    ("5!", "120"),
    ("2^10", "1024"),
    ("|x-1|", "|1-x|"),
    (r"\lfloor 7/2 \rfloor", "3"),
    (r"\sqrt[3]{8}", "2"),
    ("sqrt(3)/2", r"\frac{\sqrt{3}}{2}"),
    ("3*x", "3x"),
    ("5x - 7y + 11z + 4 = 0", "-10x+14y=22z+8"),
    ("52_8", "52_{8}"),
    (r"\infty", r"+\infty"),
]
DIFFERENT = [
    (r"\text{east}", r"\text{seat}"),
    ("east", "seat"),  # words, not products of letters
    ("R", "r"),
    ("0.33333333333333333333", "1/3"),  # equal as floats
    ("1.41421356237309504880168872420969807856967187537694", r"\sqrt{2}"),  # fifty correct digits
    (r"\sqrt{2}+10^{-60}", r"\sqrt{2}"),
    ("x=5", "y=5"),
    ("xy=6", "6"),
    (r"-3\frac12", "-2.5"),
    (r"3\frac12", "3/2"),
    ("(2,1)", "(1,2)"),
    (r"x \le 3", r"(-\infty,3)"),
    ("1,2,3", "1,2"),
    ("1,2", "1,2,3"),
    ("(1,2)", "(1,2,3)"),
    ("1/0", "2/0"),
    ("0/0", "1"),
    ("52", "52_8"),
    ("x < y", "x > y"),
    ("50", "0.5"),
    ("$", "%"),  # nothing is left of either
    ("x.__class__", "5"),
    ("exit()", "5"),
]


# Scientific notation and Euler's number. `2e-1` may be either.
WITH_E = [
    ("1e3", "1000", True),
    ("1E3", "1.0e3", True),
    ("1e3.", "1000", True),
    ("1e-3", "0.001", True),
    ("1e\u22123", "0.001", True),
    ("1E-3", "0.001", True),
    ("2e+5", "200000", True),
    ("2e+05", "200000", True),
    (".5e3", "500", True),
    ("5.e3", "5000", True),
    ("1.0e3", "1000", True),
    ("-3e2", "-300", True),
    ("6.02e23", r"6.02 \times 10^{23}", True),
    (r"3\times1.5e3", "4500", True),
    ("2e5+1", "200001", True),
    ("2e3x", "2000x", True),
    ("1,000e3", "1000000", True),
    (r"\frac{1e3}{2}", "500", True),
    (r"1e3\text{ m}", r"1000\text{ m}", True),
    (r"1e-3\text{ kg}", "0.001", True),
    ("x=1e3", "1000", True),
    ("1e3,5", "5,1000", True),
    (r"\{2e-1,3\}", "3,0.2", True),
    ("(1e3,2)", "(1000,2)", True),
    ("[0,1e3)", r"0 \le x < 1000", True),
    ("1e3", "1e4", False),
    ("1e99999", "5", False),
    ("2e", "e+e", True),
    ("2e^3", "e^3+e^3", True),
    ("2e+5", "5+2e", True),
    ("2e-1", "2e - 1", True),
    ("2e + 5", "200000", False),  # the spaces say that it is a sum
    ("2e+5x", "5x+2e", True),
    ("2e+5x", "200000x", False),
    (r"2e+5\pi", r"200000\pi", False),
    ("3e^x", r"3 \cdot e^{x}", True),
    ("2e^{3}", "2000", False),
    ("2e", "2", False),
    ("e3", "1000", False),
    ("1e-3", "e - 3", False),  # nobody writes 1e for e
    ("1.5e-3", "1.5e - 3", False),
]


@pytest.mark.parametrize(("answer", "gold", "same"), WITH_E)
def test_scientific_notation_and_eulers_number(grader, answer, gold, same):
    assert both_ways(grader, answer, gold) is same


@pytest.mark.parametrize(("answer", "gold"), SAME)
def test_the_same(grader, answer, gold):
    assert both_ways(grader, answer, gold)


@pytest.mark.parametrize(("answer", "gold"), DIFFERENT)
def test_different(grader, answer, gold):
    assert not both_ways(grader, answer, gold)


@pytest.mark.parametrize(
    "text",
    [
        "x = ",
        "a?b",
        r"\int_0^1 x",
        r"\{n^2 : n > 0\}",
        "1 < 2 < 3 < 4",
        "5!!!",
        "{1}{3}",  # typeset as 13
        "about 7",
        "6:30",
        "f(",
        r"\foo{3}",
        "1;2",
        "émile",
    ],
)
def test_what_cannot_be_read_equals_only_itself(grader, text):
    with pytest.raises(Unreadable):
        fold(read_answer(canonical_answer(text)))
    assert grader.grade(text, text)
    assert grader.grade(text, f" {text} ")
    assert not both_ways(grader, text, "0")
    assert not both_ways(grader, text, r"\foo{4}")


def test_grade_many_keeps_the_order(grader):
    assert grader.grade_many([("1", "1"), ("", "2"), (r"\sqrt4", "2"), ("x", "y")]) == [True, False, True, False]
