"""Sets of real numbers from intervals, inequalities, points, unions, intersections and differences, in normal form.

A set is a sorted list of pieces that do not touch. The caller provides the order of two ends: rational ends are compared
directly, others by algebra.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from grpojax.grading.latex import INFINITY, Tree, names

Order = Callable[[Tree, Tree], int]  # -1, 0 or 1 as the first value is below, equal to or above the second

MINUS_INFINITY: Tree = ("multiply", ("number", Fraction(-1)), INFINITY)


class NoRealSet(Exception):
    """The tree is not a set of real numbers, or the order of its ends is unknown."""


class Piece(NamedTuple):
    """An interval, or a point if both ends are the same."""

    low: Tree
    has_low: bool
    high: Tree
    has_high: bool


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
        sets = [real_set(part, order) for part in tree[1:]]
        if kind == "set" and any(letter for _, letter in sets):
            raise NoRealSet("a list of inequalities, which can mean any or all of them")
        letters = {letter for _, letter in sets} - {""}
        if len(letters) > 1:
            raise NoRealSet("two letters")
        letter = letters.pop() if letters else ""
        if kind in ("union", "set"):
            return _union([piece for pieces, _ in sets for piece in pieces], order), letter
        pieces = sets[0][0]
        for more, _ in sets[1:]:
            pieces = _intersection(pieces, _complement(more) if kind == "difference" else more, order)
        return pieces, letter
    if kind == "tuple" and len(tree) == 5 and tree[1] in "([" and tree[2] in ")]":
        return [Piece(tree[3], tree[1] == "[", tree[4], tree[2] == "]")], ""
    if kind == "relation":
        return _solutions(tree)
    if tree == ("symbol", "\\mathbbR"):
        return [Piece(MINUS_INFINITY, False, INFINITY, False)], ""
    if tree == ("symbol", "\\emptyset"):
        return [], ""
    if kind in ("number", "constant", "add", "multiply", "power", "function"):
        return [Piece(tree, True, tree, True)], ""
    raise NoRealSet(f"a {kind}")


def _solutions(tree: Tree) -> tuple[list[Piece], str]:
    """The numbers for which `x < a`, `a <= x`, `x = a` or `x != a`; of two letters, the later in the alphabet is x."""
    _, sign, *sides = tree
    letters = [side[1] if side[0] == "symbol" else "" for side in sides]
    letter = max(letters)
    if len(sides) != 2 or not letter:
        raise NoRealSet("not a bound on a letter")
    is_left = letters[0] == letter
    bound = sides[1] if is_left else sides[0]
    if letter in names(bound) or bound[0] in ("tuple", "set", "matrix", "text", "relation", "union"):
        raise NoRealSet("not a bound on a letter")
    if sign == "=":
        return [Piece(bound, True, bound, True)], letter
    if sign == "\\neq":
        return _complement([Piece(bound, True, bound, True)]), letter
    included = sign == "\\leq"
    if is_left:
        return [Piece(MINUS_INFINITY, False, bound, included)], letter
    return [Piece(bound, included, INFINITY, False)], letter


def _union(waiting: list[Piece], order: Order) -> list[Piece]:
    """Sorted pieces, joined if they overlap or touch."""
    waiting, pieces = [*waiting], []
    while waiting:
        first = waiting[0]
        for piece in waiting[1:]:
            if (order(piece.low, first.low), not piece.has_low) < (0, not first.has_low):
                first = piece
        waiting.remove(first)
        last = pieces[-1] if pieces else None
        gap = 1 if last is None else order(first.low, last.high)
        if last is None or gap > 0 or (gap == 0 and not (first.has_low or last.has_high)):
            pieces.append(first)
        else:
            pieces[-1] = last._replace(**_higher_end(last, first, order))
    return pieces


def _higher_end(one: Piece, other: Piece, order: Order) -> dict[str, Tree | bool]:
    rank = order(one.high, other.high)
    if rank == 0:
        return {"high": one.high, "has_high": one.has_high or other.has_high}
    piece = one if rank > 0 else other
    return {"high": piece.high, "has_high": piece.has_high}


def _intersection(left: Sequence[Piece], right: Sequence[Piece], order: Order) -> list[Piece]:
    pieces = [_overlap(one, other, order) for one in left for other in right]
    return [piece for piece in pieces if piece is not None]


def _overlap(one: Piece, other: Piece, order: Order) -> Piece | None:
    rank = order(one.low, other.low)
    low = one.low if rank >= 0 else other.low
    has_low = one.has_low and other.has_low if rank == 0 else (one if rank > 0 else other).has_low
    rank = order(one.high, other.high)
    high = one.high if rank <= 0 else other.high
    has_high = one.has_high and other.has_high if rank == 0 else (one if rank < 0 else other).has_high
    try:
        width = order(high, low)
    except NoRealSet:
        width = 1  # letters: a < x < b is (a, b)
    if width < 0 or (width == 0 and not (has_low and has_high)):
        return None
    return Piece(low, has_low, high, has_high)


def _complement(pieces: Sequence[Piece]) -> list[Piece]:
    gaps, low, has_low = [], MINUS_INFINITY, False
    for piece in pieces:
        if piece.low != MINUS_INFINITY:
            gaps.append(Piece(low, has_low, piece.low, not piece.has_low))
        low, has_low = piece.high, not piece.has_high
    if low != INFINITY:
        gaps.append(Piece(low, has_low, INFINITY, False))
    return gaps
