"""Logits of the tiny checkpoints in tests/golden against the reference's."""

import json
from pathlib import Path

import numpy as np
import pytest

from grpojax.qwen.weights import load_policy

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["policy", "old", "ref"])
def test_golden_logits(name):
    recorded = np.load(GOLDEN / "arrays.npz")
    cases = json.loads((GOLDEN / "golden.json").read_text("utf-8"))
    policy = load_policy(GOLDEN / name)
    assert policy.tokenizer is None
    for i, answer in enumerate(cases["answers"]):
        logits = policy.apply(policy.params, np.array([cases["prompt"] + answer]))
        np.testing.assert_allclose(logits[0], recorded[f"logits_{name}_{i}"], atol=1e-4)
