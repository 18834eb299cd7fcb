"""Finding answers and their normal form."""

import pytest

from grpojax.errors import InputError
from grpojax.grading.answers import canonical_answer, extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"a \boxed{1} b \boxed{2} c", "2"),
        (r"\boxed{\frac{1}{2^{3}}}", r"\frac{1}{2^{3}}"),
        (r"\boxed{1} \boxed{2", "1"),  # cut off in the last box
        (r"\boxed{1} \boxed{2{3}", "1"),
        (r"\boxed{ x = \boxed{5} }", "5"),  # the inner box opens last
        (r"\boxed{ x = \boxed{5}", "5"),
        (r"{{ } } } \boxed{5} {", "5"),  # braces outside do not matter
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),  # an escaped brace does not count
        (r"\\boxed{4}", "4"),  # a doubled backslash, as in texts from JSON
        (r"a\\\boxed{4}", "4"),
        (r"\boxed 7", ""),
        (r"\boxedly{7}", ""),
        (r"\fbox{7}", ""),
        (r"\boxed{1} \boxed{}", ""),  # only the last one counts
        ("7", ""),
        ("", ""),
    ],
)
def test_last_complete_box(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 4.", "4"),
        ("so 3, or rather -12", "-12"),
        ("that is 10-3", "3"),  # a subtraction, not a sign
        ("\u22127", "\u22127"),
        ("costs $1,234.50.", "1,234.50"),
        ("among 1, 2, 3", "3"),
        ("odds of -3/4", "-3/4"),
        ("it is .5", ".5"),
        ("about 1e3 m", "1e3"),
        ("that is 1.5e-3.", "1.5e-3"),
        ("so 5 e", "5"),
        (r"\boxed{9} then 4", "9"),  # a box takes precedence
        (r"\boxed{} but 4", "4"),
        ("none", ""),
    ],
)
def test_last_number_if_there_is_no_box(text, answer):
    assert extract_answer(text, fallback="last_number") == answer


def test_evaluation_and_training_read_a_bare_number_differently():
    assert extract_answer("The answer is 4.") == ""
    assert extract_answer("The answer is 4.", fallback="last_number") == "4"


def test_unknown_fallback():
    with pytest.raises(InputError, match=r"unknown fallback 'full'; expected None or 'last_number'"):
        extract_answer("4", fallback="full")


@pytest.mark.parametrize(
    "unit",
    [
        r"\boxed{",
        "{",
        "}",
        r"\boxed",
        r"\boxed{1}",
        "\\",
        "1",
        "1,",
        "1,234",
        "-",
        "0,",
        ".",
        "1/",
        r"\boxed  ",
        r"\text{",
        " ",
    ],
)
def test_long_texts_take_linear_time(unit, hang_guard):
    text = unit * (50_000 // len(unit))
    with hang_guard():  # one quadratic pass takes longer
        extract_answer(text, fallback="last_number")
        extract_answer(r"\boxed{" + text, fallback="last_number")
        canonical_answer(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (r"\left( 3, \dfrac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        (r"\bigl(1,2\bigr]", "(1,2]"),
        (r"\Biggl(1,2\Biggr]", "(1,2]"),
        (r"$90^\circ$", r"90\unit{degree}"),
        (r"90^{\circ}", r"90\unit{degree}"),
        ("90°", r"90\unit{degree}"),
        (r"\$32,\!348", r"\unit{dollar}32348"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        ("60, 120", "60, 120"),  # a list
        ("58,500", "58500"),
        (r"10\,080", "10080"),
        ("12,34", "12,34"),  # not thousands
        ("(0,100)", "(0,100)"),  # between brackets a comma separates
        ("3 1/2", "3 1/2"),  # the space of a mixed number
        (r"50\%", r"50\unit{percent}"),
        (r"15\mbox{ cm}^2", r"15\unit{cm^2}"),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}7\unit{degrees}"),
        ("12 square feet", r"12\unit{square feet}"),
        (r"\text{ East }", r"\text{east}"),
        ("2^{x+1}", "2^{x+1}"),  # braces group
        ("x² − 1", "x^{2}-1"),
        (r"3 \times 4 \cdot 5", "3*4*5"),
        (r"\pi r", r"\pi r"),
        ("3 or 4", "3,4"),
        ("7.", "7"),
        ("**42**", "42"),
        (r"\textbf{42 apples}", r"42\unit{apples}"),
        ("42 apples", r"42\unit{apples}"),
        ("1.5 million", "1.5*1000000"),
        ("0.000073", "0.000073"),
        ("7.3e-5", "7.3*10^{-5}"),
        ("1e3", "1*10^{3}"),
        ("2e+5x", "2e+5x"),  # Euler's number
        ("x>1 and x<5", r"x>1\land x<5"),  # of inequalities, both hold
        ("52₈", "52_{8}"),
        (r"(-\infty,1) U (5,\infty)", r"(-\infty,1)\cup(5,\infty)"),
    ],
)
def test_normal_form(text, normal):
    assert canonical_answer(text) == normal
    assert canonical_answer(normal) == normal
