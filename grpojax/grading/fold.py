"""Rational arithmetic on the trees of `latex.py`, within limits of size."""

import functools
import math
import operator
from collections.abc import Callable
from fractions import Fraction

from grpojax.grading.latex import TooLarge, Tree, Unreadable, items_of
from grpojax.grading.units import unit_of

MAX_BITS = 30_000  # of a numerator or denominator; 2006! has 19,000
MAX_WORK = 20 * MAX_BITS  # bits of all intermediate results together
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 3_000  # also the upper number of a binomial
MAX_TERMS = 20_000  # of a power of a sum, and of a sum from one number to another
MAX_TOWER = 3  # nested exponents

# The kinds of trees that are one value.
VALUES = {"number", "constant", "symbol", "add", "multiply", "power", "function", "bound"}
_OF_AN_ANGLE = {"sin", "cos", "tan", "cot", "sec", "csc"}
# A degree and a percent as numbers.
UNIT_VALUES: dict[str, tuple[Tree, ...]] = {
    "angle": (("number", Fraction(1, 180)), ("constant", "pi")),
    "percent": (("number", Fraction(1, 100)),),
}


def fold(tree: Tree) -> Tree:
    """The tree with every rational part evaluated.

    >>> from grpojax.grading.latex import read_answer
    >>> fold(read_answer("3 1/2+x"))
    ('add', ('number', Fraction(7, 2)), ('symbol', 'x'))

    Raises:
      TooLarge: for numbers, exponents or factorials that would take too long.
      Unreadable: for a division by zero, or a factorial that does not exist.
    """
    return _Folder().fold(tree)


class _Folder:
    """Counts the bits of its intermediate results."""

    def __init__(self) -> None:
        self._work = 0

    def fold(self, tree: Tree) -> Tree:
        kind = tree[0]
        if kind == "number":
            return self._number(tree[1])
        if kind == "function" and tree[1] in _OF_AN_ANGLE:
            tree = (*tree[:2], *map(_in_radians, tree[2:]))
        folded = tuple(self.fold(part) if isinstance(part, tuple) else part for part in tree)
        if kind in VALUES:
            folded = _without_units(folded)
            if folded[0] == "quantity":
                return ("quantity", self.fold(folded[1]), folded[2])
        parts = [part for part in folded if isinstance(part, tuple)]
        numbers = [part[1] for part in parts if part[0] == "number"]
        if kind == "quantity" and (parts[0][0] not in VALUES or unit_of(folded[2]) is None):
            raise Unreadable("no value, or no unit")
        if kind == "power":
            return self._power(folded)
        is_from_to = kind == "bound" and tree[1] in ("sum", "product") and parts[0][0] == parts[1][0] == "number"
        if is_from_to and numbers[1] - numbers[0] > MAX_TERMS:
            raise TooLarge(f"more than {MAX_TERMS} terms")
        if kind == "function" and folded[1] in _FUNCTIONS and len(numbers) == len(parts):
            return self._number(Fraction(_FUNCTIONS[folded[1]](*numbers)))
        if kind in _OPERATIONS and len(numbers) == len(parts):
            step = lambda total, number: self._number(_OPERATIONS[kind](total, number))[1]
            return self._number(functools.reduce(step, numbers))
        if kind == "multiply" and any(part[0] == "matrix" for part in parts):
            return self._scaled_matrix(parts)
        if kind == "union" and all(part[0] == "set" or part[0] in VALUES for part in parts):
            return ("set", *(item for part in parts for item in items_of(part)))
        return folded

    def _scaled_matrix(self, factors: list[Tree]) -> Tree:
        """Numbers times one matrix, entry by entry."""
        matrix = next(factor for factor in factors if factor[0] == "matrix")
        scalars = [factor for factor in factors if factor is not matrix]
        if not all(scalar[0] in VALUES for scalar in scalars):
            raise Unreadable("a product of matrices")
        rows = ([self.fold(("multiply", *scalars, entry)) for entry in row[1:]] for row in matrix[1:])
        return ("matrix", *(("row", *row) for row in rows))

    def _number(self, value: Fraction) -> Tree:
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        self._work += bits
        if bits > MAX_BITS or self._work > MAX_WORK:
            raise TooLarge(f"a number of more than {MAX_BITS} bits")
        return ("number", value)

    def _power(self, tree: Tree) -> Tree:
        _, base, exponent = tree
        if exponent[0] != "number":
            if _tower(tree) > MAX_TOWER:
                raise TooLarge(f"a tower of more than {MAX_TOWER} powers")
            return tree
        power = exponent[1]
        if abs(power * (base[2][1] if base[0] == "power" and base[2][0] == "number" else 1)) > MAX_EXPONENT:
            raise TooLarge(f"an exponent above {MAX_EXPONENT}")
        if base[0] == "add" and power > 1 and math.comb(int(power) + len(base) - 2, len(base) - 2) > MAX_TERMS:
            raise TooLarge(f"a power of a sum with more than {MAX_TERMS} terms")
        if base[0] != "number":
            return tree
        value = base[1]
        if power.denominator > 1:
            root = _exact_root(value, power.denominator)
            value, power = (value, power) if root is None else (root, Fraction(power.numerator))
        if power.denominator != 1:
            return tree
        if value == 0 and power < 0:
            raise Unreadable("a division by zero")
        if abs(power) * max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
            raise TooLarge(f"a number of more than {MAX_BITS} bits")
        return self._number(value ** int(power))


