"""A training run from flags to run folder: load, train, evaluate, save, show."""

import ctypes
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from grpojax.config import RunConfig
from grpojax.describe import notices
from grpojax.errors import InputError
from grpojax.loss.objectives import clip_first_printing
from grpojax.qwen.weights import Policy, load_policy
from grpojax.records import Evaluation, StepRecord, reward_column
from grpojax.reporting.metrics import read_evaluations
from grpojax.reporting.plots import plot_runs
from grpojax.reporting.progress import Display, progress_display
from grpojax.reporting.runlog import RunLog
from grpojax.tasks.grading import Grader
from grpojax.tasks.problems import Problem, cache_folder, load_problems
from grpojax.tasks.prompts import DEFAULT_TEMPLATE, load_template, render_prompt
from grpojax.tasks.rewards import reward_function
from grpojax.training import stream
from grpojax.training.checkpoint import checkpoint_steps, load_checkpoint, prune_checkpoints, save_checkpoint
from grpojax.training.evaluate import evaluate
from grpojax.training.rollout import check_context, generate
from grpojax.training.train import TrainState, initial_state, run_optimizer, run_variant, train
from grpojax.training.update import score, update_in_place

EVAL_SEED = 0
"""Generated evaluation problems are the same in every run, so that accuracies can be compared."""

PROGRAMS = {
    "generate": generate, "score": score, "update": update_in_place, "admit": stream.admit, "decode": stream.decode,
}  # fmt: skip
"""The compiled programs of a run; the last two are those of an evaluation."""


@dataclasses.dataclass(frozen=True)
class _Inputs:
    """Everything a run reads before it writes anything."""

    policy: Policy
    problems: list[Problem]
    eval_problems: list[Problem]
    template: str


@dataclasses.dataclass
class _Current:
    """The state the run has reached. It is held here alone, so that the weights of no earlier step stay in memory."""

    state: TrainState


@dataclasses.dataclass
class _Stop:
    """Set by Ctrl-C or SIGTERM; the step under way is finished first."""

    signal: int | None = None


def run(config: RunConfig, typed: set[str] | None = None) -> int:
    """Trains, and leaves a run folder. Returns the exit code: 0, or 128 + n when signal n stopped the run.

    Args:
      config: the settings.
      typed: names of those the user gave, which a resumed run must agree with; None: those that are not the defaults.

    Raises:
      InputError: before anything was written, if a setting or an input cannot be used.
      RunError: if training cannot go on; the last good state is saved first.
    """
    prepare_process()
    config = _settings_of_run(config, typed) if config.resume else config.resolved()
    folder = Path(config.out or _default_out(config))
    grader = Grader(config.grader)
    inputs = _read_inputs(config)
    if config.resume:
        current = _Current(load_checkpoint(folder / "checkpoints", inputs.policy, run_optimizer(config), config.moment_dtype))
        if current.state.step >= config.steps:
            raise InputError(f"{folder} has done all its {config.steps} steps; give a larger --steps to go on.")
        log = RunLog.resume(folder, current.state.step)
        log.settings(_run_record(config))
    else:
        current = _Current(initial_state(config, inputs.policy.params))
        columns = tuple(reward_column(name) for name in config.make_variant().rewards)
        log = RunLog.create(folder, _run_record(config), more_columns=columns)
    if "kl_coeff" not in run_variant(config, inputs.problems).numbers:  # only a KL term compares with the starting weights
        inputs = dataclasses.replace(inputs, policy=dataclasses.replace(inputs.policy, params={}))
    start, first_step = time.perf_counter(), current.state.step
    with _stop_signals() as stop, progress_display(config.steps, first_step) as display:
        display.message(_headline(config, inputs, current.state, folder))
        for line in _notices(config, inputs):
            display.message(f"note: {line}")
        display.message("compiling the programs of the first step; the next run finds them on disk")
        if config.resume:
            display.message(f"resuming after step {first_step}")
        elif config.eval_on_checkpoint:
            evaluation = _evaluate(config, inputs, current.state, grader)
            log.evaluation(evaluation)
            display.message(_accuracy_line("before training", evaluation))
        _train(config, inputs, current, grader, log, display, stop)
        outcome = _outcome(config, folder, current.state, time.perf_counter() - start, grader)
        log.summary(outcome)
        if current.state.step > first_step:
            plot_runs([folder], folder / "plots")
        for line in _closing_lines(outcome, folder, stop):
            display.message(line)
    return 0 if stop.signal is None or current.state.step == config.steps else 128 + stop.signal


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # of mallopt(3)


