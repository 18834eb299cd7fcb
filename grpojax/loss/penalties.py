"""Estimators of the KL divergence from the reference policy, from the log-probs of sampled tokens alone. Elementwise.

On answers sampled from the policy the mean of each is KL(policy, reference) (k2: to second order). A loss follows their
gradient, which differs: see each. Multiplied by the importance ratio, k1 and k3 also have the gradient of that KL.
"""

import jax.numpy as jnp
from jax import Array

from grpojax.loss.checks import check_shape
from grpojax.loss.objectives import MAX_LOG_RATIO


def k1(new_logps: Array, ref_logps: Array) -> Array:
    """new - ref: unbiased, can be negative. As a loss its gradient does not contain the reference.

    Source: J. Schulman, "Approximating KL Divergence" (2020).
    """
    check_shape("ref_logps", ref_logps, new_logps.shape)
    return new_logps - ref_logps


def k2(new_logps: Array, ref_logps: Array) -> Array:
    """(new - ref)^2 / 2: biased, low variance. As a loss its gradient is that of KL(policy, reference).

    Source: J. Schulman, "Approximating KL Divergence" (2020).

    >>> print(k2(jnp.array([-1.0]), jnp.array([-3.0])))
    [2.]
    """
    check_shape("ref_logps", ref_logps, new_logps.shape)
    return 0.5 * jnp.square(new_logps - ref_logps)


def k3(new_logps: Array, ref_logps: Array) -> Array:
    """exp(ref - new) - 1 - (ref - new): unbiased, never negative. As a loss its gradient is that of KL(reference, policy).

    Source: J. Schulman, "Approximating KL Divergence" (2020); arXiv:2402.03300, eq. 4.

    >>> print(k3(jnp.array([-1.0]), jnp.array([-1.0 + jnp.log(2.0)])).round(4))  # 2 - 1 - ln 2
    [0.3069]
    """
    check_shape("ref_logps", ref_logps, new_logps.shape)
    log_ratio = jnp.clip(ref_logps - new_logps, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return jnp.exp(log_ratio) - 1.0 - log_ratio
