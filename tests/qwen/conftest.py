"""Small models and tokenizers for the tests of the language model."""

import json
from pathlib import Path

import pytest
import tokenizers

from grpojax.qwen.config import QwenConfig

# head_dim is not hidden / heads, and no two sizes are equal, so that a mix-up of any two shows.
RAW = {
    "model_type": "qwen3",
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}


@pytest.fixture
def raw_config():
    """A factory of config.json contents: `raw_config(model_type="qwen2")`."""
    return lambda **changes: RAW | changes


@pytest.fixture
def tiny_config():
    """A factory of small configurations: `tiny_config(tie_word_embeddings=False)`."""
    return lambda **changes: QwenConfig.from_hf(RAW | changes)


@pytest.fixture
def write_json():
    return lambda path, content: Path(path).write_text(json.dumps(content), "utf-8")


@pytest.fixture
def small_tokenizer(tmp_path_factory):
    """A factory of tokenizer.json files of a byte-level BPE with the given special tokens, ids from 0 on."""

    def make(*special: str, name: str = "tokenizer.json") -> Path:
        backend = tokenizers.Tokenizer(tokenizers.models.BPE())
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=list(special),
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(["what is 12 plus 30? the answer is 42. think about it"] * 3, trainer)
        path = tmp_path_factory.mktemp("tokenizer") / name
        backend.save(str(path))
        return path

    return make
