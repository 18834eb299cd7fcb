"""Text to token ids and back for Qwen models, with the `tokenizers` library."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from grpojax.errors import InputError, did_you_mean

KINDS = ("base", "reasoning")
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
THINK_TAGS = ("<think>", "</think>")

_QWEN_END_OF_TEXT_ID = 151643  # the same in every Qwen2, Qwen2.5 and Qwen3 tokenizer
_QWEN_THINK_IDS = (151667, 151668)  # the ids of THINK_TAGS in Qwen3

# Saved with a tokenizer that came without a chat template.
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tokenizer:
    """A byte-level BPE tokenizer with Qwen's special tokens.

    Attributes:
      kind: "base" or "reasoning".
      stop_ids: the ids that end an answer: (end of text,) for base, (end of turn, end of text) for reasoning.
      pad_id: the padding id, that of the end of text.
      vocab: token -> id.
      size: the largest id + 1. A model's vocabulary can be padded beyond it.
      think_ids: ids of <think> and </think>; None unless each is a single id.
    """

    def __init__(self, backend: tokenizers.Tokenizer, kind: str, settings: dict[str, Any] | None = None):
        """Changes `backend`; `settings` is the tokenizer_config.json to write when it is saved."""
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS)
            raise InputError(f"unknown tokenizer kind {kind!r}; choose 'base' or 'reasoning'.{hint}")
        backend.no_padding()
        backend.no_truncation()
        _place_think_tags(backend)
        self._backend = backend
        self._settings = settings or {}
        self.kind = kind
        self.pad_id = self._special_id(END_OF_TEXT)
        self.stop_ids = (self.pad_id,) if kind == "base" else (self._special_id(END_OF_TURN), self.pad_id)
        self.vocab = backend.get_vocab(with_added_tokens=True)
        self.size = max(self.vocab.values()) + 1
        tags = [self.encode(tag) for tag in THINK_TAGS]
        self.think_ids = (tags[0][0], tags[1][0]) if [len(ids) for ids in tags] == [1, 1] else None

    def encode(self, text: str) -> list[int]:
        """The ids of `text`. Special tokens in it are recognised; none are added around it."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of `ids`. Unknown ids are dropped; think tags count as text, not as special tokens."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    def chat(self, text: str, thinking: bool = True) -> str:
        """`text` as a user turn in Qwen3's chat format, up to the start of the assistant turn.

        Without `thinking` the prompt ends with an empty think block. With it the model generates the block itself, tags
        included.
        """
        block = "" if thinking else f"{THINK_TAGS[0]}\n\n{THINK_TAGS[1]}\n\n"
        return f"<|im_start|>user\n{text}{END_OF_TURN}\n<|im_start|>assistant\n{block}"

    def prompt_ids(self, text: str, thinking: bool = True) -> list[int]:
        """The prompt of a model of this kind: a chat turn for reasoning, the plain text for base."""
        return self.encode(self.chat(text, thinking) if self.kind == "reasoning" else text)

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json and tokenizer_config.json, as transformers reads them."""
        self._backend.save(str(folder / "tokenizer.json"))
        settings = self._settings or {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT if self.kind == "base" else END_OF_TURN,
            "chat_template": _CHAT_TEMPLATE,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False), "utf-8")

    def _special_id(self, token: str) -> int:
        found = self._backend.token_to_id(token)
        if found is None:
            raise InputError(f"the tokenizer has no {token} token; use the tokenizer.json of a Qwen model.")
        return found


def load_tokenizer(source: str | Path, kind: str | None = None, eos_token_ids: Sequence[int] = ()) -> Tokenizer:
    """Reads a tokenizer.json, or the one in a folder.

    Args:
      kind: "base" or "reasoning"; None: by the checkpoint's `eos_token_ids`: a reasoning model ends its turns with
        <|im_end|>. The name of the file or folder does not matter.

    Raises:
      InputError: the file is missing or damaged, or the kind is unknown or cannot be inferred.
    """
    path = Path(source)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"the tokenizer file {path} does not exist; copy the tokenizer.json of the checkpoint there.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"{path} is damaged or not a tokenizer.json ({error}); download it again.") from error
    if kind is None:
        if not eos_token_ids:
            raise InputError(
                f"{path} does not show whether it is a base or a reasoning tokenizer; choose with kind='base' or 'reasoning' (--tokenizer-kind)."
            )
        kind = "reasoning" if backend.token_to_id(END_OF_TURN) in eos_token_ids else "base"
    return Tokenizer(backend, kind, _read_settings(path.with_name("tokenizer_config.json")))


def _read_settings(path: Path) -> dict[str, Any]:
    """The content of a tokenizer_config.json; it can be missing, because only other programs use it."""
    try:
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error}); download it again.") from error


def _place_think_tags(backend: tokenizers.Tokenizer) -> None:
    """Adds think tags with the ids of Qwen3 to a Qwen tokenizer that has none."""
    size = backend.get_vocab_size(with_added_tokens=True)
    is_qwen = backend.token_to_id(END_OF_TEXT) == _QWEN_END_OF_TEXT_ID
    if not is_qwen or size > _QWEN_THINK_IDS[0] or any(backend.token_to_id(tag) is not None for tag in THINK_TAGS):
        return
    # New tokens get the next free ids, so the ids before them are filled with names that no text contains.
    names = [f"<|reserved_{i}|>" for i in range(size, _QWEN_THINK_IDS[0])] + list(THINK_TAGS)
    backend.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in names])
