"""The training loop: a generator of steps. It does not print, write or save."""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from grpojax.config import RunConfig
from grpojax.errors import RunError
from grpojax.loss.advantages import total_reward
from grpojax.qwen.model import Params
from grpojax.qwen.weights import Policy
from grpojax.records import Sample, StepRecord, reward_column
from grpojax.tasks.grading import Grader
from grpojax.tasks.problems import Problem
from grpojax.tasks.prompts import DEFAULT_TEMPLATE, render_prompt
from grpojax.tasks.rewards import Answer, grade_answers, score_answers
from grpojax.training.rollout import Rollouts, bucket, concat_rollouts, make_rollouts
from grpojax.training.update import Batch, fitting_micro_batch, init_optimizer, make_batch, make_optimizer, score, update_in_place
from grpojax.variants import Variant, variant_advantages


@dataclasses.dataclass(frozen=True)
class Group:
    """The rollouts of one prompt with what became of them."""

    rollouts: Rollouts  # of this prompt alone
    samples: list[Sample]
    rewards: np.ndarray  # [K, G] in the order of the variant's rewards, NaN where one abstains
    domain: str  # of the problem
    old_logps: np.ndarray | None = None  # [G, N] of a group that was carried: the trainer's, for the weights that sampled it


@dataclasses.dataclass(frozen=True)
class TrainState:
    """What a checkpoint holds."""

    step: int  # steps done
    params: Params
    opt_state: optax.OptState
    problems_used: int = 0  # where in the list of problems the next step goes on
    carried: tuple[Group, ...] = ()  # groups that dynamic sampling drew beyond its need
    reference: Params | None = None  # the refreshed reference of a KL term; None: the weights the run began with
    widths: tuple[int, ...] = ()  # that batches may have, see `_widths_after`; (): before the first step


_copy = jax.jit(functools.partial(jax.tree.map, jnp.copy))
"""Copies a tree of arrays in one program, not one for each shape."""


def initial_state(config: RunConfig, params: Params) -> TrainState:
    """The state before the first step. Its params are a copy: a run changes its own in place."""
    own = _copy(params)
    return TrainState(0, own, init_optimizer(run_optimizer(config), own, config.moment_dtype))


def run_optimizer(config: RunConfig) -> optax.GradientTransformation:
    """The optimizer of a run."""
    return make_optimizer(config.max_grad_norm, config.weight_decay)


def run_variant(config: RunConfig, problems: Sequence[Problem]) -> Variant:
    """The variant of a run on these problems: without a KL term where the weight of each of their domains is 0."""
    variant = config.make_variant()
    if "kl_coeff" in variant.numbers and all(variant.kl_domains.get(p.domain, 1.0) == 0 for p in problems):
        numbers = {name: value for name, value in variant.numbers.items() if name != "kl_coeff"}
        variant = dataclasses.replace(variant, numbers=numbers)
    return variant


def train(
    config: RunConfig,
    policy: Policy,
    problems: Sequence[Problem],
    state: TrainState,
    template: str = DEFAULT_TEMPLATE,
    grader: Grader | None = None,
) -> Iterator[tuple[TrainState, StepRecord]]:
    """Runs the steps after `state.step` up to `config.steps`.

    A step takes the prompts_per_step problems that follow those of the step before, around the list; with dynamic sampling
    as many as it needs. All of its randomness comes from fold_in(fold_in(seed, step), epoch), so a resumed run draws what
    an unbroken one would have.

    Args:
      config: a resolved RunConfig.
      policy: structure, tokenizer, and the reference weights of a KL term.
      problems: training problems, in order.
      state: where to start.
      template: the prompt around a problem.
      grader: compares answers with the right ones; a new one if None.

    Yields:
      After each step the new state and its record. The next step reuses the memory of this state's params and opt_state:
      copy what is to be kept.

    Raises:
      RunError: if a loss or gradient is not finite; it names the quantity and the step.
    """
    run = _Run(config, policy, problems, template, grader or Grader(), run_variant(config, problems), run_optimizer(config))
    root = jax.random.key(config.seed, impl="threefry2x32")  # named, so that a default elsewhere cannot change the samples
    while state.step < config.steps:
        state, record = _step(run, state, jax.random.fold_in(root, state.step + 1))
        yield state, record


