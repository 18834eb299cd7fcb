"""Tokenizers: kinds, stop ids, chat form and think tags, on small tokenizers and on the real one."""

import json
import os
from pathlib import Path

import pytest

from grpojax.errors import InputError
from grpojax.qwen.tokenizer import load_tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
END_OF_TEXT, END_OF_TURN, OPEN, CLOSE = 151643, 151645, 151667, 151668


@pytest.fixture(scope="module")
def real():
    """The real Qwen3 tokenizer.json."""
    folder = os.environ.get("GRPOJAX_REAL_QWEN")
    if not folder:
        pytest.skip("set GRPOJAX_REAL_QWEN to a folder with a real Qwen3 tokenizer.json")
    return Path(folder) / "tokenizer.json"


def test_kinds_differ_in_their_stop_ids(small_tokenizer):
    path = small_tokenizer(*SPECIAL)
    base, reasoning = load_tokenizer(path, "base"), load_tokenizer(path, "reasoning")
    assert (base.kind, base.stop_ids, base.pad_id) == ("base", (0,), 0)
    assert (reasoning.kind, reasoning.stop_ids, reasoning.pad_id) == ("reasoning", (2, 0), 0)


def test_the_kind_follows_from_the_end_of_text_ids_and_not_from_the_path(small_tokenizer, tmp_path):
    for folder, eos, kind in (("database", (2, 0), "reasoning"), ("Qwen3-reasoning", (0,), "base")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tokenizer.json").write_bytes(small_tokenizer(*SPECIAL).read_bytes())
        assert load_tokenizer(tmp_path / folder, eos_token_ids=eos).kind == kind
    assert load_tokenizer(tmp_path / "database", "base", eos_token_ids=(2, 0)).stop_ids == (0,)


def test_text_survives_encoding(small_tokenizer):
    tokenizer = load_tokenizer(small_tokenizer(*SPECIAL), "base")
    text = "what is 12 plus 30?\n\n  é 数 <|im_end|> \\boxed{42}"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and 2 in ids
    assert tokenizer.decode(ids, skip_special=True) == text.replace("<|im_end|>", "")
    assert tokenizer.vocab["<|im_end|>"] == 2 and tokenizer.size == len(tokenizer.vocab)
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""


def test_truncation_and_padding_of_the_file_do_not_act(small_tokenizer):
    path = small_tokenizer(*SPECIAL)
    raw = json.loads(path.read_text("utf-8"))
    raw["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    raw["padding"] = {
        "strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    path.write_text(json.dumps(raw), "utf-8")
    assert 3 < len(load_tokenizer(path, "base").encode("what is 12 plus 30? the answer")) < 512


def test_chat_form(small_tokenizer):
    tokenizer = load_tokenizer(small_tokenizer(*SPECIAL), "reasoning")
    assert tokenizer.chat("2+2?") == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.chat("2+2?", thinking=False) == tokenizer.chat("2+2?") + "<think>\n\n</think>\n\n"


def test_only_a_reasoning_model_is_prompted_in_chat_form(small_tokenizer):
    path = small_tokenizer(*SPECIAL)
    base, reasoning = load_tokenizer(path, "base"), load_tokenizer(path, "reasoning")
    assert base.decode(base.prompt_ids("2+2?", thinking=False)) == "2+2?"
    assert reasoning.decode(reasoning.prompt_ids("2+2?")) == reasoning.chat("2+2?")
    # The tags of an empty block stand in the prompt, each as its one id.
    assert [i for i in reasoning.prompt_ids("2+2?", thinking=False) if i in (3, 4)] == [3, 4]


def test_think_ids_of_small_tokenizers(small_tokenizer):
    assert load_tokenizer(small_tokenizer(*SPECIAL), "base").think_ids == (3, 4)
    assert load_tokenizer(small_tokenizer(*SPECIAL[:3]), "base").think_ids is None


def test_a_saved_tokenizer_reads_the_same(small_tokenizer, tmp_path):
    tokenizer = load_tokenizer(small_tokenizer(*SPECIAL), "reasoning")
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path, "reasoning")
    assert (again.vocab, again.think_ids) == (tokenizer.vocab, tokenizer.think_ids)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert (settings["eos_token"], settings["pad_token"]) == ("<|im_end|>", "<|endoftext|>")


def test_settings_that_came_with_a_tokenizer_are_kept(small_tokenizer, tmp_path, write_json):
    path = small_tokenizer(*SPECIAL)
    write_json(path.with_name("tokenizer_config.json"), {"model_max_length": 99})
    load_tokenizer(path, "base").save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8")) == {"model_max_length": 99}


def test_errors(small_tokenizer, tmp_path):
    path = small_tokenizer(*SPECIAL)
    with pytest.raises(InputError, match="unknown tokenizer kind 'bass'; choose .* Did you mean 'base'"):
        load_tokenizer(path, "bass")
    with pytest.raises(InputError, match="does not show whether it is a base or a reasoning tokenizer; choose with kind="):
        load_tokenizer(path)
    with pytest.raises(InputError, match="the tokenizer file .*tokenizer.json does not exist"):
        load_tokenizer(tmp_path, "base")
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "mod', "utf-8")
    with pytest.raises(InputError, match="tokenizer.json is damaged"):
        load_tokenizer(tmp_path, "base")
    path.with_name("tokenizer_config.json").write_text("{", "utf-8")
    with pytest.raises(InputError, match="tokenizer_config.json is not valid JSON"):
        load_tokenizer(path, "base")
    with pytest.raises(InputError, match=r"has no <\|endoftext\|> token"):
        load_tokenizer(small_tokenizer("<pad>"), "base")
    with pytest.raises(InputError, match=r"has no <\|im_end\|> token"):
        load_tokenizer(small_tokenizer("<|endoftext|>"), "reasoning")


def test_real_tokenizer(real):
    tokenizer = load_tokenizer(real, eos_token_ids=(END_OF_TURN, END_OF_TEXT))
    assert (tokenizer.kind, tokenizer.stop_ids) == ("reasoning", (END_OF_TURN, END_OF_TEXT))
    assert load_tokenizer(real, eos_token_ids=(END_OF_TEXT,)).stop_ids == (END_OF_TEXT,)
    assert (tokenizer.think_ids, tokenizer.pad_id, tokenizer.size) == ((OPEN, CLOSE), END_OF_TEXT, 151669)
    assert tokenizer.decode(tokenizer.encode("<think>a</think>")) == "<think>a</think>"
    # Tags are part of the text a reader sees, also when special tokens are left out.
    assert tokenizer.decode([OPEN, 64, CLOSE, END_OF_TURN], skip_special=True) == "<think>a</think>"


def test_a_real_tokenizer_without_think_tags_gets_their_places(real, tmp_path):
    """Qwen2.5's tokenizer ends at id 151664; the tags get the ids they have in Qwen3's, and keep them when saved."""
    raw = json.loads(real.read_text("utf-8"))
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["id"] <= 151664]
    path = tmp_path / "qwen25.json"
    path.write_text(json.dumps(raw), "utf-8")
    tokenizer = load_tokenizer(path, "base")
    assert (tokenizer.think_ids, tokenizer.size) == ((OPEN, CLOSE), 151669)
    assert tokenizer.encode("a<think>b</think>") == [64, OPEN, 65, CLOSE]
    assert tokenizer.decode([OPEN, 64, CLOSE], skip_special=True) == "<think>a</think>"
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path, "base").think_ids == (OPEN, CLOSE)
