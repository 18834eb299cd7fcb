"""Checkpoint tensors to a parameter tree and back: one table of names, and one report of everything that does not fit."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from grpojax.errors import InputError
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import Params, param_shapes

Shape = tuple[int, ...]

# Path in the tree, Hugging Face name, the book's name. The arrays have the same shape, except that the tree stacks layers.
# A row whose path a configuration does not have (biases, q/k norms, an untied head) does not apply to it.
_TABLE = (
    ("embed/embedding", "model.embed_tokens.weight", "tok_emb.weight"),
    ("norm/scale", "model.norm.weight", "final_norm.scale"),
    ("head/weight", "lm_head.weight", "out_head.weight"),
)
_LAYER_PREFIXES = ("layers/", "model.layers.{}.", "trf_blocks.{}.")
_LAYER_TABLE = (
    ("input_norm/scale", "input_layernorm.weight", "norm1.scale"),
    ("attention/q/weight", "self_attn.q_proj.weight", "att.W_query.weight"),
    ("attention/k/weight", "self_attn.k_proj.weight", "att.W_key.weight"),
    ("attention/v/weight", "self_attn.v_proj.weight", "att.W_value.weight"),
    ("attention/o/weight", "self_attn.o_proj.weight", "att.out_proj.weight"),
    ("attention/q/bias", "self_attn.q_proj.bias", ""),
    ("attention/k/bias", "self_attn.k_proj.bias", ""),
    ("attention/v/bias", "self_attn.v_proj.bias", ""),
    ("attention/o/bias", "self_attn.o_proj.bias", ""),
    ("attention/q_norm/scale", "self_attn.q_norm.weight", "att.q_norm.scale"),
    ("attention/k_norm/scale", "self_attn.k_norm.weight", "att.k_norm.scale"),
    ("post_norm/scale", "post_attention_layernorm.weight", "norm2.scale"),
    ("mlp/gate/weight", "mlp.gate_proj.weight", "ff.fc1.weight"),
    ("mlp/up/weight", "mlp.up_proj.weight", "ff.fc2.weight"),
    ("mlp/down/weight", "mlp.down_proj.weight", "ff.fc3.weight"),
)
_NAMINGS = {"huggingface": 1, "book": 2}  # columns of the tables

_NAMED_AT_MOST = 12  # tensors of each kind in an error; the counts are always complete


class Stored(NamedTuple):
    """A tensor of a checkpoint that has not been read yet."""

    shape: Shape
    read: Callable[[], np.ndarray]


class Row(NamedTuple):
    """Where a source tensor goes."""

    path: str
    shape: Shape
    layer: int | None = None  # its index in the first axis of the tree's array


def conversion_table(config: QwenConfig, naming: str = "huggingface") -> dict[str, Row]:
    """Source tensor name -> where it goes; every array of the model once."""
    column = _NAMINGS[naming]
    shapes = tree_shapes(param_shapes(config))
    rows = {entry[column]: Row(entry[0], shapes[entry[0]]) for entry in _TABLE if entry[0] in shapes}
    for i in range(config.num_layers):
        for entry in _LAYER_TABLE:
            path, name = _LAYER_PREFIXES[0] + entry[0], _LAYER_PREFIXES[column].format(i) + entry[column]
            if path in shapes:
                rows[name] = Row(path, shapes[path][1:], i)
    return rows


def tree_from_tensors(
    config: QwenConfig, stored: Mapping[str, Stored], dtype: str | None, where: str, naming: str = "huggingface"
) -> Params:
    """Builds the parameter tree, one array at a time.

    Args:
      stored: every tensor of the checkpoint. If a tied checkpoint has a head, it is ignored.
      dtype: of the parameters; None keeps each tensor's own.
      where: the checkpoint, for error messages.

    Raises:
      InputError: names all tensors that are missing, unknown or misshapen, or all with values that are not finite.
    """
    rows = conversion_table(config, naming)
    expected = {name: row.shape for name, row in rows.items()}
    if config.tie_word_embeddings and "lm_head.weight" in stored:
        expected["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    check_tensors(expected, {name: tensor.shape for name, tensor in stored.items()}, where)
    names_of: dict[str, list[str]] = {}
    for name, row in rows.items():
        names_of.setdefault(row.path, []).append(name)

    def read(path: str) -> np.ndarray:
        arrays = [stored[name].read() for name in names_of[path]]
        return arrays[0] if rows[names_of[path][0]].layer is None else np.stack(arrays)

    return _finite_tree({path: _place(read(path), dtype) for path in names_of}, where)


def place_tree(arrays: Params, dtype: str | None, where: str) -> Params:
    """A tree of host arrays as parameters in `dtype` (None: each array's own).

    Raises:
      InputError: names all arrays with values that are not finite.
    """
    return _finite_tree({path: _place(array, dtype) for path, array in named_leaves(arrays).items()}, where)


def tensors_from_tree(config: QwenConfig, params: Params) -> dict[str, np.ndarray]:
    """The Hugging Face tensors of a parameter tree, in the dtype of the parameters."""
    leaves = {path: np.asarray(leaf) for path, leaf in named_leaves(params).items()}
    rows = conversion_table(config)
    return {name: leaves[row.path] if row.layer is None else leaves[row.path][row.layer] for name, row in rows.items()}


def named_leaves(tree: Any) -> dict[str, Any]:
    """`a/b/c` -> leaf, for each leaf of a tree."""
    return {_path_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def tree_shapes(tree: Any) -> dict[str, Shape]:
    """`a/b/c` -> shape, for each array or ShapeDtypeStruct of a tree."""
    return {name: tuple(leaf.shape) for name, leaf in named_leaves(tree).items()}


def check_tensors(expected: Mapping[str, Shape], found: Mapping[str, Shape], where: str) -> None:
    """Raises one InputError about all missing, unknown and misshapen tensors."""
    complaints = {
        "missing": [name for name in expected if name not in found],
        "unknown": [name for name in found if name not in expected],
        "misshapen": [
            f"{name} is {_times(found[name])}, expected {_times(shape)}"
            for name, shape in expected.items()
            if name in found and tuple(found[name]) != tuple(shape)
        ],
    }
    if any(complaints.values()):
        listed = "; ".join(f"{len(names)} {kind} ({_some(names)})" for kind, names in complaints.items() if names)
        raise InputError(
            f"the tensors of {where} do not fit its configuration: {listed}; use weights and config.json of one model."
        )


def _place(array: np.ndarray, dtype: str | None) -> tuple[Array, bool]:
    """The array for the tree, and whether all its values are finite."""
    array = array.astype(dtype or array.dtype)  # a copy, because the array can be a view of a file
    return jnp.asarray(array), bool(np.isfinite(array).all())


def _finite_tree(placed: Mapping[str, tuple[Array, bool]], where: str) -> Params:
    """path -> (array, whether it is finite), as a nested dict of arrays."""
    bad = [path for path, (_, finite) in placed.items() if not finite]
    if bad:
        raise InputError(
            f"{where} holds NaN or infinite values in {len(bad)} tensors ({_some(bad)}); it is damaged, download it again."
        )
    tree: Params = {}
    for path, (array, _) in placed.items():
        *folders, leaf = path.split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = array
    return tree


def _path_name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _times(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _some(names: list[str]) -> str:
    rest = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")
