"""benchmarks/compare.py: what it computes, prints and refuses. Small scripts stand in for the peers."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def path():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def compare():
    return importlib.import_module("compare")


@pytest.fixture
def workload():
    return importlib.import_module("peers.workload")


@pytest.fixture
def small(workload):
    """A shape whose lower bounds can be calculated by hand: 102 weights in the layer, 50 in the head."""
    return workload.Workload(
        "small", vocab_size=25, hidden_size=2, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4,
        intermediate_size=9, prompt_tokens=10, rollouts=2, new_tokens=3,
        together=True, warmup_steps=1, steps_per_round=1, check_rows=2,
    )  # fmt: skip


MACHINE = {"read_gb_s": 1e-7, "gflops": {"float32": 1e-7, "bfloat16": 5e-8}}  # 100 bytes and 100 operations per second


def test_counts_weights(workload, small):
    # Attention: queries and output 2 x 8 each, keys and values 2 x 4 each: 48. MLP: 3 matrices of 2 x 9: 54.
    assert small.layer_params == 48 + 54
    assert small.head_params == 50
    large = workload.WORKLOADS["600m"]
    # Qwen3-0.6B has 596,049,920 parameters, of which 65,536 are norm scales: 28 (2 * 1024 + 2 * 128) + 1024.
    assert large.layer_params + large.head_params == 595_984_384


def test_floor_of_the_rollouts(compare, small):
    # Prefill: 2 (102 * 10 + 50) operations at 100/s = 21.4 s. Each of the 2 further tokens: reading 152 * 4 bytes takes
    # 6.08 s, the products 2 * 152 * 2 = 608 operations the same 6.08 s.
    assert compare.rollout_floor(small, MACHINE, "float32") == pytest.approx(21.4 + 2 * 6.08)
    one = dataclasses.replace(small, rollouts=1)
    assert compare.rollout_floor(one, MACHINE, "float32") == pytest.approx(21.4 + 2 * 6.08)  # reading is the longer part
    assert compare.rollout_floor(one, MACHINE, "bfloat16") == pytest.approx(21.4 + 2 * 3.04)  # half the bytes


def test_floor_of_the_update_counts_the_prompt_once(compare, small):
    # 6 (102 * (10 + 6) + 50 * 6) = 11,592 operations at 100/s; bfloat16 is slower here, so the bound is the same.
    assert compare.update_floor(small, MACHINE, "float32") == pytest.approx(115.92)
    assert compare.update_floor(small, MACHINE, "bfloat16") == pytest.approx(115.92)


def test_prompt_and_reward(workload):
    for work in workload.WORKLOADS.values():
        ids = workload.prompt_ids(work)
        assert len(ids) == work.prompt_tokens == len(workload.prompt_text(work).split())
        assert max(ids) < work.vocab_size - 1
        rows = workload.check_tokens(work)
        assert {len(row) for row in rows} == {work.total_tokens} and len(rows) == work.check_rows
        assert len({tuple(row) for row in rows}) == work.check_rows
    assert workload.even_share([1, 2, 4, 7]) == 0.5


def rows_of(compare):
    fast = compare.Row("ours", "float32", seconds={"step": [2.0, 1.0, 9.0], "rollout": [0.5], "update": [0.25]})
    slow = compare.Row("ours", "bfloat16", seconds={"step": [3.0], "rollout": [0.25], "update": [0.25]})
    book = compare.Row("book", "float32", seconds={"step": [20.0], "rollout": [10.0], "update": [1.0]})
    hf = compare.Row("hf", "float32", seconds={"rollout": [1.0]})
    return [fast, slow, book, hf]


def test_ratios_are_to_the_row_with_the_faster_step(compare, small):
    results = compare.report(rows_of(compare), small, MACHINE)
    assert [r["counts"] for r in results] == [True, False, True, True]
    assert results[0]["step_s"] == 2.0  # the median, not the mean
    assert results[0]["rollout_tok_s"] == 2 * 3 / 0.5
    # Relative to our float32 row, although our bfloat16 row has the faster rollouts.
    assert [results[2][f"{part}_over_ours"] for part in ("step", "rollout", "update")] == [10, 20, 4]
    assert [results[3][f"{part}_over_ours"] for part in ("step", "rollout", "update")] == [None, 2, None]
    assert results[2]["update_floor_share"] == pytest.approx(115.92)


def test_table_leaves_out_failed_and_skipped_rows(compare, small):
    rows = rows_of(compare)
    rows.append(compare.Row("trl", "float32", failed="log-probs differ"))
    rows.append(compare.Row("tunix", "float32", skipped="tunix is not installed: pip install it"))
    lines = compare.table(compare.report(rows, small, MACHINE)).splitlines()
    assert lines[2].startswith("| ours float32 * |") and lines[3].startswith("| ours bfloat16 |")
    assert sum(line.startswith("| ") for line in lines) == 2 + 4
    assert "- trl float32 failed: log-probs differ" in lines
    assert "- tunix float32 skipped: tunix is not installed: pip install it" in lines
    assert "scoring s" not in lines[0]  # an empty column


def test_difference_of_log_probs(compare):
    assert compare.largest_difference([[1.0, 2.0], [3.0, 4.5]], [[1.0, 2.25], [3.0, 4.0]]) == 0.5
    for wrong in ([[1.0, 2.0]], [[1.0], [3.0, 4.0]], [[1.0, float("nan")], [3.0, 4.0]]):
        assert not compare.largest_difference(wrong, [[1.0, 2.0], [3.0, 4.0]]) <= 1e9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peers", "ours,boook"], "--peers is 'ours,boook'; give some of ours,book,hf,trl,tunix, each once."),
        (["--peers", "ours,ours"], "each once"),
        (["--peers", ","], "--peers is ','"),
        (["--dtypes", "float16"], "--dtypes is 'float16'"),
        (["--repeats", "0"], "--repeats is 0; it must be 1 or more."),
        (["--new-tokens", "0"], "--new-tokens is 0"),
        (["--python", "trl=/no/such/python"], "--python is 'trl=/no/such/python'; give PEER=PATH"),
        (["--python", sys.executable], "give PEER=PATH"),
        (["--workload", "7b"], "invalid choice: '7b'"),
    ],
)
def test_bad_arguments_end_with_2(compare, capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        compare.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_peers_are_in_a_fixed_order(compare):
    given = compare.parse(["--peers", "trl,ours", "--python", f"trl={sys.executable}"])
    assert given.peers == ["ours", "trl"] and given.python["trl"] == sys.executable


def test_a_dtype_with_very_slow_products_is_skipped_for_a_large_workload(compare, workload):
    rates = {"float32": {"jax": 150, "torch": 140}, "bfloat16": {"jax": 100, "torch": 0.5}}
    rows = compare.make_rows(["ours", "book"], ["float32", "bfloat16"])
    compare.leave_out(rows, workload.WORKLOADS["tiny"], {"gflops_by_library": rates})
    assert not any(row.skipped for row in rows)
    compare.leave_out(rows, workload.WORKLOADS["600m"], {"gflops_by_library": rates})
    assert [bool(row.skipped) for row in rows] == [False, False, False, True]


FAKE = """
from peers.protocol import Turn, serve

