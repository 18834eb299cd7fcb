"""Checkpoint tensors to a parameter tree and back: one table, and one report of everything that does not fit."""

import functools
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

# Tree path, Hugging Face name, the book's name (qwen3.py), and whether the checkpoint stores [out, in] for our [in, out].
# {i} is a layer. Rows whose path a configuration does not have (biases, q/k norms, an untied head) do not apply to it.
_TABLE = (
    ("embed/embedding", "model.embed_tokens.weight", "tok_emb.weight", False),
    ("layers_{i}/input_norm/scale", "model.layers.{i}.input_layernorm.weight", "trf_blocks.{i}.norm1.scale", False),
    ("layers_{i}/attention/q/kernel", "model.layers.{i}.self_attn.q_proj.weight", "trf_blocks.{i}.att.W_query.weight", True),
    ("layers_{i}/attention/k/kernel", "model.layers.{i}.self_attn.k_proj.weight", "trf_blocks.{i}.att.W_key.weight", True),
    ("layers_{i}/attention/v/kernel", "model.layers.{i}.self_attn.v_proj.weight", "trf_blocks.{i}.att.W_value.weight", True),
    ("layers_{i}/attention/o/kernel", "model.layers.{i}.self_attn.o_proj.weight", "trf_blocks.{i}.att.out_proj.weight", True),
    ("layers_{i}/attention/q/bias", "model.layers.{i}.self_attn.q_proj.bias", "", False),
    ("layers_{i}/attention/k/bias", "model.layers.{i}.self_attn.k_proj.bias", "", False),
    ("layers_{i}/attention/v/bias", "model.layers.{i}.self_attn.v_proj.bias", "", False),
    ("layers_{i}/attention/o/bias", "model.layers.{i}.self_attn.o_proj.bias", "", False),
    ("layers_{i}/attention/q_norm/scale", "model.layers.{i}.self_attn.q_norm.weight", "trf_blocks.{i}.att.q_norm.scale", False),
    ("layers_{i}/attention/k_norm/scale", "model.layers.{i}.self_attn.k_norm.weight", "trf_blocks.{i}.att.k_norm.scale", False),
    ("layers_{i}/post_norm/scale", "model.layers.{i}.post_attention_layernorm.weight", "trf_blocks.{i}.norm2.scale", False),
    ("layers_{i}/mlp/gate/kernel", "model.layers.{i}.mlp.gate_proj.weight", "trf_blocks.{i}.ff.fc1.weight", True),
    ("layers_{i}/mlp/up/kernel", "model.layers.{i}.mlp.up_proj.weight", "trf_blocks.{i}.ff.fc2.weight", True),
    ("layers_{i}/mlp/down/kernel", "model.layers.{i}.mlp.down_proj.weight", "trf_blocks.{i}.ff.fc3.weight", True),
    ("norm/scale", "model.norm.weight", "final_norm.scale", False),
    ("head/kernel", "lm_head.weight", "out_head.weight", False),
)  # fmt: skip
_NAMINGS = {"huggingface": 1, "book": 2}  # column of _TABLE

_NAMED_AT_MOST = 12  # tensors of each sort in an error; the counts are always complete


class Stored(NamedTuple):
    """A tensor of a checkpoint that has not been read yet."""

    shape: Shape
    read: Callable[[], np.ndarray]


class Row(NamedTuple):
    """Where a source tensor goes."""

    path: str
    transposed: bool


def conversion_table(config: QwenConfig, naming: str = "huggingface") -> dict[str, Row]:
    """Source tensor name -> where it goes, for every array of the model exactly once."""
    paths = tree_shapes(param_shapes(config))
    rows = {}
    for entry in _TABLE:
        for i in range(config.num_layers if "{i}" in entry[0] else 1):
            if (path := entry[0].format(i=i)) in paths:
                rows[entry[_NAMINGS[naming]].format(i=i)] = Row(path, entry[3])
    return rows


def tree_from_tensors(
    config: QwenConfig, stored: Mapping[str, Stored], dtype: str | None, where: str, naming: str = "huggingface"
) -> Params:
    """Builds the parameter tree, one tensor at a time.

    Args:
      stored: every tensor of the checkpoint. A tied checkpoint may hold a head; it is not used, the embedding is.
      dtype: of the parameters; None keeps each tensor's own.
      where: names the checkpoint in errors.

    Raises:
      InputError: naming all tensors that are missing, unknown or misshapen, or all that hold values that are not finite.
    """
    rows = conversion_table(config, naming)
    shapes = tree_shapes(param_shapes(config))
    expected = {name: shapes[row.path][:: -1 if row.transposed else 1] for name, row in rows.items()}
    if config.tie_word_embeddings and "lm_head.weight" in stored:
        expected["lm_head.weight"] = shapes["embed/embedding"]
    check_tensors(expected, {name: tensor.shape for name, tensor in stored.items()}, where)
    leaves, finite = {}, {}
    for name, row in rows.items():
        leaves[row.path], finite[name] = _place(stored[name].read(), row.transposed, dtype)
    check_finite(finite, where)
    return jax.tree.map_with_path(lambda path, _: leaves[_path_name(path)], param_shapes(config))


def tensors_from_tree(config: QwenConfig, params: Params) -> dict[str, np.ndarray]:
    """The Hugging Face tensors of a parameter tree, in the dtype of the parameters."""
    leaves, tensors = named_leaves(params), {}
    for name, row in conversion_table(config).items():
        array = np.asarray(leaves[row.path])
        tensors[name] = np.ascontiguousarray(array.T if row.transposed else array)
    return tensors


def named_leaves(tree: Any) -> dict[str, Any]:
    """`a/b/c` -> leaf, for each leaf of a tree."""
    return {_path_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def tree_shapes(tree: Any) -> dict[str, Shape]:
    """`a/b/c` -> shape, for each array (or description of one) of a tree."""
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
        listed = "; ".join(f"{len(names)} {sort} ({_some(names)})" for sort, names in complaints.items() if names)
        raise InputError(f"the tensors of {where} do not fit its configuration: {listed}; use weights and config.json of one model.")


def check_finite(finite: Mapping[str, Array], where: str) -> None:
    """Raises InputError where a tensor's flag is false."""
    bad = [name for name, flag in jax.device_get(finite).items() if not flag]
    if bad:
        raise InputError(f"{where} holds NaN or infinite values in {len(bad)} tensors ({_some(bad)}); the file is damaged, fetch it again.")


@functools.partial(jax.jit, static_argnames=("transposed", "dtype"))
def _place(array: Array, transposed: bool, dtype: str | None) -> tuple[Array, Array]:
    """The array as the tree holds it, and whether all of it is finite."""
    array = (array.T if transposed else array).astype(dtype or array.dtype)
    return array, jnp.isfinite(array).all()


def _path_name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _times(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "a scalar"


def _some(names: list[str]) -> str:
    rest = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")
