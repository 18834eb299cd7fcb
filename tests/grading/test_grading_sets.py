"""The normal form of sets of real numbers. The pieces are written as text, [a,b) and so on."""

import pytest

from grpojax.grading.answers import canonical_answer
from grpojax.grading.fold import fold
from grpojax.grading.latex import INFINITY, read_answer
from grpojax.grading.real_sets import MINUS_INFINITY, NoRealSet, is_set_operation, known_order, real_set


def order(left, right):
    rank = known_order(left, right)
    if rank is None:
        raise NoRealSet
    return rank


def shown(tree):
    return {MINUS_INFINITY: "-oo", INFINITY: "oo"}.get(tree) or str(tree[1])


def pieces(text):
    found, letter = real_set(fold(read_answer(canonical_answer(text))), order)
    texts = [
        f"{'(' if low.is_after else '['}{shown(low.value)},{shown(high.value)}{']' if high.is_after else ')'}"
        for low, high in found
    ]
    return " ".join(texts), letter


@pytest.mark.parametrize(
    ("text", "form", "letter"),
    [
        (r"(5,\infty)\cup(-\infty,1)", "(-oo,1) (5,oo)", ""),
        (r"[0,2]\cup[2,5]", "[0,5]", ""),
        (r"[0,2)\cup[2,5]", "[0,5]", ""),
        (r"[0,2)\cup(2,5]", "[0,2) (2,5]", ""),
        (r"[0,2)\cup(2,5]\cup\{2\}", "[0,5]", ""),
        (r"[0,9]\cup[2,5]", "[0,9]", ""),
        (r"(0,2)\cup[0,1]", "[0,2)", ""),
        (r"[0,5]\cap[3,9]", "[3,5]", ""),
        (r"[0,5)\cap[3,5]", "[3,5)", ""),
        (r"[0,1]\cap[2,3]", "", ""),
        (r"[0,1]\cap[1,3]", "[1,1]", ""),
        (r"[0,1)\cap[1,3]", "", ""),
        (r"\mathbb{R}\setminus\{2\}", "(-oo,2) (2,oo)", ""),
        (r"[0,2]\setminus(1,2]", "[0,1]", ""),
        (r"\mathbb{R}\setminus\{3,1\}", "(-oo,1) (1,3) (3,oo)", ""),
        (r"x<4", "(-oo,4)", "x"),
        (r"4\le t", "[4,oo)", "t"),
        (r"x\ne3", "(-oo,3) (3,oo)", "x"),
        (r"x<1\text{ or }x\ge5", "(-oo,1) [5,oo)", "x"),
        (r"x>1\text{ and }x\le5", "(1,5]", "x"),
        (r"8\ge x>-3", "(-3,8]", "x"),
        (r"\{x\in\mathbb{R}:x\ge0, x\ne2\}", "[0,2) (2,oo)", "x"),
        (r"x>a", "(a,oo)", "x"),  # of two letters the later in the alphabet is the unknown
        (r"a<x<b", "(a,b)", "x"),  # though the order of a and b is not known
    ],
)
def test_normal_form(text, form, letter):
    assert pieces(text) == (form, letter)


@pytest.mark.parametrize(
    "text",
    [
        "x>1, y>1",  # two unknowns
        "x>1, x<3",  # any, or all?
        r"(1,a)\cup(b,2)",  # in which order?
        r"(1,2,3)\cup(4,5)",
        r"\text{odd}",
        "x<x+1",
        r"\begin{pmatrix}1\end{pmatrix}",
    ],
)
def test_not_a_set_of_real_numbers(text):
    with pytest.raises(NoRealSet):
        pieces(text)


def test_a_pair_alone_is_not_a_set_of_numbers():
    assert not is_set_operation(read_answer("(1,2)"))
    assert not is_set_operation(read_answer("1,2"))
    assert not is_set_operation(read_answer("x=2"))
    assert is_set_operation(read_answer(r"(1,2)\cup(3,4)"))
    assert is_set_operation(read_answer("x<2"))
