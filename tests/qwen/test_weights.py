"""Checkpoints in and out: the conversion table, every format, names of models, and every error."""

import dataclasses
import hashlib
import importlib.util
import json
import shutil
import socket
import sys
from pathlib import Path
from unittest import mock

import huggingface_hub
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from grpojax.errors import InputError
from grpojax.qwen import sources, weights
from grpojax.qwen.conversion import conversion_table, tensors_from_tree, tree_shapes
from grpojax.qwen.model import init_params, param_shapes
from grpojax.qwen.sources import model_files
from grpojax.qwen.tokenizer import load_tokenizer
from grpojax.qwen.weights import Policy, convert_checkpoint, load_policy, save_orbax, save_policy

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def tensors(tiny_config):
    """A factory of random checkpoint tensors, by Hugging Face name."""

    def make(config=None):
        params = init_params(config or tiny_config(), jax.random.key(0))
        return tensors_from_tree(config or tiny_config(), params)

    return make


@pytest.fixture
def checkpoint(tmp_path, tensors, raw_config, write_json):
    """A factory of Hugging Face folders: `checkpoint({name: array}, tie_word_embeddings=False)`."""

    def make(content=None, name="checkpoint", **changes):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        write_json(folder / "config.json", raw_config(**changes))
        safetensors.numpy.save_file(tensors() if content is None else content, folder / "model.safetensors")
        return folder

    return make


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a request was made")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty cache of huggingface_hub."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


def _put_in_cache(cache: Path, name: str, folder: Path) -> Path:
    """The layout huggingface_hub keeps on disk: refs/main, blobs named by hash, and links to them."""
    commit, root = "c" * 40, cache / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    for made in (snapshot, root / "refs", root / "blobs"):
        made.mkdir(parents=True)
    (root / "refs" / "main").write_text(commit)
    for file in folder.iterdir():
        blob = root / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(blob)
    return snapshot


def _same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


# The table


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": False}, {"model_type": "qwen2"}, {"attention_bias": True}]
)
def test_the_table_fills_every_path_once(tiny_config, changes):
    config = tiny_config(**changes)
    rows = conversion_table(config)
    filled = sorted((row.path, row.layer) for row in rows.values() if row.layer is not None)
    filled += sorted((row.path, 0) for row in rows.values() if row.layer is None)
    shapes = tree_shapes(param_shapes(config))
    places = [(path, i) for path in sorted(shapes) if path.startswith("layers/") for i in range(shapes[path][0])]
    assert filled == places + [(path, 0) for path in sorted(shapes) if not path.startswith("layers/")]


def test_square_matrices_are_not_turned(tensors, checkpoint, tiny_config):
    """Hidden, query, key and ffn width are all 8: no shape shows a wrong transpose. Input e_j reads column j of W."""
    square = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2, "head_dim": 4}
    content = tensors(tiny_config(**square))
    params = jax.tree.map(lambda x: x[1], load_policy(checkpoint(content, **square)).params["layers"])
    for name, placed in (
        *((f"self_attn.{x}_proj", params["attention"][x]["weight"]) for x in "qkvo"),
        *((f"mlp.{x}_proj", params["mlp"][x]["weight"]) for x in ("gate", "up", "down")),
    ):
        weight = content[f"model.layers.1.{name}.weight"]
        assert weight.shape == (8, 8)
        for j in range(8):
            np.testing.assert_array_equal(np.asarray(placed) @ np.eye(8, dtype=np.float32)[j], weight[:, j])


@pytest.mark.slow
def test_a_tied_checkpoint_needs_no_head_and_does_not_use_one(tensors, checkpoint):
    """With a head of twice the embedding, an untied model gives twice the logits of the tied one."""
    with_head = tensors() | {HEAD: 2.0 * tensors()[EMBEDDING]}
    tokens = np.array([[3, 14, 15]])
    without = load_policy(checkpoint(name="without"))
    tied = load_policy(checkpoint(with_head, name="tied"))
    untied = load_policy(checkpoint(with_head, name="untied", tie_word_embeddings=False))
    logits = without.apply(without.params, tokens)
    np.testing.assert_array_equal(tied.apply(tied.params, tokens), logits)
    np.testing.assert_allclose(untied.apply(untied.params, tokens), 2.0 * logits, rtol=1e-5, atol=1e-6)


