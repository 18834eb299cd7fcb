"""Ratios and bounds: value, slope and clip flag in every cell."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.loss.objectives import (
    capped_token_ratio,
    cispo,
    clip_first_printing,
    clip_pessimistic,
    clip_two_sided,
    gspo_token_ratio,
    reinforce,
    sapo,
    sequence_mean_ratio,
    sequence_sum_ratio,
    token_ratio,
)


@functools.partial(jax.jit, static_argnums=0)
def value_and_slope(piece, first, *others, **numbers):
    """What a piece returns, and the gradient of the sum of its values by its first argument.

    Compiled as a whole; eagerly, each operation would be compiled separately.
    """

    def total(first):
        got = piece(first, *others, **numbers)
        return jnp.sum(got[0] if isinstance(got, tuple) else got), got

    slope, got = jax.grad(total, has_aux=True)(first)
    return got, slope


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
DUAL = 3.0
TWO_SIDED = PESSIMISTIC | {  # the same, and for A < 0 not below 3 A
    (0.5, -2.0): (-1.6, 0.0, True),  # max(min(-1.0, -1.6), -6)
    (2.5, -2.0): (-5.0, -2.0, False),  # max(min(-5.0, -2.6), -6): outside 1 + HIGH, still pushed back
    (4.0, -2.0): (-6.0, 0.0, True),  # max(min(-8.0, -2.6), -6)
    (4.0, 2.0): (2.6, 0.0, True),  # a good answer has its own bound; 3 A would be 6
    (4.0, 0.0): (0.0, 0.0, False),
}
CLIPS = {
    clip_pessimistic: (PESSIMISTIC, {"clip_low": LOW, "clip_high": HIGH}),
    clip_first_printing: (FIRST_PRINTING, {"clip_low": LOW, "clip_high": HIGH}),
    clip_two_sided: (TWO_SIDED, {"clip_low": LOW, "clip_high": HIGH, "clip_dual": DUAL}),
}


@pytest.mark.parametrize("clip", CLIPS)
def test_every_cell(clip):
    table, numbers = CLIPS[clip]
    ratio, advantages = np.float32(list(table)).T
    (value, clipped), slope = value_and_slope(clip, ratio, advantages, **numbers)
    want_value, want_slope, want_clipped = zip(*table.values(), strict=True)
    np.testing.assert_allclose(value, want_value, rtol=1e-6)
    np.testing.assert_allclose(slope, want_slope, rtol=1e-6)
    assert clipped.tolist() == list(want_clipped)


@pytest.mark.parametrize("clip", CLIPS)
def test_every_slope_by_log_prob(clip):
    """d r / d log p = r, so a cell with slope s by the ratio has r s by the log-prob."""
    table, numbers = CLIPS[clip]
    ratio, advantages = np.float32(list(table)).T[:, None]
    zeros, mask = np.zeros_like(ratio), np.ones_like(ratio)
    _, slope = value_and_slope(lambda new: clip(token_ratio(new, zeros, mask), advantages, **numbers), np.log(ratio))
    want = [r * cell[1] for (r, _), cell in table.items()]
    np.testing.assert_allclose(slope, [want], rtol=1e-5)


# CISPO: value min(r, 2) A log p, d value / d log p = min(r, 2) A: the weight is a constant
CAP, LOGP = 2.0, -0.5
CISPO = {  # (ratio, advantage): value, d value / d log-prob
    (0.25, 3.0): (-0.375, 0.75),  # 0.25 * 3 * -0.5; no lower bound
    (0.25, -3.0): (0.375, -0.75),
    (0.25, 0.0): (0.0, 0.0),
    (1.5, 3.0): (-2.25, 4.5),
    (1.5, -3.0): (2.25, -4.5),
    (1.5, 0.0): (0.0, 0.0),
    (4.0, 3.0): (-3.0, 6.0),  # 2 * 3 * -0.5; PPO's slope is 0 here, without the bound it is 12
    (4.0, -3.0): (3.0, -6.0),
    (4.0, 0.0): (0.0, 0.0),
}


def test_every_cell_of_cispo():
    """With the ratio made of the same log-probs: were it not constant, its own slope, r A log p, would be added."""
    ratio, advantages = np.float32(list(CISPO)).T[:, None]
    mask, logps = np.ones_like(ratio), np.full_like(ratio, LOGP)
    old = logps - np.log(ratio)

    def of_logps(new):
        return cispo(token_ratio(new, old, mask), advantages, new, ratio_cap=CAP)

    (value, _), slope = value_and_slope(of_logps, logps)
    want_value, want_slope = zip(*CISPO.values(), strict=True)
    np.testing.assert_allclose(value, [want_value], rtol=1e-5)
    np.testing.assert_allclose(slope, [want_slope], rtol=1e-5)


# SAPO: value A 4 / tau p with p = sigmoid(tau (r - 1)); d value / d r = 4 p (1 - p) A; tau 1 for A > 0 and 2 for A < 0.
# sigmoid(-1/2) = 0.377541, sigmoid(1) = 0.731059, sigmoid(3) = 0.952574; sigmoid(2) = 0.880797, sigmoid(6) = 0.997527
SAPO = {  # (ratio, advantage): value, d value / d log-prob = r 4 p (1 - p) A
    (0.5, 1.0): (1.51016, 0.47001),  # 4 * 0.377541, 0.5 * 4 * 0.377541 * 0.622459
    (1.0, 1.0): (2.0, 1.0),
    (2.0, 1.0): (2.92423, 1.57290),  # 4 * 0.731059, 2 * 4 * 0.731059 * 0.268941
    (4.0, 1.0): (3.81030, 0.72283),  # 4 * 0.952574, 4 * 4 * 0.952574 * 0.047426
    (0.5, -1.0): (-0.53788, -0.39322),  # 2 * 0.268941, 0.5 * 4 * 0.268941 * 0.731059
    (1.0, -1.0): (-1.0, -1.0),
    (2.0, -1.0): (-1.76159, -0.83995),  # 2 * 0.880797, 2 * 4 * 0.880797 * 0.119203
    (4.0, -1.0): (-1.99505, -0.03947),  # 2 * 0.997527, 4 * 4 * 0.997527 * 0.0024665
    (0.5, 0.0): (0.0, 0.0),
    (4.0, 0.0): (0.0, 0.0),
}


def test_every_cell_of_sapo():
    ratio, advantages = np.float32(list(SAPO)).T[:, None]
    zeros, mask = np.zeros_like(ratio), np.ones_like(ratio)

    def of_logps(new):
        return sapo(token_ratio(new, zeros, mask), advantages, sapo_tau_pos=1.0, sapo_tau_neg=2.0)

    (value, _), slope = value_and_slope(of_logps, np.log(ratio))
    want_value, want_slope = zip(*SAPO.values(), strict=True)
    np.testing.assert_allclose(value, [want_value], atol=2e-5)
    np.testing.assert_allclose(slope, [want_slope], atol=2e-5)


def test_clips_differ_where_a_bad_answer_becomes_likelier():
    # r = 1.5, A = -1, bounds 0.8 and 1.2: PPO -1.5 with slope -1, the first printing -1.2 with slope 0
    for clip, want_value, want_slope in ((clip_pessimistic, -1.5, -1.0), (clip_first_printing, -1.2, 0.0)):
        (value, _), slope = value_and_slope(clip, np.float32(1.5), np.float32(-1), 0.2, 0.2)
        np.testing.assert_allclose((value, slope), (want_value, want_slope), rtol=1e-6)


def test_clip_flags_count_lost_gradients():
    ratio, advantages = np.float32([1.5, 0.5, 1.5, 0.5]), np.float32([1.0, 1.0, -1.0, -1.0])
    _, clipped = clip_pessimistic(ratio, advantages, 0.2, 0.2)
    assert clipped.tolist() == [True, False, False, True]
    _, clipped = clip_first_printing(ratio, advantages, 0.2, 0.2)
    assert clipped.tolist() == [True, False, True, False]


@pytest.mark.parametrize("clip", [clip_pessimistic, clip_first_printing])
def test_the_book_bound_of_ten_has_no_lower_side(clip):
    """1 - 10 is below every ratio, so only a ratio above 11 with a good answer is cut."""
    ratio, advantages = np.float32([1e-6, 1e-6, 12.0]), np.float32([1.0, -1.0, 1.0])
    (value, clipped), _ = value_and_slope(clip, ratio, advantages, 10.0, 10.0)
    np.testing.assert_allclose(value, [1e-6, -1e-6, 11.0])
    assert clipped.tolist() == [False, False, True]


@pytest.mark.parametrize("clip", [clip_pessimistic, clip_first_printing])
@pytest.mark.parametrize("eps", [pytest.param(0.0), 0.2, 10.0])
def test_slope_at_ratio_one_is_the_advantage(clip, eps):
    _, slope = value_and_slope(clip, np.ones(2, np.float32), np.float32([0.7, -0.4]), eps, eps)
    np.testing.assert_allclose(slope, [0.7, -0.4], rtol=1e-6)


def test_a_bound_far_away_is_no_second_bound():
    """The dual bound acts on bad answers above it and nowhere else."""
    ratio, advantages = np.float32(list(PESSIMISTIC)).T
    got, clipped = clip_two_sided(ratio, advantages, LOW, HIGH, 1e9)
    want, want_clipped = clip_pessimistic(ratio, advantages, LOW, HIGH)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(clipped, want_clipped)


def test_reinforce_weighs_log_probs():
    value, clipped = reinforce(np.float32([[-1.0, -2.0]]), np.float32([[0.5, -0.5]]))
    np.testing.assert_allclose(value, [[-0.5, 1.0]])
    assert not np.any(clipped)


def test_sequence_ratio_takes_masked_sums():
    # row 1: (-1 + 1.5) + (-2 + 2.25) = 0.75, the third position is masked; row 2: all are
    new = np.float32([[-1.0, -2.0, -9.0], [-1.0, -1.0, -1.0]])
    old = np.float32([[-1.5, -2.25, -1.0], [-2.0, -2.0, -2.0]])
    mask = np.float32([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(sequence_sum_ratio(new, old, mask), [2.1170, 1.0], rtol=1e-5)


# Two answers of 2 and 3 tokens. Log-ratios: 0.5, -0.25 | 0.25, -0.5, 0.25
NEW = np.float32([[-1.0, -2.0, -0.5], [-0.25, -3.0, -1.0]])
OLD = np.float32([[-1.5, -1.75, -0.25], [-0.5, -2.5, -1.25]])
MASK = np.float32([[1, 1, 0], [1, 1, 1]])


def test_token_ratio():
    # e^0.5, e^-0.25, 1 at the masked position | e^0.25, e^-0.5, e^0.25
    want = [[1.64872, 0.77880, 1.0], [1.28403, 0.60653, 1.28403]]
    np.testing.assert_allclose(token_ratio(NEW, OLD, MASK), want, atol=5e-6)


def test_sequence_mean_ratio_is_the_geometric_mean():
    # row 1: mean of 0.5 and -0.25 is 0.125, e^0.125 = 1.13315 (over all 3 positions 0.0833); row 2: mean 0
    np.testing.assert_allclose(sequence_mean_ratio(NEW, OLD, MASK), [1.13315, 1.0], atol=5e-6)
    # d exp(mean) / d log p_t = ratio / |o|: 1.13315 / 2 and 1 / 3
    _, slope = value_and_slope(sequence_mean_ratio, NEW, OLD, MASK)
    np.testing.assert_allclose(slope, [[0.56657, 0.56657, 0], [1 / 3] * 3], atol=5e-6)


def test_sequence_sum_ratio_has_the_whole_ratio_at_every_token():
    # d exp(sum) / d log p_t = ratio: e^0.25 = 1.28403 and e^0
    _, slope = value_and_slope(sequence_sum_ratio, NEW, OLD, MASK)
    np.testing.assert_allclose(slope, [[1.28403, 1.28403, 0], [1, 1, 1]], atol=5e-6)


def test_gspo_token_ratio_is_the_sequences_in_value_and_the_tokens_in_gradient():
    ratio = gspo_token_ratio(NEW, OLD, MASK)
    np.testing.assert_allclose(ratio, [[1.13315, 1.13315, 1.0], [1, 1, 1]], atol=5e-6)
    # weights 1 to 6 tell the positions apart: d (w_t s_t) / d log p_t = w_t s, and no other token's
    weights = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    _, slope = value_and_slope(lambda new: weights * gspo_token_ratio(new, OLD, MASK), NEW)
    np.testing.assert_allclose(slope, [[1.13315, 2.26630, 0], [4, 5, 6]], atol=1e-5)


def test_gspo_token_is_gspo_where_all_tokens_have_one_advantage():
    # mean_t of s_t A has d / d log p_t = s A / |o|, and so has s A
    advantages, lengths = np.float32([1.5, -0.5]), np.float32([2.0, 3.0])

    def by_tokens(new):
        return (jnp.where(MASK > 0, gspo_token_ratio(new, OLD, MASK), 0).sum(1) / lengths * advantages).sum()

    value, slope = value_and_slope(by_tokens, NEW)
    want, want_slope = value_and_slope(lambda new: (sequence_mean_ratio(new, OLD, MASK) * advantages).sum(), NEW)
    np.testing.assert_allclose(value, want, rtol=1e-6)
    np.testing.assert_allclose(slope, want_slope, rtol=1e-6)


def test_capped_token_ratio():
    # cap 1.5: e^0.5 = 1.64872 is cut and has no slope, the others are themselves, in value and slope
    value = capped_token_ratio(NEW, OLD, MASK, clip_high=0.5)
    np.testing.assert_allclose(value, [[1.5, 0.77880, 1.0], [1.28403, 0.60653, 1.28403]], atol=5e-6)
    _, slope = value_and_slope(capped_token_ratio, NEW, OLD, MASK, clip_high=0.5)
    np.testing.assert_allclose(slope, [[0, 0.77880, 0], [1.28403, 0.60653, 1.28403]], atol=5e-6)


def test_a_cap_at_equal_policies_keeps_the_whole_gradient():
    """min(r, 1) ties at r = 1, where a naive min would give half a slope."""
    _, slope = value_and_slope(capped_token_ratio, NEW, NEW, MASK, clip_high=0.0)
    np.testing.assert_array_equal(slope, MASK)


RATIOS = [
    token_ratio,
    sequence_sum_ratio,
    sequence_mean_ratio,
    gspo_token_ratio,
    pytest.param(lambda new, old, mask: capped_token_ratio(new, old, mask, clip_high=0.2), id="capped_token_ratio"),
]


@pytest.mark.parametrize("ratio", RATIOS)
def test_masked_positions_have_ratio_one_and_no_gradient(ratio):
    want, _ = value_and_slope(ratio, NEW, OLD, MASK)
    for bad in (np.nan, np.inf, -np.inf):
        new, old = (np.where(MASK > 0, x, np.float32(bad)) for x in (NEW, OLD))
        value, slope = value_and_slope(ratio, new, old, MASK)
        np.testing.assert_array_equal(value, want)
        assert np.isfinite(value).all() and np.isfinite(slope).all() and (np.asarray(slope)[MASK == 0] == 0).all()


@pytest.mark.parametrize("ratio", RATIOS)
def test_an_answer_without_tokens_has_ratio_one(ratio):
    value, slope = value_and_slope(ratio, NEW, OLD, np.zeros_like(MASK))
    assert (np.asarray(value) == 1).all() and (np.asarray(slope) == 0).all()


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("log_ratio", [100.0, -100.0, 1e30, -1e30])
def test_large_log_ratios_of_every_kind_stay_finite(ratio, log_ratio):
    value, slope = value_and_slope(ratio, np.full_like(NEW, log_ratio), np.zeros_like(OLD), np.ones_like(MASK))
    assert np.isfinite(value).all() and np.isfinite(slope).all() and (np.asarray(value) > 0).all()


def test_small_drifts_add_up_over_a_sequence():
    # 512 tokens that drifted by 0.01: token ratio 1.0101, sequence ratio exp(5.12) = 167.34, past both 1.2 and 11
    new, old, mask = (np.full((1, 512), x, np.float32) for x in (-0.99, -1.0, 1.0))
    ratio, _ = value_and_slope(sequence_sum_ratio, new, old, mask)
    np.testing.assert_allclose(ratio, [167.34], rtol=1e-4)  # 512 roundings of 6e-8 in the exponent
    for eps, bound in ((0.2, 1.2), (10.0, 11.0)):
        (value, clipped), _ = value_and_slope(clip_pessimistic, ratio, np.ones(1, np.float32), eps, eps)
        np.testing.assert_allclose(value, [bound], rtol=1e-6)
        assert clipped.tolist() == [True]


@pytest.mark.parametrize("log_ratio", [100.0, -100.0, 1e30, -1e30])
def test_large_log_ratios_stay_finite(log_ratio):
    new, old, mask = (np.full((1, 1), x, np.float32) for x in (log_ratio, 0.0, 1.0))
    value, slope = value_and_slope(sequence_sum_ratio, new, old, mask)
    assert np.isfinite(value).all() and np.isfinite(slope).all()
    assert (float(value[0]) > 1e8) == (log_ratio > 0) and float(value[0]) > 0


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
