"""The chapter's figures for one or more runs, from run folders or metrics files."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from grpojax.errors import InputError
from grpojax.reporting.metrics import metrics_file, moving_average, read_evaluations, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours for all kinds of colour vision, without yellow, which is too faint on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
_LINEAR_SPAN = 30.0


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot: a column of the metrics over the steps."""

    column: str
    title: str
    unit: str  # the label of the y axis
    least_span: float = 0.0  # minimum range of the y axis, so that rounding noise looks flat
    wide: bool = False  # a range above _LINEAR_SPAN gets a scale that is logarithmic beyond 1 and -1


@dataclasses.dataclass(frozen=True)
class Run:
    """The data of one run."""

    label: str
    metrics: dict[str, np.ndarray]  # as returned by read_metrics, [steps] each
    evaluations: list[tuple[int, float]]


LEARNING = (
    Panel("loss", "Loss", "loss", wide=True),
    Panel("reward_avg", "Average reward", "reward per answer"),
    Panel("avg_response_len", "Average response length", "tokens"),
    Panel("eval_acc", "Evaluation accuracy", "problems solved (%)"),
)
POLICY = (
    Panel("policy_ratio", "Policy ratio", "new / old probability", wide=True),
    Panel("adv_avg", "Advantage: average", "advantage", least_span=0.1),
    Panel("adv_std", "Advantage: standard deviation", "advantage", least_span=0.1),
    Panel("entropy_avg", "Average entropy", "nats per token"),
)
DIVERGENCE = (
    Panel("reward_avg", "Average reward", "reward per answer"),
    Panel("kl_loss", "KL part of the loss", "loss", wide=True),
    Panel("kl_k1", "KL to the reference, estimator k1", "nats", wide=True),
    Panel("kl_k3", "KL to the reference, estimator k3", "nats", wide=True),
)


def plot_runs(paths: list[str | Path], out_dir: str | Path, window: int = 20) -> list[Path]:
    """Draws the figures of one or more runs as PNG files.

    They are learning.png, policy.png and, if a run recorded a divergence from the reference model, kl.png. Values are
    faint, the moving average is strong, and evaluations are points joined by a line. Missing values are skipped.

    Args:
      paths: run folders or metrics csv files, as for read_metrics.
      out_dir: folder for the images; created if it is missing. Existing images are replaced.
      window: steps of the moving average.

    Returns:
      The files written.

    Raises:
      InputError: if there are no paths, a file cannot be used, window is less than 1, or out_dir cannot be created;
        nothing was written.
    """
    if not paths:
        raise InputError("there is nothing to plot; give at least one run folder or metrics csv file")
    if window < 1:
        raise InputError(f"the window of the moving average is {window}; it must be at least 1 step")
    runs = load_runs(paths)
    out_dir = Path(out_dir)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {out_dir}: {error.strerror}; choose another") from None
    figures = {"learning.png": ("Learning", LEARNING), "policy.png": ("Policy", POLICY)}
    if any(_series(run, panel)[1].size for run in runs for panel in DIVERGENCE[1:]):
        figures["kl.png"] = ("Divergence from the reference model", DIVERGENCE)
    for name, (title, panels) in figures.items():
        draw(runs, title, panels, window).savefig(out_dir / name, dpi=150)
    return [out_dir / name for name in figures]


def load_runs(paths: list[str | Path]) -> list[Run]:
    """Reads runs and labels each with as much of its path as distinguishes it; a repeated path counts once."""
    unique = list(dict.fromkeys(metrics_file(path).resolve() for path in paths))
    labels = zip(unique, _labels(unique), strict=True)
    return [Run(label, read_metrics(path), read_evaluations(path)) for path, label in labels]


def draw(runs: list[Run], title: str, panels: tuple[Panel, ...], window: int) -> "Figure":
    """A 2x2 figure of four panels with a common legend."""
    # Figure instead of pyplot: no display and no global state.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    figure.suptitle(title, fontsize=15, fontweight="bold")
    for axes, panel in zip(figure.subplots(2, 2).flat, panels, strict=True):
        _draw_panel(axes, panel, runs, window)
    # An unescaped $ would start a formula.
    labels = [run.label.replace("$", r"\$") for run in runs]
    figure.legend(
        handles=[Line2D([], [], **_style(i), linewidth=3, label=label) for i, label in enumerate(labels)],
        title=f"faint: each step    strong: mean of the last {window} steps"
        + ("    points: evaluations" if any(panel.column == "eval_acc" for panel in panels) else ""),
        loc="outside lower center",
        ncols=max(1, min(len(runs), 130 // (max(map(len, labels)) + 8))),
        frameon=False,
    )
    return figure


def _draw_panel(axes: "Axes", panel: Panel, runs: list[Run], window: int) -> None:
    axes.set_title(panel.title, loc="left", fontsize=12)
    axes.set(xlabel="training step", ylabel=panel.unit)
    last = max(run.metrics["step"][-1] for run in runs)
    axes.set_xlim(-0.02 * last, 1.02 * last)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    drawn = []
    # Later runs are thinner, so that both of two equal runs are visible.
    for i, run in enumerate(runs):
        width = 1.6 * (2 - (i + 1) / len(runs))
        steps, values = _series(run, panel)
        if panel.column == "eval_acc":
            axes.plot(steps, values, **_style(i), marker="o", markersize=3 * width, linewidth=width)
        else:
            axes.plot(steps, values, color=_style(i)["color"], linewidth=0.8, alpha=0.35 / len(runs) ** 0.5)
            axes.plot(steps, moving_average(values, window), **_style(i), linewidth=width)
        drawn.extend(values)
    if not drawn:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="0.45")
        return
    low, high = min(drawn), max(drawn)
    if panel.wide and high - low > _LINEAR_SPAN:
        axes.set_yscale("symlog", linthresh=1.0)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title("logarithmic beyond ±1", loc="right", fontsize=9, color="0.45")
    elif high - low < panel.least_span:
        axes.set_ylim((low + high - panel.least_span) / 2, (low + high + panel.least_span) / 2)


def _series(run: Run, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
    """Steps and finite values of one panel, [n] each; n is 0 if there are none."""
    if panel.column == "eval_acc":
        steps, values = np.array(run.evaluations, float).reshape(-1, 2).T
    else:
        steps = run.metrics["step"]
        values = run.metrics.get(panel.column, np.full(len(steps), np.nan))
    finite = np.isfinite(values)
    return steps[finite], values[finite]


def _style(i: int) -> dict[str, str]:
    """Colour and dashes of the i-th run; the dashes change when the colours repeat."""
    return {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _DASHES[i // len(_COLOURS) % len(_DASHES)]}


def _labels(paths: list[Path]) -> list[str]:
    """Distinct names: the last part of each path, or as many of the last parts as needed."""
    names = []
    for path in paths:
        stem = path.name.removesuffix(".csv").removesuffix("_metrics")
        names.append(path.parent if path.name == "metrics.csv" else path.with_name(stem or path.name))
    for depth in range(1, max(len(name.parts) for name in names) + 1):
        labels = ["/".join(name.parts[-depth:]) for name in names]
        if len(set(labels)) == len(labels):
            return labels
    return [str(path) for path in paths]
