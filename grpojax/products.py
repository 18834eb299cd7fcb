"""Rows times a weight, accumulated in float32 forward and backward, and weights whose gradient is float32 whatever they are."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Noted(NamedTuple):
    """An array that may stand in a tree for itself, and whose gradient is noted in another, in float32."""

    value: Array
    gradient: Array  # float32, of the same shape; never read

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


def with_float32_gradient(params: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A tree of float32 arrays to differentiate by, and the function that puts them into the parameters.

    So the gradient of parameters in bfloat16 comes, and can be summed, in float32. Float32 parameters are in the tree
    themselves.
    """
    is_float32 = lambda param: param.dtype == jnp.float32
    wanted = jax.tree.map(lambda p: p if is_float32(p) else jnp.zeros(p.shape, jnp.float32), params)
    return wanted, lambda tree: jax.tree.map(lambda p, x: x if is_float32(p) else Noted(p, x), params, tree)


def values(tree: Any) -> Any:
    """The tree with arrays in place of what is Noted, in float32, so that its gradient comes in float32 too."""
    return jax.tree.map(lambda x: _value(*x) if _is_noted(x) else x, tree, is_leaf=_is_noted)


def rows(table: Array | Noted, index: Array) -> Array:
    """table[index], of [V, D] and [...] -> [..., D]."""
    # What receives the gradient is zero: adding rows of it leads theirs there, without a table of their own.
    return table.value[index] + table.gradient[index] if _is_noted(table) else table[index]


def product(x: Array, weight: Array | Noted) -> Array:
    """[..., in] and [out, in] -> [..., out], float32. The factors are in the dtype of `x`.

    So they are backward: the gradient that arrives is rounded to that dtype first. (JAX's own rule multiplies float32 by
    bfloat16, for which XLA makes a float32 copy of the weight.) What the weight receives is not rounded.
    """
    return _noted_product(x, *weight) if _is_noted(weight) else _plain_product(x, weight)


def _forward(x: Array, weight: Array) -> Array:
    weight = weight.astype(x.dtype)
    decoding = x.ndim == 2 or x.shape[1] == 1
    if not decoding or x.dtype != jnp.float32:
        return jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=jnp.float32)
    # In a decode step few rows meet a weight that is read for their sake. In float32 that is asked for as weight times
    # columns: so XLA's CPU backend reads the weight at the speed of memory, and otherwise at a third of it. The barrier
    # keeps XLA from turning it round again.
    columns = jnp.einsum("oi,bi->ob", weight, x.reshape(x.shape[0], -1))
    return jax.lax.optimization_barrier(columns).T.reshape(*x.shape[:-1], -1)


def _backward(factors: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = factors
    grad, weight = grad.astype(x.dtype), weight.astype(x.dtype)
    of_x = jnp.einsum("...o,oi->...i", grad, weight, preferred_element_type=jnp.float32)
    of_weight = jnp.einsum("...o,...i->oi", grad, x, preferred_element_type=jnp.float32)
    return of_x.astype(x.dtype), of_weight


_plain_product = jax.custom_vjp(_forward)
_noted_product = jax.custom_vjp(lambda x, weight, gradient: _forward(x, weight))


def _plain_backward(factors: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    of_x, of_weight = _backward(factors, grad)
    return of_x, of_weight.astype(factors[1].dtype)


def _noted_backward(factors: tuple[Array, Array], grad: Array) -> tuple[Array, None, Array]:
    of_x, of_weight = _backward(factors, grad)
    return of_x, None, of_weight


_plain_product.defvjp(lambda x, weight: (_forward(x, weight), (x, weight)), _plain_backward)
_noted_product.defvjp(lambda x, weight, gradient: (_forward(x, weight), (x, weight)), _noted_backward)


@jax.custom_vjp
def _value(value: Array, gradient: Array) -> Array:
    return value.astype(jnp.float32)


_value.defvjp(lambda value, gradient: (value.astype(jnp.float32), None), lambda _, grad: (None, grad))


def _is_noted(x: Any) -> bool:
    return isinstance(x, Noted)