def prepare_process() -> None:
    """Makes programs compile in less time, keeps them on disk, so that only the first run on a machine waits for them, and
    keeps freed memory for reuse. Before the first use of a device.
    """
    keep_freed_memory()
    compile_quickly()
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def keep_freed_memory() -> None:
    """Makes glibc, where it is the library, keep what is freed for the next request.

    A program's temporary memory, gigabytes of it, is asked for at each call and given back after it. By default glibc gets it
    from the system anew each time, page by page: half of the seconds of an update at Qwen3-0.6B's size.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
        libc.mallopt(_M_ARENA_MAX, 1)


def compile_quickly() -> None:
    """Sets flags with which XLA's CPU backend compiles our programs in two thirds of the time, to code of the same speed:
    their products are library calls. Before the first use of a device.

    What they do on an accelerator was not measured, so they are set where there is the processor alone. A flag that XLA
    does not know ends the process, so the one that may go is set for the versions that have it.
    """
    if not _processor_alone():
        return
    quick = {"xla_backend_optimization_level": "1"}
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        quick["xla_cpu_use_fusion_emitters"] = "false"
    flags = os.environ.get("XLA_FLAGS", "")
    new = [f"--{name}={value}" for name, value in quick.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *new]).strip()


def _processor_alone() -> bool:
    """Whether JAX can only find the processor: asked for nothing else, or installed with nothing else."""
    plugins = importlib.metadata.entry_points(group="jax_plugins") or importlib.util.find_spec("libtpu")
    return jax.config.jax_platforms == "cpu" or not plugins


def open_policy(model: str, param_dtype: str = "float32", compute_dtype: str | None = None, **options: Any) -> Policy:
    """load_policy with the compute dtype that suits the device: float32 on CPU, bfloat16 elsewhere.

    Raises:
      InputError: also if the model comes without a tokenizer.
    """
    compute_dtype = compute_dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    policy = load_policy(model, dtype=param_dtype, compute_dtype=compute_dtype, **options)
    if policy.tokenizer is None:
        raise InputError(f"{model} comes without tokenizer.json; put the checkpoint's own beside its weights.")
    return policy


def _train(
    config: RunConfig, inputs: _Inputs, current: _Current, grader: Grader, log: RunLog, display: Display, stop: _Stop
) -> None:
    """The loop with its checkpoints. On any error the last complete state is saved before the error goes on."""
    checkpoints = log.folder / "checkpoints"

    def save(reached: TrainState) -> Path:
        path = save_checkpoint(checkpoints, inputs.policy, reached)
        saved = checkpoint_steps(checkpoints)  # the untrained model has an accuracy too, but no checkpoint
        accuracies = {step: accuracy for step, accuracy in read_evaluations(log.folder) if step in saved}
        prune_checkpoints(checkpoints, config.keep_checkpoints, max(accuracies, key=accuracies.get, default=None))
        return path

    steps = train(config, inputs.policy, inputs.problems, current.state, inputs.template, grader)
    try:
        for current.state, record in steps:
            last = current.state.step == config.steps or stop.signal is not None
            if last or (config.checkpoint_every and current.state.step % config.checkpoint_every == 0):
                if config.eval_on_checkpoint and stop.signal is None:
                    record = _with_evaluation(record, _evaluate(config, inputs, current.state, grader))
                log.append(record)  # before the checkpoint: a row without checkpoint is made again, the reverse is lost
                record = dataclasses.replace(record, checkpoint=str(save(current.state)))
            else:
                log.append(record)
            display.update(record)
            if last:
                break
    except BaseException as error:
        good = getattr(error, "state", None) or current.state
        if good.step > 0 and not any(array.is_deleted() for array in jax.tree.leaves((good.params, good.opt_state))):
            save(good)
        raise


def _evaluate(config: RunConfig, inputs: _Inputs, state: TrainState, grader: Grader) -> Evaluation:
    return evaluate(
        inputs.policy, state.params, inputs.eval_problems,
        dataset=_eval_dataset(config), step=state.step, max_new_tokens=config.max_new_tokens,
        template=inputs.template, thinking=config.thinking, grader=grader,
    )  # fmt: skip


def _with_evaluation(record: StepRecord, evaluation: Evaluation) -> StepRecord:
    metrics = record.metrics | {"eval_acc": evaluation.accuracy}
    return dataclasses.replace(record, metrics=metrics, evaluation=evaluation)


def _read_inputs(config: RunConfig) -> _Inputs:
    variant = config.make_variant()
    template = load_template(config.prompt_template) if config.prompt_template else DEFAULT_TEMPLATE
    problems = load_problems(config.dataset, "train", seed=config.seed)
    eval_problems = []
    if config.eval_on_checkpoint:
        eval_problems = load_problems(_eval_dataset(config), "eval", seed=EVAL_SEED, limit=config.eval_on_checkpoint)
    policy = open_policy(
        config.model, config.param_dtype, config.compute_dtype, kind=config.tokenizer_kind, untie=config.untie_head
    )
    for name in variant.rewards:
        reward_function(name)
    if "format" in variant.rewards and policy.tokenizer.think_ids is None:
        raise InputError(
            f"{config.model} has no <think> tokens, so its answers cannot earn the format reward; choose a reasoning "
            "model, or --format-reward-weight 0."
        )
    used = problems[: config.steps * config.prompts_per_step * max(1, variant.dynamic_sampling)]
    lengths = [
        len(policy.tokenizer.prompt_ids(render_prompt(p.text, template), config.thinking)) for p in used + eval_problems
    ]
    check_context(policy, max(lengths), config.max_new_tokens)
    return _Inputs(policy, problems, eval_problems, template)


def _eval_dataset(config: RunConfig) -> str:
    return config.eval_dataset or config.dataset


def _default_out(config: RunConfig) -> str:
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.model).name) or "model"
    return f"runs/{config.variant}-{model}-{time.strftime('%Y%m%d-%H%M%S')}"


_MAY_CHANGE = ("out", "resume", "steps", "checkpoint_every", "keep_checkpoints")


def _settings_of_run(given: RunConfig, typed: set[str] | None) -> RunConfig:
    """The settings a run folder was made with; only how long to go on and what to keep may be given anew."""
    if given.out is None:
        raise InputError("--resume needs --out, the folder of the run to continue.")
    path = Path(given.out) / "config.json"
    try:
        recorded = RunConfig(**json.loads(path.read_text())["config"])
    except FileNotFoundError:
        raise InputError(f"{given.out} holds no run to resume (no config.json); check --out.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read as the settings of a run ({error}); start anew with another --out.") from None
    if typed is None:
        default = RunConfig()
        typed = {f.name for f in dataclasses.fields(RunConfig) if getattr(given, f.name) != getattr(default, f.name)}
    for name in sorted(typed - set(_MAY_CHANGE)):
        value, then = getattr(given, name), getattr(recorded, name)
        if value != then:
            raise InputError(
                f"--{name.replace('_', '-')} is {value}, but the run in {given.out} was made with {then}; leave the flag out, "
                "or start anew with another --out."
            )
    return dataclasses.replace(recorded, **{name: getattr(given, name) for name in typed & set(_MAY_CHANGE)}).resolved()


def _run_record(config: RunConfig) -> dict[str, Any]:
    """What config.json holds: the settings, and what they ran on (a resumed run: what it goes on with)."""
    packages = ("grpojax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers", "sympy")
    device = jax.devices()[0]
    return {
        "config": dataclasses.asdict(config),
        "variant_numbers": config.make_variant().numbers,
        "variant_rewards": config.make_variant().rewards,
        "grader": config.grader,
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
    if not (checkout / ".git").exists():  # installed; a repository around it would be somebody else's
        return None
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Turns the first Ctrl-C or SIGTERM into a wish to stop after the step under way; a second one stops at once."""
    stop = _Stop()

    def handle(number, _frame):
        if stop.signal is not None:
            raise KeyboardInterrupt
        stop.signal = number

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _headline(config: RunConfig, inputs: _Inputs, state: TrainState, folder: Path) -> str:
    size = sum(array.size for array in jax.tree.leaves(state.params)) / 1e6
    return (
        f"{config.variant} on {config.model} ({size:.1f} M parameters, {jax.devices()[0].device_kind}), "
        f"{len(inputs.problems)} problems of {config.dataset}, {config.prompts_per_step} x {config.num_rollouts} rollouts "
        f"a step -> {folder}"
    )


