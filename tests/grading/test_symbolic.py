"""Algebra: equal values and equal relations."""

import pytest

from grpojax.grading.fold import fold
from grpojax.grading.latex import read_answer
from grpojax.grading.symbolic import same_relation, same_value


def tree(text):
    return fold(read_answer(text))


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (r"\sqrt{108}", r"6\sqrt{3}", True),
        (r"\frac{1}{\sqrt{7}}", r"\frac{\sqrt{7}}{7}", True),
        (r"\sqrt{2}\sqrt{3}", r"\sqrt{6}", True),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}", False),
        (r"\frac{1}{\sqrt{5}-2}", r"\sqrt{5}+2", True),  # (sqrt 5 - 2)(sqrt 5 + 2) = 1
        (r"\sqrt{\frac{5}{9}}", r"\frac{\sqrt5}{3}", True),
        (r"\sqrt{-\frac{1}{2}}", r"\frac{i}{\sqrt{2}}", True),
        (r"\sqrt{\frac{1}{-x}}", r"\frac{i}{\sqrt{x}}", True),  # with the sign of the principal root
        (r"\sqrt{\frac{1}{-x}}", r"-\frac{i}{\sqrt{x}}", False),
        (r"2^{-3/2}", r"\frac{\sqrt2}{4}", True),
        (r"\sqrt{x^2y}", r"x\sqrt{y}", True),
        (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}", True),
        (r"\frac{x^2-1}{x-1}", "x+1", True),
        (r"\frac{1}{x}+\frac{1}{y}", r"\frac{x+y}{xy}", True),
        (r"\frac{1}{x}+\frac{1}{y}", r"\frac{2}{x+y}", False),
        ("(1+i)^8", "16", True),  # (1+i)^2 = 2i, (2i)^4 = 16
        (r"\frac{1+i}{1-i}", "i", True),
        (r"20+3\pi", r"23\pi", False),
        (r"\pi^2-\pi", r"\pi(\pi-1)", True),
        (r"\pi+e", r"\pi e", False),
        (r"\pi+e", r"e+\pi", True),
        (r"\sqrt{3+2\sqrt2}", r"1+\sqrt2", True),
        (r"\sqrt[3]{2}", "2", False),
        (r"\sqrt{x+1}", "x", False),
        ("2^x", "x^2", False),
        (r"\sin x", "x", False),
        ("(x+y+z+1)^{30}", "1", False),  # thousands of terms
        ("(1.23456789x+9.87654321y)^{40}", "1", False),  # long coefficients
    ],
)
def test_same_value(left, right, same):
    assert same_value(tree(left), tree(right)) is same
    assert same_value(tree(right), tree(left)) is same


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("2x+y=7", "y=7-2x", True),
        ("2x+y=7", "7-2x=y", True),  # -1 times the other
        ("6x-10y=4", "3x-5y=2", True),
        ("6x-10y<4", "3x-5y<2", True),
        ("6x-10y<4", "5y-3x<-2", False),  # -2 times the other turns an inequality around
        (r"\frac{x^2}{4}+\frac{y^2}{9}=1", "9x^2+4y^2=36", True),
        ("y=3x+4", "y=3x+5", False),
        ("xy=x", "y=1", False),  # also where x = 0
        (r"y=\pi x", "y=3x", False),
        (r"y=\sin x", "y=x", False),
    ],
)
def test_same_relation(left, right, same):
    assert same_relation(tree(left), tree(right)) is same
    assert same_relation(tree(right), tree(left)) is same
