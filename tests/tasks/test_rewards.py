"""Rewards of answers: exact values, in the order of the answers."""

import math
import sys

import pytest

from grpojax.errors import InputError
from grpojax.grading.grader import Grader
from grpojax.tasks.prompts import DEFAULT_TEMPLATE
from grpojax.tasks.rewards import (
    REWARDS,
    Answer,
    boxed,
    grade_answers,
    overlong,
    repetition,
    reward_function,
    score_answers,
    think_format,
)

OPEN, CLOSE = 90, 91


@pytest.fixture(scope="module")
def grader():
    grader = Grader()
    yield grader
    grader.close()


def scored(answers, names, grader, **more):
    """The verdicts and rewards of answers."""
    graded = grade_answers(answers, names, grader)()
    return [one.correct for one in graded], score_answers(graded, names, **more)


def answer(text: str = "", gold: str = "", ids: tuple[int, ...] = (), budget: int = 100) -> Answer:
    return Answer("a problem", gold, text, list(ids), False, budget, (OPEN, CLOSE))


@pytest.mark.parametrize(
    ("text", "gold", "reward", "with_numbers"),
    [
        (r"the answer is \boxed{1}. ... so \boxed{1}", "1", 1.0, 1.0),  # a repeated box is not the set {1, 1}
        (r"\boxed{3} wait \boxed{4}", "3", 0.0, 0.0),  # only the last box counts
        (r"\boxed{3} wait \boxed{4}", "4", 1.0, 1.0),
        (r"\boxed{4} and then \boxed{5", "4", 1.0, 1.0),  # an unclosed box does not count
        ("The answer is 4.", "4", 0.0, 1.0),  # only the book's gdpo takes the last number
        (r"\boxed{3}, or rather 4", "4", 0.0, 0.0),  # and only without a box
        ("the result is 12", "13", 0.0, 0.0),
        (r"\boxed{}", "4", 0.0, 0.0),
        ("", "4", 0.0, 0.0),
        (r"\boxed{0.5}", r"\frac12", 1.0, 1.0),
    ],
)
def test_correctness(text, gold, reward, with_numbers, grader):
    correct, rewards = scored([answer(text, gold)], ["correct", "correct_or_number"], grader)
    assert correct == [bool(reward)]
    assert rewards == {"correct": [reward], "correct_or_number": [with_numbers]}


def test_the_box_in_the_prompt_earns_nothing(grader):
    # The prompt contains a box, but only the generated text is graded.
    assert r"\boxed{}" in DEFAULT_TEMPLATE
    assert scored([answer("the result is 12", "12")], ["correct", "boxed"], grader)[1] == {"correct": [0], "boxed": [0]}


@pytest.mark.parametrize(
    ("ids", "reward"),
    [
        ((OPEN, 5, CLOSE, 6), 1.0),
        ((5, OPEN, CLOSE), 1.0),
        ((CLOSE, OPEN, 5, CLOSE), 0.0),  # the first </think> counts; the last one would give 1
        ((OPEN, CLOSE, CLOSE, OPEN), 1.0),  # the first <think> counts; the last one would give 0
        ((OPEN, 5), 0.0),
        ((5, CLOSE), 0.0),
        ((), 0.0),
    ],
)
def test_think_format(ids, reward):
    assert think_format(answer(ids=ids)) == reward


@pytest.mark.parametrize(
    ("text", "reward"), [(r"\boxed{7}", 1), ("7", 0), (r"\boxed{}", 0), (r"\boxed{7", 0), (r"\boxed{wrong}", 1)]
)
def test_boxed(text, reward):
    assert boxed(answer(text)) == reward


@pytest.mark.parametrize(
    ("length", "budget", "cache", "reward"),
    [
        (16_384, 20_480, 4_096, 0.0),  # the paper's numbers: no penalty up to here
        (18_432, 20_480, 4_096, -0.5),
        (20_480, 20_480, 4_096, -1.0),
        (20_481, 20_480, 4_096, -1.0),  # never below -1
        (0, 20_480, 4_096, 0.0),  # no bonus for short answers
        (90, 100, None, -0.5),  # a fifth of the budget: (80 - 90) / 20
        (90, 100, 40, -0.75),  # (60 - 90) / 40
    ],
)
def test_overlong(length, budget, cache, reward):
    assert overlong(answer(ids=(5,) * length, budget=budget), cache) == reward


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("", 0.0),
        ("two words", 0.0),
        ("every word is another one", 0.0),
        ("a b c a b c", -0.25),  # abc bca cab abc
        ("go go go go go", -2 / 3),  # three equal 3-grams, one of them new
        ("Go go\nGO go  go", -2 / 3),
        ("1 + 1 = 2 and 1 + 2 = 3", 0.0),  # 2-grams are repeated, 3-grams are not
    ],
)
def test_repetition(text, reward):
    assert repetition(answer(text)) == pytest.approx(reward)


