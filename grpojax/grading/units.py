"""Units after a number: which words are units, what they measure, and their sizes."""

import functools
import re
from fractions import Fraction
from typing import NamedTuple


class Unit(NamedTuple):
    """What a unit measures, and its size."""

    kind: str  # "" if it says nothing, as in `12 units`, and "?" for unknown words
    size: Fraction = Fraction(1)  # in the smallest unit of that kind


SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip

# kind: unit = its other names = its size. 1 inch is 25.4 mm, and 1 pound 453,592.37 mg, by definition.
_TABLE = {
    "length": "mm millimeter millimetre 10; cm centimeter centimetre 100; m meter metre 10000;"
    "km kilometer kilometre 10000000; in inch inches 254; ft foot feet 3048; yd yard 9144; mi mile 16093440",
    "time": "s sec second 1; min minute 60; h hr hour 3600; day 86400; week 604800",
    "months": "month 1; year yr 12",
    "mass": "mg milligram 1; g gram 1000; kg kilogram 1000000; oz ounce 45359237/1600; lb pound 45359237/100",
    "volume": "ml mL milliliter millilitre 1; l L liter litre 1000",
    "money": "cent 1; dollar usd 100",
    "angle": "degree deg 1",
    "percent": "percent 1",
    "other": "unit 1; radian rad 1; people 1",
}  # fmt: skip
_UNITS: dict[str, Unit] = {}
for _kind, _rows in _TABLE.items():
    for _row in _rows.split(";"):
        *_names, _size = _row.split()
        for _name in _names:
            _UNITS[_name] = Unit("" if _kind == "other" else _kind, Fraction(_size))
            if len(_name) > 1:
                _UNITS[_name + "s"] = _UNITS[_name]

_SHORT = {"mm", "cm", "km", "kg", "ft", "mph"}  # units even without a space after the number
# Words that say more than what is counted, so they are not a unit.
_TELLING = set(SCALES) | set(
    "a about above all almost and approx approximately are at below between by choose consecutive divided do does "
    "exactly except false for from greater half has if is least less maximum minimum minus mod modulo more most "
    "negative no none nor not nothing of only or other over plus positive power remainder smaller squared cubed than "
    "then there times to true twice under undefined until up where with".split()
)


def is_bare_unit(word: str, spaced: bool) -> bool:
    """Whether bare letters after a number are a unit, as in `15cm` or `15 in`, and not a product, as in `15mg`."""
    return word in _SHORT or (word.lower() in _UNITS and len(word) > (1 if spaced else 3))


@functools.lru_cache(maxsize=1024)
def unit_of(words: str) -> Unit | None:
    r"""The unit that words name, such as `cm^2`, `square feet` or `miles per hour`; None if they are not a unit.

    Unknown words are a unit of unknown kind, so `7 students` is 7, unless one of them says more, as in `7 or more`.

    >>> unit_of("cm^2").kind, unit_of("square inches").size == 254**2, unit_of("students").kind, unit_of("or more")
    ('length^2', True, '?', None)
    """
    words = {"mph": "mile/hour", "kph": "km/hour"}.get(words, words)
    over, *under = re.split(r" per |/", words, maxsplit=1)
    if under:
        one, other = unit_of(over.strip()), unit_of(under[0].strip())
        if one is None or other is None:
            return None
        unknown = {one.kind, other.kind} & {"", "?"}
        return Unit("?") if unknown else Unit(f"{one.kind}/{other.kind}", one.size / other.size)
    words, power = re.fullmatch(r"(.*?)(?:\^([23]))?", words, re.DOTALL).groups()
    match = re.fullmatch(r"(square|sq|cubic)\.? (.+)", words)
    if match:
        words, power = match[2], {"square": "2", "sq": "2", "cubic": "3"}[match[1]]
    unit = _UNITS.get(words) or _UNITS.get(words.lower())
    if unit is None:
        names = words.split()
        is_name = lambda name: re.fullmatch(r"[^\W\d_]{2,}", name) and name.lower() not in _TELLING
        return Unit("?") if 1 <= len(names) <= 3 and all(map(is_name, names)) else None
    return Unit(f"{unit.kind}^{power}", unit.size ** int(power)) if power and unit.kind else unit
