"""The commands other than training, one thin function each."""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpojax import __version__
from grpojax.config import DTYPES, GRADERS, KINDS, MAX_SEED, RunConfig
from grpojax.describe import explain
from grpojax.errors import InputError
from grpojax.flags import Parser, add_settings, checked_settings, exit_code, typed_settings
from grpojax.grading.grader import Grader
from grpojax.process import prepare_process
from grpojax.records import EvalRow
from grpojax.reporting.evaluation import append_result, finish_results, format_comparison, format_report, open_results
from grpojax.reporting.plots import plot_runs
from grpojax.settings import setting
from grpojax.tasks.problems import Problem, load_problems
from grpojax.tasks.prompts import load_template, render_prompt
from grpojax.training.sampling import Sampler, make_sampler
from grpojax.variants import VARIANTS, get_variant

if TYPE_CHECKING:  # what needs the model is imported by the commands that use it
    from grpojax.qwen.weights import Policy

PROGRESS_SECONDS = 10.0
"""How often a long evaluation reports its progress."""


@dataclass(frozen=True)
class ModelSettings:
    """The model."""

    model: str = setting(
        "tiny-base",
        "embedded model, folder, hub name, a run folder (its newest checkpoint), or one of its checkpoints/STEP",
        alias="checkpoint",
    )
    tokenizer_kind: str | None = setting(
        None, "plain prompts, or chat turns (default: by the checkpoint's stop ids)", choices=KINDS
    )
    dtype: str = setting("float32", "dtype of the weights", choices=DTYPES)


@dataclass(frozen=True)
class _AnswerSettings(ModelSettings):
    """How it answers."""

    thinking: bool = setting(True, "let a reasoning model think; if off, its prompt closes an empty think block")
    prompt_template: str | None = setting(None, "file with the prompt; {problem} marks the place of the problem")
    max_new_tokens: int | None = setting(
        None, "token budget of an answer (default: 512, or what the context leaves)", at_least=1
    )
    temperature: float = setting(0.0, "sampling temperature; 0 is greedy", at_least=0)
    top_p: float = setting(
        1.0, "sample from the smallest set of tokens with this much probability; 1 keeps all", above=0, at_most=1
    )
    top_k: int = setting(0, "sample from the k most likely tokens; 0 keeps all", at_least=0)
    seed: int = setting(42, "decides the samples", at_least=0, at_most=MAX_SEED)


@dataclass(frozen=True)
class EvalSettings(_AnswerSettings):
    """What is evaluated."""

    dataset: str = setting("arithmetic", "arithmetic, gsm8k, math500, or a .json/.jsonl file")
    limit: int | None = setting(None, "how many problems to evaluate, from the first on (default: all)", at_least=1)
    samples: int = setting(1, "answers per problem, for pass@k and a majority vote", at_least=1)
    extract: str = setting(
        "boxed",
        "which answer counts: the last box, as in training, or the last number if there is no box; both are printed",
        choices=("boxed", "boxed-or-last-number"),
    )
    grader: str = setting("grpojax", "who compares answers", choices=GRADERS)
    batch_size: int | None = setting(
        None, "answers decoded together; changes speed and memory only (default: what fits)", at_least=1
    )
    out: str | None = setting(
        None,
        "file.jsonl for one row per problem, written when it is finished; after an interruption the same command "
        "continues",
    )


@dataclass(frozen=True)
class SampleSettings(_AnswerSettings):
    """What is sampled."""

    raw: bool = setting(False, "use the question itself as the prompt, without the template")
    count: int = setting(1, "how many answers", at_least=1)


def main(argv: list[str] | None = None) -> int:
    """`grpojax COMMAND ...`; returns the exit code, 2 for bad input."""

    def run() -> int | None:
        args = _parser().parse_args(argv)
        return args.command(args)

    return exit_code(run)


