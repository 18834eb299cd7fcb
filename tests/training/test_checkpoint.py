"""Checkpoints: complete or absent, exact to the bit, and loadable as a model."""

import os
import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint
import pytest

from grpojax.config import RunConfig
from grpojax.errors import InputError
from grpojax.qwen.sources import newest_checkpoint
from grpojax.qwen.weights import load_policy
from grpojax.training import checkpoint as module
from grpojax.training.checkpoint import checkpoint_steps, load_checkpoint, prune_checkpoints, save_checkpoint
from grpojax.training.state import TrainState, run_optimizer

OPTIMIZER = run_optimizer(RunConfig(model="tiny").resolved())


def random_state(policy, step, dtype="float32") -> TrainState:
    """Random weights and moments; the optimizer has counted 7 updates."""
    random = np.random.default_rng(step)
    params = jax.tree.map(lambda p: random.normal(size=p.shape).astype(jax.numpy.dtype(dtype)), policy.params)
    empty = jax.eval_shape(OPTIMIZER.init, jax.tree.map(lambda p: p.astype("float32"), params))
    fill = lambda x: np.asarray(random.normal(size=x.shape) if x.ndim else 7, x.dtype)
    return TrainState(step, *jax.device_put((params, jax.tree.map(fill, empty))))


def assert_same(first, second):
    def check(x, y):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))

    jax.tree.map(check, first, second)


@pytest.fixture(scope="module")
def saved(tiny_policy, tmp_path_factory):
    """A `checkpoints` folder with steps 5 and 10, which tests must not change, and their states."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    states = {step: random_state(tiny_policy, step) for step in (5, 10)}
    for state in states.values():
        save_checkpoint(folder, tiny_policy, state)
    return folder, states


@pytest.fixture
def copied(saved, tmp_path):
    """A copy of it that a test may change."""
    return shutil.copytree(saved[0], tmp_path / "checkpoints")


# --- saving and loading ---


def test_the_newest_state_comes_back_bit_for_bit(saved, tiny_policy):
    folder, states = saved
    loaded = load_checkpoint(folder, tiny_policy, OPTIMIZER)
    assert loaded.step == 10
    assert_same(loaded.params, states[10].params)
    assert_same(loaded.opt_state, states[10].opt_state)


def test_bfloat16_weights_come_back_with_float32_moments(tiny_folder, tmp_path):
    policy = load_policy(tiny_folder, dtype="bfloat16")
    state = random_state(policy, 3, "bfloat16")
    save_checkpoint(tmp_path, policy, state)
    loaded = load_checkpoint(tmp_path, policy, OPTIMIZER)
    assert_same(loaded.params, state.params)
    assert_same(loaded.opt_state, state.opt_state)


def test_a_step_folder_is_a_policy_folder(saved, tiny_policy):
    folder, states = saved
    policy = load_policy(folder / "5")
    tokens = np.arange(8).reshape(1, 8)
    np.testing.assert_array_equal(policy.apply(policy.params, tokens), tiny_policy.apply(states[5].params, tokens))
    assert policy.tokenizer.vocab == tiny_policy.tokenizer.vocab
    assert policy.tokenizer.stop_ids == tiny_policy.tokenizer.stop_ids
    assert policy.config == tiny_policy.config


def test_steps_are_sorted_as_numbers(saved):
    assert checkpoint_steps(saved[0]) == [5, 10]
    assert newest_checkpoint(saved[0].parent).name == "10"


def test_a_missing_folder_has_no_steps(tmp_path):
    assert checkpoint_steps(tmp_path / "nowhere") == []


# --- interrupted saves (field reports d09, f13) ---


@pytest.mark.parametrize("part", ["write_orbax", "the optimizer"])
def test_a_save_that_fails_leaves_no_step_behind(part, copied, tiny_policy, monkeypatch):
    if part == "write_orbax":

        def fail(policy, folder):
            (folder / "config.json").write_text("{")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module, "write_orbax", fail)
    else:

        class Full(orbax.checkpoint.StandardCheckpointer):
            def save(self, *args, **kwargs):
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(orbax.checkpoint, "StandardCheckpointer", Full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(copied, tiny_policy, random_state(tiny_policy, 20))
    monkeypatch.undo()
    assert checkpoint_steps(copied) == [5, 10]
    assert newest_checkpoint(copied.parent).name == "10"
    assert load_checkpoint(copied, tiny_policy, OPTIMIZER).step == 10
    state = random_state(tiny_policy, 20)
    assert save_checkpoint(copied, tiny_policy, state) == copied / "20"
    assert sorted(path.name for path in copied.iterdir()) == ["10", "20", "5"]
    assert_same(load_checkpoint(copied, tiny_policy, OPTIMIZER).opt_state, state.opt_state)


def test_the_next_save_removes_what_a_killed_one_left(copied, tiny_policy):
    remnant = shutil.copytree(copied / "10", copied / f"15{module.PARTIAL}")
    (remnant / "config.json").unlink()
    assert load_checkpoint(copied, tiny_policy, OPTIMIZER).step == 10
    save_checkpoint(copied, tiny_policy, random_state(tiny_policy, 20))
    assert sorted(path.name for path in copied.iterdir()) == ["10", "20", "5"]


def test_a_step_is_saved_once(copied, tiny_policy):
    # Field report f11: an interrupt right after a save must not write it again.
    def times():
        return {path: path.stat().st_mtime_ns for path in sorted(copied.rglob("*"))}

    before = times()
    assert save_checkpoint(copied, tiny_policy, random_state(tiny_policy, 10)) == copied / "10"
    assert times() == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux which file a descriptor belongs to")
def test_every_file_is_on_disk_before_the_checkpoint_is_renamed(tmp_path, tiny_policy, monkeypatch):
    real, flushed = os.fsync, []

    def fsync(descriptor):
        flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "sync", lambda: pytest.fail("the whole machine was flushed"))
    saved = save_checkpoint(tmp_path, tiny_policy, random_state(tiny_policy, 3))
    named = {Path(str(path).replace(f"3{module.PARTIAL}", "3", 1)) for path in flushed}
    assert named >= {saved, tmp_path, *saved.rglob("*")}
    assert flushed[-1] == tmp_path


# --- pruning ---


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (2, None, [30, 40]),
        (1, None, [40]),
        (2, 10, [10, 30, 40]),
        (2, 40, [30, 40]),
        (2, 0, [30, 40]),
        (9, None, [5, 10, 20, 30, 40]),
    ],
)
def test_the_newest_and_the_best_are_kept(keep, best, left, tmp_path):
    for name in ("5", "10", "20", "30", "40"):
        (tmp_path / name).mkdir()
    prune_checkpoints(tmp_path, keep, best)
    assert checkpoint_steps(tmp_path) == left


# --- damage ---


def test_no_checkpoint_to_resume_from(tmp_path, tiny_policy):
    with pytest.raises(InputError, match="holds no complete checkpoint to resume from; start the run anew"):
        load_checkpoint(tmp_path, tiny_policy, OPTIMIZER)


def largest(folder):
    """The largest data file; the other files are metadata."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name == "d"]
    return max(files, key=lambda path: path.stat().st_size)