def _notices(config: RunConfig, inputs: _Inputs) -> Iterator[str]:
    """What a setting does that its name does not say."""
    variant = config.make_variant()
    yield from notices(variant, config.inner_epochs * config.minibatches)
    if variant.numbers.keys() - run_variant(config, inputs.problems).numbers.keys():
        yield "kl_domains gives every training problem a KL weight of 0, so there is no KL term and no reference model"
    unknown = set(variant.kl_domains) - {problem.domain for problem in inputs.problems} if "kl_coeff" in variant.numbers else ()
    if unknown and config.kl_domains is not None:
        yield f"no training problem is of domain {', '.join(sorted(unknown))}, which kl_domains names"
    if config.temperature == 0:
        yield "at temperature 0 all answers of a group are the same, so no group has anything to teach"
    if variant.keep_sampling_mask and config.top_p == 1 and config.top_k == 0:
        yield "with top_p 1 and top_k 0 every id could be sampled, so keep_sampling_mask changes nothing"
    if {"tis_cap", "sequence_mask_cap"} & set(variant.numbers) and inputs.policy.config.compute_dtype == "float32":
        yield "in float32 trainer and sampler agree to rounding, so the weight of the one over the other is 1 (see logp_gap)"
    if variant.numbers.get("overlong_cache", 0) > config.max_new_tokens:
        yield "overlong_cache is larger than the budget, so every answer is punished from its first token on"
    if config.clip_low is not None and variant.objective is clip_first_printing:
        yield "the first printing's clip never reaches clip_low"
    if "format" in variant.rewards and inputs.policy.tokenizer.kind == "reasoning" and not config.thinking:
        yield "without thinking the prompt itself closes the think block, so no answer can earn the format reward"


