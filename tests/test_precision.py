"""Matrix products and gradients against NumPy and against JAX's own gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax import precision
from grpojax.precision import Float32Grad, embed, unwrap, with_float32_gradient

linear = jax.jit(precision.linear)  # compiled as a whole; eagerly, each operation would be compiled separately


def _random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_decode_step_multiplies_as_a_long_pass_does(batch):
    """The two forms of one product; 7 inputs and 5 outputs, so that a wrong turn does not fit."""
    weight, x = _random(5, 7), _random(batch, 4, 7, seed=1)
    whole = np.asarray(linear(x, weight))
    np.testing.assert_allclose(whole, x @ weight.T, atol=1e-5)
    for t in range(4):
        np.testing.assert_allclose(linear(x[:, t : t + 1], weight), whole[:, t : t + 1], atol=1e-5)
        np.testing.assert_allclose(linear(x[:, t], weight), whole[:, t], atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 7), (2, 1, 7), (2, 7)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_gradient_in_float32(shape, wrapped):
    """d sum(c * x w') = (c w, c' x), whatever form the product took forward."""
    weight, x, c = _random(5, 7), _random(*shape, seed=1), _random(*shape[:-1], 5, seed=2)

    def loss(x, weight):
        return jnp.sum(c * linear(x, Float32Grad(jax.lax.stop_gradient(weight), weight) if wrapped else weight))

    of_x, of_weight = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, weight)
    np.testing.assert_allclose(of_x, c @ weight, atol=1e-5)
    np.testing.assert_allclose(of_weight, c.reshape(-1, 5).T @ x.reshape(-1, 7), atol=1e-5)


def test_bfloat16_factors_are_summed_in_float32():
    """1 + 255 * 2^-8, term by term, is 1.99609375; a sum rounded to bfloat16 after each term stays 1."""
    x = np.full((1, 256, 1), 2.0**-8, jnp.bfloat16)
    x[0, 0] = 1.0
    weight, zeros = np.ones((1, 1), jnp.bfloat16), np.zeros((1, 1), np.float32)
    assert linear(np.swapaxes(x, 1, 2), np.ones((1, 256), jnp.bfloat16)).tolist() == [[[1.99609375]]]
    gradient = jax.jit(jax.grad(lambda zeros: jnp.sum(linear(x, Float32Grad(weight, zeros)))))(zeros)
    assert gradient.dtype == jnp.float32 and gradient.tolist() == [[1.99609375]]  # in bfloat16 it would be 2
    assert jax.jit(jax.grad(lambda weight: jnp.sum(linear(x, weight))))(weight).tolist() == [[2]]


def test_the_weight_is_cast_to_the_dtype_of_the_rows_and_its_gradient_is_not():
    """1 + 2^-10 is 1 in bfloat16. The gradient of the weight is the sum of x, 1 + 2^-8: no bfloat16 number."""
    weight, x = np.full((1, 1), 1 + 2.0**-10, np.float32), np.array([[[1.0], [2.0**-8]]], jnp.bfloat16)
    assert precision.linear(x[:, :1], weight).tolist() == [[[1]]]
    assert jax.jit(jax.grad(lambda weight: jnp.sum(linear(x, weight))))(weight).tolist() == [[1 + 2.0**-8]]


def test_half_parameters_get_float32_gradients():
    """Table rows, values in a sum and a product, each used twice, against the gradient of float32 copies."""
    half = {"table": _random(6, 7).astype(jnp.bfloat16), "scale": _random(1, 1, 7, seed=1).astype(jnp.bfloat16)}
    params = half | {"weight": _random(5, 7, seed=2)}
    ids = np.array([[0, 3, 3]])

    @jax.jit
    def loss(params):
        x = embed(params["table"], ids).astype(jnp.float32)
        scale = unwrap(params)["scale"].astype(jnp.float32)
        return jnp.sum(linear(x * scale + scale, params["weight"]) ** 2)

    wanted, attach = with_float32_gradient(params)
    assert wanted["weight"] is params["weight"] and {x.dtype for x in jax.tree.leaves(wanted)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(loss(attach(wanted)), loss(params), rtol=1e-6)
    got = jax.jit(jax.grad(lambda wanted: loss(attach(wanted))))(wanted)
    want = jax.jit(jax.grad(loss))(jax.tree.map(lambda x: x.astype(jnp.float32), params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)
