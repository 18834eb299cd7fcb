"""A real pre-trained checkpoint against transformers, in float32. Needs about 6 GB of memory and a minute or two."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.qwen.attention import KVCache
from grpojax.qwen.model import causal_inputs, head_logits, hidden_states
from grpojax.qwen.tokenizer import load_tokenizer
from grpojax.qwen.weights import load_policy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = os.environ.get("GRPOJAX_REAL_QWEN")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not FOLDER, reason="set GRPOJAX_REAL_QWEN to the folder of a real Qwen checkpoint"),
]

TEXT = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips did "
    "she sell altogether in April and May? Let us think step by step. In May she sold 48 / 2 = 24 clips. "
)
PROMPTS = ("What is 17 + 25?", "def fibonacci(n):", "The capital of France is")
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def expected():
    """What transformers says: logits [200, V] and one continuation per prompt. Its model is gone afterwards."""
    tokenizer = load_tokenizer(FOLDER, "base")
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([_tokens(tokenizer)])).logits[0].numpy()
        continuations = [
            model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
            for ids in (torch.tensor([tokenizer.encode(prompt)]) for prompt in PROMPTS)
        ]
    return logits, [ids[0, -NEW_TOKENS:].tolist() for ids in continuations]


@pytest.fixture(scope="module")
def policy(expected):
    return load_policy(FOLDER)  # after the other model was freed


def test_logits_over_200_tokens(policy, expected):
    logits = policy.apply(policy.params, np.array([_tokens(policy.tokenizer)]))[0]
    assert np.abs(np.asarray(logits) - expected[0]).max() < 1e-3


def test_greedy_continuations(policy, expected):
    assert [_greedy(policy, policy.tokenizer.encode(prompt)) for prompt in PROMPTS] == expected[1]


def _tokens(tokenizer):
    return (tokenizer.encode(TEXT) * 4)[:200]


def _greedy(policy, ids):
    """Prefill, then one token at a time through the cache."""
    slots = len(ids) + NEW_TOKENS

    @jax.jit
    def step(params, tokens, positions, cache, slot):
        attend = jnp.arange(slots)[None, None, :] <= positions[:, :, None]
        hidden, cache = hidden_states(policy.config, params, tokens, positions, attend, cache, slot)
        return jnp.argmax(head_logits(policy.config, params, hidden[:, -1]), axis=-1), cache

    tokens = jnp.array([ids])
    token, cache = step(policy.params, tokens, causal_inputs(tokens)[0], KVCache.empty(policy.config, 1, slots), 0)
    answer = [int(token[0])]
    while len(answer) < NEW_TOKENS:
        slot = len(ids) + len(answer) - 1
        token, cache = step(policy.params, token[:, None], jnp.array([[slot]]), cache, slot)
        answer.append(int(token[0]))
    return answer
