"""When two answers are the same: exact rules on the trees of `latex.py`, without sympy.

What takes more than rational arithmetic is left to an `Algebra`; the one in `symbolic.py` uses sympy.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from grpojax.grading.answers import readings
from grpojax.grading.fold import UNIT_VALUES, VALUES, fold
from grpojax.grading.latex import Tree, Unreadable, items_of, names, read_answer
from grpojax.grading.real_sets import NoRealSet, is_set_operation, known_order, real_set
from grpojax.grading.units import Unit, unit_of


class Undecided(Exception):
    """Only algebra can tell."""


class Algebra(NamedTuple):
    """Whether two values are equal; which is larger (-1, 0, 1, or None if it depends on letters); whether two relations
    with the same sign have the same solutions.
    """

    same_value: Callable[[Tree, Tree], bool]
    order: Callable[[Tree, Tree], int | None]
    same_relation: Callable[[Tree, Tree], bool]


def _undecided(left: Tree, right: Tree) -> NoReturn:
    raise Undecided


NO_ALGEBRA = Algebra(_undecided, _undecided, _undecided)


def same_answer(answer: str, gold: str, algebra: Algebra = NO_ALGEBRA) -> bool:
    r"""Whether two answers, as they were written, are the same: by their trees, or as words or choice letters.

    >>> same_answer(r"\text{(C)} 12", r"\text{(C)}"), same_answer(r"\text{(C)} 12", "12"), same_answer("C", "(c)")
    (True, True, True)

    Raises:
      Undecided: if it takes algebra and `algebra` is NO_ALGEBRA.
      TooLarge
    """
    return any(_same_text(one, other, algebra) for one in readings(answer) for other in readings(gold))


def _same_text(left: str, right: str, algebra: Algebra) -> bool:
    """`same_answer` of two canonical forms."""
    if left == right or _same_words(left, right):
        return left != ""
    choices = [_CHOICE.fullmatch(text) for text in (left, right)]
    if any(choices):
        return _same_choice(choices, [left, right], algebra)
    try:
        return same_tree(tree_of(left), tree_of(right), algebra)
    except Unreadable:
        return False


_CHOICE = re.compile(r"\\text\{\(([a-z])\)[ .:]?\}(.+)")
_WORDS = re.compile(r"[^\W\d_]+(?:[-'][^\W\d_]+)*")


def _same_choice(choices: list[re.Match[str] | None], texts: list[str], algebra: Algebra) -> bool:
    """Compares `(C) 12` with a letter by the letter, with a value by the value, and with `(C) 12` by both."""
    letters = [choice[1] if choice else _bare_words(text).lower() for choice, text in zip(choices, texts, strict=True)]
    if not all(choices) and all(len(letter) == 1 and letter.isalpha() for letter in letters):
        return letters[0] == letters[1]
    values = [choice[2] if choice else text for choice, text in zip(choices, texts, strict=True)]
    return (letters[0] == letters[1] or not all(choices)) and _same_text(*values, algebra)


def _same_words(left: str, right: str) -> bool:
    r"""The same words, or choice letter: C, (c), \text{(C)}. Bare letters alone are variables, whose case counts."""
    words = [_bare_words(text) for text in (left, right)]
    marked = any(word != text.replace(" ", "") for word, text in zip(words, (left, right), strict=True))
    return marked and words[0].lower() == words[1].lower() and _WORDS.fullmatch(words[0]) is not None


def _bare_words(text: str) -> str:
    bare = re.sub(r"\\text\{(?:(?:the|an|a) )?|\}| ", "", text)
    choice = re.fullmatch(r"\(?([A-Za-z])[.)]?", bare)
    return choice[1] if choice else bare[1:-1] if bare.startswith("(") and bare.endswith(")") else bare


@functools.lru_cache(maxsize=4096)
def tree_of(text: str) -> Tree:
    """The folded tree of a canonical answer; cached, because a right answer is compared with many.

    Raises:
      Unreadable, TooLarge
    """
    return fold(read_answer(text))


def same_tree(left: Tree, right: Tree, algebra: Algebra) -> bool:
    """Whether two folded trees are the same answer, by the rules of docs/grading.md.

    Raises:
      Undecided: if it takes algebra and `algebra` is NO_ALGEBRA.
    """
    if left == right:
        return True
    kinds = {left[0], right[0]}
    if "quantity" in kinds and not kinds & {"set", "relation"}:
        return _same_quantity(left, right, algebra)
    if is_set_operation(left) or is_set_operation(right):
        return _same_real_set(left, right, algebra)
    if "relation" in kinds and len(kinds) == 2:
        equation, other = (left, right) if left[0] == "relation" else (right, left)
        values = _values(equation)
        if values:
            return all(same_tree(value, other, algebra) for value in values)
    if "set" in kinds:
        return _same_list(left, right, algebra)
    if len(kinds) == 2 and not kinds <= VALUES:
        return _is_column_of(left, right, algebra) or _is_column_of(right, left, algebra)
    if kinds <= {"number", "constant", "symbol", "text"}:
        return False
    if "tuple" in kinds:
        return left[1:3] == right[1:3] and _all_same(left[3:], right[3:], algebra)
    if kinds & {"matrix", "row"}:
        return _all_same(left[1:], right[1:], algebra)
    if "relation" in kinds:
        return _same_relation(left, right, algebra)
    return algebra.same_value(left, right)


def _all_same(lefts: Sequence[Tree], rights: Sequence[Tree], algebra: Algebra) -> bool:
    return len(lefts) == len(rights) and all(
        same_tree(left, right, algebra) for left, right in zip(lefts, rights, strict=True)
    )


def _same_list(left: Tree, right: Tree, algebra: Algebra) -> bool:
    """Compares lists as sets; `x = 1, y = 2` is also the point (1, 2)."""
    for one, other in ((left, right), (right, left)):
        point = _point(one) if other[0] == "tuple" else None
        if point:
            return same_tree(point, other, algebra)
    lefts, rights = items_of(left), items_of(right)
    return all(any(same_tree(one, other, algebra) for other in rights) for one in lefts) and all(
        any(same_tree(one, other, algebra) for one in lefts) for other in rights
    )


def _point(tree: Tree) -> Tree | None:
    """`x = 1, y = 2` as (1, 2), with the letters in alphabetical order."""
    if tree[0] != "set" or any(item[:2] != ("relation", "=") or item[2][0] != "symbol" for item in tree[1:]):
        return None
    values = {item[2][1]: item[3] for item in tree[1:]}
    return ("tuple", "(", ")", *(values[name] for name in sorted(values))) if len(values) == len(tree) - 1 else None


def _is_column_of(matrix: Tree, point: Tree, algebra: Algebra) -> bool:
    """Whether a matrix is the column of a point's coordinates."""
    is_column = matrix[0] == "matrix" and point[:3] == ("tuple", "(", ")") and all(len(row) == 2 for row in matrix[1:])
    return is_column and _all_same([row[1] for row in matrix[1:]], point[3:], algebra)


