"""Writes a workload's weights and tokenizer as a Hugging Face folder: `python -m peers.weights WORKLOAD FOLDER`."""

import json
import sys

import jax
import tokenizers

import grpojax as gj
from grpojax.qwen.model import init_params
from grpojax.qwen.tokenizer import END_OF_TEXT, Tokenizer
from peers.workload import Workload


def make_tokenizer(work: Workload) -> Tokenizer:
    """Words "t0", "t1", ... for the ids 0, 1, ...; the last id is the end of text."""
    vocab = {f"t{i}": i for i in range(work.vocab_size - 1)} | {END_OF_TEXT: work.vocab_size - 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=END_OF_TEXT))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([tokenizers.AddedToken(END_OF_TEXT, normalized=False)])
    return Tokenizer(backend, "base")


def write_weights(work: Workload, folder: str) -> None:
    """Random weights (normal, 0.02) in float32. The model has no end token, so nothing ends an answer early."""
    config = gj.QwenConfig(
        model_type="qwen3", vocab_size=work.vocab_size, hidden_size=work.hidden_size,
        intermediate_size=work.intermediate_size, num_layers=work.num_layers, num_heads=work.num_heads,
        num_kv_heads=work.num_kv_heads, head_dim=work.head_dim, rms_norm_eps=work.rms_norm_eps,
        rope_theta=work.rope_theta, max_position_embeddings=40960, tie_word_embeddings=True, qk_norm=True,
        qkv_bias=False, output_bias=False, eos_token_ids=(),
    )  # fmt: skip
    gj.save_policy(gj.Policy(config, init_params(config, jax.random.key(0)), make_tokenizer(work)), folder)


if __name__ == "__main__":
    write_weights(Workload(**json.loads(sys.argv[1])), sys.argv[2])
