"""Prompts: the text around a problem."""

from pathlib import Path

from grpojax.errors import InputError

PLACEHOLDER = "{problem}"

DEFAULT_TEMPLATE = "Problem: {problem}\nThink step by step, then give the final answer in \\boxed{}.\nSolution:"
"""Short enough for a tiny model; the answer follows "Solution:"."""


def load_template(path: str | Path | None) -> str:
    """Reads a prompt template: a text file with `{problem}` where the problem goes. Without a path it is the default.

    Other braces are kept, so a template can contain `\\boxed{}`. One newline at the end of the file is dropped: editors
    add it, and some models answer much worse after it.

    Raises:
      InputError: if the file cannot be read or has no `{problem}`.
    """
    if not path:
        return DEFAULT_TEMPLATE
    try:
        template = Path(path).read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the prompt template {path} ({error}); give a UTF-8 text file.") from None
    if PLACEHOLDER not in template:
        raise InputError(f"the prompt template {path} has no {PLACEHOLDER}; write it where the problem goes.")
    return template


def render_prompt(problem_text: str, template: str = DEFAULT_TEMPLATE) -> str:
    r"""Puts a problem into a template.

    >>> render_prompt("2 + 3", "Q: {problem} Answer in \\boxed{}. A:")
    'Q: 2 + 3 Answer in \\boxed{}. A:'
    """
    return template.replace(PLACEHOLDER, problem_text)
