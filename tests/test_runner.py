"""run.py from flags to run folder: what a run writes, how it stops and resumes, and what it refuses."""

import csv
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from grpojax import inputs, process, runner
from grpojax.config import RunConfig
from grpojax.errors import RunError
from grpojax.qwen.weights import load_policy
from grpojax.records import METRIC_COLUMNS
from grpojax.reporting.metrics import read_evaluations, read_metrics
from grpojax.training import train
from grpojax.training.checkpoint import checkpoint_steps
from grpojax.variants import VARIANTS

ROOT = Path(__file__).parents[1]
KINDS = ("kl", "format", "dapo", "deepseek-v3.2", "gdpo")
TEXTS = ("1 + 1", "2 + 7", "3 * 5", "8 - 6", "9 + 4")


@pytest.fixture(scope="module")
def main():
    """The main() of run.py."""
    spec = importlib.util.spec_from_file_location("run_script", ROOT / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A current folder with five short problems, two others to evaluate on, and a prompt template."""
    monkeypatch.chdir(tmp_path)
    for name, texts in (("sums.jsonl", TEXTS), ("held.jsonl", ("7 + 7", "6 + 6"))):
        rows = [{"problem": text, "answer": str(i)} for i, text in enumerate(texts)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prompt.txt").write_text("{problem} =")
    return tmp_path


@pytest.fixture
def no_plots(monkeypatch):
    """Draws no plots."""
    monkeypatch.setattr(runner, "plot_runs", lambda runs, out: [])


@pytest.fixture
def flags(tiny_folder):
    """The flags of a small run: two prompts of four answers of at most eight tokens, one shape for all tests."""

    def make(**changes):
        settings = {
            "variant": "clipped", "model": str(tiny_folder), "dataset": "sums.jsonl", "prompt_template": "prompt.txt",
            "steps": 2, "prompts_per_step": 2, "num_rollouts": 4, "max_new_tokens": 8, "temperature": 1.0, "top_p": 1.0,
            "lr": 1e-2, "checkpoint_every": 0, "eval_on_checkpoint": 0, "out": "run",
        }  # fmt: skip
        given = {name: value for name, value in (settings | changes).items() if value is not None}
        return [word for name, value in given.items() for word in ("--" + name.replace("_", "-"), str(value))]

    return make


@pytest.fixture
def call(main, files, flags, monkeypatch, capsys, every_other_grader):
    """Runs `run.py` with the small run's flags, some of them changed or (None) left out; gives code, stdout, stderr."""
    monkeypatch.setattr(runner, "Grader", lambda _: every_other_grader)

    def run(*words, **changes):
        monkeypatch.setattr(sys, "argv", ["run.py", *flags(**changes), *words])
        capsys.readouterr()
        code = main()
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def again(main, files, monkeypatch, capsys, every_other_grader):
    """Runs `run.py` with nothing but the words given."""
    monkeypatch.setattr(runner, "Grader", lambda _: every_other_grader)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["run.py", *words])
        capsys.readouterr()
        code = main()
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def scripted_accuracy(monkeypatch):
    """Decides the results of evaluations: `scripted_accuracy({0: 3, 2: 1})` gives the correct answers of 5 by step."""
    real = runner.evaluate

    def script(correct):
        def evaluate(*args, step, **kwargs):
            return runner.dataclasses.replace(real(*args, step=step, **kwargs), correct=correct[step], total=5)

        monkeypatch.setattr(runner, "evaluate", evaluate)

    return script


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def steps_in(folder: Path) -> list[int]:
    with (folder / "metrics.csv").open() as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


def error_of(result) -> str:
    """The message of a run that was refused: one line on stderr, exit code 2, nothing written."""
    code, out, err = result
    assert code == 2
    assert out == ""
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert not Path("run").exists()
    assert not Path("runs").exists()
    return err.removeprefix("error: ").rstrip("\n")


# --- what a run writes ---


# One of each kind: with a reference, think tags, dynamic sampling, kept masks, several rewards.
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["clipped", *KINDS])
def test_variants_run(variant, call, no_plots):
    code, out, err = call(variant=variant)
    assert (code, err) == (0, "")
    metrics = read_metrics("run")
    assert metrics["step"].tolist() == [1, 2]
    assert np.isfinite(metrics["loss"]).all()
    assert (metrics["grad_norm"] > 0).all()
    settings = json.loads(Path("run/config.json").read_text())
    assert settings["config"]["variant"] == variant
    assert settings["variant_numbers"].items() >= VARIANTS[variant].loss.numbers.items()
    assert settings["variant_rewards"] == VARIANTS[variant].recipe.rewards
    assert f"{variant} on " in out
    assert ("note: the gradient of this KL term does not contain the reference" in out) == (
        variant in ("kl", "book-gdpo")
    )
    assert ("note: with one update per batch the ratio is 1" in out) == (variant in ("format", "book-7.6"))


