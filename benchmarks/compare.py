"""How fast is a step of GRPO, and how much memory does it take, compared with other libraries on the same machine?

    pip install grpojax[bench]
    python benchmarks/compare.py --workload tiny                             ours, the book, Hugging Face, TRL
    python benchmarks/compare.py --workload 600m --peers ours,hf --json result.json
    python benchmarks/compare.py --peers ours,tunix --python tunix=ENV/bin/python

Prints a table with one row per library ("peer") and dtype. Tunix needs its own environment: `python -m venv ENV &&
ENV/bin/pip install google-tunix==0.1.7`; `--python` says which interpreter runs a peer. A peer that is not installed
is skipped. Nothing is downloaded.

Each peer runs in its own process on the same work: one prompt, 8 rollouts at temperature 0.8 and top-p 0.9, a reward
computed from token ids (the share of even ones), one update with AdamW (lr 1e-5, weight decay 0.01) and gradient norm
1. Weights are random (normal, 0.02), written once by grpojax as a Hugging Face folder that all peers load; stop
tokens are disabled. peers/workload.py has the numbers, peers/NAME.py how a peer is used and why.

Before anything is timed, a peer's log-probs of fixed answers are compared with ours in float32, each answer must have
the full number of tokens, and the update must have moved the weights. A peer that fails is reported and not timed.

Columns. Warm-up: from the start of the process to the end of the first step, with compilation and without the check
of log-probs. Rollout tokens per second, and seconds of scoring (old log-probs, if the peer has such a pass), of the
update and of a whole step as the peer's own trainer runs it: medians over all rounds. Memory: the largest resident
set of the process (on a GPU: the most memory held by tensors). Ratios to ours compare the faster dtype of each peer,
marked *. Floor: the share of the time taken that this machine needs at least.

The floor of the rollouts is the products of the prompt, computed once, then for each further token the time to read
all weights once or to compute the products of the 8 rows, whichever is longer. The floor of the update is 6
operations per weight of the layers and token, the prompt counted once, and per weight of the head and answer token.
Bandwidth and product rates are measured first, in the row's dtype, or in float32 if that is faster. For tiny the
weights fit into the processor's caches, and the floor is only a scale.

Use a quiet machine. torch's threads wait in busy loops: if another program takes a core, peers on torch become ten
times slower and more, those on jax less so. The line below the table says how many cores other programs used.

With `tiny` all peers stay alive and take turns, one round after the other. `600m` fits into memory only once, so
peers run one after the other; the read bandwidth measured before each shows how quiet the machine was.

Exit code 0: every installed peer ran. 1: one failed. 2: bad arguments.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import platform
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.workload import LEARNING_RATE, WORKLOADS, Task, Workload

HERE = Path(__file__).parent
DTYPES = ("float32", "bfloat16")
PEERS = {
    "ours": "pip install grpojax",
    "book": "pip install reasoning-from-scratch",
    "hf": "pip install transformers torch",
    "trl": "pip install trl",
    "tunix": "python -m venv ENV && ENV/bin/pip install google-tunix==0.1.7, then --python tunix=ENV/bin/python",
}
"""How to install each."""

MOVED = LEARNING_RATE / 10
"""An update must move a weight by at least this much. Adam's first steps move each by about the learning rate; weight
decay alone, which needs no gradient, moves a weight of 0.08 by a thousandth of the learning rate."""

LIBRARY = {"ours": "jax", "tunix": "jax", "book": "torch", "hf": "torch", "trl": "torch"}
BOUNDS = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest allowed difference of a log-prob from ours in float32, in nats. Correct peers differ by 1e-6 for tiny, 4e-6
for 600m, in bfloat16 by 0.007 and 0.03. For tiny a wrong RoPE base makes a difference of 0.24, missing norms of queries
and keys 0.31, a missing first token 0.43."""


class PeerError(Exception):
    """One sentence on what went wrong with a peer."""


