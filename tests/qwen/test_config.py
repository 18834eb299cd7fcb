"""The structure read from config.json."""

import pytest

from grpojax.errors import InputError
from grpojax.qwen.config import QwenConfig


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False, "eos_token_id": [3, 1]},
        {"attention_bias": True},
        {"model_type": "qwen2"},
        {"eos_token_id": None},
    ],
)
def test_a_written_config_reads_as_the_same_model(raw_config, changes):
    config = QwenConfig.from_hf(raw_config(**changes))
    assert QwenConfig.from_hf(config.to_hf()) == config


def test_equal_configs_are_one_static_argument(raw_config):
    assert hash(QwenConfig.from_hf(raw_config())) == hash(QwenConfig.from_hf(raw_config()))


def test_rope_theta_is_read_from_the_old_and_the_new_place(raw_config):
    old = QwenConfig.from_hf(raw_config(rope_theta=5e5))
    new = raw_config(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
    del new["rope_theta"]
    assert QwenConfig.from_hf(new) == old and old.rope_theta == 5e5


@pytest.mark.parametrize(("value", "ids"), [(7, (7,)), ([7, 5], (7, 5)), (0, (0,)), (None, ())])
def test_end_of_text_ids(raw_config, value, ids):
    assert QwenConfig.from_hf(raw_config(eos_token_id=value)).eos_token_ids == ids


def test_fields_that_a_file_may_leave_out(raw_config):
    raw = raw_config()
    for name in ("head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"):
        del raw[name]
    config = QwenConfig.from_hf(raw)
    assert (config.head_dim, config.num_kv_heads, config.rms_norm_eps) == (24 // 4, 4, 1e-6)
    assert not config.tie_word_embeddings  # the default of both families


def test_biases_and_norms_of_the_families(raw_config):
    def traits(**changes):
        config = QwenConfig.from_hf(raw_config(**changes))
        return config.qk_norm, config.qkv_bias, config.output_bias

    assert traits() == (True, False, False)
    assert traits(attention_bias=True) == (True, True, True)
    assert traits(model_type="qwen2") == (False, True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama'; dense qwen3 and qwen2 are supported"),
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'; only 'silu'"),
        ({"use_sliding_window": True}, "use_sliding_window; only full attention"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "RoPE of type 'yarn'; only the default"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}}, "RoPE of type 'linear'"),
        ({"rope_theta": None}, "lacks rope_theta"),
        ({"vocab_size": None, "hidden_size": None}, "lacks vocab_size, hidden_size"),
    ],
)
def test_what_is_not_supported_is_said(raw_config, changes, message):
    with pytest.raises(InputError, match=message):
        QwenConfig.from_hf(raw_config(**changes))