def test_a_run_folder_holds_all_of_a_run(call, tiny_folder):
    code, out, err = call(steps=3, checkpoint_every=2, eval_on_checkpoint=2, eval_dataset="held.jsonl")
    folder = Path("run")
    assert (code, err) == (0, "")
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json", "metrics.csv", "metrics.txt", "samples.jsonl", "evals", "checkpoints", "plots", "summary.json",
    }  # fmt: skip
    lines = (folder / "metrics.csv").read_text().splitlines()
    assert lines[0] == ",".join((*METRIC_COLUMNS, "reward_correct"))
    assert [line.split(",")[:2] for line in lines[1:]] == [["1", "3"], ["2", "3"], ["3", "3"]]
    assert len((folder / "metrics.txt").read_text().splitlines()) == 3
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [1] * 8 + [3] * 8
    assert [sample["problem"] for sample in samples[::4]] == ["1 + 1", "2 + 7", "9 + 4", "1 + 1"]
    # The last step is saved and evaluated though 2 does not divide 3 (field report f09).
    assert checkpoint_steps(folder / "checkpoints") == [2, 3]
    assert {path.name for path in (folder / "evals").iterdir()} == {
        "step-00000.jsonl", "step-00002.jsonl", "step-00003.jsonl", "summary.jsonl",
    }  # fmt: skip
    assert [step for step, _ in read_evaluations(folder)] == [0, 2, 3]
    assert np.isnan(read_metrics(folder)["eval_acc"]).tolist() == [True, False, False]
    assert len(list((folder / "plots").glob("*.png"))) == 2

    summary = json.loads((folder / "summary.json").read_text())
    expected = {
        "variant": "clipped",
        "model": str(tiny_folder),
        "steps_done": 3,
        "total_steps": 3,
        "checkpoints": [2, 3],
    }
    assert {name: summary[name] for name in expected} == expected
    assert summary["eval_acc_before"] == read_evaluations(folder)[0][1]
    assert summary["eval_acc_last"] == read_evaluations(folder)[-1][1]
    assert set(summary["compilations"]) == {"generate", "score", "update", "admit", "decode"}
    assert summary["grading_timeouts"] == 0

    for said in ("compiling or loading the programs of the first step", "first step took", "step 3/3", "programs compiled: generate",
                 "checkpoint run/checkpoints/3", "held-out accuracy before training", "samples, plots and checkpoints: run"):  # fmt: skip
        assert said in out


@pytest.mark.slow
def test_config_json_repeats_the_run(call, again, no_plots):
    call(variant="kl", clip_eps=0.3, seed=5)
    record = json.loads(Path("run/config.json").read_text())
    assert {"python", "grpojax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint"} <= set(record["versions"])
    assert record["versions"]["jax"] == jax.__version__
    assert record["device"] == {"platform": "cpu", "kind": jax.devices()[0].device_kind, "count": jax.device_count()}
    assert record["git_commit"] is None or re.fullmatch("[0-9a-f]{40}", record["git_commit"])
    assert record["variant_numbers"] == {"clip_low": 0.3, "clip_high": 0.3, "kl_coeff": 0.001}
    # The same run can be repeated from this file alone.
    words = []
    for name, value in record["config"].items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif value is not None:
            words += [flag, str(value) if name != "out" else "repeated"]
    assert again(*words)[0] == 0
    first, second = read_metrics("run"), read_metrics("repeated")
    for name in ("loss", "reward_avg", "entropy_avg", "grad_norm", "avg_response_len"):
        np.testing.assert_array_equal(first[name], second[name])


def test_flags_may_be_typed_with_underscores(call, no_plots):
    code, *_ = call("--max_new_tokens", "8", "--checkpoint_every=1", max_new_tokens=None, checkpoint_every=None)
    assert code == 0
    config = json.loads(Path("run/config.json").read_text())["config"]
    assert (config["max_new_tokens"], config["checkpoint_every"]) == (8, 1)


def test_without_out_the_folder_is_named_after_variant_model_and_time(call, no_plots):
    assert call(steps=1, out=None)[0] == 0
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"clipped-tiny-\d{8}-\d{6}", folder.name)


