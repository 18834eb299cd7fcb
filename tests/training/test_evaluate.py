"""Greedy evaluation: every problem once, in order, graded by its last box."""

import dataclasses

import jax
import numpy as np
import pytest

from grpojax.errors import InputError
from grpojax.tasks.problems import Problem
from grpojax.training import evaluate as module
from grpojax.training.evaluate import evaluate
from grpojax.training.rollout import Rollouts, make_rollouts
from grpojax.training.sampling import GREEDY

TEMPLATE = "{problem} ="
PROBLEMS = [
    Problem(text, gold) for text, gold in (("1 + 2 + 30", "33"), ("4", "4"), ("5 + 6", "11"), ("70", "70"), ("8", "9"))
]

pytestmark = pytest.mark.usefixtures("own_cache")


def run(policy, problems=PROBLEMS, **changes):
    settings = {"dataset": "sums", "step": 7, "max_new_tokens": 8, "template": TEMPLATE}
    return evaluate(policy, policy.params, problems, **settings | changes)


@pytest.fixture
def scripted(monkeypatch, tiny_policy):
    """A factory: answers by prompt instead of a model's; returns the list of prompt batches that were asked."""

    def make(answers):
        by_prompt = {tuple(tiny_policy.tokenizer.prompt_ids(f"{text} =")): answer for text, answer in answers.items()}
        asked = []

        def answer(policy, params, prompts, key, sampler, num_rollouts, max_new_tokens):
            assert (sampler, num_rollouts) == (GREEDY, 1)
            asked.append([policy.tokenizer.decode(ids) for ids in prompts])
            ids = [policy.tokenizer.encode(by_prompt[tuple(prompt)]) for prompt in prompts]
            lengths = np.array([len(row) for row in ids])
            rows = np.zeros((len(ids), 64), int)
            for row, content in zip(rows, ids, strict=True):
                row[: len(content)] = content
            stopped = np.array([row[-1] in policy.tokenizer.stop_ids for row in ids])
            blank = np.zeros(rows.shape)
            return Rollouts(np.zeros((len(ids), 16), int), lengths, rows, lengths, ~stopped, blank, blank)

        monkeypatch.setattr(module, "make_rollouts", answer)
        return asked

    return make


ANSWERS = {
    "1 + 2 + 30": r"\boxed{3} no \boxed{33}<|endoftext|>",  # right, the last box counts
    "4": r"4<|endoftext|>",  # no box, no answer
    "5 + 6": r"\boxed{12}<|endoftext|>",  # wrong
    "70": r"\boxed{70} and on and",  # right, and cut off
    "8": r"\boxed{",  # a box that never closes, cut off
}


