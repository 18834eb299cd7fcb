"""The commands beside training, from the words typed to what is printed and written."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grpojax import cli
from grpojax.cli import main
from grpojax.describe import explain
from grpojax.qwen.weights import load_policy
from grpojax.records import METRIC_COLUMNS
from grpojax.training import evaluate, rollout
from grpojax.variants import VARIANTS

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """The commands work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(capsys):
    """Runs `grpojax` with these words; gives its exit code and what it printed on stdout and stderr."""

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def sums():
    """Two problems and a prompt around them."""
    Path("sums.jsonl").write_text('{"problem": "7 + 7", "answer": "14"}\n{"problem": "6 + 6", "answer": "12"}\n')
    Path("prompt.txt").write_text("{problem} =")
    return "sums.jsonl"


def tokens():
    return np.arange(8).reshape(1, 8)


# --- help ---


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    for command in ("train", "eval", "sample", "plot", "variants", "export", "convert"):
        assert re.search(rf"^ +{command} +\w", out, re.MULTILINE), command


@pytest.mark.parametrize("command", ["train", "eval", "sample", "plot", "variants", "export", "convert"])
def test_each_command_has_its_help(command, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"usage: grpojax {command}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "grpojax", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: grpojax")


# --- variants ---


def test_variants_lists_each_row_once(call):
    code, out, err = call("variants")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(VARIANTS)
    for line, row in zip(out.splitlines(), VARIANTS.values(), strict=True):
        assert row.recipe.summary in line
        assert f"[{row.recipe.source}]" in line


def test_explain_prints_a_variant(call):
    assert call("variants", "--explain", "dapo") == (0, explain("dapo") + "\n", "")


# --- train ---


@pytest.mark.slow
def test_train_is_run_py(call, sums, tiny_folder, monkeypatch):
    monkeypatch.setattr("grpojax.runner.plot_runs", lambda runs, out: [])
    words = (
        "train", "--variant", "clipped", "--model", tiny_folder, "--dataset", sums, "--prompt_template", "prompt.txt",
        "--steps", 1, "--prompts_per_step", 2, "--num_rollouts", 4, "--max_new_tokens", 8, "--temperature", 1, "--top-p", 1,
        "--eval_on_checkpoint", 2, "--eval-dataset", "held.jsonl", "--out", "run",
    )  # fmt: skip
    Path("held.jsonl").write_text(Path(sums).read_text().replace("7 + 7", "7 + 6"))
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert "step 1/1" in out
    assert Path("run/checkpoints/1").is_dir()
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: run already contains a run")

    # A run folder stands for its newest checkpoint in the other commands.
    assert call("export", "--model", "run", "exported")[:2] == (0, "exported\n")
    trained, exported = load_policy("run/checkpoints/1"), load_policy("exported")
    np.testing.assert_array_equal(trained.apply(trained.params, tokens()), exported.apply(exported.params, tokens()))
    evaluated = call(
        "eval", "--checkpoint", "run", "--dataset", "held.jsonl", "--prompt-template", "prompt.txt", "--max-new-tokens", 8
    )
    summary = json.loads(Path("run/evals/summary.jsonl").read_text().splitlines()[-1])
    assert summary["step"] == 1
    assert f"   {summary['correct']} of 2\n" in evaluated[1]
    # The evaluations of a run are compared as they stand there.
    code, out, err = call("eval", "--compare", "run/evals/step-00000.jsonl", "run/evals/step-00001.jsonl")
    assert (code, err) == (0, "")
    assert "of 2 problems B is better on" in out


# --- eval ---


@pytest.fixture
def evaluate_with(call, sums, tiny_folder, monkeypatch):
    """Evaluates the tiny model on the two problems, with more words; a slow machine says no more than a fast one."""
    monkeypatch.setattr(cli, "PROGRESS_SECONDS", math.inf)
    words = ("--model", tiny_folder, "--dataset", sums, "--prompt-template", "prompt.txt", "--max-new-tokens", 8)
    return lambda *more: call("eval", *words, *more)


SAMPLED = ("--samples", 4, "--temperature", 1, "--top-p", 0.9, "--seed", 7)


