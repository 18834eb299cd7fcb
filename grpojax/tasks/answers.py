r"""Finding the answer in a text, and writing it in one way.

An answer is what stands in the last complete `\boxed{}`. Both functions take linear time on any input.
"""

import re

from grpojax.errors import InputError

_BOX_TOKEN = re.compile(r"\\boxed(?![A-Za-z])\s*(?P<box>\{)?|\\(?!\\boxed).|[{}]", re.DOTALL)
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212])?"  # a sign, where it is no subtraction
    r"(?:[1-9]\d{0,2}(?:,\d{3}(?!\d))+|\d+|(?<!\d)(?=\.\d))(?:\.\d+)?(?:/\d+)?"
)


def extract_answer(text: str, fallback: str | None = None) -> str:
    r"""The content of the last complete `\boxed{...}` of a text, or "".

    Braces nest and escaped ones (`\{`) do not count; of nested boxes the inner one is the last. A box that never closes
    is no box, nor is `\boxed 7`: TeX would frame one digit of `\boxed 12`, and its writer means another answer.

    Args:
      text: the generated text alone: a prompt may show a box of its own.
      fallback: what to take where there is no box or an empty one: None for nothing (training), "last_number" for the
        last number of the text (evaluation).

    >>> extract_answer(r"so \boxed{3}, no, \boxed{\frac{1}{2}} and \boxed{4")
    '\\frac{1}{2}'
    >>> extract_answer("I get 1,250 in all.", fallback="last_number")
    '1,250'
    """
    if fallback not in (None, "last_number"):
        raise InputError(f"unknown fallback {fallback!r}; expected None or 'last_number'.")
    answer = _last_box(text).strip()
    if answer or fallback is None:
        return answer
    number = ""
    for match in _NUMBER.finditer(text):
        number = match.group()
    return number


def _last_box(text: str) -> str:
    """One pass with a stack of open braces: each box is known by the place where its content starts."""
    open_braces: list[tuple[int, bool]] = []
    last = (0, 0)
    for match in _BOX_TOKEN.finditer(text):
        token = match.group()
        if token == "{" or match.group("box"):
            open_braces.append((match.end(), token != "{"))
        elif token == "}" and open_braces:
            start, is_box = open_braces.pop()
            if is_box and start > last[0]:
                last = (start, match.start())
    return text[slice(*last)]


# What unicode writes for LaTeX; a superscript run becomes ^{...}.
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_UNICODE = str.maketrans({
    "−": "-", "–": "-", "·": "*", "×": "*", "⋅": "*", "÷": "/", "π": "\\pi ", "√": "\\sqrt ", "∞": "\\infty ", "°": "",
    "≤": "\\leq ", "≥": "\\geq ", "≠": "\\neq ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "±": "\\pm ",
    "½": "\\frac{1}{2}", "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}", "¼": "\\frac{1}{4}", "¾": "\\frac{3}{4}",
    "θ": "\\theta ", "∅": "\\emptyset ", "€": "", "£": "", "\u00a0": " ", "\u2009": " ", "\u202f": " ",
})  # fmt: skip
_SAME = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\dbinom": "\\binom", "\\tbinom": "\\binom",
    "\\cdot": "*", "\\times": "*", "\\ast": "*", "**": "^", "\\div": "/", "\\le": "\\leq", "\\ge": "\\geq",
    "\\leqslant": "\\leq", "\\geqslant": "\\geq", "\\ne": "\\neq", "\\lt": "<", "\\gt": ">", "\\lbrace": "\\{",
    "\\rbrace": "\\}", "\\lvert": "|", "\\rvert": "|", "\\vert": "|", "\\mid": "|", "\\varnothing": "\\emptyset",
    "and": ",", "or": ",", "<=": "\\leq", ">=": "\\geq", "\\colon": ":", "\\degree": "",
}  # fmt: skip
_SILENT = {
    "$", "\\$", "%", "\\%", "\\(", "\\)", "\\[", "\\]", "\\left", "\\right", "\\displaystyle", "\\textstyle",
    "\\big", "\\Big", "\\bigl", "\\bigr", "\\Bigl", "\\Bigr", "\\bigg", "\\Bigg", "\\biggl", "\\biggr",
}  # fmt: skip
_SPACES = {"\\,", "\\!", "\\;", "\\:", "\\ ", "~", "\\quad", "\\qquad", "\\thinspace"}
_TOKEN = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|mathbf|mathit|operatorname)\s*\{(?P<words>[^{}]*)\}"
    r"|\\[A-Za-z]+|\\.|\s+|\d+|[A-Za-z]+|\*\*|[<>]=|.",
    re.DOTALL,
)
_UNITS = (
    "mm|cm|km|inches|inch|feet|foot|ft|yards?|miles?|meters?|metres?|grams?|kg|pounds?|liters?|litres?|degrees?|dollars?|"
    "cents?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|units?|percent|mph|people"
)
_UNIT = re.compile(
    r"(?:(?<=[\d)}])|(?<=\\pi))(?:\\text\{[^{}]*\}|(?:(?:square|cubic|sq) ?)?(?:"
    + _UNITS
    + r")(?![A-Za-z]))(?:\^\{?[23]\}?)?"
)
_DEGREE_SIGN = re.compile(r"\^(?:\\circ ?|\{\\circ\})")
_TYPESET_COMMA = re.compile(r"(?<=\d)(?:\{,\}|,\s*\\[!,;:])\s*(?=\d{3})")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d/])")


def normalize_answer(text: str) -> str:
    r"""An answer in one way of writing, for comparing text and as what the grader reads.

    Spaces, sizes of brackets, dollar, percent and degree signs, units behind a number, thousands separators and the
    letter case inside `\text{}` go; synonyms such as `\dfrac`, `\times` and unicode signs become one. Braces stay.

    >>> normalize_answer(r"$\left( 1,\!000 \,\text{ cm}^2 \right)$"), normalize_answer("90^\\circ")
    ('(1000)', '90')
    """
    text = _TYPESET_COMMA.sub("", text.translate(_UNICODE))
    text = re.sub(r"\\(?:left|right)\s*\.", "", text)  # an invisible bracket
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda run: "^{" + run.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _DEGREE_SIGN.sub("", _joined(text))
    text = _UNIT.sub("", text)
    if not re.search(r"[(\[]|\\\{", text):  # between brackets a comma separates, as in (0,100)
        text = _THOUSANDS.sub(lambda number: re.sub("[ ,]", "", number.group()), text)
    return text.removesuffix(".")


def _joined(text: str) -> str:
    """The tokens of a text, renamed and joined; a space stays only where two numbers or words would run together."""
    parts: list[str] = []
    spaced = False
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.isspace() or token in _SPACES:
            spaced = True
            continue
        if token in _SILENT:
            continue
        token = _SAME.get(token, token)
        if match.group("words") is not None:
            words = " ".join(match.group("words").lower().split())
            token = "," if words in ("and", "or", ",") else f"\\text{{{words}}}"
        if parts and _run_together(parts[-1], token, spaced):
            parts.append(" ")
        parts.append(token)
        spaced = False
    return "".join(parts)


def _run_together(left: str, right: str, spaced: bool) -> bool:
    if left[-1:].isdecimal():
        return spaced and right[:1].isdecimal()
    if left[-1:].isalpha() and right[:1].isalpha():
        return spaced or left.startswith("\\")
    return False