class Fake:
    def __init__(self, task):
        {made}
        print("noise of a library")
        self.work = task.workload
        self.versions = {{"fake": "1"}}

    def logps(self, rows):
        return [[{logp}] * (len(row) - self.work.prompt_tokens) for row in rows]

    def step(self):
        turn = Turn(lengths=[{length}] * self.work.rollouts)
        with turn.time("step"):
            {during}
        return turn

    def moved(self):
        return {moved}
{more}
serve(Fake)
"""


@pytest.fixture
def run(compare, small, tmp_path, monkeypatch):
    """Runs fakes of ours and of another peer, and returns the other's row."""

    def run_with(**parts):
        normal = {"made": "pass", "logp": -1.0, "length": 3, "during": "pass", "moved": 1e-5, "more": ""}
        for name, given in {"ours": {}, "book": parts}.items():
            (tmp_path / f"{name}.py").write_text(FAKE.format(**normal | given))
        monkeypatch.setattr(compare, "peer_command", lambda peer, python: [python, str(tmp_path / f"{peer}.py")])
        monkeypatch.setattr(compare, "others_busy", lambda: 0.0)
        monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS))
        rows = compare.make_rows(["ours", "book"], ["float32"])
        task = compare.Task(small, "", "float32", "cpu", 1)
        compare.run_all(rows, task, dict.fromkeys(compare.PEERS, sys.executable), repeats=2, limit=60)
        assert rows[0].failed is None and len(rows[0].seconds["step"]) == 2
        return rows[1]

    return run_with


def test_a_good_peer_is_timed(run):
    row = run(logp=-1.00005)
    assert row.failed is row.skipped is None
    assert row.logp_difference == pytest.approx(5e-5, rel=1e-3)
    assert len(row.seconds["step"]) == 2 and row.warmup_s > 0 and row.peak_gb > 0


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"logp": -1.001}, "log-probs differ from ours by 0.001 nats, more than 0.0001"),
        ({"logp": 'float("nan")'}, "log-probs differ from ours by nan"),
        ({"length": 2}, "sampled [2, 2] tokens; expected 2 answers of 3"),
        ({"moved": 1e-8}, "the updates moved weights by 1e-08 at most; expected at least 1e-06"),
        ({"during": "raise ValueError('broken')"}, "step: ValueError: broken"),
        ({"made": "raise ValueError('no weights')"}, "start: ValueError: no weights"),
        ({"during": "import os; os._exit(3)"}, "process ended during 'step': "),
        (
            {"during": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"},
            "process ended during 'step': killed by SIGKILL, probably out of memory",
        ),
    ],
)
def test_a_bad_peer_is_reported_and_not_timed(run, parts, said):
    row = run(**parts)
    assert said in row.failed
    assert row.seconds == {}


def test_a_peer_that_does_not_answer_is_reported(compare, small):
    task = compare.Task(small, "", "float32", "cpu", 1)
    process = compare.Process([sys.executable, "-c", "import time; time.sleep(600)"], task, limit=0.1)
    with pytest.raises(compare.PeerError, match=r"^no answer to 'step' within 0.1 s \(--limit\)$"):
        process.ask("step")
    process.close()
    assert process.process.returncode == -9


@pytest.mark.parametrize("where", ["made", "more"])  # in the constructor, and when the file is imported
def test_a_missing_peer_is_skipped(run, where):
    row = run(**{where: "import no_such_package.part"})
    assert row.skipped == "no_such_package is not installed: pip install reasoning-from-scratch"
    assert row.failed is None


TRAINER = """
    def train(self, pause):
        for _ in range({steps}):
            with self.turn.time("update"):
                self.turn.lengths = [3] * self.work.rollouts
            pause()
"""


def test_a_trainer_with_its_own_loop_stops_after_each_step(run):
    row = run(more=TRAINER.format(steps=99))
    assert row.failed is None
    assert len(row.seconds["step"]) == len(row.seconds["update"]) == 2


def test_a_trainer_that_ends_is_reported(run):
    row = run(more=TRAINER.format(steps=2))
    assert row.failed == "step: RuntimeError: the trainer ended by itself"


def test_results_are_json(compare, small):
    json.loads(json.dumps(compare.report(rows_of(compare), small, MACHINE), allow_nan=False))
