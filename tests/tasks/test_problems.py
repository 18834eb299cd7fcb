"""Problems: generated arithmetic, user files, held-out problems, and error messages."""

import ast
import json
import operator
from pathlib import Path

import pytest

from grpojax.errors import InputError
from grpojax.tasks.problems import (
    Problem,
    arithmetic_problems,
    has_eval_split,
    load_problems,
    split_held_out,
    worked_steps,
)

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value_of(node: ast.AST) -> int:
    """The value of an expression, by Python's own parser."""
    if isinstance(node, ast.Expression):
        return value_of(node.body)
    if isinstance(node, ast.BinOp):
        return OPERATIONS[type(node.op)](value_of(node.left), value_of(node.right))
    return node.value


def test_arithmetic_answers_are_correct_at_every_level():
    problems = arithmetic_problems(seed=3, count=500, split="train")
    for problem in problems:
        assert problem.answer == str(value_of(ast.parse(problem.text, mode="eval")))
    assert {problem.level for problem in problems} == {1, 2, 3, 4, 5}
    assert any(problem.answer.startswith("-") for problem in problems)


def test_each_level_has_its_form():
    forms = {1: "n+n", 2: "n*n", 3: "n+n+n", 4: "n+n*n", 5: "(n+n)*n+n"}
    for problem in arithmetic_problems(seed=0, count=100, split="train"):
        tokens = problem.text.replace("(", "( ").replace(")", " )").split()
        form = "".join("n" if token.isdigit() else "+" if token == "-" else token for token in tokens)
        assert form == forms[problem.level]


def test_splits_share_no_problem_even_after_reordering_its_numbers():
    train = {" ".join(sorted(p.text.split())) for p in arithmetic_problems(0, 20_000, "train")}
    for seed in range(5):
        evaluation = {" ".join(sorted(p.text.split())) for p in arithmetic_problems(seed, 200, "eval")}
        assert not train & evaluation


def test_problems_are_distinct_even_after_a_level_runs_out():
    texts = [p.text for p in arithmetic_problems(0, 12_000, "train")]  # there are 1424 problems of level 2
    assert len(texts) == len(set(texts)) == 12_000


def test_the_seed_selects_the_problems_and_a_prefix_is_balanced():
    assert arithmetic_problems(1, 50, "train") == arithmetic_problems(1, 80, "train")[:50]
    assert arithmetic_problems(1, 50, "train") != arithmetic_problems(2, 50, "train")
    assert [p.level for p in load_problems("arithmetic", "eval", limit=10)] == [1, 2, 3, 4, 5] * 2
    assert len(load_problems("arithmetic", "train")) == 4096
    assert len(load_problems("arithmetic", "eval")) == 200


def test_the_first_problems_of_a_seed_never_change():
    # The embedded models were trained on this split and this order.
    assert [p.text for p in arithmetic_problems(0, 3, "eval")] == ["83 - 94", "77 * 7", "75 - 94 - 84"]


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("12 + 3 * 4", ["3 * 4 = 12", "12 + 12 = 24"]),
        ("10 - 4 - 3", ["10 - 4 = 6", "6 - 3 = 3"]),  # left to right; 10 - (4 - 3) would be 9
        ("(6 - 8) * 2 - 8", ["6 - 8 = -2", "-2 * 2 = -4", "-4 - 8 = -12"]),
        ("2 * 3 + 4 * 5", ["2 * 3 = 6", "4 * 5 = 20", "6 + 20 = 26"]),
        ("7", []),
    ],
)
def test_worked_steps(text, steps):
    assert worked_steps(text) == steps


@pytest.mark.parametrize("text", ["", "2 +", "2 3", "(2 + 3", "2 ** 3", "x + 1", "__import__('os')"])
def test_worked_steps_rejects_other_expressions(text):
    with pytest.raises(InputError, match=r"cannot read the expression .*; use integers, \+ - \* and parentheses"):
        worked_steps(text)


def write(path, *rows):
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n" if path.suffix == ".jsonl" else "[" + ",".join(lines) + "]")
    return path


