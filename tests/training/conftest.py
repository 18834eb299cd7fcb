"""What the tests of the training loop share."""

import jax
import jax.numpy as jnp
import pytest

from grpojax.training import train


@pytest.fixture
def spy(monkeypatch):
    """Records the arguments and the result of each call of a function of the loop: `calls = spy("score")`. Arrays that the
    call or a later one overwrites are copied."""

    def watch(name):
        function, calls = getattr(train, name), []

        def watched(*args, **kwargs):
            kept = jax.tree.map(_copy, args) if name == "update_in_place" else args
            result = function(*args, **kwargs)
            calls.append((kept, jax.tree.map(_copy, result) if name == "update_in_place" else result))
            return result

        monkeypatch.setattr(train, name, watched)
        return calls

    return watch


def _copy(x):
    return jnp.copy(x) if isinstance(x, jax.Array) else x
