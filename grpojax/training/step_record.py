"""The record of a training step: its metrics, by column of metrics.csv, and its samples."""

import numpy as np

from grpojax.records import StepRecord, reward_column
from grpojax.training.draw import StepDraws
from grpojax.training.state import Run


def step_record(
    run: Run, step: int, drawn: StepDraws, updated: dict[str, float], seconds: dict[str, float], timeouts: int
) -> StepRecord:
    """Metrics of the last inner epoch, as the book logs them; tokens, times and what was drawn are of the whole step.

    Args:
      updated: metrics of the last update; NaN where the loss has no such term.
      seconds: rollout_seconds, update_seconds, step_seconds.
      timeouts: answers whose grading was given up in this step.
    """
    numbers, recipe = run.variant.loss.numbers, run.variant.recipe
    last = drawn.draws[-1]
    samples = [sample for group in last.groups for sample in group.samples]
    sampled = [sample for group in drawn.sampled for sample in group.samples]
    truncated, lengths, entropies = (
        np.concatenate([getattr(group.rollouts, name) for group in last.groups]) for name in ("truncated", "answer_lens", "entropies")
    )
    rewards = np.array([sample.reward for sample in samples if sample.reward is not None])
    by_name = dict(zip(recipe.rewards, np.concatenate([group.rewards for group in last.groups], axis=1), strict=True))
    means = {name: np.nanmean(values) for name, values in by_name.items() if not np.isnan(values).all()}
    metrics = {
        **{name: value for name, value in updated.items() if not np.isnan(value) and (name != "kl_loss" or "kl_coeff" in numbers)},
        **seconds,
        **{reward_column(name): mean for name, mean in means.items()},
        "step": step,
        "total_steps": run.config.steps,
        "reward_avg": rewards.mean() if len(rewards) else None,
        "reward_std": rewards.std(ddof=1) if len(rewards) > 1 else None,
        "correct_avg": np.mean([sample.correct for sample in samples]),
        "format_reward_avg": means.get("format"),
        "tokens_per_sec": sum(sample.length for sample in sampled) / seconds["step_seconds"],
        "avg_response_len": lengths.mean(),
        "truncated_frac": truncated.mean(),
        "adv_avg": last.advantages.mean(),
        "adv_std": last.advantages.std(ddof=1),
        "zero_adv_frac": np.mean(np.all(last.advantages == 0, axis=1)),
        "entropy_avg": np.mean(entropies.sum(axis=1) / lengths),
        "lr": run.config.lr,
        "groups_drawn": len(drawn.sampled),
        "drawn_correct_avg": np.mean([sample.correct for sample in sampled]) if sampled else None,
        "grading_timeouts": timeouts,
    }
    if recipe.dynamic_sampling:
        metrics["groups_carried"] = len(drawn.carried)
    return StepRecord(step, run.config.steps, metrics, samples)
