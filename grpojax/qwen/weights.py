"""Loading and saving policies: Hugging Face folders, Orbax checkpoints and the book's .pth files."""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from jax import Array

from grpojax.device import product_precision, this_device
from grpojax.errors import InputError, did_you_mean
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.conversion import (
    Stored,
    check_tensors,
    place_tree,
    tensors_from_tree,
    tree_from_tensors,
    tree_shapes,
)
from grpojax.qwen.model import Params, forward, param_shapes
from grpojax.qwen.sources import first_line, model_files, safetensors_files
from grpojax.qwen.tokenizer import Tokenizer, load_tokenizer

DTYPES = ("float32", "bfloat16")
FORMATS = ("orbax", "huggingface")

# The book's .pth files have no configuration; this is its Qwen3-0.6B, with a separate head.
_BOOK_CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """A language model: its structure, its parameters and, if the checkpoint has one, its tokenizer."""

    config: QwenConfig
    params: Params
    tokenizer: Tokenizer | None = None

    def apply(self, params: Params, tokens: Array) -> Array:
        """[B, T] ids -> [B, T, V] float32 logits. Padding must be on the right.

        Raises:
          InputError: an id is outside the vocabulary, or the shape is wrong. Under `jit` ids cannot be checked.
        """
        if np.ndim(tokens) != 2:
            raise InputError(f"tokens have shape {np.shape(tokens)}; give [sequences, length], such as tokens[None].")
        if not isinstance(tokens, jax.core.Tracer):
            tokens = np.asarray(tokens)
            if tokens.size and not 0 <= tokens.min() <= tokens.max() < self.config.vocab_size:
                bad = tokens.min() if tokens.min() < 0 else tokens.max()
                raise InputError(f"token id {bad} is not in the vocabulary; use ids 0 to {self.config.vocab_size - 1}.")
        with product_precision(self.config):
            return _forward(self.config, params, tokens)


_forward = jax.jit(forward, static_argnames="config")


def load_policy(
    source: str | Path,
    dtype: str | None = "float32",
    kind: str | None = None,
    compute_dtype: str | None = None,
    untie: bool = False,
) -> Policy:
    """Loads a model.

    Args:
      source: a Hugging Face or Orbax folder, a run folder, a .pth file, a hub name or an embedded model; see `model_files`.
      dtype: of the parameters, "float32" or "bfloat16"; None keeps the checkpoint's.
      kind: "base" or "reasoning", for the tokenizer; None: by the checkpoint's stop ids.
      compute_dtype: of matrix products and activations; None: that of the parameters.
      untie: give a tied model a separate head that starts as a copy of the embedding, as in the book.

    Raises:
      InputError: the model is unknown, incomplete, damaged or not supported.
    """
    for value in (dtype, compute_dtype):
        if value is not None and value not in DTYPES:
            raise InputError(f"unknown dtype {value!r}; choose {' or '.join(DTYPES)}.{did_you_mean(value, DTYPES)}")
    path = model_files(source)
    read = _read_folder if path.is_dir() else _read_book_file
    config, params, tokenizer = read(path, dtype, kind)
    if untie and config.tie_word_embeddings:
        params = params | {"head": {"weight": jnp.copy(params["embed"]["embedding"])}}
        config = dataclasses.replace(config, tie_word_embeddings=False)
    if tokenizer is not None:
        if tokenizer.size > config.vocab_size:
            raise InputError(
                f"the tokenizer of {path} has ids up to {tokenizer.size - 1}, the model only {config.vocab_size} rows; "
                "use tokenizer.json and config.json of one model."
            )
        config = dataclasses.replace(config, eos_token_ids=tokenizer.stop_ids)
    compute_dtype = compute_dtype or str(params["embed"]["embedding"].dtype)
    return Policy(dataclasses.replace(config, compute_dtype=compute_dtype, device=this_device()), params, tokenizer)


def save_policy(policy: Policy, path: str | Path) -> None:
    """Writes a Hugging Face folder that transformers loads with the same logits.

    Raises:
      InputError: `path` exists and is not an empty folder.
    """
    with _renamed_when_complete(Path(path)) as folder:
        _write_descriptions(policy, folder)
        tensors = tensors_from_tree(policy.config, policy.params)
        safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_orbax(policy: Policy, path: str | Path) -> None:
    """Writes a folder whose parameters are an Orbax checkpoint.

    Raises:
      InputError: `path` exists and is not an empty folder.
    """
    with _renamed_when_complete(Path(path)) as folder:
        write_orbax(policy, folder)


def write_orbax(policy: Policy, folder: Path) -> None:
    """Writes config.json, the tokenizer and params/ into an existing folder, and waits until Orbax has finished."""
    import orbax.checkpoint as ocp  # here because the import takes half a second

    _write_descriptions(policy, folder)
    # Uncompressed: a bfloat16 checkpoint is a third larger and loads in little more than half the time.
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False)) as checkpointer:
        checkpointer.save(folder.absolute() / "params", args=ocp.args.PyTreeSave(policy.params))


def convert_checkpoint(
    source: str | Path, path: str | Path, to: str, dtype: str | None = None, kind: str | None = None
) -> None:
    """Writes the model `source` to the new folder `path` as "orbax" or "huggingface".

    Args:
      dtype: of the written parameters; None keeps the checkpoint's.
    """
    if to not in FORMATS:
        raise InputError(f"unknown checkpoint format {to!r}; choose {' or '.join(FORMATS)}.{did_you_mean(to, FORMATS)}")
    _check_unused(Path(path))
    save = save_orbax if to == "orbax" else save_policy
    save(load_policy(source, dtype=dtype, kind=kind), path)