def test_eval_prints_the_report_and_writes_the_rows(evaluate_with):
    code, out, err = evaluate_with("--out", "new/rows.jsonl")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith(" on sums.jsonl: 2 problems, a greedy answer of up to 8 tokens for each")
    assert lines[2] == "accuracy, boxed                   0.0     0.0 to  65.8   0 of 2"  # z^2 / (2 + z^2) = 0.658
    assert lines[3].startswith("accuracy, boxed-or-last-number  ")
    assert lines[4].endswith("100.0 % without an answer in a box")
    assert re.fullmatch(r"\d+\.\d s", lines[5])
    rows = [json.loads(line) for line in Path("new/rows.jsonl").read_text().splitlines()]
    assert [(row["index"], row["problem"], row["gold"], row["correct"]) for row in rows] == [
        (0, "7 + 7", "14", False),
        (1, "6 + 6", "12", False),
    ]
    settings = json.loads(Path("new/rows.settings.json").read_text())
    assert (settings["problems"], settings["max_new_tokens"], settings["template"]) == (2, 8, "{problem} =")
    assert (settings["samples"], settings["temperature"], settings["seed"]) == (1, 0.0, None)


def test_eval_says_how_far_it_is(evaluate_with, monkeypatch):
    monkeypatch.setattr(cli, "PROGRESS_SECONDS", 0)
    code, out, err = evaluate_with("--batch-size", 1)
    assert code == 0
    assert re.fullmatch(r"1 of 2 problems after \d+ s\n2 of 2 problems after \d+ s\n", err)


def test_eval_limit(evaluate_with):
    assert "0 of 1\n" in evaluate_with("--limit", 1)[1]


def test_eval_without_out_writes_nothing(evaluate_with):
    before = os.listdir()
    evaluate_with()
    assert os.listdir() == before


def test_eval_with_samples(evaluate_with):
    code, out, err = evaluate_with(*SAMPLED, "--out", "rows.jsonl")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].endswith("2 problems, 4 answers (temperature 1.0, top-p 0.9, seed 7) of up to 8 tokens for each")
    assert lines[2].endswith("0 of 8 answers, 2 problems")
    assert [line.split("  ")[0] for line in lines[4:7]] == ["pass@2", "pass@4", "majority of 4"]
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert [len(row["text"]) for row in rows] == [4, 4]
    assert len({text for row in rows for text in row["text"]}) > 4


def test_eval_extract_puts_that_accuracy_first(evaluate_with):
    lines = evaluate_with("--extract", "boxed-or-last-number")[1].splitlines()
    assert lines[2].startswith("accuracy, boxed-or-last-number")
    assert lines[3].startswith("accuracy, boxed ")


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 8])
def test_eval_gives_the_same_rows_whatever_the_batch(evaluate_with, batch_size):
    for kind, more in (("greedy", ()), ("sampled", SAMPLED)):
        evaluate_with(*more, "--out", f"{kind}.jsonl")
        evaluate_with(*more, "--out", f"{kind}-{batch_size}.jsonl", "--batch-size", batch_size)
        assert Path(f"{kind}.jsonl").read_bytes() == Path(f"{kind}-{batch_size}.jsonl").read_bytes()


