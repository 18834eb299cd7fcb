"""GRPO written down once more, as the paper prints it: the executable specification of the `grpo` variant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax import get_variant, group_advantages, policy_loss


def grpo_loss(new, old, ref, rewards, mask, clip_eps, kl_coeff):
    """arXiv:2402.03300, eq. 3 and 4, negated. Log-probs and mask [P, G, S], rewards [P, G]; advantages as in section 4.1.2."""
    spread = rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4
    advantages = ((rewards - rewards.mean(axis=1, keepdims=True)) / spread)[:, :, None]
    ratio = jnp.exp(new - old)
    clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
    kl = jnp.exp(ref - new) - (ref - new) - 1
    token_values = jnp.minimum(ratio * advantages, clipped * advantages) - kl_coeff * kl
    answer_means = (token_values * mask).sum(axis=2) / mask.sum(axis=2)
    return -answer_means.mean()


def test_by_hand():
    # Two answers of one token, rewards 1 and 0: A = +-0.5 / (0.707107 + 0.0001) = +-0.707007. Ratios e^0.5 = 1.648721, clipped
    # to 1.2, and 1; ref = new, so no KL: -(1.2 - 1) 0.707007 / 2 = -0.0707007
    new, old = jnp.array([[[-1.0], [-2.0]]]), jnp.array([[[-1.5], [-2.0]]])
    loss = grpo_loss(new, old, new, np.array([[1.0, 0.0]]), np.ones((1, 2, 1)), clip_eps=0.2, kl_coeff=0.04)
    assert float(loss) == pytest.approx(-0.0707007, abs=1e-6)


composed = jax.jit(jax.value_and_grad(lambda new, variant, *rest: policy_loss(variant, new, *rest)[0]))
specified = jax.jit(jax.value_and_grad(grpo_loss))


@pytest.mark.parametrize(("clip_eps", "kl_coeff"), [(0.2, 0.04), (0.05, 0.5), (10.0, 0.0)])
def test_the_composition_is_the_specification(clip_eps, kl_coeff):
    """Random batches of 3 prompts with 4 answers of 1 to 6 tokens; loss to float32 rounding, gradient to 1e-5 of its largest entry."""
    variant = get_variant("grpo", clip_eps=clip_eps, kl_coeff=kl_coeff)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 7, (3, 4, 1))
        mask = (np.arange(6) < lengths).astype(np.float32)
        new = rng.normal(-1.5, 0.7, mask.shape).astype(np.float32)
        old, ref = (new + rng.normal(0, 0.3, mask.shape).astype(np.float32) for _ in range(2))
        rewards = np.array([[1, 0, 0, 0], [1, 1, 0, 1], [0, 1, 0, 1]], np.float32)
        flat = lambda x: x.reshape(12, 6)
        advantages = group_advantages(rewards).reshape(-1)
        loss, gradient = composed(flat(new), variant, flat(old), flat(ref), advantages, flat(mask))
        want, want_gradient = specified(new, old, ref, rewards, mask, clip_eps, kl_coeff)
        assert float(loss) == pytest.approx(float(want), rel=1e-5, abs=1e-6)
        np.testing.assert_allclose(gradient, flat(np.asarray(want_gradient)), atol=1e-5 * np.abs(want_gradient).max())
