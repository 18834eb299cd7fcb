"""Objects from a user's own Python code, named "module:name" on the command line."""

import importlib
import sys
from typing import Any

from grpojax.errors import InputError


def import_object(kind: str, name: str) -> Any:
    """Imports an object from a module on the Python path or in the current folder.

    >>> import_object("reward", "math:sqrt")(9)
    3.0

    Args:
      kind: what the object is for, such as "reward"; used in error messages only.
      name: "module:name".

    Raises:
      InputError: if the module cannot be imported or does not define the name.
    """
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")  # the current folder: an installed command does not have it on the path
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        raise InputError(
            f"{kind} {name!r}: module {module!r} cannot be imported ({type(error).__name__}: {error}); it must be on "
            "the Python path or a file in the current folder."
        ) from error
    finally:
        sys.path.remove("")
    if not hasattr(found, attribute):
        raise InputError(f"{kind} {name!r}: module {module!r} has no {attribute!r}; check the spelling.")
    return getattr(found, attribute)
