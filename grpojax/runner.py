"""A training run from flags to run folder: load, train, evaluate, save, show."""

import dataclasses
import importlib.metadata
import json
import platform
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from grpojax.config import RunConfig
from grpojax.describe import notices
from grpojax.errors import InputError
from grpojax.grading.grader import Grader
from grpojax.inputs import Inputs, read_inputs
from grpojax.loss.objectives import clip_first_printing
from grpojax.process import prepare_process
from grpojax.records import Evaluation, reward_column
from grpojax.reporting.metrics import read_evaluations
from grpojax.reporting.plots import plot_runs
from grpojax.reporting.progress import Display, progress_display
from grpojax.reporting.runlog import RunLog
from grpojax.tasks.problems import has_eval_split
from grpojax.training import stream
from grpojax.training.checkpoint import checkpoint_steps, load_checkpoint, prune_checkpoints, save_checkpoint
from grpojax.training.evaluate import evaluate
from grpojax.training.rollout import generate
from grpojax.training.state import TrainState, any_deleted, initial_state, run_optimizer, run_variant
from grpojax.training.train import train
from grpojax.training.update import score, update_in_place

PROGRAMS = {
    "generate": generate, "score": score, "update": update_in_place, "admit": stream.admit, "decode": stream.decode,
}  # fmt: skip
"""The compiled programs of a run; the last two are those of an evaluation."""


@dataclasses.dataclass
class _Current:
    """What changes during a run. It holds the only reference to the state: weights of earlier steps are not kept."""

    state: TrainState
    stopped_by: int | None = None  # Ctrl-C or SIGTERM, which asked the run to stop after the step under way


def run(config: RunConfig, typed: set[str] | None = None) -> int:
    """Trains and writes a run folder. Returns the exit code: 0, or 128 + n if signal n stopped the run.

    Args:
      config: the settings.
      typed: names of the settings the user gave, which must agree with those of a resumed run; None: those that differ
        from their defaults.

    Raises:
      InputError: before anything is written, if a setting or an input cannot be used.
      RunError: if training cannot continue; the last good state is saved first.
    """
    prepare_process()
    config, recorded = _recorded_settings(config, typed) if config.resume else (config.resolved(), None)
    folder = Path(config.out or _default_out(config))
    grader = Grader(config.grader)
    inputs = read_inputs(config, recorded)
    if config.resume:
        optimizer, moment_dtype = run_optimizer(config), config.moment_dtype
        current = _Current(load_checkpoint(folder / "checkpoints", inputs.policy, optimizer, moment_dtype))
        if current.state.step >= config.steps:
            raise InputError(f"{folder} has done all its {config.steps} steps; give a larger --steps to continue.")
        log = RunLog.resume(folder, current.state.step)
        log.settings(_run_record(config, inputs))
    else:
        current = _Current(initial_state(config, inputs.policy.params))
        columns = tuple(reward_column(name) for name in config.make_variant().recipe.rewards)
        log = RunLog.create(folder, _run_record(config, inputs), more_columns=columns)
    if "kl_coeff" not in run_variant(config, inputs.problems).loss.numbers:  # only a KL term needs the starting weights
        inputs = dataclasses.replace(inputs, policy=dataclasses.replace(inputs.policy, params={}))
    start, first_step = time.perf_counter(), current.state.step
    with _stop_signals(current), progress_display(config.steps, first_step) as display:
        display.message(_headline(config, inputs, current.state, folder))
        for line in _notices(config, inputs):
            display.message(f"note: {line}")
        display.message("compiling or loading the programs of the first step; the next run finds them on disk")
        if config.resume:
            display.message(f"resuming after step {first_step}")
        elif config.eval_on_checkpoint:
            evaluation = _evaluate(config, inputs, current.state, grader)
            log.evaluation(evaluation)
            right = f"({evaluation.correct}/{evaluation.total} of {evaluation.dataset})"
            display.message(f"{inputs.accuracy_name} before training: {evaluation.accuracy:.1f} % {right}")
        _train(config, inputs, current, grader, log, display)
        outcome = _outcome(config, folder, current.state, time.perf_counter() - start, grader)
        log.summary(outcome)
        if current.state.step > first_step:
            plot_runs([folder], folder / "plots")
        for line in _closing_lines(outcome, inputs, folder, current.stopped_by):
            display.message(line)
    return 0 if current.stopped_by is None or current.state.step == config.steps else 128 + current.stopped_by