def test_the_default_folder_of_a_variant_from_a_module_has_no_colon(call, no_plots, monkeypatch):
    """Not every file system takes one."""
    Path("own_rows.py").write_text("import grpojax as gj\nROW = gj.Variant('row', gj.VARIANTS['grpo'].loss, gj.VARIANTS['grpo'].recipe)\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert call(variant="own_rows:ROW", steps=1, out=None)[0] == 0
    finally:
        VARIANTS.pop("row", None)
        sys.modules.pop("own_rows", None)
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("own_rows.ROW-tiny-")


def test_checkpoints_load_as_models_and_hold_what_was_trained(call, no_plots, tiny_policy):
    call(checkpoint_every=1)
    tokens = np.arange(8).reshape(1, 8)
    newest, by_step = load_policy("run"), load_policy("run/checkpoints/2")
    logits = newest.apply(newest.params, tokens)
    np.testing.assert_array_equal(logits, by_step.apply(by_step.params, tokens))
    assert not np.allclose(logits, tiny_policy.apply(tiny_policy.params, tokens), atol=1e-3)


def test_the_newest_checkpoints_and_the_best_stay(call, no_plots, scripted_accuracy):
    # Step 2 is the best of those that were saved; the untrained model is better, but has no checkpoint.
    scripted_accuracy({0: 5, 1: 1, 2: 4, 3: 2, 4: 3, 5: 0})
    call(steps=5, checkpoint_every=1, eval_on_checkpoint=2, eval_dataset="held.jsonl", keep_checkpoints=1)
    assert checkpoint_steps(Path("run/checkpoints")) == [2, 5]
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["eval_acc_before"], summary["eval_acc_best"], summary["best_step"]) == (100.0, 100.0, 0)
    assert summary["eval_acc_last"] == 0.0


def test_evaluation_uses_its_own_problems_and_the_same_number_each_time(call, no_plots):
    call(eval_dataset="held.jsonl", eval_on_checkpoint=2, checkpoint_every=1)
    for step in (0, 1, 2):
        rows = [json.loads(line) for line in Path(f"run/evals/step-{step:05d}.jsonl").read_text().splitlines()]
        assert [row["problem"] for row in rows] == ["7 + 7", "6 + 6"]
    line = json.loads(Path("run/evals/summary.jsonl").read_text().splitlines()[0])
    assert (line["dataset"], line["total"], line["step"]) == ("held.jsonl", 2, 0)


# --- stopping ---


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_can_be_resumed(number, files, flags, again, no_plots):
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, ROOT / "run.py", *flags(steps=100000)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    try:
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("step ") and process.poll() is None and "step      3/" in line:
                process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number, said
    finally:
        process.kill()
        process.stdout.close()
    folder = files / "run"
    (stopped,) = checkpoint_steps(folder / "checkpoints")
    assert stopped >= 3
    assert f"stopped by {number.name} after step {stopped}; continue with --resume --out run" in said
    assert "Traceback" not in said
    assert steps_in(folder) == list(range(1, stopped + 1))
    before = (folder / "metrics.csv").read_bytes()

    code, out, err = again("--resume", "--out", "run", "--steps", str(stopped + 2))
    assert (code, err) == (0, "")
    assert f"resuming after step {stopped}" in out
    assert steps_in(folder) == list(range(1, stopped + 3))
    assert (folder / "metrics.csv").read_bytes().startswith(before)  # field report f05


def test_a_signal_during_a_step_lets_it_finish(call, no_plots, monkeypatch):
    real = runner.train

    def interrupted(*args):
        for state, record in real(*args):
            if state.step == 2:
                os.kill(os.getpid(), signal.SIGINT)
            yield state, record

    monkeypatch.setattr(runner, "train", interrupted)
    before = signal.getsignal(signal.SIGINT)
    code, out, _ = call(steps=50, checkpoint_every=2, eval_on_checkpoint=2, eval_dataset="held.jsonl")
    assert code == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint_steps(Path("run/checkpoints")) == [2]
    assert "stopped by SIGINT after step 2; continue with --resume --out run\n" in out
    assert steps_in(Path("run")) == [1, 2]
    # There was no evaluation after training, so none is reported.
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["eval_acc_last"], summary["steps_done"]) == (None, 2)
    assert not re.search("held-out accuracy: .* after", out)


def test_a_signal_during_the_last_step_changes_nothing(call, no_plots, monkeypatch):
    real = runner.train

    def interrupted(*args):
        for state, record in real(*args):
            if state.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            yield state, record

    monkeypatch.setattr(runner, "train", interrupted)
    code, out, _ = call(steps=2)
    assert code == 0
    assert "stopped" not in out
    assert checkpoint_steps(Path("run/checkpoints")) == [2]


def test_a_run_that_cannot_continue_saves_its_last_good_state(call, no_plots, monkeypatch):
    real = runner.train

    def breaking(*args):
        steps = real(*args)
        yield next(steps)
        state, record = next(steps)
        yield state, record
        raise RunError("loss became nan at step 3", state=state)

    monkeypatch.setattr(runner, "train", breaking)
    code, _, err = call(steps=9)
    assert (code, err) == (1, "error: loss became nan at step 3\n")
    assert checkpoint_steps(Path("run/checkpoints")) == [2]
    assert steps_in(Path("run")) == [1, 2]


