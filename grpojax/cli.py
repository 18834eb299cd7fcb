"""The commands other than training, one thin function each."""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpojax.errors import InputError
from grpojax.flags import Parser, add_settings, exit_code, typed_settings

if TYPE_CHECKING:
    from grpojax.qwen.weights import Policy
    from grpojax.records import EvalRow
    from grpojax.tasks.problems import Problem
    from grpojax.training.sampling import Sampler

PROGRESS_SECONDS = 10.0
"""How often a long evaluation reports its progress."""


def main(argv: list[str] | None = None) -> int:
    """`grpojax COMMAND ...`; returns the exit code, 2 for bad input."""
    return exit_code(lambda: _run(argv))


def _run(argv: list[str] | None) -> int | None:
    args = _parser().parse_args(argv)
    return args.command(args)


def _parser() -> Parser:
    parser = Parser(prog="grpojax", description="GRPO for Qwen language models in JAX. Train with `python run.py` or `grpojax train`.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name, function, summary):
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=function)
        return sub

    command("train", _train, "train a model; the same as run.py")
    sub = commands.choices["train"]
    from grpojax.config import RunConfig

    add_settings(sub, RunConfig)

    sub = command("eval", _eval, "accuracy of a model or checkpoint, or two evaluations compared")
    _add_model(sub)
    sub.add_argument("--dataset", default="arithmetic", help="arithmetic, gsm8k, math500, or a .json/.jsonl file")
    sub.add_argument("--limit", type=int, help="evaluate only the first so many problems (default: all)")
    sub.add_argument("--max-new-tokens", type=int, help="token budget of an answer (default: 512, or what the context leaves)")
    sub.add_argument("--prompt-template", help="file with the prompt; {problem} marks the place of the problem")
    sub.add_argument("--samples", type=int, default=1, help="answers per problem, for pass@k and a majority vote (default: 1)")
    sub.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    sub.add_argument("--top-p", type=float, default=1.0, help="1 keeps every token (default)")
    sub.add_argument("--top-k", type=int, default=0, help="0 keeps every token (default)")
    sub.add_argument("--seed", type=int, default=42, help="decides the samples (default: 42)")
    sub.add_argument(
        "--extract", choices=("boxed", "boxed-or-last-number"), default="boxed",
        help="which answer counts: the last box, as in training (default), or the last number if there is no box; both are printed",
    )  # fmt: skip
    sub.add_argument("--grader", default="grpojax", help="who compares answers: grpojax, book, math-verify (default: grpojax)")
    sub.add_argument("--batch-size", type=int, help="answers decoded together; changes speed and memory only (default: what fits)")
    sub.add_argument(
        "--out", metavar="FILE.jsonl",
        help="file for one row per problem, written when it is finished; after an interruption the same command continues",
    )  # fmt: skip
    sub.add_argument(
        "--compare", nargs=2, metavar=("A.jsonl", "B.jsonl"),
        help="instead of evaluating, compare two files of --out or of a run's evals/ problem by problem",
    )  # fmt: skip

    sub = command("sample", _sample, "answer a question with a model or checkpoint")
    _add_model(sub)
    sub.add_argument("question", help="the question")
    sub.add_argument("--raw", action="store_true", help="use the question itself as the prompt, without the template")
    sub.add_argument("--max-new-tokens", type=int, help="token budget of an answer (default: 512, or what the context leaves)")
    sub.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    sub.add_argument("--top-p", type=float, default=1.0, help="1 keeps every token")
    sub.add_argument("--top-k", type=int, default=0, help="0 keeps every token")
    sub.add_argument("--count", type=int, default=1, help="how many answers")
    sub.add_argument("--seed", type=int, default=42, help="decides the samples")
    sub.add_argument("--prompt-template", help="file with the prompt; {problem} marks the place of the problem")

    sub = command("plot", _plot, "draw the chapter's figures from run folders or metrics files")
    sub.add_argument("runs", nargs="+", metavar="RUN", help="run folders or metrics.csv files")
    sub.add_argument("--out", help="folder for the pictures (default: plots/ in the run, or the current folder's plots/)")
    sub.add_argument("--window", type=int, default=20, help="steps of the moving average")

    sub = command("variants", _variants, "list the variants, or explain one")
    sub.add_argument("--explain", metavar="NAME", help="the variant's mathematics, numbers and sources")

    sub = command("export", _export, "write a model or checkpoint as a Hugging Face folder")
    _add_model(sub)
    sub.add_argument("out", help="folder to write")

    sub = command("convert", _convert, "turn a checkpoint into an Orbax one, which loads faster, or back")
    sub.add_argument("source", help="folder, hub name, or .pth file of the book")
    sub.add_argument("out", help="folder to write")
    sub.add_argument("--to", choices=("orbax", "huggingface"), default="orbax", help="the format to write")
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", "--checkpoint", dest="model", default="tiny-base",
        help="embedded model, folder, hub name, a run folder (its newest checkpoint), or one of its checkpoints/STEP",
    )  # fmt: skip
    parser.add_argument(
        "--tokenizer-kind", choices=("base", "reasoning"), help="plain prompts, or chat turns (default: by the checkpoint's stop ids)"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the weights")
    parser.add_argument(
        "--thinking", action=argparse.BooleanOptionalAction, default=True, help="let a reasoning model think; if off, its prompt closes an empty think block"
    )


def _train(args: argparse.Namespace) -> int:
    from grpojax.config import RunConfig
    from grpojax.runner import run

    return run(*typed_settings(RunConfig, args))


def _eval(args: argparse.Namespace) -> None:
    from grpojax.reporting.evaluation import format_comparison, format_report, open_results

    if args.compare:
        print(format_comparison(*args.compare, extract=args.extract))
        return

    from grpojax.qwen.sources import model_files
    from grpojax.inputs import EVAL_SEED, open_policy
    from grpojax.process import prepare_process
    from grpojax.grading.grader import Grader
    from grpojax.tasks.problems import load_problems
    from grpojax.tasks.prompts import render_prompt
    from grpojax.training.evaluate import answer_problems
    from grpojax.training.rollout import check_context

    prepare_process()
    _check_at_least_1("samples", args.samples)
    if args.batch_size is not None:
        _check_at_least_1("batch_size", args.batch_size)
    _check_seed(args.seed)
    sampler, grader = _eval_sampler(args), Grader(args.grader)
    problems = load_problems(args.dataset, "eval", seed=EVAL_SEED, limit=args.limit)
    template, source = _template(args), model_files(args.model)
    policy = open_policy(str(source), args.dtype, kind=args.tokenizer_kind)
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text, template), args.thinking) for p in problems]
    budget = _budget(args, policy, prompts)
    check_context(policy, max(map(len, prompts)), budget)
    rows = []
    if args.out:
        settings = _eval_settings(args, policy, problems) | {"model": str(source.resolve()), "max_new_tokens": budget}
        rows = open_results(args.out, settings | {"template": template})
    print(_eval_title(args, len(problems), budget), flush=True)
    if rows:
        print(f"{len(rows)} of them are already in {args.out}", flush=True)
    start = time.perf_counter()
    answers = answer_problems(
        policy, policy.params, problems,
        max_new_tokens=budget, template=template, thinking=args.thinking, sampler=sampler, num_samples=args.samples,
        seed=args.seed, batch_size=args.batch_size, grader=grader, done={row.index for row in rows},
    )  # fmt: skip
    _collect(answers, rows, args.out, len(problems))
    print(format_report(rows, args.extract))
    if grader.timeouts:
        print(f"{grader.timeouts} answers hit a limit of time, memory or size when they were graded; they count as wrong")
    print(f"{time.perf_counter() - start:.1f} s")