def test_untie_gives_a_head_of_its_own(tensors, checkpoint):
    folder = checkpoint(tensors() | {HEAD: 2.0 * tensors()[EMBEDDING]})
    tied, untied = load_policy(folder), load_policy(folder, untie=True)
    assert not untied.config.tie_word_embeddings
    np.testing.assert_array_equal(untied.params["head"]["weight"], tied.params["embed"]["embedding"])
    # Two buffers, not two names of one: an update may donate its parameters.
    head, embedding = untied.params["head"]["weight"], untied.params["embed"]["embedding"]
    assert head.unsafe_buffer_pointer() != embedding.unsafe_buffer_pointer()


def test_everything_that_does_not_fit_is_reported_together(tensors, checkpoint):
    content = tensors()
    content["model.layers.7.mlp.up_proj.weight"] = content.pop("model.layers.1.mlp.up_proj.weight")
    content["extra"] = np.zeros(3, np.float32)
    content[Q_PROJ] = content[Q_PROJ].T.copy()
    content[HEAD] = np.zeros((2, 2), np.float32)
    with pytest.raises(InputError) as error:
        load_policy(checkpoint(content))
    message = str(error.value)
    assert "1 missing (model.layers.1.mlp.up_proj.weight)" in message
    assert "2 unknown (extra, model.layers.7.mlp.up_proj.weight)" in message
    assert f"{Q_PROJ} is 24x40, expected 40x24" in message and f"{HEAD} is 2x2, expected 61x24" in message
    assert "2 misshapen" in message and "use weights and config.json of one model" in message


def test_a_long_report_counts_what_it_does_not_name(checkpoint):
    with pytest.raises(InputError, match=r"24 missing \(.*and 12 more\)"):
        load_policy(checkpoint({}))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(tensors, checkpoint, value):
    content = tensors()
    content[Q_PROJ] = content[Q_PROJ].copy()
    content[Q_PROJ][3, 5] = value
    with pytest.raises(InputError, match=r"NaN or infinite values in 1 tensors \(layers/attention/q/weight\)"):
        load_policy(checkpoint(content))


# Data types


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_stored_types(tensors, checkpoint, stored):
    content = {name: array.astype(stored) for name, array in tensors().items()}
    folder = checkpoint(content)
    policy = load_policy(folder)
    assert {leaf.dtype for leaf in jax.tree.leaves(policy.params)} == {jnp.dtype("float32")}
    np.testing.assert_array_equal(policy.params["embed"]["embedding"], content[EMBEDDING].astype(np.float32))
    kept = load_policy(folder, dtype=None)
    assert {leaf.dtype for leaf in jax.tree.leaves(kept.params)} == {jnp.dtype(stored)}


def test_compute_dtype_follows_the_parameters_unless_given(checkpoint):
    folder, tokens = checkpoint(), np.array([[1, 2]])
    for options, params, compute in (
        ({}, "float32", "float32"),
        ({"dtype": "bfloat16"}, "bfloat16", "bfloat16"),
        ({"compute_dtype": "bfloat16"}, "float32", "bfloat16"),
    ):
        policy = load_policy(folder, **options)
        assert (policy.params["norm"]["scale"].dtype, policy.config.compute_dtype) == (params, compute)
        assert policy.apply(policy.params, tokens).dtype == jnp.float32
    with pytest.raises(InputError, match="unknown dtype 'float23'; choose float32 or bfloat16. Did you mean 'float32'"):
        load_policy(folder, dtype="float23")


# Apply


def test_ids_outside_the_vocabulary_are_refused(checkpoint):
    policy = load_policy(checkpoint())  # 61 ids
    policy.apply(policy.params, np.array([[60, 0]]))
    for bad in (61, -1):
        with pytest.raises(InputError, match=f"token id {bad} is not in the vocabulary; use ids 0 to 60"):
            policy.apply(policy.params, np.array([[1, bad]]))