@pytest.mark.slow
def test_a_real_overflow_saves_the_step_before_it(call, no_plots):
    code, _, err = call(variant="baseline", steps=9, lr=1e38)
    assert code == 1
    assert re.fullmatch(r"error: (loss|grad_norm) became \w+ at step 2; [^\n]+\n", err)
    assert checkpoint_steps(Path("run/checkpoints")) == [1]
    assert steps_in(Path("run")) == [1]


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_a_failure_in_the_middle_of_a_step_saves_the_state_before_the_step(call, no_plots, monkeypatch, error):
    """Two updates a step. The second one of step 3 fails: checkpoint 2 holds the result of step 2. If that was too
    large to copy, nothing is saved, and earlier checkpoints are not changed.
    """
    real, calls = train.update_in_place, []

    def update(*args):
        calls.append(args)
        if len(calls) == 6 and error is not None:
            raise error
        params, opt_state, metrics = real(*args)
        return params, opt_state, metrics | ({"loss": jax.numpy.float32("nan"), "skipped": True} if len(calls) == 6 else {})

    call(out="unbroken", steps=2)
    monkeypatch.setattr(train, "update_in_place", update)
    for folder, checkpoint_every, saved in (("run", 0, [2]), ("large", 0, []), ("larger", 1, [1, 2])):
        calls.clear()
        if folder != "run":
            monkeypatch.setattr(train, "BACKUP_BYTES", 0)
        assert call(steps=9, out=folder, checkpoint_every=checkpoint_every)[0] == (1 if error is None else 130)
        assert checkpoint_steps(Path(folder, "checkpoints")) == saved
        if saved:
            found, expected = (load_policy(f"{name}/checkpoints/2").params for name in (folder, "unbroken"))
            jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_failed_save_ends_the_run(call, no_plots, monkeypatch):
    # Field reports d07 and f13: the error is raised again, earlier checkpoints are kept.
    real = runner.save_checkpoint

    def full(folder, policy, state):
        if state.step > 1:
            raise OSError(28, "No space left on device")
        return real(folder, policy, state)

    monkeypatch.setattr(runner, "save_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        call(steps=3, checkpoint_every=1)
    assert checkpoint_steps(Path("run/checkpoints")) == [1]


# --- resuming ---


@pytest.mark.slow
def test_a_resumed_run_equals_an_unbroken_one(call, again, no_plots):
    call(steps=4, variant="kl", out="unbroken")
    call(steps=2, variant="kl")
    assert again("--resume", "--out", "run", "--steps", "4")[0] == 0
    whole, parts = read_metrics("unbroken"), read_metrics("run")
    for name in (
        "step",
        "loss",
        "kl_loss",
        "policy_ratio",
        "reward_avg",
        "entropy_avg",
        "grad_norm",
        "avg_response_len",
    ):
        np.testing.assert_array_equal(whole[name], parts[name])
    jax.tree.map(
        np.testing.assert_array_equal,
        load_policy("unbroken/checkpoints/4").params,
        load_policy("run/checkpoints/4").params,
    )


def test_steps_after_the_last_checkpoint_are_repeated(call, again, no_plots):
    # Field report f07: the checkpoint is at 2, the rows go to 3.
    call(steps=3, checkpoint_every=2, eval_on_checkpoint=2, eval_dataset="held.jsonl")
    runner.prune_checkpoints(Path("run/checkpoints"), 1, 3)
    (Path("run/checkpoints/3")).rename("run/checkpoints/2")
    kept = Path("run/metrics.csv").read_text().splitlines()[:3]
    code, out, err = again("--resume", "--out", "run", "--steps", "4")
    assert (code, err) == (0, "")
    assert "resuming after step 2" in out
    assert steps_in(Path("run")) == [1, 2, 3, 4]
    assert Path("run/metrics.csv").read_text().splitlines()[:3] == kept
    assert [step for step, _ in read_evaluations("run")] == [0, 2, 4]


@pytest.mark.slow
def test_the_compute_dtype_is_chosen_once(call, again, no_plots, monkeypatch):
    """By a measurement, which on resume, perhaps on another machine, would be another one."""
    monkeypatch.setattr(inputs, "faster_dtype", lambda: "bfloat16")
    code, out, _ = call(compute_dtype="auto", steps=1)
    assert code == 0 and ", bfloat16 products)" in out
    monkeypatch.setattr(inputs, "faster_dtype", lambda: "float32")
    code, out, _ = again("--resume", "--out", "run", "--steps", "2")
    assert code == 0 and ", bfloat16 products)" in out


@pytest.mark.slow
def test_settings_are_kept_on_resume(call, again, no_plots):
    call(steps=2, checkpoint_every=1, keep_checkpoints=1)
    again("--resume", "--out", "run", "--steps", "4")
    assert checkpoint_steps(Path("run/checkpoints")) == [4]
    again("--resume", "--out", "run", "--steps", "6", "--keep-checkpoints", "2")
    assert checkpoint_steps(Path("run/checkpoints")) == [5, 6]
    assert "run has done all its 6 steps" in again("--resume", "--out", "run")[2]  # config.json has been updated


def test_a_typed_default_counts_on_resume(call, again, no_plots):
    call(seed=7)
    code, _, err = again("--resume", "--out", "run", "--seed", "42", "--steps", "4")
    assert (code, err) == (
        2,
        "error: --seed is 42, but the run in run was made with 7; leave the flag out, or start a new run with another --out.\n",
    )


def test_what_resume_refuses(call, again, no_plots):
    call()
    before = contents(Path("run"))

    def refused(*words):
        code, out, err = again("--resume", *words)
        assert (code, out) == (2, "")
        assert re.fullmatch(r"error: [^\n]+\n", err), err
        assert contents(Path("run")) == before
        return err

    assert "run has done all its 2 steps; give a larger --steps to continue" in refused("--out", "run")
    assert "has done all its 1 steps" in refused("--out", "run", "--steps", "1")
    assert (
        "--lr is 0.5, but the run in run was made with 0.01; leave the flag out, or start a new run with another --out"
        in refused("--out", "run", "--lr", "0.5", "--steps", "4")
    )
    assert "--variant is kl, but the run in run was made with clipped" in refused("--out", "run", "--variant", "kl")
    assert "--max-new-tokens is 9, but" in refused("--out", "run", "--max_new_tokens", "9")
    assert "--no-thinking" not in refused("--out", "run", "--seed", "1")
    assert "--resume needs --out, the folder of the run to continue" in refused()
    assert "nowhere holds no run to resume (no config.json); check --out" in refused("--out", "nowhere")
    assert not Path("nowhere").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "run/config.json does not hold the settings of a run"),
        ("{}", "run/config.json does not hold the settings of a run"),
        ("[]", "run/config.json does not hold the settings of a run"),
        ('{"config": {"colour": "red"}}', "run/config.json does not hold the settings of a run"),
    ],
)
def test_settings_that_cannot_be_read(text, message, again):
    Path("run").mkdir()
    Path("run/config.json").write_text(text)
    code, _, err = again("--resume", "--out", "run")
    assert code == 2
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_a_damaged_checkpoint_is_one_sentence(call, again, no_plots):
    call()
    optimizer = Path("run/checkpoints/2/optimizer")
    for path in optimizer.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    code, _, err = again("--resume", "--out", "run", "--steps", "3")
    assert code == 2
    assert re.fullmatch(
        r"error: the optimizer state in run/checkpoints/2 is damaged \(\w+\); remove that folder [^\n]+\n", err
    )
    code, _, err = again("--model", "run/checkpoints/2/config.json", "--out", "other")
    assert code == 2
    assert re.fullmatch(r"error: run/checkpoints/2/config\.json is neither a folder nor a \.pth file[^\n]+\n", err)
    assert not Path("other").exists()


