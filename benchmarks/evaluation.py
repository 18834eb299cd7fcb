"""Is an evaluation faster with continuous batching or with static batches?

    python benchmarks/evaluation.py
    python benchmarks/evaluation.py --model tiny-reasoning

Prints the seconds of both for several batch sizes. Measured are an embedded model's greedy answers to held-out
arithmetic problems, without grading. Static: problems sorted by prompt length, each batch decoded until its last
answer ends; rows that end earlier, and those that fill up the last batch, are decoded for nothing. Continuous:
`stream_answers`, as used by `grpojax eval` and the evaluations of a run. Checked first: both give the same answers at
every size.
"""

import argparse
import functools
from typing import Any

import jax
import timing

from grpojax.qwen.weights import Policy, load_policy
from grpojax.tasks.problems import load_problems
from grpojax.tasks.prompts import DEFAULT_TEMPLATE, render_prompt
from grpojax.training.rollout import make_rollouts
from grpojax.training.sampling import GREEDY
from grpojax.training.stream import stream_answers

Answers = list[list[int]]


def main() -> None:
    parser = timing.make_parser(__doc__)
    parser.add_argument("--model", default="tiny-base", help="embedded model or folder (default: tiny-base)")
    parser.add_argument("--dataset", default="arithmetic", help="as for grpojax eval (default: arithmetic)")
    parser.add_argument("--problems", type=int, nargs="+", default=[200, 512], help="how many (default: 200 512)")
    parser.add_argument("--new", type=int, default=256, help="token budget of an answer (default: 256)")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 64])
    args = parser.parse_args()
    policy = load_policy(args.model, dtype="float32")
    rows = [row for count in args.problems for row in rows_of(policy, count, args)]
    timing.report(args, rows, f"{args.model}, greedy, up to {args.new} tokens.")


def rows_of(policy: Policy, count: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    problems = load_problems(args.dataset, "eval", limit=count)
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text, DEFAULT_TEMPLATE), thinking=True) for p in problems]
    keys = jax.random.split(jax.random.key(0), count)  # greedy answers use no random numbers
    ways = {"static": static_batches, "continuous": continuous_batching}
    runs, expected = {}, None
    for size in args.batches:
        for name, way in ways.items():
            run = functools.partial(way, policy, prompts, keys, args.new, size)
            answers = run()  # compiles
            expected = expected or answers
            differing = sum(a != b for a, b in zip(answers, expected, strict=True))
            if differing:
                raise SystemExit(f"{differing} answers differ with {name} batches of {size}; nothing is timed")
            runs[size, name] = run
    seconds = timing.median_of(runs, args.repeats)
    lengths = [len(answer) for answer in expected]
    rows = []
    for size in args.batches:
        ordered = [lengths[i] for i in _order(prompts)]
        steps = sum(max(ordered[at : at + size]) for at in range(0, count, size))
        static, continuous = seconds[size, "static"], seconds[size, "continuous"]
        rows.append({
            "problems": count, "tokens": sum(lengths), "longest": max(lengths), "batch": size,
            "rows decoded after their end": f"{100 * (1 - sum(lengths) / (steps * min(size, count))):.0f} %",
            "static s": static, "continuous s": continuous, "speed-up": f"{static / continuous:.2f} times",
        })  # fmt: skip
    return rows


def static_batches(policy: Policy, prompts: list[list[int]], keys: jax.Array, new: int, size: int) -> Answers:
    answers: Answers = [[] for _ in prompts]
    order, size = _order(prompts), min(size, len(prompts))
    for at in range(0, len(order), size):
        batch = order[at : at + size]
        whole = (batch * size)[:size]
        out = make_rollouts(policy, policy.params, [prompts[i] for i in whole], keys[0], GREEDY, 1, new)
        for row, i in enumerate(batch):
            answers[i] = out.answer_ids(row)
    return answers


def continuous_batching(policy: Policy, prompts: list[list[int]], keys: jax.Array, new: int, size: int) -> Answers:
    answers: Answers = [[] for _ in prompts]
    for group in stream_answers(policy, policy.params, prompts, keys, GREEDY, 1, new, size):
        for answered in group:
            (answers[answered.prompt],) = answered.answers
    return answers


def _order(prompts: list[list[int]]) -> list[int]:
    return sorted(range(len(prompts)), key=lambda i: len(prompts[i]))


if __name__ == "__main__":
    main()
