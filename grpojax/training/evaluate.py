"""Greedy accuracy on a list of problems, in batches of similar length."""

import time
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from grpojax.errors import InputError
from grpojax.qwen.model import Params
from grpojax.qwen.weights import Policy
from grpojax.records import Evaluation
from grpojax.tasks.answers import extract_answer
from grpojax.tasks.grading import Grader
from grpojax.tasks.problems import Problem
from grpojax.tasks.prompts import DEFAULT_TEMPLATE, render_prompt
from grpojax.training.rollout import make_rollouts
from grpojax.training.sampling import GREEDY

CACHE_BYTES = 2**31
"""The batch is as large as keys and values of this size allow, at most MAX_BATCH."""
MAX_BATCH = 64


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
) -> Evaluation:
    """Answers every problem greedily and grades the last box of each answer.

    Args:
      params: the weights to evaluate; `policy` gives structure and tokenizer.
      dataset, step: names for the record.

    Returns:
      An Evaluation; its rows are in the order of `problems`.
    """
    if not problems:
        raise InputError("there are no problems to evaluate on; choose a data set with at least one.")
    start = time.perf_counter()
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text, template), thinking) for p in problems]
    rows = [{}] * len(problems)
    for index in _batches(policy, [len(ids) for ids in prompts], max_new_tokens):
        rollouts = make_rollouts(
            policy, params, [prompts[i] for i in index], jax.random.key(0), GREEDY, 1, max_new_tokens
        )
        for at, i in enumerate(index):  # a last batch is filled up with repetitions, which overwrite themselves
            ids = rollouts.answer_ids(at)
            text = policy.tokenizer.decode(ids)
            rows[i] = {
                "problem": problems[i].text, "gold": problems[i].answer, "text": text, "extracted": extract_answer(text),
                "length": len(ids), "truncated": bool(rollouts.truncated[at]),
            }  # fmt: skip
    verdicts = (grader or Grader()).grade_many([(row["extracted"], row["gold"]) for row in rows])
    rows = [row | {"correct": bool(row["extracted"]) and verdict} for row, verdict in zip(rows, verdicts, strict=True)]
    return Evaluation(
        step=step,
        dataset=dataset,
        correct=sum(row["correct"] for row in rows),
        total=len(rows),
        avg_response_len=float(np.mean([row["length"] for row in rows])),
        truncated_frac=float(np.mean([row["truncated"] for row in rows])),
        seconds=time.perf_counter() - start,
        rows=rows,
    )


def _batches(policy: Policy, lengths: list[int], max_new_tokens: int) -> Iterator[list[int]]:
    """Indices in order of prompt length, in batches of one size; the last is filled up by repeating its own."""
    config = policy.config
    slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * jnp.dtype(config.compute_dtype).itemsize
    size = max(1, min(MAX_BATCH, len(lengths), CACHE_BYTES // (slot * (max(lengths) + max_new_tokens))))
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for at in range(0, len(order), size):
        part = order[at : at + size]
        yield (part * size)[:size]
