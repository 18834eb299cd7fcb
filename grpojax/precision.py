"""Mixed precision: matrix products summed in float32, forward and backward, and float32 gradients for bfloat16 weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Float32Grad(NamedTuple):
    """A parameter in low precision whose gradient goes to a float32 array instead.

    It can stand for the parameter in a tree.
    """

    value: Array
    gradient: Array  # float32, same shape; its value is never read, only differentiated by

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape


def with_float32_gradient(params: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A tree of float32 arrays to differentiate by, and a function that puts such a tree into the parameters.

    Float32 parameters are in the tree themselves; for others it has zeros, which receive the gradient.
    """
    is_float32 = lambda param: param.dtype == jnp.float32
    wanted = jax.tree.map(lambda p: p if is_float32(p) else jnp.zeros(p.shape, jnp.float32), params)
    return wanted, lambda tree: jax.tree.map(lambda p, x: x if is_float32(p) else Float32Grad(p, x), params, tree)


def unwrap(tree: Any) -> Any:
    """The tree with each Float32Grad as a plain float32 array, so that its gradient is float32 too."""
    return jax.tree.map(lambda x: _value(*x) if _is_wrapped(x) else x, tree, is_leaf=_is_wrapped)


def embed(table: Array | Float32Grad, index: Array) -> Array:
    """table[index]: [V, D], [...] -> [..., D]."""
    # `gradient` is zero: adding rows of it sends their gradient there, without a float32 copy of the table.
    return table.value[index] + table.gradient[index] if _is_wrapped(table) else table[index]


def linear(x: Array, weight: Array | Float32Grad) -> Array:
    """x @ weight.T: [..., in], [out, in] -> [..., out] float32. Both factors are used in the dtype of `x`.

    The backward pass does the same: the incoming gradient is rounded to that dtype first. (JAX's own rule multiplies
    float32 by bfloat16, for which XLA makes a float32 copy of the weight.) The weight's gradient is not rounded.
    """
    return _linear_wrapped(x, *weight) if _is_wrapped(weight) else _linear(x, weight)


def _forward(x: Array, weight: Array) -> Array:
    weight = weight.astype(x.dtype)
    decoding = x.ndim == 2 or x.shape[1] == 1
    if not decoding or x.dtype != jnp.float32:
        return jnp.einsum("...i,oi->...o", x, weight, preferred_element_type=jnp.float32)
    # A decode step multiplies a few rows by a large weight, so reading the weight takes the time. In float32, XLA's CPU
    # backend reads it at the speed of memory for weight @ columns, at a third of it otherwise. The barrier keeps XLA from
    # swapping the factors again.
    columns = jnp.einsum("oi,bi->ob", weight, x.reshape(x.shape[0], -1))
    return jax.lax.optimization_barrier(columns).T.reshape(*x.shape[:-1], -1)


def _backward(factors: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = factors
    grad, weight = grad.astype(x.dtype), weight.astype(x.dtype)
    of_x = jnp.einsum("...o,oi->...i", grad, weight, preferred_element_type=jnp.float32)
    of_weight = jnp.einsum("...o,...i->oi", grad, x, preferred_element_type=jnp.float32)
    return of_x.astype(x.dtype), of_weight


_linear = jax.custom_vjp(_forward)
_linear_wrapped = jax.custom_vjp(lambda x, weight, gradient: _forward(x, weight))


def _linear_backward(factors: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    of_x, of_weight = _backward(factors, grad)
    return of_x, of_weight.astype(factors[1].dtype)


def _linear_wrapped_backward(factors: tuple[Array, Array], grad: Array) -> tuple[Array, None, Array]:
    of_x, of_weight = _backward(factors, grad)
    return of_x, None, of_weight


_linear.defvjp(lambda x, weight: (_forward(x, weight), (x, weight)), _linear_backward)
_linear_wrapped.defvjp(lambda x, weight, gradient: (_forward(x, weight), (x, weight)), _linear_wrapped_backward)


@jax.custom_vjp
def _value(value: Array, gradient: Array) -> Array:
    return value.astype(jnp.float32)


_value.defvjp(lambda value, gradient: (value.astype(jnp.float32), None), lambda _, grad: (None, grad))


def _is_wrapped(x: Any) -> bool:
    return isinstance(x, Float32Grad)