def _collect(answers: "Iterator[EvalRow]", rows: "list[EvalRow]", out: str | None, count: int) -> None:
    """Appends the rows to the list and the file as they come, and reports progress."""
    from grpojax.reporting.evaluation import append_result, finish_results

    start = shown = time.perf_counter()
    try:
        for row in answers:
            if out:
                append_result(out, row)
            rows.append(row)
            if time.perf_counter() - shown > PROGRESS_SECONDS:
                shown = time.perf_counter()
                print(f"{len(rows)} of {count} problems after {shown - start:.0f} s", file=sys.stderr, flush=True)
        if out:
            finish_results(out)
    except KeyboardInterrupt:
        if out:
            print(f"{len(rows)} of {count} problems are in {out}; the same command continues", file=sys.stderr)
        raise


def _eval_sampler(args: argparse.Namespace) -> "Sampler":
    from grpojax.training.sampling import make_sampler

    sampler = make_sampler(args.temperature, args.top_p, args.top_k)
    if sampler.temperature is None and args.samples > 1:
        raise InputError(f"{args.samples} greedy answers to a problem are the same; add a --temperature such as 0.8.")
    if sampler.temperature is None and (args.top_p != 1 or args.top_k):
        raise InputError("top_p and top_k do nothing to greedy answers; leave them out, or add a --temperature.")
    return sampler


