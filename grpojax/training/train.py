"""The training loop: a generator of steps. It does not print, write or save.

    draw (sample, grade) -> batch -> update -> record
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
import optax
from jax import Array

from grpojax.config import RunConfig
from grpojax.errors import RunError
from grpojax.grading.grader import Grader
from grpojax.qwen.model import Params
from grpojax.qwen.weights import Policy
from grpojax.records import StepRecord
from grpojax.tasks.problems import Problem
from grpojax.tasks.prompts import DEFAULT_TEMPLATE
from grpojax.training.batches import split_batch, step_batch
from grpojax.training.draw import draw_step
from grpojax.training.state import Run, TrainState, any_deleted, copy_arrays, initial_state, run_optimizer, run_variant
from grpojax.training.step_record import step_record
from grpojax.training.update import Batch, fitting_micro_batch, update_in_place

BACKUP_BYTES = 2**30
"""Up to this size, weights and moments are copied before a step of several updates, so that a failure loses only that step."""

_SHUFFLE = 2**30
"""Keys of minibatches are folded in from here on, apart from those of rows, which count from 0."""


def train(
    config: RunConfig,
    policy: Policy,
    problems: Sequence[Problem],
    state: TrainState | None = None,
    template: str = DEFAULT_TEMPLATE,
    grader: Grader | None = None,
) -> Iterator[tuple[TrainState, StepRecord]]:
    """Runs the steps after `state.step` up to `config.steps`.

    Each step takes the next prompts_per_step problems of the list, which wraps around; with dynamic sampling as many as it
    needs. Its randomness comes from fold_in(fold_in(seed, step), epoch), so a resumed run draws what an unbroken one would.

    Args:
      config: the settings; they are resolved here.
      policy: structure, tokenizer, and the reference weights of a KL term.
      problems: training problems, in order.
      state: where to start; None: `initial_state(config, policy.params)`.
      template: the prompt around a problem.
      grader: compares answers with the right ones; None: the default grader.

    Yields:
      After each step the new state and its record. The next step overwrites the arrays of this state's params and
      opt_state: copy what you keep.

    Raises:
      InputError: for a setting that cannot be used.
      RunError: if a loss or gradient is not finite; it names the quantity and the step, and holds the state the step
        began with, unless that was too large to keep (`BACKUP_BYTES`).
    """
    config = config.resolved()
    run = Run(config, policy, problems, template, grader or Grader(), run_variant(config, problems), run_optimizer(config))
    state = state or initial_state(config, policy.params)
    root = jax.random.key(config.seed, impl="threefry2x32")  # named: a default set elsewhere must not change the samples
    while state.step < config.steps:
        state, record = _step(run, state, jax.random.fold_in(root, state.step + 1))
        yield state, record


def _step(run: Run, state: TrainState, key: Array) -> tuple[TrainState, StepRecord]:
    config, recipe, step = run.config, run.variant.recipe, state.step + 1
    start, timeouts = time.perf_counter(), run.grader.timeouts
    seconds = {"rollout_seconds": 0.0, "update_seconds": 0.0}
    # Everything is drawn from the old policy and batched before the first update, which overwrites that policy in place.
    with _timed(seconds, "rollout_seconds"):
        drawn = draw_step(run, state, key)
    with _timed(seconds, "update_seconds"):
        batches = [
            None if config.skip_zero_advantage_updates and not draw.advantages.any()
            else step_batch(run, state, draw.groups, draw.advantages, draw.scores)
            for draw in drawn.draws
        ]  # fmt: skip
        params, opt_state, metrics = _update_epochs(run, state, batches, key)
    reference = state.reference
    if recipe.reference_refresh and step % recipe.reference_refresh == 0 and "kl_coeff" in run.variant.loss.numbers:
        reference = copy_arrays(params)
    seconds["step_seconds"] = time.perf_counter() - start
    record = step_record(run, step, drawn, metrics, seconds, run.grader.timeouts - timeouts)
    return TrainState(step, params, opt_state, drawn.problems_used, drawn.carried, reference), record


def _update_epochs(
    run: Run, state: TrainState, batches: list[tuple[Batch, dict[str, Array]] | None], key: Array
) -> tuple[Params, optax.OptState, dict[str, float]]:
    """The updates of all inner epochs, and the metrics of the last epoch. Overwrites the arrays of `state`.

    Waits for the device once, after the last update.
    """
    config, epochs = run.config, run.variant.recipe.inner_epochs
    params, opt_state, updates, skipped = state.params, state.opt_state, [], False
    size = sum(array.nbytes for array in jax.tree.leaves((params, opt_state)))
    backup = copy_arrays((params, opt_state)) if epochs * config.minibatches > 1 and size <= BACKUP_BYTES else None
    try:
        for epoch in range(epochs):
            if (prepared := batches[min(epoch, len(batches) - 1)]) is None:
                continue
            batch, gap = prepared
            for part in split_batch(batch, config.minibatches, jax.random.fold_in(jax.random.fold_in(key, epoch), _SHUFFLE)):
                micro_batch = config.micro_batch or fitting_micro_batch(run.policy.config, part)
                params, opt_state, values = update_in_place(
                    run.policy.config, run.optimizer, params, opt_state, run.variant.loss, part, config.lr, micro_batch, skipped
                )
                skipped = values["skipped"]
                updates.append(values | gap)
        updates = jax.device_get(updates)
        _check_finite(updates, state.step + 1)
    except BaseException as error:
        moved = updates and not updates[0]["skipped"]
        good = backup or (None if moved else (params, opt_state))
        if good and any_deleted(good):  # interrupted inside the update that took them
            good = None
        error.state = good and dataclasses.replace(state, params=good[0], opt_state=good[1])
        raise
    if batches[-1] is None:
        return params, opt_state, {"loss": 0.0, "pg_loss": 0.0, "kl_loss": 0.0}
    last = updates[-config.minibatches :]
    return params, opt_state, {name: float(np.mean([values[name] for values in last])) for name in last[0] if name != "skipped"}


def _check_finite(updates: list[dict[str, np.ndarray]], step: int) -> None:
    if first := next((values for values in updates if values["skipped"]), None):
        name = next(name for name in ("loss", "grad_norm") if not np.isfinite(first[name]))
        raise RunError(
            f"{name} became {first[name]} at step {step}; that update was not made and training stopped. Start again "
            "with a lower --lr; metrics.csv shows at which step it began."
        )


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds of a block to an entry."""
    start = time.perf_counter()
    yield
    seconds[name] += time.perf_counter() - start
