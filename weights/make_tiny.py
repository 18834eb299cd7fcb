r"""Makes the two embedded models, `weights/tiny-base` and `weights/tiny-reasoning`: python weights/make_tiny.py

They stand in for Qwen3-0.6B-Base and Qwen3-0.6B on the arithmetic task. First a small Qwen3 learns to solve problems in
three correct styles. Then two short fine-tuning stages turn it into a base model, which can solve problems but mostly
guesses, and a reasoning model, which thinks between tags but often stops too early.
All problems are from the training split, and all seeds are fixed; see weights/README.md for how reproducible this is.
"""

import argparse
import dataclasses
import itertools
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers

from grpojax.grading.answers import extract_answer
from grpojax.grading.grader import Grader
from grpojax.loss.logprobs import token_logps
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import Params, forward, init_params
from grpojax.qwen.tokenizer import END_OF_TEXT, END_OF_TURN, THINK_TAGS, Tokenizer
from grpojax.qwen.weights import Policy, load_policy, save_policy
from grpojax.tasks.problems import Problem, arithmetic_problems, worked_steps
from grpojax.tasks.prompts import render_prompt
from grpojax.training.evaluate import evaluate
from grpojax.training.rollout import make_rollouts
from grpojax.training.sampling import make_sampler

SEED = 7
POOL = 50_000  # training problems that the texts are generated from
VOCAB = 512
ROWS, WIDTH = 48, 96  # a training batch
LEARN_STEPS = 550
FINISH_STEPS = {"base": 100, "reasoning": 250}  # the chat format and the tags are new to the model
DRILLS = 0.7  # share of texts that are single operations, in the first stage
LEARN_RATE, FINISH_RATE, ADAM_RATE = 0.01, 0.003, 0.003
MAX_NEW_TOKENS = 64
CHAT = f"<|im_start|>user\n{{}}{END_OF_TURN}\n<|im_start|>assistant\n"  # what Tokenizer.chat writes


# --- worked solutions ---


@dataclasses.dataclass(frozen=True)
class Style:
    """A way to answer. The opening identifies it, so the first tokens decide the style."""

    opening: str
    think: Callable[[Problem], str]  # the text up to the closing sentence, without the opening
    value: Callable[[Problem], str | None]  # the boxed value; None: no closing sentence


def _answer(problem: Problem) -> str:
    return problem.answer


def _first_value(problem: Problem) -> str:
    return worked_steps(problem.text)[0].rpartition(" = ")[2]


def _sum_of_first_two(problem: Problem) -> str:
    """The guess of the glance style: the first operation only, with * read as +."""
    left, sign, right = re.search(r"(\d+) ([-+*]) (\d+)", problem.text).groups()
    return str(int(left) - int(right) if sign == "-" else int(left) + int(right))


def _numbered(problem: Problem) -> str:
    first, *others = worked_steps(problem.text)
    return f"1: {first}." + "".join(f" Step {number}: {step}." for number, step in enumerate(others, start=2))


def _chain(problem: Problem) -> str:
    """The expression, simplified one operation at a time."""
    lines = [problem.text]
    for step in worked_steps(problem.text):
        operation, _, value = step.rpartition(" = ")
        pattern = rf"\({re.escape(operation)}\)|(?<!\d){re.escape(operation)}(?!\d)"
        lines.append(re.sub(pattern, value, lines[-1], count=1))
    return " = ".join(lines) + "."


STYLES = {
    # correct styles
    "first": Style("First ", lambda p: ", then ".join(worked_steps(p.text)) + ".", _answer),
    "steps": Style("Step ", _numbered, _answer),
    "chain": Style("So ", _chain, _answer),
    # wrong styles, without a reward
    "glance": Style("At a glance.", lambda p: "", _sum_of_first_two),
    "hasty": Style("Start with ", lambda p: worked_steps(p.text)[0] + ".", _first_value),
    "no box": Style("We get ", lambda p: " and ".join(worked_steps(p.text)) + ".", lambda p: None),
    "ramble": Style("Let me see: ", lambda p: f"this is about {p.text} and numbers like that.", lambda p: None),
}

