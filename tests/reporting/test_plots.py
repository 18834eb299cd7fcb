"""The figures: labels, several runs, gaps, missing columns, evaluations from step 0."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from grpojax.errors import InputError
from grpojax.reporting import plots
from grpojax.reporting.plots import DIVERGENCE, LEARNING, POLICY, draw, load_runs, plot_runs

SHARED = Path(os.environ.get("GRPOJAX_DATA", Path(__file__).parents[3] / "shared"))
BOOK_LOGS = SHARED / "data" / "book_logs"


def write(path, header, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def a_run(path):
    return write(path, "step,loss,reward_avg", "1,1.5,0.25", "2,2.5,0.25")


def panels(figure):
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("recorded", [True, False])
def test_panels_have_titles_and_axis_labels_and_figures_a_legend(tmp_path, recorded):
    columns = [panel.column for panel in (*LEARNING, *POLICY, *DIVERGENCE)] if recorded else ["lr"]
    columns = list(dict.fromkeys(columns))
    path = write(tmp_path / "a.csv", ",".join(["step", *columns]), ",".join(["1"] * (len(columns) + 1)))
    for group in (LEARNING, POLICY, DIVERGENCE):
        figure = draw(load_runs([path]), "Title", group, window=5)
        assert len(figure.axes) == 4 and figure.get_suptitle() == "Title"
        for axes in figure.axes:
            assert axes.get_title(loc="left") and axes.get_ylabel() and axes.get_xlabel() == "training step"
            assert ("not recorded" in [text.get_text() for text in axes.texts]) is not recorded
        assert legend_of(figure) == ["a"]
        assert "mean of the last 5 steps" in figure.legends[0].get_title().get_text()


def test_the_panels_are_the_chapters():
    assert [panel.column for panel in LEARNING] == ["loss", "reward_avg", "avg_response_len", "eval_acc"]
    assert [panel.column for panel in POLICY] == ["policy_ratio", "adv_avg", "adv_std", "entropy_avg"]


def test_raw_values_are_faint_and_the_moving_average_strong(tmp_path):
    path = write(tmp_path / "a.csv", "step,loss", "1,2", "2,4", "3,0")
    raw, average = panels(draw(load_runs([path]), "", LEARNING, window=2))["Loss"].lines
    assert raw.get_ydata().tolist() == [2, 4, 0] and average.get_ydata().tolist() == [2, 3, 2]
    assert raw.get_alpha() < 0.5 and average.get_alpha() is None
    assert raw.get_linewidth() < average.get_linewidth() and raw.get_color() == average.get_color()


def test_gaps_are_skipped_and_the_line_ends_with_the_values(tmp_path):
    """A skipped update leaves an empty cell; nan and inf are not drawn either."""
    path = write(tmp_path / "a.csv", "step,loss,policy_ratio", "1,1,1", "2,1,", "3,1,inf", "4,1,3", "5,1,nan")
    for line in panels(draw(load_runs([path]), "", POLICY, window=2))["Policy ratio"].lines:
        assert line.get_xdata().tolist() == [1, 4]
    assert line.get_ydata().tolist() == [1, 2]


def test_an_empty_column_was_not_recorded(tmp_path):
    path = write(tmp_path / "a.csv", "step,loss,policy_ratio,eval_acc", "1,1,,", "2,1,,")
    runs = load_runs([path])
    for figure, title in (
        (draw(runs, "", POLICY, 2), "Policy ratio"),
        (draw(runs, "", LEARNING, 2), "Evaluation accuracy"),
    ):
        assert [text.get_text() for text in panels(figure)[title].texts] == ["not recorded"]
    assert not panels(figure)["Loss"].texts


def test_evaluations_are_points_on_a_line_from_step_0(tmp_path):
    write(tmp_path / "metrics.csv", "step,loss,eval_acc", "1,1,", "2,1,37.5")
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "summary.jsonl").write_text(json.dumps({"step": 0, "accuracy": 12.5}) + "\n")
    axes = panels(draw(load_runs([tmp_path]), "", LEARNING, 2))["Evaluation accuracy"]
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [0, 2] and line.get_ydata().tolist() == [12.5, 37.5]
    assert line.get_marker() == "o" and axes.get_xlim()[0] < 0  # the axis does not cut the point at 0


def test_runs_are_drawn_on_top_of_one_another_in_different_colours_and_widths(tmp_path):
    paths = [a_run(tmp_path / name / "metrics.csv") for name in "abcdefghi"]  # more than there are colours
    figure = draw(load_runs(paths), "", LEARNING, 2)
    assert legend_of(figure) == list("abcdefghi")
    averages = panels(figure)["Loss"].lines[1::2]
    assert len({(line.get_color(), line.get_linestyle()) for line in averages}) == 9
    assert np.all(np.diff([line.get_linewidth() for line in averages]) < 0)  # both of two equal runs are visible


def test_labels_are_as_short_as_possible_and_distinct(tmp_path):
    paths = [
        a_run(tmp_path / "x" / "run" / "metrics.csv"),
        a_run(tmp_path / "y" / "run" / "metrics.csv"),
        a_run(tmp_path / "x" / "7_4_metrics.csv"),
    ]
    assert [run.label for run in load_runs(paths)] == ["x/run", "y/run", "x/7_4"]
    assert [run.label for run in load_runs(paths[1:])] == ["run", "7_4"]
    assert len(load_runs([paths[0], paths[0].parent])) == 1
    same = [a_run(tmp_path / "z" / "a.csv"), a_run(tmp_path / "z" / "a_metrics.csv")]
    assert len({run.label for run in load_runs(same)}) == 2


def test_a_label_with_special_characters_of_matplotlib_is_drawn(tmp_path):
    figure = draw(load_runs([a_run(tmp_path / "_cost_$5" / "metrics.csv")]), "", LEARNING, 2)
    assert legend_of(figure) == [r"_cost_\$5"]
    figure.savefig(tmp_path / "a.png", dpi=20)


def test_wide_losses_are_drawn_logarithmic_and_narrow_ones_not(tmp_path):
    wide = write(tmp_path / "a.csv", "step,loss", "1,-4000", "2,0.5", "3,20")
    narrow = write(tmp_path / "b.csv", "step,loss", "1,-2", "2,0.5", "3,20")
    axes = panels(draw(load_runs([wide]), "", LEARNING, 2))["Loss"]
    assert axes.get_yscale() == "symlog" and axes.get_title(loc="right") == "logarithmic beyond ±1"
    axes = panels(draw(load_runs([narrow]), "", LEARNING, 2))["Loss"]
    assert axes.get_yscale() == "linear" and axes.get_title(loc="right") == ""


def test_rounding_noise_of_the_mean_advantage_looks_flat(tmp_path):
    path = write(tmp_path / "a.csv", "step,adv_avg", "1,1e-9", "2,-1e-9")
    low, high = panels(draw(load_runs([path]), "", POLICY, 2))["Advantage: average"].get_ylim()
    assert low == pytest.approx(-0.05) and high == pytest.approx(0.05)


@pytest.fixture
def saved(monkeypatch):
    """The figures that plot_runs draws, by file name; drawing pixels takes a second per figure."""
    figures = {}
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: figures.update({path.name: figure}))
    return figures


def test_plot_runs_writes_png_files(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "draw", lambda *_: Figure(figsize=(1, 1)))
    written = plot_runs([a_run(tmp_path / "a.csv")], tmp_path / "new" / "plots", window=2)
    assert written == [tmp_path / "new/plots/learning.png", tmp_path / "new/plots/policy.png"]
    assert sorted((tmp_path / "new" / "plots").iterdir()) == written
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_reward_and_kl_share_a_figure_if_kl_was_recorded(tmp_path, saved):
    """KL rises from 0.0001 to 5 while the reward falls from 0.3 to 0."""
    path = write(tmp_path / "a.csv", "step,reward_avg,kl_k3", "1,0.3,0.0001", "2,0.2,0.1", "3,0,5")
    written = plot_runs([path], tmp_path / "plots", window=1)
    assert [path.name for path in written] == ["learning.png", "policy.png", "kl.png"]
    axes = panels(saved["kl.png"])
    assert axes["Average reward"].lines[1].get_ydata().tolist() == [0.3, 0.2, 0]
    assert axes["KL to the reference, estimator k3"].lines[1].get_ydata().tolist() == [0.0001, 0.1, 5]


def test_nothing_is_written_for_bad_input(tmp_path):
    good = a_run(tmp_path / "a.csv")
    with pytest.raises(InputError, match="there is nothing to plot; give at least one run folder or metrics csv file"):
        plot_runs([], tmp_path / "plots")
    with pytest.raises(InputError, match="window of the moving average is 0; it must be at least 1 step"):
        plot_runs([good], tmp_path / "plots", window=0)
    with pytest.raises(InputError, match=r"b.csv does not exist"):
        plot_runs([good, tmp_path / "b.csv"], tmp_path / "plots")
    assert not (tmp_path / "plots").exists()
    with pytest.raises(InputError, match=r"cannot create the folder .*a.csv: File exists; choose another"):
        plot_runs([good], good)


@pytest.mark.skipif(not BOOK_LOGS.is_dir(), reason=f"no book logs in {BOOK_LOGS}")
def test_the_books_logs_are_drawn_together(tmp_path, saved):
    assert len(plot_runs(sorted(BOOK_LOGS.glob("*.csv")), tmp_path)) == 3
    figure = saved["policy.png"]
    assert legend_of(figure)[:2] == ["7_3_plus_tracking", "7_4_plus_clip_ratio"]
    assert len(panels(figure)["Policy ratio"].lines) == 2 * 5  # runs without the column have empty lines
    assert sum(len(line.get_xdata()) > 0 for line in panels(figure)["Policy ratio"].lines) == 2 * 3