@dataclasses.dataclass(frozen=True)
class _Run:
    """What stays the same from step to step."""

    config: RunConfig
    policy: Policy
    problems: Sequence[Problem]
    template: str
    grader: Grader
    variant: Variant
    optimizer: optax.GradientTransformation


@dataclasses.dataclass
class _Drawn:
    """Everything a step sampled."""

    groups: int = 0
    tokens: int = 0
    correct: int = 0
    answers: int = 0

    def add(self, groups: Sequence[Group]) -> None:
        samples = [sample for group in groups for sample in group.samples]
        self.groups += len(groups)
        self.tokens += sum(sample.length for sample in samples)
        self.correct += sum(sample.correct for sample in samples)
        self.answers += len(samples)


def _step(run: _Run, state: TrainState, key: Array) -> tuple[TrainState, StepRecord]:
    config, variant = run.config, run.variant
    start = time.perf_counter()
    clock, drawn, timeouts = {"rollout_seconds": 0.0, "update_seconds": 0.0}, _Drawn(), run.grader.timeouts
    params, opt_state, last = state.params, state.opt_state, {}
    draws, used, carried = [], state.problems_used, ()
    # All draws come from the old policy, so they come first: whatever goes wrong in them leaves the state as it was.
    for epoch in range(variant.inner_epochs if variant.rollout_reuse == "fresh" else 1):
        with _timed(clock, "rollout_seconds"):
            epoch_key = jax.random.fold_in(key, epoch)
            if not draws:
                groups, used, carried, scores = _draw_groups(run, state, epoch_key, drawn)
            else:  # the same problems again
                groups, scores = _sample_and_grade(run, state, _problems_again(groups, run.problems), epoch_key)
                drawn.add(groups)
            draws.append((*_with_advantages(variant, groups), scores))
    with _timed(clock, "update_seconds"):  # so do all batches: the first update takes the old policy's memory
        batches = [
            None if config.skip_zero_advantage_updates and not advantages.any()
            else _batch_of(run, state, groups, advantages, scores)
            for groups, advantages, scores in draws
        ]  # fmt: skip
    for epoch in range(variant.inner_epochs):
        at = min(epoch, len(draws) - 1)
        groups, advantages, _ = draws[at]
        if batches[at] is None:
            last = {"loss": 0.0, "pg_loss": 0.0, "kl_loss": 0.0}
            continue
        batch, gap = batches[at]
        with _timed(clock, "update_seconds"):
            each = []
            for part in _minibatches(config, batch, jax.random.fold_in(jax.random.fold_in(key, epoch), _SHUFFLE)):
                micro_batch = config.micro_batch or fitting_micro_batch(run.policy.config, part)
                params, opt_state, metrics = update_in_place(
                    run.policy.config, run.optimizer, params, opt_state, variant, part, config.lr, micro_batch
                )
                each.append(jax.device_get(metrics))
            last = {name: float(np.mean([m[name] for m in each])) for name in each[0]} | gap
        _check_finite(last, state.step + 1, dataclasses.replace(state, params=params, opt_state=opt_state))
    step = state.step + 1
    reference = state.reference
    if variant.reference_refresh and step % variant.reference_refresh == 0 and "kl_coeff" in variant.numbers:
        reference = _copy(params)
    seconds = {**clock, "step_seconds": time.perf_counter() - start}
    last |= {"groups_carried": len(carried)} if variant.dynamic_sampling else {}
    last["grading_timeouts"] = run.grader.timeouts - timeouts
    record = _record(run, step, groups, advantages, drawn, last, seconds)
    widths = _widths_after(run, state, record.samples)
    return TrainState(step, params, opt_state, used, carried, reference, widths), record


_SHUFFLE, _ROUND = 2**30, 2**31
"""Set apart the keys of minibatches and of further rounds from those of rows, which count from 0."""