def test_a_run_without_checkpoint_cannot_be_resumed(call, again, no_plots):
    call()
    (Path("run/checkpoints/2")).rename("run/checkpoints/2.partial")
    code, _, err = again("--resume", "--out", "run", "--steps", "3")
    assert (code, err) == (
        2,
        "error: run/checkpoints holds no complete checkpoint to resume from; start the run anew with another --out.\n",
    )


# --- the inputs of a resumed run ---


def refused_resume(again) -> str:
    """The message of a refused resume, which changes nothing."""
    before = contents(Path("run"))
    code, out, err = again("--resume", "--out", "run", "--steps", "3")
    assert (code, out) == (2, "") and re.fullmatch(r"error: [^\n]+\n", err), err
    assert contents(Path("run")) == before
    return err


def test_a_resumed_run_refuses_inputs_that_changed(call, again, no_plots, tiny_folder):
    Path("model").mkdir()
    for path in tiny_folder.iterdir():
        Path("model", path.name).write_bytes(path.read_bytes())
    call(model="model", eval_dataset="held.jsonl", eval_on_checkpoint=2)
    record = json.loads(Path("run/config.json").read_text())["inputs"]
    assert record["model"] == str(Path("model").resolve())
    for name, change, message in (
        ("prompt.txt", lambda text: text.replace(b"=", b"equals"), r"the prompts \(template or tokenizer\) changed since .*; restore"),
        ("sums.jsonl", lambda text: text.replace(b"1 + 1", b"1 + 2"), "and the training problems changed since"),
        ("sums.jsonl", lambda text: text.replace(b'"0"', b'"7"'), "error: the training problems changed since"),
        ("held.jsonl", lambda text: text.replace(b"7 + 7", b"7 + 6"), "error: the evaluation problems changed since"),
        ("model/model.safetensors", lambda data: data[:-4] + b"\0\0\0\x3f", "error: the model's weights changed since"),
    ):
        original = Path(name).read_bytes()
        Path(name).write_bytes(change(original))
        assert re.search(message, refused_resume(again)), name
        Path(name).write_bytes(original)
    assert again("--resume", "--out", "run", "--steps", "3")[0] == 0