@pytest.mark.parametrize("most", [1, 2, 3, 5, 64])
def test_each_problem_counts_once_whatever_the_batch(most, scripted, tiny_policy, monkeypatch):
    # Five problems in batches of 2 or 3 leave a last batch that is filled up with repetitions.
    monkeypatch.setattr(module, "MAX_BATCH", most)
    asked = scripted(ANSWERS)
    result = run(tiny_policy)
    assert [row["problem"] for row in result.rows] == [problem.text for problem in PROBLEMS]
    assert [row["gold"] for row in result.rows] == [problem.answer for problem in PROBLEMS]
    assert [row["text"] for row in result.rows] == list(ANSWERS.values())
    assert [row["extracted"] for row in result.rows] == ["33", "", "12", "70", ""]
    assert [row["correct"] for row in result.rows] == [True, False, False, True, False]
    assert [row["truncated"] for row in result.rows] == [False, False, False, True, True]
    lengths = [len(tiny_policy.tokenizer.encode(text)) for text in ANSWERS.values()]
    assert [row["length"] for row in result.rows] == lengths
    assert (result.step, result.dataset, result.correct, result.total, result.accuracy) == (7, "sums", 2, 5, 40.0)
    assert result.avg_response_len == np.mean(lengths)
    assert result.truncated_frac == 0.4
    assert {len(batch) for batch in asked} == {min(most, 5)}
    assert len(asked) == -(-5 // most)


def test_problems_of_like_length_share_a_batch(scripted, tiny_policy, monkeypatch):
    monkeypatch.setattr(module, "MAX_BATCH", 2)
    asked = scripted(ANSWERS)
    run(tiny_policy)
    lengths = [len(tiny_policy.tokenizer.encode(prompt)) for batch in asked for prompt in batch[:2]][:5]
    assert lengths == sorted(lengths)


def test_a_problem_asked_twice_counts_twice(scripted, tiny_policy):
    scripted(ANSWERS)
    result = run(tiny_policy, [PROBLEMS[0], PROBLEMS[2], PROBLEMS[0]])
    assert [row["correct"] for row in result.rows] == [True, False, True]
    assert (result.correct, result.total) == (2, 3)


def test_the_batch_shrinks_to_what_the_cache_allows(scripted, tiny_policy, monkeypatch):
    # A slot takes 2 (keys, values) x 2 layers x 1 head x 16 x 4 bytes = 256 bytes. The longest prompt and 8 new tokens
    # need `slots` of them, so room for twice that and a bit holds a batch of 2.
    slots = max(len(tiny_policy.tokenizer.prompt_ids(f"{text} =")) for text in ANSWERS) + 8
    monkeypatch.setattr(module, "CACHE_BYTES", 2 * 256 * slots + 100)
    asked = scripted(ANSWERS)
    run(tiny_policy)
    assert [len(batch) for batch in asked] == [2, 2, 2]
    monkeypatch.setattr(module, "CACHE_BYTES", 1)  # less than one row takes: still one at a time
    asked.clear()
    run(tiny_policy)
    assert [len(batch) for batch in asked] == [1] * 5


def test_the_answer_to_an_empty_box_is_wrong_even_where_the_grader_says_right(
    scripted, tiny_policy, every_other_grader
):
    scripted(ANSWERS)
    result = run(tiny_policy, grader=every_other_grader)  # right, wrong, right, wrong, right
    assert [row["correct"] for row in result.rows] == [True, False, True, False, False]


def test_batched_answers_are_those_of_one_problem_at_a_time(tiny_policy, monkeypatch):
    monkeypatch.setattr(module, "MAX_BATCH", 3)
    result = run(tiny_policy)
    for problem, row in zip(PROBLEMS, result.rows, strict=True):
        prompt = tiny_policy.tokenizer.prompt_ids(f"{problem.text} =")
        alone = make_rollouts(tiny_policy, tiny_policy.params, [prompt], jax.random.key(9), GREEDY, 1, 8)
        assert row["text"] == tiny_policy.tokenizer.decode(alone.answer_ids(0))
        assert (row["length"], row["truncated"]) == (alone.answer_lens[0], alone.truncated[0])
    assert len({row["text"] for row in result.rows}) > 1


def test_the_given_weights_answer_not_the_policys_own(tiny_policy):
    other = jax.tree.map(lambda p: p[::-1], tiny_policy.params)
    own = [row["text"] for row in run(tiny_policy).rows]
    given = evaluate(tiny_policy, other, PROBLEMS, dataset="sums", step=0, max_new_tokens=8, template=TEMPLATE)
    assert [row["text"] for row in given.rows] != own


def test_a_reasoning_model_is_asked_in_a_chat_turn(scripted, tiny_policy, monkeypatch):
    seen = []
    tokenizer = tiny_policy.tokenizer

    class Chatty:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def prompt_ids(self, text, thinking):
            seen.append((text, thinking))
            return tokenizer.prompt_ids(text, thinking)

    scripted(ANSWERS)
    run(dataclasses.replace(tiny_policy, tokenizer=Chatty()), thinking=False)
    assert seen == [(f"{problem.text} =", False) for problem in PROBLEMS]


def test_no_problems(tiny_policy):
    with pytest.raises(InputError, match="there are no problems to evaluate on; choose a data set with at least one"):
        run(tiny_policy, [])