def _eval_settings(args: argparse.Namespace, policy: "Policy", problems: "list[Problem]") -> dict[str, Any]:
    """Settings that decide the rows of an evaluation, besides model, prompt and budget: the same for all rows of a file."""
    from grpojax import __version__

    asked = json.dumps([(problem.text, problem.answer) for problem in problems])
    return {
        "dataset": args.dataset,
        "problems": len(problems),
        "problems_sha256": hashlib.sha256(asked.encode()).hexdigest(),
        "tokenizer_kind": policy.tokenizer.kind,
        "thinking": args.thinking,
        "dtype": args.dtype,
        "compute_dtype": policy.config.compute_dtype,
        "samples": args.samples,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "seed": args.seed if args.temperature else None,
        "grader": args.grader,
        "grpojax": __version__,
    }


def _eval_title(args: argparse.Namespace, count: int, budget: int) -> str:
    how = "a greedy answer"
    if args.temperature:
        numbers = {"temperature": args.temperature, "top-p": args.top_p, "top-k": args.top_k, "seed": args.seed}
        off = {"top-p": 1, "top-k": 0}
        words = ", ".join(f"{name} {number}" for name, number in numbers.items() if number != off.get(name))
        how = f"{args.samples} answer{'s' * (args.samples != 1)} ({words})"
    return f"{args.model} on {args.dataset}: {count} problems, {how} of up to {budget} tokens for each"


def _sample(args: argparse.Namespace) -> None:
    import jax

    from grpojax.inputs import open_policy
    from grpojax.process import prepare_process
    from grpojax.tasks.prompts import render_prompt
    from grpojax.training.rollout import make_rollouts
    from grpojax.training.sampling import make_sampler

    prepare_process()
    _check_at_least_1("count", args.count)
    _check_seed(args.seed)
    if not args.question:
        raise InputError("the question is empty; write it between quotes.")
    sampler = make_sampler(args.temperature, args.top_p, args.top_k)
    template = _template(args)
    policy = open_policy(args.model, args.dtype, kind=args.tokenizer_kind)
    question = args.question if args.raw else render_prompt(args.question, template)
    prompt = policy.tokenizer.prompt_ids(question, args.thinking)
    rollouts = make_rollouts(
        policy, policy.params, [prompt], jax.random.key(args.seed), sampler, args.count, _budget(args, policy, [prompt])
    )
    for row in range(args.count):
        print(policy.tokenizer.decode(rollouts.answer_ids(row), skip_special=True))


def _plot(args: argparse.Namespace) -> None:
    from grpojax.reporting.plots import plot_runs

    first = Path(args.runs[0])
    out = Path(args.out) if args.out else (first / "plots" if len(args.runs) == 1 and first.is_dir() else Path("plots"))
    for path in plot_runs(args.runs, out, window=args.window):
        print(path)


def _variants(args: argparse.Namespace) -> None:
    from grpojax.describe import explain
    from grpojax.variants import VARIANTS, get_variant

    if args.explain:
        print(explain(get_variant(args.explain)))
    else:
        for name, row in VARIANTS.items():
            print(f"{name:18s} {row.recipe.summary}  [{row.recipe.source}]")


def _export(args: argparse.Namespace) -> None:
    from grpojax.qwen.weights import load_policy, save_policy

    save_policy(load_policy(args.model, dtype=args.dtype, kind=args.tokenizer_kind), args.out)
    print(args.out)


def _convert(args: argparse.Namespace) -> None:
    from grpojax.qwen.weights import convert_checkpoint

    convert_checkpoint(args.source, args.out, to=args.to)
    print(args.out)


def _template(args: argparse.Namespace) -> str:
    from grpojax.tasks.prompts import DEFAULT_TEMPLATE, load_template

    return load_template(args.prompt_template) if args.prompt_template else DEFAULT_TEMPLATE


def _budget(args: argparse.Namespace, policy: "Policy", prompts: list[list[int]]) -> int:
    """The token budget of an answer: as given, or 512, or what the model's context leaves."""
    if args.max_new_tokens is not None:
        _check_at_least_1("max_new_tokens", args.max_new_tokens)
        return args.max_new_tokens
    return max(1, min(512, policy.config.max_position_embeddings - max(map(len, prompts))))


def _check_at_least_1(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name} is {value}; it must be a whole number, 1 or more.")


def _check_seed(seed: int) -> None:
    from grpojax.config import RunConfig
    from grpojax.settings import check_setting, settings_of

    check_setting(settings_of(RunConfig)["seed"], seed)