def test_user_files_in_both_formats(tmp_path):
    rows = [
        {"question": "How many?", "answer": "2 + 2 = <<2+2=4>>4\n#### 1,004"},
        {"problem": "Which?", "answer": 7, "subject": "Algebra", "level": "Level 3", "solution": "..."},
    ]
    expected = [Problem("How many?", "1,004"), Problem("Which?", "7", "Algebra", 3)]
    for name in ("own.json", "own.jsonl"):
        path = write(tmp_path / name, *rows)
        assert load_problems(path, "train") == load_problems(str(path), "eval") == expected
        assert load_problems(path, "train", limit=1) == expected[:1]
    path.write_text(path.read_text().rstrip("\n"))
    assert load_problems(path, "train") == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"problem": "p", "answer": "1"}\n\n{"problem": \n', r"line 3 is not valid JSON; fix or delete"),
        (
            "a.json",
            '[{"problem": "p",\n "answer" 1}]',
            r"a\.json, line 2 is not valid JSON \(.*\); a file with one row per line needs the suffix \.jsonl",
        ),
        ("a.json", '{"problem": "p", "answer": "1"}', r"a\.json is not a JSON list; expected \[\{'problem'"),
        ("a.jsonl", "[1]", r"a\.jsonl, line 1 is not a JSON object; expected"),
        (
            "a.jsonl",
            '{"text": "p", "answer": "1"}',
            r"line 1 needs text in 'problem' or 'question'; its fields are text, ans",
        ),
        (
            "a.json",
            '[{"problem": "p", "solution": "1"}]',
            r"row 1 needs text in 'answer'; its fields are problem, solution",
        ),
        ("a.json", '[{"problem": "p", "answer": " "}]', r"row 1 needs text in 'answer'"),
        ("a.json", '[{"problem": "p", "answer": true}]', r"row 1 needs text in 'answer'"),
        ("a.json", "[]", r"a\.json is empty; it needs at least one row"),
        ("a.jsonl", "\n", r"a\.jsonl is empty"),
        # a user's last line counts without a line end, so damage to it is an error
        ("a.jsonl", '{"problem": "p", "answer": "1"}\n{"prob', r"a\.jsonl, line 2 is not valid JSON"),
    ],
)
def test_bad_files_get_a_clear_message(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        load_problems(path, "train")


def test_bad_sources_get_a_clear_message(tmp_path):
    with pytest.raises(InputError, match=r"unknown data set 'gsm8'; choose one of arithmetic, gsm8k, .*'gsm8k'\?"):
        load_problems("gsm8", "train")
    with pytest.raises(InputError, match=r"file .*none\.jsonl does not exist; give a \.json or \.jsonl file"):
        load_problems(tmp_path / "none.jsonl", "train")
    (tmp_path / "latin.json").write_bytes(b'["\xe9"]')
    with pytest.raises(InputError, match=r"cannot read the data set .*latin\.json .*UTF-8"):
        load_problems(tmp_path / "latin.json", "train")
    with pytest.raises(InputError, match=r"unknown split 'test'; choose one of train, eval"):
        load_problems("arithmetic", "test")
    with pytest.raises(InputError, match=r"the number of problems must be at least 1, not 0"):
        load_problems("arithmetic", "train", limit=0)


# --- held-out problems ---


def test_which_sources_have_an_eval_split():
    assert all(has_eval_split(source) for source in ("arithmetic", "gsm8k", "math"))
    assert not any(has_eval_split(source) for source in ("math500", "own.jsonl", Path("own.json")))


def test_held_out_problems_do_not_depend_on_order_or_company():
    problems = [Problem(f"What is {n} + {n}?", str(2 * n)) for n in range(2000)]
    train, held_out = split_held_out(problems)
    assert sorted(train + held_out, key=lambda problem: int(problem.answer)) == problems
    assert 150 <= len(held_out) <= 250
    assert split_held_out(problems[::-1]) == (train[::-1], held_out[::-1])
    assert split_held_out(held_out) == ([], held_out)


def test_equal_texts_are_on_the_same_side():
    for n in range(50):
        texts = [f"What is {n} more?", f"  what IS\n{n}\tmore? "]
        assert sorted(map(len, split_held_out([Problem(text, answer) for text in texts for answer in "12"]))) == [0, 4]
