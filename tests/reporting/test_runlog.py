"""Writing a run folder: its files, crashes, and resumed runs."""

import dataclasses
import json
import math

import numpy as np
import pytest

from grpojax.errors import InputError
from grpojax.records import METRIC_COLUMNS, EvalRow, Evaluation, Sample, StepRecord
from grpojax.reporting.metrics import read_evaluations, read_metrics
from grpojax.reporting.runlog import RunLog, format_line

SAMPLE = Sample("1+1?", "2", r"So \boxed{2}<|im_end|>", "2", True, {"correct": 1.0}, 1.0, 0.75, 7, False)


def evaluation(step):
    rows = [
        EvalRow(
            index=i, problem=f"{i}+1?", gold="1", text=["½"], extracted=["1"], correct=[i == 0], length=[20 + i],
            truncated=[False],
        )
        for i in range(4)
    ]  # fmt: skip
    return Evaluation(step, "arithmetic", 1, 4, 21.5, 0.25, 2.0, rows)


def record(step, total=25, evaluated=(), **metrics):
    samples = [SAMPLE, dataclasses.replace(SAMPLE, reward=0.0, advantage=-0.75)]
    return StepRecord(step, total, metrics, samples, evaluation(step) if step in evaluated else None)


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def run_until(folder, last, marker=0.0):
    log = RunLog.create(folder, {"seed": 1})
    log.evaluation(evaluation(0))
    for step in range(1, last + 1):
        log.append(record(step, evaluated=(10, 12), loss=step + marker))
    return log


