"""Sets of real numbers (intervals, inequalities, points, unions, intersections, differences) in one normal form.

A set is a sorted list of pieces that do not touch. The caller provides the order of two ends.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from grpojax.grading.latex import INFINITY, MINUS_ONE, Tree, names

Order = Callable[[Tree, Tree], int]  # -1, 0 or 1 if the first value is below, equal to or above the second

MINUS_INFINITY: Tree = ("multiply", MINUS_ONE, INFINITY)


class NoRealSet(Exception):
    """The tree is not a set of real numbers, or the order of its ends is unknown."""


class Cut(NamedTuple):
    """A cut of the number line, just before a value or just after it."""

    value: Tree
    is_after: bool


class Piece(NamedTuple):
    """The numbers between two cuts: [1, 2) from before 1 to before 2, the point 1 from before 1 to after it."""

    low: Cut
    high: Cut


def known_order(left: Tree, right: Tree) -> int | None:
    """The order of two values that are equal, infinite or numbers; None if only algebra can tell."""
    if left == right:
        return 0
    if MINUS_INFINITY in (left, right) or INFINITY in (left, right):
        return -1 if left == MINUS_INFINITY or right == INFINITY else 1
    if left[0] == right[0] == "number":
        return -1 if left[1] < right[1] else 1
    return None


def is_set_operation(tree: Tree) -> bool:
    """Whether the kind of a tree shows that it is a set of numbers; a pair (1, 2) could be an interval or a point."""
    if tree[0] == "set":
        return any(is_set_operation(item) for item in tree[1:])
    inequality = tree[0] == "relation" and tree[1] != "="
    return inequality or tree[0] in ("union", "intersection", "difference") or tree == ("symbol", "\\mathbbR")


def real_set(tree: Tree, order: Order) -> tuple[list[Piece], str]:
    """The pieces of a set, and the letter of its inequalities ("" without any).

    Raises:
      NoRealSet
    """
    kind = tree[0]
    if kind in ("union", "set", "intersection", "difference"):
        sets, letters = zip(*(real_set(part, order) for part in tree[1:]), strict=True)
        letter = max(letters)
        if kind == "set" and letter:
            raise NoRealSet("a list of inequalities, which can mean any or all of them")
        if not {*letters} <= {letter, ""}:
            raise NoRealSet("two letters")
        if kind in ("union", "set"):
            return _union([piece for pieces in sets for piece in pieces], order), letter
        pieces = sets[0]
        for more in sets[1:]:
            pieces = _intersection(pieces, _complement(more) if kind == "difference" else more, order)
        return pieces, letter
    match tree:
        case ("tuple", opening, closing, low, high):
            return [Piece(Cut(low, opening == "("), Cut(high, closing == "]"))], ""
        case ("relation", *_):
            return _solutions(tree)
        case ("symbol", "\\mathbbR"):
            return [Piece(_START, _END)], ""
        case ("symbol", "\\emptyset"):
            return [], ""
        case ("number" | "constant" | "add" | "multiply" | "power" | "function", *_):
            return [Piece(Cut(tree, False), Cut(tree, True))], ""
    raise NoRealSet(f"a {kind}")


_START, _END = Cut(MINUS_INFINITY, True), Cut(INFINITY, False)


def _solutions(tree: Tree) -> tuple[list[Piece], str]:
    """The solutions of `x < a`, `a <= x`, `x = a` or `x != a`; of two letters, the later in the alphabet is x."""
    _, sign, *sides = tree
    letters = [side[1] if side[0] == "symbol" else "" for side in sides]
    letter = max(letters)
    is_left = letters[0] == letter
    bound = sides[1] if is_left else sides[0]
    no_bound = ("tuple", "set", "matrix", "text", "relation", "union")
    if len(sides) != 2 or not letter or letter in names(bound) or bound[0] in no_bound:
        raise NoRealSet("not a bound on a letter")
    before, after = Cut(bound, False), Cut(bound, True)
    if sign in ("=", "\\neq"):
        pieces = [Piece(before, after)]
        return pieces if sign == "=" else _complement(pieces), letter
    if is_left:
        return [Piece(_START, after if sign == "\\leq" else before)], letter
    return [Piece(after if sign == "<" else before, _END)], letter


def _compare(one: Cut, other: Cut, order: Order) -> int:
    return order(one.value, other.value) or one.is_after - other.is_after


def _union(pieces: list[Piece], order: Order) -> list[Piece]:
    """Sorted pieces, joined if they overlap or touch."""
    key = functools.cmp_to_key(functools.partial(_compare, order=order))
    joined: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: key(piece.low)):
        if joined and key(piece.low) <= key(joined[-1].high):
            joined[-1] = Piece(joined[-1].low, max(joined[-1].high, piece.high, key=key))
        else:
            joined.append(piece)
    return joined


def _intersection(lefts: list[Piece], rights: list[Piece], order: Order) -> list[Piece]:
    key = functools.cmp_to_key(functools.partial(_compare, order=order))
    overlaps = [
        Piece(max(one.low, other.low, key=key), min(one.high, other.high, key=key)) for one in lefts for other in rights
    ]
    return [piece for piece in overlaps if not _is_empty(piece, order)]


def _is_empty(piece: Piece, order: Order) -> bool:
    try:
        return _compare(piece.low, piece.high, order) >= 0
    except NoRealSet:
        return False  # letters: a < x < b is (a, b)


def _complement(pieces: list[Piece]) -> list[Piece]:
    """The gaps of a sorted set."""
    ends = [_START, *(cut for piece in pieces for cut in piece), _END]
    gaps = [Piece(low, high) for low, high in zip(ends[::2], ends[1::2], strict=True)]
    return [gap for gap in gaps if gap.low.value != INFINITY and gap.high.value != MINUS_INFINITY]
