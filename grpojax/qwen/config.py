"""The structure of a dense Qwen3 or Qwen2/2.5 model, read from a Hugging Face config.json."""

import dataclasses
from typing import Any

from grpojax.device import Device
from grpojax.errors import InputError

SUPPORTED = ("qwen3", "qwen2")


@dataclasses.dataclass(frozen=True)
class QwenConfig:
    """Everything the model is built from. Hashable, so that it can be a static argument of a jitted function."""

    model_type: str
    vocab_size: int  # rows of the embedding; can exceed the tokenizer's size
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    qk_norm: bool  # RMS norm over each query and key head (Qwen3)
    qkv_bias: bool  # Qwen2/2.5, or Qwen3 with attention_bias
    output_bias: bool  # Qwen3 with attention_bias
    eos_token_ids: tuple[int, ...]
    compute_dtype: str = "float32"  # of matrix products and activations; norms, RoPE and logits are always float32
    device: Device = Device()  # that programs are compiled for

    @classmethod
    def from_hf(cls, raw: dict[str, Any], compute_dtype: str = "float32") -> "QwenConfig":
        """Reads the fields of a config.json.

        Raises:
          InputError: for a model family, activation or attention form that is not implemented, or a missing field.
        """
        model_type = raw.get("model_type")
        if model_type not in SUPPORTED:
            raise InputError(f"config.json has model_type {model_type!r}; dense {' and '.join(SUPPORTED)} are supported.")
        if raw.get("hidden_act", "silu") != "silu":
            raise InputError(f"config.json has hidden_act {raw['hidden_act']!r}; only 'silu' is supported.")
        if raw.get("use_sliding_window"):
            raise InputError("config.json sets use_sliding_window; only full attention is supported.")
        missing = [name for name in _REQUIRED if raw.get(name) is None]
        if missing:
            raise InputError(f"config.json lacks {', '.join(missing)}; use the complete file of the checkpoint.")
        heads = raw["num_attention_heads"]
        attention_bias = bool(raw.get("attention_bias", False))
        return cls(
            model_type=model_type,
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            intermediate_size=raw["intermediate_size"],
            num_layers=raw["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=raw.get("num_key_value_heads") or heads,
            # Qwen3-0.6B has hidden size 1024, 16 heads and head_dim 128; the quotient is only right for Qwen2.
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=_rope_theta(raw),
            max_position_embeddings=raw["max_position_embeddings"],
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qk_norm=model_type == "qwen3",
            qkv_bias=model_type == "qwen2" or attention_bias,
            output_bias=model_type == "qwen3" and attention_bias,
            eos_token_ids=_as_ids(raw.get("eos_token_id")),
            compute_dtype=compute_dtype,
        )

    def to_hf(self) -> dict[str, Any]:
        """The fields of a config.json that Hugging Face transformers reads as this model."""
        eos = list(self.eos_token_ids)
        return {
            "architectures": [{"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM"}[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": self.output_bias,
            "hidden_act": "silu",
            "use_sliding_window": False,
            "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        }


_REQUIRED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)


def _rope_theta(raw: dict[str, Any]) -> float:
    """`rope_theta`, or the newer `rope_parameters.rope_theta`; scaled RoPE is refused."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise InputError(f"config.json asks for RoPE of type {kind!r}; only the default one is supported.")
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    if theta is None:
        raise InputError("config.json lacks rope_theta (or rope_parameters.rope_theta).")
    return float(theta)


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
