"""Accuracy on a list of problems, with one greedy answer or several samples per problem."""

import itertools
import time
from collections.abc import Collection, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from grpojax.errors import InputError
from grpojax.grading.answers import extract_answer
from grpojax.grading.grader import Grader
from grpojax.qwen.model import Params
from grpojax.qwen.weights import Policy
from grpojax.records import EvalRow, Evaluation
from grpojax.tasks.problems import Problem
from grpojax.tasks.prompts import DEFAULT_TEMPLATE, render_prompt
from grpojax.training.rollout import check_context
from grpojax.training.sampling import GREEDY, Sampler
from grpojax.training.stream import stream_answers

CACHE_BYTES, MAX_BATCH = 2**31, 64
"""Largest key-value cache of a batch, and most sequences in it, on a device whose memory is unknown."""

RULES = {"": None, "_or_last_number": "last_number"}
"""The rules of `EvalRow`: suffix of its fields -> fallback of `extract_answer`. Training rewards the first rule."""


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
    """Answers every problem and grades the answers.

    Args:
      params: the weights to evaluate; `policy` provides the model structure and the tokenizer.
      dataset, step: copied into the result.
      template, thinking, grader, sampler, num_samples, seed: see `answer_problems`.

    Returns:
      An Evaluation with the rows in the order of `problems`.
    """
    start = time.perf_counter()
    rows = sorted(
        answer_problems(
            policy, params, problems,
            max_new_tokens=max_new_tokens, template=template, thinking=thinking, grader=grader,
            sampler=sampler, num_samples=num_samples, seed=seed,
        ),
        key=lambda row: row.index,
    )  # fmt: skip
    return Evaluation(
        step=step,
        dataset=dataset,
        correct=int(np.sum([row.correct for row in rows])),
        total=len(rows) * num_samples,
        avg_response_len=float(np.mean([row.length for row in rows])),
        truncated_frac=float(np.mean([row.truncated for row in rows])),
        seconds=time.perf_counter() - start,
        rows=rows,
        correct_or_last_number=int(np.sum([row.correct_or_last_number for row in rows])),
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
) -> Iterator[EvalRow]:
    """Answers the problems, longest prompts first, and grades finished answers while others are still being generated.

    Token n of answer g to problem i is drawn with the key fold_in(fold_in(fold_in(seed, i), g), n). So a sample does
    not depend on the batch, the other problems or num_samples, except for rounding in batches of different sizes.

    Args:
      template: see `render_prompt`.
      thinking: see `Tokenizer.prompt_ids`.
      num_samples: answers per problem; they share one prefill of the prompt.
      batch_size: sequences decoded together, at least num_samples; None: as many as fit.
      done: indices of problems to skip.

    Yields:
      The row of each problem as soon as all its answers are finished. With several samples, same_as has for
      each answer the index of the first one that the grader finds equal; None where there is no answer.

    Raises:
      InputError: if there are no problems, or a prompt with its answer exceeds the model's context.
    """
    if not problems:
        raise InputError("there are no problems to evaluate on; choose a data set with at least one problem.")
    grader = grader or Grader()
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text, template), thinking) for p in problems]
    longest = max(len(ids) for ids in prompts)
    check_context(policy, longest, max_new_tokens)
    root = jax.random.key(seed, impl="threefry2x32")  # independent of the jax_default_prng_impl setting
    keys = jax.vmap(jax.random.fold_in, (None, 0))(root, jnp.arange(len(problems)))
    rows = batch_size or _fitting_batch(policy, longest + max_new_tokens)
    stream = stream_answers(
        policy, params, prompts, keys, sampler, num_samples, max_new_tokens, max(1, rows // num_samples), skip=done
    )
    for group in stream:
        indices = [answered.prompt for answered in group]
        texts = [[policy.tokenizer.decode(ids) for ids in answered.answers] for answered in group]
        graded = _grade(texts, [problems[i].answer for i in indices], grader)
        for i, answered, group_texts, fields in zip(indices, group, texts, graded, strict=True):
            problem = problems[i]
            yield EvalRow(
                index=i, problem=problem.text, gold=problem.answer, subject=problem.subject, level=problem.level,
                text=group_texts, length=[len(ids) for ids in answered.answers], truncated=answered.truncated, **fields,
            )  # fmt: skip


def _fitting_batch(policy: Policy, tokens: int) -> int:
    """How many sequences of this many tokens fit into memory.

    On a device of known memory a quarter of it is for their cache, and there are at most 512: with more, the products of a
    decode step take longer than reading the weights.
    """
    config = policy.config
    itemsize = jnp.dtype(config.compute_dtype).itemsize
    token_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize  # keys and values
    memory = config.device.memory
    cache_bytes, most = (CACHE_BYTES, MAX_BATCH) if memory is None else (max(CACHE_BYTES, memory // 4), 512)
    return min(most, cache_bytes // (token_bytes * tokens))


def _grade(texts: list[list[str]], golds: list[str], grader: Grader) -> list[dict[str, list]]:
    """The extracted, correct and same_as fields of each problem's row, by both rules."""
    rows: list[dict[str, list]] = [{} for _ in texts]
    for suffix, fallback in RULES.items():
        extracted = [[extract_answer(text, fallback) for text in group] for group in texts]
        pairs = [(answer, gold) for group, gold in zip(extracted, golds, strict=True) for answer in group]
        verdicts = iter(grader.grade_many(pairs))
        for row, answers in zip(rows, extracted, strict=True):
            correct = [verdict and bool(answer) for answer, verdict in zip(answers, verdicts, strict=False)]
            row |= {f"extracted{suffix}": answers, f"correct{suffix}": correct}
            if len(answers) > 1:
                row[f"same_as{suffix}"] = _same_as(answers, correct, grader)
    return rows


def _same_as(answers: list[str], correct: list[bool], grader: Grader) -> list[int | None]:
    """For each answer the index of the first one that is equal to it; None where there is no answer.

    Correct answers are equal to each other and to no wrong one, so only distinct wrong answers are compared.
    """
    wrong = dict.fromkeys(answer for answer, right in zip(answers, correct, strict=True) if answer and not right)
    pairs = list(itertools.combinations(wrong, 2))
    equal = {pair for pair, verdict in zip(pairs, grader.grade_many(pairs), strict=True) if verdict}
    first_equal: list[int | None] = []
    for at, (answer, right) in enumerate(zip(answers, correct, strict=True)):
        matches = (
            first_equal[i] for i in range(at)
            if correct[i] == right and (right or answers[i] == answer or (answers[i], answer) in equal)
        )  # fmt: skip
        first_equal.append(next(matches, at) if answer else None)
    return first_equal
