"""The labelled pairs of tests/answers/: every verdict is the label, in both orders."""

import collections
import json
from pathlib import Path

import pytest

from grpojax.grading.grader import Grader, quick_verdict

FILES = sorted(path for path in (Path(__file__).parents[1] / "answers").glob("*.jsonl") if path.stem != "hostile")
PAIRS = [json.loads(line) for path in FILES for line in path.read_text("utf-8").splitlines()]
# The limitations in docs/grading.md: sentences, explanations in brackets and temperature scales.
MISSED = {("The answer is 12", "12"), ("12 (twelve)", "12"), (r"30^\circ \text{C}", "30")}


@pytest.fixture(scope="module")
def verdicts(grader):
    """The two verdicts on each pair: as it is, and with the answers exchanged."""
    timeouts = grader.timeouts
    first = grader.grade_many([(pair["answer"], pair["gold"]) for pair in PAIRS])
    second = grader.grade_many([(pair["gold"], pair["answer"]) for pair in PAIRS])
    assert grader.timeouts == timeouts
    return list(zip(first, second, strict=True))


def test_the_corpus_is_large_and_mixed():
    labels = collections.Counter(pair["verdict"] for pair in PAIRS)
    assert set(labels) == {"same", "different"}
    assert len(PAIRS) >= 600
    assert labels["different"] >= len(PAIRS) / 3
    assert len({(pair["answer"], pair["gold"]) for pair in PAIRS}) == len(PAIRS)
    by_kind = collections.defaultdict(set)
    for pair in PAIRS:
        by_kind[pair["kind"]].add(pair["verdict"])
    # A constant verdict passes no kind.
    assert all(verdicts == {"same", "different"} for verdicts in by_kind.values())


@pytest.mark.parametrize("kind", sorted({pair["kind"] for pair in PAIRS}))
def test_every_verdict_is_the_label_in_both_orders(verdicts, kind):
    wrong = [
        (pair["answer"], pair["gold"], pair["verdict"], seen)
        for pair, seen in zip(PAIRS, verdicts, strict=True)
        if (pair["answer"], pair["gold"]) not in MISSED
        and pair["kind"] == kind
        and seen != (pair["verdict"] == "same",) * 2
    ]
    assert wrong == []


def test_the_missed_pairs_are_the_known_ones(verdicts):
    missed = {
        (pair["answer"], pair["gold"])
        for pair, seen in zip(PAIRS, verdicts, strict=True)
        if seen == (False, False) and pair["verdict"] == "same"
    }
    assert missed == MISSED


def test_the_rules_themselves_are_symmetric():
    """The grader remembers a pair in one order; what it remembers does not depend on which."""
    for pair in PAIRS:
        replies = {quick_verdict(pair["answer"], pair["gold"]), quick_verdict(pair["gold"], pair["answer"])}
        assert len(replies - {None}) <= 1, pair


def test_every_right_answer_equals_itself():
    grader = Grader()
    assert all(grader.grade(pair["gold"], pair["gold"]) for pair in PAIRS if pair["gold"])
    assert grader.timeouts == 0
