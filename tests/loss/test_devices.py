"""A step spread over devices has the loss and the gradient of the whole step: divisors are those of all sequences."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from grpojax import VARIANTS, policy_loss

assert jax.device_count() == 4
mesh = Mesh(np.array(jax.devices()), ("data",))
random = np.random.default_rng(0)
lengths = np.array([1, 7, 3, 5, 2, 6, 4, 7])  # different lengths: a mean of the devices' means would be another number
mask = (np.arange(7)[None] < lengths[:, None]).astype("f4")
new, old, ref = (random.normal(-2.0, 0.3, mask.shape).astype("f4") for _ in range(3))
advantages = random.normal(size=8).astype("f4")

def loss(variant, new, *rest):
    return policy_loss(variant, new, *rest)[0]

gradient = jax.jit(jax.value_and_grad(loss, argnums=1))
for name in ("kl", "grpo", "dapo", "dr-grpo", "gspo", "deepseek-v3.2"):
    arrays = (new, old, ref, advantages, mask)
    spread = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("data"))) for x in arrays]
    assert len(spread[0].sharding.device_set) == 4
    for one, many in zip(gradient(VARIANTS[name], *arrays), gradient(VARIANTS[name], *spread), strict=True):
        np.testing.assert_allclose(many, one, rtol=2e-6, atol=1e-7, err_msg=name)
    shares = [loss(VARIANTS[name], *(x[i : i + 2] for x in arrays)) for i in range(0, 8, 2)]
    if name == "dapo":
        assert abs(np.mean(shares) - gradient(VARIANTS[name], *arrays)[0]) > 1e-3  # the plausible wrong one
print("same")
"""


@pytest.mark.slow
def test_sequences_spread_over_devices_give_the_same_loss_and_gradient():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "same\n", done.stderr