def _parser() -> Parser:
    description = "GRPO for Qwen language models in JAX. Train with `python run.py` or `grpojax train`."
    parser = Parser(prog="grpojax", description=description)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name, function, summary, settings=None):
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=function)
        if settings:
            add_settings(sub, settings)
        return sub

    command("train", _train, "train a model; the same as run.py", RunConfig)

    sub = command("eval", _eval, "accuracy of a model or checkpoint, or two evaluations compared", EvalSettings)
    sub.add_argument(
        "--compare", nargs=2, metavar=("A.jsonl", "B.jsonl"),
        help="instead of evaluating, compare two files of --out or of a run's evals/ problem by problem",
    )  # fmt: skip

    sub = command("sample", _sample, "answer a question with a model or checkpoint", SampleSettings)
    sub.add_argument("question", help="the question")

    sub = command("plot", _plot, "draw the chapter's figures from run folders or metrics files")
    sub.add_argument("runs", nargs="+", metavar="RUN", help="run folders or metrics.csv files")
    out = "folder for the pictures (default: plots/ in the run, or the current folder's plots/)"
    sub.add_argument("--out", help=out)
    sub.add_argument("--window", type=int, default=20, help="steps of the moving average")

    sub = command("variants", _variants, "list the variants, or explain one")
    sub.add_argument("--explain", metavar="NAME", help="the variant's mathematics, numbers and sources")

    sub = command("export", _export, "write a model or checkpoint as a Hugging Face folder", ModelSettings)
    sub.add_argument("out", help="folder to write")

    sub = command("convert", _convert, "turn a checkpoint into an Orbax one, which loads faster, or back")
    sub.add_argument("source", help="folder, hub name, or .pth file of the book")
    sub.add_argument("out", help="folder to write")
    to = "the format to write (default: orbax)"
    sub.add_argument("--to", choices=("orbax", "huggingface"), default="orbax", help=to)
    sub.add_argument("--dtype", choices=DTYPES, help="dtype of the written weights (default: the checkpoint's)")
    sub.add_argument("--kind", choices=KINDS, help="kind of the tokenizer (default: by the checkpoint's stop ids)")
    return parser


def _train(args: argparse.Namespace) -> int:
    from grpojax.runner import run

    return run(*typed_settings(RunConfig, args))


def _eval(args: argparse.Namespace) -> None:
    settings = checked_settings(EvalSettings, args)
    if args.compare:
        print(format_comparison(*args.compare, extract=settings.extract))
        return

    from grpojax.inputs import EVAL_SEED, open_policy
    from grpojax.qwen.sources import model_files
    from grpojax.training.evaluate import answer_problems
    from grpojax.training.rollout import check_context

    prepare_process()
    sampler, grader = _eval_sampler(settings), Grader(settings.grader)
    problems = load_problems(settings.dataset, "eval", seed=EVAL_SEED, limit=settings.limit)
    template, source = load_template(settings.prompt_template), model_files(settings.model)
    policy = open_policy(str(source), settings.dtype, kind=settings.tokenizer_kind)
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text, template), settings.thinking) for p in problems]
    budget = _budget(settings, policy, prompts)
    check_context(policy, max(map(len, prompts)), budget)
    rows = []
    if settings.out:
        more = {"model": str(source.resolve()), "max_new_tokens": budget, "template": template}
        rows = open_results(settings.out, _eval_record(settings, policy, problems) | more)
    print(_eval_title(settings, len(problems), budget), flush=True)
    if rows:
        print(f"{len(rows)} of them are already in {settings.out}", flush=True)
    start = time.perf_counter()
    answers = answer_problems(
        policy, policy.params, problems,
        max_new_tokens=budget, template=template, thinking=settings.thinking, sampler=sampler,
        num_samples=settings.samples, seed=settings.seed, batch_size=settings.batch_size, grader=grader,
        done={row.index for row in rows},
    )  # fmt: skip
    _collect(answers, rows, settings.out, len(problems))
    print(format_report(rows, settings.extract))
    if grader.timeouts:
        hit = f"{grader.timeouts} answers hit a limit of time, memory or size when they were graded"
        print(f"{hit}; they count as wrong")
    print(f"{time.perf_counter() - start:.1f} s")


def _collect(answers: Iterator[EvalRow], rows: list[EvalRow], out: str | None, count: int) -> None:
    """Appends the rows to the list and the file as they come, and reports progress."""
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