def _values(equation: Tree) -> Sequence[Tree]:
    """The values of an equation, which all count: what a name is equal to, or both sides of `6 * 7 = 42`."""
    _, sign, left, *values = equation
    if sign != "=":
        return ()
    match left:
        case ("symbol" | "text", _):
            return values
        case ("tuple", _, _, *items) if all(item[0] == "symbol" for item in items):
            return values
        case ("multiply", ("symbol", head) | ("power", ("symbol", head), _), ("symbol", last)):
            # f(x), f^{-1}(x), f'(x), or the line AB
            return values if head[0] in "fghpqFGHPQ" or (head + last).isupper() else ()
    return () if names(left) else [left, *values]


def _same_relation(left: Tree, right: Tree, algebra: Algebra) -> bool:
    if left[1] != right[1]:
        return False
    if left[2] == right[2] and all(same_tree(one, other, algebra) for one in left[3:] for other in right[3:]):
        return True
    if not len(left) == len(right) == 4 or not {side[0] for side in (*left[2:], *right[2:])} <= VALUES:
        return False
    return algebra.same_relation(left, right)


def _same_real_set(left: Tree, right: Tree, algebra: Algebra) -> bool:
    """Compares sets of real numbers; if they cannot be read as such, their parts, or as relations."""
    order = functools.partial(_order, algebra=algebra)
    try:
        (lefts, letter), (rights, other_letter) = real_set(left, order), real_set(right, order)
    except NoRealSet:
        kinds = {left[0], right[0]}
        if kinds == {"relation"}:
            return _same_relation(left, right, algebra)
        if kinds == {"difference"}:
            return _all_same(left[1:], right[1:], algebra)
        return (kinds <= {"set", "union"} or kinds == {"intersection"}) and _same_list(
            ("set", *left[1:]), ("set", *right[1:]), algebra
        )
    if letter and other_letter and letter != other_letter:
        return False
    ends, other_ends = ([cut for piece in pieces for cut in piece] for pieces in (lefts, rights))
    return [end.is_after for end in ends] == [end.is_after for end in other_ends] and _all_same(
        [end.value for end in ends], [end.value for end in other_ends], algebra
    )


def _order(left: Tree, right: Tree, algebra: Algebra) -> int:
    rank = known_order(left, right)
    if rank is None:
        rank = algebra.order(left, right)
    if rank is None:
        raise NoRealSet("the order depends on letters")
    return rank


def _same_quantity(left: Tree, right: Tree, algebra: Algebra) -> bool:
    """Compares the values in one unit if both have one of the same kind, and without units otherwise."""
    value, name = left[1:] if left[0] == "quantity" else (left, "")
    other_value, other_name = right[1:] if right[0] == "quantity" else (right, "")
    unit, other_unit = unit_of(name) or Unit(""), unit_of(other_name) or Unit("")
    kinds = {unit.kind, other_unit.kind}
    if len(kinds) == 1 and not kinds & {"", "?"}:
        scaled = _times(value, ("number", unit.size)), _times(other_value, ("number", other_unit.size))
        return same_tree(*scaled, algebra)
    if kinds == {"?"} and name.removesuffix("s") != other_name.removesuffix("s"):
        return False
    if not kinds & {"", "?"} and unit.kind.partition("^")[0] != other_unit.kind.partition("^")[0]:
        return False  # kilograms and dollars; cm for cm^2 is taken for a slip
    if same_tree(value, other_value, algebra):
        return True
    if not other_name and unit.kind in UNIT_VALUES:
        return same_tree(_times(value, *UNIT_VALUES[unit.kind]), right, algebra)
    if not name and other_unit.kind in UNIT_VALUES:
        return same_tree(left, _times(other_value, *UNIT_VALUES[other_unit.kind]), algebra)
    return False


def _times(value: Tree, *factors: Tree) -> Tree:
    return fold(("multiply", *factors, value))
