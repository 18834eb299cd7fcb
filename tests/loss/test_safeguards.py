"""Weights against data the policy would not have sampled: values in every cell, and no gradient."""

import jax
import numpy as np
import pytest

from grpojax import get_variant, policy_loss
from grpojax.loss.safeguards import off_policy_mask, sequence_importance_mask, truncated_importance

MASK = np.float32([[1, 1, 0], [1, 1, 1]])
SAMPLER = np.float32([[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]])


def logps(*ratios):
    """Log-probs with these ratios to the sampler's."""
    return (SAMPLER + np.log(np.float32(ratios))).astype(np.float32)


def test_truncated_importance_caps_each_token():
    # below 1, 1, between 1 and the cap, above it; the masked position has 1. min(r, 2), not clip(r, 1/2, 2)
    old = logps([0.25, 1.0, 9.0], [1.5, 2.5, 4.0])
    np.testing.assert_allclose(truncated_importance(old, SAMPLER, MASK, 2.0), [[0.25, 1, 1], [1.5, 2, 2]], rtol=1e-5)


def test_sequence_importance_masks_above_the_cap_alone():
    # products of the answer's ratios: 0.25 * 1 (the third is masked), 1.5 * 2 * 2 = 6
    old = logps([0.25, 1.0, 9.0], [1.5, 2.0, 2.0])
    np.testing.assert_allclose(sequence_importance_mask(old, SAMPLER, MASK, 5.9), [0.25, 0], rtol=1e-5)
    np.testing.assert_allclose(sequence_importance_mask(old, SAMPLER, MASK, 6.1), [0.25, 6], rtol=1e-5)


# mean_t log(sampler / new): row 1 (0.3 + 0.1) / 2 = 0.2 (over three positions 0.133), row 2 (0.3 + 0.3 - 0.3) / 3 = 0.1
DRIFTED = SAMPLER - np.float32([[0.3, 0.1, 9.0], [0.3, 0.3, -0.3]])
OFF_POLICY = {  # advantages, delta: weights
    ((-1.0, -1.0), 0.15): (0.0, 1.0),
    ((1.0, -1.0), 0.15): (1.0, 1.0),
    ((0.0, -1.0), 0.15): (1.0, 1.0),  # A = 0 is not a bad answer
    ((-1.0, -1.0), 0.05): (0.0, 0.0),
    ((-1.0, 1.0), 0.05): (0.0, 1.0),
    ((-1.0, -1.0), 0.25): (1.0, 1.0),
}


@pytest.mark.parametrize(("case", "want"), OFF_POLICY.items())
def test_off_policy_mask(case, want):
    advantages, delta = case
    got = off_policy_mask(DRIFTED, SAMPLER, np.float32(advantages), MASK, delta)
    np.testing.assert_array_equal(got, want)


def test_a_policy_that_likes_the_answer_more_is_not_masked():
    """The gap has a sign: an answer that became likelier stays, whatever its advantage."""
    likelier = SAMPLER + 5
    np.testing.assert_array_equal(off_policy_mask(likelier, SAMPLER, np.float32([-1, -1]), MASK, 0.1), [1, 1])


def test_exactly_delta_is_kept():
    # 0.5 + 0.5 over 2: the mean is exactly 0.5, and the mask wants more than delta
    new = np.float32([[-1.5, -2.5, -3.0], [-1.0, -2.0, -3.0]])
    np.testing.assert_array_equal(off_policy_mask(new, SAMPLER, np.float32([-1, -1]), MASK, 0.5), [1, 1])


@pytest.mark.parametrize("safeguard", [truncated_importance, sequence_importance_mask, off_policy_mask])
def test_no_gradient_passes(safeguard):
    extra = (np.float32([-1, 1]),) if safeguard is off_policy_mask else ()
    gradients = jax.jit(jax.grad(lambda x, y: safeguard(x, y, *extra, MASK, 1.1).sum(), argnums=(0, 1)))
    for gradient in gradients(DRIFTED, SAMPLER):
        assert (np.asarray(gradient) == 0).all()