@pytest.mark.parametrize("more", [(), SAMPLED])
@pytest.mark.parametrize("torn", [b"", b'{"index": 1, "prob'])
def test_an_interrupted_eval_goes_on_to_the_same_file(evaluate_with, monkeypatch, more, torn):
    evaluate_with(*more, "--batch-size", 1, "--out", "unbroken.jsonl")
    real, asked = evaluate.stream_answers, []

    def interrupted(*args, skip):
        """After the first answer, where none is there yet."""
        for group in real(*args, skip=skip):
            if asked and not skip:
                raise KeyboardInterrupt
            asked.extend(answered.prompt for answered in group)
            yield group

    monkeypatch.setattr(evaluate, "stream_answers", interrupted)
    code, out, err = evaluate_with(*more, "--batch-size", 1, "--out", "rows.jsonl")
    assert code == 130
    assert err == "1 of 2 problems are in rows.jsonl; the same command continues\nerror: interrupted\n"
    assert "accuracy" not in out
    rows = Path("rows.jsonl")
    assert rows.read_bytes() == Path("unbroken.jsonl").read_bytes().splitlines(keepends=True)[asked[0]]
    rows.write_bytes(rows.read_bytes() + torn)

    # An unfinished file is not compared.
    refused = evaluate_with("--compare", "unbroken.jsonl", "rows.jsonl")
    assert "rows.jsonl is not finished: it has 1 of 2 problems" in refused[2]
    code, out, err = evaluate_with(*more, "--batch-size", 1, "--out", "rows.jsonl")
    assert (code, err) == (0, "")
    assert "1 of them are already in rows.jsonl\n" in out
    assert sorted(asked) == [0, 1]  # none was answered twice
    assert rows.read_bytes() == Path("unbroken.jsonl").read_bytes()

    # Once more: all is there, nothing is asked, the report is the same.
    again = evaluate_with(*more, "--batch-size", 1, "--out", "rows.jsonl")
    assert sorted(asked) == [0, 1]
    assert again[1].splitlines()[2:-1] == out.splitlines()[2:-1]
    assert rows.read_bytes() == Path("unbroken.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--max-new-tokens", 9), r"max_new_tokens \(8 -> 9\)"),
        (("--limit", 1), r"problems \(2 -> 1\), problems_sha256 \("),
        (SAMPLED, r"samples \(1 -> 4\), temperature \(0\.0 -> 1\.0\), top_p \(1\.0 -> 0\.9\), seed \(null -> 7\)"),
        (("--model", "tiny-base"), r"model \(\S+ -> \S+tiny-base\"\)"),
        (("--dtype", "bfloat16"), r"dtype \(\"float32\" -> \"bfloat16\"\)"),
    ],
)
def test_eval_goes_on_with_the_same_settings_only(evaluate_with, more, message):
    evaluate_with("--out", "rows.jsonl")
    before = Path("rows.jsonl").read_bytes(), Path("rows.settings.json").read_bytes()
    code, out, err = evaluate_with("--out", "rows.jsonl", *more)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"error: rows\.jsonl was started with other settings: {message}[^\n]*; use the same [^\n]+\n", err), err
    assert (Path("rows.jsonl").read_bytes(), Path("rows.settings.json").read_bytes()) == before
    # What changes no answer may change.
    harmless = ("--seed", 1, "--batch-size", 1, "--extract", "boxed-or-last-number")
    assert evaluate_with("--out", "rows.jsonl", *harmless)[0] == 0