def _draw_groups(
    run: _Run, state: TrainState, key: Array, drawn: _Drawn
) -> tuple[list[Group], int, tuple[Group, ...], dict[str, Array]]:
    """The groups of a step, the problems used so far, the groups left over, and the scores of the groups if known.

    With dynamic sampling, rounds of prompts are drawn until enough groups disagree on their reward. What is too much is
    left for the next step; if too few are found, groups without signal fill the step, so that its size stays the same.
    """
    count, used = run.config.prompts_per_step, state.problems_used
    if not run.variant.dynamic_sampling:
        groups, scores = _sample_and_grade(run, state, _problems_from(run.problems, used, count), key)
        drawn.add(groups)
        return groups, used + count, (), scores
    found, silent = list(state.carried), []
    for round_ in range(run.variant.dynamic_sampling):
        if len(found) >= count:
            break
        round_key = key if round_ == 0 else jax.random.fold_in(key, _ROUND + round_)
        groups, _ = _sample_and_grade(run, state, _problems_from(run.problems, used, count), round_key)
        drawn.add(groups)
        used += count
        for group in groups:
            (found if _has_signal(run.variant, group) else silent).append(group)
    found, left = found[:count], tuple(_with_old_logps(run, state, group) for group in found[count:])
    return found + silent[: count - len(found)], used, left, {}


def _with_old_logps(run: _Run, state: TrainState, group: Group) -> Group:
    """A group that waits for the next step, with what the trainer makes of it today; unchanged where it was carried before."""
    if group.old_logps is not None or not _scores_old(run):
        return group
    batch = make_batch(group.rollouts, np.zeros(len(group.samples)), _width(run, state, group.rollouts))
    old_logps = score(run.policy.config, state.params, batch, run.variant.numbers.get("score_temperature"))
    return dataclasses.replace(group, old_logps=np.asarray(old_logps))


def _width(run: _Run, state: TrainState, rollouts: Rollouts) -> int:
    """The narrowest width of a batch that holds these answers."""
    longest = int(rollouts.answer_lens.max())
    return min(width for width in state.widths or (bucket(run.config.max_new_tokens),) if width >= longest)


def _widths_after(run: _Run, state: TrainState, samples: Sequence[Sample]) -> tuple[int, ...]:
    """The widths of the next step's batches: the budget, and what the first step's answers needed if that is half of it at most.

    Each width is a compilation. The narrow one goes again if the second step had no use for it, so that a run compiles its
    update twice at most, before its third step, and does not pay for a budget that it does not use.
    """
    budget, needed = bucket(run.config.max_new_tokens), bucket(max(sample.length for sample in samples))
    if state.step == 0:
        return (budget, needed) if needed <= budget // 2 else (budget,)
    return tuple(width for width in state.widths if width == budget or state.step > 1 or needed <= width)


def _scores_old(run: _Run) -> bool:
    """Whether the old policy's log-probs are taken by the trainer, not by the sampler.

    In bfloat16 the cached decode and the full pass round differently, and a ratio must compare like with like; and some
    safeguards compare the two.
    """
    variant, compared = run.variant, {"tis_cap", "sequence_mask_cap"} & set(run.variant.numbers)
    uses_old = variant.ratio is not None or variant.kl_reweight or "off_policy_delta" in variant.numbers
    return bool(compared) or (uses_old and run.policy.config.compute_dtype != "float32")


def _problems_from(problems: Sequence[Problem], start: int, count: int) -> list[Problem]:
    return [problems[i % len(problems)] for i in range(start, start + count)]


def _problems_again(groups: Sequence[Group], problems: Sequence[Problem]) -> list[Problem]:
    by_text = {(problem.text, problem.answer): problem for problem in problems}
    return [by_text[group.samples[0].problem, group.samples[0].gold] for group in groups]


def _has_signal(variant: Variant, group: Group) -> bool:
    """Whether some, but not all answers of a group are correct (DAPO, eq. 11); without that reward, whether any earns more."""
    if "correct" in variant.rewards:
        return len({sample.correct for sample in group.samples}) == 2
    return bool(np.any(variant_advantages(variant, group.rewards[:, None])))


