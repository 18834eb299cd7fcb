"""Checkpoints: a policy folder that also holds the optimizer state. It is written under a temporary name, then renamed.

    checkpoints/<step>/config.json, tokenizer files, params/   what load_policy reads
                       optimizer/                             the optax state
                       reference/                             the reference of a KL term, if it was refreshed
                       progress.json, carried.npz             problems used, and groups carried over to the next step
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from grpojax.errors import InputError
from grpojax.qwen.weights import Policy, load_policy, write_orbax
from grpojax.records import Sample
from grpojax.training.rollout import Rollouts
from grpojax.training.state import Group, TrainState
from grpojax.training.update import init_optimizer

PARTIAL = ".partial"  # suffix of an unfinished checkpoint; the next save removes what a crash left


def save_checkpoint(folder: Path, policy: Policy, state: TrainState) -> Path:
    """Writes `folder/<step>`; an existing complete one is left as it is. Returns it."""
    import orbax.checkpoint as ocp  # here because the import takes half a second

    final = folder / str(state.step)
    if final.exists():
        return final
    for remnant in folder.glob(f"*{PARTIAL}"):
        shutil.rmtree(remnant)
    partial = folder / (final.name + PARTIAL)
    partial.mkdir(parents=True)
    write_orbax(dataclasses.replace(policy, params=state.params), partial)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((partial / "optimizer").absolute(), state.opt_state)
        if state.reference is not None:
            checkpointer.save((partial / "reference").absolute(), state.reference)
    _write_progress(partial, state)
    for path in [*partial.rglob("*"), partial]:
        _fsync(path)
    partial.rename(final)
    _fsync(folder)
    return final


def _fsync(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps that have a complete checkpoint, in order."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def prune_checkpoints(folder: Path, keep: int, best: int | None) -> None:
    """Removes all but the `keep` newest checkpoints and the one of step `best`."""
    for step in checkpoint_steps(folder)[:-keep]:
        if step != best:
            shutil.rmtree(folder / str(step))


def load_checkpoint(
    folder: Path, policy: Policy, optimizer: optax.GradientTransformation, moment_dtype: str = "float32"
) -> TrainState:
    """The newest complete state in a run's `checkpoints` folder.

    Raises:
      InputError: if there is none, or a file of it is damaged.
    """
    import orbax.checkpoint as ocp  # here because the import takes half a second

    steps = checkpoint_steps(folder)
    if not steps:
        raise InputError(f"{folder} holds no complete checkpoint to resume from; start the run anew with another --out.")
    newest = folder / str(steps[-1])
    try:
        params = load_policy(newest, dtype=str(jax.tree.leaves(policy.params)[0].dtype)).params
    except InputError as error:
        raise InputError(_damaged("policy", newest, str(error).rstrip("."))) from error
    empty = jax.eval_shape(lambda p: init_optimizer(optimizer, p, moment_dtype), params)
    reference = None
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            opt_state = checkpointer.restore((newest / "optimizer").absolute(), empty)
            if (newest / "reference").exists():
                reference = checkpointer.restore((newest / "reference").absolute(), jax.eval_shape(lambda p: p, params))
        problems_used, carried = _read_progress(newest)
    except Exception as error:  # Orbax and its storage raise many types
        raise InputError(_damaged("optimizer state", newest, type(error).__name__)) from error
    # Restored arrays are committed to a device, those of a new run are not; programs would compile again for them.
    opt_state, reference = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), (opt_state, reference))
    return TrainState(steps[-1], params, opt_state, problems_used, carried, reference)


def _write_progress(folder: Path, state: TrainState) -> None:
    """The number of problems used, and the groups carried over: their arrays in one file, the rest in another."""
    arrays, carried = {}, []
    for i, group in enumerate(state.carried):
        arrays |= {f"{i}/{name}": x for name, x in vars(group.rollouts).items() if x is not None and name != "targets"}
        arrays[f"{i}/rewards"] = group.rewards
        if group.old_logps is not None:
            arrays[f"{i}/old_logps"] = group.old_logps
        carried.append({"domain": group.domain, "samples": [dataclasses.asdict(sample) for sample in group.samples]})
    if arrays:
        np.savez(folder / "carried.npz", **arrays)
    progress = {"problems_used": state.problems_used, "carried": carried}
    (folder / "progress.json").write_text(json.dumps(progress))


def _read_progress(folder: Path) -> tuple[int, tuple[Group, ...]]:
    progress = json.loads((folder / "progress.json").read_text())
    carried = []
    if progress["carried"]:
        with np.load(folder / "carried.npz") as arrays:
            for i, group in enumerate(progress["carried"]):
                own = {name.removeprefix(f"{i}/"): arrays[name] for name in arrays.files if name.startswith(f"{i}/")}
                rewards, old_logps = own.pop("rewards"), own.pop("old_logps", None)
                samples = [Sample(**sample) for sample in group["samples"]]
                carried.append(Group(Rollouts(**own), samples, rewards, group["domain"], old_logps))
    return progress["problems_used"], tuple(carried)


def _damaged(part: str, folder: Path, why: str) -> str:
    return f"the {part} in {folder} is damaged ({why}); remove that folder to resume from an earlier checkpoint."
