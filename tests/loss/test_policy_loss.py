"""The composed loss of every variant: the chapter's numbers, gradients cell by cell, masks, extremes, compilation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax import VARIANTS, get_variant, group_advantages, policy_loss
from grpojax.loss import objectives, penalties
from grpojax.loss.reduce import token_mean

CHAPTER_NEW = np.float32([[-7.9243], [-20.1546], [-16.6130], [-23.3677]])
CHAPTER_OLD = np.float32([[-10.9243], [-20.3546], [-14.6130], [-23.3677]])
CHAPTER_ADVANTAGES = np.asarray(group_advantages(np.array([[1.0, 1.0, 0.0, 0.0]])))[0]

NEW = np.float32([[-1.0, -2.0, -0.5], [-0.25, -3.0, -1.0]])
OLD = np.float32([[-1.5, -1.75, -0.5], [-0.5, -2.5, -1.25]])
REF = np.float32([[-2.0, -2.0, -1.0], [-0.25, -2.0, -2.0]])
ADVANTAGES = np.float32([1.5, -0.5])
MASK = np.float32([[1, 1, 0], [1, 1, 1]])


_compiled = jax.jit(jax.value_and_grad(policy_loss, argnums=1, has_aux=True))


def loss_and_gradient(variant, new=NEW, old=OLD, ref=REF, advantages=ADVANTAGES, mask=MASK):
    """(loss, aux), d loss / d new."""
    return _compiled(variant, new, old, ref, advantages, mask)


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
    """Two sequences share a group; each gets half of its slope, and the second place of each is no answer."""
    variant = get_variant(name, clip_low=0.2, clip_high=0.3)
    ratios, signs = np.float32(list(SLOPES[name])).T
    count = len(ratios)
    new = np.stack([np.log(ratios), np.ones(count)], axis=1).astype(np.float32)
    mask = np.tile(np.float32([1, 0]), (count, 1))
    _, gradient = loss_and_gradient(variant, new, np.zeros_like(new), None, signs, mask)
    np.testing.assert_allclose(gradient[:, 0] * count, list(SLOPES[name].values()), atol=1e-5)
    assert (np.asarray(gradient)[:, 1] == 0).all()


def test_parts_of_the_loss():
    # log-ratios: row 1 0.5 - 0.25 = 0.25, row 2 0.25 - 0.5 + 0.25 = 0; ratios 1.2840 and 1
    # pg = -(1.5 * 1.2840 - 0.5 * 1) / 2 = -0.71302
    # k1 of the answers: row 1 1 + 0 = 1, row 2 0 - 1 + 1 = 0, so kl = 0.1 * 0.5
    # token k1: 1 / 5. Token k3, with ref - new = -1, 0 | 0, 1, -1: (0.36788 + 0 + 0 + 0.71828 + 0.36788) / 5 = 0.29081
    (loss, aux), _ = loss_and_gradient(get_variant("kl", kl_coeff=0.1))
    expected = {
        "pg_loss": -0.71302, "kl_loss": 0.05, "policy_ratio": 1.14201, "clip_frac": 0.0, "kl_k1": 0.2, "kl_k3": 0.29081,
    }  # fmt: skip
    assert float(loss) == pytest.approx(-0.66302, abs=1e-5)
    assert {name: pytest.approx(float(value), abs=1e-5) for name, value in aux.items()} == expected


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
    np.testing.assert_allclose(one - without, 0.25 * MASK, atol=1e-6)  # 0.5 / 2 sequences, down on every sampled token


@pytest.mark.parametrize("name", VARIANTS)
def test_masked_places_have_no_say(name):
    """Not in value, not in gradient, whatever stands there; and the gradient there is exactly 0."""
    variant = get_variant(name)
    (loss, aux), gradient = loss_and_gradient(variant)
    assert (np.asarray(gradient)[MASK == 0] == 0).all() and (np.asarray(gradient)[MASK > 0] != 0).all()
    for bad in (np.nan, np.inf, -np.inf):
        new, old, ref = (np.where(MASK > 0, x, np.float32(bad)) for x in (NEW, OLD, REF))
        (loss_bad, aux_bad), gradient_bad = loss_and_gradient(variant, new, old, ref)
        np.testing.assert_array_equal(loss_bad, loss)
        np.testing.assert_array_equal(gradient_bad, gradient)
        jax.tree.map(np.testing.assert_array_equal, aux_bad, aux)


@pytest.mark.parametrize("name", VARIANTS)
def test_far_apart_policies_give_finite_numbers(name):
    for gap in (100.0, -100.0):
        (loss, aux), gradient = loss_and_gradient(get_variant(name), old=NEW - gap, ref=NEW - gap)
        assert np.isfinite(loss) and np.isfinite(gradient).all()
        assert np.isfinite(aux["kl_k3"])


@pytest.mark.parametrize("name", ["tracking", "kl", "book-7.5"])
def test_compiled_equals_eager(name):
    variant = get_variant(name)
    (loss, aux), gradient = loss_and_gradient(variant)
    both = jax.value_and_grad(policy_loss, argnums=1, has_aux=True)
    (eager, eager_aux), eager_gradient = both(variant, NEW, OLD, REF, ADVANTAGES, MASK)
    np.testing.assert_allclose(loss, eager, rtol=1e-6)
    np.testing.assert_allclose(gradient, eager_gradient, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), aux, eager_aux)


def test_no_gradient_reaches_the_advantages():
    gradient = jax.grad(lambda a: policy_loss(get_variant("kl"), NEW, OLD, REF, a, MASK)[0])(ADVANTAGES)
    assert (np.asarray(gradient) == 0).all()


@pytest.mark.parametrize("name", ["tracking", "kl"])
def test_shares_of_micro_batches_add_up(name):
    variant = get_variant(name)
    loss, aux = policy_loss(variant, NEW, OLD, REF, ADVANTAGES, MASK)
    parts = [
        policy_loss(variant, *(x[i : i + 1] for x in (NEW, OLD, REF, ADVANTAGES, MASK)), whole_mask=jnp.asarray(MASK))
        for i in (0, 1)
    ]
    np.testing.assert_allclose(sum(part[0] for part in parts), loss, rtol=1e-6)
    for key, value in aux.items():
        np.testing.assert_allclose(sum(part[1][key] for part in parts), value, rtol=1e-6)


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
    loss(dataclasses.replace(variant, objective=objectives.clip_first_printing))
    assert len(traces) == 2
    loss(get_variant("kl", kl_coeff=0))  # a term less
    assert len(traces) == 3


def test_a_row_of_other_pieces_works_token_by_token():
    """A ratio and a penalty of each token, averaged over all tokens: what later rows are made of."""

    def token_ratio(new_logps, old_logps, mask):
        return jnp.exp(jnp.where(mask > 0, new_logps - old_logps, 0.0))

    def token_k3(new_logps, ref_logps, mask):
        return penalties.k3(jnp.where(mask > 0, new_logps, 0.0), jnp.where(mask > 0, ref_logps, 0.0))

    row = dataclasses.replace(
        get_variant("kl", clip_low=0.2, clip_high=0.5, kl_coeff=0.1),
        ratio=token_ratio,
        penalty=token_k3,
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
        ({"ref_logps": None}, r"variant 'kl' has a KL term and needs ref_logps\."),
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
