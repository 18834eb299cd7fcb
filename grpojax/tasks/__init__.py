"""Problems and their rewards: strings in, floats out. No jax here, and sympy only in a worker process."""
