"""What the tests of the training loop share."""

import pytest

from grpojax.training import train


@pytest.fixture
def spy(monkeypatch):
    """Records the arguments and the result of each call of a function of the loop: `calls = spy("update")`."""

    def watch(name):
        function, calls = getattr(train, name), []

        def watched(*args, **kwargs):
            result = function(*args, **kwargs)
            calls.append((args, result))
            return result

        monkeypatch.setattr(train, name, watched)
        return calls

    return watch