def cut(folder):
    path = largest(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda step: (step / "config.json").unlink(), r"10 is not a model folder, because it has no config\.json"),
        (lambda step: (step / "config.json").write_text("{"), r"config\.json is not valid JSON"),
        (lambda step: (step / "tokenizer.json").write_text("{"), r"tokenizer\.json is damaged or not a tokenizer\.json"),
        (lambda step: shutil.rmtree(step / "params"), r"10 has no weights"),
        (lambda step: cut(step / "params"), r"params is damaged or incomplete"),
        (lambda step: largest(step / "params").unlink(), r"params is damaged or incomplete"),
        (lambda step: (step / "params" / "_METADATA").unlink(), r"params is damaged or incomplete"),
        (
            lambda step: shutil.rmtree(step / "optimizer"),
            r"the optimizer state in .*10 is damaged \(.*\); remove that folder",
        ),
        (lambda step: cut(step / "optimizer"), r"the optimizer state in .*10 is damaged \(.*\); remove that folder"),
        (lambda step: largest(step / "optimizer").unlink(), r"the optimizer state in .*10 is damaged"),
    ],
)
def test_a_damaged_or_missing_file_is_an_input_error(damage, message, copied, tiny_policy):
    damage(copied / "10")
    with pytest.raises(InputError, match=message) as caught:
        load_checkpoint(copied, tiny_policy, OPTIMIZER)
    assert "\n" not in str(caught.value)