@pytest.mark.slow
def test_a_resumed_run_loads_the_checkpoint_it_began_with(call, again, no_plots, flags):
    """--model RUN means its newest checkpoint; the run keeps to the one it found when it began."""
    call(out="first", variant="kl", checkpoint_every=1)
    call(model="first", out="run", variant="kl")
    assert json.loads(Path("run/config.json").read_text())["inputs"]["model"] == str(Path("first/checkpoints/2").resolve())
    again("--resume", "--out", "first", "--steps", "3")
    assert again("--resume", "--out", "run", "--steps", "3")[0] == 0
    Path("first/checkpoints/2").rename("elsewhere")
    code, _, err = again("--resume", "--out", "run", "--steps", "4")
    assert code == 2 and err.startswith("error: the model's weights changed since this run began")


@pytest.mark.slow
def test_run_folders_of_the_version_before(call, again, no_plots):
    """They have no record of their inputs, but the widths of their batches."""
    call()
    call(out="other", eval_on_checkpoint=1, eval_dataset="held.jsonl")
    for folder in ("run", "other"):
        path = Path(folder, "config.json")
        record = json.loads(path.read_text())
        del record["inputs"], record["config"]["numbers"]
        path.write_text(json.dumps(record))
        progress = Path(folder, "checkpoints/2/progress.json")
        progress.write_text(json.dumps(json.loads(progress.read_text()) | {"widths": [64, 16]}))
    assert again("--resume", "--out", "run", "--steps", "3")[0] == 0
    path = Path("other/config.json")
    record = json.loads(path.read_text())
    record["config"]["eval_dataset"] = None  # so it was evaluated on what it trained on
    path.write_text(json.dumps(record))
    code, _, err = again("--resume", "--out", "other", "--steps", "3")
    assert code == 2
    assert err.startswith("error: the run in other was made by an earlier version, which evaluated sums.jsonl on its training problems")


# --- which problems are evaluated ---


@pytest.mark.slow
def test_a_file_is_split_by_a_hash_of_its_problems(call, no_plots):
    texts = [f"{i} + {j}" for i in range(1, 8) for j in range(1, 8)]
    Path("sums.jsonl").write_text("".join(json.dumps({"problem": text, "answer": "1"}) + "\n" for text in texts))
    _, out, _ = call(steps=30, eval_on_checkpoint=100)
    held = {json.loads(line)["problem"] for line in Path("run/evals/step-00000.jsonl").read_text().splitlines()}
    trained = {json.loads(line)["problem"] for line in Path("run/samples.jsonl").read_text().splitlines()}
    assert 0 < len(held) < 15 and not held & trained
    count = len(held)
    assert f"{49 - count} problems of sums.jsonl, evaluated on {count} of the {count} problems of sums.jsonl that are held out" in out
    assert "held-out accuracy before training" in out


def test_problems_that_are_trained_on_are_not_called_held_out(call, no_plots):
    lines = [Path(name).read_text().splitlines(keepends=True)[0] for name in ("sums.jsonl", "held.jsonl")]
    Path("both.jsonl").write_text("".join(lines))
    _, out, _ = call(eval_dataset="both.jsonl", eval_on_checkpoint=3)
    assert "evaluated on 2 problems of both.jsonl" in out
    assert "note: 1 of the 2 evaluation problems are also trained on" in out
    assert "accuracy before training" in out and "held-out accuracy" not in out


def test_an_evaluation_split_has_no_training_problems(tiny_folder):
    config = RunConfig(model=str(tiny_folder), eval_on_checkpoint=3, max_new_tokens=8).resolved()
    read = inputs.read_inputs(config)
    assert read.evaluated_on == "3 problems of the evaluation split of arithmetic"
    assert (read.trained_on, read.accuracy_name) == (0, "held-out accuracy")