def _accuracy_line(when: str, evaluation: Evaluation) -> str:
    return f"held-out accuracy {when}: {evaluation.accuracy:.1f} % ({evaluation.correct}/{evaluation.total} of {evaluation.dataset})"


def _outcome(config: RunConfig, folder: Path, state: TrainState, seconds: float, grader: Grader) -> dict[str, Any]:
    """What summary.json holds."""
    evaluations = read_evaluations(folder)
    best = max(evaluations, key=lambda pair: pair[1], default=(None, None))
    last = evaluations[-1] if evaluations and evaluations[-1][0] > 0 else (None, None)
    return {
        "variant": config.variant,
        "model": config.model,
        "steps_done": state.step,
        "total_steps": config.steps,
        "seconds": seconds,
        "eval_acc_before": evaluations[0][1] if evaluations and evaluations[0][0] == 0 else None,
        "eval_acc_last": last[1],
        "last_eval_step": last[0],
        "eval_acc_best": best[1],
        "best_step": best[0],
        "checkpoints": checkpoint_steps(folder / "checkpoints"),
        "compilations": {name: program._cache_size() for name, program in PROGRAMS.items()},  # in this process
        "grading_timeouts": grader.timeouts,
    }


def _closing_lines(outcome: dict[str, Any], folder: Path, stop: _Stop) -> Iterator[str]:
    done, total = outcome["steps_done"], outcome["total_steps"]
    if stop.signal is not None and done < total:
        name = signal.Signals(stop.signal).name
        yield f"stopped by {name} after step {done}; go on with --resume --out {folder}"
    if outcome["eval_acc_before"] is not None and outcome["eval_acc_last"] is not None:
        yield (
            f"held-out accuracy: {outcome['eval_acc_before']:.1f} % before training, {outcome['eval_acc_last']:.1f} % after "
            f"step {outcome['last_eval_step']}"
        )
    counts = ", ".join(f"{name} {count}" for name, count in outcome["compilations"].items())
    yield f"{outcome['seconds']:.0f} s; programs compiled: {counts}"
    yield f"metrics, samples, plots and checkpoints: {folder}"
