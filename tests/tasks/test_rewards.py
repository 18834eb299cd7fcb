"""Rewards of answers: exact values, place by place."""

import pytest

from grpojax.tasks.grading import Grader
from grpojax.tasks.prompts import DEFAULT_TEMPLATE
from grpojax.tasks.rewards import correctness, score_answers, think_format

OPEN, CLOSE = 90, 91


@pytest.fixture(scope="module")
def grader():
    grader = Grader()
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("text", "gold", "reward"),
    [
        (r"the answer is \boxed{1}. ... so \boxed{1}", "1", 1.0),  # a repeated box is no set {1, 1} of another kind
        (r"\boxed{3} wait \boxed{4}", "3", 0.0),  # the last box alone
        (r"\boxed{3} wait \boxed{4}", "4", 1.0),
        (r"\boxed{4} and then \boxed{5", "4", 1.0),  # one that never closes is none
        ("The answer is 4.", "4", 0.0),  # training wants the box
        ("the result is 12", "12", 0.0),
        (r"\boxed{}", "", 0.0),
        ("", "4", 0.0),
        (r"\boxed{0.5}", r"\frac12", 1.0),
    ],
)
def test_correctness(text, gold, reward):
    assert correctness(text, gold) == reward


def test_the_box_of_the_prompt_earns_nothing():
    # the prompt ends with a box of its own; what is graded is the generated text, which has none
    assert r"\boxed{}" in DEFAULT_TEMPLATE
    assert correctness("the result is 12", "12") == 0.0


@pytest.mark.parametrize(
    ("ids", "reward"),
    [
        ([OPEN, 5, CLOSE, 6], 1.0),
        ([5, OPEN, CLOSE], 1.0),
        ([CLOSE, OPEN, 5, CLOSE], 0.0),  # the first close decides: the last one would give 1
        ([OPEN, CLOSE, CLOSE, OPEN], 1.0),  # the first open decides: the last one would give 0
        ([OPEN, 5], 0.0),
        ([5, CLOSE], 0.0),
        ([], 0.0),
    ],
)
def test_think_format(ids, reward):
    assert think_format(ids, (OPEN, CLOSE)) == reward


def test_rewards_stay_at_the_place_of_their_answer(grader):
    texts = [r"\boxed{1}", "no idea", r"\boxed{3}", "", r"\boxed{5}"]
    scores = score_answers(texts, [[]] * 5, list("12345"), (OPEN, CLOSE), None, False, grader)
    assert scores == {"correct": [1, 0, 1, 0, 1], "format": None, "total": [1, 0, 1, 0, 1]}


def test_weight_and_condition_of_the_format_reward(grader):
    texts = [r"\boxed{2}", r"\boxed{2}", r"\boxed{3}", r"\boxed{3}"]
    ids = [[OPEN, CLOSE], [CLOSE, OPEN], [OPEN, CLOSE], []]
    golds = ["2"] * 4
    plain = score_answers(texts, ids, golds, (OPEN, CLOSE), 0.5, False, grader)
    assert plain == {"correct": [1, 1, 0, 0], "format": [1, 0, 1, 0], "total": [1.5, 1, 0.5, 0]}
    only_correct = score_answers(texts, ids, golds, (OPEN, CLOSE), 0.5, True, grader)
    assert only_correct == {"correct": [1, 1, 0, 0], "format": [1, 0, 0, 0], "total": [1.5, 1, 0, 0]}


def test_a_weight_of_zero_still_reports_the_format(grader):
    scores = score_answers([r"\boxed{2}"], [[OPEN, CLOSE]], ["2"], (OPEN, CLOSE), 0.0, False, grader)
    assert scores == {"correct": [1], "format": [1], "total": [1]}


def test_lists_of_unlike_length_are_an_error(grader):
    with pytest.raises(ValueError, match="zip"):
        score_answers([r"\boxed{2}"], [[]], ["2", "3"], (OPEN, CLOSE), None, False, grader)
