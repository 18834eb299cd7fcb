"""KL estimators: values, and what their gradients know about the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.loss.penalties import k1, k3, sequence_k1


def test_values():
    # ref - new = ln 2 and -ln 2: k1 -0.6931 and 0.6931, k3 2 - 1 - 0.6931 = 0.3069 and 0.5 - 1 + 0.6931 = 0.1931
    new, ref = jnp.array([-1.0, -1.0]), jnp.array([-1.0, -1.0]) + jnp.log(jnp.array([2.0, 0.5]))
    np.testing.assert_allclose(k1(new, ref), [-0.6931, 0.6931], atol=5e-5)
    np.testing.assert_allclose(k3(new, ref), [0.3069, 0.1931], atol=5e-5)


def test_equal_scores_have_no_divergence():
    logps = jnp.array([-0.1, -7.3, -30.0])
    assert (np.asarray(k1(logps, logps)) == 0).all() and (np.asarray(k3(logps, logps)) == 0).all()
    np.testing.assert_array_equal(jax.grad(lambda new: k3(new, logps).sum())(logps), np.zeros(3))


def test_only_k3_pulls_towards_the_reference():
    # d k1 / d new = 1 wherever the reference is; d k3 / d new = 1 - exp(ref - new), 1 - 2 and 1 - 1/2
    new, ref = jnp.zeros(2), jnp.log(jnp.array([2.0, 0.5]))
    np.testing.assert_allclose(jax.grad(lambda x: k1(x, ref).sum())(new), [1.0, 1.0])
    np.testing.assert_allclose(jax.grad(lambda x: k3(x, ref).sum())(new), [-1.0, 0.5], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_k3_of_large_gaps_is_finite(gap, dtype):
    value, slope = jax.value_and_grad(lambda new: k3(new, jnp.array(gap, dtype)))(jnp.array(0.0, dtype))
    assert np.isfinite(value) and np.isfinite(slope) and value > 0


def test_sequence_k1_sums_the_answer_alone():
    # row 1: (-1 + 2) + (-3 + 2.5) = 0.5; row 2 ends after one token, what stands behind does not count
    new = jnp.array([[-1.0, -3.0], [-1.0, jnp.nan]])
    ref = jnp.array([[-2.0, -2.5], [-0.5, jnp.inf]])
    np.testing.assert_allclose(sequence_k1(new, ref, jnp.array([[1.0, 1.0], [1.0, 0.0]])), [0.5, -0.5])


@pytest.mark.parametrize("estimator", [k1, k3])
def test_shapes_are_named(estimator):
    with pytest.raises(ValueError, match=r"ref_logps has shape \(1, 3\), expected \(2, 3\)"):
        estimator(jnp.zeros((2, 3)), jnp.zeros((1, 3)))
