"""The model, and what save_policy writes, against Hugging Face transformers, layer by layer."""

import dataclasses

import jax
import numpy as np
import pytest

from grpojax.qwen.model import causal_inputs, hidden_states, init_params
from grpojax.qwen.tokenizer import load_tokenizer
from grpojax.qwen.weights import Policy, load_policy, save_policy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

CASES = [
    {"model_type": "qwen3"},
    {"model_type": "qwen3", "tie_word_embeddings": False, "attention_bias": True},
    {"model_type": "qwen2", "head_dim": 6},
    {"model_type": "qwen2", "head_dim": 6, "tie_word_embeddings": False},
]
_hidden_states = jax.jit(hidden_states, static_argnums=0)
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 17))


def _reference(raw):
    """A transformers model in which every parameter matters: norm scales away from 1, biases away from 0."""
    torch.manual_seed(0)
    kind = {"qwen3": transformers.Qwen3Config, "qwen2": transformers.Qwen2Config}[raw["model_type"]]
    config = kind(**{name: value for name, value in raw.items() if name != "model_type"}, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def _logits(model, **options):
    with torch.no_grad():
        return model(torch.tensor(TOKENS), **options)


@pytest.mark.parametrize("case", CASES)
def test_every_layer_agrees(raw_config, tmp_path, case):
    reference = _reference(raw_config(num_hidden_layers=3, **case))
    reference.save_pretrained(tmp_path)
    policy = load_policy(tmp_path)
    expected = _logits(reference, output_hidden_states=True)
    # A model cut after n layers ends in the last norm, which is set to 1 on both sides.
    final_norm = reference.model.norm
    torch.nn.init.ones_(final_norm.weight)
    params = policy.params | {"norm": {"scale": np.ones(24, np.float32)}}
    for n in range(3):
        cut = dataclasses.replace(policy.config, num_layers=n)
        rest = params | {"layers": jax.tree.map(lambda x: x[:n], params["layers"])}
        hidden, _ = _hidden_states(cut, rest, TOKENS, *causal_inputs(TOKENS))
        with torch.no_grad():
            normed = final_norm(expected.hidden_states[n])
        np.testing.assert_allclose(hidden, normed.numpy(), atol=2e-5)
    np.testing.assert_allclose(policy.apply(policy.params, TOKENS), expected.logits.numpy(), atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_transformers_loads_what_save_policy_writes(raw_config, tmp_path, case):
    reference = _reference(raw_config(**case))
    reference.save_pretrained(tmp_path / "theirs")
    policy = load_policy(tmp_path / "theirs")
    save_policy(policy, tmp_path / "ours")
    again, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values())  # nothing missing, unexpected, mismatched or in error
    np.testing.assert_array_equal(_logits(again.eval()).logits, _logits(reference).logits)
    np.testing.assert_allclose(policy.apply(policy.params, TOKENS), _logits(again).logits.numpy(), atol=1e-4)


def test_transformers_reads_the_saved_tokenizer_and_stop_ids(tiny_config, small_tokenizer, tmp_path):
    tokenizer = load_tokenizer(small_tokenizer("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "reasoning")
    config = tiny_config(vocab_size=300)
    save_policy(Policy(config, init_params(config, jax.random.key(0)), tokenizer), tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    text = "what is 12 plus 30?<|im_end|>"
    assert theirs(text)["input_ids"] == tokenizer.encode(text)
    chat = [{"role": "user", "content": "2+2?"}]
    assert theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == tokenizer.chat("2+2?")
    assert (theirs.eos_token_id, theirs.pad_token_id) == (2, 0)
