"""Drawing: sample answers to the prompts of a step, grade them, and draw more until enough groups disagree."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax import Array

from grpojax.device import on_host
from grpojax.loss.advantages import total_reward
from grpojax.records import Sample
from grpojax.tasks.problems import Problem
from grpojax.tasks.rewards import Answer, grade_answers, score_answers
from grpojax.training.batches import score_rollouts, with_old_logps
from grpojax.training.rollout import make_rollouts
from grpojax.training.state import Group, Run, TrainState
from grpojax.variants import Variant, variant_advantages

_ROUND = 2**31
"""Keys of further rounds are folded in from here on, apart from those of rows, which count from 0."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """The groups of one update batch."""

    groups: list[Group]
    advantages: np.ndarray  # [P, G]
    scores: dict[str, Array]  # what `score_rollouts` returned while the answers were graded; empty: not scored yet


@dataclasses.dataclass(frozen=True)
class StepDraws:
    """All that a step sampled, before its first update."""

    draws: list[Draw]  # one, or one for each inner epoch with fresh rollouts
    sampled: list[Group]  # every group, also those that the step does not train on
    problems_used: int  # where the next step continues
    carried: tuple[Group, ...]  # groups for the next step


def draw_step(run: Run, state: TrainState, key: Array) -> StepDraws:
    """Samples everything a step needs from the old policy, `state.params`. Epoch e draws from fold_in(key, e)."""
    recipe = run.variant.recipe
    groups, sampled, used, carried, scores = _draw_groups(run, state, jax.random.fold_in(key, 0))
    draws = [_with_advantages(run.variant, groups, scores)]
    for epoch in range(1, recipe.inner_epochs if recipe.rollout_reuse == "fresh" else 1):
        again, scores = _sample(run, state, _problems_of(groups, run.problems), jax.random.fold_in(key, epoch))
        draws.append(_with_advantages(run.variant, again, scores))
        sampled = sampled + again
    return StepDraws(draws, sampled, used, carried)


def _draw_groups(
    run: Run, state: TrainState, key: Array
) -> tuple[list[Group], list[Group], int, tuple[Group, ...], dict[str, Array]]:
    """The groups of a step, all groups sampled, problems used so far, groups to carry over, and scores if known.

    With dynamic sampling, rounds of prompts are drawn until enough groups have some, but not all answers right. Surplus
    groups are carried over to the next step. If too few are found, groups without signal fill the step, so that its size
    stays the same.
    """
    count, used, rounds = run.config.prompts_per_step, state.problems_used, run.variant.recipe.dynamic_sampling
    if not rounds:
        groups, scores = _sample(run, state, run.problems_from(used, count), key)
        return groups, groups, used + count, (), scores
    found, silent, sampled = list(state.carried), [], []
    for i in range(rounds):
        if len(found) >= count:
            break
        groups, _ = _sample(run, state, run.problems_from(used, count), key if i == 0 else jax.random.fold_in(key, _ROUND + i))
        sampled += groups
        used += count
        for group in groups:
            (found if _has_signal(run.variant, group) else silent).append(group)
    carried = tuple(with_old_logps(run, state, group) for group in found[count:])
    found = found[:count]
    return found + silent[: count - len(found)], sampled, used, carried, {}


def _sample(run: Run, state: TrainState, problems: list[Problem], key: Array) -> tuple[list[Group], dict[str, Array]]:
    """Fresh rollouts of the problems with their rewards, and their scores, which are computed while answers are graded.

    With dynamic sampling nothing is scored, because it is not known yet which groups the step will train on.
    """
    config, recipe, tokenizer = run.config, run.variant.recipe, run.policy.tokenizer
    prompts = [run.prompt_ids(problem) for problem in problems]
    longest = max(map(len, prompts))
    rollouts = make_rollouts(
        run.policy, state.params, prompts, key, config.make_sampler(), config.num_rollouts, config.max_new_tokens,
        recipe.keep_sampling_mask, run.variant.loss.numbers.get("score_temperature"),
        prompt_width=min(shape.prompt for shape in run.shapes if shape.prompt >= longest),
    )  # fmt: skip
    answers = []
    for i, problem in enumerate(problem for problem in problems for _ in range(config.num_rollouts)):
        ids = rollouts.answer_ids(i)
        answers.append(
            Answer(
                problem=problem.text, gold=problem.answer, text=tokenizer.decode(ids), token_ids=ids,
                truncated=bool(rollouts.truncated[i]), budget=config.max_new_tokens, think_ids=tokenizer.think_ids,
            )  # fmt: skip
        )
    wait = grade_answers(answers, list(recipe.rewards), run.grader)
    scores = {} if recipe.dynamic_sampling else score_rollouts(run, state, rollouts)
    answers = wait()
    rewards = score_answers(
        answers, list(recipe.rewards), conditional=recipe.conditional_reward, overlong_cache=recipe.overlong_cache
    )
    table = np.array(list(rewards.values())).reshape(len(rewards), len(problems), config.num_rollouts)
    with on_host():
        totals = np.asarray(total_reward(table, np.array(list(recipe.rewards.values())))).reshape(-1)
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


def _with_advantages(variant: Variant, groups: Sequence[Group], scores: dict[str, Array]) -> Draw:
    """The groups with the advantage of each sample."""
    advantages = _advantages(variant, groups)
    groups = [
        dataclasses.replace(
            group, samples=[dataclasses.replace(s, advantage=float(a)) for s, a in zip(group.samples, own, strict=True)]
        )
        for group, own in zip(groups, advantages, strict=True)
    ]
    return Draw(groups, advantages, scores)


def _problems_of(groups: Sequence[Group], problems: Sequence[Problem]) -> list[Problem]:
    by_text = {(problem.text, problem.answer): problem for problem in problems}
    return [by_text[group.samples[0].problem, group.samples[0].gold] for group in groups]


def _has_signal(variant: Variant, group: Group) -> bool:
    """Whether some, but not all answers are correct (DAPO, eq. 11); without that reward, whether advantages differ from 0."""
    if "correct" in variant.recipe.rewards:
        return len({sample.correct for sample in group.samples}) == 2
    return bool(np.any(_advantages(variant, [group])))


def _advantages(variant: Variant, groups: Sequence[Group]) -> np.ndarray:
    """[P, G]."""
    with on_host():
        return np.asarray(variant_advantages(variant, np.stack([group.rewards for group in groups], axis=1)))


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
