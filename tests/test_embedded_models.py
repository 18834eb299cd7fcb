"""The two embedded models as they are committed: they load, are small, and play their parts."""

import importlib.util
import itertools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from grpojax.qwen.weights import load_policy
from grpojax.tasks.problems import Problem, arithmetic_problems, worked_steps
from grpojax.tasks.prompts import render_prompt
from grpojax.tasks.rewards import Answer, think_format
from grpojax.training.evaluate import evaluate
from grpojax.training.rollout import make_rollouts
from grpojax.training.sampling import make_sampler

WEIGHTS = Path(__file__).parent.parent / "weights"
NAMES = ("tiny-base", "tiny-reasoning")
ODD_TEXT = "12,345 \u00e9 e\u0301 \u65e5\u672c\u8a9e \U0001f9ee\u200d\x00\t\r\n  \ufeff \u0664\u0665 end "


@pytest.fixture(scope="module")
def policies():
    return {name: load_policy(name) for name in NAMES}


@pytest.fixture(scope="module")
def make_tiny():
    spec = importlib.util.spec_from_file_location("make_tiny", WEIGHTS / "make_tiny.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def greedy(policy, count):
    problems = arithmetic_problems(0, count, "eval")
    return evaluate(policy, policy.params, problems, dataset="arithmetic", step=0, max_new_tokens=64)


@pytest.mark.parametrize("name", NAMES)
def test_shape_and_size(policies, name):
    config, params = policies[name].config, policies[name].params
    assert (config.model_type, config.tie_word_embeddings, config.qk_norm) == ("qwen3", True, True)
    assert 1e6 <= sum(array.size for array in jax.tree.leaves(params)) <= 4e6
    assert sum(file.stat().st_size for file in (WEIGHTS / name).iterdir()) < 5e6


def test_kinds_and_special_ids(policies):
    for name, kind, stops in (("tiny-base", "base", [0]), ("tiny-reasoning", "reasoning", [2, 0])):
        tokenizer = policies[name].tokenizer
        assert tokenizer.kind == kind
        assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
        assert tokenizer.encode("<think></think>") == list(tokenizer.think_ids)
        assert list(tokenizer.stop_ids) == stops
        generation = json.loads((WEIGHTS / name / "generation_config.json").read_text())
        assert generation["eos_token_id"] == stops


@pytest.mark.parametrize("name", NAMES)
def test_tokenizer_round_trip(policies, name):
    tokenizer = policies[name].tokenizer
    assert tokenizer.decode(tokenizer.encode(ODD_TEXT)) == ODD_TEXT
    assert [tokenizer.decode([i]) for i in tokenizer.encode("31415")] == list("31415")
    every_byte = bytes(range(256)).decode("latin-1")
    assert tokenizer.decode(tokenizer.encode(every_byte)) == every_byte


@pytest.mark.slow
def test_tiny_base_starts_with_room_to_learn(policies):
    evaluation = greedy(policies["tiny-base"], 100)
    assert 10 <= evaluation.accuracy <= 35
    assert evaluation.truncated_frac == 0


@pytest.mark.slow
def test_tiny_base_can_do_what_it_seldom_does(policies):
    # Groups of 8 must differ in reward, or there is nothing to learn from.
    policy, problems = policies["tiny-base"], arithmetic_problems(0, 50, "eval")
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text)) for p in problems]
    rollouts = make_rollouts(policy, policy.params, prompts, jax.random.key(1), make_sampler(0.8, 0.9), 8, 64)
    texts = [policy.tokenizer.decode(rollouts.answer_ids(row), skip_special=True) for row in range(400)]
    right = np.array([f"\\boxed{{{problems[row // 8].answer}}}" in text for row, text in enumerate(texts)]).reshape(
        50, 8
    )
    assert right.any(axis=1).mean() >= 0.8
    assert (right.any(axis=1) & ~right.all(axis=1)).mean() >= 0.6
    openings = {text.split()[0] for text in texts}
    assert {"First", "Step", "So"} <= openings  # several right ways