def test_a_single_sequence_needs_its_batch_axis(checkpoint):
    policy = load_policy(checkpoint())
    with pytest.raises(InputError, match=r"tokens have shape \(3,\); give \[sequences, length\]"):
        policy.apply(policy.params, np.array([1, 2, 3]))


def test_apply_can_be_compiled(checkpoint):
    policy, tokens = load_policy(checkpoint()), np.array([[1, 2, 3]])
    np.testing.assert_allclose(
        jax.jit(policy.apply)(policy.params, tokens), policy.apply(policy.params, tokens), atol=1e-6
    )


# Hugging Face folders


def _shard(folder, content, names=("a.safetensors", "b.safetensors")):
    """Splits `content` over two files with an index."""
    places = {tensor: names[i % 2] for i, tensor in enumerate(content)}
    for file in names:
        part = {tensor: content[tensor] for tensor in content if places[tensor] == file}
        safetensors.numpy.save_file(part, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_shards_of_an_index_and_nothing_else(tensors, checkpoint):
    single = checkpoint(name="single")
    sharded = checkpoint({"stale": np.zeros(2, np.float32)}, name="sharded")  # a model.safetensors left behind
    safetensors.numpy.save_file({Q_PROJ: np.full((40, 24), 9, np.float32)}, sharded / "c.safetensors")
    _shard(sharded, tensors())
    _same(load_policy(sharded).params, load_policy(single).params)


def test_an_absent_shard_is_named(tensors, checkpoint):
    folder = checkpoint()
    _shard(folder, tensors())
    (folder / "b.safetensors").unlink()
    with pytest.raises(InputError, match="index.json names b.safetensors, which is missing"):
        load_policy(folder)


def test_a_tensor_that_is_not_where_the_index_says_is_missing(tensors, checkpoint):
    folder = checkpoint()
    _shard(folder, tensors())
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    moved = {**places, Q_PROJ: {"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}[places[Q_PROJ]]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(InputError, match=f"1 missing \\({Q_PROJ}\\)"):
        load_policy(folder)


def test_damaged_files(checkpoint):
    folder = checkpoint()
    file = folder / "model.safetensors"
    content = file.read_bytes()
    for damaged in (content[:-100], content[:5], b"\xff" * 8 + content[8:]):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match="model.safetensors is damaged or incomplete .*; download it again"):
            load_policy(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="index.json is damaged"):
        load_policy(folder)


def test_folders_that_are_no_models(checkpoint, tmp_path):
    with pytest.raises(InputError, match="is not a model folder, because it has no config.json"):
        load_policy(tmp_path)
    folder = checkpoint()
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="has no weights; expected model.safetensors, an index"):
        load_policy(folder)
    for text, message in (("{", "config.json is not valid JSON"), ("[]", "config.json is not a JSON object")):
        (folder / "config.json").write_text(text)
        with pytest.raises(InputError, match=message):
            load_policy(folder)


def test_end_of_text_ids_of_both_files_count(checkpoint, write_json):
    folder = checkpoint(eos_token_id=2)
    assert weights.read_config(folder).eos_token_ids == (2,)
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0]})
    assert weights.read_config(folder).eos_token_ids == (2, 0)


def _with_tokenizer(tiny_config, tokenizer, **changes):
    config = tiny_config(vocab_size=304, **changes)
    return Policy(
        dataclasses.replace(config, eos_token_ids=tokenizer.stop_ids), init_params(config, jax.random.key(3)), tokenizer
    )


@pytest.mark.parametrize("save", [save_policy, save_orbax])
@pytest.mark.parametrize("kind", ["base", "reasoning"])
def test_a_saved_policy_loads_as_it_was(tiny_config, small_tokenizer, tmp_path, save, kind):
    """A kind chosen by hand lasts too: this configuration alone would say base."""
    policy = _with_tokenizer(tiny_config, load_tokenizer(small_tokenizer(*SPECIAL), kind), model_type="qwen2")
    save(policy, tmp_path / "a" / "b")
    again = load_policy(tmp_path / "a" / "b")
    assert again.config == policy.config and again.tokenizer.kind == kind
    assert again.tokenizer.vocab == policy.tokenizer.vocab
    _same(again.params, policy.params)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_the_stop_ids_of_policy_and_tokenizer_agree(tiny_config, small_tokenizer, tmp_path):
    reasoning = load_tokenizer(small_tokenizer(*SPECIAL), "reasoning")
    save_policy(_with_tokenizer(tiny_config, reasoning), tmp_path / "saved")
    assert load_policy(tmp_path / "saved").config.eos_token_ids == (2, 0)
    base = load_policy(tmp_path / "saved", kind="base")
    assert base.config.eos_token_ids == base.tokenizer.stop_ids == (0,)


