"""How a setting is declared: one dataclass field with its default, meaning, bounds and choices.

Flags, checks, `--explain`, config.json and docs/settings.md are made from these fields.
"""

import dataclasses
import functools
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from grpojax.errors import InputError, did_you_mean


def setting(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    **more: Any,
) -> Any:
    """A dataclass field for a setting.

    Args:
      default: its value if it is not given.
      help: what it means.
      choices: the values a text may have.
      at_least, above, at_most: the bounds of a number. Every number must be finite.
      more: other metadata.
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most}
    metadata = {"help": help, "choices": tuple(choices) or None, **bounds, **more}
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def settings_of(cls: type) -> Mapping[str, dataclasses.Field]:
    """The settings of a dataclass by name, each with its type (without None) as `type`."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name, field in fields.items():
        kinds = typing.get_args(hints[name]) or (hints[name],)
        field.type = next(kind for kind in kinds if kind is not type(None))
    return fields


def allowed(field: dataclasses.Field) -> str:
    """The values a setting may have, in words.

    >>> allowed(settings_of(_Example)["share"])
    'a finite number above 0 and at most 1'
    """
    meta = field.metadata
    if meta["choices"]:
        return f"one of {', '.join(meta['choices'])}"
    if field.type is bool:
        return "True or False"
    if field.type is str:
        return "text"
    least, above, most = meta["at_least"], meta["above"], meta["at_most"]
    number = "a whole number" if field.type is int else "a finite number"
    if least is not None:
        return f"{number}, {least} or more" if most is None else f"{number} from {least} to {most}"
    upper = "" if most is None else f" and at most {most}"
    return number if above is None else f"{number} above {above}{upper}"


def check_setting(field: dataclasses.Field, value: Any) -> None:
    """Raises an InputError if a setting cannot have this value."""
    if _fits(field, value):
        return
    if field.metadata["choices"]:
        hint = did_you_mean(str(value), field.metadata["choices"])
        raise InputError(f"unknown {field.name} {value!r}; choose {allowed(field)}.{hint}")
    raise InputError(f"{field.name} is {value!r}; it must be {allowed(field)}.")


def check_settings(instance: Any) -> None:
    """`check_setting` for every field of a dataclass instance that is not None (or whose default is not)."""
    for name, field in settings_of(type(instance)).items():
        value = getattr(instance, name)
        if value is not None or field.default is not None:
            check_setting(field, value)


def is_number(value: Any) -> bool:
    """Whether a value is a finite int or float, of Python or numpy, and not a bool."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return isinstance(value, int) or bool(np.isfinite(value))


def _fits(field: dataclasses.Field, value: Any) -> bool:
    meta = field.metadata
    if meta["choices"]:
        return isinstance(value, str) and value in meta["choices"]
    if field.type in (bool, str):
        return isinstance(value, field.type)
    if not is_number(value) or (field.type is int and not isinstance(value, (int, np.integer))):
        return False
    least, above, most = meta["at_least"], meta["above"], meta["at_most"]
    return (least is None or value >= least) and (above is None or value > above) and (most is None or value <= most)


@dataclasses.dataclass(frozen=True)
class _Example:
    share: float = setting(0.5, "what part", above=0, at_most=1)
