"""Ratios and bounds: value, slope and clip flag in every cell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.loss.objectives import clip_first_printing, clip_pessimistic, reinforce, sequence_sum_ratio

LOW, HIGH = 0.2, 0.3  # bounds 0.8 and 1.3, different so that a swap shows

# (ratio, advantage): value, d value / d ratio, whether the bound took the gradient
PESSIMISTIC = {  # min(r A, clip(r, 0.8, 1.3) A)
    (0.5, 2.0): (1.0, 2.0, False),  # min(1.0, 1.6)
    (0.5, -2.0): (-1.6, 0.0, True),  # min(-1.0, -1.6)
    (0.5, 0.0): (0.0, 0.0, False),
    (0.9, 2.0): (1.8, 2.0, False),
    (0.9, -2.0): (-1.8, -2.0, False),
    (0.9, 0.0): (0.0, 0.0, False),
    (1.25, 2.0): (2.5, 2.0, False),  # outside 1 + LOW
    (1.25, -2.0): (-2.5, -2.0, False),
    (0.75, -2.0): (-1.6, 0.0, True),  # inside 1 - HIGH
    (1.5, 2.0): (2.6, 0.0, True),  # min(3.0, 2.6)
    (1.5, -2.0): (-3.0, -2.0, False),  # min(-3.0, -2.6): still pushed back
    (1.5, 0.0): (0.0, 0.0, False),
}
FIRST_PRINTING = PESSIMISTIC | {  # min for A >= 0, max for A < 0: A min(r, 1.3)
    (0.5, -2.0): (-1.0, -2.0, False),  # max(-1.0, -1.6)
    (0.75, -2.0): (-1.5, -2.0, False),
    (1.5, -2.0): (-2.6, 0.0, True),  # max(-3.0, -2.6)
}


@pytest.mark.parametrize("clip", [clip_pessimistic, clip_first_printing])
def test_every_cell(clip):
    table = PESSIMISTIC if clip is clip_pessimistic else FIRST_PRINTING
    ratio, advantages = (jnp.array(column) for column in zip(*table, strict=True))
    value, clipped = clip(ratio, advantages, clip_low=LOW, clip_high=HIGH)
    slope = jax.grad(lambda r: clip(r, advantages, clip_low=LOW, clip_high=HIGH)[0].sum())(ratio)
    want_value, want_slope, want_clipped = zip(*table.values(), strict=True)
    np.testing.assert_allclose(value, want_value, rtol=1e-6)
    np.testing.assert_allclose(slope, want_slope, rtol=1e-6)
    assert clipped.tolist() == list(want_clipped)


def test_clips_differ_where_a_bad_answer_rises():
    # r = 1.5, A = -1, bounds 0.8 and 1.2: PPO -1.5 with slope -1, the first printing -1.2 with slope 0
    for clip, value, slope in ((clip_pessimistic, -1.5, -1.0), (clip_first_printing, -1.2, 0.0)):
        got = jax.value_and_grad(lambda r, clip=clip: clip(r, jnp.float32(-1), 0.2, 0.2)[0])(jnp.float32(1.5))
        np.testing.assert_allclose(got, (value, slope), rtol=1e-6)


def test_clip_flags_count_lost_gradients():
    _, clipped = clip_pessimistic(jnp.array([1.5, 0.5, 1.5, 0.5]), jnp.array([1.0, 1.0, -1.0, -1.0]), 0.2, 0.2)
    assert clipped.tolist() == [True, False, False, True]
    _, clipped = clip_first_printing(jnp.array([1.5, 0.5, 1.5, 0.5]), jnp.array([1.0, 1.0, -1.0, -1.0]), 0.2, 0.2)
    assert clipped.tolist() == [True, False, True, False]


@pytest.mark.parametrize("clip", [clip_pessimistic, clip_first_printing])
def test_the_book_bound_of_ten_has_no_lower_side(clip):
    """1 - 10 is below every ratio, so only a ratio above 11 with a good answer is cut."""
    value, clipped = clip(jnp.array([1e-6, 1e-6, 12.0]), jnp.array([1.0, -1.0, 1.0]), 10.0, 10.0)
    np.testing.assert_allclose(value, [1e-6, -1e-6, 11.0])
    assert clipped.tolist() == [False, False, True]


@pytest.mark.parametrize("clip", [clip_pessimistic, clip_first_printing])
@pytest.mark.parametrize("eps", [pytest.param(0.0), 0.2, 10.0])
def test_slope_at_ratio_one_is_the_advantage(clip, eps):
    slope = jax.grad(lambda r: clip(r, jnp.array([0.7, -0.4]), eps, eps)[0].sum())(jnp.ones(2))
    np.testing.assert_allclose(slope, [0.7, -0.4], rtol=1e-6)


def test_reinforce_weighs_log_probs():
    value, clipped = reinforce(jnp.array([[-1.0, -2.0]]), jnp.array([[0.5, -0.5]]))
    np.testing.assert_allclose(value, [[-0.5, 1.0]])
    assert not clipped.any()


def test_sequence_ratio_takes_masked_sums():
    # row 1: (-1 + 1.5) + (-2 + 2.25) = 0.75, the third place is no answer; row 2: nothing is
    new = jnp.array([[-1.0, -2.0, -9.0], [-1.0, -1.0, -1.0]])
    old = jnp.array([[-1.5, -2.25, -1.0], [-2.0, -2.0, -2.0]])
    mask = jnp.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(sequence_sum_ratio(new, old, mask), [2.1170, 1.0], rtol=1e-5)


def test_small_drifts_add_up_over_a_sequence():
    # 512 tokens that drifted by 0.01: token ratio 1.0101, sequence ratio exp(5.12) = 167.34, past both 1.2 and 11
    new, old, mask = jnp.full((1, 512), -0.99), jnp.full((1, 512), -1.0), jnp.ones((1, 512))
    ratio = sequence_sum_ratio(new, old, mask)
    np.testing.assert_allclose(ratio, [167.34], rtol=1e-4)  # 512 roundings of 6e-8 in the exponent
    for eps, bound in ((0.2, 1.2), (10.0, 11.0)):
        value, clipped = clip_pessimistic(ratio, jnp.ones(1), eps, eps)
        np.testing.assert_allclose(value, [bound], rtol=1e-6)
        assert clipped.tolist() == [True]


@pytest.mark.parametrize("log_ratio", [100.0, -100.0, 1e30, -1e30])
def test_large_log_ratios_stay_finite(log_ratio):
    def ratio(new):
        return sequence_sum_ratio(new, jnp.zeros((1, 1)), jnp.ones((1, 1)))[0]

    value, slope = jax.value_and_grad(ratio)(jnp.full((1, 1), log_ratio))
    assert np.isfinite(value) and np.isfinite(slope).all()
    assert (value > 1e8) == (log_ratio > 0) and value > 0


@pytest.mark.parametrize(
    ("piece", "shapes", "message"),
    [
        (clip_pessimistic, [(3,), (1,)], r"advantages has shape \(1,\), expected \(3\)"),
        (clip_first_printing, [(3, 2), (3,)], r"advantages has shape \(3,\), expected \(3, 2\)"),
        (reinforce, [(3, 2), (3,)], r"advantages has shape \(3,\), expected \(3, 2\)"),
        (sequence_sum_ratio, [(3, 2), (1, 2), (3, 2)], r"old_logps has shape \(1, 2\), expected \(3, 2\)"),
        (sequence_sum_ratio, [(3, 2), (3, 2), (3, 1)], r"mask has shape \(3, 1\), expected \(3, 2\)"),
    ],
)
def test_shapes_are_named(piece, shapes, message):
    bounds = (0.2, 0.2) if piece in (clip_pessimistic, clip_first_printing) else ()
    with pytest.raises(ValueError, match=message):
        piece(*map(np.ones, shapes), *bounds)
