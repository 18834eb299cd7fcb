"""When two answers are the same: rules on the trees of `latex.py`, exact, and without sympy.

What takes algebra (roots, letters, functions) is left to an `Algebra`; `symbolic.py` has the one that uses sympy.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from grpojax.tasks.latex import TooLarge, Tree, Unreadable, items_of

MAX_BITS = 30_000  # of a numerator or denominator; 2006! has 19,000
MAX_WORK = 20 * MAX_BITS  # bits of all intermediate results together
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 3_000  # also the upper number of a binomial


class Undecided(Exception):
    """Only algebra can tell."""


class Algebra(NamedTuple):
    """Whether two values are equal, and whether two relations (same sign) have the same solutions."""

    same_value: Callable[[Tree, Tree], bool]
    same_relation: Callable[[Tree, Tree], bool]


def _undecided(left: Tree, right: Tree) -> bool:
    raise Undecided


NO_ALGEBRA = Algebra(_undecided, _undecided)


def same_answer(left: Tree, right: Tree, algebra: Algebra = NO_ALGEBRA) -> bool:
    """Whether two folded trees are the same answer.

    Sets are equal as sets, and one value is a set of one. Tuples agree in brackets and places, matrices in every entry.
    A name in front (`x =`, `f(x) =`) does not count against an answer without one.

    Raises:
      Undecided: where it takes algebra and there is none.
    """
    if left == right:
        return True
    if "set" in (left[0], right[0]):
        lefts, rights = items_of(left), items_of(right)
        return all(any(same_answer(one, other, algebra) for other in rights) for one in lefts) and all(
            any(same_answer(one, other, algebra) for one in lefts) for other in rights
        )
    if (left[0] == "relation") != (right[0] == "relation"):
        return (
            same_answer(_without_name(left), _without_name(right), algebra) if _named(left) or _named(right) else False
        )
    if left[0] != right[0] and {left[0], right[0]} & {"tuple", "matrix", "text"}:
        return False
    if left[0] in ("number", "text") and left[0] == right[0]:
        return False
    if left[0] == "tuple":
        return left[1:3] == right[1:3] and _all_same(left[3:], right[3:], algebra)
    if left[0] == "matrix":
        return len(left) == len(right) and all(
            _all_same(*rows, algebra) for rows in zip(left[1:], right[1:], strict=True)
        )
    if left[0] == "relation":
        return _same_relation(left, right, algebra)
    return algebra.same_value(left, right)


def _all_same(lefts: Tree, rights: Tree, algebra: Algebra) -> bool:
    return len(lefts) == len(rights) and all(
        same_answer(left, right, algebra) for left, right in zip(lefts, rights, strict=True)
    )


def _same_relation(left: Tree, right: Tree, algebra: Algebra) -> bool:
    if left[1] != right[1]:
        return False
    if left[2] == right[2]:
        return same_answer(left[3], right[3], algebra)
    sides = {side[0] for side in (*left[2:], *right[2:])}
    return not sides & {"set", "tuple", "matrix", "text", "relation"} and algebra.same_relation(left, right)


def _named(tree: Tree) -> bool:
    """`x = ...`, `f(x) = ...` or `\\text{area} = ...`."""
    if tree[0] != "relation" or tree[1] != "=":
        return False
    name = tree[2]
    application = name[0] == "multiply" and len(name) == 3 and name[1][0] == name[2][0] == "symbol"
    return name[0] in ("symbol", "text") or (application and name[1][1] in "fghpqFGHPQ")


def _without_name(tree: Tree) -> Tree:
    return tree[3] if _named(tree) else tree


def fold(tree: Tree) -> Tree:
    """The tree with every rational part worked out.

    >>> from grpojax.tasks.latex import read_answer
    >>> fold(read_answer("3 1/2+x"))
    ('add', ('number', Fraction(7, 2)), ('symbol', 'x'))

    Raises:
      TooLarge: for numbers, exponents or factorials that would take long.
      Unreadable: for a division by zero or the factorial of what has none.
    """
    return _Folder().fold(tree)


class _Folder:
    """Keeps count of the bits computed with."""

    def __init__(self) -> None:
        self._work = 0

    def fold(self, tree: Tree) -> Tree:
        kind = tree[0]
        if kind == "number":
            return self._number(tree[1])
        if kind == "matrix":
            return ("matrix", *(tuple(self.fold(entry) for entry in row) for row in tree[1:]))
        folded = tuple(self.fold(part) if isinstance(part, tuple) else part for part in tree)
        parts = [part for part in folded if isinstance(part, tuple)]
        if kind == "power":
            return self._power(folded)
        if kind in ("add", "multiply", "function") and all(part[0] == "number" for part in parts):
            return self._computed(folded, [part[1] for part in parts])
        return folded

    def _number(self, value: Fraction) -> Tree:
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        self._work += bits
        if bits > MAX_BITS or self._work > MAX_WORK:
            raise TooLarge(f"a number of more than {MAX_BITS} bits")
        return ("number", value)

    def _computed(self, tree: Tree, values: list[Fraction]) -> Tree:
        if tree[0] == "function":
            value = _FUNCTIONS[tree[1]](*values) if tree[1] in _FUNCTIONS else None
            return tree if value is None else self._number(Fraction(value))
        result = values[0]
        for value in values[1:]:
            result = result + value if tree[0] == "add" else result * value
            self._number(result)
        return self._number(result)

    def _power(self, tree: Tree) -> Tree:
        _, base, exponent = tree
        if exponent[0] != "number":
            return tree
        power = exponent[1]
        if abs(power) > MAX_EXPONENT:
            raise TooLarge(f"an exponent above {MAX_EXPONENT}")
        if base[0] != "number":
            return tree
        value = base[1]
        if power.denominator == 2 and value >= 0:
            root = _exact_root(value)
            value, power = (value, power) if root is None else (root, power * 2)
        if power.denominator != 1:
            return tree
        if value == 0 and power < 0:
            raise Unreadable("a division by zero")
        if abs(power) * max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise TooLarge(f"a number of more than {MAX_BITS} bits")
        return self._number(value ** int(power))


def _exact_root(value: Fraction) -> Fraction | None:
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else None


def _factorial(value: Fraction) -> int:
    if value.denominator != 1 or value < 0:
        raise Unreadable("a factorial of no whole number")
    if value > MAX_FACTORIAL:
        raise TooLarge(f"a factorial above {MAX_FACTORIAL}!")
    return math.factorial(int(value))


def _binomial(above: Fraction, below: Fraction) -> int:
    if above.denominator != 1 or below.denominator != 1 or above < 0 or below < 0:
        raise Unreadable("a binomial of no whole numbers")
    if above > MAX_FACTORIAL:
        raise TooLarge(f"a binomial above {MAX_FACTORIAL}")
    return math.comb(int(above), int(below))


_FUNCTIONS: dict[str, Callable[..., Fraction | int]] = {
    "factorial": _factorial,
    "binomial": _binomial,
    "abs": abs,
    "floor": math.floor,
    "ceiling": math.ceil,
}