def _in_radians(tree: Tree) -> Tree:
    """The argument of a trigonometric function, with terms in degrees as multiples of pi."""
    if tree[0] == "quantity":
        return ("multiply", tree[1], *UNIT_VALUES["angle"]) if unit_of(tree[2]) == unit_of("degree") else tree[1]
    return tuple(_in_radians(part) if isinstance(part, tuple) else part for part in tree)


def _without_units(tree: Tree) -> Tree:
    """A value without units; a sum with a single unit is a quantity of that unit."""
    units = {part[2] for part in tree if part[0] == "quantity"}
    bare = tuple(part[1] if part[0] == "quantity" else part for part in tree)
    return ("quantity", bare, *units) if tree[0] == "add" and len(units) == 1 else bare


def _tower(tree: Tree) -> int:
    """How deep exponents are nested."""
    if tree[0] == "power":
        return max(1 + _tower(tree[2]), _tower(tree[1]))
    return max((_tower(part) for part in tree if isinstance(part, tuple)), default=0)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """The rational root, if there is one; for a negative number and an odd degree the real one.

    >>> _exact_root(Fraction(-8, 27), 3), _exact_root(Fraction(8), 2)
    (Fraction(-2, 3), None)
    """
    sign = -1 if value < 0 and degree % 2 else 1
    roots = [_whole_root(part, degree) for part in (sign * value.numerator, value.denominator)]
    return None if None in roots else sign * Fraction(*roots)


def _whole_root(value: int, degree: int) -> int | None:
    if value < 0:
        return None
    if degree >= value.bit_length():
        root = min(value, 1)
    else:  # Newton's method, from above
        root, better = 0, 1 << -(-value.bit_length() // degree)
        while root == 0 or better < root:
            root, better = better, ((degree - 1) * better + value // better ** (degree - 1)) // degree
    return root if root**degree == value else None


def _whole(*values: Fraction) -> list[int]:
    """The arguments of a factorial or a binomial."""
    if any(value.denominator != 1 or value < 0 for value in values):
        raise Unreadable("a factorial or binomial of something else than whole numbers")
    if values[0] > MAX_FACTORIAL:
        raise TooLarge(f"a factorial or binomial above {MAX_FACTORIAL}")
    return [int(value) for value in values]


_OPERATIONS = {"add": operator.add, "multiply": operator.mul}
_FUNCTIONS: dict[str, Callable[..., Fraction | int]] = {
    "factorial": lambda value: math.factorial(*_whole(value)),
    "double factorial": lambda value: math.prod(range(*_whole(value), 0, -2)),  # of every second number
    "binomial": lambda above, below: math.comb(*_whole(above, below)),
    "abs": abs,
    "floor": math.floor,
    "ceiling": math.ceil,
}