def test_a_file_too_small_to_hold_any_problem_out(call):
    Path("one.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    message = error_of(call(dataset="one.jsonl", eval_on_checkpoint=1))
    assert message == (
        "one.jsonl has too few problems (1) to hold some out of training for evaluation; give an --eval-dataset, or "
        "--eval-on-checkpoint 0."
    )


# --- user-defined variants ---


@pytest.mark.slow
def test_a_user_defined_variant(call, again, no_plots, monkeypatch):
    Path("my_variants.py").write_text(
        "import dataclasses\nimport grpojax as gj\nfrom grpojax.loss.objectives import token_ratio\n"
        "def half(ratio, advantages, share):\n    return share * ratio * advantages, ratio > 9\n"
        "grpo = gj.VARIANTS['grpo']\n"
        "MINE = gj.Variant('mine', dataclasses.replace(grpo.loss, objective=half, numbers={'share': 0.5}), grpo.recipe)\n"
    )
    monkeypatch.delitem(sys.modules, "my_variants", raising=False)
    code, out, err = call(variant="my_variants:MINE", numbers="share=0.25")
    assert (code, err) == (0, "") and "my_variants:MINE on " in out
    assert json.loads(Path("run/config.json").read_text())["variant_numbers"] == {"share": 0.25}
    assert again("--resume", "--out", "run", "--steps", "3")[0] == 0
    VARIANTS.pop("mine")


# --- what is refused before anything is written ---


def test_an_existing_run_is_not_overwritten(call, no_plots):
    call()
    before = contents(Path("run"))
    code, out, err = call(steps=5)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: run already contains a run \(config\.json\); choose another --out[^\n]*\n", err)
    assert contents(Path("run")) == before


def test_out_that_is_a_file(call):
    Path("taken").write_text("mine")
    code, out, err = call(out="taken")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: cannot create the run folder taken: [^\n]+; choose another --out\n", err)
    assert Path("taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "cliped"}, r"unknown variant 'cliped'; .* Did you mean 'clipped'\?"),
        ({"dataset": "arithmetics"}, r"unknown data set 'arithmetics'; .* Did you mean 'arithmetic'\?"),
        (
            {"dataset": "missing.jsonl"},
            r"the data set file missing\.jsonl does not exist; give a \.json or \.jsonl file\.",
        ),
        ({"dataset": "empty.jsonl"}, r"the data set empty\.jsonl is empty; it needs at least one row"),
        ({"eval_dataset": "gsm9k", "eval_on_checkpoint": 2}, r"unknown data set 'gsm9k'; .* Did you mean 'gsm8k'\?"),
        ({"eval_dataset": "empty.json", "eval_on_checkpoint": 2}, r"the data set empty\.json is empty"),
        ({"model": "tiny-bsae"}, r"there is no model 'tiny-bsae'; .* Did you mean 'tiny-base'\?"),
        ({"model": "qwen3-0.6b-bse"}, r"there is no model 'qwen3-0\.6b-bse'; .* Did you mean 'qwen3-0\.6b-base'\?"),
        ({"model": "."}, r"\. is not a model folder, because it has no config\.json"),
        ({"prompt_template": "none.txt"}, r"cannot read the prompt template none\.txt"),
        ({"prompt_template": "empty.jsonl"}, r"the prompt template empty\.jsonl has no \{problem\}; write it where"),
        ({"num_rollouts": 1}, r"num_rollouts is 1; it must be a whole number, 2 or more"),
        ({"steps": 0}, r"steps is 0; it must be a whole number, 1 or more"),
        ({"steps": "abc"}, r"argument --steps: invalid int value: 'abc'; see run\.py --help"),
        ({"stepz": 3}, r"unknown argument '--stepz'; run\.py --help lists the known ones\. Did you mean '--steps'\?"),
        ({"clip_eps": -0.1}, r"clip_eps is -0\.1; it must be a finite number, 0 or more"),
        ({"top_p": 0}, r"top_p is 0\.0; it must be a finite number above 0 and at most 1"),
        ({"top_p": 1.01}, r"top_p is 1\.01; it must be a finite number above 0 and at most 1"),
        ({"temperature": -1}, r"temperature is -1\.0; it must be a finite number, 0 or more"),
        ({"micro_batch": 3}, r"micro_batch is 3 and does not divide .*, 8; choose one of 1, 2, 4, 8\."),
        (
            {"minibatches": 3, "rollout_reuse": "pool"},
            r"minibatches is 3 and does not divide .*; choose one of 1, 2, 4, 8\.",
        ),
        ({"max_new_tokens": 250}, r"a prompt of \d+ tokens and 250 new ones exceed the model's context of 256; lower"),
        ({"dataset": "long.jsonl"}, r"a prompt of \d+ tokens and 8 new ones exceed the model's context of 256"),
        ({"eval_dataset": "long.jsonl", "eval_on_checkpoint": 9}, r"a prompt of \d+ tokens and 8 new ones exceed"),
        ({"param_dtype": "float16"}, r"argument --param-dtype: invalid choice: 'float16' \(choose from"),
    ],
)
def test_refused(changes, message, call):
    Path("empty.jsonl").write_text("\n")
    Path("empty.json").write_text("[]")
    Path("long.jsonl").write_text(
        '{"problem": "1 + 1", "answer": "2"}\n' + json.dumps({"problem": "1 + " * 200 + "1", "answer": "201"}) + "\n"
    )
    before = contents(Path("."))
    assert re.match(message, error_of(call(**changes)))
    assert contents(Path(".")) == before