def test_score_answers_passes_on_the_overlong_cache(grader):
    answers = [answer(ids=(5,) * 90)]
    assert scored(answers, ["overlong"], grader)[1] == {"overlong": [-0.5]}
    assert scored(answers, ["overlong"], grader, overlong_cache=40)[1] == {"overlong": [-0.75]}


def test_rewards_are_in_the_order_of_the_answers(grader):
    texts = [r"\boxed{1}", "no idea", r"\boxed{3}", "", r"\boxed{5}"]
    answers = [answer(text, gold) for text, gold in zip(texts, "12345", strict=True)]
    correct, rewards = scored(answers, ["boxed", "correct"], grader)
    assert correct == [True, False, True, False, True]
    assert rewards == {"boxed": [1, 0, 1, 0, 1], "correct": [1, 0, 1, 0, 1]}


def test_the_conditional_format_reward(grader):
    texts = [r"\boxed{2}", r"\boxed{2}", r"\boxed{3}", r"\boxed{3}"]
    ids = [(OPEN, CLOSE), (CLOSE, OPEN), (OPEN, CLOSE), ()]
    answers = [answer(text, "2", own) for text, own in zip(texts, ids, strict=True)]
    _, plain = scored(answers, ["correct", "format"], grader)
    assert plain == {"correct": [1, 1, 0, 0], "format": [1, 0, 1, 0]}
    _, only_correct = scored(answers, ["correct", "format"], grader, conditional=True)
    assert only_correct == {"correct": [1, 1, 0, 0], "format": [1, 0, 0, 0]}


# --- user functions ---


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A user's module of reward functions on the Python path."""
    (tmp_path / "my_rewards.py").write_text(
        "def short(answer):\n    return 1.0 - len(answer.token_ids) / answer.budget\n"
        "def only_correct(answer):\n    return 2.0 if answer.correct else None\n"
        "def fails(answer):\n    raise KeyError('no')\n"
        "def words(answer):\n    return 'much'\n"
        "def infinite(answer):\n    return float('inf')\n"
        "number = 3\n"
    )
    (tmp_path / "broken_rewards.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_rewards"
    sys.modules.pop("my_rewards", None)


def test_a_user_function(own_module, grader):
    answers = [answer(r"\boxed{2}", "2", (1,) * 25), answer(r"\boxed{3}", "2", (1,) * 50)]
    _, rewards = scored(answers, ["my_rewards:short", "my_rewards:only_correct"], grader)
    assert rewards["my_rewards:short"] == [0.75, 0.5]
    assert rewards["my_rewards:only_correct"][0] == 2.0
    assert math.isnan(rewards["my_rewards:only_correct"][1])  # abstained


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("corect", r"unknown reward 'corect'; choose one of correct, .* Did you mean 'correct'\?"),
        ("no_such_rewards:f", r"reward 'no_such_rewards:f': module 'no_such_rewards' cannot be imported \(Module"),
        ("broken_rewards:f", r"cannot be imported \(ModuleNotFoundError: No module named 'no_such_module'\)"),
        ("my_rewards:shrot", "reward 'my_rewards:shrot': module 'my_rewards' has no 'shrot'; check the spelling"),
        ("my_rewards:number", "reward 'my_rewards:number' is of type int, not a function; name a function"),
    ],
)
def test_bad_names_get_a_clear_message(name, message, own_module):
    with pytest.raises(InputError, match=message):
        reward_function(name)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fails", r"reward 'my_rewards:fails' failed on an answer \(KeyError: 'no'\); fix the function"),
        ("words", r"reward 'my_rewards:words' failed on an answer \(ValueError"),
        ("infinite", "reward 'my_rewards:infinite' returned inf; return a finite number, or None to abstain"),
    ],
)
def test_a_failing_user_function_is_named(function, message, own_module, grader):
    with pytest.raises(InputError, match=message):
        scored([answer(r"\boxed{2}", "2")], [f"my_rewards:{function}"], grader)


def test_every_built_in_name_is_found():
    assert all(reward_function(name) is function for name, function in REWARDS.items())