@dataclasses.dataclass
class Row:
    """A peer in one dtype, with its results."""

    peer: str
    dtype: str
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    failed: str | None = None
    skipped: str | None = None
    logp_difference: float | None = None
    moved: float | None = None
    warmup_s: float | None = None
    peak_gb: float | None = None
    bandwidth_before: float | None = None  # GB/s
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # of step, rollout, scoring, update

    def median(self, name: str) -> float | None:
        """Median seconds of a part; None if the peer has no such part or was not timed."""
        return statistics.median(self.seconds[name]) if self.seconds.get(name) else None


class Process:
    """A peer's process. `ask` sends a command and waits for its answer."""

    def __init__(self, command: list[str], task: Task, limit: float):
        self.limit = limit
        self.log = tempfile.TemporaryFile("w+")  # not a pipe, which could fill up and block
        self.process = subprocess.Popen(
            [*command, json.dumps(dataclasses.asdict(task))], cwd=HERE, env=environment(task), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip

    def ask(self, command: str) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps({"command": command}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; `answer` reports it
        return self.answer(command)

    def answer(self, what: str) -> dict[str, Any]:
        ready, _, _ = select.select([self.process.stdout], [], [], self.limit)
        if not ready:
            raise PeerError(f"no answer to {what!r} within {self.limit:g} s (--limit)")
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"process ended during {what!r}: {self.last_words()}")
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(f"{what}: {reply['error']}")
        return reply

    def last_words(self) -> str:
        """The last line of its stderr, or the signal that killed it. A system that is out of memory sends SIGKILL."""
        code = self.process.wait()
        if code < 0:
            memory = ", probably out of memory" if code == -signal.SIGKILL else ""
            return f"killed by {signal.Signals(-code).name}{memory}"
        self.log.seek(0)
        lines = [line.strip() for line in self.log if line.strip()]
        return lines[-1] if lines else f"exit code {code}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


def environment(task: Task) -> dict[str, str]:
    """The same for every peer: all cores, no network, and no programs compiled in an earlier run."""
    settings = {
        "OMP_NUM_THREADS": str(task.cores), "MKL_NUM_THREADS": str(task.cores), "OPENBLAS_NUM_THREADS": str(task.cores),
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled",
        "TOKENIZERS_PARALLELISM": "false", "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_PLATFORMS": "cpu" if task.device == "cpu" else "cuda",
    }  # fmt: skip
    return os.environ | settings


def peer_command(peer: str, python: str) -> list[str]:
    return [python, "-m", f"peers.{peer}"]


def run_module(python: str, arguments: list[str], task: Task) -> str:
    """Runs one of the peers' modules and returns its output."""
    done = subprocess.run(
        [python, "-m", *arguments], cwd=HERE, env=environment(task), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise PeerError(f"{arguments[0]} failed: {(done.stderr.strip() or '?').splitlines()[-1]}")
    return done.stdout


def measure_machine(python: str, task: Task) -> dict[str, Any]:
    found = json.loads(run_module(python, ["peers.machine", str(task.cores)], task))
    best = {dtype: max(rates.values()) for dtype, rates in found["gflops"].items()}
    return {
        "device": task.device, "cores": task.cores, "processor": processor_name(), "system": platform.platform(),
        "read_gb_s": max(found["read_gb_s"].values()), "read_gb_s_by_way": found["read_gb_s"],
        "gflops": best, "gflops_by_library": found["gflops"],
    }  # fmt: skip


def measure_bandwidth(python: str, task: Task) -> float:
    printed = run_module(python, ["peers.machine", str(task.cores), "bandwidth"], task)
    return max(json.loads(printed)["read_gb_s"].values())


def others_busy(seconds: float = 0.5) -> float | None:
    """Cores used by other programs while the peers wait; None if the system does not report it."""
    try:
        before, start = busy_seconds(), time.perf_counter()
        time.sleep(seconds)
        return (busy_seconds() - before) / (time.perf_counter() - start)
    except OSError:
        return None


def busy_seconds() -> float:
    """CPU seconds of all cores since boot, including time taken by other guests of the host (steal)."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")  # without idle and iowait


def processor_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


# --- lower bounds ---


def rollout_floor(work: Workload, machine: dict[str, Any], dtype: str) -> float:
    """Lower bound on the seconds of the rollouts; see the top of this file."""
    rate, bandwidth = matrix_rate(machine, dtype), machine["read_gb_s"] * 1e9
    params, size = work.layer_params + work.head_params, {"float32": 4, "bfloat16": 2}[dtype]
    prefill = 2 * (work.layer_params * work.prompt_tokens + work.head_params) / rate
    token = max(params * size / bandwidth, 2 * params * work.rollouts / rate)
    return prefill + (work.new_tokens - 1) * token


def update_floor(work: Workload, machine: dict[str, Any], dtype: str) -> float:
    """Lower bound on the seconds of the update."""
    return work.update_operations / matrix_rate(machine, dtype)


def matrix_rate(machine: dict[str, Any], dtype: str) -> float:
    """Operations per second: the faster dtype, because a peer in bfloat16 may compute its products in float32."""
    return 1e9 * max(machine["gflops"]["float32"], machine["gflops"][dtype])


# --- running ---


def start(row: Row, python: str, task: Task, limit: float) -> tuple[Process, float, list[str]] | None:
    """The process, its start-up seconds and its commands; None if the peer is not installed."""
    began = time.perf_counter()
    process = Process(peer_command(row.peer, python), dataclasses.replace(task, dtype=row.dtype), limit)
    try:
        ready = process.answer("start")
    except PeerError as error:
        process.close()
        missing = re.search(r"ModuleNotFoundError: No module named '(\w+)", str(error))
        if missing is None:
            raise
        row.skipped = f"{missing[1]} is not installed: {PEERS[row.peer]}"
        return None
    row.versions = ready["versions"]
    return process, time.perf_counter() - began, ready["commands"]


def reference_logps(python: str, task: Task, limit: float) -> list[list[float]]:
    """Our log-probs in float32, if that is not one of the rows."""
    row = Row("ours", "float32")
    started = start(row, python, task, limit)
    if started is None:
        raise PeerError(f"log-probs are compared with ours, but {row.skipped}")
    try:
        return started[0].ask("logps")["logps"]
    finally:
        started[0].close()


def check_logps(row: Row, process: Process, reference: list[list[float]] | None) -> list[list[float]]:
    """The peer's log-probs, compared with the reference."""
    logps = process.ask("logps")["logps"]
    if reference is not None:
        row.logp_difference = largest_difference(logps, reference)
        bound = BOUNDS[row.dtype]
        if not row.logp_difference <= bound:
            raise PeerError(f"log-probs differ from ours by {row.logp_difference:.2g} nats, more than {bound:g}")
    return logps


def largest_difference(rows: list[list[float]], others: list[list[float]]) -> float:
    """The largest absolute difference; NaN, which is within no bound, if shapes differ or a value is NaN."""
    if [len(row) for row in rows] != [len(row) for row in others]:
        return float("nan")
    differences = [abs(a - b) for row, other in zip(rows, others, strict=True) for a, b in zip(row, other, strict=True)]
    return float("nan") if any(map(math.isnan, differences)) else max(differences)


def take_turn(row: Row, process: Process, commands: list[str], work: Workload, count: bool) -> None:
    """One step, and its parts if the peer measures them separately."""
    for command in commands:
        turn = process.ask(command)
        if turn["lengths"] != [work.new_tokens] * work.rollouts:
            raise PeerError(f"sampled {turn['lengths']} tokens; expected {work.rollouts} answers of {work.new_tokens}")
        for name, value in turn["seconds"].items() if count else ():
            row.seconds.setdefault(name, []).append(value)


def warm_up(row: Row, process: Process, ready_s: float, commands: list[str], work: Workload) -> None:
    began = time.perf_counter()
    take_turn(row, process, commands[:1], work, count=False)
    row.warmup_s = ready_s + time.perf_counter() - began
    take_turn(row, process, commands[1:], work, count=False)
    for _ in range(work.warmup_steps - 1):
        take_turn(row, process, commands, work, count=False)
    if "step" in commands:
        row.moved = process.ask("state")["moved"]
        if not row.moved >= MOVED:
            raise PeerError(f"the updates moved weights by {row.moved:.1g} at most; expected at least {MOVED:g}")


def run_round(row: Row, process: Process, commands: list[str], work: Workload) -> None:
    """One round of a peer. If peers take turns, its first step is not counted, because the caches are cold."""
    if work.together:
        take_turn(row, process, commands, work, count=False)
    for _ in range(work.steps_per_round):
        take_turn(row, process, commands, work, count=True)


def run_all(rows: list[Row], task: Task, pythons: dict[str, str], repeats: int, limit: float) -> list[float]:
    """Fills the rows; returns the cores used by other programs, measured before each round while all peers wait."""
    work, reference, alive, busy = task.workload, None, [], []
    if (rows[0].peer, rows[0].dtype) != ("ours", "float32"):
        reference = reference_logps(pythons["ours"], task, limit)
    try:
        for row in rows:
            say(f"{row.peer} {row.dtype}: starting")
            with failures_of(row):
                if not work.together:
                    busy.append(others_busy())
                    row.bandwidth_before = measure_bandwidth(pythons["ours"], task)
                started = start(row, pythons[row.peer], task, limit)
                if started is None:
                    continue
                process, ready_s, commands = started
                alive.append((row, process, commands))
                logps = check_logps(row, process, reference)
                reference = reference or logps
                warm_up(row, process, ready_s, commands, work)
                if not work.together:
                    for _ in range(repeats):
                        run_round(row, process, commands, work)
                    finish(row, process)
            if not work.together and alive and alive[-1][0] is row:
                alive.pop()[1].close()
            if reference is None:
                raise PeerError(f"log-probs are compared with ours in float32, which failed: {row.failed}")
        for turn in range(repeats if work.together else 0):
            say(f"round {turn + 1} of {repeats}")
            busy.append(others_busy())
            for row, process, commands in alive:
                with failures_of(row):
                    if row.failed is None:
                        run_round(row, process, commands, work)
        for row, process, _ in alive:
            if work.together and row.failed is None:
                finish(row, process)
    finally:
        for _, process, _ in alive:
            process.close()
    return [cores for cores in busy if cores is not None]


@contextlib.contextmanager
def failures_of(row: Row) -> Iterator[None]:
    """Records a peer's failure in its row, so that the other peers continue."""
    try:
        yield
    except PeerError as error:
        row.failed, row.seconds = str(error), {}
        say(f"{row.peer} {row.dtype} failed: {error}")


def finish(row: Row, process: Process) -> None:
    row.peak_gb = process.ask("state")["peak_gb"]
    process.close()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- the report ---


def report(rows: list[Row], work: Workload, machine: dict[str, Any]) -> list[dict[str, Any]]:
    """One result per row: the medians, their ratios to ours, and the shares of the lower bounds."""
    fastest = counted(rows)
    ours = fastest.get("ours")
    results = []
    for row in rows:
        result: dict[str, Any] = {
            "peer": row.peer, "dtype": row.dtype, "counts": fastest.get(row.peer) is row,
            "warmup_s": row.warmup_s, "rollout_s": row.median("rollout"), "rollout_tok_s": None,
            "scoring_s": row.median("scoring"), "update_s": row.median("update"), "step_s": row.median("step"),
            "peak_gb": row.peak_gb, "logp_difference": row.logp_difference, "moved": row.moved,
            "bandwidth_before_gb_s": row.bandwidth_before, "versions": row.versions, "seconds": row.seconds,
            "failed": row.failed, "skipped": row.skipped,
        }  # fmt: skip
        if result["rollout_s"]:
            result["rollout_tok_s"] = work.rollouts * work.new_tokens / result["rollout_s"]
        for part in ("step", "update", "rollout"):
            mine, theirs = ours and ours.median(part), row.median(part)
            result[f"{part}_over_ours"] = theirs / mine if mine and theirs else None
        for part, floor in (("rollout", rollout_floor), ("update", update_floor)):
            taken = row.median(part)
            result[f"{part}_floor_share"] = floor(work, machine, row.dtype) / taken if taken else None
        results.append(result)
    return results


def counted(rows: list[Row]) -> dict[str, Row]:
    """The row of each peer that counts: the faster step, or the faster rollouts if it has no step."""
    fastest: dict[str, Row] = {}
    for row in rows:
        taken = row.median("step") or row.median("rollout")
        best = fastest.get(row.peer)
        if taken and (best is None or taken < (best.median("step") or best.median("rollout"))):
            fastest[row.peer] = row
    return fastest


COLUMNS = (
    ("warm-up s", "warmup_s", "{:.1f}"),
    ("rollout tok/s", "rollout_tok_s", "{:,.1f}"),
    ("scoring s", "scoring_s", "{:.3f}"),
    ("update s", "update_s", "{:.3f}"),
    ("step s", "step_s", "{:.3f}"),
    ("memory GB", "peak_gb", "{:.2f}"),
    ("step / ours", "step_over_ours", "{:.2f}"),
    ("update / ours", "update_over_ours", "{:.2f}"),
    ("rollout / ours", "rollout_over_ours", "{:.2f}"),
    ("rollout floor", "rollout_floor_share", "{:.0%}"),
    ("update floor", "update_floor_share", "{:.0%}"),
    ("log-prob gap", "logp_difference", "{:.0e}"),
    ("GB/s before", "bandwidth_before_gb_s", "{:.0f}"),
)


def table(results: list[dict[str, Any]]) -> str:
    """The results as a markdown table, then one line for each spread, failure and skipped row."""
    shown = [result for result in results if not result["failed"] and not result["skipped"]]
    columns = [column for column in COLUMNS if any(result[column[1]] is not None for result in shown)]
    lines = []
    if shown:
        lines.append("| peer | " + " | ".join(title for title, _, _ in columns) + " |")
        lines.append("| --- |" + " ---: |" * len(columns))
    for result in shown:
        cells = [form.format(result[key]) if result[key] is not None else "" for _, key, form in columns]
        star = " *" if result["counts"] else ""
        lines.append(f"| {result['peer']} {result['dtype']}{star} | " + " | ".join(cells) + " |")
    lines.append("")
    for result in shown:
        times = result["seconds"].get("step") or result["seconds"].get("rollout")
        if times:
            what = "step" if result["seconds"].get("step") else "rollouts"
            spread = f"{what} {min(times):.3f} to {max(times):.3f} s in {len(times)} runs"
            versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
            lines.append(f"- {result['peer']} {result['dtype']}: {spread}; {versions}")
    for result in results:
        for state in ("failed", "skipped"):
            if result[state]:
                lines.append(f"- {result['peer']} {result['dtype']} {state}: {result[state]}")
    return "\n".join(lines)


def describe(machine: dict[str, Any], work: Workload) -> str:
    rates, ways = machine["gflops_by_library"], machine["read_gb_s_by_way"]
    products = "; ".join(
        f"{dtype} {machine['gflops'][dtype]:,.0f} ({', '.join(f'{lib} {rate:,.0f}' for lib, rate in by.items())})"
        for dtype, by in rates.items()
    )
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['device']}, Python {platform.python_version()}\n"
        f"reads {machine['read_gb_s']:.1f} GB/s ({', '.join(f'{way} {rate:.0f}' for way, rate in ways.items())})\n"
        f"products, GFLOP/s: {products}\n"
        f"{work.name}: prompt of {work.prompt_tokens}, {work.rollouts} rollouts of {work.new_tokens} tokens, "
        f"{(work.layer_params + work.head_params) / 1e6:,.1f} M weights"
    )


