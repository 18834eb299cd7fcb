"""Fixtures of the tests of training."""

import jax
import numpy as np
import pytest
from fakes import TINY, tokenizer

from grpojax.qwen.model import param_shapes
from grpojax.qwen.weights import Policy
from grpojax.training import batches, draw, train


@pytest.fixture(scope="session")
def tiny():
    """Random weights, large enough for logits that differ by several nats."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda a: (rng.normal(size=a.shape) * 0.5).astype(np.float32), param_shapes(TINY))
    return Policy(TINY, params, tokenizer(stop_ids=(3, 17), size=20))


@pytest.fixture
def spy(monkeypatch):
    """Records arguments and result of each call of a function of the loop: `calls = spy("score")`.

    Arrays that this call or a later one overwrites are copied.
    """
    homes = {"make_rollouts": draw, "score": batches, "update_in_place": train}

    def watch(name):
        function, calls = getattr(homes[name], name), []

        def watched(*args, **kwargs):
            kept = jax.tree.map(_copy, args) if name == "update_in_place" else args
            result = function(*args, **kwargs)
            calls.append((kept, jax.tree.map(_copy, result) if name == "update_in_place" else result))
            return result

        monkeypatch.setattr(homes[name], name, watched)
        return calls

    return watch


def _copy(x):
    return np.array(x) if isinstance(x, jax.Array) else x
