"""The text a problem is asked in."""

from pathlib import Path

from grpojax.errors import InputError

PLACEHOLDER = "{problem}"

DEFAULT_TEMPLATE = "Problem: {problem}\nThink step by step, then give the final answer in \\boxed{}.\nSolution:"
"""Short, because a tiny model reads it too; it ends where the answer begins."""


def load_template(path: str | Path) -> str:
    """The prompt template in a text file; it holds `{problem}` where the problem goes.

    Other braces stay as they are, so that a template can show `\\boxed{}`.

    Raises:
      InputError: if the file cannot be read or has no `{problem}`.
    """
    try:
        template = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the prompt template {path} ({error}); give a UTF-8 text file.") from None
    if PLACEHOLDER not in template:
        raise InputError(f"the prompt template {path} has no {PLACEHOLDER}; write it where the problem's text belongs.")
    return template


def render_prompt(problem_text: str, template: str = DEFAULT_TEMPLATE) -> str:
    r"""The prompt of one problem.

    >>> render_prompt("2 + 3", "Q: {problem} Answer in \\boxed{}. A:")
    'Q: 2 + 3 Answer in \\boxed{}. A:'
    """
    return template.replace(PLACEHOLDER, problem_text)
