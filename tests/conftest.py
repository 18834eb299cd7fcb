"""What all tests share."""

import jax

# A forgotten axis must fail, not broadcast.
jax.config.update("jax_numpy_rank_promotion", "raise")
