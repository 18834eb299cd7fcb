"""Rewards of a group of rollouts -> advantages.

A NaN reward is an abstention: that answer is left out of the mean and std of its group and gets advantage 0. A group whose
rewards are all equal gets exact zeros, even if rounding puts their mean a little off.
"""

import jax
import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape


@jax.jit
def group_advantages(rewards: Array, eps: float = 1e-4) -> Array:
    """How much better each rollout did than its group: (r - mean) / (std + eps), std over G - 1.

    Args:
      rewards: [P, G], G >= 2 rollouts of each of P prompts.
      eps: keeps the quotient finite.

    Returns:
      [P, G] float32.

    Raises:
      ValueError: if a group has fewer than 2 rollouts.

    Source: arXiv:2402.03300 section 4.1.2; book chapter 6. Rewards (1, 1, 0, 0): mean 1/2, std sqrt(1/3) = 0.57735,
    and 0.5 / 0.57745 = 0.8659.

    >>> print(group_advantages(jnp.array([[1.0, 1.0, 0.0, 0.0]])).round(4))
    [[ 0.8659  0.8659 -0.8659 -0.8659]]
    """
    centred = centred_advantages(rewards)
    return centred / (_std(centred, _present(rewards), axis=1) + eps)


@jax.jit
def centred_advantages(rewards: Array) -> Array:
    """r - mean of the group, without a std: [P, G] -> [P, G]. Raises like `group_advantages`.

    Dividing by the std gives groups that nearly agree (very easy or very hard problems) the largest weight; this does not.

    Source: arXiv:2503.20783 (Dr. GRPO), section 3.2; arXiv:2512.02556 (DeepSeek-V3.2), section 3.1.

    >>> print(centred_advantages(jnp.array([[1.0, 0.0, 0.0, 0.0]])))
    [[ 0.75 -0.25 -0.25 -0.25]]
    """
    rewards = _checked(rewards)
    present = _present(rewards)
    filled = jnp.where(present, rewards, 0.0)
    mean = jnp.sum(filled, axis=1, keepdims=True) / jnp.maximum(jnp.sum(present, axis=1, keepdims=True), 1)
    most = jnp.max(jnp.where(present, rewards, -jnp.inf), axis=1, keepdims=True)
    least = jnp.min(jnp.where(present, rewards, jnp.inf), axis=1, keepdims=True)
    return jnp.where(present & (most > least), filled - mean, 0.0)


@jax.jit
def batch_std_advantages(rewards: Array, eps: float = 1e-4) -> Array:
    """(r - mean of the group) / (std of all rewards of the step + eps): [P, G] -> [P, G].

    All groups are scaled alike, so a group that nearly agrees does not weigh more. Raises like `group_advantages`.

    Source: arXiv:2508.08221 ("Lite PPO"), section 4.1. Groups (3, 1) and (1, 1): the std of all four is 1.

    >>> print(batch_std_advantages(jnp.array([[3.0, 1.0], [1.0, 1.0]])).round(2))
    [[ 1. -1.]
     [ 0.  0.]]
    """
    rewards = _checked(rewards)
    present = _present(rewards)
    mean = jnp.sum(jnp.where(present, rewards, 0.0)) / jnp.maximum(jnp.sum(present), 1)
    spread = _std(jnp.where(present, rewards - mean, 0.0), present, axis=None)
    return centred_advantages(rewards) / (spread + eps)


@jax.jit
def leave_one_out_advantages(rewards: Array) -> Array:
    """r - mean of the *other* rollouts of the group: [P, G] -> [P, G]. Raises like `group_advantages`.

    The baseline does not depend on the answer it judges, so the gradient is unbiased.

    Source: arXiv:2402.14740 (RLOO), eq. 8. With n answers it is n / (n - 1) times the centred reward: 4/3 * 3/4 = 1.

    >>> print(leave_one_out_advantages(jnp.array([[1.0, 0.0, 0.0, 0.0]])).round(4))
    [[ 1.     -0.3333 -0.3333 -0.3333]]
    """
    count = jnp.sum(_present(_checked(rewards)), axis=1, keepdims=True)
    return centred_advantages(rewards) * count / jnp.maximum(count - 1, 1)


