r"""Reading an answer in LaTeX or plain text into a tree, by a closed grammar; nothing is ever evaluated as Python.

    answer   = item { "," item }                          several items make a set
    item     = text | union { relation union }            =  <  >  \leq  \geq  \neq  \in
    union    = sum { \cup sum }
    sum      = ["+" | "-"] product { ("+" | "-") product }
    product  = power { ["*" | "/"] power }                a number before a fraction of numbers is a mixed number
    power    = atom [ "!" ] [ "^" argument ]
    atom     = number | letter | constant | function | \frac | \binom | \sqrt | matrix | bracketed answer | |sum|

A tree is a nested tuple whose first entry names it; the others are parts of it:

    ("number", Fraction)  ("symbol", name)  ("constant", "pi" | "e" | "i" | "infinity")  ("text", words)
    ("add", *terms)  ("multiply", *factors)  ("power", base, exponent)  ("function", name, *arguments)
    ("set", *items)  ("tuple", open, close, *items)  ("matrix", (*row), ...)  ("relation", sign, left, right)
"""

import contextlib
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]

MAX_LENGTH = 2000  # characters of an answer that is read
MAX_DEPTH = 40  # brackets, exponents and arguments inside each other
MAX_ITEMS = 100  # of a list or a matrix


class Unreadable(ValueError):
    """The text is outside the grammar."""


class TooLarge(ValueError):
    """The text passes a limit of size, so that looking at it would take too long."""


MINUS_ONE: Tree = ("number", Fraction(-1))
INFINITY: Tree = ("constant", "infinity")

_TOKEN = re.compile(
    r"(?<=\d) |\\text\{[^{}]*\}|\\(?:begin|end)\{[a-z]+\}|\\mathbb ?\{?[A-Z]\}?|\\[A-Za-z]+|\\.|[A-Za-z]+|[^ ]",
    re.DOTALL,
)
_FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp",
}  # fmt: skip
_GREEK = {
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "ell",
    "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega",
}  # fmt: skip
_RELATIONS = {"=", "<", ">", "\\leq", "\\geq", "\\neq", "\\in"}
_CLOSING = {"(": ")]", "[": ")]", "\\{": ("\\}",), "{": "}", "\\langle": ("\\rangle",)}
_NO_ATOM = _RELATIONS | {"\\\\", "\\}", "\\rangle", "\\cup", "\\rfloor", "\\rceil"}
_ROUNDING = {"\\lfloor": ("floor", "\\rfloor"), "\\lceil": ("ceiling", "\\rceil")}
_MATRICES = {"matrix", "pmatrix", "bmatrix", "array"}
_WORD_LENGTH = 3  # longer runs of letters are words, not products


def read_answer(text: str) -> Tree:
    r"""The tree of a normalised answer; with `\pm` in it, the set of both readings.

    >>> read_answer("3x")
    ('multiply', ('number', Fraction(3, 1)), ('symbol', 'x'))

    Raises:
      Unreadable, TooLarge
    """
    if len(text) > MAX_LENGTH:
        raise TooLarge(f"longer than {MAX_LENGTH} characters")
    if "\\pm" not in text and "\\mp" not in text:
        return _Reader(text).answer()
    upper = _Reader(text.replace("\\pm", "+").replace("\\mp", "-")).answer()
    lower = _Reader(text.replace("\\pm", "-").replace("\\mp", "+")).answer()
    return ("set", *items_of(upper), *items_of(lower))


def items_of(tree: Tree) -> tuple[Tree, ...]:
    """The items of a set; any other tree is the one item of its own set."""
    return tree[1:] if tree[0] == "set" else (tree,)


