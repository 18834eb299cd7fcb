"""Problems and their rewards: strings in, floats out. Nothing here imports jax, and sympy only runs in a worker process."""
