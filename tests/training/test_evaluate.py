"""Evaluation: every problem once, graded by last box and by last number; samples that depend on nothing else."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from fakes import FakeGrader

from grpojax.errors import InputError
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

pytestmark = pytest.mark.usefixtures("own_cache")


def run(policy, problems=PROBLEMS, **changes):
    settings = {"dataset": "sums", "step": 7, "max_new_tokens": 8, "template": TEMPLATE}
    return evaluate(policy, policy.params, problems, **settings | changes)


@pytest.fixture
def scripted(monkeypatch, tiny_policy):
    """A factory: answers by prompt (one, or a list of samples) instead of a model's; returns the list of prompts that were
    asked together."""

    def make(answers, expected_sampler=GREEDY):
        by_prompt = {
            tuple(tiny_policy.tokenizer.prompt_ids(f"{text} =")): [answer] if isinstance(answer, str) else answer
            for text, answer in answers.items()
        }
        asked = []

        def answer(policy, params, prompts, keys, sampler, num_samples, max_new_tokens, slots, skip):
            assert sampler == expected_sampler
            assert len(keys) == len(prompts)
            todo = [i for i in range(len(prompts)) if i not in skip]
            for group in (todo[at : at + slots] for at in range(0, len(todo), slots)):
                asked.append([policy.tokenizer.decode(prompts[i]) for i in group])
                yield [answered(i, by_prompt[tuple(prompts[i])], num_samples) for i in group]

        def answered(prompt, texts, num_samples):
            assert len(texts) == num_samples
            ids = [tiny_policy.tokenizer.encode(text) for text in texts]
            return Finished(prompt, ids, [row[-1] not in tiny_policy.tokenizer.stop_ids for row in ids])

        monkeypatch.setattr(module, "stream_answers", answer)
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
    assert len(asked[0]) == min(most, 5)
    assert len(asked) == -(-5 // most)


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
    assert [len(batch) for batch in asked] == [2, 2, 1]
    monkeypatch.setattr(module, "CACHE_BYTES", 1)  # less than one row takes: still one at a time
    asked.clear()
    run(tiny_policy)
    assert [len(batch) for batch in asked] == [1] * 5


def test_no_answer_is_wrong_even_where_the_grader_says_right(scripted, tiny_policy):
    class YesSayer(FakeGrader):
        def grade_many(self, pairs):
            return [True for _ in pairs]

    scripted(ANSWERS)
    result = run(tiny_policy, grader=YesSayer())
    assert [row["correct"] for row in result.rows] == [True, False, True, True, False]


def test_both_rules_are_graded(scripted, tiny_policy):
    # Field report e15: "The answer is 4." earns nothing in training and counts where the last number is the fallback.
    scripted(ANSWERS | {"4": "The answer is 4.<|endoftext|>"})
    result = run(tiny_policy)
    assert [row["extracted_or_last_number"] for row in result.rows] == ["33", "4", "12", "70", ""]
    assert [row["correct_or_last_number"] for row in result.rows] == [True, True, False, True, False]
    assert (result.correct, result.correct_or_last_number) == (2, 3)


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
    with pytest.raises(InputError, match="there are no problems to evaluate on"):
        next(answer_problems(tiny_policy, tiny_policy.params, [], max_new_tokens=8))


def test_a_problem_that_is_too_long_is_told_before_the_first_answer(scripted, tiny_policy):
    asked = scripted(ANSWERS)
    with pytest.raises(InputError, match=r"exceed the model's context of 256; lower --max-new-tokens"):
        run(tiny_policy, [*PROBLEMS, Problem("9" * 300, "9")])
    assert asked == []


# --- rows as they come ---


def rows_of(policy, problems=PROBLEMS, **changes):
    settings = {"max_new_tokens": 8, "template": TEMPLATE}
    return list(answer_problems(policy, policy.params, problems, **settings | changes))


def test_rows_come_as_they_are_answered_and_name_their_problem(scripted, tiny_policy):
    asked = scripted(ANSWERS)
    problems = [dataclasses.replace(p, subject="sums", level=i) for i, p in enumerate(PROBLEMS)]
    stream = answer_problems(
        tiny_policy, tiny_policy.params, problems, max_new_tokens=8, template=TEMPLATE, batch_size=2
    )
    first = next(stream)
    assert len(asked) == 1
    rows = [first, *stream]
    assert sorted(row["index"] for row in rows) == [0, 1, 2, 3, 4]
    for row in rows:
        assert row["problem"] == PROBLEMS[row["index"]].text
        assert (row["subject"], row["level"]) == ("sums", row["index"])


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_what_is_done_is_left_out_and_changes_nothing(tiny_policy, batch_size):
    unbroken = rows_of(tiny_policy, batch_size=batch_size)
    for count in range(6):
        done = {row["index"] for row in unbroken[:count]}
        rest = rows_of(tiny_policy, batch_size=batch_size, done=done)
        by_index = lambda rows: sorted(rows, key=lambda row: row["index"])
        assert by_index(unbroken[:count] + rest) == by_index(unbroken)


def test_the_batch_size_is_as_asked(scripted, tiny_policy):
    asked = scripted(ANSWERS)
    rows_of(tiny_policy, batch_size=3)
    assert [len(batch) for batch in asked] == [3, 2]


# --- samples ---

WARM = make_sampler(1.0)


@pytest.mark.slow
def test_samples_do_not_depend_on_batch_neighbours_or_number(tiny_policy):
    def texts(problems=PROBLEMS, samples=4, **changes):
        rows = rows_of(tiny_policy, problems, sampler=WARM, num_samples=samples, seed=3, **changes)
        return {row["index"]: row["text"] for row in rows}

    expected = texts()
    assert len({text for group in expected.values() for text in group}) > 10
    for size in (1, 4, 8, 12, 64):
        assert texts(batch_size=size) == expected
    assert texts(done={0, 3}) == {i: expected[i] for i in (1, 2, 4)}
    assert texts(PROBLEMS[:2]) == {i: expected[i] for i in (0, 1)}
    assert texts(samples=2) == {i: group[:2] for i, group in expected.items()}
    assert texts(PROBLEMS[:1] + [Problem("4" * 30, "4")] + PROBLEMS[2:])[2] == expected[2]
    other_seed = {row["index"]: row["text"] for row in rows_of(tiny_policy, sampler=WARM, num_samples=4, seed=4)}
    assert all(other_seed[i] != expected[i] for i in expected)


def test_a_problem_asked_twice_is_sampled_twice(tiny_policy):
    first, second = rows_of(tiny_policy, [PROBLEMS[0]] * 2, sampler=WARM, num_samples=4)
    assert first["text"] != second["text"]


def test_an_answer_draws_from_seed_problem_and_its_number(tiny_policy):
    rows = {row["index"]: row for row in rows_of(tiny_policy, sampler=WARM, num_samples=3, seed=5)}
    key = jax.random.fold_in(jax.random.key(5, impl="threefry2x32"), 2)
    prompt = tiny_policy.tokenizer.prompt_ids("5 + 6 =")
    alone = make_rollouts(tiny_policy, tiny_policy.params, [prompt], key, WARM, 3, 8)
    assert rows[2]["text"] == [tiny_policy.tokenizer.decode(alone.answer_ids(g)) for g in range(3)]
    assert rows[2]["length"] == alone.answer_lens.tolist()
    assert rows[2]["truncated"] == alone.truncated.tolist()


def test_samples_count_in_the_batch_size(scripted, tiny_policy):
    """A prompt is asked once for its three samples; of 8 rows two prompts have room, of 2 still one."""
    asked = scripted({text: [answer] * 3 for text, answer in ANSWERS.items()}, WARM)
    for batch_size, sizes in ((8, [2, 2, 1]), (2, [1] * 5)):
        asked.clear()
        rows_of(tiny_policy, sampler=WARM, num_samples=3, batch_size=batch_size)
        assert [len(batch) for batch in asked] == sizes


SAMPLES = {
    "5 + 6": [
        r"\boxed{12}",
        r"\boxed{11}<|endoftext|>",
        r"it is 11<|endoftext|>",
        r"\boxed{\frac{24}{2}}<|endoftext|>",  # as wrong as 12, and equal to it
        r"\boxed{22/2}<|endoftext|>",  # right, as 11
        r"\boxed{10}<|endoftext|>",
    ]
}


def test_equal_answers_are_known_as_equal_however_they_are_written(scripted, tiny_policy):
    scripted(SAMPLES, WARM)
    (row,) = rows_of(tiny_policy, [PROBLEMS[2]], sampler=WARM, num_samples=6, max_new_tokens=64)
    assert row["extracted"] == ["12", "11", "", r"\frac{24}{2}", "22/2", "10"]
    assert row["correct"] == [False, True, False, False, True, False]
    assert row["same_as"] == [0, 1, None, 0, 1, 5]
    assert row["correct_or_last_number"] == [False, True, True, False, True, False]
    assert row["same_as_or_last_number"] == [0, 1, 1, 0, 1, 5]  # 11 has the majority by this rule only
    assert row["truncated"] == [True] + [False] * 5
    assert json.loads(json.dumps(row)) == row


def test_an_evaluation_of_samples_counts_answers(scripted, tiny_policy):
    scripted(SAMPLES, WARM)
    result = run(tiny_policy, [PROBLEMS[2]], sampler=WARM, num_samples=6)
    assert (result.correct, result.correct_or_last_number, result.total) == (2, 3, 6)
    assert result.accuracy == pytest.approx(100 / 3)
    assert result.truncated_frac == pytest.approx(1 / 6)
    assert result.avg_response_len == np.mean([len(tiny_policy.tokenizer.encode(t)) for t in SAMPLES["5 + 6"]])


def test_an_answer_joins_the_group_of_the_first_it_is_equal_to(scripted, tiny_policy):
    class Chain(FakeGrader):
        """Equality that is not transitive: 1 = 2 and 2 = 3, but not 1 = 3."""

        def grade_many(self, pairs):
            return [set(pair) in ({"1", "2"}, {"2", "3"}) for pair in pairs]

    scripted({"5 + 6": [rf"\boxed{{{n}}}<|endoftext|>" for n in (1, 2, 3, 3, 4)]}, WARM)
    (row,) = rows_of(tiny_policy, [PROBLEMS[2]], sampler=WARM, num_samples=5, grader=Chain())
    assert row["same_as"] == [0, 0, 0, 0, 4]