def test_eval_overwrites_no_file_of_another_kind(evaluate_with):
    Path("rows.jsonl").write_text("mine")
    code, out, err = evaluate_with("--out", "rows.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith("error: rows.jsonl exists already, and there is no rows.settings.json with its settings")
    assert Path("rows.jsonl").read_text() == "mine"


def test_eval_compares_two_evaluations(evaluate_with, call):
    evaluate_with("--out", "a.jsonl")
    rows = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    Path("b.jsonl").write_text("".join(json.dumps(row | {"correct": True}) + "\n" for row in rows))
    code, out, err = call("eval", "--compare", "a.jsonl", "b.jsonl")
    assert (code, err) == (0, "")
    assert "of 2 problems B is better on 2, A on 0" in out
    assert "p = 0.50 (McNemar's exact test)" in out
    assert call("eval", "--compare", "a.jsonl", "none.jsonl")[::2] == (
        2,
        "error: cannot read none.jsonl (No such file or directory); give a file that `grpojax eval --out` wrote, or "
        "one of a run's evals/step-*.jsonl.\n",
    )


# --- sample ---


def test_sample_prints_as_many_answers_as_asked(call, tiny_folder, tiny_policy, monkeypatch):
    seen = []

    def answered(policy, params, prompts, key, sampler, count, max_new_tokens):
        seen.append((policy.tokenizer.decode(prompts[0]), sampler, count, max_new_tokens))
        answer, zeros = policy.tokenizer.encode("9<|im_end|>"), np.zeros((count, 8))
        return rollout.Rollouts(
            np.array(prompts), np.array([len(prompts[0])]), np.tile(answer, (count, 1)), np.full(count, len(answer)),
            np.zeros(count, bool), zeros, zeros,
        )  # fmt: skip

    monkeypatch.setattr(rollout, "make_rollouts", answered)
    code, out, err = call(
        "sample", "4 + 5", "--model", tiny_folder, "--count", 3, "--max-new-tokens", 8, "--temperature", 0.5
    )
    assert (code, out, err) == (0, "9\n9\n9\n", "")  # one line each, special tokens left out
    prompt, sampler, count, budget = seen[0]
    assert "4 + 5" in prompt
    assert "\\boxed{}" in prompt
    assert (sampler.temperature, sampler.top_p, sampler.top_k, count, budget) == (0.5, None, None, 3, 8)
    call("sample", "4 + 5", "--raw", "--model", tiny_folder, "--max-new-tokens", 8)
    assert seen[1][0] == "4 + 5"
    assert seen[1][1].temperature is None  # greedy


def test_greedy_samples_do_not_depend_on_the_seed(call, tiny_folder):
    words = ("sample", "4 + 5 =", "--raw", "--model", tiny_folder, "--max-new-tokens", 8)
    first, second = (call(*words, "--seed", seed) for seed in (1, 2))
    assert first == second
    assert first[0] == 0


# --- plot ---


def test_plot_writes_into_the_run(call):
    rows = [f"{step},2,0.5" + "," * (len(METRIC_COLUMNS) - 3) for step in (1, 2)]
    Path("run").mkdir()
    Path("run/metrics.csv").write_text("\n".join([",".join(METRIC_COLUMNS), *rows]) + "\n")
    code, out, err = call("plot", "run")
    assert (code, err) == (0, "")
    written = [Path(line) for line in out.splitlines()]
    assert written
    assert all(path.is_file() and path.parent == Path("run/plots") for path in written)
    code, out, err = call("plot", "run/metrics.csv", "--out", "pictures")
    assert code == 0
    assert all(Path(line).parent == Path("pictures") for line in out.splitlines())


# --- export and convert ---


def test_there_and_back_keeps_every_bit(call, tiny_folder, tiny_policy):
    assert call("convert", tiny_folder, "orbax") == (0, "orbax\n", "")
    assert Path("orbax/params").is_dir()
    assert call("convert", "orbax", "back", "--to", "huggingface") == (0, "back\n", "")
    assert Path("back/model.safetensors").read_bytes() == (tiny_folder / "model.safetensors").read_bytes()
    logits = tiny_policy.apply(tiny_policy.params, tokens())
    for name in ("orbax", "back"):
        policy = load_policy(name)
        np.testing.assert_array_equal(policy.apply(policy.params, tokens()), logits)
        assert policy.tokenizer.vocab == tiny_policy.tokenizer.vocab


def test_export_in_another_dtype(call, tiny_folder):
    assert call("export", "--model", tiny_folder, "--dtype", "bfloat16", "small")[0] == 0
    assert json.loads(Path("small/config.json").read_text())["torch_dtype"] == "bfloat16"


# --- what is refused ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"the following arguments are required: COMMAND; see grpojax --help\."),
        (["evl"], r"argument COMMAND: invalid choice: 'evl' \(choose from .*eval"),
        (["variants", "--explain", "cliped"], r"unknown variant 'cliped'; choose one of .* Did you mean 'clipped'\?"),
        (["variants", "--explane", "kl"], r"unknown argument '--explane'; .* Did you mean '--explain'\?"),
        (["train", "--steps", "0"], r"steps is 0; it must be a whole number, 1 or more\."),
        (["train", "--num-rolouts", "3"], r"unknown argument '--num-rolouts'; .* Did you mean '--num-rollouts'\?"),
        (
            ["train", "--seed", "99999999999999999999"],
            r"seed is 99999999999999999999; it must be a whole number from 0 to 4294967295\.",
        ),
        (["eval", "--dataset", "gsm9k"], r"unknown data set 'gsm9k'; .* Did you mean 'gsm8k'\?"),
        (["eval", "--limit", "0"], r"limit is 0; it must be a whole number, 1 or more\."),
        (["eval", "--limit", "few"], r"argument --limit: invalid int value: 'few'"),
        (["eval", "--model", "tiny-bas"], r"there is no model 'tiny-bas'; .* Did you mean 'tiny-base'\?"),
        (["eval", "--max-new-tokens", "0"], r"max_new_tokens is 0; it must be a whole number, 1 or more\."),
        (["eval", "--max-new-tokens", "600"], r"a prompt of \d+ tokens and 600 new ones exceed the model's context"),
        (["eval", "--samples", "0"], r"samples is 0; it must be a whole number, 1 or more\."),
        (["eval", "--batch-size", "0"], r"batch_size is 0; it must be a whole number, 1 or more\."),
        (["eval", "--samples", "4"], r"4 greedy answers to a problem are the same; add a --temperature such as 0"),
        (["eval", "--top-p", "0.9"], r"top_p and top_k do nothing to greedy answers; leave them out"),
        (["eval", "--top-k", "5"], r"top_p and top_k do nothing to greedy answers; leave them out"),
        (["eval", "--temperature", "-1"], r"temperature is -1\.0; it must be a finite number, 0 or more"),
        (["eval", "--seed", "-1"], r"seed is -1; it must be a whole number from 0 to 4294967295\."),
        (["eval", "--extract", "number"], r"argument --extract: invalid choice: 'number' \(choose from"),
        (["eval", "--compare", "a.jsonl"], r"argument --compare: expected 2 arguments"),
        (["eval", "--compare", "a.jsonl", "b.jsonl"], r"cannot read a\.jsonl \(No such file or directory\); give a"),
        (["eval", "--dtype", "float64"], r"argument --dtype: invalid choice: 'float64' \(choose from"),
        (["sample"], r"the following arguments are required: question; see grpojax sample --help\."),
        (["sample", ""], r"the question is empty; write it between quotes\."),
        (["sample", "1 + 1", "--max-new-tokens", "-3"], r"max_new_tokens is -3; it must be a whole number, 1 or more\."),
        (["sample", "1 + 1", "--count", "0"], r"count is 0; it must be a whole number, 1 or more\."),
        (["sample", "1 + 1", "--seed", "-1"], r"seed is -1; it must be a whole number from 0 to 4294967295\."),
        (["sample", "1 + 1", "--top-p", "2"], r"top_p is 2\.0; it must be a finite number above 0 and at most 1"),
        (["sample", "1 + 1", "--temperature", "-1"], r"temperature is -1\.0; it must be a finite number, 0 or more"),
        (["sample", "1 + 1", "--prompt-template", "none"], r"cannot read the prompt template none"),
        (["plot"], r"the following arguments are required: RUN; see grpojax plot --help\."),
        (["plot", "nowhere"], r"nowhere does not exist; give a run folder or a metrics csv file"),
        (["plot", "."], r"\. is not a run folder \(it has no metrics\.csv\)"),
        (["export", "--model", "tiny-bas", "new"], r"there is no model 'tiny-bas'"),
        (["convert", "nowhere", "new"], r"there is no model 'nowhere'"),
        (["convert", "nowhere", "new", "--to", "torch"], r"argument --to: invalid choice: 'torch' \(choose from"),
    ],
)
def test_refused_in_one_line_with_nothing_written(words, message, call):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert re.match(f"error: {message}", err)
    assert os.listdir() == []


@pytest.mark.parametrize("command", [["export", "--model"], ["convert"]])
def test_nothing_is_overwritten(command, call, tiny_folder):
    Path("taken").mkdir()
    Path("taken/note").write_text("mine")
    code, out, err = call(*command, tiny_folder, "taken")
    assert (code, out, err) == (2, "", "error: taken already exists; name a new folder, because nothing is overwritten.\n")
    assert os.listdir() == ["taken"]
    assert os.listdir("taken") == ["note"]


def test_a_damaged_model_is_one_line(call, tiny_folder):
    Path("broken").mkdir()
    for path in tiny_folder.iterdir():
        Path("broken", path.name).write_bytes(
            path.read_bytes()[: path.stat().st_size // (2 if path.suffix == ".safetensors" else 1)]
        )
    code, out, err = call("export", "--model", "broken", "new")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: broken/model\.safetensors is damaged or incomplete [^\n]+\n", err)
    assert not Path("new").exists()