@jax.jit
def gdpo_advantages(rewards: Array, weights: Array, eps: float = 1e-4) -> Array:
    """normalise over the batch(sum_k weight_k (r_k - mean of the group) / (std of the group + eps)).

    Args:
      rewards: [K, P, G] for K reward functions.
      weights: [K].
      eps: keeps both quotients finite.

    Returns:
      [P, G] float32. A reward on which a group agrees adds nothing to that group.

    Source: arXiv:2601.05242, eq. 4 to 7.
    """
    total = _weighted_groups(rewards, weights, eps)
    return _standardised(total.reshape(1, -1), eps).reshape(total.shape) * _has_signal(total)


@jax.jit
def gdpo_group_advantages(rewards: Array, weights: Array, eps: float = 1e-4) -> Array:
    """Like `gdpo_advantages`, but the sum is normalised inside each group too.

    Source: the book's script gdpo.py of section 7.6.3, which has one group per step. For one group both are the same.
    """
    total = _weighted_groups(rewards, weights, eps)
    return _standardised(total, eps) * _has_signal(total)


@jax.jit
def total_reward(rewards: Array, weights: Array) -> Array:
    """sum_k weight_k r_k: [K, P, G], [K] -> [P, G]. An abstention adds nothing; NaN where all abstain.

    >>> print(total_reward(jnp.array([[[1.0, 0.0]], [[jnp.nan, 1.0]]]), jnp.array([1.0, 0.5])))
    [[1.  0.5]]
    """
    rewards, weights = _checked_rewards(rewards, weights)
    present = _present(rewards)
    total = jnp.sum(weights[:, None, None] * jnp.where(present, rewards, 0.0), axis=0)
    return jnp.where(jnp.any(present, axis=0), total, jnp.nan)


def _weighted_groups(rewards: Array, weights: Array, eps: float) -> Array:
    """[P, G], the weighted sum of the group advantages of each reward; NaN where all abstain."""
    rewards, weights = _checked_rewards(rewards, weights)
    count, prompts, rollouts = rewards.shape
    each = group_advantages(rewards.reshape(count * prompts, rollouts), eps).reshape(rewards.shape)
    return jnp.where(jnp.any(_present(rewards), axis=0), jnp.sum(weights[:, None, None] * each, axis=0), jnp.nan)


def _standardised(values: Array, eps: float) -> Array:
    """Each row of [R, C] centred and divided by its std."""
    centred = centred_advantages(values)
    return centred / (_std(centred, _present(values), axis=1) + eps)


def _has_signal(total: Array) -> Array:
    """[P, 1] bool, groups in which some reward differs. Without it the mean over the batch would give the others a value."""
    return jnp.any(jnp.where(_present(total), total, 0.0) != 0, axis=1, keepdims=True)


def _std(centred: Array, present: Array, axis: int | None) -> Array:
    """Std of centred values over n - 1, like torch.std; jnp.std divides by n."""
    count = jnp.sum(present, axis=axis, keepdims=True)
    return jnp.sqrt(jnp.sum(centred**2, axis=axis, keepdims=True) / jnp.maximum(count - 1, 1))


def _present(rewards: Array) -> Array:
    return ~jnp.isnan(jnp.asarray(rewards))


def _checked(rewards: Array) -> Array:
    rewards = jnp.asarray(rewards, jnp.float32)
    check_shape("rewards", rewards, (None, None))
    if rewards.shape[1] < 2:
        raise ValueError(f"rewards has {rewards.shape[1]} rollout per prompt; a group needs at least 2.")
    return rewards


def _checked_rewards(rewards: Array, weights: Array) -> tuple[Array, Array]:
    rewards, weights = jnp.asarray(rewards, jnp.float32), jnp.asarray(weights, jnp.float32)
    check_shape("rewards", rewards, (None, None, None))
    check_shape("weights", weights, rewards.shape[:1])
    return rewards, weights
