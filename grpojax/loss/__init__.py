"""The mathematics of GRPO: pure functions of arrays, jax.numpy only. No config, no model, no strings, no randomness."""