class _Reader:
    """Recursive descent over the tokens of one answer."""

    def __init__(self, text: str):
        self._tokens = [token for part in _TOKEN.findall(text) for token in _split_letters(part)]
        self._place = 0
        self._depth = 0
        self._bars = 0  # open |

    def answer(self) -> Tree:
        items = self._items()
        if self._peek():
            raise Unreadable(f"unexpected {self._peek()!r}")
        return items[0] if len(items) == 1 else ("set", *items)

    # --- tokens ---

    def _peek(self, ahead: int = 0) -> str:
        place = self._place + ahead
        return self._tokens[place] if place < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise Unreadable("ends early")
        self._place += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._place += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise Unreadable(f"expected {token!r}, found {self._peek()!r}")

    @contextlib.contextmanager
    def _deeper(self) -> Iterator[None]:
        """Bounds the recursion."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")
        yield
        self._depth -= 1

    # --- from the whole to the parts ---

    def _items(self) -> list[Tree]:
        """A comma list, at least one item long, one level deeper than its surroundings."""
        with self._deeper():
            bars, self._bars = self._bars, 0
            items = [self._item()]
            while self._accept(","):
                items.append(self._item())
            self._bars = bars
        if len(items) > MAX_ITEMS:
            raise TooLarge(f"a list of more than {MAX_ITEMS}")
        return items

    def _single(self) -> Tree:
        items = self._items()
        if len(items) != 1:
            raise Unreadable("one value expected, not a list")
        return items[0]

    def _item(self) -> Tree:
        sides, signs = [self._union()], []
        while self._peek() in _RELATIONS:
            signs.append(self._next())
            sides.append(self._union())
        if not signs:
            return sides[0]
        if len(signs) == 1:
            return relation(signs[0], sides[0], sides[1])
        if len(signs) == 2 and sides[1][0] == "symbol":
            return _between(signs, sides)
        raise Unreadable("a chain of relations")

    def _union(self) -> Tree:
        first = self._sum()
        if self._peek() != "\\cup":
            return first
        parts = [first]
        while self._accept("\\cup"):
            parts.append(self._sum())
        return ("set", *(item for part in parts for item in items_of(part)))

    def _sum(self) -> Tree:
        terms = [self._signed_product()]
        while self._peek() in ("+", "-"):
            terms.append(self._signed_product())
        return terms[0] if len(terms) == 1 else ("add", *terms)

    def _signed_product(self) -> Tree:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._next() == "-"
        product = self._product()
        return _negative(product) if negative else product

    def _product(self) -> Tree:
        factors = [self._power_or_mixed()]
        while True:
            if self._accept("*"):
                factors.append(self._signed_power())
            elif self._accept("/"):
                factors.append(("power", self._signed_power(), MINUS_ONE))
            elif self._starts_atom() and not self._peek().isdecimal():
                factors.append(self._power_or_mixed())
            else:
                return factors[0] if len(factors) == 1 else ("multiply", *factors)

    def _signed_power(self) -> Tree:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._next() == "-"
        power = self._power_or_mixed()
        return _negative(power) if negative else power

    def _power_or_mixed(self) -> Tree:
        """A power, or a whole number with a fraction behind it, which it is added to."""
        start = self._place
        power = self._power()
        if not all(token.isdecimal() for token in self._tokens[start : self._place]):
            return power
        fraction_at = self._place
        if self._peek() == "\\frac":
            fraction = self._atom()
            if not {*"".join(self._tokens[fraction_at + 1 : self._place])} - {*"0123456789{}"}:
                return ("add", power, fraction)
            self._place = fraction_at
        elif self._accept(" "):
            over = self._digits()
            self._expect("/")
            return ("add", power, _quotient(_number(over), _number(self._digits())))
        return power

    def _power(self) -> Tree:
        base = self._atom()
        if self._accept("!"):
            base = ("function", "factorial", base)
        if self._accept("^"):
            base = ("power", base, self._argument(whole_number=True))
        return base

    def _argument(self, whole_number: bool = False) -> Tree:
        r"""What a command or `^` applies to: a group or, as in TeX, the one next token; here also a sign before it.

        `whole_number` takes all digits of `2^10` and `\sqrt 12`, where one digit makes no sense; `\frac59` is 5/9.
        """
        self._accept(" ")
        with self._deeper():
            if self._accept("-"):
                return _negative(self._argument(whole_number))
            if self._peek().isdecimal():
                return _number(self._digits() if whole_number else self._next())
            return self._atom()

    def _starts_atom(self) -> bool:
        token = self._peek()
        if token == "|":
            return self._bars == 0
        if token.startswith("\\"):
            return token not in _NO_ATOM and not token.startswith("\\end")
        return token == "." or token in _CLOSING or token.isalnum()

    def _atom(self) -> Tree:
        token = self._next()
        if token.isdecimal() or token == ".":
            self._place -= 1
            return self._decimal()
        if token in _CLOSING:
            return self._bracketed(token)
        if token == "|":
            with self._deeper():
                self._bars += 1
                inside = self._sum()
                self._expect("|")
                self._bars -= 1
            return ("function", "abs", inside)
        if token in _ROUNDING:
            name, closing = _ROUNDING[token]
            inside = self._single()
            self._expect(closing)
            return ("function", name, inside)
        if token.startswith("\\text{"):
            return _words(token[6:-1])
        if token.startswith("\\begin{"):
            return self._matrix(token[7:-1])
        if token.startswith("\\mathbb"):
            return ("symbol", token.replace("{", "").replace("}", "").replace(" ", ""))
        return self._named(token.removeprefix("\\"))

    def _named(self, name: str) -> Tree:
        if name == "frac":
            over = self._argument()
            return _quotient(over, self._argument())
        if name == "binom":
            chosen_from = self._argument()
            return ("function", "binomial", chosen_from, self._argument())
        if name == "sqrt":
            return self._root()
        if name in _FUNCTIONS:
            return self._function(name)
        if name in ("pi", "infty", "infinity"):
            return ("constant", "pi" if name == "pi" else "infinity")
        if name == "emptyset":
            return ("symbol", "\\emptyset")
        if name in _GREEK or (len(name) == 1 and name.isalpha()):
            return self._letter(name)
        raise Unreadable(f"unknown {name!r}")

    def _letter(self, name: str) -> Tree:
        if self._accept("_"):
            return ("symbol", f"{name}_{self._subscript()}")
        return ("constant", name) if name in ("e", "i") else ("symbol", name)

    def _subscript(self) -> str:
        if not self._accept("{"):
            return self._next()
        parts = []
        while not self._accept("}"):
            parts.append(self._next())
        return "".join(parts)

    def _digits(self) -> str:
        digits = ""
        while self._peek().isdecimal():
            digits += self._next()
        if not digits:
            raise Unreadable(f"expected digits, found {self._peek()!r}")
        return digits

    def _decimal(self) -> Tree:
        """12, 1.25, .5, 2., 0.1\\overline{6}, and a numeral with its base, 52_8, which is a name, not a value."""
        whole = "" if self._peek() == "." else self._digits()
        if self._accept("_"):
            return ("symbol", f"{whole}_{self._subscript()}")
        if not self._accept("."):
            return _number(whole)
        places = self._digits() if self._peek().isdecimal() else ""
        if not whole + places:
            raise Unreadable("a lone decimal point")
        value = Fraction(int(whole + places), 10 ** len(places))
        if self._accept("\\overline"):
            self._expect("{")
            cycle = self._digits()
            self._expect("}")
            value += Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(places))
        return ("number", value)

    def _bracketed(self, opening: str) -> Tree:
        items = self._items()
        closing = self._next()
        if closing not in _CLOSING[opening]:
            raise Unreadable(f"{opening!r} closed by {closing!r}")
        if opening in ("{", "\\{"):
            return items[0] if len(items) == 1 else ("set", *(part for item in items for part in items_of(item)))
        if len(items) == 1 and opening + closing == "()":
            return items[0]
        return ("tuple", opening, closing, *items)

    def _root(self) -> Tree:
        degree: Tree = ("number", Fraction(2))
        if self._accept("["):
            degree = self._single()
            self._expect("]")
        return ("power", self._argument(whole_number=True), _quotient(("number", Fraction(1)), degree))

    def _function(self, name: str) -> Tree:
        r"""`\sin x`, `\sin 2x`, `\sin(x)`, `\sin^2 x`, `\sin^{-1} x`, `\log_2 x`."""
        base = self._argument() if name == "log" and self._accept("_") else ("number", Fraction(10))
        exponent = self._argument(whole_number=True) if self._accept("^") else None
        if exponent == MINUS_ONE and name in ("sin", "cos", "tan"):
            name, exponent = f"arc{name}", None
        self._accept(" ")
        with self._deeper():
            factors = [self._power()]
            if factors[0][0] == "number":
                while self._starts_atom() and self._peek().removeprefix("\\") not in _FUNCTIONS | {"frac"}:
                    factors.append(self._power())
        argument = factors[0] if len(factors) == 1 else ("multiply", *factors)
        value = ("function", name, argument, base) if name == "log" else ("function", name, argument)
        return value if exponent is None else ("power", value, exponent)

    def _matrix(self, kind: str) -> Tree:
        if kind not in _MATRICES:
            raise Unreadable(f"unknown environment {kind!r}")
        if kind == "array" and self._accept("{"):
            while not self._accept("}"):
                self._next()
        rows: list[list[Tree]] = [[]]
        while True:
            rows[-1].append(self._single())
            if self._accept("&"):
                continue
            if not self._accept("\\\\") or self._peek() == f"\\end{{{kind}}}":
                break
            rows.append([])
        self._expect(f"\\end{{{kind}}}")
        return ("matrix", *map(tuple, rows))


def _split_letters(part: str) -> list[str]:
    """A run of letters is a name the grammar knows, or a product of at most three letters."""
    if not part.isalpha() or len(part) == 1 or part in _FUNCTIONS or part in ("sqrt", "pi", "infinity", "infty"):
        return [part]
    if len(part) > _WORD_LENGTH or not part.isascii():
        raise Unreadable(f"the word {part!r}")
    return list(part)


def _number(digits: str) -> Tree:
    return ("number", Fraction(int(digits)))


def _negative(tree: Tree) -> Tree:
    return ("number", -tree[1]) if tree[0] == "number" else ("multiply", MINUS_ONE, tree)


def _quotient(over: Tree, under: Tree) -> Tree:
    return ("multiply", over, ("power", under, MINUS_ONE))


def _words(words: str) -> Tree:
    if len(words) == 1 and words.isalpha():
        return ("constant", words) if words in "ei" else ("symbol", words)
    return ("text", words)


def relation(sign: str, left: Tree, right: Tree) -> Tree:
    r"""A relation in one form: `x \in S` is S, and a bound of one symbol is the interval it stands for.

    >>> relation(">", ("symbol", "x"), MINUS_ONE)
    ('tuple', '(', ')', ('number', Fraction(-1, 1)), ('constant', 'infinity'))
    """
    if sign == "\\in":
        return right
    if sign in ("=", "\\neq"):
        return ("relation", sign, left, right)
    if sign in (">", "\\geq"):
        sign, left, right = {">": "<", "\\geq": "\\leq"}[sign], right, left
    if left[0] == "symbol":
        return ("tuple", "(", ")" if sign == "<" else "]", _negative(INFINITY), right)
    if right[0] == "symbol":
        return ("tuple", "(" if sign == "<" else "[", ")", left, INFINITY)
    return ("relation", sign, left, right)


def _between(signs: list[str], sides: list[Tree]) -> Tree:
    """`a < x <= b` as an interval."""
    if all(sign in (">", "\\geq") for sign in signs):
        signs = [{">": "<", "\\geq": "\\leq"}[sign] for sign in reversed(signs)]
        sides = sides[::-1]
    if not all(sign in ("<", "\\leq") for sign in signs):
        raise Unreadable("a chain of unlike relations")
    return ("tuple", "(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]", sides[0], sides[2])