def _train(
    config: RunConfig, inputs: Inputs, current: _Current, grader: Grader, log: RunLog, display: Display
) -> None:
    """The loop with its checkpoints. On any error the last complete state is saved before the error is raised again."""
    checkpoints = log.folder / "checkpoints"

    def save(reached: TrainState) -> Path:
        path = save_checkpoint(checkpoints, inputs.policy, reached)
        saved = checkpoint_steps(checkpoints)  # step 0 has an accuracy but no checkpoint
        accuracies = {step: accuracy for step, accuracy in read_evaluations(log.folder) if step in saved}
        prune_checkpoints(checkpoints, config.keep_checkpoints, max(accuracies, key=accuracies.get, default=None))
        return path

    steps = train(config, inputs.policy, inputs.problems, current.state, inputs.template, grader)
    try:
        for current.state, record in steps:
            last = current.state.step == config.steps or current.stopped_by is not None
            saving = last or (config.checkpoint_every and current.state.step % config.checkpoint_every == 0)
            if saving and config.eval_on_checkpoint and current.stopped_by is None:
                record = dataclasses.replace(record, evaluation=_evaluate(config, inputs, current.state, grader))
            log.append(record)  # first: a resumed run repeats a row without checkpoint, but misses the reverse
            if saving:
                record = dataclasses.replace(record, checkpoint=str(save(current.state)))
            display.update(record)
            if last:
                break
    except BaseException as error:
        good = getattr(error, "state", None) or current.state
        if good.step > 0 and not any_deleted((good.params, good.opt_state)):
            save(good)
        raise


def _evaluate(config: RunConfig, inputs: Inputs, state: TrainState, grader: Grader) -> Evaluation:
    return evaluate(
        inputs.policy, state.params, inputs.eval_problems,
        dataset=config.eval_dataset or config.dataset, step=state.step, max_new_tokens=config.max_new_tokens,
        template=inputs.template, thinking=config.thinking, grader=grader,
    )  # fmt: skip


def _default_out(config: RunConfig) -> str:
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.model).name) or "model"
    variant = config.variant.replace(":", ".")  # module:NAME; not every file system takes a colon
    return f"runs/{variant}-{model}-{time.strftime('%Y%m%d-%H%M%S')}"


_MAY_CHANGE = {"out", "resume", "steps", "checkpoint_every", "keep_checkpoints"}
"""Settings that may be given again to a resumed run: how long to train and what to keep."""


def _recorded_settings(given: RunConfig, typed: set[str] | None) -> tuple[RunConfig, dict[str, Any] | None]:
    """The settings of the run to resume, and the record of its inputs (None: an earlier version kept none)."""
    if given.out is None:
        raise InputError("--resume needs --out, the folder of the run to continue.")
    path = Path(given.out) / "config.json"
    try:
        record = json.loads(path.read_text("utf-8"))
        recorded = RunConfig(**record["config"])
    except FileNotFoundError:
        raise InputError(f"{given.out} holds no run to resume (no config.json); check --out.") from None
    except (ValueError, KeyError, TypeError) as error:
        hint = "start a new run with another --out."
        raise InputError(f"{path} does not hold the settings of a run ({error}); {hint}") from None
    if typed is None:
        typed = {name for name, value in vars(RunConfig()).items() if getattr(given, name) != value}
    for name in sorted(typed - _MAY_CHANGE):
        value, before = getattr(given, name), getattr(recorded, name)
        if value != before:
            raise InputError(
                f"--{name.replace('_', '-')} is {value}, but the run in {given.out} was made with {before}; leave the "
                "flag out, or start a new run with another --out."
            )
    config = dataclasses.replace(recorded, **{name: getattr(given, name) for name in typed & _MAY_CHANGE}).resolved()
    inputs = record.get("inputs")
    if inputs is None and config.eval_on_checkpoint and not (config.eval_dataset or has_eval_split(config.dataset)):
        raise InputError(
            f"the run in {given.out} was made by an earlier version, which evaluated {config.dataset} on its training "
            "problems; start a new run with another --out."
        )
    return config, inputs


