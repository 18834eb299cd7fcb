"""Fixtures of all tests, above all a random policy so small that a step compiles and runs in about a second."""

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

# Most of the suite's time is compilation of programs that run once; half of it is LLVM's optimisation.
flags = ["--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):  # an unknown flag ends the process
    flags.append("--xla_cpu_parallel_codegen_split_count=1")  # small programs gain nothing from several threads
os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()

import jax
import numpy as np
import pytest
import tokenizers
from fakes import FakeGrader

from grpojax.process import prepare_process
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import param_shapes
from grpojax.qwen.tokenizer import Tokenizer
from grpojax.qwen.weights import Policy, load_policy, save_policy
from grpojax.tasks.prompts import DEFAULT_TEMPLATE

CACHE = "GRPOJAX_CACHE"
if "PYTEST_XDIST_WORKER" not in os.environ:
    # One cache of compiled programs for all workers and for the processes that tests start, instead of the user's.
    os.environ[CACHE] = tempfile.mkdtemp(prefix="grpojax-tests-")
prepare_process()


def pytest_unconfigure():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ[CACHE], ignore_errors=True)

# A forgotten axis must fail, not broadcast.
jax.config.update("jax_numpy_rank_promotion", "raise")

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    """A Hugging Face folder of a random base policy with think tokens; 300 ids, 32 wide, 2 layers, 256 positions."""
    return _write_policy(tmp_path_factory.mktemp("models") / "tiny", kind="base")


@pytest.fixture(scope="session")
def tiny_reasoning_folder(tmp_path_factory) -> Path:
    """The same weights as a reasoning policy: prompted with a chat turn, which it ends with <|im_end|>."""
    return _write_policy(tmp_path_factory.mktemp("models") / "tiny-chat", kind="reasoning")


@pytest.fixture(scope="session")
def tiny_policy(tiny_folder) -> Policy:
    """The policy of `tiny_folder`."""
    return load_policy(tiny_folder)


class EveryOtherGrader(FakeGrader):
    """Calls every other answer right, whatever it says, so that every group has a signal."""

    def grade_many(self, pairs):
        return [i % 2 == 0 for i in range(len(pairs))]


@pytest.fixture
def every_other_grader() -> EveryOtherGrader:
    return EveryOtherGrader()


def _write_policy(folder: Path, kind: str) -> Path:
    tokenizer = Tokenizer(_byte_level_bpe(), kind)
    config = QwenConfig.from_hf(
        {
            "model_type": "qwen3",
            "vocab_size": 300,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_theta": 1e6,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
            "eos_token_id": list(tokenizer.stop_ids),
        }
    )
    # Large weights: answers then depend on the prompt, and a small update changes them.
    random = np.random.default_rng(0)
    params = jax.tree.map_with_path(
        lambda path, p: np.ones(p.shape, "f4") if path[-1].key == "scale" else random.normal(0.0, 0.2, p.shape).astype("f4"),
        param_shapes(config),
    )
    save_policy(Policy(config, params, tokenizer), folder)
    return folder


def _byte_level_bpe() -> tokenizers.Tokenizer:
    """300 ids: the special tokens, every byte, and the merges of the default prompt, so that prompts stay short."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([DEFAULT_TEMPLATE] * 3, trainer)
    return backend
