"""How many answers a second does an evaluation make, by batch size, and what could refilling finished rows gain?

    python benchmarks/evaluation.py

The embedded model's greedy answers to held-out arithmetic problems, generated and graded as `grpojax eval` does. A
batch is decoded until its last answer ends; rows that ended before are decoded too, for nothing, and so are the rows
that fill up the last batch. Handing finished rows to waiting problems (continuous batching) could at most save that
share of the seconds of decoding, which are all but those of the same evaluation with answers of one token (prefill,
tokenizer, grading). Every batch size gives the same answers: checked first.
"""

import functools
import time
from typing import Any

import timing

from grpojax.qwen.weights import load_policy
from grpojax.tasks.grading import Grader
from grpojax.tasks.problems import load_problems
from grpojax.training.evaluate import answer_problems


def main() -> None:
    parser = timing.make_parser(__doc__)
    parser.add_argument("--model", default="tiny-base", help="embedded model or folder (default: tiny-base)")
    parser.add_argument("--problems", type=int, default=512, help="how many (default: 512)")
    parser.add_argument("--new", type=int, default=256, help="most tokens of an answer (default: 256)")
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    args = parser.parse_args()
    policy = load_policy(args.model, dtype="float32")
    problems, grader = load_problems("arithmetic", "eval", limit=args.problems), Grader()

    def answer(size: int, new: int = args.new) -> list[dict[str, Any]]:
        return list(
            answer_problems(policy, policy.params, problems, max_new_tokens=new, batch_size=size, grader=grader)
        )

    answers, first = {}, {}
    for size in args.batches:
        start = time.perf_counter()
        answers[size] = answer(size)
        first[size] = time.perf_counter() - start
        texts = {row["index"]: row["text"] for row in answers[size]}
        if size == args.batches[0]:
            expected = texts
        differing = sum(texts[i] != expected[i] for i in expected)
        if differing:
            raise SystemExit(f"batches of {args.batches[0]} and {size} differ in {differing} answers; nothing is timed")
        answer(size, 1)  # compiles
    runs = {(size, new): functools.partial(answer, size, new) for size in args.batches for new in (1, args.new)}
    all_seconds = timing.median_of(runs, args.repeats)
    rows = []
    for size in args.batches:
        lengths = [row["length"] for row in answers[size]]  # in the order in which they were decoded
        steps = sum(max(lengths[at : at + size]) for at in range(0, len(lengths), size))
        seconds, decoding = all_seconds[size, args.new], all_seconds[size, args.new] - all_seconds[size, 1]
        idle = 1 - sum(lengths) / (steps * size)
        rows.append({
            "batch": size, "seconds": seconds, "of decoding": decoding, "answers/s": len(lengths) / seconds,
            "tokens/s": sum(lengths) / seconds, "steps": steps, "rows decoded after their end": f"{100 * idle:.0f} %",
            "refilling gains at most": f"{seconds / (seconds - idle * decoding):.2f} times",
            "compile s": first[size] - seconds,
        })  # fmt: skip
    timing.report(
        args, rows, f"{args.model}, {len(problems)} problems, greedy, up to {args.new} tokens; "
        f"{sum(lengths) / len(lengths):.1f} on average, the longest {max(lengths)}.",
    )  # fmt: skip


if __name__ == "__main__":
    main()