def _eval_sampler(settings: EvalSettings) -> Sampler:
    sampler = make_sampler(settings.temperature, settings.top_p, settings.top_k)
    if sampler.temperature is None and settings.samples > 1:
        raise InputError(
            f"{settings.samples} greedy answers to a problem are the same; add a --temperature such as 0.8."
        )
    if sampler.temperature is None and (settings.top_p != 1 or settings.top_k):
        raise InputError("top_p and top_k do nothing to greedy answers; leave them out, or add a --temperature.")
    return sampler


def _eval_record(settings: EvalSettings, policy: "Policy", problems: list[Problem]) -> dict[str, Any]:
    """What decides the rows of an evaluation besides model, prompt and budget, and so is the same for a file."""
    from grpojax.inputs import json_sha256

    return {
        "dataset": settings.dataset,
        "problems": len(problems),
        "problems_sha256": json_sha256([(problem.text, problem.answer) for problem in problems]),
        "tokenizer_kind": policy.tokenizer.kind,
        "thinking": settings.thinking,
        "dtype": settings.dtype,
        "compute_dtype": policy.config.compute_dtype,
        **{name: getattr(settings, name) for name in ("samples", "temperature", "top_p", "top_k")},
        "seed": settings.seed if settings.temperature else None,
        "grader": settings.grader,
        "grpojax": __version__,
    }


def _eval_title(settings: EvalSettings, count: int, budget: int) -> str:
    how = "a greedy answer"
    if settings.temperature:
        off = {"top_p": 1, "top_k": 0}
        shown = [name for name in ("temperature", "top_p", "top_k", "seed") if getattr(settings, name) != off.get(name)]
        words = ", ".join(f"{name.replace('_', '-')} {getattr(settings, name)}" for name in shown)
        how = f"{settings.samples} answer{'s' * (settings.samples != 1)} ({words})"
    return f"{settings.model} on {settings.dataset}: {count} problems, {how} of up to {budget} tokens for each"


def _sample(args: argparse.Namespace) -> None:
    import jax

    from grpojax.inputs import open_policy
    from grpojax.training.rollout import make_rollouts

    settings = checked_settings(SampleSettings, args)
    prepare_process()
    if not args.question:
        raise InputError("the question is empty; write it between quotes.")
    sampler = make_sampler(settings.temperature, settings.top_p, settings.top_k)
    template = load_template(settings.prompt_template)
    policy = open_policy(settings.model, settings.dtype, kind=settings.tokenizer_kind)
    question = args.question if settings.raw else render_prompt(args.question, template)
    prompts = [policy.tokenizer.prompt_ids(question, settings.thinking)]
    key, budget = jax.random.key(settings.seed), _budget(settings, policy, prompts)
    rollouts = make_rollouts(policy, policy.params, prompts, key, sampler, settings.count, budget)
    for row in range(settings.count):
        print(policy.tokenizer.decode(rollouts.answer_ids(row), skip_special=True))


def _plot(args: argparse.Namespace) -> None:
    first = Path(args.runs[0])
    out = Path(args.out) if args.out else (first / "plots" if len(args.runs) == 1 and first.is_dir() else Path("plots"))
    for path in plot_runs(args.runs, out, window=args.window):
        print(path)


def _variants(args: argparse.Namespace) -> None:
    if args.explain:
        print(explain(get_variant(args.explain)))
    else:
        for name, row in VARIANTS.items():
            print(f"{name:18s} {row.recipe.summary}  [{row.recipe.source}]")


def _export(args: argparse.Namespace) -> None:
    from grpojax.qwen.weights import load_policy, save_policy

    settings = checked_settings(ModelSettings, args)
    save_policy(load_policy(settings.model, dtype=settings.dtype, kind=settings.tokenizer_kind), args.out)
    print(args.out)


def _convert(args: argparse.Namespace) -> None:
    from grpojax.qwen.weights import convert_checkpoint

    convert_checkpoint(args.source, args.out, args.to, args.dtype, args.kind)
    print(args.out)


def _budget(settings: _AnswerSettings, policy: "Policy", prompts: list[list[int]]) -> int:
    """The token budget of an answer: as given, or 512, or what the model's context leaves."""
    left = policy.config.max_position_embeddings - max(map(len, prompts))
    return settings.max_new_tokens or max(1, min(512, left))
