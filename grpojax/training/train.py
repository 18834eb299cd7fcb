"""The training loop: a generator of steps. It does not print, write or save."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax import Array

from grpojax.config import RunConfig
from grpojax.errors import RunError
from grpojax.qwen.model import Params
from grpojax.qwen.weights import Policy
from grpojax.records import Sample, StepRecord
from grpojax.tasks.answers import extract_answer
from grpojax.tasks.grading import Grader
from grpojax.tasks.problems import Problem
from grpojax.tasks.prompts import DEFAULT_TEMPLATE, render_prompt
from grpojax.tasks.rewards import score_answers
from grpojax.training.rollout import Rollouts, generate, make_rollouts
from grpojax.training.update import Batch, fitting_micro_batch, init_optimizer, make_batch, make_optimizer, score, update


@dataclasses.dataclass(frozen=True)
class TrainState:
    """What a checkpoint holds."""

    step: int  # steps done
    params: Params
    opt_state: optax.OptState


@dataclasses.dataclass(frozen=True)
class _Graded:
    """Rollouts with what became of them."""

    rollouts: Rollouts
    samples: list[Sample]
    advantages: np.ndarray  # [P, G]

    @property
    def constant(self) -> np.ndarray:
        """[P] bool: groups that agree on their reward and teach nothing."""
        return np.all(self.advantages == 0, axis=1)


def initial_state(config: RunConfig, params: Params) -> TrainState:
    """The state before the first step."""
    return TrainState(0, params, init_optimizer(run_optimizer(config), params))


def run_optimizer(config: RunConfig) -> optax.GradientTransformation:
    """The optimizer of a run."""
    return make_optimizer(config.max_grad_norm, config.weight_decay)


def train(
    config: RunConfig,
    policy: Policy,
    problems: Sequence[Problem],
    state: TrainState,
    template: str = DEFAULT_TEMPLATE,
    grader: Grader | None = None,
) -> Iterator[tuple[TrainState, StepRecord]]:
    """Runs the steps after `state.step` up to `config.steps`.

    Step s (from 1) takes the prompts_per_step problems that follow those of step s - 1, around the list. All of its
    randomness comes from fold_in(fold_in(seed, s), epoch), so a resumed run draws what an unbroken one would have.

    Args:
      config: a resolved RunConfig.
      policy: structure, tokenizer, and the reference weights of a KL term.
      problems: training problems, in order.
      state: where to start.
      template: the prompt around a problem.
      grader: compares answers with the right ones; a new one if None.

    Yields:
      After each step the new state and its record. The next step reuses the memory of this state's opt_state.

    Raises:
      RunError: if a loss or gradient is not finite; it names the quantity and the step.
    """
    variant, optimizer, grader = config.make_variant(), run_optimizer(config), grader or Grader()
    root = jax.random.key(config.seed, impl="threefry2x32")  # named, so that a default elsewhere cannot change the samples
    while state.step < config.steps:
        start = time.perf_counter()
        step = state.step + 1
        key = jax.random.fold_in(root, step)
        clock = {"rollout_seconds": 0.0, "update_seconds": 0.0}
        old_params, params, opt_state = state.params, state.params, state.opt_state
        tokens, graded, last = 0, None, {}
        for epoch in range(variant.inner_epochs):
            epoch_key = jax.random.fold_in(key, epoch)
            if graded is None or config.rollout_reuse == "fresh":
                with _timed(clock, "rollout_seconds"):
                    chosen = _problems_of(problems, step, config.prompts_per_step)
                    graded = _sample_and_grade(config, policy, old_params, chosen, epoch_key, template, grader)
                tokens += int(graded.rollouts.answer_lens.sum())
            if config.skip_zero_advantage_updates and graded.constant.all():
                last = {"loss": 0.0, "pg_loss": 0.0, "kl_loss": 0.0}
                continue
            with _timed(clock, "update_seconds"):
                batch = make_batch(graded.rollouts, graded.advantages)
                if policy.config.compute_dtype != "float32":
                    # In bfloat16 the cached decode and the full pass round differently; the ratio must compare like with like.
                    batch = dataclasses.replace(batch, old_logps=score(policy.config, old_params, batch))
                if "kl_coeff" in variant.numbers:
                    batch = dataclasses.replace(batch, ref_logps=score(policy.config, policy.params, batch))
                each = []
                for part in _minibatches(config, batch, epoch_key):
                    micro_batch = config.micro_batch or fitting_micro_batch(policy.config, *part.tokens.shape)
                    params, opt_state, metrics = update(
                        policy.config, optimizer, params, opt_state, variant, part, config.lr, micro_batch
                    )
                    each.append(jax.device_get(metrics))
                last = {name: float(np.mean([m[name] for m in each])) for name in each[0]}
            _check_finite(last, step, TrainState(state.step, params, opt_state))
        state = TrainState(step, params, opt_state)
        seconds = {**clock, "step_seconds": time.perf_counter() - start}
        yield state, _record(config, step, graded, tokens, last, seconds)


def compile_counts() -> dict[str, int]:
    """How often each program was compiled in this process."""
    return {program.__name__: program._cache_size() for program in (generate, score, update)}


def _problems_of(problems: Sequence[Problem], step: int, count: int) -> list[Problem]:
    return [problems[i % len(problems)] for i in range((step - 1) * count, step * count)]


def _sample_and_grade(
    config: RunConfig,
    policy: Policy,
    params: Params,
    problems: list[Problem],
    key: Array,
    template: str,
    grader: Grader,
) -> _Graded:
    """Fresh rollouts of the problems, their rewards, and the advantages of each group."""
    variant, tokenizer = config.make_variant(), policy.tokenizer
    prompts = [tokenizer.prompt_ids(render_prompt(p.text, template), config.thinking) for p in problems]
    rollouts = make_rollouts(
        policy, params, prompts, key, config.make_sampler(), config.num_rollouts, config.max_new_tokens
    )
    ids = [rollouts.answer_ids(row) for row in range(len(rollouts.answers))]
    texts = [tokenizer.decode(answer) for answer in ids]
    asked = [p for p in problems for _ in range(config.num_rollouts)]
    rewards = score_answers(
        texts,
        ids,
        [p.answer for p in asked],
        think_ids=tokenizer.think_ids,
        format_weight=variant.numbers.get("format_reward_weight"),
        conditional=variant.conditional_reward,
        grader=grader,
    )
    total = np.asarray(rewards["total"], np.float32).reshape(len(problems), config.num_rollouts)
    advantages = np.asarray(variant.advantage(total))
    named = {name: values for name, values in rewards.items() if name != "total" and values is not None}
    samples = [
        Sample(
            problem=asked[i].text,
            gold=asked[i].answer,
            text=texts[i],
            extracted=extract_answer(texts[i]),
            rewards={name: values[i] for name, values in named.items()},
            reward=rewards["total"][i],
            advantage=float(advantages.flat[i]),
            length=len(ids[i]),
            truncated=bool(rollouts.truncated[i]),
        )
        for i in range(len(ids))
    ]
    return _Graded(rollouts, samples, advantages)


def _minibatches(config: RunConfig, batch: Batch, key: Array) -> Iterator[Batch]:
    """The batch itself, or its shuffled parts."""
    if config.minibatches == 1:
        yield batch
        return
    order = np.asarray(jax.random.permutation(key, len(batch.tokens)))
    for part in np.split(order, config.minibatches):
        yield batch.rows(part)


def _record(
    config: RunConfig, step: int, graded: _Graded, tokens: int, last: dict[str, float], seconds: dict[str, float]
) -> StepRecord:
    """Metrics of a step: those of its last inner epoch, as the book logs them; tokens and times are of the whole step."""
    rollouts, samples, advantages = graded.rollouts, graded.samples, graded.advantages
    rewards = np.array([sample.reward for sample in samples])
    formats = [sample.rewards["format"] for sample in samples if "format" in sample.rewards]
    has_kl = "kl_coeff" in config.make_variant().numbers
    metrics: dict[str, Any] = {
        **{name: value for name, value in last.items() if not np.isnan(value) and (has_kl or name != "kl_loss")},
        **seconds,
        "step": step,
        "total_steps": config.steps,
        "reward_avg": rewards.mean(),
        "reward_std": rewards.std(ddof=1),
        "correct_avg": np.mean([sample.rewards["correct"] for sample in samples]),
        "format_reward_avg": np.mean(formats) if formats else None,
        "tokens_per_sec": tokens / seconds["step_seconds"],
        "avg_response_len": rollouts.answer_lens.mean(),
        "truncated_frac": rollouts.truncated.mean(),
        "adv_avg": advantages.mean(),
        "adv_std": advantages.std(ddof=1),
        "zero_adv_frac": graded.constant.mean(),
        "entropy_avg": np.mean(rollouts.entropies.sum(axis=1) / rollouts.answer_lens),
        "lr": config.lr,
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