# --- the command ---


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="tiny")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"some of {','.join(PEERS)} (default: all)")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="one or both of float32,bfloat16 (default: both)")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--new-tokens", type=int, help="tokens per answer (default: the workload's)")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a peer's interpreter")
    parser.add_argument("--cache", type=Path, help="folder for the weights (default: in the temporary folder)")
    parser.add_argument("--limit", type=float, default=900, help="seconds a peer has for one command (default: 900)")
    given = parser.parse_args(arguments)
    for name, known in (("peers", tuple(PEERS)), ("dtypes", DTYPES)):
        chosen = [part for part in getattr(given, name).split(",") if part]
        wrong = [part for part in chosen if part not in known]
        if wrong or not chosen or len(set(chosen)) < len(chosen):
            parser.error(f"--{name} is {getattr(given, name)!r}; give some of {','.join(known)}, each once.")
        setattr(given, name, [part for part in known if part in chosen])
    for name, least in (("repeats", 1), ("new_tokens", 1), ("limit", 1)):
        value = getattr(given, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} is {value}; it must be {least} or more.")
    pythons = dict.fromkeys(PEERS, sys.executable)
    for entry in given.python:
        peer, equals, path = entry.partition("=")
        if not equals or peer not in PEERS or not os.access(path, os.X_OK):
            parser.error(f"--python is {entry!r}; give PEER=PATH with a peer of {','.join(PEERS)} and its interpreter.")
        pythons[peer] = os.path.abspath(path)
    given.python = pythons
    return given


def make_rows(peers: list[str], dtypes: list[str]) -> list[Row]:
    """A row for each peer and dtype."""
    return [Row(peer, dtype) for peer in peers for dtype in dtypes]


def leave_out(rows: list[Row], work: Workload, machine: dict[str, Any]) -> None:
    """Skips a dtype in which a peer's library is 20 times slower than in float32, unless the workload is small."""
    rates = machine["gflops_by_library"]
    for row in rows:
        library = LIBRARY[row.peer]
        fast, slow = rates["float32"].get(library), rates[row.dtype].get(library)
        if not work.together and fast and slow < fast / 20:
            row.skipped = f"{library} reaches {slow:.1f} GFLOP/s in {row.dtype} here, {fast:.0f} in float32"


def weights_folder(work: Workload, cache: Path | None, python: str, task: Task) -> str:
    """The folder with the workload's weights; writes them if it does not exist."""
    shape = dataclasses.replace(work, new_tokens=0)
    folder = (cache or Path(tempfile.gettempdir()) / "grpojax-compare").absolute() / work.name
    if not (folder / "config.json").is_file():
        say(f"writing weights to {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        run_module(python, ["peers.weights", json.dumps(dataclasses.asdict(shape)), str(folder)], task)
    return str(folder)


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    work = WORKLOADS[given.workload]
    work = dataclasses.replace(work, new_tokens=given.new_tokens or work.new_tokens)
    cores = len(os.sched_getaffinity(0))
    task = Task(work, "", "float32", given.device, cores)
    try:
        machine = measure_machine(given.python["ours"], task)
        task = dataclasses.replace(task, folder=weights_folder(work, given.cache, given.python["ours"], task))
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(describe(machine, work), flush=True)
    rows = make_rows(given.peers, given.dtypes)
    leave_out(rows, work, machine)
    running = [row for row in rows if not row.skipped]
    try:
        busy = run_all(running, task, given.python, given.repeats, given.limit) if running else []
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    machine["others_busy_cores"] = busy
    results = report(rows, work, machine)
    print("\n" + table(results))
    if busy:
        print(f"- other programs used up to {max(busy):.2f} cores while all peers were waiting")
    if given.json:
        whole = {"machine": machine, "workload": dataclasses.asdict(work), "results": results}
        given.json.write_text(json.dumps(whole, indent=2) + "\n", "utf-8")
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
