"""What does each variant achieve on the embedded models?

    python benchmarks/variants.py --out runs/variants

Trains every variant from the same start, prints a table and draws a plot. Each run is `run.py --variant NAME` with
its defaults (200 steps of one problem and 8 rollouts, 200 held-out problems before and after), in its own process. A
run that exists is not repeated.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from grpojax.reporting.metrics import moving_average, read_metrics
from grpojax.variants import VARIANTS

RUN = Path(__file__).parents[1] / "run.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/variants"), help="folder for the runs, results.json and variants.png")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), help="default: all")
    parser.add_argument("--seed", type=int, default=42)
    args, more = parser.parse_known_args()  # the rest goes to run.py
    rows = [measure(name, args.out / name, args.seed, more) for name in args.variants]
    (args.out / "results.json").write_text(json.dumps({"results": rows}, indent=2) + "\n")
    draw({row["variant"]: args.out / row["variant"] for row in rows}, args.out / "variants.png")
    columns = "held-out, greedy | right, all samples | think format | tokens | entropy | clipped | prompts"
    print(f"| variant | {columns} |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        cells = [
            f"{row['before']:.1f} → {row['after']:.1f} %",
            *(" → ".join("-" if np.isnan(x) else f"{x:.2f}" for x in row[name]) for name in ("correct", "format")),
            *(" → ".join(f"{x:.{digits}f}" for x in row[name]) for name, digits in (("length", 1), ("entropy", 2))),
            "-" if np.isnan(row["clip_frac"]) else f"{100 * row['clip_frac']:.2f} %",
            str(row["groups_drawn"]),
        ]
        print(f"| `{row['variant']}` | {' | '.join(cells)} |".replace("- → -", "-"))


def measure(name: str, folder: Path, seed: int, more: list[str]) -> dict:
    """Runs the variant unless its run exists, and reads the results."""
    if not (folder / "summary.json").exists():
        command = [sys.executable, RUN, "--variant", name, "--seed", str(seed), "--out", folder, *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary, metrics = json.loads((folder / "summary.json").read_text()), read_metrics(folder)

    def ends(column: str) -> list[float]:
        """The means over the first 20 and the last 20 steps."""
        values = metrics[column]
        return [float(np.nanmean(part)) if not np.isnan(part).all() else float("nan") for part in (values[:20], values[-20:])]

    return {
        "variant": name,
        "model": summary["model"],
        "before": summary["eval_acc_before"],
        "after": summary["eval_acc_last"],
        "correct": ends("drawn_correct_avg"),
        "format": ends("format_reward_avg"),
        "length": ends("avg_response_len"),
        "entropy": ends("entropy_avg"),
        "clip_frac": float(np.nanmean(metrics["clip_frac"])) if not np.isnan(metrics["clip_frac"]).all() else float("nan"),
        "groups_drawn": int(np.nansum(metrics["groups_drawn"])),
        "seconds": summary["seconds"],
    }


def draw(runs: dict[str, Path], path: Path) -> None:
    """Plots the share of right answers to training problems, a moving average over 20 steps, by model."""
    figure, axes = plt.subplots(1, 2, figsize=(13, 5), sharey=True)
    for axis in axes:
        axis.set_prop_cycle(color=plt.colormaps["tab20"].colors)
    for name, folder in runs.items():
        metrics = read_metrics(folder)
        axis = axes[int(VARIANTS[name].recipe.model == "tiny-reasoning")]
        axis.plot(metrics["step"], moving_average(metrics["drawn_correct_avg"], 20), label=name, linewidth=1.2)
    for axis, model in zip(axes, ("tiny-base", "tiny-reasoning"), strict=True):
        axis.set_title(model)
        axis.set_xlabel("step")
        axis.legend(fontsize=8, ncols=2)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of right answers among all samples (mean of 20 steps)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
