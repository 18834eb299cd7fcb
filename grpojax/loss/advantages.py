"""Rewards of a group of rollouts -> advantages."""

import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape


def group_advantages(rewards: Array, eps: float = 1e-4) -> Array:
    """How much better each rollout did than its group: (r - mean) / (std + eps), std over G - 1.

    Args:
      rewards: [P, G], G >= 2 rollouts of each of P prompts.
      eps: keeps the quotient finite.

    Returns:
      [P, G] float32. Exactly zero for a group of equal rewards, also where their float mean is a rounding off.

    Raises:
      ValueError: if a group has fewer than 2 rollouts: it has no spread to compare with.

    Source: arXiv:2402.03300 section 4.1.2; book chapter 6. Rewards (1, 1, 0, 0): mean 1/2, std sqrt(1/3) = 0.57735,
    and 0.5 / 0.57745 = 0.8659.

    >>> print(group_advantages(jnp.array([[1.0, 1.0, 0.0, 0.0]])).round(4))
    [[ 0.8659  0.8659 -0.8659 -0.8659]]
    """
    return _standardise(_checked(rewards), eps)


def gdpo_advantages(rewards: Array, weights: Array, eps: float = 1e-4) -> Array:
    """Several rewards: each normalised inside its group, weighted, summed, and normalised again over the batch.

    Args:
      rewards: [K, P, G] for K reward functions.
      weights: [K].
      eps: keeps both quotients finite.

    Returns:
      [P, G] float32. A reward on which a group agrees adds nothing there.

    Source: arXiv:2601.05242, eq. 4 to 6.
    """
    rewards, weights = jnp.asarray(rewards, jnp.float32), jnp.asarray(weights, jnp.float32)
    check_shape("rewards", rewards, (None, None, None))
    check_shape("weights", weights, rewards.shape[:1])
    count, prompts, rollouts = rewards.shape
    each = group_advantages(rewards.reshape(count * prompts, rollouts), eps).reshape(rewards.shape)
    total = jnp.sum(weights[:, None, None] * each, axis=0)
    return _standardise(total.reshape(1, -1), eps).reshape(total.shape)


def _checked(rewards: Array) -> Array:
    rewards = jnp.asarray(rewards, jnp.float32)
    check_shape("rewards", rewards, (None, None))
    if rewards.shape[1] < 2:
        raise ValueError(f"rewards has {rewards.shape[1]} rollout per prompt; a group needs at least 2 to be compared.")
    return rewards


def _standardise(values: Array, eps: float) -> Array:
    """Each row of [R, C] centred and divided by its std (over C - 1) plus eps; a constant row becomes zeros."""
    centred = values - jnp.mean(values, axis=1, keepdims=True)
    std = jnp.std(values, axis=1, ddof=1, keepdims=True)  # torch.std divides by G - 1; jnp.std by G
    constant = jnp.max(values, axis=1, keepdims=True) == jnp.min(values, axis=1, keepdims=True)
    return jnp.where(constant, 0.0, centred / (std + eps))
