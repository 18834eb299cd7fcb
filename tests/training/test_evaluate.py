"""Evaluation: batches, grading by last box and by last number, reproducible samples, equal answers."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from fakes import FakeGrader

from grpojax.errors import InputError
from grpojax.records import EvalRow
from grpojax.tasks.problems import Problem
from grpojax.training import evaluate as module
from grpojax.training.evaluate import answer_problems, evaluate
from grpojax.training.rollout import make_rollouts
from grpojax.training.sampling import GREEDY, make_sampler
from grpojax.training.stream import Finished

TEMPLATE = "{problem} ="
PROBLEMS = [
    Problem(text, gold) for text, gold in (("1 + 2 + 30", "33"), ("4", "4"), ("5 + 6", "11"), ("70", "70"), ("8", "9"))
]


def answers_of(rows, field):
    """A field of all answers of all rows."""
    return [value for row in rows for value in getattr(row, field)]


def run(policy, problems=PROBLEMS, **changes):
    settings = {"dataset": "sums", "step": 7, "max_new_tokens": 8, "template": TEMPLATE}
    return evaluate(policy, policy.params, problems, **settings | changes)


@pytest.fixture
def scripted(monkeypatch, tiny_policy):
    """Replaces the model: `scripted(answers)` with one answer or a list of samples by problem text. Returns the list of
    batches of prompts that are answered afterwards."""

    def make(answers, expected_sampler=GREEDY):
        by_prompt = {
            tuple(tiny_policy.tokenizer.prompt_ids(f"{text} =")): [answer] if isinstance(answer, str) else answer
            for text, answer in answers.items()
        }
        batches = []

        def answer(policy, params, prompts, keys, sampler, num_samples, max_new_tokens, size, skip):
            assert sampler == expected_sampler
            assert len(keys) == len(prompts)
            todo = [i for i in range(len(prompts)) if i not in skip]
            for group in (todo[at : at + size] for at in range(0, len(todo), size)):
                batches.append([policy.tokenizer.decode(prompts[i]) for i in group])
                yield [answered(i, by_prompt[tuple(prompts[i])], num_samples) for i in group]

        def answered(prompt, texts, num_samples):
            assert len(texts) == num_samples
            ids = [tiny_policy.tokenizer.encode(text) for text in texts]
            return Finished(prompt, ids, [row[-1] not in tiny_policy.tokenizer.stop_ids for row in ids])

        monkeypatch.setattr(module, "stream_answers", answer)
        return batches

    return make


ANSWERS = {
    "1 + 2 + 30": r"\boxed{3} no \boxed{33}<|endoftext|>",  # correct, the last box counts
    "4": r"4<|endoftext|>",  # no box, no answer
    "5 + 6": r"\boxed{12}<|endoftext|>",  # wrong
    "70": r"\boxed{70} and on and",  # correct, and cut off
    "8": r"\boxed{",  # an unclosed box, cut off
}


@pytest.mark.parametrize("most", [1, 2, 3, 5, 64])
def test_each_problem_counts_once_for_any_batch_size(most, scripted, tiny_policy, monkeypatch):
    monkeypatch.setattr(module, "MAX_BATCH", most)
    batches = scripted(ANSWERS)
    result = run(tiny_policy)
    assert [row.problem for row in result.rows] == [problem.text for problem in PROBLEMS]
    assert [row.gold for row in result.rows] == [problem.answer for problem in PROBLEMS]
    assert answers_of(result.rows, "text") == list(ANSWERS.values())
    assert answers_of(result.rows, "extracted") == ["33", "", "12", "70", ""]
    assert answers_of(result.rows, "correct") == [True, False, False, True, False]
    assert answers_of(result.rows, "truncated") == [False, False, False, True, True]
    lengths = [len(tiny_policy.tokenizer.encode(text)) for text in ANSWERS.values()]
    assert answers_of(result.rows, "length") == lengths
    assert (result.step, result.dataset, result.correct, result.total, result.accuracy) == (7, "sums", 2, 5, 40.0)
    assert result.avg_response_len == np.mean(lengths)
    assert result.truncated_frac == 0.4
    assert len(batches[0]) == min(most, 5)
    assert len(batches) == -(-5 // most)


def test_a_repeated_problem_counts_twice(scripted, tiny_policy):
    scripted(ANSWERS)
    result = run(tiny_policy, [PROBLEMS[0], PROBLEMS[2], PROBLEMS[0]])
    assert answers_of(result.rows, "correct") == [True, False, True]
    assert (result.correct, result.total) == (2, 3)


def test_the_cache_size_limits_the_batch(scripted, tiny_policy, monkeypatch):
    # A token takes 2 (keys, values) x 2 layers x 1 head x 16 x 4 bytes = 256 bytes. A bit more than twice the longest
    # prompt with 8 new tokens is enough for a batch of 2.
    tokens = max(len(tiny_policy.tokenizer.prompt_ids(f"{text} =")) for text in ANSWERS) + 8
    monkeypatch.setattr(module, "CACHE_BYTES", 2 * 256 * tokens + 100)
    batches = scripted(ANSWERS)
    run(tiny_policy)
    assert [len(batch) for batch in batches] == [2, 2, 1]
    monkeypatch.setattr(module, "CACHE_BYTES", 1)  # too small for one sequence, but one is the minimum
    batches.clear()
    run(tiny_policy)
    assert [len(batch) for batch in batches] == [1] * 5


def test_no_answer_is_wrong_even_if_the_grader_accepts_it(scripted, tiny_policy):
    class YesSayer(FakeGrader):
        def grade_many(self, pairs):
            return [True for _ in pairs]

    scripted(ANSWERS)
    result = run(tiny_policy, grader=YesSayer())
    assert answers_of(result.rows, "correct") == [True, False, True, True, False]


def test_both_rules_are_graded(scripted, tiny_policy):
    # "The answer is 4." earns nothing in training but counts by the second rule.
    scripted(ANSWERS | {"4": "The answer is 4.<|endoftext|>"})
    result = run(tiny_policy)
    assert answers_of(result.rows, "extracted_or_last_number") == ["33", "4", "12", "70", ""]
    assert answers_of(result.rows, "correct_or_last_number") == [True, True, False, True, False]
    assert (result.correct, result.correct_or_last_number) == (2, 3)


def test_batched_answers_equal_those_to_single_problems(tiny_policy, monkeypatch):
    monkeypatch.setattr(module, "MAX_BATCH", 2)
    result = run(tiny_policy)
    for problem, row in zip(PROBLEMS, result.rows, strict=True):
        prompt = tiny_policy.tokenizer.prompt_ids(f"{problem.text} =")
        alone = make_rollouts(tiny_policy, tiny_policy.params, [prompt], jax.random.key(9), GREEDY, 1, 8)
        assert row.text == [tiny_policy.tokenizer.decode(alone.answer_ids(0))]
        assert (row.length, row.truncated) == (alone.answer_lens.tolist(), alone.truncated.tolist())
    assert len(set(answers_of(result.rows, "text"))) > 1


def test_the_given_weights_are_used_instead_of_the_policys(tiny_policy):
    other = jax.tree.map(lambda p: np.asarray(p)[::-1], tiny_policy.params)
    own = answers_of(run(tiny_policy).rows, "text")
    given = evaluate(tiny_policy, other, PROBLEMS, dataset="sums", step=0, max_new_tokens=8, template=TEMPLATE)
    assert answers_of(given.rows, "text") != own


def test_thinking_reaches_the_tokenizer(scripted, tiny_policy):
    seen = []
    tokenizer = tiny_policy.tokenizer

    class Recorder:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def prompt_ids(self, text, thinking):
            seen.append((text, thinking))
            return tokenizer.prompt_ids(text, thinking)

    scripted(ANSWERS)
    run(dataclasses.replace(tiny_policy, tokenizer=Recorder()), thinking=False)
    assert seen == [(f"{problem.text} =", False) for problem in PROBLEMS]


def test_no_problems(tiny_policy):
    with pytest.raises(InputError, match="there are no problems to evaluate on; choose a data set with at least one"):
        run(tiny_policy, [])
    with pytest.raises(InputError, match="there are no problems to evaluate on"):
        next(answer_problems(tiny_policy, tiny_policy.params, [], max_new_tokens=8))


def test_a_too_long_problem_is_reported_before_the_first_answer(scripted, tiny_policy):
    batches = scripted(ANSWERS)
    with pytest.raises(InputError, match=r"exceed the model's context of 256; lower --max-new-tokens"):
        run(tiny_policy, [*PROBLEMS, Problem("9" * 300, "9")])
    assert batches == []


# --- streaming ---


def rows_of(policy, problems=PROBLEMS, **changes):
    settings = {"max_new_tokens": 8, "template": TEMPLATE}
    return list(answer_problems(policy, policy.params, problems, **settings | changes))


def test_rows_are_yielded_as_they_are_finished(scripted, tiny_policy):
    batches = scripted(ANSWERS)
    problems = [dataclasses.replace(p, subject="sums", level=i) for i, p in enumerate(PROBLEMS)]
    stream = answer_problems(
        tiny_policy, tiny_policy.params, problems, max_new_tokens=8, template=TEMPLATE, batch_size=2
    )
    first = next(stream)
    assert len(batches) == 1
    rows = [first, *stream]
    assert sorted(row.index for row in rows) == [0, 1, 2, 3, 4]
    for row in rows:
        assert row.problem == PROBLEMS[row.index].text
        assert (row.subject, row.level) == ("sums", row.index)


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_finished_problems_are_skipped_and_change_nothing(tiny_policy, batch_size):
    rows = rows_of(tiny_policy, batch_size=batch_size)
    for count in range(6):
        rest = rows_of(tiny_policy, batch_size=batch_size, done={row.index for row in rows[:count]})
        by_index = lambda rows: sorted(rows, key=lambda row: row.index)
        assert by_index(rows[:count] + rest) == by_index(rows)


def test_batch_size(scripted, tiny_policy):
    batches = scripted(ANSWERS)
    rows_of(tiny_policy, batch_size=3)
    assert [len(batch) for batch in batches] == [3, 2]


# --- samples ---

WARM = make_sampler(1.0)


SAMPLED = [PROBLEMS[0], PROBLEMS[0], PROBLEMS[2], Problem("4" * 30, "4"), PROBLEMS[4]]
"""One problem twice, and one that is longer than the others."""


def sample(policy, problems=SAMPLED, num_samples=4, seed=3, **changes):
    return {
        row.index: row for row in rows_of(policy, problems, sampler=WARM, num_samples=num_samples, seed=seed, **changes)
    }


@pytest.fixture(scope="module")
def sampled(tiny_policy):
    """Four samples of each problem."""
    return sample(tiny_policy)


@pytest.mark.slow
def test_samples_do_not_depend_on_the_batch_or_on_finished_problems(tiny_policy, sampled):
    assert len({text for row in sampled.values() for text in row.text}) > 10
    assert sample(tiny_policy, batch_size=12) == sampled  # three problems at a time instead of five
    assert sample(tiny_policy, done={0, 3}) == {i: sampled[i] for i in (1, 2, 4)}


def test_samples_do_not_depend_on_other_problems_or_on_the_number_of_samples(tiny_policy, sampled):
    """Fewer and shorter problems, fewer samples, and one problem at a time."""
    few = sample(tiny_policy, SAMPLED[:3], num_samples=2, batch_size=1)
    assert {i: row.text for i, row in few.items()} == {i: sampled[i].text[:2] for i in range(3)}


def test_samples_differ_between_seeds_and_between_repeated_problems(tiny_policy, sampled):
    other_seed = sample(tiny_policy, seed=4)
    assert all(other_seed[i].text != sampled[i].text for i in sampled)
    assert sampled[0].problem == sampled[1].problem
    assert sampled[0].text != sampled[1].text


def test_the_key_of_an_answer_is_made_of_seed_problem_and_sample_number(tiny_policy, sampled):
    key = jax.random.fold_in(jax.random.key(3, impl="threefry2x32"), 2)
    prompt = tiny_policy.tokenizer.prompt_ids("5 + 6 =")
    alone = make_rollouts(tiny_policy, tiny_policy.params, [prompt], key, WARM, 4, 8)
    assert sampled[2].text == [tiny_policy.tokenizer.decode(alone.answer_ids(g)) for g in range(4)]
    assert sampled[2].length == alone.answer_lens.tolist()
    assert sampled[2].truncated == alone.truncated.tolist()


def test_the_batch_size_counts_samples(scripted, tiny_policy):
    """With three samples, a batch of 8 sequences has two prompts, and one of 2 still has one."""
    batches = scripted({text: [answer] * 3 for text, answer in ANSWERS.items()}, WARM)
    for batch_size, sizes in ((8, [2, 2, 1]), (2, [1] * 5)):
        batches.clear()
        rows_of(tiny_policy, sampler=WARM, num_samples=3, batch_size=batch_size)
        assert [len(batch) for batch in batches] == sizes


SAMPLES = {
    "5 + 6": [
        r"\boxed{12}",
        r"\boxed{11}<|endoftext|>",
        r"it is 11<|endoftext|>",
        r"\boxed{\frac{24}{2}}<|endoftext|>",  # as wrong as 12, and equal to it
        r"\boxed{22/2}<|endoftext|>",  # correct, like 11
        r"\boxed{10}<|endoftext|>",
    ]
}


def test_equal_answers_are_recognised_in_different_notations(scripted, tiny_policy):
    scripted(SAMPLES, WARM)
    (row,) = rows_of(tiny_policy, [PROBLEMS[2]], sampler=WARM, num_samples=6, max_new_tokens=64)
    assert row.extracted == ["12", "11", "", r"\frac{24}{2}", "22/2", "10"]
    assert row.correct == [False, True, False, False, True, False]
    assert row.same_as == [0, 1, None, 0, 1, 5]
    assert row.correct_or_last_number == [False, True, True, False, True, False]
    assert row.same_as_or_last_number == [0, 1, 1, 0, 1, 5]  # 11 has the majority only by this rule
    assert row.truncated == [True] + [False] * 5
    assert EvalRow.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_an_evaluation_of_samples_counts_answers(scripted, tiny_policy):
    scripted(SAMPLES, WARM)
    result = run(tiny_policy, [PROBLEMS[2]], sampler=WARM, num_samples=6)
    assert (result.correct, result.correct_or_last_number, result.total) == (2, 3, 6)
    assert result.accuracy == pytest.approx(100 / 3)
    assert result.truncated_frac == pytest.approx(1 / 6)
    assert result.avg_response_len == np.mean([len(tiny_policy.tokenizer.encode(t)) for t in SAMPLES["5 + 6"]])


def test_an_answer_joins_the_group_of_the_first_equal_one(scripted, tiny_policy):
    class Chain(FakeGrader):
        """Equality that is not transitive: 1 = 2 and 2 = 3, but not 1 = 3."""

        def grade_many(self, pairs):
            return [set(pair) in ({"1", "2"}, {"2", "3"}) for pair in pairs]

    scripted({"5 + 6": [rf"\boxed{{{n}}}<|endoftext|>" for n in (1, 2, 3, 3, 4)]}, WARM)
    (row,) = rows_of(tiny_policy, [PROBLEMS[2]], sampler=WARM, num_samples=5, grader=Chain())
    assert row.same_as == [0, 0, 0, 0, 4]
