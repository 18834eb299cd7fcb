"""Prompt templates."""

import pytest

from grpojax.errors import InputError
from grpojax.tasks.prompts import DEFAULT_TEMPLATE, load_template, render_prompt


def test_default_prompt_asks_for_a_box_and_is_short():
    prompt = render_prompt("12 + 3 * 4")
    assert "12 + 3 * 4" in prompt
    assert r"\boxed{}" in prompt
    assert len(DEFAULT_TEMPLATE.split()) <= 25


def test_other_braces_of_a_template_are_kept(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("{x} \\boxed{ANSWER}\n{problem}")
    assert render_prompt("a {b} {problem} %s", load_template(path)) == "{x} \\boxed{ANSWER}\na {b} {problem} %s"


@pytest.mark.parametrize(("end", "kept"), [("", ""), ("\n", ""), ("\r\n", ""), ("\n\n", "\n"), (" ", " ")])
def test_only_an_editors_final_newline_is_dropped(tmp_path, end, kept):
    path = tmp_path / "own.txt"
    path.write_bytes(f"{{problem}}\nAnswer:{end}".encode())
    assert load_template(path) == f"{{problem}}\nAnswer:{kept}"


def test_bad_templates_get_a_clear_message(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the prompt template .*none\.txt .*give a UTF-8 text file"):
        load_template(tmp_path / "none.txt")
    (tmp_path / "bare.txt").write_text("Problem: {}")
    with pytest.raises(InputError, match=r"bare\.txt has no \{problem\}; write it where the problem goes"):
        load_template(tmp_path / "bare.txt")
