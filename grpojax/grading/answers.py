"""Finds the answer in a text and brings it to a normal form. Both take linear time on any input."""

import functools
import re

from grpojax.errors import InputError
from grpojax.grading.latex import FUNCTIONS, GREEK
from grpojax.grading.units import SCALES, is_bare_unit, unit_of

_BOX_TOKEN = re.compile(r"\\boxed(?![A-Za-z])\s*(?P<box>\{)?|\\(?!\\boxed).|[{}]", re.DOTALL)
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212])?"  # a sign, unless it is a subtraction
    r"(?:[1-9]\d{0,2}(?:,\d{3}(?!\d))+|\d+|(?<!\d)(?=\.\d))(?:\.\d+)?(?:[eE][-+\u2212]?\d+)?(?:/\d+)?"
)


def extract_answer(text: str, fallback: str | None = None) -> str:
    r"""The content of the last complete `\boxed{...}` of a text, or ""; of nested boxes the inner one is the last.

    Args:
      text: the generated text, without the prompt, which may contain a box.
      fallback: what an empty or missing box means: None for nothing (training), "last_number" for the last number of
        the text (evaluation).

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
    return ["", *_NUMBER.findall(text)][-1]


def _last_box(text: str) -> str:
    """One pass with a stack of open braces; a box is identified by where its content starts."""
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


# Unicode for LaTeX; a run of raised or lowered digits becomes ^{...} or _{...}.
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_UNICODE = str.maketrans({
    "−": "-", "–": "-", "‐": "-", "‑": "-", "·": "*", "×": "*", "⋅": "*", "÷": "/", "π": "\\pi ", "√": "\\sqrt ",
    "∞": "\\infty ", "°": "\\degree ", "≤": "\\leq ", "≥": "\\geq ", "≠": "\\neq ", "≈": "\\approx ", "∪": "\\cup ",
    "∩": "\\cap ", "∖": "\\setminus ", "∈": "\\in ", "±": "\\pm ", "∠": "\\angle ", "⟨": "\\langle ", "⟩": "\\rangle ",
    "½": " \\frac{1}{2}", "⅓": " \\frac{1}{3}", "⅔": " \\frac{2}{3}", "¼": " \\frac{1}{4}", "¾": " \\frac{3}{4}",
    "θ": "\\theta ", "∅": "\\emptyset ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "€": "", "£": "",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ",
})  # fmt: skip
_SAME = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\nicefrac": "\\frac", "\\sfrac": "\\frac",
    "\\dbinom": "\\binom", "\\tbinom": "\\binom", "\\cdot": "*", "\\times": "*", "\\ast": "*", "**": "^", "\\div": "/",
    "\\le": "\\leq", "\\ge": "\\geq", "\\leqslant": "\\leq", "\\geqslant": "\\geq", "\\ne": "\\neq", "\\lt": "<",
    "\\gt": ">", "<=": "\\leq", ">=": "\\geq", "\\lbrace": "\\{", "\\rbrace": "\\}", "\\lvert": "|", "\\rvert": "|",
    "\\vert": "|", "\\mid": "|", "\\colon": ":", "\\varnothing": "\\emptyset", "\\bar": "\\overline",
    "\\rightarrow": "\\to", "\\land": "and", "\\wedge": "and", "\\lor": "or", "\\vee": "or",
    "\\$": "\\unit{dollar}", "%": "\\unit{percent}", "\\%": "\\unit{percent}", "\\degree": "\\unit{degree}",
}  # fmt: skip
_SILENT = {
    "$", "\\(", "\\)", "\\[", "\\]", "\\left", "\\right", "\\displaystyle", "\\textstyle", "\\limits", "\\boxed",
    "\\fbox", "\\big", "\\Big", "\\bigl", "\\bigr", "\\Bigl", "\\Bigr", "\\bigg", "\\Bigg", "\\biggl", "\\biggr",
    "\\Biggl", "\\Biggr",
}  # fmt: skip
_SPACES = {"\\,", "\\!", "\\;", "\\:", "\\ ", "~", "\\quad", "\\qquad", "\\thinspace"}
_WRAPPER = r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|mathbf|mathit|boldsymbol|operatorname)\s*"
_TOKEN = re.compile(
    _WRAPPER + r"\{(?P<words>[^{}]*)\}|\\[A-Za-z]+|\\.|\s+|\d+|[A-Za-z]+|\*\*|[<>]=|.",
    re.DOTALL,
)
_READABLE = FUNCTIONS | GREEK | {"sqrt", "infinity", "infty", "begin", "end"}  # not words of a language
_START = r"(?:(?<![\w.^])|(?<=\\times)|(?<=\\cdot))"  # of a number in scientific notation
_EULER = re.compile(r"(?<![\d.])(?!1e)(\d+e)(?=[-+\u2212\u2013][1-9])")  # 2e-1, which can mean 2e - 1
# Replaced before the text is split into tokens.
_REWRITTEN = [
    (re.compile(r"\A\s*\*\*([^*]+)\*\*\s*\Z"), r"\1"),  # bold in Markdown
    (re.compile(r"\\(?:left|right)\s*\."), ""),  # an invisible bracket
    (re.compile(r"\\(?:color|textcolor|phantom|hspace|vspace)\s*\{[^{}]*\}"), ""),
    (re.compile(r"\\\\\s*\[\s*\d*(?:\.\d*)?\s*(?:mm|cm|pt|em|ex|in)\s*\]"), r"\\\\"),  # the space below a row
    (re.compile(_WRAPPER + r"\{(\s*[-+]?\s*[\d.][^{}]*)\}"), r" \1 "),  # a number in a wrapper
    (re.compile(r"\^(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\}|\\degree(?![A-Za-z])|\{\s*\\degree\s*\})"), r"\\degree "),
    (re.compile(r"(?<=\d)(?:\{,\}|,\s*\\[!,;:])\s*(?=\d{3})"), ""),  # a comma of thousands
    (re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])"), r"\\cup "),
    (re.compile(rf"{_START}(\d+\.\d*|\.\d+|\d+(?=[eE]\d))[eE]([-+]?\d+)(?!\.?\d)"), r"\1*10^{\2}"),  # 1.5e-3, 1e3
    (re.compile(rf"{_START}(\d+)[eE]([-+]\d+)(?!\.?\d|[A-Za-z^(]|\\(?!text|mbox|math)[a-z])"), r"\1*10^{\2}"),  # 2e-1
]
_INEQUALITY = re.compile(r"[<>]|\\(?:[lg]t|le|ge|ne|leq|geq|neq|leqslant|geqslant)(?![A-Za-z])")
_ALIGNED = re.compile(r"\\(?:begin|end)\{(?:aligned|align|equation|gathered|split)\*?\}")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:(?:,\d{3})+|(?:(?: |~|\\[,;:])\d{3})+)(?![\d/])")
_TEXT = r"\\text\{[^{}]*\}(?:\^(?:[23]|\{[23]\}))?"
_TEXT_BEHIND = re.compile(rf"(?<=[\w)}}])(?<!\\text){_TEXT}(?:[/*]?{_TEXT})*(?![\w(]|\\(?:frac|sqrt|pi))")


def readings(text: str) -> list[str]:
    """The canonical forms of an answer: two if it has a number such as `2e-1`, which is 0.2 or 2e - 1.

    >>> readings("2e-1"), readings("2e - 1"), readings("2e3")
    (['2*10^{-1}', '2e-1'], ['2e-1'], ['2*10^{3}'])
    """
    return list(dict.fromkeys((canonical_answer(text), canonical_answer(_EULER.sub(r"\1 ", text)))))


@functools.lru_cache(maxsize=4096)
def canonical_answer(text: str) -> str:
    r"""The normal form of an answer, which is what the grader reads.

    Synonyms and unicode signs get one form, units become `\unit{...}`; what does not change the meaning is removed.

    >>> canonical_answer(r"$\left( 1,\!000, 90^\circ \right)$"), canonical_answer(r"\dfrac{1}{2}x\times y")
    ('(1000,90\\unit{degree})', '\\frac{1}{2}x*y')
    >>> canonical_answer(r"15\mbox{ cm}^2"), canonical_answer(r"\$1.5 \text{ million}"), canonical_answer("42 apples")
    ('15\\unit{cm^2}', '\\unit{dollar}1.5*1000000', '42\\unit{apples}')
    """
    if text.isascii() and text.isdecimal():
        return text
    text = text.translate(_UNICODE)
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    if not re.search(r"[(\[]|\\\{", text):  # between brackets a comma separates, as in (0,100)
        text = _THOUSANDS.sub(lambda number: re.sub(r"\D", "", number.group()), text)
    if "\\begin{" in text:
        text, count = _ALIGNED.subn("", text)
        text = text.replace("&", "") if count else text
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+", lambda run: "^{" + run.group().translate(_RAISED) + "}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉]+", lambda run: "_{" + run.group().translate(_LOWERED) + "}", text)
    text = _joined(text)
    if "\\text" in text:
        text = _TEXT_BEHIND.sub(_as_unit, text)
    return re.sub(r"(?:[.;,]|\\\\|(?<!\\)\\)\Z", "", text)


def _joined(text: str) -> str:
    """The tokens of a text, renamed and joined; a space stays only between numbers or words that would run together."""
    parts: list[str] = [""]
    spaced = False
    inequality = _INEQUALITY.search(text) is not None
    for match in _TOKEN.finditer(text):
        token, words = match.group(), match.group("words")
        if token.isspace() or token in _SPACES or (words is not None and not words.strip()):
            spaced = True
            continue
        if token in _SILENT:
            continue
        token = _SAME.get(token, token)
        if words is not None or token in ("and", "or") or _is_word(token, parts, spaced):
            token = _worded(token if words is None else " ".join(words.strip(" ,").split()), inequality)
        if spaced and token.startswith("\\text{") and parts[-1].startswith("\\text{") and len(parts[-1]) < 100:
            token = f"{parts.pop()[:-1]} {token[6:]}"
        if token == "," == parts[-1]:
            continue
        if _run_together(parts[-1], token, spaced):
            parts.append(" ")
        parts.append(token)
        spaced = False
    return "".join(parts)


def _worded(words: str, inequality: bool) -> str:
    """The token for words. "and" and "or" separate values, but join inequalities."""
    words = words.lower() if len(words) > 1 else words
    if words in ("and", "or"):
        return {"and": "\\land ", "or": "\\lor "}[words] if inequality else ","
    if words in ("all real numbers", "all reals"):
        return "\\mathbb{R}"
    letters = re.split(r", and |, | and ", words)  # choices: A and C
    if len(letters) > 1 and all(len(letter) == 1 for letter in letters):
        return ",".join(letters).upper()
    return f"\\text{{{words}}}" if words else ","


def _is_word(token: str, before: list[str], spaced: bool) -> bool:
    """Whether bare letters are words, as in `42 apples` or `no solution`, and not a product."""
    if not (token.isalpha() and token.isascii()) or token in _READABLE:
        return False
    if before[-1] == "/" and before[-2].startswith("\\text{"):
        return unit_of(token) is not None  # km/h
    if len(token) < 2:
        return False
    if before[-1].startswith("\\text{"):
        return spaced
    if before[-1][-1:].isdecimal() or before[-1][-1:] in ("}", ")"):
        return is_bare_unit(token, spaced) or (spaced and len(token) > 3)
    return before[-1] == "" and (len(token) > 3 or "o" in token.lower() or token.lower() == "yes")


def _as_unit(match: re.Match[str]) -> str:
    r"""`\unit{...}`, preceded by a factor for `million`, or the text itself if it says more than a unit."""
    words = re.sub(r"\\text\{|[{}]", "", match.group()).strip(" .")
    scale, _, rest = words.partition(" ")
    factor, words = (f"*{SCALES[scale]}", rest) if scale in SCALES else ("", words)
    if factor and not words:
        return factor
    return match.group() if unit_of(words) is None else f"{factor}\\unit{{{words}}}"


def _run_together(left: str, right: str, spaced: bool) -> bool:
    """Whether two tokens need a space between them."""
    if left[-1:].isalpha() and right[:1].isalpha():
        return spaced or left.startswith("\\")
    if left == "," and len(right) == 3:  # 60, 120
        return spaced and right.isdecimal()
    return spaced and left[-1:].isdecimal() and right[:1].isdecimal()