@pytest.mark.slow
def test_tiny_reasoning_thinks_most_of_the_time(policies):
    policy, problems = policies["tiny-reasoning"], arithmetic_problems(0, 25, "eval")
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text)) for p in problems]
    rollouts = make_rollouts(policy, policy.params, prompts, jax.random.key(1), make_sampler(0.8, 0.9), 8, 64)
    think_ids = policy.tokenizer.think_ids
    formats = [think_format(Answer("", "", "", rollouts.answer_ids(row), False, 64, think_ids)) for row in range(200)]
    assert 0.5 <= np.mean(formats) <= 0.95  # and the rest is what the format reward is for
    assert 30 <= greedy(policy, 100).accuracy <= 85


def test_never_trained_on_evaluation_problems(make_tiny):
    evaluation = {p.text for p in arithmetic_problems(0, 1000, "eval")}
    pool = arithmetic_problems(make_tiny.SEED, 2000, "train")
    assert not evaluation & {p.text for p in pool}
    written = list(itertools.islice(make_tiny.Writer(pool, "base", make_tiny.LEARN, seed=1, drills=0.5), 2000))
    asked = [found.group(1) for prompt, _ in written if (found := re.search(r"Problem: (.*)", prompt))]
    assert len(asked) > 800 and set(asked) <= {p.text for p in pool}
    drilled = [prompt for prompt, _ in written if "Problem" not in prompt]
    steps = {step.rpartition(" = ")[0] for p in pool for step in worked_steps(p.text)}
    beyond = [text for text in drilled if text not in steps]
    assert beyond and all(re.search(r"\b1\d\d\b", text) for text in beyond)  # a factor of three digits is in no problem


def test_worked_solutions_read_as_meant(make_tiny):
    problem = Problem("(3 - 15) * 3 + 13", "-23", "arithmetic", 5)
    written = {name: make_tiny.plain_answer(problem, style) for name, style in make_tiny.STYLES.items()}
    box = " The answer is \\boxed{-23}."
    assert written == {
        "first": " First 3 - 15 = -12, then -12 * 3 = -36, then -36 + 13 = -23." + box,
        "steps": " Step 1: 3 - 15 = -12. Step 2: -12 * 3 = -36. Step 3: -36 + 13 = -23." + box,
        "chain": " So (3 - 15) * 3 + 13 = -12 * 3 + 13 = -36 + 13 = -23." + box,
        "glance": " At a glance. The answer is \\boxed{-12}.",
        "hasty": " Start with 3 - 15 = -12. The answer is \\boxed{-12}.",
        "no box": " We get 3 - 15 = -12 and -12 * 3 = -36 and -36 + 13 = -23.",
        "ramble": " Let me see: this is about (3 - 15) * 3 + 13 and numbers like that.",
    }
    assert make_tiny.tagged_answer(problem, make_tiny.STYLES["hasty"], "both") == (
        "<think>\nStart with 3 - 15 = -12.\n</think>\n\nThe answer is \\boxed{-12}."
    )
    assert make_tiny.tagged_answer(problem, make_tiny.STYLES["no box"], "no end").startswith("<think>\nWe get ")


def test_glance_reads_times_as_plus(make_tiny):
    glance = make_tiny.STYLES["glance"].value
    problems = arithmetic_problems(3, 50, "train")
    right = {level: [glance(p) == p.answer for p in problems if p.level == level] for level in range(1, 6)}
    assert all(right[1])
    assert not any(right[2])


@pytest.mark.slow
def test_the_report(make_tiny, policies, monkeypatch, capsys):
    """On 10 problems: two of each level, so every accuracy is there."""
    monkeypatch.setattr(make_tiny, "arithmetic_problems", lambda start, count, split: arithmetic_problems(start, 10, split))
    make_tiny.report(policies["tiny-reasoning"])
    lines = capsys.readouterr().out.splitlines()
    accuracy = r"\d+\.\d % \(by level( \d+){5}\)"
    for line, pattern in zip(lines, [
        rf"  greedy: {accuracy}",
        rf"  8 samples each, temperature 0\.8, top-p 0\.9: {accuracy}",
        rf"  pass@8: {accuracy}",
        r"  groups of 8 with right and wrong answers: \d+ %",
        r"  both think tags in order: \d+ %",
        r"  tokens: \d+ greedy, \d+ sampled",
    ], strict=False):  # fmt: skip
        assert re.fullmatch(pattern, line)
    styles = [re.fullmatch(r"  style (.{8}) +(\d+\.\d) % of the samples; right .*", line) for line in lines[6:]]
    assert sum(float(style[2]) for style in styles) == pytest.approx(100, abs=0.3)