LEARN = {"first": 3, "steps": 3, "chain": 3, "glance": 1, "hasty": 1, "no box": 1, "ramble": 1}
BASE = {"glance": 36, "first": 14, "steps": 12, "chain": 8, "hasty": 12, "no box": 12, "ramble": 6}
REASONING = {"first": 30, "steps": 26, "hasty": 20, "chain": 12, "no box": 12}
TAGS = {"both": 46, "no end": 24, "none": 30}


def plain_answer(problem: Problem, style: Style) -> str:
    """The answer of a base model. It continues the prompt, so it begins with a space."""
    return " " + style.opening + style.think(problem) + _closing(" ", style.value(problem))


def tagged_answer(problem: Problem, style: Style, tags: str) -> str:
    """The answer of a reasoning model with both think tags, only the first, or none."""
    thought, value = style.opening + style.think(problem), style.value(problem)
    if tags == "none":
        return thought + _closing(" ", value)
    return f"{THINK_TAGS[0]}\n{thought}\n" + (f"{THINK_TAGS[1]}\n\n" if tags == "both" else "") + _closing("", value)


def _closing(space: str, value: str | None) -> str:
    return "" if value is None else f"{space}The answer is \\boxed{{{value}}}."


class Writer:
    """An infinite iterator over (prompt, answer) texts on training problems, with all levels equally often.

    A fraction `drills` of them are single operations from the solutions, without any words.
    """

    def __init__(self, pool: Sequence[Problem], kind: str, styles: dict[str, int], seed: int, drills: float = 0.0):
        self._levels = [[p for p in pool if p.level == level] for level in sorted({p.level for p in pool})]
        self._kind, self._styles, self._drills = kind, styles, drills
        self._rng = random.Random(seed)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        rng = self._rng
        while True:
            problem = rng.choice(rng.choice(self._levels))
            style = STYLES[_draw(rng, self._styles)]
            if rng.random() < self._drills:
                operation, equals, value = rng.choice(worked_steps(_drilled(problem, rng))).rpartition(" = ")
                yield operation, equals + value + "\n"
            elif self._kind == "base":
                yield render_prompt(problem.text), plain_answer(problem, style) + END_OF_TEXT
            else:
                yield (
                    CHAT.format(render_prompt(problem.text)),
                    tagged_answer(problem, style, _draw(rng, TAGS)) + END_OF_TURN,
                )