def _run_record(config: RunConfig, inputs: Inputs) -> dict[str, Any]:
    """What config.json holds: settings, inputs, versions and device, of a resumed run those it was resumed with."""
    packages = ("grpojax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers", "sympy")
    device, variant = jax.devices()[0], config.make_variant()
    return {
        "config": dataclasses.asdict(config),
        "variant_numbers": variant.loss.numbers,
        "variant_rewards": variant.recipe.rewards,
        "grader": config.grader,
        "inputs": inputs.record(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "git_commit": _git_commit(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    checkout = Path(__file__).parents[1]
    if not (checkout / ".git").exists():  # installed: a repository around it belongs to something else
        return None
    try:
        return subprocess.check_output(
            ["git", "rev-parse", "HEAD"], cwd=checkout, stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None


@contextmanager
def _stop_signals(current: _Current) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks the run to stop after the step under way; a second one stops it at once."""

    def handle(number, _frame):
        if current.stopped_by is not None:
            raise KeyboardInterrupt
        current.stopped_by = number

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _headline(config: RunConfig, inputs: Inputs, state: TrainState, folder: Path) -> str:
    evaluated = f", evaluated on {inputs.evaluated_on}" if inputs.evaluated_on else ""
    size = sum(array.size for array in jax.tree.leaves(state.params)) / 1e6
    return (
        f"{config.variant} on {config.model} ({size:.1f} M parameters, {jax.devices()[0].device_kind}, "
        f"{inputs.policy.config.compute_dtype} products), "
        f"{len(inputs.problems)} problems of {config.dataset}{evaluated}, "
        f"{config.prompts_per_step} x {config.num_rollouts} rollouts a step -> {folder}"
    )


def _notices(config: RunConfig, inputs: Inputs) -> Iterator[str]:
    """One sentence for each setting that does nothing, or not what its name says."""
    variant, tokenizer = config.make_variant(), inputs.policy.tokenizer
    numbers, recipe = variant.loss.numbers, variant.recipe
    yield from notices(variant, config.inner_epochs * config.minibatches)
    if inputs.trained_on:
        yield f"{inputs.trained_on} of the {len(inputs.eval_problems)} evaluation problems are also trained on"
    if numbers.keys() - run_variant(config, inputs.problems).loss.numbers.keys():
        yield "kl_domains gives every training problem a KL weight of 0, so there is no KL term and no reference model"
    unknown = set(recipe.kl_domains) - {problem.domain for problem in inputs.problems} if "kl_coeff" in numbers else ()
    if unknown and config.kl_domains is not None:
        yield f"no training problem is of domain {', '.join(sorted(unknown))}, which kl_domains names"
    if config.temperature == 0:
        yield "at temperature 0 all answers of a group are equal, so no group has anything to teach"
    if recipe.keep_sampling_mask and config.top_p == 1 and config.top_k == 0:
        yield "with top_p 1 and top_k 0 every id could be sampled, so keep_sampling_mask changes nothing"
    if {"tis_cap", "sequence_mask_cap"} & set(numbers) and inputs.policy.config.compute_dtype == "float32":
        yield (
            "in float32 trainer and sampler agree to rounding, so the weight of the one over the other is 1 "
            "(see logp_gap)"
        )
    if (recipe.overlong_cache or 0) > config.max_new_tokens:
        yield "overlong_cache is larger than the budget, so every answer is punished from its first token on"
    if config.clip_low is not None and variant.loss.objective is clip_first_printing:
        yield "the clip as first printed never uses clip_low"
    if "format" in recipe.rewards and tokenizer.kind == "reasoning" and not config.thinking:
        yield "without thinking the prompt itself closes the think block, so no answer can earn the format reward"


def _outcome(config: RunConfig, folder: Path, state: TrainState, seconds: float, grader: Grader) -> dict[str, Any]:
    """What summary.json holds."""
    accuracies = dict(read_evaluations(folder))  # by step, in order
    best, last = max(accuracies, key=accuracies.get, default=None), max(accuracies, default=0) or None
    return {
        "variant": config.variant,
        "model": config.model,
        "steps_done": state.step,
        "total_steps": config.steps,
        "seconds": seconds,
        "eval_acc_before": accuracies.get(0),
        "eval_acc_last": accuracies.get(last),
        "last_eval_step": last,
        "eval_acc_best": accuracies.get(best),
        "best_step": best,
        "checkpoints": checkpoint_steps(folder / "checkpoints"),
        "compilations": {name: program._cache_size() for name, program in PROGRAMS.items()},  # in this process
        "grading_timeouts": grader.timeouts,
    }


def _closing_lines(outcome: dict[str, Any], inputs: Inputs, folder: Path, stopped_by: int | None) -> Iterator[str]:
    done, total = outcome["steps_done"], outcome["total_steps"]
    if stopped_by is not None and done < total:
        yield f"stopped by {signal.Signals(stopped_by).name} after step {done}; continue with --resume --out {folder}"
    before, after = outcome["eval_acc_before"], outcome["eval_acc_last"]
    if before is not None and after is not None:
        step = outcome["last_eval_step"]
        yield f"{inputs.accuracy_name}: {before:.1f} % before training, {after:.1f} % after step {step}"
    counts = ", ".join(f"{name} {count}" for name, count in outcome["compilations"].items())
    yield f"{outcome['seconds']:.0f} s; programs compiled: {counts}"
    yield f"metrics, samples, plots and checkpoints: {folder}"