@pytest.mark.parametrize("safeguard", [truncated_importance, sequence_importance_mask, off_policy_mask])
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_large_gaps_and_garbage_outside_the_answer_stay_finite(safeguard, gap):
    extra = (np.float32([-1, 1]),) if safeguard is off_policy_mask else ()
    ours = np.where(MASK > 0, SAMPLER + np.float32(gap), np.float32(np.nan))
    got = np.asarray(safeguard(ours, SAMPLER, *extra, MASK, 2.0))
    assert np.isfinite(got).all() and (got >= 0).all() and (got <= 2).all()


# What they do to a loss: one answer of two tokens and one of one, ratio 1, A = -1 and 1, so that the objective of each
# token is A; ref = new - 1, so that k1 is 1 a token and its term 0.5 whatever the weights.
NEW = np.float32([[-1.0, -2.0], [-1.0, -9.0]])
ANSWERS = np.float32([[1, 1], [1, 0]])
WEIGHED = {  # number, sampler's log-probs: pg_loss of the token mean = -(w_11 A_1 + w_12 A_1 + w_21 A_2) / 3
    # p_old / p_sampler = 4 and 1/2 | 1: -(-2 - 0.5 + 1) / 3
    ("tis_cap", 2.0): ([[4.0, 0.5], [1.0, 1.0]], 0.5),
    # of answers: 4 * 0.5 = 2 | 3 > 2.5, masked: -(-2 - 2 + 0) / 3
    ("sequence_mask_cap", 2.5): ([[4.0, 0.5], [3.0, 1.0]], 4 / 3),
    # log-gaps -ln 4, -ln 4: likelier now, kept | ...
    ("off_policy_delta", 0.1): ([[4.0, 4.0], [0.1, 1.0]], 1 / 3),
    # ... ln 2 each > 0.1 with A < 0, masked | ln 10 with A > 0, kept: -(0 + 0 + 1) / 3
    ("off_policy_delta", 0.2): ([[0.5, 0.5], [0.1, 1.0]], -1 / 3),
}


_both = jax.jit(jax.value_and_grad(policy_loss, argnums=1, has_aux=True))


@pytest.mark.parametrize(("number", "case"), WEIGHED.items())
def test_weights_multiply_the_objective_and_not_the_kl_term(number, case):
    ratios, want = case
    variant = get_variant("dapo", kl_coeff=0.5, kl_estimator="k1", **dict([number]))
    sampler = (NEW - np.log(np.float32(ratios))).astype(np.float32)

    (total, aux), gradient = _both(variant, NEW, NEW, NEW - 1, np.float32([-1, 1]), ANSWERS, sampler_logps=sampler)
    assert float(aux["pg_loss"]) == pytest.approx(want, abs=1e-5)
    assert float(aux["kl_loss"]) == pytest.approx(0.5, abs=1e-6)
    assert float(total) == pytest.approx(want + 0.5, abs=1e-5)
    # at ratio 1 the slope of each token is its objective, so the three add up to the pg_loss; k1 adds 0.5 / 3 to each
    assert float(np.sum(np.asarray(gradient))) == pytest.approx(want + 0.5, abs=1e-5)


def test_without_sampler_logps_the_trainers_are_used():
    """Trainer against trainer weighs 1; the off-policy mask then looks at the policy's drift alone."""
    advantages = np.float32([-1, 1])
    plain, _ = policy_loss(get_variant("dapo"), NEW, NEW, None, advantages, ANSWERS)
    for number in ({"tis_cap": 2.0}, {"sequence_mask_cap": 2.0}, {"off_policy_delta": 0.1}):
        assert float(policy_loss(get_variant("dapo", **number), NEW, NEW, None, advantages, ANSWERS)[0]) == float(plain)
    drifted, _ = policy_loss(get_variant("dapo", off_policy_delta=0.1), NEW, NEW + 0.2, None, advantages, ANSWERS)
    # the bad answer is masked, the good one has ratio e^-0.2: -0.818731 / 3
    assert float(drifted) == pytest.approx(-0.272910, abs=1e-6)