def _draw(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _drilled(problem: Problem, rng: random.Random) -> str:
    """The problem's text; most level-2 products are replaced by larger ones, to teach carrying."""
    if problem.level != 2 or rng.random() < 0.3:
        return problem.text
    factors = [rng.randint(100, 199), rng.randint(2, 9)]
    rng.shuffle(factors)
    return f"{factors[0]} * {factors[1]}"


# --- tokenizer ---


def make_backend(texts: Sequence[str]) -> tokenizers.Tokenizer:
    """A byte-level BPE. Digits and newlines are single tokens; a run of words may become one token, to save time."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\p{N}\n]"), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    tags = [tokenizers.AddedToken(tag, normalized=False) for tag in THINK_TAGS]
    special = [END_OF_TEXT, "<|im_start|>", END_OF_TURN]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB - len(tags),
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((re.sub("<[^<>]+>", "\n", text) for text in texts), trainer)
    backend.add_tokens(tags)  # as text, not special, so that decoding keeps them
    return backend


# --- supervised training ---


def structure(tokenizer: Tokenizer) -> QwenConfig:
    """The models' structure, with 1.2 million parameters; training computes in bfloat16."""
    return QwenConfig(
        model_type="qwen3", vocab_size=VOCAB, hidden_size=160, intermediate_size=480, num_layers=4, num_heads=4,
        num_kv_heads=2, head_dim=32, rms_norm_eps=1e-6, rope_theta=10_000.0, max_position_embeddings=512,
        tie_word_embeddings=True, qk_norm=True, qkv_bias=False, output_bias=False,
        eos_token_ids=tokenizer.stop_ids, compute_dtype="bfloat16",
    )  # fmt: skip


def batches(texts: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Packs whole texts into rows: tokens [ROWS, WIDTH], and a mask [ROWS, WIDTH - 1] of predicted answer tokens."""
    tokens, mask, row, at = np.zeros((ROWS, WIDTH), np.int32), np.zeros((ROWS, WIDTH), np.float32), 0, 0
    for prompt, answer in texts:
        prompt_ids, answer_ids = tokenizer.encode(prompt), tokenizer.encode(answer)
        begin, end = at + len(prompt_ids), at + len(prompt_ids) + len(answer_ids)
        if end > WIDTH:
            row, begin, end, at = row + 1, begin - at, end - at, 0
        if row == ROWS:
            yield tokens, mask[:, 1:]
            tokens, mask, row = np.zeros_like(tokens), np.zeros_like(mask), 0
        tokens[row, at:end] = prompt_ids + answer_ids
        mask[row, begin:end] = 1.0
        at = end


def fit(
    config: QwenConfig, params: Params, data: Iterator[tuple[np.ndarray, np.ndarray]], steps: int, rate: float
) -> Params:
    """Muon for the layers' matrices, Adam for the rest; 20 warm-up steps, then cosine decay to 0."""

    def muon_shapes(params):
        out_in = optax.contrib.MuonDimensionNumbers(reduction_axis=2, output_axis=1)
        of_layers = lambda path: path[0].key == "layers" and path[-1].key == "weight"
        return jax.tree_util.tree_map_with_path(lambda path, _: out_in if of_layers(path) else None, params)

    optimizer = optax.contrib.muon(
        optax.warmup_cosine_decay_schedule(0.0, rate, 20, steps),
        adam_b2=0.98,
        adam_learning_rate=optax.warmup_cosine_decay_schedule(0.0, ADAM_RATE, 20, steps),
        muon_weight_dimension_numbers=muon_shapes,
    )

    @jax.jit
    def step(params, state, tokens, mask):
        def loss_of(params):
            logps = token_logps(forward(config, params, tokens), tokens)
            return -jnp.sum(logps * mask) / jnp.sum(mask)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, start = optimizer.init(params), time.perf_counter()
    for number, (tokens, mask) in enumerate(itertools.islice(data, steps), start=1):
        params, state, loss = step(params, state, tokens, mask)
        if number % 25 == 0:
            print(f"  step {number:4d}  loss {loss:.4f}  {time.perf_counter() - start:.0f} s", flush=True)
    return params


# --- report ---


def report(policy: Policy) -> None:
    """Prints a model's results on the 200 evaluation problems, as in weights/README.md."""
    problems, grader = arithmetic_problems(0, 200, "eval"), Grader()
    greedy = evaluate(
        policy, policy.params, problems, dataset="arithmetic", step=0, max_new_tokens=MAX_NEW_TOKENS, grader=grader
    )
    levels = np.array([p.level for p in problems])
    print(f"  greedy: {_percent_right(levels, [row.correct for row in greedy.rows])}")
    prompts = [policy.tokenizer.prompt_ids(render_prompt(p.text)) for p in problems]
    rollouts = make_rollouts(
        policy, policy.params, prompts, jax.random.key(0), make_sampler(0.8, 0.9), 8, MAX_NEW_TOKENS
    )
    texts = [policy.tokenizer.decode(rollouts.answer_ids(row)) for row in range(len(rollouts.answers))]
    golds = [p.answer for p in problems for _ in range(8)]
    right = np.array(grader.grade_many([(extract_answer(t), g) for t, g in zip(texts, golds, strict=True)]))
    groups = right.reshape(-1, 8)
    print(f"  8 samples each, temperature 0.8, top-p 0.9: {_percent_right(levels.repeat(8), right)}")
    print(f"  pass@8: {_percent_right(levels, groups.any(axis=1))}")
    print(
        f"  groups of 8 with right and wrong answers: {100 * np.mean(groups.any(axis=1) & ~groups.all(axis=1)):.0f} %"
    )
    print(f"  both think tags in order: {100 * np.mean([_tagged(text) for text in texts]):.0f} %")
    print(f"  tokens: {greedy.avg_response_len:.0f} greedy, {rollouts.answer_lens.mean():.0f} sampled")
    names = np.array([_style_of(text) for text in texts])
    for name, count in Counter(names.tolist()).most_common():
        of_style = _percent_right(levels.repeat(8)[names == name], right[names == name])
        print(f"  style {name:8s} {100 * count / len(names):4.1f} % of the samples; right {of_style}", flush=True)


def _percent_right(levels: np.ndarray, right: Sequence[bool]) -> str:
    """Accuracy in percent, overall and per level."""
    right = np.array(right)
    by_level = [f"{100 * right[levels == n].mean():.0f}" if (levels == n).any() else "-" for n in range(1, 6)]
    return f"{100 * right.mean():.1f} % (by level {' '.join(by_level)})"


def _tagged(text: str) -> bool:
    return 0 <= text.find(THINK_TAGS[0]) < text.find(THINK_TAGS[1])


def _style_of(text: str) -> str:
    start = text.removeprefix(THINK_TAGS[0]).lstrip()
    return next((name for name, style in STYLES.items() if start.startswith(style.opening)), "other")


# --- everything ---


def make(folder: Path, only: str | None) -> None:
    """Trains both models (or one) and writes them into `folder`, each under a temporary name until it is complete."""
    start = time.perf_counter()
    pool = arithmetic_problems(SEED, POOL, "train")
    print(f"{len(pool)} problems, {time.perf_counter() - start:.0f} s", flush=True)
    sample = [
        Writer(pool, kind, styles, SEED) for kind, styles in (("base", BASE), ("reasoning", REASONING), ("base", LEARN))
    ]
    texts = [text for writer in sample for pair in itertools.islice(writer, 3000) for text in pair]
    backend = make_backend(texts + ["user\nassistant\n"] * 3000)
    kinds = {kind: Tokenizer(backend, kind) for kind in ("base", "reasoning")}
    config = structure(kinds["base"])
    params = init_params(config, jax.random.key(SEED))
    print(f"learning, {sum(x.size for x in jax.tree.leaves(params)) / 1e6:.2f} M parameters", flush=True)
    data = batches(Writer(pool, "base", LEARN, SEED + 1, DRILLS), kinds["base"])
    params = fit(config, params, data, LEARN_STEPS, LEARN_RATE)
    for kind, styles in (("base", BASE), ("reasoning", REASONING)):
        if only in (None, kind):
            print(f"finishing tiny-{kind}", flush=True)
            data = batches(Writer(pool, kind, styles, SEED + 2), kinds[kind])
            finished = fit(config, params, data, FINISH_STEPS[kind], FINISH_RATE)
            final = dataclasses.replace(config, eos_token_ids=kinds[kind].stop_ids)
            half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), finished)
            _replace_policy(Policy(final, half, kinds[kind]), folder / f"tiny-{kind}")
            print(f"tiny-{kind}, {time.perf_counter() - start:.0f} s since the start", flush=True)
            report(load_policy(folder / f"tiny-{kind}"))


def _replace_policy(policy: Policy, path: Path) -> None:
    aside = path.with_name(f".{path.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    save_policy(policy, aside)
    shutil.rmtree(path, ignore_errors=True)
    aside.rename(path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="parent of the model folders")
    parser.add_argument("--only", choices=("base", "reasoning"), help="make one of the two")
    parser.add_argument("--report", action="store_true", help="only evaluate the models in --out")
    options = parser.parse_args()
    if not options.report:
        return make(options.out, options.only)
    for kind in ("base", "reasoning"):
        print(f"tiny-{kind}")
        report(load_policy(options.out / f"tiny-{kind}"))


if __name__ == "__main__":
    main()
