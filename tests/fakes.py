"""Stand-ins that several tests share."""

import dataclasses
from concurrent.futures import Future
from types import SimpleNamespace

import jax
import numpy as np

from grpojax.config import RunConfig
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.weights import Policy
from grpojax.variants import VARIANTS

LOSSES = {name: variant for name, variant in VARIANTS.items() if variant is next(
    first for first in VARIANTS.values() if jax.tree.structure(first) == jax.tree.structure(variant)
)}  # fmt: skip
"""The first variant of each distinct loss structure: what depends on the loss alone is tested once for each."""

TINY = QwenConfig(
    model_type="qwen3", vocab_size=24, hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=8, rms_norm_eps=1e-6, rope_theta=1e4, max_position_embeddings=64, tie_word_embeddings=False, qk_norm=True,
    qkv_bias=False, output_bias=False, eos_token_ids=(3,),
)  # fmt: skip


class FakeGrader:
    """A grader whose verdicts a test decides: give it a `grade_many`."""

    name = "fake"
    timeouts = 0

    def submit(self, pairs):
        future = Future()
        future.set_result(self.grade_many(pairs))
        return future

    def close(self):
        pass


def whole_sequences(batch):
    """[B, T]: each answer of a batch behind its prompt, padded right with 0."""
    prompts, lengths = batch.prompts[batch.prompt_of], batch.prompt_lens[batch.prompt_of]
    tokens = np.pad(prompts, ((0, 0), (0, batch.targets.shape[1])))
    for row, length, answer in zip(tokens, lengths, batch.targets, strict=True):
        row[length : length + len(answer)] = answer
    return tokens


def loop_config(variant, **changes):
    """Two prompts of four answers of at most eight tokens, from the whole distribution; one shape for all tests of the loop."""
    settings = {
        "variant": variant, "model": "tiny", "steps": 2, "prompts_per_step": 2, "num_rollouts": 4, "max_new_tokens": 8,
        "temperature": 1.0, "top_p": 1.0, "lr": 1e-2,
    }  # fmt: skip
    return RunConfig(**settings | changes).resolved()


def tokenizer(stop_ids, size):
    return SimpleNamespace(stop_ids=stop_ids, size=size)


def chain(successors, stop_ids, size=None):
    """A model without layers whose next token is the successor of the last one, with near certainty.

    The embedding is the identity, so the logits of the next token are a column of the head.
    """
    vocab = len(successors)
    config = dataclasses.replace(TINY, vocab_size=vocab, hidden_size=vocab, num_layers=0)
    head = np.zeros((vocab, vocab), np.float32)
    head[successors, np.arange(vocab)] = 50.0
    params = {
        "embed": {"embedding": np.eye(vocab, dtype=np.float32)},
        "head": {"weight": head},
        "layers": [],
        "norm": {"scale": np.ones(vocab, np.float32)},
    }
    return Policy(config, params, tokenizer(stop_ids, size or vocab))