def test_create_writes_config_and_header(tmp_path):
    RunLog.create(tmp_path / "runs" / "a", {"seed": 1, "lr": np.float32(0.5), "out": tmp_path})
    assert json.loads((tmp_path / "runs/a/config.json").read_text()) == {"seed": 1, "lr": 0.5, "out": str(tmp_path)}
    assert (tmp_path / "runs/a/metrics.csv").read_text() == ",".join(METRIC_COLUMNS) + "\n"


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.csv", "metrics.txt", "samples.jsonl", "summary.json", "evals/", "checkpoints/"]
)
def test_create_refuses_a_folder_with_a_run_and_writes_nothing(tmp_path, name):
    (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(InputError) as error:
        RunLog.create(tmp_path, {"seed": 1})
    assert str(error.value) == (
        f"{tmp_path} already contains a run ({name.rstrip('/')}); choose another --out or add --resume"
    )
    assert snapshot(tmp_path) == before and len(list(tmp_path.iterdir())) == 1


def test_create_leaves_other_files_alone(tmp_path):
    (tmp_path / "notes.md").write_text("mine")
    RunLog.create(tmp_path, {})
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_create_below_a_file_gets_a_clear_message(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot create the run folder .*file.x: Not a directory; choose another"):
        RunLog.create(tmp_path / "file" / "x", {})
    with pytest.raises(InputError, match=r"cannot create the run folder .*file: File exists; choose another --out"):
        RunLog.create(tmp_path / "file", {})


def test_a_row_has_all_columns_and_none_is_an_empty_cell(tmp_path):
    log = RunLog.create(tmp_path, {})
    log.append(record(1, loss=-0.25, policy_ratio=None, lr=1e-5, kl_k3=math.nan, grad_norm=math.inf))
    row = dict(zip(METRIC_COLUMNS, (tmp_path / "metrics.csv").read_text().split("\n")[1].split(","), strict=True))
    assert {name: cell for name, cell in row.items() if cell} == {
        "step": "1", "total_steps": "25", "loss": "-0.25", "lr": "1e-05", "kl_k3": "nan", "grad_norm": "inf",
    }  # fmt: skip


def test_float32_values_survive_the_file(tmp_path):
    log = RunLog.create(tmp_path, {})
    value = np.float32(1.0) + np.finfo(np.float32).eps  # needs nine digits
    log.append(record(1, loss=value))
    assert np.float32(read_metrics(tmp_path)["loss"][0]) == value != np.float32(1.0)


def test_a_metric_without_a_column_is_refused_before_anything_is_written(tmp_path):
    log = RunLog.create(tmp_path, {})
    before = snapshot(tmp_path)
    with pytest.raises(ValueError, match=r"'entropy' is not a column of metrics.csv; .* Did you mean 'entropy_avg'\?"):
        log.append(record(1, entropy=1.0))
    assert snapshot(tmp_path) == before


def test_each_row_is_on_disk_when_append_returns(tmp_path):
    log = RunLog.create(tmp_path, {})
    for step in (1, 2, 3):
        log.append(record(step, loss=0.5))
        assert read_metrics(tmp_path)["step"].tolist() == list(range(1, step + 1))
        assert (tmp_path / "metrics.txt").read_text().count("\n") == step


def test_samples_are_written_at_step_1_every_ten_steps_and_at_the_last_step(tmp_path):
    run_until(tmp_path, 25)
    rows = rows_of(tmp_path / "samples.jsonl")
    assert [row["step"] for row in rows] == [1, 1, 10, 10, 20, 20, 25, 25]
    assert rows[1] == {
        "step": 1, "problem": "1+1?", "gold": "2", "text": r"So \boxed{2}<|im_end|>", "extracted": "2",
        "correct": True, "rewards": {"correct": 1.0}, "reward": 0.0, "advantage": -0.75, "length": 7,
        "truncated": False,
    }  # fmt: skip


def test_samples_every_can_be_set(tmp_path):
    log = RunLog.create(tmp_path, {}, samples_every=2)
    for step in range(1, 6):
        log.append(record(step))
    assert [row["step"] for row in rows_of(tmp_path / "samples.jsonl")][::2] == [1, 2, 4]
    assert RunLog.resume(tmp_path, 5, samples_every=3).samples_every == 3


def test_samples_can_contain_array_scalars_and_any_text(tmp_path):
    """The output of a collapsed policy contains Unicode line separators."""
    text = "a\u2028b\u0085c\nd \\boxed{½} 你"
    sample = dataclasses.replace(SAMPLE, text=text, reward=np.float32(0.5), length=np.int32(3))
    log = RunLog.create(tmp_path, {})
    log.append(StepRecord(1, 25, {}, [sample, SAMPLE]))
    log.append(record(10))
    log = RunLog.resume(tmp_path, 1)
    first, second = rows_of(tmp_path / "samples.jsonl")
    assert first["text"] == text and first["reward"] == 0.5 and first["length"] == 3
    assert second["text"] == SAMPLE.text


def test_an_evaluation_is_written_row_by_row_and_to_the_summary(tmp_path):
    log = run_until(tmp_path, 10)
    assert rows_of(tmp_path / "evals" / "step-00010.jsonl") == [row.to_json() for row in evaluation(10).rows]
    assert (tmp_path / "evals" / "step-00000.jsonl").exists()
    untrained, later = rows_of(tmp_path / "evals" / "summary.jsonl")
    assert untrained["step"] == 0 and later == {
        "step": 10, "dataset": "arithmetic", "accuracy": 25.0, "correct": 1, "total": 4, "avg_response_len": 21.5,
        "truncated_frac": 0.25, "seconds": 2.0,
    }  # fmt: skip
    # metrics.csv has percent too, and no row for step 0
    np.testing.assert_array_equal(read_metrics(log.folder)["eval_acc"], [np.nan] * 9 + [25.0])
    assert read_evaluations(tmp_path) == [(0, 25.0), (10, 25.0)]


def test_a_failed_write_keeps_the_old_summary(tmp_path, monkeypatch):
    log = RunLog.create(tmp_path, {})
    log.summary({"best": np.float32(0.5)})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"best": 0.5}

    def full_disk(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grpojax.files.os.replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        log.summary({"best": 0.75})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"best": 0.5}


def test_resume_keeps_the_history_unchanged_and_drops_later_steps(tmp_path):
    """Checkpoint at 10, killed while writing step 14: rows 1 to 10 are kept, steps 11 to 13 are repeated."""
    run_until(tmp_path, 13)
    history = {
        name: b"".join((tmp_path / name).read_bytes().splitlines(keepends=True)[:lines])
        for name, lines in {"metrics.csv": 11, "metrics.txt": 10, "samples.jsonl": 4, "evals/summary.jsonl": 2}.items()
    }
    config = (tmp_path / "config.json").read_bytes()
    for name, torn in {
        "metrics.csv": "14,25,0.",
        "metrics.txt": "step 14/25  lo",
        "samples.jsonl": '{"step": 1',
    }.items():
        with (tmp_path / name).open("a") as file:
            file.write(torn)

    log = RunLog.resume(tmp_path, 10)

    for name, content in history.items():
        assert (tmp_path / name).read_bytes() == content, name
    assert (tmp_path / "config.json").read_bytes() == config
    assert sorted(path.name for path in (tmp_path / "evals").iterdir()) == [
        "step-00000.jsonl", "step-00010.jsonl", "summary.jsonl",
    ]  # fmt: skip
    for step in range(11, 15):
        log.append(record(step, loss=step + 0.5))
    assert (tmp_path / "metrics.csv").read_bytes().startswith(history["metrics.csv"])
    metrics = read_metrics(tmp_path)
    assert metrics["step"].tolist() == list(range(1, 15))
    assert metrics["loss"][8:].tolist() == [9, 10, 11.5, 12.5, 13.5, 14.5]
    assert not list(tmp_path.rglob("*.new"))


def test_an_interrupted_and_resumed_run_has_the_files_of_an_uninterrupted_one(tmp_path):
    run_until(tmp_path / "whole", 15)
    run_until(tmp_path / "resumed", 12)
    log = RunLog.resume(tmp_path / "resumed", 7)
    for step in range(8, 16):
        log.append(record(step, evaluated=(10, 12), loss=float(step)))
    whole, resumed = ({p.name: c for p, c in snapshot(tmp_path / name).items()} for name in ("whole", "resumed"))
    assert whole == resumed


def test_resume_before_the_first_checkpoint_keeps_the_untrained_evaluation(tmp_path):
    run_until(tmp_path, 3)
    RunLog.resume(tmp_path, 0)
    assert (tmp_path / "metrics.csv").read_text() == ",".join(METRIC_COLUMNS) + "\n"
    assert (tmp_path / "metrics.txt").read_bytes() == b""
    assert read_evaluations(tmp_path) == [(0, 25.0)]


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(
        InputError, match=r"contains no run to resume \(no metrics.csv\); check --out, or omit --resume"
    ):
        RunLog.resume(tmp_path / "none", 10)


@pytest.mark.parametrize(
    "name, line, message",
    [
        (
            "metrics.csv",
            "x,25,0.5",
            "metrics.csv, line 5 cannot be read; fix or delete the line, or start a new run",
        ),
        ("metrics.txt", "hello", "metrics.txt, line 4 cannot be read"),
        ("samples.jsonl", "{}", "samples.jsonl, line 3 cannot be read"),
        ("evals/summary.jsonl", "[]", "summary.jsonl, line 2 cannot be read"),
    ],
)
def test_resume_with_a_damaged_line_changes_nothing(tmp_path, name, line, message):
    run_until(tmp_path, 3)
    with (tmp_path / name).open("a") as file:
        file.write(line + "\n")
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match=message):
        RunLog.resume(tmp_path, 1)
    assert snapshot(tmp_path) == before