def _sample_and_grade(
    run: _Run, state: TrainState, problems: list[Problem], key: Array
) -> tuple[list[Group], dict[str, Array]]:
    """Fresh rollouts of the problems and their rewards; and what `_scores` made of them while they were graded.

    With dynamic sampling it is not known yet which groups will be needed, and nothing is scored.
    """
    config, variant, tokenizer = run.config, run.variant, run.policy.tokenizer
    prompts = [tokenizer.prompt_ids(render_prompt(p.text, run.template), config.thinking) for p in problems]
    rollouts = make_rollouts(
        run.policy, state.params, prompts, key, config.make_sampler(), config.num_rollouts, config.max_new_tokens,
        variant.keep_sampling_mask, variant.numbers.get("score_temperature"),
    )  # fmt: skip
    asked = [p for p in problems for _ in range(config.num_rollouts)]
    answers = []
    for i, problem in enumerate(asked):
        ids = rollouts.answer_ids(i)
        answers.append(
            Answer(
                problem=problem.text, gold=problem.answer, text=tokenizer.decode(ids), token_ids=ids,
                truncated=bool(rollouts.truncated[i]), budget=config.max_new_tokens, think_ids=tokenizer.think_ids,
            )  # fmt: skip
        )
    wait = grade_answers(answers, list(variant.rewards), run.grader)
    scores = {} if variant.dynamic_sampling else _scores(run, state, rollouts)
    answers = wait()
    rewards = score_answers(
        answers, list(variant.rewards),
        conditional=variant.conditional_reward, overlong_cache=variant.numbers.get("overlong_cache"),
    )  # fmt: skip
    table = np.array(list(rewards.values())).reshape(len(rewards), len(problems), config.num_rollouts)
    totals = np.asarray(total_reward(table, np.array(list(variant.rewards.values())))).reshape(-1)
    samples = [
        Sample(
            problem=answer.problem, gold=answer.gold, text=answer.text, extracted=answer.extracted, correct=answer.correct,
            rewards={name: _or_none(values[i]) for name, values in rewards.items()}, reward=_or_none(totals[i]),
            advantage=0.0, length=len(answer.token_ids), truncated=answer.truncated,
        )  # fmt: skip
        for i, answer in enumerate(answers)
    ]
    size = config.num_rollouts
    return [
        Group(rollouts.group(p), samples[p * size : (p + 1) * size], table[:, p], problem.domain)
        for p, problem in enumerate(problems)
    ], scores


def _with_advantages(variant: Variant, groups: Sequence[Group]) -> tuple[list[Group], np.ndarray]:
    """The groups with the advantage of each sample, and all advantages [P, G]."""
    advantages = np.asarray(variant_advantages(variant, np.stack([group.rewards for group in groups], axis=1)))
    told = [
        dataclasses.replace(
            group,
            samples=[dataclasses.replace(s, advantage=float(a)) for s, a in zip(group.samples, own, strict=True)],
        )
        for group, own in zip(groups, advantages, strict=True)
    ]
    return told, advantages


def _scores(run: _Run, state: TrainState, rollouts: Rollouts) -> dict[str, Array]:
    """The log-probs that the variant compares with and the sampler has not recorded, [B, N] each; the device has only begun."""
    variant, config = run.variant, run.policy.config
    if not _scores_old(run) and "kl_coeff" not in variant.numbers:
        return {}
    batch = make_batch(rollouts, np.zeros(len(rollouts.answers)), _width(run, state, rollouts))
    temperature, scores = variant.numbers.get("score_temperature"), {}
    if _scores_old(run):
        scores["old_logps"] = score(config, state.params, batch, temperature)
    if "kl_coeff" in variant.numbers:
        reference = run.policy.params if state.reference is None else state.reference
        scores["ref_logps"] = score(config, reference, batch, temperature)
    return scores