def read_config(folder: Path) -> QwenConfig:
    """The structure in a folder's config.json, with the stop ids of generation_config.json added."""
    raw = _read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    values = [raw.get("eos_token_id"), _read_json(generation).get("eos_token_id") if generation.is_file() else None]
    ids = [i for value in values for i in (value if isinstance(value, list) else [value]) if i is not None]
    return QwenConfig.from_hf(raw | {"eos_token_id": list(dict.fromkeys(ids))})


def _read_folder(folder: Path, dtype: str | None, kind: str | None) -> tuple[QwenConfig, Params, Tokenizer | None]:
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} is not a model folder, because it has no config.json; give the folder of a checkpoint or a run.")
    config = read_config(folder)
    has_tokenizer = (folder / "tokenizer.json").is_file()
    tokenizer = load_tokenizer(folder, kind, config.eos_token_ids) if has_tokenizer else None
    read = _read_orbax if (folder / "params").is_dir() else _read_safetensors
    return config, read(folder, config, dtype), tokenizer


def _read_safetensors(folder: Path, config: QwenConfig, dtype: str | None) -> Params:
    with contextlib.ExitStack() as stack:
        stored = {}
        for path, wanted in safetensors_files(folder).items():
            try:
                file = stack.enter_context(safetensors.safe_open(path, framework="np"))
            except (safetensors.SafetensorError, OSError) as error:
                raise InputError(f"{path} is damaged or incomplete ({error}); download it again.") from error
            for name in file.keys():
                if wanted is None or name in wanted:
                    shape = tuple(file.get_slice(name).get_shape())
                    stored[name] = Stored(shape, functools.partial(file.get_tensor, name))
        return tree_from_tensors(config, stored, dtype, str(folder))


def _read_orbax(folder: Path, config: QwenConfig, dtype: str | None) -> Params:
    import orbax.checkpoint as ocp  # here because the import takes half a second

    path = folder.absolute() / "params"
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        try:
            stored = checkpointer.metadata(path).item_metadata.tree
            check_tensors(tree_shapes(param_shapes(config)), tree_shapes(stored), str(path))
            # To host arrays, because Orbax takes twice as long for device arrays.
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), stored)
            arrays = checkpointer.restore(path, args=ocp.args.PyTreeRestore(item=stored, restore_args=as_numpy))
        except InputError:
            raise
        except Exception as error:  # Orbax and its storage raise many types
            raise InputError(f"{path} is damaged or incomplete ({first_line(error)}); write it again.") from error
    return place_tree(arrays, dtype, str(path))


def _read_book_file(path: Path, dtype: str | None, kind: str | None) -> tuple[QwenConfig, Params, Tokenizer | None]:
    if path.suffix != ".pth":
        raise InputError(f"{path} is neither a folder nor a .pth file; give the folder of the checkpoint.")
    try:
        import torch  # nothing else reads its format
    except ImportError as error:
        raise InputError(f"{path} needs PyTorch; `pip install torch`, or give a Hugging Face folder.") from error
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # zip, pickle and file errors of many types
        raise InputError(f"{path} is damaged or not a state dict ({first_line(error)}); download it again.") from error

    def read(name: str) -> np.ndarray:
        tensor = tensors[name]
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    config = QwenConfig.from_hf(_BOOK_CONFIG)
    stored = {name: Stored(tuple(tensor.shape), functools.partial(read, name)) for name, tensor in tensors.items()}
    params = tree_from_tensors(config, stored, dtype, str(path), naming="book")
    return config, params, _book_tokenizer(path.parent, kind)


def _book_tokenizer(folder: Path, kind: str | None) -> Tokenizer | None:
    """tokenizer-base.json or tokenizer-reasoning.json, by `kind`, or else tokenizer.json."""
    for file in (folder / f"tokenizer-{kind}.json", folder / "tokenizer.json"):
        if file.is_file():
            return load_tokenizer(file, kind)
    if kind is None and any(folder.glob("tokenizer-*.json")):
        raise InputError(
            f"a .pth file does not show which tokenizer of {folder} it needs; choose with kind='base' or 'reasoning' (--tokenizer-kind)."
        )
    return None


def _write_descriptions(policy: Policy, folder: Path) -> None:
    """Writes config.json, generation_config.json and the tokenizer, all with the same stop ids."""
    config, tokenizer = policy.config, policy.tokenizer
    dtype = str(policy.params["embed"]["embedding"].dtype)
    _write_json(folder / "config.json", config.to_hf() | {"torch_dtype": dtype})
    generation: dict[str, Any] = {"eos_token_id": list(config.eos_token_ids)} if config.eos_token_ids else {}
    if tokenizer is not None:
        generation["pad_token_id"] = tokenizer.pad_id
        tokenizer.save(folder)
    _write_json(folder / "generation_config.json", generation)


def _check_unused(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} already exists; name a new folder, because nothing is overwritten.")


@contextlib.contextmanager
def _renamed_when_complete(path: Path) -> Iterator[Path]:
    """A folder beside `path` that is renamed to it when all is written, and removed if writing fails."""
    _check_unused(path)
    partial = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    partial.mkdir(parents=True)
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error}); download it again.") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path} is not a JSON object; download it again.")
    return raw


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
