"""Algebra with sympy, for what the rules of `equality.py` leave undecided. Its input was read by a closed grammar."""

from fractions import Fraction

import sympy

from grpojax.grading.equality import Algebra, same_answer
from grpojax.grading.latex import Tree

_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}
_FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh,
    "tanh": sympy.tanh, "ln": sympy.log, "log": sympy.log, "exp": sympy.exp, "factorial": sympy.factorial,
    "double factorial": sympy.factorial2, "binomial": sympy.binomial, "abs": sympy.Abs, "floor": sympy.floor,
    "ceiling": sympy.ceiling,
}  # fmt: skip
_OPERATIONS = {"add": sympy.Add, "multiply": sympy.Mul, "power": sympy.Pow}
_NO_LETTERS: dict[str, sympy.Symbol] = {}


def to_sympy(tree: Tree, positive: bool = True, bound: dict[str, sympy.Symbol] = _NO_LETTERS) -> sympy.Expr:
    """The sympy expression of a folded tree. Letters are positive numbers, inside | | real ones.

    Args:
      bound: the letters of the sums, integrals and limits around it.

    Raises:
      ValueError: for a tree that is not a value, such as a tuple inside a sum.
    """
    match tree:
        case ("number", value):
            return sympy.Rational(value.numerator, value.denominator)
        case ("constant", name):
            return _CONSTANTS[name]
        case ("symbol", name):
            return _symbol(name, positive, bound)
        case ("bound", *parts):
            return _bound(parts, positive, bound)
        case ("function", name, *parts):
            return _FUNCTIONS[name](*(to_sympy(part, positive and name != "abs", bound) for part in parts))
        case ("power", ("number", base), ("number", exponent)) if base < 0 and _is_odd_root(exponent):
            return -to_sympy(("power", ("number", -base), ("number", exponent)))
        case ("add" | "multiply" | "power" as kind, *parts):
            return _OPERATIONS[kind](*(to_sympy(part, positive, bound) for part in parts))
    raise ValueError(f"a {tree[0]} is not a value")


def _is_odd_root(exponent: Fraction) -> bool:
    return exponent.denominator > 1 and exponent.numerator % 2 == exponent.denominator % 2 == 1


def _symbol(name: str, positive: bool, bound: dict[str, sympy.Symbol]) -> sympy.Expr:
    """A letter. One with a bound subscript, such as `a_k` in a sum over k, is a function of it."""
    if name in bound:
        return bound[name]
    head, _, subscript = name.partition("_")
    if subscript in bound:
        return sympy.Function(head)(bound[subscript])
    return sympy.Symbol(name, positive=True) if positive else sympy.Symbol(name, real=True)


def _bound(parts: list, positive: bool, bound: dict[str, sympy.Symbol]) -> sympy.Expr:
    """The value of a sum, a product, an integral or a limit, evaluated if sympy can."""
    kind, name, *bounds, body = parts
    letter = sympy.Dummy(name, integer=True) if kind in ("sum", "product") else sympy.Dummy(name, real=True)
    inside = to_sympy(body, positive, {**bound, name: letter})
    ends = [to_sympy(end, positive, bound) for end in bounds]
    if kind == "limit":
        return sympy.limit(inside, letter, *ends)
    operation = {"sum": sympy.Sum, "product": sympy.Product, "integral": sympy.Integral}[kind]
    return operation(inside, (letter, *ends)).doit()


def same_value(left: Tree, right: Tree) -> bool:
    """Whether the difference is exactly zero. Digits are only used to show that it is not."""
    one, other = to_sympy(left), to_sympy(right)
    if one == other:
        return True
    if _differ_at_a_point(one, other):
        return False
    difference = one - other
    if any(rewrite(difference) == 0 for rewrite in _REWRITES):
        return True
    return bool(difference.is_algebraic) and sympy.minimal_polynomial(difference, sympy.Dummy("t")).is_Symbol


_REWRITES = (
    sympy.expand,
    lambda value: sympy.expand(sympy.expand_log(sympy.powsimp(value))),
    sympy.simplify,
    lambda value: sympy.simplify(sympy.expand_func(value)),
    lambda value: sympy.simplify(sympy.combsimp(value)),
    lambda value: sympy.simplify(
        value.replace(lambda part: part.is_Pow, lambda part: sympy.factor(part.base) ** part.exp)
    ),
    lambda value: sympy.simplify(sympy.expand_trig(value)),
    lambda value: sympy.expand(sympy.radsimp(value)),
)


def order(left: Tree, right: Tree) -> int | None:
    """-1, 0 or 1 if the first value is below, equal to or above the second; None if that depends on letters."""
    if left == right or same_value(left, right):
        return 0
    difference = to_sympy(left) - to_sympy(right)
    if difference.free_symbols:
        return -1 if difference.is_negative else 1 if difference.is_positive else None
    digits = sympy.N(difference, 20)
    return None if not digits.is_Float or abs(digits) < 1e-15 else -1 if digits < 0 else 1


def same_relation(left: Tree, right: Tree) -> bool:
    """Whether one relation is the other times a nonzero number, which is positive for `<` and `\\leq`."""
    (_, sign, *one), (_, _, *other) = left, right
    ratio = sympy.simplify((to_sympy(one[0]) - to_sympy(one[1])) / (to_sympy(other[0]) - to_sympy(other[1])))
    if not ratio.is_number or not ratio.is_finite or ratio == 0:
        return False
    return bool(ratio.is_positive) or sign in ("=", "\\neq")


def _differ_at_a_point(one: sympy.Expr, other: sympy.Expr) -> bool:
    """Whether the two differ clearly, in 20 digits, at a point where every letter has another value."""
    symbols = sorted(
        one.free_symbols | other.free_symbols, key=lambda symbol: (symbol.name, symbol.is_positive is None)
    )
    point = {symbol: sympy.Rational(sympy.prime(k + 6), sympy.prime(k + 4)) for k, symbol in enumerate(symbols)}
    gap, *sizes = (abs(sympy.N(value.subs(point), 20)) for value in (one - other, one, other))
    if not all(value.is_Float for value in (gap, *sizes)):
        return False
    return bool(gap > 1e-12 * max(sizes))


ALGEBRA = Algebra(same_value, order, same_relation)


def verdict(answer: str, gold: str) -> str:
    """`=`, `!` or `?` (too large) for a pair of raw answers; pairs that sympy cannot decide are not the same."""
    try:
        return "=" if same_answer(answer, gold, ALGEBRA) else "!"
    except MemoryError:
        return "?"
    except Exception:  # noqa: BLE001 - sympy can raise anything
        return "!"