def _batch_of(
    run: _Run, state: TrainState, groups: Sequence[Group], advantages: np.ndarray, scores: dict[str, Array]
) -> tuple[Batch, dict[str, float]]:
    """The batch of an update, with every log-prob the variant compares with, and the gap of trainer and sampler if known."""
    variant = run.variant
    rollouts = concat_rollouts([group.rollouts for group in groups])
    batch = make_batch(rollouts, advantages, _width(run, state, rollouts))
    scores = jax.device_get(scores or _scores(run, state, rollouts))
    gap = {}
    if "old_logps" in scores:
        scores["old_logps"] = np.array(scores["old_logps"])
        for i, group in enumerate(groups):
            if group.old_logps is not None:  # today's weights did not sample it
                rows, width = slice(i * len(group.samples), (i + 1) * len(group.samples)), batch.mask.shape[1]
                scores["old_logps"][rows] = np.pad(group.old_logps, ((0, 0), (0, width)))[:, :width]
        gap = {"logp_gap": float(np.max(np.abs(scores["old_logps"] - batch.old_logps) * batch.mask))}
        batch = dataclasses.replace(batch, sampler_logps=batch.old_logps)
    if "kl_coeff" in variant.numbers and variant.kl_domains:
        scale = [variant.kl_domains.get(group.domain, 1.0) for group in groups for _ in group.samples]
        batch = dataclasses.replace(batch, kl_scale=np.array(scale, np.float32))
    if variant.mask_truncated:
        truncated = np.array([sample.truncated for group in groups for sample in group.samples])
        batch = dataclasses.replace(batch, mask=batch.mask * ~truncated[:, None])
    return dataclasses.replace(batch, **scores), gap


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _minibatches(config: RunConfig, batch: Batch, key: Array) -> Iterator[Batch]:
    """The batch itself, or its shuffled parts."""
    if config.minibatches == 1:
        yield batch
        return
    order = np.asarray(jax.random.permutation(key, len(batch.targets)))
    for part in np.split(order, config.minibatches):
        yield batch.rows(part)


def _record(
    run: _Run,
    step: int,
    groups: Sequence[Group],
    advantages: np.ndarray,
    drawn: _Drawn,
    last: dict[str, float],
    seconds: dict[str, float],
) -> StepRecord:
    """Metrics of a step: those of its last inner epoch, as the book logs them; tokens and times are of the whole step."""
    config, has_kl = run.config, "kl_coeff" in run.variant.numbers
    samples = [sample for group in groups for sample in group.samples]
    rollouts = concat_rollouts([group.rollouts for group in groups])
    rewards = np.array([sample.reward for sample in samples if sample.reward is not None])
    by_name = dict(zip(run.variant.rewards, np.concatenate([group.rewards for group in groups], axis=1), strict=True))
    means = {name: np.nanmean(values) for name, values in by_name.items() if not np.isnan(values).all()}
    metrics: dict[str, Any] = {
        **{name: value for name, value in last.items() if not np.isnan(value) and (has_kl or name != "kl_loss")},
        **seconds,
        **{reward_column(name): mean for name, mean in means.items()},
        "step": step,
        "total_steps": config.steps,
        "reward_avg": rewards.mean() if len(rewards) else None,
        "reward_std": rewards.std(ddof=1) if len(rewards) > 1 else None,
        "correct_avg": np.mean([sample.correct for sample in samples]),
        "format_reward_avg": means.get("format"),
        "tokens_per_sec": drawn.tokens / seconds["step_seconds"],
        "avg_response_len": rollouts.answer_lens.mean(),
        "truncated_frac": rollouts.truncated.mean(),
        "adv_avg": advantages.mean(),
        "adv_std": advantages.std(ddof=1),
        "zero_adv_frac": np.mean(np.all(advantages == 0, axis=1)),
        "entropy_avg": np.mean(rollouts.entropies.sum(axis=1) / rollouts.answer_lens),
        "lr": config.lr,
        "groups_drawn": drawn.groups,
        "drawn_correct_avg": drawn.correct / drawn.answers if drawn.answers else None,
    }
    return StepRecord(step, config.steps, metrics, samples)


def _check_finite(metrics: dict[str, float], step: int, state: TrainState) -> None:
    for name in ("loss", "grad_norm"):
        if not np.isfinite(metrics.get(name, 0.0)):
            raise RunError(
                f"{name} became {metrics[name]} at step {step}; that update was not made and training stopped. Start anew "
                "with a lower --lr; metrics.csv tells at which step it began.",
                state=state,
            )


class _timed:
    """Adds the seconds of a block to an entry of a dict."""

    def __init__(self, clock: dict[str, float], name: str):
        self.clock, self.name = clock, name

    def __enter__(self):
        self.start = time.perf_counter()

    def __exit__(self, *_):
        self.clock[self.name] += time.perf_counter() - self.start
