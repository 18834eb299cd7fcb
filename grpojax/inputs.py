"""What a run reads before it writes anything: model, prompt template, problems; and fingerprints to recognise them."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from grpojax.config import RunConfig
from grpojax.device import faster_dtype, this_device
from grpojax.errors import InputError
from grpojax.qwen.sources import model_files
from grpojax.qwen.weights import Policy, load_policy
from grpojax.tasks.problems import Problem, has_eval_split, load_problems, split_held_out
from grpojax.tasks.prompts import load_template, render_prompt
from grpojax.tasks.rewards import reward_function
from grpojax.training.rollout import check_context

EVAL_SEED = 0
"""Generated evaluation problems are the same in every run, so that accuracies can be compared."""

SAMPLED_WEIGHTS = 4096
"""How many evenly spaced weights of each array a fingerprint takes."""


_FINGERPRINTS = {
    "model_sha256": "the model's weights",
    "prompts_sha256": "the prompts (template or tokenizer)",
    "problems_sha256": "the training problems",
    "eval_problems_sha256": "the evaluation problems",
}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Everything a run reads."""

    policy: Policy
    model: Path  # the folder or file of the model, such as one checkpoint of a run folder
    problems: list[Problem]
    eval_problems: list[Problem]
    evaluated_on: str  # which problems these are, in words; "" without evaluation
    template: str

    @property
    def trained_on(self) -> int:
        """How many of the evaluation problems are also training problems."""
        texts = {problem.text for problem in self.problems}
        return sum(problem.text in texts for problem in self.eval_problems)

    @property
    def accuracy_name(self) -> str:
        """What to call accuracy on the evaluation problems."""
        return "accuracy" if self.trained_on else "held-out accuracy"

    def record(self) -> dict[str, Any]:
        """What config.json says about them, so that a resumed run can tell whether they are still the same."""
        prompts = [_prompt_ids(self.policy, problem, self.template, True) for problem in self.problems[:100]]
        return {
            "model": str(self.model.resolve()),
            "model_sha256": _weights_sha256(self.policy),
            "compute_dtype": self.policy.config.compute_dtype,
            "prompts_sha256": json_sha256(prompts),
            "problems_sha256": json_sha256([(p.text, p.answer, p.domain) for p in self.problems]),
            "eval_problems_sha256": json_sha256([(p.text, p.answer) for p in self.eval_problems]),
        }


def read_inputs(config: RunConfig, recorded: dict[str, Any] | None = None) -> Inputs:
    """Reads and checks everything a run needs.

    Args:
      config: a resolved RunConfig.
      recorded: what `Inputs.record` returned when the run began, if it is resumed.

    Raises:
      InputError: for the first input that cannot be used, or that has changed since the run began.
    """
    template = load_template(config.prompt_template)
    problems, eval_problems, evaluated_on = _read_problems(config)
    began_with = recorded and Path(recorded["model"])
    model = began_with if began_with and began_with.exists() else model_files(config.model)
    compute_dtype = config.compute_dtype
    if compute_dtype in (None, "auto"):  # a resumed run does not choose again
        compute_dtype = (recorded or {}).get("compute_dtype", compute_dtype)
    policy = open_policy(
        str(model), config.param_dtype, compute_dtype, kind=config.tokenizer_kind, untie=config.untie_head
    )
    recipe = config.make_variant().recipe
    for name in recipe.rewards:
        reward_function(name)
    if "format" in recipe.rewards and policy.tokenizer.think_ids is None:
        raise InputError(
            f"{config.model} has no <think> tokens, so its answers cannot earn the format reward; choose a reasoning "
            "model, or --format-reward-weight 0."
        )
    used = problems[: config.steps * config.prompts_per_step * max(1, recipe.dynamic_sampling)]
    lengths = [len(_prompt_ids(policy, problem, template, config.thinking)) for problem in used + eval_problems]
    check_context(policy, max(lengths), config.max_new_tokens)
    inputs = Inputs(policy, model, problems, eval_problems, evaluated_on, template)
    now = inputs.record() if recorded else {}
    changed = [meaning for name, meaning in _FINGERPRINTS.items() if recorded and now[name] != recorded.get(name)]
    if changed:
        what = " and ".join(changed)
        raise InputError(f"{what} changed since this run began; restore them, or start a new run with another --out.")
    return inputs


def open_policy(model: str, param_dtype: str = "float32", compute_dtype: str | None = None, **options: Any) -> Policy:
    """load_policy with a tokenizer.

    Args:
      compute_dtype: None: float32 on a CPU, bfloat16 elsewhere; "auto": the same, but on a CPU the faster one.

    Raises:
      InputError: also if the model comes without a tokenizer.
    """
    if compute_dtype in (None, "auto"):
        on_cpu = faster_dtype() if compute_dtype else "float32"
        compute_dtype = "bfloat16" if this_device().accelerated else on_cpu
    policy = load_policy(model, dtype=param_dtype, compute_dtype=compute_dtype, **options)
    if policy.tokenizer is None:
        raise InputError(f"{model} has no tokenizer.json; copy the checkpoint's own into the folder of its weights.")
    return policy


def _read_problems(config: RunConfig) -> tuple[list[Problem], list[Problem], str]:
    """Training problems, evaluation problems, and which the latter are, in words."""
    problems, count = load_problems(config.dataset, "train", seed=config.seed), config.eval_on_checkpoint
    if not count:
        return problems, [], ""
    source = config.eval_dataset or config.dataset
    if config.eval_dataset or has_eval_split(config.dataset):
        found = load_problems(source, "eval", seed=EVAL_SEED, limit=count)
        split = "the evaluation split of " if has_eval_split(source) else ""
        return problems, found, f"{len(found)} problems of {split}{source}"
    train, held_out = split_held_out(problems)
    if not held_out or not train:
        raise InputError(
            f"{source} has too few problems ({len(problems)}) to hold some out of training for evaluation; give an "
            "--eval-dataset, or --eval-on-checkpoint 0."
        )
    found = held_out[:count]
    return train, found, f"{len(found)} of the {len(held_out)} problems of {source} that are held out of training"


def _prompt_ids(policy: Policy, problem: Problem, template: str, thinking: bool) -> list[int]:
    return policy.tokenizer.prompt_ids(render_prompt(problem.text, template), thinking)


def json_sha256(value: Any) -> str:
    """The SHA-256 hash of a value as JSON, in hex."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _weights_sha256(policy: Policy) -> str:
    """A hash of the structure and of a sample of every array: training changes all of them."""
    digest = hashlib.sha256(repr(policy.config).encode())
    for path, array in jax.tree.leaves_with_path(policy.params):
        stride = max(1, array.size // SAMPLED_WEIGHTS)
        digest.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        digest.update(np.asarray(array.reshape(-1)[::stride].astype("float32")).tobytes())
    return digest.hexdigest()
