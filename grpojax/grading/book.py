r"""The verdicts of the reference's grader, without evaluating Python.

The reference (book chapter 3; `grade_answer` in reasoning_from_scratch/ch03.py) rewrites an answer as a Python
expression, gives it to sympy's parser, which evaluates it, and checks whether the simplified difference is zero. Here
the rewriting is the same; of sympy's parser only the part that turns text into text is used; and the result is read as
a syntax tree that can contain only numbers, letters, operators and the functions of `_FUNCTIONS`.
"""

import ast
import builtins
import operator
import re
from collections.abc import Callable
from typing import Any

import sympy
from sympy.parsing import sympy_parser

MAX_LENGTH = 2000  # the reference's own limit
MAX_POWER_BITS = 100_000  # of a power of whole numbers; the reference has no limit and hangs

# What the reference rewrites, in its order, with its side effects: braces are dropped, so `2^{x+1}` is `2^x+1`.
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾"
_BEFORE: list[tuple[str, str]] = [
    (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|°", ""),
    (r"\A\\text\{(.+?)\}\Z", r"\1"),  # if all of it is one text
    (r"\\[()\[\]]", ""),
    (r"\\left\s*|\\right\s*", ""),
    (r"\\[,!;:]", ""),
    (r"\\cdot|·|×", "*"),
    (r"\\[dt]frac", r"\\frac"),
    (rf"([0-9A-Za-z)\]}}])([{_RAISED[:12]}]+)", r"\1**\2"),
]
_AFTER: list[tuple[str, str]] = [
    (r"\\?%|\$", ""),
    (r"\\sqrt\s*\{([^}]*)\}", r"sqrt(\1)"),
    (r"\\sqrt\s+([^\\\s{}]+)", r"sqrt(\1)"),
    (r"\\frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}", r"(\1)/(\2)"),
    (r"\\frac\s+([^\s{}]+)\s+([^\s{}]+)", r"(\1)/(\2)"),
    (r"\^", "**"),
    (r"(?<=\d)\s+(\d+/\d+)", r"+\1"),  # a mixed number, whose sign applies only to the whole part
    (r"(?<=\d),(?=\d\d\d(?:\D|\Z|\n))", ""),
    (r"[{}]", ""),
]


def normalize(text: str) -> str:
    r"""The reference's normal form.

    >>> normalize(r"\dfrac{1}{2}"), normalize("2^{x+1}"), normalize("c. 3"), normalize(r"\frac43")
    ('(1)/(2)', '2**x+1', '3', '\\frac43')
    """
    text = re.sub(r"<\|[^>]+?\|>", "", text).strip()
    text = re.sub(r"\A[A-Za-z]\s*[.:]\s*(.+)\Z", r"\1", text)
    for pattern, replacement in _BEFORE:
        text = re.sub(pattern, replacement, text)
    text = text.translate(str.maketrans(_RAISED, "0123456789+-()"))
    for pattern, replacement in _AFTER:
        text = re.sub(pattern, replacement, text)
    return text.strip().lower()


def verdict(answer: str, gold: str) -> str:
    """`=`, `!` or `?` (too large) for a pair of raw answers."""
    try:
        golds, answers = _parts(normalize(gold)), _parts(normalize(answer))
        same = len(golds) == len(answers) > 0 and all(map(_same, golds, answers))
        return "=" if same else "!"
    except (MemoryError, TooLarge):
        return "?"
    except Exception:  # noqa: BLE001 - sympy can raise anything
        return "!"


def _parts(text: str) -> list[str]:
    """The items in brackets, if there are several."""
    if len(text) >= 2 and text[0] in "([" and text[-1] in ")]" and "," in text[1:-1]:
        items = [item.strip() for item in text[1:-1].split(",")]
        if all(items):
            return items
    return [text] if text else []


def _same(gold: str, answer: str) -> bool:
    if gold == answer:
        return True
    try:
        return sympy.simplify(_read(gold) - _read(answer)) == 0
    except (Unreadable, TypeError, sympy.SympifyError):
        return False


class Unreadable(ValueError):
    """The reference's parser refuses the text, or would evaluate more than mathematics."""


class TooLarge(ValueError):
    """The reference would hang."""


_NAMES = {name: getattr(sympy, name) for name in sympy.__all__} | {
    name: value for name, value in vars(builtins).items() if isinstance(value, type(len))
}  # names that sympy's parser knows; it splits other names into letters
_TRANSFORMATIONS = (*sympy_parser.standard_transformations, sympy_parser.implicit_multiplication_application)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(sympy, name)
    for name in (
        "sqrt cbrt root exp log ln sin cos tan cot sec csc asin acos atan acot sinh cosh tanh factorial factorial2 "
        "binomial gcd lcm floor ceiling"
    ).split()
} | {"abs": sympy.Abs, "max": sympy.Max, "min": sympy.Min}
_CONSTANTS = {"pi": sympy.pi, "oo": sympy.oo, "zoo": sympy.zoo, "nan": sympy.nan}
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip


def _read(text: str) -> Any:
    if len(text) > MAX_LENGTH:
        raise Unreadable("too long")
    try:
        code = sympy_parser.stringify_expr(text, {}, _NAMES, _TRANSFORMATIONS)
        tree = ast.parse(code.strip(), mode="eval")
    except Exception as error:  # its tokenizer and its rewriting can raise anything
        raise Unreadable(text) from error
    return _value(tree.body)


def _value(node: ast.AST) -> Any:
    """The value of a syntax tree that contains only known kinds of nodes."""
    match node:
        case ast.BinOp(left, operation, right) if type(operation) in _OPERATORS:
            one, other = _value(left), _value(right)
            is_rational = isinstance(operation, ast.Pow) and one.is_Rational and other.is_Rational
            if is_rational and abs(other) * max(int(one.p).bit_length(), int(one.q).bit_length()) > MAX_POWER_BITS:
                raise TooLarge("power")
            return _OPERATORS[type(operation)](one, other)
        case ast.UnaryOp(ast.UAdd(), operand):
            return _value(operand)
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.Name(name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Call(ast.Name("Integer" | "Float" | "Rational" as name), [ast.Constant(int() | str() as literal)], []):
            return getattr(sympy, name)(literal)
        case ast.Call(ast.Name("Symbol"), [ast.Constant(str() as name)], []):
            return sympy.Symbol(name)
        case ast.Call(ast.Call(ast.Name("Function"), [ast.Constant(name), *_]), arguments, []):
            return sympy.Function(name)(*map(_value, arguments))
        case ast.Call(ast.Name(name), arguments, []) if name in _FUNCTIONS:
            values = [_value(argument) for argument in arguments]
            if name.startswith("factorial") and values[0].is_number and abs(values[0]) > MAX_POWER_BITS // 10:
                raise TooLarge(name)
            return _FUNCTIONS[name](*values)
    raise Unreadable(ast.dump(node)[:80])
