"""Batches: graded groups with the log-probs their loss compares with, in one of at most two shapes a run."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from grpojax.training.rollout import Rollouts, concat_rollouts
from grpojax.training.state import Group, Run, TrainState
from grpojax.training.update import Batch, BatchShape, fit_width, fitting_micro_batch, make_batch, score


def shape_of(run: Run, rollouts: Rollouts) -> BatchShape:
    """The narrowest shape of the run that holds these rollouts."""
    prompt, answer = int(rollouts.prompt_lens.max()), int(rollouts.answer_lens.max())
    return next(shape for shape in run.shapes if shape.prompt >= prompt and shape.answer >= answer)


def scores_old_policy(run: Run) -> bool:
    """Whether old_logps come from a scoring pass of the trainer instead of from the sampler.

    In float32 both agree. In bfloat16 cached decoding and the full pass round differently, and a ratio must compare like
    with like. Some safeguards compare trainer with sampler and need both.
    """
    loss = run.variant.loss
    compares = {"tis_cap", "sequence_mask_cap"} & set(loss.numbers)
    uses_old = loss.ratio is not None or loss.kl_reweight or "off_policy_delta" in loss.numbers
    return bool(compares) or (uses_old and run.policy.config.compute_dtype != "float32")


def score_rollouts(run: Run, state: TrainState, rollouts: Rollouts) -> dict[str, Array]:
    """old_logps and ref_logps [B, N], if the loss needs them from a scoring pass. Does not wait for the device."""
    config, numbers = run.policy.config, run.variant.loss.numbers
    weights = {}
    if scores_old_policy(run):
        weights["old_logps"] = state.params
    if "kl_coeff" in numbers:
        weights["ref_logps"] = run.policy.params if state.reference is None else state.reference
    if not weights:
        return {}
    batch = make_batch(rollouts, np.zeros(len(rollouts.answers)), shape_of(run, rollouts))
    micro_batch = run.config.micro_batch or fitting_micro_batch(config, batch, backward=False)
    temperature = numbers.get("score_temperature")
    return {name: score(config, params, batch, temperature, micro_batch) for name, params in weights.items()}


def with_old_logps(run: Run, state: TrainState, group: Group) -> Group:
    """A group to be carried over, with the old log-probs of the weights that sampled it."""
    if group.old_logps is not None or not scores_old_policy(run):
        return group
    return dataclasses.replace(group, old_logps=score_rollouts(run, state, group.rollouts)["old_logps"])


def step_batch(
    run: Run, state: TrainState, groups: Sequence[Group], advantages: np.ndarray, scores: dict[str, Array]
) -> tuple[Batch, dict[str, Array]]:
    """The batch of an update, and `logp_gap`, the largest difference of trainer's and sampler's log-probs, if known.

    Does not wait for the device.

    Args:
      advantages: [P, G].
      scores: what `score_rollouts` returned for these groups; empty: computed here.
    """
    recipe, numbers = run.variant.recipe, run.variant.loss.numbers
    rollouts = concat_rollouts([group.rollouts for group in groups])
    batch = make_batch(rollouts, advantages, shape_of(run, rollouts))
    scores = dict(scores or score_rollouts(run, state, rollouts))
    gap = {}
    if "old_logps" in scores:
        for i, group in enumerate(groups):
            if group.old_logps is not None:  # it was sampled by other weights than today's
                rows = slice(i * len(group.samples), (i + 1) * len(group.samples))
                scores["old_logps"] = scores["old_logps"].at[rows].set(fit_width(group.old_logps, batch.mask.shape[1]))
        gap = {"logp_gap": jnp.max(jnp.abs(scores["old_logps"] - batch.old_logps) * batch.mask)}
        batch = dataclasses.replace(batch, sampler_logps=batch.old_logps)
    if "kl_coeff" in numbers and recipe.kl_domains:
        scale = [recipe.kl_domains.get(group.domain, 1.0) for group in groups for _ in group.samples]
        batch = dataclasses.replace(batch, kl_scale=np.array(scale, np.float32))
    if recipe.mask_truncated:
        truncated = np.array([sample.truncated for group in groups for sample in group.samples])
        batch = dataclasses.replace(batch, mask=batch.mask * ~truncated[:, None])
    return dataclasses.replace(batch, **scores), gap


def split_batch(batch: Batch, parts: int, key: Array) -> list[Batch]:
    """The batch itself, or its rows shuffled and split into equal parts."""
    if parts == 1:
        return [batch]
    order = jax.random.permutation(key, len(batch.targets))
    return [batch.rows(part) for part in order.reshape(parts, -1)]
