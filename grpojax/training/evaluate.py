"""Accuracy on a list of problems, greedy or with several samples each."""

import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpojax.errors import InputError
from grpojax.qwen.model import Params
from grpojax.qwen.weights import Policy
from grpojax.records import Evaluation
from grpojax.grading.answers import extract_answer
from grpojax.grading.grader import Grader
from grpojax.tasks.problems import Problem
from grpojax.tasks.prompts import DEFAULT_TEMPLATE, render_prompt
from grpojax.training.rollout import check_context
from grpojax.training.sampling import GREEDY, Sampler
from grpojax.training.stream import stream_answers

CACHE_BYTES = 2**31
"""The batch is as large as keys and values of this size allow, at most MAX_BATCH."""
MAX_BATCH = 64

RULES = {"": None, "_or_last_number": "last_number"}
"""How an answer is found: suffix of the fields of a row -> fallback of `extract_answer`. Training rewards the first."""


def evaluate(
    policy: Policy,
    params: Params,
    problems: Sequence[Problem],
    *,
    dataset: str,
    step: int,
    max_new_tokens: int,
    template: str = DEFAULT_TEMPLATE,
    thinking: bool = True,
    grader: Grader | None = None,
    sampler: Sampler = GREEDY,
    num_samples: int = 1,
    seed: int = 0,
) -> Evaluation:
    """Answers every problem and grades the last box of each answer.

    Args:
      params: the weights to evaluate; `policy` gives structure and tokenizer.
      dataset, step: names for the record.
      sampler, num_samples, seed: as for `answer_problems`.

    Returns:
      An Evaluation; its rows are in the order of `problems`.
    """
    start = time.perf_counter()
    rows = sorted(
        answer_problems(
            policy, params, problems,
            max_new_tokens=max_new_tokens, template=template, thinking=thinking, grader=grader,
            sampler=sampler, num_samples=num_samples, seed=seed,
        ),
        key=lambda row: row["index"],
    )  # fmt: skip
    return Evaluation(
        step=step,
        dataset=dataset,
        correct=int(np.sum([row["correct"] for row in rows])),
        total=len(rows) * num_samples,
        avg_response_len=float(np.mean([row["length"] for row in rows])),
        truncated_frac=float(np.mean([row["truncated"] for row in rows])),
        seconds=time.perf_counter() - start,
        rows=rows,
        correct_or_last_number=int(np.sum([row["correct_or_last_number"] for row in rows])),
    )


def answer_problems(
    policy: Policy,
    params: Params,
    problems: Sequence[Problem],
    *,
    max_new_tokens: int,
    template: str = DEFAULT_TEMPLATE,
    thinking: bool = True,
    grader: Grader | None = None,
    sampler: Sampler = GREEDY,
    num_samples: int = 1,
    seed: int = 0,
    batch_size: int | None = None,
    done: Collection[int] = (),
) -> Iterator[dict[str, Any]]:
    """Answers the problems, those with the longest prompts first, and grades the answers while others are made.

    Answer g to problem i draws its token n from fold_in(fold_in(fold_in(seed, i), g), n): neither the batch, nor what
    is done already, nor the number of samples changes it. (Rounding may, in a batch of another size.)

    Args:
      num_samples: answers to a problem; they share one prefill of its prompt.
      batch_size: answers decoded together, at least those to one problem; None: what CACHE_BYTES and MAX_BATCH allow.
      done: places of the problems to leave out.

    Yields:
      A row per problem as soon as it is answered: index (its place), problem, gold, subject, level; text, length
      and truncated; extracted and correct by the last box alone, the same with the suffix _or_last_number where a text
      without a box is searched for a number. With several samples all but the first five are lists of num_samples, and
      same_as (and same_as_or_last_number) says which of them answer alike: for each answer the place of the first one
      that the grader finds equal, None without an answer.

    Raises:
      InputError: if there are no problems, or a prompt and its answer do not fit the model's context.
    """
    if not problems:
        raise InputError("there are no problems to evaluate on; choose a data set with at least one.")
    grader = grader or Grader()
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text, template), thinking) for p in problems]
    longest = max(len(ids) for ids in prompts)
    check_context(policy, longest, max_new_tokens)
    root = jax.random.key(seed, impl="threefry2x32")  # named, so that a default elsewhere cannot change the samples
    keys = jax.vmap(jax.random.fold_in, (None, 0))(root, jnp.arange(len(problems)))
    rows = batch_size or _fitting_batch(policy, longest + max_new_tokens)
    stream = stream_answers(
        policy, params, prompts, keys, sampler, num_samples, max_new_tokens, max(1, rows // num_samples), skip=done
    )
    for group in stream:
        indices = [answered.prompt for answered in group]
        texts = [[policy.tokenizer.decode(ids) for ids in answered.answers] for answered in group]
        graded = _grade(texts, [problems[i].answer for i in indices], grader)
        for i, answered, columns in zip(indices, group, graded, strict=True):
            columns["length"] = [len(ids) for ids in answered.answers]
            columns["truncated"] = answered.truncated
            yield _row(i, problems[i], columns)


def _fitting_batch(policy: Policy, slots: int) -> int:
    """The sequences of so many tokens whose keys and values fit into CACHE_BYTES, at most MAX_BATCH."""
    config = policy.config
    slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * jnp.dtype(config.compute_dtype).itemsize
    return min(MAX_BATCH, CACHE_BYTES // (slot * slots))


def _grade(texts: list[list[str]], golds: list[str], grader: Grader) -> list[dict[str, list]]:
    """What was found in the answers to each problem, by both rules, and whether it is right."""
    graded: list[dict[str, list]] = [{"text": group} for group in texts]
    for suffix, fallback in RULES.items():
        found = [[extract_answer(text, fallback) for text in group] for group in texts]
        pairs = [(answer, gold) for group, gold in zip(found, golds, strict=True) for answer in group]
        verdicts = iter(grader.grade_many(pairs))
        for columns, answers in zip(graded, found, strict=True):
            correct = [verdict and bool(answer) for answer, verdict in zip(answers, verdicts, strict=False)]
            columns |= {f"extracted{suffix}": answers, f"correct{suffix}": correct}
            if len(answers) > 1:
                columns[f"same_as{suffix}"] = _same_as(answers, correct, grader)
    return graded


def _same_as(answers: list[str], correct: list[bool], grader: Grader) -> list[int | None]:
    """For each answer the place of the first that is equal to it; None where there is no answer.

    Right answers are equal to each other and to no wrong one, so only different wrong ones are compared.
    """
    wrong = dict.fromkeys(answer for answer, right in zip(answers, correct, strict=True) if answer and not right)
    pairs = list(itertools.combinations(wrong, 2))
    equal = {pair for pair, verdict in zip(pairs, grader.grade_many(pairs), strict=True) if verdict}
    places: list[int | None] = []
    for at, (answer, right) in enumerate(zip(answers, correct, strict=True)):
        alike = (
            places[i] for i in range(at)
            if correct[i] == right and (right or answers[i] == answer or (answers[i], answer) in equal)
        )  # fmt: skip
        places.append(next(alike, at) if answer else None)
    return places


def _row(index: int, problem: Problem, columns: dict[str, list]) -> dict[str, Any]:
    """The row of a problem: single values where there is one answer, lists where there are more."""
    first = {"index": index, "problem": problem.text, "gold": problem.answer}
    first |= {"subject": problem.subject, "level": problem.level}
    return first | {name: values[0] if len(values) == 1 else values for name, values in columns.items()}
