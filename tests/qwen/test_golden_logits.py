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
    rows = [cases["prompt"] + answer for answer in cases["answers"]]
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)  # padded on the right
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    logits = np.asarray(policy.apply(policy.params, tokens))
    for i, ids in enumerate(rows):
        np.testing.assert_allclose(logits[i, : len(ids)], recorded[f"logits_{name}_{i}"], atol=1e-4)
