"""The worker process of the grader: algebra with sympy on trees that were read by a closed grammar.

`python -m grpojax.tasks.symbolic` reads a line of JSON for each pair, [seconds, left, right], both normalised, and
writes one character: `=` the same, `!` not the same, `?` out of memory; `.` once, when it is ready. It ends with
its input, and by an alarm of the operating system a second after a time limit.
"""

import json
import resource
import signal
import sys

import sympy

from grpojax.tasks.equality import Algebra, fold, same_answer
from grpojax.tasks.latex import Tree, read_answer

MAX_MEMORY = 1 << 30  # bytes of address space

_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}
_FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh,
    "tanh": sympy.tanh, "ln": sympy.log, "log": sympy.log, "exp": sympy.exp, "factorial": sympy.factorial,
    "binomial": sympy.binomial, "abs": sympy.Abs, "floor": sympy.floor, "ceiling": sympy.ceiling,
}  # fmt: skip


def to_sympy(tree: Tree, positive: bool = True) -> sympy.Expr:
    """The expression of a folded tree; letters stand for positive numbers, inside | | for real ones.

    Raises:
      ValueError: for a tree that is no value, such as a tuple inside a sum.
    """
    kind, *parts = tree
    if kind == "number":
        return sympy.Rational(parts[0].numerator, parts[0].denominator)
    if kind == "constant":
        return _CONSTANTS[parts[0]]
    if kind == "symbol":
        return sympy.Symbol(parts[0], positive=True) if positive else sympy.Symbol(parts[0], real=True)
    if kind == "function":
        positive = positive and parts[0] != "abs"
        return _FUNCTIONS[parts[0]](*(to_sympy(part, positive) for part in parts[1:]))
    if kind not in ("add", "multiply", "power"):
        raise ValueError(f"a {kind} is no value")
    operation = {"add": sympy.Add, "multiply": sympy.Mul, "power": sympy.Pow}[kind]
    return operation(*(to_sympy(part, positive) for part in parts))


def same_value(left: Tree, right: Tree) -> bool:
    """Whether the difference is exactly zero. Digits only ever show that it is not."""
    one, other = to_sympy(left), to_sympy(right)
    if one == other:
        return True
    difference = one - other
    if _differ_at_a_point(one, other):
        return False
    if sympy.expand(difference) == 0 or sympy.simplify(difference) == 0:
        return True
    return bool(difference.is_algebraic) and sympy.minimal_polynomial(difference, sympy.Dummy("t")).is_Symbol


def same_relation(left: Tree, right: Tree) -> bool:
    """Whether one relation is the other times a number: not zero, and above zero for `<` and `\\leq`."""
    (_, sign, *one), (_, _, *other) = left, right
    ratio = sympy.simplify((to_sympy(one[0]) - to_sympy(one[1])) / (to_sympy(other[0]) - to_sympy(other[1])))
    if not ratio.is_number or not ratio.is_finite or ratio == 0:
        return False
    return bool(ratio.is_positive) or sign in ("=", "\\neq")


def _differ_at_a_point(one: sympy.Expr, other: sympy.Expr) -> bool:
    """Whether the two are far apart, to 20 digits, where each letter has some value of its own."""
    symbols = sorted(
        one.free_symbols | other.free_symbols, key=lambda symbol: (symbol.name, symbol.is_positive is None)
    )
    point = {symbol: sympy.Rational(sympy.prime(k + 6), sympy.prime(k + 4)) for k, symbol in enumerate(symbols)}
    gap, *sizes = (abs(sympy.N(value.subs(point), 20)) for value in (one - other, one, other))
    if not all(value.is_Float for value in (gap, *sizes)):
        return False
    return bool(gap > 1e-12 * max(sizes))


ALGEBRA = Algebra(same_value, same_relation)


def verdict(left: str, right: str) -> str:
    """`=`, `!` or `?` for a pair of normalised answers; what sympy cannot work out is not the same."""
    try:
        return "=" if same_answer(fold(read_answer(left)), fold(read_answer(right)), ALGEBRA) else "!"
    except MemoryError:
        return "?"
    except Exception:  # noqa: BLE001 - sympy raises anything
        return "!"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    verdict("\\sqrt{x^{2}+2x}+\\sqrt2", "\\sqrt{(x+2)x}+\\frac{2}{\\sqrt2}")  # loads what sympy loads late
    sys.stdout.write(".")
    sys.stdout.flush()
    for line in sys.stdin:
        seconds, left, right = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds + 1.0)
        answer = verdict(left, right)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(answer)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
