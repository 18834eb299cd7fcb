"""The composed loss of every variant: the chapter's numbers, gradients cell by cell, masks, extremes, compilation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import LOSSES

from grpojax import VARIANTS, get_variant, group_advantages, policy_loss
from grpojax.loss import objectives
from grpojax.loss.pieces import OBJECTIVES, RATIOS, REDUCTIONS, SAFEGUARDS
from grpojax.loss.policy_loss import Loss, parameters
from grpojax.loss.reduce import constant_divisor, mean_per_sequence, sum_per_sequence, token_mean
from grpojax.variants import Recipe

CHAPTER_NEW = np.float32([[-7.9243], [-20.1546], [-16.6130], [-23.3677]])
CHAPTER_OLD = np.float32([[-10.9243], [-20.3546], [-14.6130], [-23.3677]])
CHAPTER_ADVANTAGES = np.asarray(group_advantages(np.array([[1.0, 1.0, 0.0, 0.0]])))[0]

NEW = np.float32([[-1.0, -2.0, -0.5], [-0.25, -3.0, -1.0]])
OLD = np.float32([[-1.5, -1.75, -0.5], [-0.5, -2.5, -1.25]])
REF = np.float32([[-2.0, -2.0, -1.0], [-0.25, -2.0, -2.0]])
ADVANTAGES = np.float32([1.5, -0.5])
MASK = np.float32([[1, 1, 0], [1, 1, 1]])


_both = jax.value_and_grad(policy_loss, argnums=1, has_aux=True)
_compiled = jax.jit(_both)


def loss_and_gradient(variant, new=NEW, old=OLD, ref=REF, advantages=ADVANTAGES, mask=MASK, sampler=None):
    """(loss, aux), d loss / d new. With a sampler in every call, each structure and shape compiles once."""
    return _compiled(variant, new, old, ref, advantages, mask, sampler_logps=old if sampler is None else sampler)


class TestChapterNumbers:
    def loss(self, name):
        one_token = np.ones((4, 1), np.float32)
        return loss_and_gradient(get_variant(name), CHAPTER_NEW, CHAPTER_OLD, None, CHAPTER_ADVANTAGES, one_token)

    def test_plain_policy_gradient(self):
        # -0.8659 (-7.9243 - 20.1546 + 16.6130 + 23.3677) / 4 = -0.8659 * 11.9018 / 4
        (loss, aux), _ = self.loss("tracking")
        assert float(loss) == pytest.approx(-2.5764, abs=5e-5)
        assert float(aux["pg_loss"]) == float(loss) and float(aux["kl_loss"]) == 0.0

    @pytest.mark.parametrize("name", ["clipped", "book-7.4"])
    def test_clipped(self, name):
        # ratios 20.0855, 1.2214, 0.1353, 1; the first is cut at 11: 0.8659 (11 + 1.2214 - 0.1353 - 1) / 4 = 2.3998
        (loss, aux), _ = self.loss(name)
        assert float(loss) == pytest.approx(-2.3998, abs=5e-5)
        assert float(aux["policy_ratio"]) == pytest.approx(5.6106, abs=5e-5)
        assert float(aux["clip_frac"]) == 0.25


# ratio, advantage -> d loss / d logp = -slope * ratio of the only sequence, bounds 0.8 and 1.3
SLOPES = {
    "clipped": {(0.5, 1): -0.5, (0.5, -1): 0.0, (1.1, 1): -1.1, (1.1, -1): 1.1, (1.5, 1): 0.0, (1.5, -1): 1.5},
    "book-7.4": {(0.5, 1): -0.5, (0.5, -1): 0.5, (1.1, 1): -1.1, (1.1, -1): 1.1, (1.5, 1): 0.0, (1.5, -1): 0.0},
}


@pytest.mark.parametrize("name", SLOPES)
def test_gradient_in_every_cell(name):
    """All sequences share a step; each gets its share of the slope, and the second position of each is masked out."""
    variant = get_variant(name, clip_low=0.2, clip_high=0.3)
    ratios, signs = np.float32(list(SLOPES[name])).T
    count = len(ratios)
    new = np.stack([np.log(ratios), np.ones(count)], axis=1).astype(np.float32)
    mask = np.tile(np.float32([1, 0]), (count, 1))
    gradient = np.asarray(loss_and_gradient(variant, new, np.zeros_like(new), None, signs, mask)[1])
    np.testing.assert_allclose(gradient[:, 0] * count, list(SLOPES[name].values()), atol=1e-5)
    assert (gradient[:, 1] == 0).all()


def test_parts_of_the_loss():
    # log-ratios: row 1 0.5 - 0.25 = 0.25, row 2 0.25 - 0.5 + 0.25 = 0; ratios 1.2840 and 1
    # pg = -(1.5 * 1.2840 - 0.5 * 1) / 2 = -0.71302
    # k1 of the answers: row 1 1 + 0 = 1, row 2 0 - 1 + 1 = 0, so kl = 0.1 * 0.5
    # token k1: 1 / 5. Token k3, with ref - new = -1, 0 | 0, 1, -1: (0.36788 + 0 + 0 + 0.71828 + 0.36788) / 5 = 0.29081
    (loss, aux), _ = loss_and_gradient(get_variant("kl", kl_coeff=0.1))
    expected = {
        "pg_loss": -0.71302, "kl_loss": 0.05, "policy_ratio": 1.14201, "clip_frac": 0.0, "kl_k1": 0.2, "kl_k3": 0.29081,
        "safeguard_weight": np.nan,
    }  # fmt: skip
    assert float(loss) == pytest.approx(-0.66302, abs=1e-5)
    assert {name: pytest.approx(float(value), abs=1e-5, nan_ok=True) for name, value in aux.items()} == expected


def test_reinforce_sums_over_tokens_and_averages_over_sequences():
    # -(1.5 (-1 - 2) - 0.5 (-0.25 - 3 - 1)) / 2 = -(-4.5 + 2.125) / 2 = 1.1875; gradient -A / 2 at answer tokens
    (loss, aux), gradient = loss_and_gradient(get_variant("baseline"))
    assert float(loss) == pytest.approx(1.1875, abs=1e-6)
    np.testing.assert_allclose(gradient, [[-0.75, -0.75, 0], [0.25, 0.25, 0.25]], rtol=1e-6)
    assert np.isnan(aux["policy_ratio"]) and np.isnan(aux["clip_frac"])


@pytest.mark.parametrize("name", ["clipped", "book-7.4"])
@pytest.mark.parametrize("eps", [pytest.param(0.0), 0.2, 10.0])
def test_at_equal_policies_the_gradient_is_reinforces(name, eps):
    """d ratio / d logp is 1 there, so the constant between the two gradients is 1."""
    _, expected = loss_and_gradient(get_variant("baseline"), NEW, NEW)
    _, got = loss_and_gradient(get_variant(name, clip_eps=eps), NEW, NEW)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_equal_reference_has_no_divergence():
    (_, aux), _ = loss_and_gradient(get_variant("kl"), ref=NEW)
    assert float(aux["kl_loss"]) == 0 and float(aux["kl_k1"]) == 0 and float(aux["kl_k3"]) == 0


def test_the_gradient_of_the_kl_term_has_no_reference_in_it():
    variant = get_variant("kl", kl_coeff=0.5)
    _, one = loss_and_gradient(variant, ref=REF)
    _, other = loss_and_gradient(variant, ref=REF - 3)
    np.testing.assert_array_equal(one, other)
    _, without = loss_and_gradient(get_variant("kl", kl_coeff=0), ref=None)
    # 0.5 / 2 sequences: sampled tokens are pushed down
    np.testing.assert_allclose(np.subtract(one, without), 0.25 * MASK, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_masked_positions_do_not_count(name):
    """Neither in the value nor in the gradient, whatever they hold; their gradient is exactly 0."""
    variant = get_variant(name)
    (loss, aux), gradient = loss_and_gradient(variant, sampler=OLD)
    assert (np.asarray(gradient)[MASK == 0] == 0).all() and (np.asarray(gradient)[MASK > 0] != 0).any()
    for bad in (np.nan, np.inf, -np.inf):
        new, old, ref = (np.where(MASK > 0, x, np.float32(bad)) for x in (NEW, OLD, REF))
        (loss_bad, aux_bad), gradient_bad = loss_and_gradient(variant, new, old, ref, sampler=old)
        np.testing.assert_array_equal(loss_bad, loss)
        np.testing.assert_array_equal(gradient_bad, gradient)
        jax.tree.map(np.testing.assert_array_equal, aux_bad, aux)


@pytest.mark.parametrize("name", LOSSES)
def test_far_apart_policies_give_finite_numbers(name):
    for gap in (100.0, -100.0):
        for sampler in (OLD, NEW - gap):
            (loss, aux), gradient = loss_and_gradient(get_variant(name), old=NEW - gap, ref=NEW - gap, sampler=sampler)
            assert np.isfinite(loss) and np.isfinite(gradient).all()
            assert np.isfinite(aux["kl_k3"])


TOKEN_WEIGHTS = {  # of the answers of 2 and 3 tokens among 2 sequences of 3 positions
    sum_per_sequence: (1 / 2, 1 / 2),
    mean_per_sequence: (1 / 4, 1 / 6),
    token_mean: (1 / 5, 1 / 5),
    constant_divisor: (1 / 6, 1 / 6),
}


@pytest.mark.parametrize("name", LOSSES)
def test_at_equal_policies_every_gradient_is_reinforces(name):
    """Every bound and gate has slope 1 at ratio 1, even one of width 0, so a token's gradient is -A times its weight in
    the average. The KL term is left out: that of k1 is not 0 there.
    """
    variant = get_variant(name, kl_coeff=0)
    weights = np.array(TOKEN_WEIGHTS[variant.loss.reduction])
    if variant.loss.ratio in (objectives.sequence_sum_ratio, objectives.sequence_mean_ratio):  # one value an answer
        weights = np.array([1 / 2, 1 / 2] if variant.loss.ratio is objectives.sequence_sum_ratio else [1 / 4, 1 / 6])
    expected = -(weights * ADVANTAGES)[:, None] * MASK
    bounds = [{}, {"clip_eps": 0.0}] if "clip_low" in variant.loss.numbers else [{}]
    for numbers in bounds:
        _, gradient = loss_and_gradient(get_variant(name, kl_coeff=0, **numbers), NEW, NEW)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)


# With REF: new - ref = 1, 0 | 0, -1, 1; of the sums 1 | 0. Token ratios e^0.5, e^-0.25 | e^0.25, e^-0.5, e^0.25; of the
# answers e^0.25 = 1.284025 | 1. k3 of 1 is e^-1 = 0.367879, of -1 e - 2 = 0.718282.
KL_TERMS = {  # variant for its reduction, estimator, level, times the ratio, over the length: kl_loss at kl_coeff 1
    ("kl", "k1", "sequence", False, False): 0.5,  # (1 + 0) / 2
    ("kl", "k1", "sequence", False, True): 0.25,  # (1/2 + 0/3) / 2
    ("kl", "k1", "sequence", True, False): 0.642013,  # (1.284025 * 1 + 0) / 2
    ("kl", "k1", "sequence", True, True): 0.321006,
    ("kl", "k2", "sequence", False, False): 0.25,
    ("kl", "k3", "sequence", False, False): 0.183940,  # 0.367879 / 2
    ("kl", "k1", "token", False, False): 0.5,  # sums 1 | 0
    ("kl", "k3", "token", False, False): 0.727020,  # (0.367879 + 0.718282 + 0.367879) / 2
    ("grpo", "k3", "token", False, False): 0.272997,  # (0.367879 / 2 + 1.086161 / 3) / 2
    ("dapo", "k3", "token", False, False): 0.290808,  # 1.454040 / 5
    ("dapo", "k3", "token", False, True): 0.272997,  # over the length first, whatever the reduction
    ("dapo", "k2", "token", False, False): 0.3,  # 3 * 0.5 / 5
    ("dr-grpo", "k3", "token", False, False): 0.242340,  # 1.454040 / (2 * 3)
    ("dapo", "k1", "token", True, False): 0.465243,  # (1.648721 - 0.606531 + 1.284025) / 5
    # (1.648721 * 0.367879 / 2 + (0.606531 * 0.718282 + 1.284025 * 0.367879) / 3) / 2
    ("grpo", "k3", "token", True, False): 0.302971,
}


def kl_variant(case):
    row, estimator, level, reweight, normalize = case
    kind = {"kl_estimator": estimator, "kl_level": level, "kl_reweight": reweight, "length_normalize": normalize}
    return get_variant(row, kl_coeff=1.0, **kind)


@pytest.mark.parametrize(("case", "want"), KL_TERMS.items())
def test_every_kind_of_kl_term(case, want):
    (loss, aux), _ = loss_and_gradient(kl_variant(case), advantages=np.zeros(2, np.float32))
    assert float(aux["kl_loss"]) == pytest.approx(want, abs=2e-6)
    assert float(loss) == float(aux["kl_loss"]) and float(aux["pg_loss"]) == 0


KL_GRADIENTS = {
    # k1 of an answer: 1 / 2 at each token; times its ratio r (1 + k1): 1.284025 * 2 / 2 | 1 * 1 / 2
    ("kl", "k1", "sequence", False, False): [[0.5, 0.5], [0.5, 0.5, 0.5]],
    ("kl", "k1", "sequence", True, False): [[1.284025, 1.284025], [0.5, 0.5, 0.5]],
    # k3: 1 - e^(ref - new), over 2 * 2 | 2 * 3
    ("grpo", "k3", "token", False, False): [[0.158030, 0], [0, -0.286380, 0.105353]],
    # times the ratio, r k3 + r (1 - e^(ref - new)) = r (new - ref): 1.648721 / 4, 0 | 0, -0.606531 / 6, 1.284025 / 6
    ("grpo", "k3", "token", True, False): [[0.412180, 0], [0, -0.101088, 0.214004]],
}


@pytest.mark.parametrize(("case", "want"), KL_GRADIENTS.items())
def test_gradient_of_the_kl_term(case, want):
    _, gradient = loss_and_gradient(kl_variant(case), advantages=np.zeros(2, np.float32))
    np.testing.assert_allclose(np.asarray(gradient)[MASK > 0], [x for row in want for x in row], atol=2e-6)
    assert (np.asarray(gradient)[MASK == 0] == 0).all()


def test_the_weight_of_the_kl_term_by_domain():
    # twice the first answer's, none of the second's: of means 0.183940 | 0.362054, and of sums 1 | 0
    cases = {("grpo", "k3", "token", False, False): 0.183940, ("kl", "k1", "sequence", False, False): 1.0}
    for case, want in cases.items():
        scale = np.float32([2, 0])
        (_, aux), _ = _compiled(kl_variant(case), NEW, OLD, REF, ADVANTAGES, MASK, kl_scale=scale)
        assert float(aux["kl_loss"]) == pytest.approx(want, abs=2e-6)
    (_, whole), _ = _compiled(kl_variant(case), NEW, OLD, REF, ADVANTAGES, MASK, kl_scale=np.ones(2, np.float32))
    (_, plain), _ = loss_and_gradient(kl_variant(case))
    assert float(whole["kl_loss"]) == float(plain["kl_loss"])


@pytest.mark.parametrize("name", ["tracking", "kl", "book-7.5"])
def test_compiled_equals_eager(name):
    variant = get_variant(name)
    (loss, aux), gradient = loss_and_gradient(variant)
    (eager, eager_aux), eager_gradient = _both(variant, NEW, OLD, REF, ADVANTAGES, MASK)
    np.testing.assert_allclose(loss, eager, rtol=1e-6)
    np.testing.assert_allclose(gradient, eager_gradient, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), aux, eager_aux)


def test_no_gradient_reaches_the_advantages():
    gradient = jax.jit(jax.grad(lambda a: policy_loss(get_variant("kl"), NEW, OLD, REF, a, MASK)[0]))(ADVANTAGES)
    assert (np.asarray(gradient) == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_shares_of_micro_batches_add_up(name):
    """Loss, gradient and metrics of 4 answers, one of them without a token, at once and one by one."""
    rng = np.random.default_rng(0)
    new = rng.normal(-1.5, 0.7, (4, 3)).astype(np.float32)
    old, ref, sampler = (new + rng.normal(0, 0.4, (4, 3)).astype(np.float32) for _ in range(3))
    mask, advantages = np.float32([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]]), np.float32([1.5, -0.5, 0.5, -1.0])
    scale, variant = np.float32([1, 0.5, 2, 1]), get_variant(name)

    def share(rows):
        parts = (x[rows] for x in (new, old, ref, advantages, mask))
        by_row = {"sampler_logps": sampler[rows], "kl_scale": scale[rows]}
        return _compiled(variant, *parts, whole_mask=mask, **by_row)

    (loss, aux), gradient = share(np.arange(4))
    shares = [share(np.array([row])) for row in range(4)]
    np.testing.assert_allclose(sum(float(x[0][0]) for x in shares), loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([x[1] for x in shares]), gradient, rtol=1e-5, atol=1e-7)
    for key, value in aux.items():
        np.testing.assert_allclose(sum(float(x[0][1][key]) for x in shares), value, rtol=1e-5, atol=1e-6, err_msg=key)


ALL_NUMBERS = LOSSES | {
    "every optional number": get_variant(
        "dapo", clip_dual=3.0, kl_coeff=0.1, tis_cap=2.0, sequence_mask_cap=3.0, off_policy_delta=0.1,
        kl_domains={"math": 0.5},
    ),
    "a budget": get_variant("dr-grpo", token_budget=7),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL_NUMBERS)
def test_no_number_compiles_again(name):
    """Each number of the loss changed alone, and every weight, text and setting of the recipe: one program for all."""
    row = ALL_NUMBERS[name]
    loss_and_gradient(row)
    before = _compiled._cache_size()
    for key, value in row.loss.numbers.items():
        numbers = row.loss.numbers | {key: 1.3 * value + 0.01}
        loss_and_gradient(dataclasses.replace(row, loss=dataclasses.replace(row.loss, numbers=numbers)))
    recipe = Recipe(rewards={"boxed": 3.0}, inner_epochs=7, notes="?")
    loss_and_gradient(dataclasses.replace(row, name="another", recipe=recipe))
    assert _compiled._cache_size() == before


def test_numbers_are_data_and_pieces_are_structure():
    traces = []

    @jax.jit
    def loss(variant):
        traces.append(variant.name)
        return policy_loss(variant, NEW, OLD, REF, ADVANTAGES, MASK)[0]

    one = loss(get_variant("kl", clip_eps=0.2, kl_coeff=0.1))
    other = loss(get_variant("kl", clip_low=0.01, clip_high=0.1, kl_coeff=0.7))
    assert len(traces) == 1 and float(one) != float(other)
    variant = get_variant("kl")
    loss(changed(variant, objective=objectives.clip_first_printing))
    assert len(traces) == 2
    loss(get_variant("kl", kl_coeff=0))  # a term less
    assert len(traces) == 3


def test_distinct_losses():
    """tracking compiles what baseline compiles, format what clipped does; 16 programs for 21 variants."""
    assert len(LOSSES) == 16
    structures = {name: jax.tree.structure(variant) for name, variant in VARIANTS.items()}
    assert structures["tracking"] == structures["baseline"] == structures["book-7.3"]
    assert structures["format"] == structures["clipped"] and structures["book-7.6"] == structures["book-7.4"]
    assert hash(structures["tracking"]) == hash(structures["baseline"])
    assert structures["kl"] != structures["clipped"] != structures["book-7.4"]


def changed(variant, **loss):
    return dataclasses.replace(variant, loss=dataclasses.replace(variant.loss, **loss))


# --- answers that are masked away entirely ---


@pytest.mark.parametrize(
    ("name", "numbers", "loss"),
    [
        # Ratio 1 of every answer: -(1.5 + 0) / 2. With the masked answer's own A = -0.5 it was -(1.5 - 0.5) / 2 = -0.5.
        ("clipped", {}, -0.75),
        ("gspo", {}, -0.75),
        ("book-7.4", {}, -0.75),
        # k3 of whole answers, new - ref = 1 for the first: e^-1 - 1 + 1 = 0.367879, so -0.75 + 0.367879 / 2
        ("clipped", {"kl_coeff": 1.0, "kl_estimator": "k3"}, -0.566060),
    ],
)
def test_an_answer_without_tokens_adds_nothing_to_the_loss(name, numbers, loss):
    mask = np.float32([[1, 1, 0], [0, 0, 0]])
    (got, aux), gradient = loss_and_gradient(get_variant(name, **numbers), NEW, NEW, mask=mask)
    assert float(got) == pytest.approx(loss, abs=1e-5)
    assert (np.asarray(gradient)[1] == 0).all()
    # at ratio 1 each token of the first answer has the gradient -A / 2 (mean ratio: / 4), k3 adds (1 - e^-1) / 2
    expected = {"gspo": -0.375}.get(name, -0.75) + (0.316060 if numbers else 0.0)
    np.testing.assert_allclose(np.asarray(gradient)[0, :2], expected, atol=1e-5)


# --- pieces ---


def test_a_piece_gets_the_arrays_and_numbers_it_names():
    def objective(ratio, advantages, mask, my_number, sampler_logps):
        return my_number * ratio * advantages * mask + 0 * sampler_logps, jnp.zeros(ratio.shape, bool)

    loss = Loss(ratio=objectives.token_ratio, objective=objective, reduction=token_mean, numbers={"my_number": 2.0})
    (got, _), _ = loss_and_gradient(loss, NEW, NEW, None)
    assert float(got) == pytest.approx(-0.6)  # ratio 1: -2 (1.5 * 2 - 0.5 * 3) / 5


def test_a_parameter_with_a_default_is_an_error():
    def objective(ratio, advantages, clip_low=0.2):
        return ratio * advantages, jnp.zeros(ratio.shape, bool)

    loss = Loss(ratio=objectives.token_ratio, objective=objective, reduction=token_mean)
    with pytest.raises(ValueError, match="parameter 'clip_low' of the loss piece objective must be a plain one, without"):
        policy_loss(loss, NEW, OLD, None, ADVANTAGES, MASK)


def test_an_array_or_number_that_does_not_exist_is_an_error():
    loss = Loss(objectives.token_ratio, lambda ratio, advantages, rewards: (ratio, ratio > 0), token_mean)
    message = "takes 'rewards', which is neither one of the loss's numbers nor an array"
    with pytest.raises(ValueError, match=message):
        policy_loss(loss, NEW, OLD, None, ADVANTAGES, MASK)


def test_no_piece_of_ours_has_a_default():
    for table in (RATIOS, OBJECTIVES, REDUCTIONS, SAFEGUARDS):
        for piece in table.values():
            parameters(piece.function)


def test_a_row_of_other_pieces_works_token_by_token():
    """A ratio and a penalty of each token, averaged over all tokens."""
    row = changed(
        get_variant("kl", clip_low=0.2, clip_high=0.5, kl_coeff=0.1, kl_estimator="k3", kl_level="token"),
        ratio=objectives.token_ratio,
        reduction=token_mean,
    )
    (loss, aux), _ = loss_and_gradient(row)
    # ratios e^0.5 = 1.64872 (A > 0, cut at 1.5), e^-0.25 = 0.77880 | (A < 0) e^0.25 = 1.28403, e^-0.5 = 0.60653 (cut at
    # 0.8), e^0.25: -(1.5 (1.5 + 0.77880) - 0.5 (1.28403 + 0.8 + 1.28403)) / 5 = -0.346833; mean ratio 5.60210 / 5
    assert float(aux["pg_loss"]) == pytest.approx(-0.346834, abs=1e-5)
    assert float(aux["policy_ratio"]) == pytest.approx(1.120421, abs=1e-5)
    assert float(aux["clip_frac"]) == pytest.approx(0.4)
    assert float(aux["kl_loss"]) == pytest.approx(0.029081, abs=1e-5)  # 0.1 * 0.29081 of test_parts_of_the_loss
    assert float(loss) == pytest.approx(-0.317753, abs=1e-5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"old_logps": OLD[:, :1]}, r"old_logps has shape \(2, 1\), expected \(2, 3\)"),
        ({"mask": MASK[0]}, r"mask has shape \(3,\), expected \(2, 3\)"),
        ({"advantages": ADVANTAGES[:, None]}, r"advantages has shape \(2, 1\), expected \(2\)"),
        ({"ref_logps": REF[:1]}, r"ref_logps has shape \(1, 3\), expected \(2, 3\)"),
        ({"ref_logps": None}, r"a loss with a KL term \(kl_coeff\) needs ref_logps\."),
    ],
)
def test_wrong_arguments_are_named(changed, message):
    arguments = {"new_logps": NEW, "old_logps": OLD, "ref_logps": REF, "advantages": ADVANTAGES, "mask": MASK} | changed
    with pytest.raises(ValueError, match=message):
        policy_loss(get_variant("kl"), **arguments)


def test_a_variant_without_kl_needs_no_reference():
    variant = get_variant("clipped")
    _, aux = policy_loss(variant, NEW, OLD, None, ADVANTAGES, MASK)
    assert float(aux["kl_loss"]) == 0 and np.isnan(aux["kl_k1"]) and np.isnan(aux["kl_k3"])
