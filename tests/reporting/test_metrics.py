"""Reading metrics files, also torn and restarted ones; evaluations; the moving average."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from grpojax.errors import InputError
from grpojax.records import METRIC_COLUMNS
from grpojax.reporting.metrics import moving_average, read_evaluations, read_metrics

SHARED = Path(os.environ.get("GRPOJAX_DATA", Path(__file__).parents[3] / "shared"))
BOOK_LOGS = SHARED / "data" / "book_logs"
needs_book_logs = pytest.mark.skipif(not BOOK_LOGS.is_dir(), reason=f"no book logs in {BOOK_LOGS}")


def write(path, text):
    path.write_bytes(text.encode())
    return path


def our_row(step, **cells):
    values = dict.fromkeys(METRIC_COLUMNS, "") | {"step": step, "total_steps": 9} | cells
    return ",".join(str(values[name]) for name in METRIC_COLUMNS)


def our_text(*rows):
    return "".join(line + "\n" for line in (",".join(METRIC_COLUMNS), *rows))


def test_columns_are_those_of_the_file_and_empty_cells_are_nan(tmp_path):
    metrics = read_metrics(write(tmp_path / "a.csv", "step,loss,eval_acc\n1,-0.5,\n2,inf,15.6\n3,nan,\n"))
    assert list(metrics) == ["step", "loss", "eval_acc"]
    np.testing.assert_array_equal(metrics["step"], [1, 2, 3])
    np.testing.assert_array_equal(metrics["loss"], [-0.5, np.inf, np.nan])
    np.testing.assert_array_equal(metrics["eval_acc"], [np.nan, 15.6, np.nan])
    assert all(values.dtype == np.float64 for values in metrics.values())


def test_byte_order_mark_windows_line_ends_and_blank_lines_are_accepted(tmp_path):
    metrics = read_metrics(write(tmp_path / "a.csv", "\ufeffstep,loss\r\n1,2.5\r\n\r\n2,3.5\r\n"))
    np.testing.assert_array_equal(metrics["loss"], [2.5, 3.5])


def test_a_run_folder_means_its_metrics_csv(tmp_path):
    write(tmp_path / "metrics.csv", our_text(our_row(1, loss=0.25)))
    assert read_metrics(tmp_path)["loss"].tolist() == [0.25]
    assert list(read_metrics(str(tmp_path))) == list(METRIC_COLUMNS)


def test_a_torn_last_line_is_ignored_wherever_it_was_cut(tmp_path):
    """Any cut through the third row leaves two rows, even if only the line end is missing."""
    whole = our_text(our_row(1, loss=1, eval_acc=10.5), our_row(2, loss=2), our_row(3, loss=3, eval_acc=42.5))
    start = whole.index("3,9,")
    for end in range(start, len(whole)):
        metrics = read_metrics(write(tmp_path / "metrics.csv", whole[:end]))
        assert metrics["step"].tolist() == [1, 2], whole[start:end]
    assert len(read_metrics(write(tmp_path / "metrics.csv", whole))["step"]) == 3


def test_the_books_last_line_needs_no_line_end_but_all_its_cells(tmp_path):
    assert read_metrics(write(tmp_path / "b.csv", "step,loss,eval_acc\n1,2,\n2,3,33.0"))["eval_acc"][-1] == 33.0
    assert read_metrics(write(tmp_path / "b.csv", "step,loss,eval_acc\n1,2,\n2,3"))["step"].tolist() == [1]


def test_the_later_rows_of_a_restarted_log_count(tmp_path):
    text = "step,total_steps,loss,eval_acc\n1,300,1,15.6\n2,300,2,\n3,300,3,20\n1,500,-1,\n2,500,-2,\n"
    metrics = read_metrics(write(tmp_path / "a.csv", text))
    assert metrics["step"].tolist() == [1, 2]
    assert metrics["total_steps"].tolist() == [500, 500]
    assert metrics["loss"].tolist() == [-1, -2]
    # step 1 keeps its accuracy, as it was not evaluated again; step 3 is no longer part of the history
    np.testing.assert_array_equal(metrics["eval_acc"], [15.6, np.nan])
    assert read_evaluations(tmp_path / "a.csv") == [(1, 15.6)]


def test_repeated_rows_after_a_resume_count_once(tmp_path):
    """Checkpoint at 10, killed at 13, resumed by a program that only appends: steps 11 to 13 are the later ones."""
    rows = [f"{step},{step}.25" for step in range(1, 14)] + [f"{step},{step}.75" for step in range(11, 15)]
    metrics = read_metrics(write(tmp_path / "a.csv", "\n".join(["step,loss", *rows]) + "\n"))
    assert metrics["step"].tolist() == list(range(1, 15))
    assert metrics["loss"][9:].tolist() == [10.25, 11.75, 12.75, 13.75, 14.75]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is not a metrics file: its first line must have 'step'"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "is not a metrics file"),
        (b'{"step": 1, "text": "' + b"x" * 200_000 + b'"}\n', "is not a metrics file"),
        (b"loss,reward_avg\n1,2\n", "is not a metrics file"),
        (b"step,price\n1,2\n", "is not a metrics file"),
        (b"step,loss\n", "has a header but no rows yet"),
        (b"step,loss\n1,2\n2\n3,4\n", "line 3 has 1 cells but the header has 2; fix or delete the line"),
        (b"step,loss\n1,2\n2,3,4\n", "line 3 has 3 cells but the header has 2"),
        (b"step,loss\n1,abc\n2,3\n", "line 2 has 'abc' as loss, expected a number"),
        (b"step,loss\n,1.5\n2,3\n", "line 2 has no step number"),
    ],
)
def test_unusable_files_get_a_clear_message(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_metrics(path)
    assert str(error.value).startswith(str(path)) and message in str(error.value)


def test_missing_files_get_a_clear_message(tmp_path):
    write(tmp_path / "metrics_7_4.csv", "step,loss\n1,2\n")
    with pytest.raises(InputError, match=r"metric_7_4.csv does not exist; give .* Did you mean 'metrics_7_4.csv'\?"):
        read_metrics(tmp_path / "metric_7_4.csv")
    with pytest.raises(InputError, match=r"does not exist; give a run folder or a metrics csv file.$"):
        read_evaluations(tmp_path / "no" / "such" / "run")
    with pytest.raises(InputError, match=r"is not a run folder \(it has no metrics.csv\); give"):
        read_metrics(tmp_path)


def summary_line(step, accuracy):
    return json.dumps({"step": step, "dataset": "arithmetic", "accuracy": accuracy}) + "\n"


def test_evaluations_combine_summary_and_csv(tmp_path):
    write(tmp_path / "metrics.csv", our_text(our_row(1), our_row(2, eval_acc=37.5), our_row(4, eval_acc=50)))
    (tmp_path / "evals").mkdir()
    write(tmp_path / "evals" / "summary.jsonl", summary_line(0, 12.5) + summary_line(2, 37.5) + '{"step": 4, "accu')
    expected = [(0, 12.5), (2, 37.5), (4, 50.0)]
    assert read_evaluations(tmp_path) == expected
    assert read_evaluations(tmp_path / "metrics.csv") == expected


def test_another_csv_in_a_run_folder_has_its_own_evaluations(tmp_path):
    (tmp_path / "evals").mkdir()
    write(tmp_path / "evals" / "summary.jsonl", summary_line(0, 12.5))
    assert read_evaluations(write(tmp_path / "book.csv", "step,loss,eval_acc\n1,0,15.6\n2,0,\n")) == [(1, 15.6)]
    assert read_evaluations(write(tmp_path / "none.csv", "step,loss\n1,0\n")) == []


def test_step_0_is_read_before_the_first_step_and_the_later_line_counts(tmp_path):
    write(tmp_path / "metrics.csv", our_text())
    (tmp_path / "evals").mkdir()
    write(tmp_path / "evals" / "summary.jsonl", summary_line(0, 12.5) + summary_line(0, 25.0))
    assert read_evaluations(tmp_path) == [(0, 25.0)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "is not valid JSON; fix or delete the line"),
        ("[1]", "is not an evaluation; fix or delete the line"),
        ('{"step": 1}', "is not an evaluation"),
        ('{"step": 1, "accuracy": "high"}', "is not an evaluation"),
    ],
)
def test_a_damaged_evaluation_line_is_named(tmp_path, line, message):
    write(tmp_path / "metrics.csv", our_text(our_row(1)))
    (tmp_path / "evals").mkdir()
    write(tmp_path / "evals" / "summary.jsonl", summary_line(0, 12.5) + line + "\n")
    with pytest.raises(InputError, match=f"summary.jsonl, line 2 {message}"):
        read_evaluations(tmp_path)


def test_moving_average_by_hand():
    # window 3: 3; (3+6)/2; (3+6+0)/3; (6+0+9)/3; (0+9-3)/3
    values = np.array([3.0, 6.0, 0.0, 9.0, -3.0])
    np.testing.assert_allclose(moving_average(values, 3), [3, 4.5, 3, 5, 2])
    np.testing.assert_array_equal(moving_average(values, 1), values)
    # a window longer than the series: the mean of all values so far
    np.testing.assert_allclose(moving_average(values, 100), [3, 4.5, 3, 4.5, 3])


def test_moving_average_skips_nan_and_infinity():
    nan, inf = np.nan, np.inf
    # window 2 reaches back over the gap: at 8 it is (4 + 8) / 2
    np.testing.assert_allclose(moving_average(np.array([nan, 2, 4, nan, inf, 8]), 2), [nan, 2, 3, 3, 3, 6])
    np.testing.assert_array_equal(moving_average(np.array([nan, nan]), 2), [nan, nan])
    assert moving_average(np.array([]), 2).shape == (0,)


def test_moving_average_forgets_a_huge_value():
    # 1e20 + 1 == 1e20 in float64, so a running sum would give 0 where 1 is right
    np.testing.assert_array_equal(moving_average(np.array([1e20, 1, 1, 1]), 2)[2:], [1, 1])


def test_moving_average_rejects_an_empty_window():
    with pytest.raises(InputError, match="window of the moving average is 0; it must be at least 1 step"):
        moving_average(np.array([1.0]), 0)


@needs_book_logs
@pytest.mark.parametrize(
    "name, columns, evaluations, last",
    [
        ("7_3_plus_tracking", 10, 11, -916.814636),
        ("7_4_plus_clip_ratio", 11, 11, -0.122519),
        ("7_5_plus_kl", 12, 11, 26.991720),
        ("7_6_plus_format_reward", 13, 11, 0.0),
        ("ch06_rlvr_grpo_original_no_kl", 7, 11, -916.814636),
    ],
)
def test_the_books_logs(name, columns, evaluations, last):
    path = BOOK_LOGS / f"{name}_metrics.csv"
    metrics = read_metrics(path)
    assert len(metrics) == columns
    assert metrics["step"].tolist() == list(range(1, 501))
    assert set(metrics["total_steps"]) == {500.0}  # the first five rows of 7.3 said 300 and were repeated
    assert metrics["loss"][-1] == last
    assert len(read_evaluations(path)) == evaluations
    assert all(0 <= accuracy <= 100 for _, accuracy in read_evaluations(path))


@needs_book_logs
def test_the_books_kl_run_shows_its_collapse():
    """No reward after step 57, entropy above 11.92 after step 165; a uniform policy has ln(151936) = 11.9312."""
    metrics = read_metrics(BOOK_LOGS / "7_5_plus_kl_metrics.csv")
    assert metrics["step"][metrics["reward_avg"] > 0][-1] == 57
    entropy = metrics["entropy_avg"]
    assert metrics["step"][entropy < 11.92][-1] == 165
    assert entropy.max() < math.log(151936)
    assert moving_average(metrics["reward_avg"], 50)[-1] == 0
    assert max(read_evaluations(BOOK_LOGS / "7_5_plus_kl_metrics.csv"), key=lambda e: e[1]) == (50, 40.8)