def test_resume_refuses_different_columns(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,loss\n1,2\n")
    with pytest.raises(
        InputError, match="has different columns from those this version writes; start a new run with another --out"
    ):
        RunLog.resume(tmp_path, 1)


def test_format_line():
    metrics = {"loss": -0.0345, "reward_avg": 0.625, "correct_avg": 0.5, "avg_response_len": 231.44}
    metrics |= {"entropy_avg": 0.3118, "policy_ratio": 1.0234, "grad_norm": 0.84, "tokens_per_sec": 812.04}
    line = format_line(record(7, total=200, evaluated=(7,), **metrics))
    assert " ".join(line.split()) == (
        "step 7/200 loss -0.0345 reward 0.625 correct 0.500 length 231.4 entropy 0.312 ratio 1.023 "
        "grad_norm 0.840 tokens/s 812.0 eval % 25.0"
    )


def test_values_that_do_not_apply_are_dashes():
    """A skipped update at step 1 has no policy ratio, no loss and no evaluation."""
    line = format_line(record(1, reward_avg=0.0, loss=None, policy_ratio=None))
    assert line.split()[:4] == ["step", "1/25", "loss", "-"]
    assert "reward 0.000" in line and "ratio -" in line and line.endswith("eval % -")


def test_nan_infinite_tiny_and_huge_values_are_visible():
    line = format_line(record(1, loss=math.nan, grad_norm=math.inf, policy_ratio=3.2e12, entropy_avg=-1e-9))
    words = line.split()
    shown = {word: words[words.index(word) + 1] for word in ("loss", "grad_norm", "ratio", "entropy")}
    assert shown == {"loss": "nan", "grad_norm": "inf", "ratio": "3.2e+12", "entropy": "-1.0e-09"}
    assert "loss 0.0000" in format_line(record(1, loss=-0.0))


def test_the_lines_of_a_run_are_aligned():
    lines = [format_line(record(step, total=1000, loss=0.5, reward_avg=1.0)) for step in (1, 999)]
    assert lines[0].index("reward") == lines[1].index("reward")