def test_a_model_without_think_tokens_cannot_earn_the_format_reward(call, monkeypatch):
    real = inputs.open_policy

    def without_tags(*args, **kwargs):
        policy = real(*args, **kwargs)
        monkeypatch.setattr(policy.tokenizer, "think_ids", None)
        return policy

    monkeypatch.setattr(inputs, "open_policy", without_tags)
    message = error_of(call(variant="format"))
    assert re.match(
        r".*tiny has no <think> tokens, so its answers cannot earn the format reward; choose a reasoning model", message
    )
    assert call(variant="format", format_reward_weight=0, steps=1)[0] == 0


@pytest.mark.slow
def test_an_empty_think_block_cannot_earn_the_format_reward(call, no_plots, tiny_reasoning_folder):
    note = "note: without thinking the prompt itself closes the think block, so no answer can earn the format reward"
    settings = {"variant": "format", "model": tiny_reasoning_folder, "steps": 1}
    assert note in call("--no-thinking", out="closed", **settings)[1]
    assert note not in call(out="open", **settings)[1]


def test_a_model_without_tokenizer(call, tiny_folder):
    Path("bare").mkdir()
    for path in tiny_folder.iterdir():
        if not path.name.startswith("tokenizer"):
            Path("bare", path.name).write_bytes(path.read_bytes())
    assert (
        error_of(call(model="bare"))
        == "bare has no tokenizer.json; copy the checkpoint's own into the folder of its weights."
    )


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc to keep freed memory")
def test_freed_memory_is_used_again():
    """A second block of 256 MiB takes the pages of the first; new pages would be 65,536 page faults."""
    script = (
        "import resource\n"
        "from grpojax.process import prepare_process\n"
        "prepare_process()\n"
        "for _ in range(2):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    block = b'1' * 2**28\n"
        "    del block\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first > 60_000 and second < 1_000


LEVEL, EMITTERS = "--xla_backend_optimization_level", "--xla_cpu_use_fusion_emitters"


@pytest.mark.parametrize(
    ("flags", "platforms", "plugins", "jaxlib", "expected"),
    [
        ("", None, [], "0.10.2", f"{LEVEL}=1 {EMITTERS}=false"),
        ("--xla_dump_to=x", None, [], "0.10.2", f"--xla_dump_to=x {LEVEL}=1 {EMITTERS}=false"),
        (f"{LEVEL}=2", None, [], "0.10.2", f"{LEVEL}=2 {EMITTERS}=false"),  # the user's own
        ("", None, [], "0.11.0", f"{LEVEL}=1"),  # it may not know the other flag
        ("", None, ["xla_cuda13"], "0.10.2", ""),  # a GPU may be found
        ("", "cpu", ["xla_cuda13"], "0.10.2", f"{LEVEL}=1 {EMITTERS}=false"),
        ("", "cuda,cpu", [], "0.10.2", f"{LEVEL}=1 {EMITTERS}=false"),  # no plugin is installed
    ],
)
def test_programs_compile_quickly_on_machines_without_accelerator(
    monkeypatch, flags, platforms, plugins, jaxlib, expected
):
    monkeypatch.setenv("XLA_FLAGS", flags)
    monkeypatch.setattr(process.importlib.metadata, "version", lambda name: jaxlib)
    monkeypatch.setattr(process.importlib.metadata, "entry_points", lambda group: plugins)
    before = jax.config.jax_platforms
    try:
        jax.config.update("jax_platforms", platforms)
        process.prepare_process()
        process.prepare_process()  # a second time adds nothing
        assert os.environ["XLA_FLAGS"] == expected
    finally:
        jax.config.update("jax_platforms", before)


@pytest.mark.slow
def test_a_compilation_cache_that_the_user_set_is_kept(monkeypatch):
    script = "from grpojax.process import prepare_process\nprepare_process()\nimport jax\nprint(jax.config.jax_compilation_cache_dir)\n"
    for own, expected in ({"JAX_COMPILATION_CACHE_DIR": "/mine"}, "/mine"), ({}, "/cache/compiled"):
        environment = {**os.environ, "GRPOJAX_CACHE": "/cache"} | own
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


@pytest.mark.slow
def test_xla_reads_the_optimization_level():
    script = (
        "from grpojax.process import prepare_process\n"
        "prepare_process()\n"
        "import jax.numpy as jnp\n"
        "from jax._src.lib import xla_client\n"
        "jnp.ones(3)\n"
        "print(xla_client.CompileOptions().executable_build_options.debug_options.xla_backend_optimization_level)\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
