"""What a training step moves between host and device, and how often it waits for the device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import loop_config

from grpojax.tasks.problems import Problem
from grpojax.training.train import train

PROBLEMS = [Problem(text, str(i)) for i, text in enumerate(("1 + 1", "2 + 7", "3 * 5", "8 - 6"))]


@pytest.fixture
def transfers(monkeypatch, capfd):
    """Runs a function and returns the shapes that it sends to the device, and for each wait the shapes that it reads.

    A read is a `jax.device_get`, a `float`, or a NumPy function on a `jax.Array`, except for the advantages of two
    groups of four, which are computed on the host.
    """

    def watch(function):
        reads, get, kind = [], jax.device_get, type(jnp.zeros(0))

        def fetch(tree):
            reads.append([x.shape for x in jax.tree.leaves(tree)])
            return get(tree)

        def spied(convert):
            def converted(x, *args, **kwargs):
                if isinstance(x, jax.Array) and x.size > 8:
                    reads.append([x.shape])
                return convert(x, *args, **kwargs)

            return converted

        def number(self):
            reads.append([self.shape])
            return get(self).item()

        monkeypatch.setattr(jax, "device_get", fetch)
        for name in ("asarray", "array", "concatenate", "pad", "max", "sum", "mean", "any"):
            monkeypatch.setattr(np, name, spied(getattr(np, name)))
        for name in ("__float__", "__int__", "__bool__", "item"):
            monkeypatch.setattr(kind, name, number)
        jax.clear_caches()  # the guard knows a shape if the program that asks for it is new
        capfd.readouterr()
        with jax.transfer_guard("log"):
            function()
        monkeypatch.undo()
        log = capfd.readouterr().err
        return set(re.findall(r"host-to-device transfer: aval=ShapedArray\((\w+\[[\d,]*\])", log)), reads

    return watch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "changes", "generated"),
    [
        ("clipped", {}, 2),  # two inner epochs with rollouts of their own
        ("kl", {"rollout_reuse": "pool", "minibatches": 2}, 1),
        ("deepseek-v3.2", {"top_p": 0.9, "inner_epochs": 1}, 1),  # keeps the sampling mask
        ("olmo3", {}, 1),  # dynamic sampling, old log-probs from a scoring pass
    ],
)
def test_a_step_waits_for_its_answers_and_for_its_metrics(
    tiny_policy, every_other_grader, transfers, variant, changes, generated
):
    """Nothing of a token goes back to the device, neither answers [8, 40] nor what is computed from them at width 48."""
    config = loop_config(variant, prompts_per_step=2, num_rollouts=4, max_new_tokens=40, steps=2, **changes)
    steps = train(config, tiny_policy, PROBLEMS, None, "{problem} =", every_other_grader)
    sent, reads = transfers(lambda: next(steps))
    assert "int32[2,16]" in sent  # the prompts
    assert not [shape for shape in sent if "[8," in shape]
    assert [sorted(shapes) for shapes in reads[:-1]] == [[(8,), (8,), (8, 40), (8, 40)]] * generated
    assert set(reads[-1]) == {()}
