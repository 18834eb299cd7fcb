r"""Reads an answer in LaTeX or plain text into a tree, by a closed grammar; nothing is ever evaluated as Python.

    answer    = item { "," item }                          several items are a set
    item      = relation { ("\land" | "\lor") relation }
    relation  = union { ("=" | "<" | ">" | "\leq" | "\geq" | "\neq" | "\in" | "\approx") union }  or  sum ":" sum
    union     = sum { ("\cup" | "\cap" | "\setminus") sum }
    sum       = ["+" | "-"] product { ("+" | "-") product }
    product   = power { ["*" | "/"] power } [ unit ]       a number before a fraction of numbers is a mixed number
    power     = atom [ "!" | "!!" ] [ "^" argument ]
    atom      = number | letter | constant | text | function | \frac | \binom | \sqrt | \sum | \prod | \int | \lim
              | matrix | bracketed answer | set-builder | |sum|

A tree is a nested tuple. Its first entry is its kind, the others are its parts:

    ("number", Fraction)  ("symbol", name)  ("constant", "pi" | "e" | "i" | "infinity")  ("text", words)
    ("add", *terms)  ("multiply", *factors)  ("power", base, exponent)  ("function", name, *arguments)
    ("bound", "sum" | "product" | "integral", name, low, high, body)  ("bound", "limit", name, goal, body)
    ("quantity", value, unit)  ("tuple", open, close, *items)  ("matrix", ("row", *entries), ...)
    ("set", *items)  ("union" | "intersection" | "difference", *sets)
    ("relation", "=" | "\neq" | "<" | "\leq", left, right, *further values of a chain of "=")
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]

MAX_LENGTH = 2000  # characters of an answer
MAX_DEPTH = 40  # nested brackets, exponents and arguments
MAX_ITEMS = 100  # of all lists together, or entries of a matrix
MAX_LISTS = 4  # nested sets and unions
MAX_CHAIN = 6  # sides of a chain of equations


class Unreadable(ValueError):
    """The text is outside the grammar."""


class TooLarge(ValueError):
    """The text exceeds a size limit, so reading or comparing it would take too long."""


MINUS_ONE: Tree = ("number", Fraction(-1))
INFINITY: Tree = ("constant", "infinity")

_TOKEN = re.compile(
    r"(?<=\d) |\\(?:text|unit)\{[^{}]*\}|\\(?:begin|end)\{[a-z]+\}|\\mathbb ?\{?[A-Z]\}?"
    r"|\\[A-Za-z]+|\\.|[A-Za-z]+|[^ ]",
    re.DOTALL,
)
FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "exp",
}  # fmt: skip
GREEK = {
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "ell",
    "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega",
}  # fmt: skip
_RELATIONS = {"=", "<", ">", "\\leq", "\\geq", "\\neq", "\\in", "\\approx"}
_SET_OPERATIONS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference"}
_JOINED = {"\\lor": "union", "\\land": "intersection"}
_CLOSING = {"(": ")]", "[": ")]", "\\{": ("\\}",), "{": "}", "\\langle": ("\\rangle",)}
_NO_ATOM = {
    *_RELATIONS, *_SET_OPERATIONS, *_JOINED,
    "\\\\", "\\}", "\\rangle", "\\rfloor", "\\rceil", "\\to", "\\choose", "\\over",
}  # fmt: skip
_NAMED = {
    "pi": ("constant", "pi"), "infty": INFINITY, "infinity": INFINITY, "emptyset": ("symbol", "\\emptyset"),
}  # fmt: skip
_ROUNDING = {"\\lfloor": ("floor", "\\rfloor"), "\\lceil": ("ceiling", "\\rceil")}
_BOUND = {"sum": "sum", "prod": "product", "int": "integral", "lim": "limit"}
_MATRICES = {"matrix", "pmatrix", "bmatrix", "array"}
_DIGITS_AND_BRACES = {*"0123456789{}"}
_WORD_LENGTH = 3  # a longer run of letters is a word, not a product
_UNSPLIT = FUNCTIONS | {"sqrt", "pi", "infinity", "infty"}


def read_answer(text: str) -> Tree:
    r"""The tree of a normalised answer; an answer with `\pm` is the set of both readings.

    >>> read_answer("3x")
    ('multiply', ('number', Fraction(3, 1)), ('symbol', 'x'))

    Raises:
      Unreadable, TooLarge
    """
    if len(text) > MAX_LENGTH:
        raise TooLarge(f"longer than {MAX_LENGTH} characters")
    signed = dict.fromkeys(text.replace("\\pm", one).replace("\\mp", other) for one, other in ("+-", "-+"))
    trees = [_Reader(one).answer() for one in signed]
    tree = trees[0] if len(trees) == 1 else ("set", *(item for tree in trees for item in items_of(tree)))
    if _lists_within(tree) > MAX_LISTS:
        raise TooLarge(f"more than {MAX_LISTS} lists inside each other")
    return tree


def _lists_within(tree: Tree) -> int:
    """How deep lists are nested; comparing them takes time exponential in it."""
    inside = max((_lists_within(part) for part in tree if isinstance(part, tuple)), default=0)
    return inside + (tree[0] in ("set", "union", "intersection", "difference"))


def items_of(tree: Tree) -> tuple[Tree, ...]:
    """The items of a set; any other tree is a set of one item."""
    return tree[1:] if tree[0] == "set" else (tree,)


class _Reader:
    """Recursive descent over the tokens of one answer."""

    def __init__(self, text: str):
        self._tokens: list[str] = []
        for token in _TOKEN.findall(text):
            if not token.isalpha() or token in _UNSPLIT:
                self._tokens.append(token)
            elif len(token) <= _WORD_LENGTH:
                self._tokens += token
            else:
                raise Unreadable(f"the word {token!r}")
        self._tokens += [""] * 4  # as far as any rule looks ahead
        self._position = 0
        self._depth = 0
        self._bars = 0  # open |
        self._listed = 0  # commas so far
        self._integrals = 0  # open \\int; each ends with d and a letter

    def answer(self) -> Tree:
        tree = _list_of("set", self._items())
        if self._peek():
            raise Unreadable(f"unexpected {self._peek()!r}")
        return tree

    # --- tokens ---

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[self._position + ahead]

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise Unreadable("ends early")
        self._position += 1
        return token

    def _accept(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._position += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise Unreadable(f"expected {token!r}, found {self._peek()!r}")

    @contextlib.contextmanager
    def _deeper(self) -> Iterator[None]:
        """Limits the recursion."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")
        yield
        self._depth -= 1

    # --- the grammar, top down ---

    def _items(self) -> list[Tree]:
        """A comma list of at least one item, one level deeper than its surroundings."""
        with self._deeper():
            bars, self._bars = self._bars, 0
            items = [self._item()]
            while self._accept(","):
                items.append(self._item())
                self._listed += 1
                if self._listed >= MAX_ITEMS:
                    raise TooLarge(f"lists of more than {MAX_ITEMS}")
            self._bars = bars
        return items

    def _single(self) -> Tree:
        items = self._items()
        if len(items) != 1:
            raise Unreadable("one value expected, not a list")
        return items[0]

    def _item(self) -> Tree:
        parts = [self._relation()]
        joints = set()
        while self._peek() in _JOINED:
            joints.add(_JOINED[self._next()])
            parts.append(self._relation())
        if len(joints) > 1:
            raise Unreadable("both and and or")
        return (*joints, *parts) if joints else parts[0]

    def _relation(self) -> Tree:
        if self._accept("\\approx"):
            return self._union()
        signs: list[str] = []
        sides = [self._union()]
        if self._accept(":"):
            if self._peek().isdecimal() and self._peek(1).isdecimal() and not self._peek(2).isdecimal():
                raise Unreadable("a time, or a ratio")  # two digits could be minutes
            return _quotient(sides[0], self._union())
        while self._peek() in _RELATIONS:
            signs.append(self._next())
            sides.append(self._union())
            if len(sides) > MAX_CHAIN:
                raise Unreadable("a long chain of relations")
        if {*signs} <= {"=", "\\approx"}:
            return _equation(signs, sides)
        same_way = {*signs} <= {"<", "\\leq"} or {*signs} <= {">", "\\geq"}
        if len(signs) > 2 or (len(signs) == 2 and not same_way):
            raise Unreadable("a chain of relations")
        return _list_of("intersection", [relation(sign, *sides[k : k + 2]) for k, sign in enumerate(signs)])

    def _union(self) -> Tree:
        tree = self._sum()
        while self._peek() in _SET_OPERATIONS:
            operation = _SET_OPERATIONS[self._next()]
            parts = tree if tree[0] == operation != "difference" else (operation, tree)
            tree = (*parts, self._sum())
        return tree

    def _sum(self) -> Tree:
        terms = [self._signed(self._product)]
        while self._peek() in ("+", "-"):
            terms.append(self._signed(self._product))
        return _list_of("add", terms)

    def _signed(self, read: Callable[[], Tree]) -> Tree:
        """What `read` reads, with any signs before it."""
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._next() == "-"
        tree = read()
        return _negative(tree) if negative else tree

    def _product(self) -> Tree:
        """Factors, with at most one unit before or after them; two units, as in `3 cm * 4 cm`, are dropped."""
        units = [self._next()] if self._peek().startswith("\\unit{") else []
        factors = [self._signed(self._factor) if units else self._factor()]
        while True:
            if self._accept("*"):
                factors.append(self._signed(self._factor))
            elif self._accept("/"):
                factors.append(("power", self._signed(self._factor), MINUS_ONE))
            elif self._peek().startswith("\\unit{"):
                units.append(self._next())
                if self._peek().startswith("\\unit{"):
                    raise Unreadable("two units in a row")
            elif self._starts_atom() and (not self._peek().isdecimal() or self._peek(-1) == "!"):
                if self._peek(-1) == "}" and self._peek() == "{" and self._peek(1).isdecimal():
                    raise Unreadable("two groups of digits in a row")
                factors.append(self._factor())
            else:
                break
        if len(factors) + len(units) > 1 and any(factor[0] == "text" for factor in factors):
            raise Unreadable("words next to a value")
        product = _list_of("multiply", factors)
        return ("quantity", product, units[0][6:-1]) if len(units) == 1 else product

    def _factor(self) -> Tree:
        """A power, or a mixed number: a whole number followed by a fraction, which is their sum."""
        start = self._position
        power = self._power()
        if not all(token.isdecimal() for token in self._tokens[start : self._position]):
            return power
        if self._peek() == "\\frac" and self._has_digits_alone():
            return ("add", power, self._atom())
        if self._accept(" "):
            over = self._digits()
            self._expect("/")
            return ("add", power, _quotient(_number(over), _number(self._digits())))
        return power

    def _has_digits_alone(self) -> bool:
        """Whether both arguments of the next command are digits and braces."""
        ahead, open_braces, arguments = 1, 0, 0
        while arguments < 2 and self._peek(ahead) in _DIGITS_AND_BRACES:
            open_braces += {"{": 1, "}": -1}.get(self._peek(ahead), 0)
            arguments += open_braces == 0
            ahead += 1
        return arguments == 2

    def _power(self) -> Tree:
        base = self._atom()
        if self._accept("!"):
            base = ("function", "double factorial" if self._accept("!") else "factorial", base)
        if self._accept("^"):
            base = ("power", base, self._argument(whole_number=True))
        return base

    def _argument(self, whole_number: bool = False) -> Tree:
        r"""The argument of a command or of `^`: a group or, as in TeX, the next token; here also with a sign.

        `whole_number` takes all digits, as in `2^10` and `\sqrt 12`, where one alone makes no sense; `\frac59` is 5/9.
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
        if token == "d" and self._integrals and self._peek(1).isalpha():
            return False
        if token.startswith("\\"):
            return token not in _NO_ATOM and not token.startswith(("\\end", "\\unit"))
        return token == "." or token in _CLOSING or token.isalnum()

    def _atom(self) -> Tree:
        token = self._next()
        name = token.removeprefix("\\")
        if token.isdecimal() or token == ".":
            self._position -= 1
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
            rounding, closing = _ROUNDING[token]
            inside = self._single()
            self._expect(closing)
            return ("function", rounding, inside)
        if token.startswith("\\text{"):
            words = token[6:-1]
            is_letter = len(words) == 1 and words.isalpha()
            return ("text" if not is_letter else "constant" if words in "ei" else "symbol", words)
        if token.startswith("\\begin{"):
            return self._matrix(token[7:-1])
        if token.startswith("\\mathbb"):
            return ("symbol", re.sub("[{} ]", "", token))
        if name == "frac":
            return _quotient(self._argument(), self._argument())
        if name == "binom":
            return ("function", "binomial", self._argument(), self._argument())
        if name == "sqrt":
            degree: Tree = ("number", Fraction(2))
            if self._accept("["):
                degree = self._single()
                self._expect("]")
            return ("power", self._argument(whole_number=True), _quotient(("number", Fraction(1)), degree))
        if name in _BOUND:
            with self._deeper():
                return self._bound(_BOUND[name])
        if name in FUNCTIONS:
            return self._function(name)
        if name in _NAMED:
            return _NAMED[name]
        if name in ("angle", "triangle", "overline"):
            return ("symbol", f"\\{name} {self._group() if self._peek() == '{' else self._letters()}")
        if name in GREEK or (len(name) == 1 and name.isalpha()):
            return self._letter(name)
        raise Unreadable(f"unknown {name!r}")

    def _letter(self, name: str) -> Tree:
        while self._accept("'"):
            name += "'"
        if self._accept("_"):
            return ("symbol", f"{name}_{self._group()}")
        return ("constant" if name in ("e", "i") else "symbol", name)

    def _group(self) -> str:
        """The text of a group, or the next token."""
        if not self._accept("{"):
            return self._next()
        parts = []
        while not self._accept("}"):
            parts.append(self._next())
        return "".join(parts)

    def _letters(self) -> str:
        """The letters of the name of an angle or a triangle."""
        return self._run(lambda token: len(token) == 1 and token.isalpha())

    def _digits(self) -> str:
        return self._run(str.isdecimal)

    def _run(self, belongs: Callable[[str], bool]) -> str:
        """The next tokens, as many as belong; at least one."""
        start = self._position
        while belongs(self._peek()):
            self._position += 1
        if start == self._position:
            raise Unreadable(f"unexpected {self._peek()!r}")
        return "".join(self._tokens[start : self._position])

    def _decimal(self) -> Tree:
        """12, 1.25, .5, 2., 0.1\\overline{6}, and a numeral with its base, 52_8, which is a name and not a value."""
        whole = "" if self._peek() == "." else self._digits()
        if self._accept("_"):
            return ("symbol", f"{whole}_{self._group()}")
        if not self._accept("."):
            return _number(whole)
        places = self._digits() if self._peek().isdecimal() else ""
        if not whole + places and self._peek() != "\\overline":
            raise Unreadable("a lone decimal point")
        value = Fraction(int(whole + places or "0"), 10 ** len(places))
        if self._accept("\\overline"):
            self._expect("{")
            cycle = self._digits()
            self._expect("}")
            value += Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(places))
        return ("number", value)

    def _bracketed(self, opening: str) -> Tree:
        if opening == "\\{":
            if self._accept("\\}"):
                return _NAMED["emptyset"]
            condition = 3 if self._peek(1) == "\\in" and self._peek(2).startswith("\\mathbb") else 1
            if self._peek().isalpha() and self._peek(condition) in ("|", ":"):
                return self._builder()
        items = self._items()
        if opening == "{" and len(items) == 1 and self._peek() in ("\\choose", "\\over"):
            command = self._next()
            below = self._single()
            self._expect("}")
            return _quotient(items[0], below) if command == "\\over" else ("function", "binomial", items[0], below)
        closing = self._next()
        if closing not in _CLOSING[opening]:
            raise Unreadable(f"{opening!r} closed by {closing!r}")
        if opening in ("{", "\\{"):
            return _list_of("set", items)
        if len(items) == 1 and (opening + closing == "()" or items[0][0] == "matrix"):
            return items[0]
        if opening == "\\langle":
            opening, closing = "(", ")"  # a vector
        return ("tuple", opening, closing, *items)

    def _builder(self) -> Tree:
        r"""`\{x : conditions\}` or `\{x \in \mathbb{R} : conditions\}`: the conditions, all of which hold."""
        letter = self._next()
        parts = [self._atom()] if self._accept("\\in") else []
        if parts == [("symbol", "\\mathbbR")]:
            parts = []
        self._next()
        conditions = self._items()
        self._expect("\\}")
        if any(letter not in names(condition) for condition in conditions):
            raise Unreadable("a condition on something else")
        return _list_of("intersection", [*parts, *conditions])

    def _bound(self, kind: str) -> Tree:
        r"""`\sum_{k=1}^{n} k`, `\prod`, `\int_0^1 x dx`, `\lim_{n\to\infty} 1/n`; the letter gets a unique name."""
        self._expect("_")
        if kind == "integral":
            bounds = [self._argument()]
            self._expect("^")
            bounds.append(self._argument())
            self._integrals += 1
            body = self._sum()
            self._integrals -= 1
            self._expect("d")
            name = self._letters()
        else:
            self._expect("{")
            name = self._next()
            self._expect("\\to" if kind == "limit" else "=")
            bounds = [self._sum()]
            self._expect("}")
            if kind != "limit":
                self._expect("^")
                bounds.append(self._argument(whole_number=True))
            body = self._product()
        if len(name) != 1 or not name.isalpha():
            raise Unreadable(f"bound by {name!r}")
        own = f"#{self._depth}"
        return ("bound", kind, own, *bounds, _renamed(body, name, own))

    def _function(self, name: str) -> Tree:
        r"""`\sin x`, `\sin 2x`, `\sin^2 x`, `\sin(x)^2`, `\sin^{-1} x`, `\log_2 x`, `\sin 30\unit{degree}`."""
        base = self._argument() if name == "log" and self._accept("_") else ("number", Fraction(10))
        exponent = self._argument(whole_number=True) if self._accept("^") else None
        if exponent == MINUS_ONE and name in ("sin", "cos", "tan"):
            name, exponent = f"arc{name}", None
        self._accept(" ")
        with self._deeper():
            is_bracketed = self._peek() in ("(", "[") and exponent is None
            factors = [self._atom() if is_bracketed else self._power()]
            if is_bracketed and self._accept("^"):
                exponent = self._argument(whole_number=True)
            if factors[0][0] == "number":
                while self._starts_atom() and self._peek().removeprefix("\\") not in FUNCTIONS | {"frac"}:
                    factors.append(self._power())
        argument = _list_of("multiply", factors)
        if self._peek().startswith("\\unit{"):
            argument = ("quantity", argument, self._next()[6:-1])
        value = ("function", name, argument, base) if name == "log" else ("function", name, argument)
        return value if exponent is None else ("power", value, exponent)

    def _matrix(self, kind: str) -> Tree:
        if kind not in _MATRICES:
            raise Unreadable(f"unknown environment {kind!r}")
        if kind == "array" and self._peek() == "{":
            self._group()  # how the columns are aligned
        end = f"\\end{{{kind}}}"
        rows: list[Tree] = []
        while not rows or (self._accept("\\\\") and self._peek() != end):
            row: Tree = ("row", self._single())
            while self._accept("&"):
                row += (self._single(),)
            rows.append(row)
        self._expect(end)
        return ("matrix", *rows)


def _list_of(kind: str, items: list[Tree]) -> Tree:
    """A list of one item is the item."""
    return items[0] if len(items) == 1 else (kind, *items)


def _number(digits: str) -> Tree:
    return ("number", Fraction(int(digits)))


def _negative(tree: Tree) -> Tree:
    return ("number", -tree[1]) if tree[0] == "number" else ("multiply", MINUS_ONE, tree)


def _quotient(over: Tree, under: Tree) -> Tree:
    return ("multiply", over, ("power", under, MINUS_ONE))


def relation(sign: str, left: Tree, right: Tree) -> Tree:
    r"""A relation in normal form: `x \in S` is S, and the smaller side of an inequality is on the left.

    >>> relation(">", ("symbol", "x"), MINUS_ONE)
    ('relation', '<', ('number', Fraction(-1, 1)), ('symbol', 'x'))
    """
    if sign == "\\in":
        return right
    mirrored = {">": "<", "\\geq": "\\leq"}.get(sign)
    return ("relation", mirrored, right, left) if mirrored else ("relation", sign, left, right)


def _equation(signs: list[str], sides: list[Tree]) -> Tree:
    r"""`a`, `a = b`, or `x = a = b`, where every value counts; what follows `\approx` counts only after a bare name."""
    exact = 1 + (signs + ["\\approx"]).index("\\approx")
    kept = sides[: max(exact, 2) if sides[0][0] == "symbol" else exact]
    return ("relation", "=", *kept) if len(kept) > 1 else kept[0]


def names(tree: Tree) -> set[str]:
    """The letters in a tree.

    >>> sorted(names(read_answer("ax+2")))
    ['a', 'x']
    """
    if tree[0] == "symbol":
        return {tree[1]}
    return set().union(*(names(part) for part in tree if isinstance(part, tuple)))


def _renamed(tree: Tree, old: str, new: str) -> Tree:
    """The tree with a letter renamed, also where it is the whole subscript of another letter."""
    if tree == ("constant", old):  # the index i
        return ("symbol", new)
    if tree[0] == "symbol":
        name, _, subscript = tree[1].partition("_")
        if tree[1] == old:
            return ("symbol", new)
        return ("symbol", f"{name}_{new}") if subscript == old else tree
    return tuple(_renamed(part, old, new) if isinstance(part, tuple) else part for part in tree)