def test_a_tokenizer_that_is_too_large_for_the_model_is_refused(checkpoint, small_tokenizer):
    folder = checkpoint()
    shutil.copy(small_tokenizer(*SPECIAL), folder / "tokenizer.json")
    with pytest.raises(InputError, match="has ids up to 292, the model only 61 rows"):
        load_policy(folder)


def test_nothing_is_overwritten(tiny_config, tmp_path):
    policy = Policy(tiny_config(), init_params(tiny_config(), jax.random.key(0)))
    full, file, empty = tmp_path / "full", tmp_path / "file", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "mine.txt").write_text("x")
    file.write_text("x")
    for path in (full, file):
        with pytest.raises(InputError, match="already exists; name a new folder"):
            save_policy(policy, path)
    save_policy(policy, empty)
    assert load_policy(empty).config == policy.config
    assert (full / "mine.txt").read_text() == file.read_text() == "x"


def test_a_failed_save_leaves_nothing_behind(tiny_config, tmp_path, monkeypatch):
    policy = Policy(tiny_config(), init_params(tiny_config(), jax.random.key(0)))
    monkeypatch.setattr(safetensors.numpy, "save_file", mock.Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        save_policy(policy, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


# Orbax


@pytest.fixture
def orbax_folder(checkpoint, tmp_path):
    convert_checkpoint(checkpoint(), tmp_path / "orbax", "orbax")
    return tmp_path / "orbax"


def test_conversion_there_and_back_keeps_every_bit(tensors, checkpoint, tmp_path):
    content = {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors().items()}
    convert_checkpoint(checkpoint(content), tmp_path / "orbax", "orbax")
    assert load_policy(tmp_path / "orbax").params["norm"]["scale"].dtype == jnp.float32
    convert_checkpoint(tmp_path / "orbax", tmp_path / "back", "huggingface")
    back = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    assert set(back) == set(content)
    for name, array in content.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_an_orbax_tree_that_does_not_fit_is_reported(orbax_folder, raw_config, write_json):
    write_json(orbax_folder / "config.json", raw_config(num_hidden_layers=1, intermediate_size=41))
    with pytest.raises(InputError) as error:
        load_policy(orbax_folder)
    assert "11 misshapen" in str(error.value)
    assert "layers/mlp/up/weight is 2x40x24, expected 1x41x24" in str(error.value)


def test_a_damaged_orbax_checkpoint(orbax_folder):
    for file in (orbax_folder / "params").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(InputError, match="params is damaged or incomplete .*; write it again"):
        load_policy(orbax_folder)


def test_values_that_are_not_finite_are_refused_from_orbax(tiny_config, tmp_path):
    params = init_params(tiny_config(), jax.random.key(0))
    params["norm"]["scale"] = params["norm"]["scale"].at[2].set(jnp.nan)
    save_orbax(Policy(tiny_config(), params), tmp_path / "orbax")
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(InputError, match=r"NaN or infinite values in 1 tensors \(norm/scale\)"):
            load_policy(tmp_path / "orbax", dtype=dtype)


def test_conversion_checks_its_words_before_reading(checkpoint, tmp_path):
    with pytest.raises(InputError, match="unknown checkpoint format 'orbex'; .* Did you mean 'orbax'"):
        convert_checkpoint(tmp_path / "none", tmp_path / "new", "orbex")
    with pytest.raises(InputError, match="already exists"):
        convert_checkpoint(tmp_path / "none", checkpoint(), "orbax")


def test_convert_script(checkpoint, tmp_path, capsys):
    script = Path(__file__).parents[2] / "weights" / "convert.py"
    spec = importlib.util.spec_from_file_location("convert", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = checkpoint()
    assert module.main([str(source), str(tmp_path / "orbax"), "--dtype", "bfloat16"]) == 0
    assert load_policy(tmp_path / "orbax", dtype=None).params["norm"]["scale"].dtype == jnp.bfloat16
    assert module.main([str(source), str(tmp_path / "orbax"), "--to", "huggingface"]) == 2
    assert "error: " in capsys.readouterr().err


# Names


def test_a_run_folder_means_its_newest_complete_checkpoint(orbax_folder, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="run has no complete checkpoint"):
        load_policy(run)
    for step in ("2", "10", "20"):
        shutil.copytree(orbax_folder, run / "checkpoints" / step)
    shutil.rmtree(run / "checkpoints" / "20" / "params")  # killed while it was written
    (run / "checkpoints" / ".30.aside").mkdir()
    assert model_files(run) == run / "checkpoints" / "10"
    _same(load_policy(run).params, load_policy(orbax_folder).params)


def test_embedded_models_come_from_the_package_or_the_checkout(checkpoint, tmp_path, monkeypatch):
    package = tmp_path / "site" / "grpojax"
    monkeypatch.setattr(sources, "__file__", str(package / "qwen" / "sources.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="embedded model 'tiny-base' is not installed"):
        load_policy("tiny-base")
    folder = checkpoint()
    shutil.copytree(folder, tmp_path / "site" / "weights" / "tiny-base")
    assert model_files("Tiny-Base") == tmp_path / "site" / "weights" / "tiny-base"
    shutil.copytree(folder, package / "embedded" / "tiny-base")
    assert model_files("tiny-base") == package / "embedded" / "tiny-base"


def test_unknown_names(tmp_path, no_network):
    with pytest.raises(InputError, match="there is no model 'tiny-bse'; give a folder, .* Did you mean 'tiny-base'"):
        load_policy("tiny-bse")
    with pytest.raises(InputError, match="Did you mean 'qwen3-0.6b-base'"):
        load_policy("qwen3-0.6-base")
    for path in (tmp_path / "a" / "b", "./a", "runs/model.pth"):
        with pytest.raises(InputError, match="there is no model"):
            load_policy(path)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="is neither a folder nor a .pth file"):
        load_policy(tmp_path / "model.bin")


def test_short_names():
    assert sources.SHORT_NAMES["qwen3-0.6b-base"] == "Qwen/Qwen3-0.6B-Base"
    assert sources.SHORT_NAMES["qwen3-0.6b"] == "Qwen/Qwen3-0.6B"
    assert sources.SHORT_NAMES["qwen2.5-0.5b-instruct"] == "Qwen/Qwen2.5-0.5B-Instruct"


# The hub


def test_a_cached_model_needs_no_request(checkpoint, hub_cache, no_network):
    folder = checkpoint()
    _put_in_cache(hub_cache, "Qwen/Qwen3-0.6B-Base", folder)
    for name in ("Qwen/Qwen3-0.6B-Base", "qwen3-0.6b-base", "Qwen3-0.6B-Base"):
        _same(load_policy(name).params, load_policy(folder).params)


@pytest.mark.parametrize("cached", [False, True])
def test_without_network_one_sentence_says_what_to_do(checkpoint, hub_cache, monkeypatch, no_network, cached):
    """Also where an interrupted download left a part of the model."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if cached:
        snapshot = _put_in_cache(hub_cache, "org/model", checkpoint())
        (snapshot / "model.safetensors").unlink()
    with pytest.raises(InputError) as error:
        load_policy("org/model")
    message = str(error.value)
    for part in ("'org/model'", "model.safetensors", "HF_HUB_OFFLINE", "hf download org/model", str(hub_cache)):
        assert part in message
    assert "\n" not in message


def _fake_download(monkeypatch, download):
    """Replaces the request; the look into the cache finds nothing."""

    def snapshot_download(name, *, allow_patterns, local_files_only=False):
        if local_files_only:
            raise LocalEntryNotFoundError("not in the cache")
        return str(download(name))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def test_a_model_is_fetched_once_it_is_not_on_disk(checkpoint, hub_cache, monkeypatch):
    folder = checkpoint()
    _fake_download(monkeypatch, lambda name: _put_in_cache(hub_cache, name, folder))
    _same(load_policy("org/model").params, load_policy(folder).params)


def test_a_download_with_wrong_bytes_is_refused_and_removed(checkpoint, hub_cache, monkeypatch):
    """Four bytes in the middle, all values still finite."""
    snapshot = _put_in_cache(hub_cache, "org/model", checkpoint())
    blob = (snapshot / "model.safetensors").resolve()
    content = bytearray(blob.read_bytes())
    middle = len(content) // 2 // 4 * 4
    content[middle : middle + 4] = b"\x00\x00\x00\x00"
    blob.write_bytes(bytes(content))
    _fake_download(monkeypatch, lambda name: snapshot)
    with pytest.raises(InputError, match="model.safetensors was damaged by the download and removed; run the command again"):
        load_policy("org/model")
    assert not blob.exists() and not (snapshot / "model.safetensors").is_symlink()


def test_a_name_no_repository_can_have(hub_cache, no_network):
    with pytest.raises(InputError, match="'org/a--b' is neither a folder nor complete in the cache"):
        load_policy("org/a--b")


def test_a_name_the_hub_does_not_know(hub_cache, monkeypatch):
    def refuse(name):
        raise RepositoryNotFoundError("404", response=mock.Mock())

    _fake_download(monkeypatch, refuse)
    with pytest.raises(InputError, match="the hub has no such model .* Did you mean 'Qwen/Qwen3-0.6B-Base'"):
        load_policy("Qwen/Qwen3-0.6B-Bse")


# The book's files


@pytest.fixture
def book_file(tmp_path, monkeypatch, raw_config, tiny_config):
    """A small .pth file in the book's names, and the same model as a policy."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(weights, "_BOOK_CONFIG", raw_config(vocab_size=300, tie_word_embeddings=False))
    config = tiny_config(vocab_size=300, tie_word_embeddings=False)
    policy = Policy(config, init_params(config, jax.random.key(0)))
    by_place = {(row.path, row.layer): name for name, row in conversion_table(config, "book").items()}
    named = tensors_from_tree(config, policy.params)
    places = {name: (row.path, row.layer) for name, row in conversion_table(config).items()}
    state = {by_place[place]: torch.tensor(named[name]).bfloat16() for name, place in places.items()}
    torch.save(state, tmp_path / "qwen3-0.6B-base.pth")
    return tmp_path / "qwen3-0.6B-base.pth", policy, state


@pytest.mark.parity
def test_the_books_file(book_file):
    path, policy, state = book_file
    assert {"tok_emb.weight", "trf_blocks.1.att.W_query.weight", "trf_blocks.0.ff.fc3.weight"} <= set(state)
    assert {"final_norm.scale", "out_head.weight", "trf_blocks.1.norm2.scale"} <= set(state)
    loaded = load_policy(path, dtype="bfloat16")
    assert loaded.tokenizer is None and not loaded.config.tie_word_embeddings
    _same(loaded.params, jax.tree.map(lambda array: array.astype("bfloat16"), policy.params))


@pytest.mark.parity
def test_the_tokenizer_beside_the_books_file(book_file, small_tokenizer):
    path, _, _ = book_file
    for kind in ("base", "reasoning"):
        shutil.copy(small_tokenizer(*SPECIAL), path.with_name(f"tokenizer-{kind}.json"))
    assert load_policy(path, kind="reasoning").config.eos_token_ids == (2, 0)
    with pytest.raises(InputError, match="does not show which tokenizer .* it needs; choose with kind="):
        load_policy(path)


@pytest.mark.parity
def test_a_book_file_that_does_not_fit(book_file):
    torch = pytest.importorskip("torch")
    path, _, state = book_file
    state.pop("out_head.weight")
    torch.save(state, path)
    with pytest.raises(InputError, match=r"1 missing \(out_head.weight\)"):
        load_policy(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="is damaged or not a state dict"):
        load_policy(path)


def test_the_books_file_without_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "model.pth").write_bytes(b"x")
    with pytest.raises(InputError, match="needs PyTorch; `pip install torch`, or give a Hugging Face folder"):
        load_policy(tmp_path / "model.pth")
