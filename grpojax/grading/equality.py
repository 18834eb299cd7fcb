"""When two answers are the same: exact rules on the trees of `latex.py`, without sympy.

What takes more algebra than `polynomials.py` has (functions, roots of sums) is left to an `Algebra`; the one in
`symbolic.py` uses sympy.
"""

import functools
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, NoReturn

from grpojax.grading import polynomials
from grpojax.grading.answers import readings
from grpojax.grading.latex import INFINITY, TooLarge, Tree, Unreadable, items_of, names, read_answer
from grpojax.grading.real_sets import MINUS_INFINITY, NoRealSet, is_set_operation, real_set
from grpojax.grading.units import Unit, unit_of

MAX_BITS = 30_000  # of a numerator or denominator; 2006! has 19,000
MAX_WORK = 20 * MAX_BITS  # bits of all intermediate results together
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 3_000  # also the upper number of a binomial
MAX_TERMS = 20_000  # of a power of a sum, and of a sum from one number to another
MAX_TOWER = 3  # nested exponents


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
_OF_AN_ANGLE = {"sin", "cos", "tan", "cot", "sec", "csc"}
_VALUES = {"number", "constant", "symbol", "add", "multiply", "power", "function", "bound"}


def same_answer(answer: str, gold: str, algebra: Algebra = NO_ALGEBRA) -> bool:
    r"""Whether two answers, as they were written, are the same.

    What is not mathematics is compared as text: words and choice letters, ignoring wrapper, brackets and case. A choice
    letter before a value, as in `(C) 12`, matches the letter and the value.

    >>> same_answer(r"\text{(C)} 12", r"\text{(C)}"), same_answer(r"\text{(C)} 12", "12"), same_answer("C", "(c)")
    (True, True, True)

    Raises:
      Undecided: if it takes algebra and there is none.
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
    """For `(C) 12` and a lone letter compares the letters, for two such answers both, for `(C) 12` and a value the values."""
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
    """Whether two folded trees are the same answer.

    Lists are compared as sets, and one value is a set of one. Tuples must agree in brackets and order, matrices in every
    entry, intervals, inequalities and unions as sets of real numbers. A name in front (`x =`, `f(x) =`) or a unit does not
    count if the other answer has none; two units of one kind do.

    Raises:
      Undecided: if it takes algebra and there is none.
    """
    if left == right:
        return True
    if "quantity" in (left[0], right[0]) and not {left[0], right[0]} & {"set", "relation"}:
        return _same_quantity(left, right, algebra)
    if is_set_operation(left) or is_set_operation(right):
        return _same_real_set(left, right, algebra)
    if "relation" in (left[0], right[0]) and left[0] != right[0]:
        equation, other = (left, right) if left[0] == "relation" else (right, left)
        values = _values(equation)
        if values:
            return all(same_tree(value, other, algebra) for value in values)
    if "set" in (left[0], right[0]):
        return _same_list(left, right, algebra)
    if left[0] != right[0] and not {left[0], right[0]} <= _VALUES:
        return _is_column_of(left, right, algebra) or _is_column_of(right, left, algebra)
    if {left[0], right[0]} <= {"number", "constant", "symbol", "text"}:
        return False
    if left[0] == "tuple":
        return left[1:3] == right[1:3] and _all_same(left[3:], right[3:], algebra)
    if left[0] == "matrix":
        return len(left) == len(right) and all(
            _all_same(*rows, algebra) for rows in zip(left[1:], right[1:], strict=True)
        )
    if left[0] == "relation":
        return _same_relation(left, right, algebra)
    same = polynomials.same_value(left, right)
    return algebra.same_value(left, right) if same is None else same


def _all_same(lefts: Tree, rights: Tree, algebra: Algebra) -> bool:
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
    is_column = matrix[0] == "matrix" and point[:3] == ("tuple", "(", ")") and all(len(row) == 1 for row in matrix[1:])
    return is_column and _all_same(tuple(row[0] for row in matrix[1:]), point[3:], algebra)


def _values(equation: Tree) -> Tree:
    """The values of an equation, which all count: what a name is equal to, or both sides of `6 * 7 = 42`."""
    if equation[1] != "=":
        return ()
    name = equation[2]
    if not names(name) and name[0] != "text":
        return equation[2:]
    if name[0] == "tuple":
        is_name = all(item[0] == "symbol" for item in name[3:])
    elif name[0] == "multiply":  # f(x), f^{-1}(x), f'(x), or the line AB
        head = name[1][1] if name[1][0] == "power" else name[1]
        is_name = len(name) == 3 and head[0] == name[2][0] == "symbol"
        is_name = is_name and (head[1][0] in "fghpqFGHPQ" or (head[1] + name[2][1]).isupper())
    else:
        is_name = name[0] in ("symbol", "text")
    return equation[3:] if is_name else ()


def _same_relation(left: Tree, right: Tree, algebra: Algebra) -> bool:
    if left[1] != right[1]:
        return False
    if left[2] == right[2] and all(same_tree(one, other, algebra) for one in left[3:] for other in right[3:]):
        return True
    if not len(left) == len(right) == 4 or not {side[0] for side in (*left[2:], *right[2:])} <= _VALUES:
        return False
    ratio = polynomials.ratio(left[2:], right[2:])
    if ratio is None:
        return algebra.same_relation(left, right)
    return ratio > 0 or (ratio < 0 and left[1] in ("=", "\\neq"))


def _same_real_set(left: Tree, right: Tree, algebra: Algebra) -> bool:
    """Compares sets of real numbers; if they cannot be read as such, their parts, or as relations."""

    def order(one: Tree, other: Tree) -> int:
        rank = _order(one, other, algebra)
        if rank is None:
            raise NoRealSet("the order depends on letters")
        return rank

    try:
        (lefts, one), (rights, other) = real_set(left, order), real_set(right, order)
    except NoRealSet:
        kinds = {left[0], right[0]}
        if kinds == {"relation"}:
            return _same_relation(left, right, algebra)
        if kinds == {"difference"}:
            return _all_same(left[1:], right[1:], algebra)
        return (kinds <= {"set", "union"} or kinds == {"intersection"}) and _same_list(
            ("set", *left[1:]), ("set", *right[1:]), algebra
        )
    if one and other and one != other:
        return False
    return len(lefts) == len(rights) and all(
        (a.has_low, a.has_high) == (b.has_low, b.has_high)
        and same_tree(a.low, b.low, algebra)
        and same_tree(a.high, b.high, algebra)
        for a, b in zip(lefts, rights, strict=True)
    )


def _order(left: Tree, right: Tree, algebra: Algebra) -> int | None:
    if left == right:
        return 0
    if MINUS_INFINITY in (left, right) or INFINITY in (left, right):
        return -1 if left == MINUS_INFINITY or right == INFINITY else 1
    if left[0] == right[0] == "number":
        return -1 if left[1] < right[1] else 1
    return algebra.order(left, right)


def _same_quantity(left: Tree, right: Tree, algebra: Algebra) -> bool:
    (one, its_unit), (other, its_other_unit) = _parted(left), _parted(right)
    units = [unit_of(name) if name else Unit("") for name in (its_unit, its_other_unit)]
    kinds = [unit.kind for unit in units]
    if kinds[0] == kinds[1] and kinds[0] not in ("", "?"):
        return same_tree(_scaled(one, units[0].size), _scaled(other, units[1].size), algebra)
    if kinds == ["?", "?"] and its_unit.removesuffix("s") != its_other_unit.removesuffix("s"):
        return False
    if all(kinds) and "?" not in kinds and kinds[0].partition("^")[0] != kinds[1].partition("^")[0]:
        return False  # kilograms and dollars; cm for cm^2 is taken for a slip
    if same_tree(one, other, algebra):
        return True
    if not its_other_unit and kinds[0] in _NUMBERS:
        return same_tree(_plain(left), other, algebra)
    return not its_unit and kinds[1] in _NUMBERS and same_tree(one, _plain(right), algebra)


def _parted(tree: Tree) -> tuple[Tree, str]:
    return (tree[1], tree[2]) if tree[0] == "quantity" else (tree, "")


def _scaled(tree: Tree, size: Fraction) -> Tree:
    return fold(("multiply", ("number", size), tree)) if tree[0] in _VALUES else tree


def _plain(quantity: Tree) -> Tree:
    """Degrees as a multiple of pi, percent as hundredths."""
    _, value, unit = quantity
    return fold(("multiply", value, *_NUMBERS[unit_of(unit).kind]))


_NUMBERS: dict[str, tuple[Tree, ...]] = {
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
        if kind == "matrix":
            return ("matrix", *(tuple(self.fold(entry) for entry in row) for row in tree[1:]))
        if kind == "function" and tree[1] in _OF_AN_ANGLE:
            tree = (*tree[:2], *(_in_radians(part) for part in tree[2:]))
        folded = tuple(self.fold(part) if isinstance(part, tuple) else part for part in tree)
        if kind in _VALUES:
            folded = _without_units(folded)
        if kind == "add" and folded[0] == "quantity":
            return ("quantity", self.fold(folded[1]), folded[2])
        if kind == "quantity" and (folded[1][0] not in _VALUES or unit_of(folded[2]) is None):
            raise Unreadable("no value, or no unit")
        parts = [part for part in folded if isinstance(part, tuple)]
        if kind == "power":
            return self._power(folded)
        if kind == "bound" and tree[1] in ("sum", "product") and parts[0][0] == parts[1][0] == "number":
            if parts[1][1] - parts[0][1] > MAX_TERMS:
                raise TooLarge(f"more than {MAX_TERMS} terms")
        if kind == "multiply" and any(part[0] == "matrix" for part in parts):
            return self._scaled_matrix(parts)
        if kind in ("add", "multiply", "function") and all(part[0] == "number" for part in parts):
            return self._computed(folded, [part[1] for part in parts])
        if kind in ("union", "intersection", "difference"):
            return _finite_sets(folded)
        return folded

    def _scaled_matrix(self, factors: list[Tree]) -> Tree:
        """Numbers times one matrix, entry by entry."""
        matrix = next(factor for factor in factors if factor[0] == "matrix")
        scalars = [factor for factor in factors if factor is not matrix]
        if not all(scalar[0] in _VALUES for scalar in scalars):
            raise Unreadable("a product of matrices")
        return ("matrix", *(tuple(self.fold(("multiply", *scalars, entry)) for entry in row) for row in matrix[1:]))

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
        return ("multiply", tree[1], *_NUMBERS["angle"]) if unit_of(tree[2]) == unit_of("degree") else tree[1]
    return tuple(_in_radians(part) if isinstance(part, tuple) else part for part in tree)


def _without_units(tree: Tree) -> Tree:
    """A value without units; a sum with a single unit is a quantity of that unit."""
    units = {part[2] if part[0] == "quantity" else "" for part in tree if isinstance(part, tuple)} - {""}
    if not units:
        return tree
    bare = tuple(part[1] if part[0] == "quantity" else part for part in tree if isinstance(part, tuple))
    bare = (*(part for part in tree if not isinstance(part, tuple)), *bare)
    return ("quantity", bare, *units) if tree[0] == "add" and len(units) == 1 else bare


def _finite_sets(tree: Tree) -> Tree:
    """A union of finite sets as one set."""
    if tree[0] == "union" and all(part[0] == "set" or part[0] in _VALUES for part in tree[1:]):
        return ("set", *(item for part in tree[1:] for item in items_of(part)))
    return tree


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
    if value < 0:
        root = _exact_root(-value, degree) if degree % 2 else None
        return None if root is None else -root
    over, under = _whole_root(value.numerator, degree), _whole_root(value.denominator, degree)
    return None if over is None or under is None else Fraction(over, under)


def _whole_root(value: int, degree: int) -> int | None:
    if degree == 2:
        root = math.isqrt(value)
    elif degree >= value.bit_length():
        root = min(value, 1)
    else:  # Newton's method, from above
        root, better = 0, 1 << -(-value.bit_length() // degree)
        while root == 0 or better < root:
            root, better = better, ((degree - 1) * better + value // better ** (degree - 1)) // degree
    return root if root**degree == value else None


def _factorial(value: Fraction) -> int:
    if value.denominator != 1 or value < 0:
        raise Unreadable("a factorial of something else than a whole number")
    if value > MAX_FACTORIAL:
        raise TooLarge(f"a factorial above {MAX_FACTORIAL}!")
    return math.factorial(int(value))


def _binomial(above: Fraction, below: Fraction) -> int:
    if above.denominator != 1 or below.denominator != 1 or above < 0 or below < 0:
        raise Unreadable("a binomial of something else than whole numbers")
    if above > MAX_FACTORIAL:
        raise TooLarge(f"a binomial above {MAX_FACTORIAL}")
    return math.comb(int(above), int(below))


def _double_factorial(value: Fraction) -> int:
    """The product of every second number."""
    _factorial(value)
    return math.prod(range(int(value), 0, -2))


_FUNCTIONS: dict[str, Callable[..., Fraction | int]] = {
    "factorial": _factorial,
    "double factorial": _double_factorial,
    "binomial": _binomial,
    "abs": abs,
    "floor": math.floor,
    "ceiling": math.ceil,
}
