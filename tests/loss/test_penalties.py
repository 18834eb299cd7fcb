"""KL estimators: values, and how their gradients depend on the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.loss.penalties import k1, k2, k3


@functools.partial(jax.jit, static_argnums=0)
def value_and_slope(estimator, new, ref):
    """The estimates, and d sum / d new. Compiled as a whole; eagerly, each operation would be compiled separately."""

    def total(new):
        values = estimator(new, ref)
        return jnp.sum(values), values

    slope, values = jax.grad(total, has_aux=True)(new)
    return values, slope


def test_values():
    # ref - new = ln 2 and -ln 2: k1 -0.6931 and 0.6931, k3 2 - 1 - 0.6931 = 0.3069 and 0.5 - 1 + 0.6931 = 0.1931
    new = np.float32([-1.0, -1.0])
    ref = new + np.log(np.float32([2.0, 0.5]))
    np.testing.assert_allclose(k1(new, ref), [-0.6931, 0.6931], atol=5e-5)
    np.testing.assert_allclose(k3(new, ref), [0.3069, 0.1931], atol=5e-5)


# ref - new: value, d value / d new.
# k1 = new - ref, slope 1; k2 = (new - ref)^2 / 2, slope new - ref;
# k3 = e^(ref - new) - 1 - (ref - new), slope 1 - e^(ref - new)
CELLS = {
    k1: {-2.0: (2.0, 1.0), -0.5: (0.5, 1.0), 0.0: (0.0, 1.0), 0.5: (-0.5, 1.0), 2.0: (-2.0, 1.0)},
    k2: {-2.0: (2.0, 2.0), -0.5: (0.125, 0.5), 0.0: (0.0, 0.0), 0.5: (0.125, -0.5), 2.0: (2.0, -2.0)},
    # e^-2 = 0.135335, e^-0.5 = 0.606531, e^0.5 = 1.648721, e^2 = 7.389056
    k3: {
        -2.0: (1.135335, 0.864665),
        -0.5: (0.106531, 0.393469),
        0.0: (0.0, 0.0),
        0.5: (0.148721, -0.648721),
        2.0: (4.389056, -6.389056),
    },
}


@pytest.mark.parametrize("estimator", CELLS)
def test_every_cell(estimator):
    gaps, want = np.float32(list(CELLS[estimator])), np.array(list(CELLS[estimator].values()))
    new = np.full_like(gaps, -1.0)
    value, slope = value_and_slope(estimator, new, new + gaps)
    np.testing.assert_allclose(value, want[:, 0], atol=2e-6)
    np.testing.assert_allclose(slope, want[:, 1], atol=2e-6)


def test_only_k3_times_the_ratio_is_unbiased_in_value_and_gradient():
    """Over all ids of a small vocabulary, as expectations under the old policy.

    new (1/2, 1/4, 1/4), old (1/4, 1/4, 1/2), ref (1/4, 1/2, 1/4): KL(new, ref) = 1/2 ln 2 + 1/4 ln 1/2 + 1/4 ln 1
    = ln 2 / 4 = 0.173287. By the logit z_i its gradient is new_i (ln new_i / ref_i - KL), so ln 2 times
    1/2 (1 - 1/4) = 0.375, 1/4 (-1 - 1/4) = -0.3125, 1/4 (0 - 1/4) = -0.0625: 0.259930, -0.216608, -0.043322.
    """
    new, old, ref = np.log(np.float32([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.25, 0.5, 0.25]]))

    def expected(logits, estimator, reweighted):
        logps = jax.nn.log_softmax(logits)
        ratio = jnp.exp(logps - old) if reweighted else 1.0
        return jnp.sum(jnp.exp(old) * ratio * estimator(logps, ref))

    value, slope = jax.jit(jax.value_and_grad(expected), static_argnums=(1, 2))(new, k3, True)
    np.testing.assert_allclose(value, 0.173287, atol=1e-6)
    np.testing.assert_allclose(slope, [0.259930, -0.216608, -0.043322], atol=1e-6)
    # without the ratio k3 is, by the same sums, 1/4 (1/2 - 1 + ln 2) + 1/4 (2 - 1 - ln 2) + 1/2 * 0 = 1/8
    np.testing.assert_allclose(expected(new, k3, False), 0.125, atol=1e-6)


def test_equal_scores_have_no_divergence():
    logps = np.float32([-0.1, -7.3, -30.0])
    assert all((np.asarray(estimator(logps, logps)) == 0).all() for estimator in (k1, k2, k3))
    np.testing.assert_array_equal(value_and_slope(k3, logps, logps)[1], np.zeros(3))


def test_only_k3_pulls_towards_the_reference():
    # d k1 / d new = 1 wherever the reference is; d k3 / d new = 1 - exp(ref - new), 1 - 2 and 1 - 1/2
    new, ref = np.zeros(2, np.float32), np.log(np.float32([2.0, 0.5]))
    np.testing.assert_allclose(value_and_slope(k1, new, ref)[1], [1.0, 1.0])
    np.testing.assert_allclose(value_and_slope(k3, new, ref)[1], [-1.0, 0.5], rtol=1e-6)


@pytest.mark.parametrize("estimator", [k2, k3])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_large_gaps_are_finite(estimator, gap, dtype):
    value, slope = value_and_slope(estimator, np.zeros((), dtype), np.full((), gap, dtype))
    assert np.isfinite(value) and np.isfinite(slope) and float(value) > 0


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_shapes_are_named(estimator):
    with pytest.raises(ValueError, match=r"ref_logps has shape \(1, 3\), expected \(2, 3\)"):
        estimator(np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32))
