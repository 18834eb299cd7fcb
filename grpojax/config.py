"""RunConfig: every setting of a training run, declared and checked. The settings of its variant are in variants.py."""

import dataclasses
from dataclasses import dataclass

from grpojax.errors import InputError
from grpojax.loss.reduce import constant_divisor
from grpojax.settings import check_settings, setting, settings_of
from grpojax.training.sampling import Sampler, make_sampler
from grpojax.variants import VARIANTS, Variant, VariantSettings, find_variant, get_variant

MAX_SEED = 2**32 - 1  # a random key holds 32 bits
DTYPES, KINDS, GRADERS = ("float32", "bfloat16"), ("base", "reasoning"), ("grpojax", "book", "math-verify")


@dataclass(frozen=True, kw_only=True)
class RunConfig(VariantSettings):
    """The run. A setting that is None is suggested by the variant or the model; `resolved` fills it in."""

    variant: str = setting("clipped", "what to train with: a name from `grpojax variants`, or your own as module:NAME")
    model: str | None = setting(
        None, "embedded model, folder, checkpoint or hub name (default: the variant's embedded one)"
    )
    tokenizer_kind: str | None = setting(
        None, "plain prompts that end with <|endoftext|>, or chat turns (default: by the checkpoint's stop ids)",
        choices=KINDS,
    )  # fmt: skip
    dataset: str = setting(
        "arithmetic", "problems to train on: arithmetic, gsm8k, math, math500, or a .json/.jsonl file"
    )
    eval_dataset: str | None = setting(
        None, "problems to evaluate on (default: a part of --dataset that is not trained on)"
    )
    prompt_template: str | None = setting(None, "file with the prompt; {problem} marks the place of the problem")
    out: str | None = setting(None, "run folder (default: runs/VARIANT-MODEL-TIME)")
    resume: bool = setting(False, "continue the run in --out with the settings in its config.json")

    steps: int | None = setting(None, "training steps", at_least=1, suggested=(200, 500))
    prompts_per_step: int = setting(1, "prompts of a step", at_least=1)
    num_rollouts: int = setting(8, "answers sampled for each prompt; they are compared with each other", at_least=2)
    max_new_tokens: int | None = setting(None, "token budget of an answer", at_least=1, suggested=(48, 512))
    temperature: float = setting(0.8, "sampling temperature; 0 is greedy", at_least=0)
    top_p: float = setting(
        0.9, "sample from the smallest set of tokens with this much probability; 1 keeps all", above=0, at_most=1
    )
    top_k: int = setting(0, "sample from the k most likely tokens; 0 keeps all", at_least=0)
    thinking: bool = setting(True, "let a reasoning model think; if off, its prompt closes an empty think block")

    reward: str | None = setting(
        None, "more reward functions beside the variant's, such as my_module:my_function or boxed=0.1"
    )
    grader: str = setting(
        "grpojax", "who compares answers: grpojax, the book's reference, or the math-verify library", choices=GRADERS
    )
    minibatches: int = setting(1, "updates per pass over a pool of rollouts, each on one part of it", at_least=1)
    skip_zero_advantage_updates: bool = setting(False, "make no update if every group agrees on its reward")

    lr: float = setting(1e-5, "learning rate of AdamW", at_least=0)
    weight_decay: float = setting(0.01, "weight decay of AdamW", at_least=0)
    max_grad_norm: float = setting(1.0, "bound on the global gradient norm", above=0)
    micro_batch: int | None = setting(
        None, "answers per backward pass; changes memory and nothing else (default: what fits)", at_least=1
    )
    param_dtype: str = setting("float32", "dtype of the weights", choices=DTYPES)
    moment_dtype: str = setting(
        "float32", "dtype of AdamW's moments; bfloat16 saves 4 bytes a weight and loses small changes", choices=DTYPES
    )
    compute_dtype: str | None = setting(
        None,
        "dtype of matrix products; auto: on a CPU the faster one by a short measurement (default: float32 on CPU, "
        "bfloat16 elsewhere)",
        choices=(*DTYPES, "auto"),
    )
    untie_head: bool = setting(False, "give a model with tied embeddings its own output head, as the book's code does")
    seed: int = setting(42, "decides problems and samples", at_least=0, at_most=MAX_SEED)

    checkpoint_every: int = setting(50, "steps between checkpoints; 0: only at the end", at_least=0)
    keep_checkpoints: int = setting(3, "newest checkpoints to keep beside the best one", at_least=1)
    eval_on_checkpoint: int | None = setting(
        None, "held-out problems to evaluate before training and at each checkpoint; 0: none",
        at_least=0, suggested=(200, 0),
    )  # fmt: skip

    def resolved(self) -> "RunConfig":
        """The same config, checked, with every None filled in that the variant or the model decides.

        Raises:
          InputError: for the first setting that cannot be used.
        """
        check_settings(self)
        variant = self.make_variant()
        model = self.model or variant.recipe.model
        decided = {"inner_epochs": variant.recipe.inner_epochs, "rollout_reuse": variant.recipe.rollout_reuse}
        suggested = {name: value for name, value in suggestions(model).items() if getattr(self, name) is None}
        config = dataclasses.replace(self, model=model, **decided, **suggested)
        config._check()
        return config

    def make_variant(self) -> Variant:
        """The variant with the settings that were given, and the numbers it takes from the run."""
        given = {}
        for name, field in settings_of(VariantSettings).items():
            value = getattr(self, name)
            if value is not None:
                given[name] = parse_weights(name, value) if "weights" in field.metadata else value
        if self.reward is not None:
            rewards = given.get("rewards", find_variant(self.variant).recipe.rewards)
            given["rewards"] = rewards | parse_weights("reward", self.reward)
        variant = get_variant(self.variant, **given)
        numbers = dict(variant.loss.numbers)
        if variant.loss.reduction is constant_divisor and self.max_new_tokens is not None:
            numbers.setdefault("token_budget", float(self.max_new_tokens))
        if variant.recipe.sampling_temperature and self.temperature > 0:
            numbers["score_temperature"] = float(self.temperature)
        return dataclasses.replace(variant, loss=dataclasses.replace(variant.loss, numbers=numbers))

    def make_sampler(self) -> Sampler:
        """How the rollouts are drawn."""
        return make_sampler(self.temperature, self.top_p, self.top_k)

    @property
    def update_size(self) -> int:
        """Sequences of one update."""
        return self.prompts_per_step * self.num_rollouts // self.minibatches

    def _check(self) -> None:
        """Raises an InputError for settings that do not go together."""
        if self.make_variant().recipe.keep_sampling_mask and self.temperature == 0:
            raise InputError(
                "keep_sampling_mask with temperature 0 leaves one possible token, whose log-prob is always 0; give a "
                "temperature above 0, or --no-keep-sampling-mask."
            )
        if self.eval_dataset is not None and self.eval_on_checkpoint == 0:
            raise InputError(
                "eval_dataset is given but eval_on_checkpoint is 0; say how many of its problems to evaluate."
            )
        if self.minibatches > 1 and self.rollout_reuse != "pool":
            raise InputError("minibatches splits a pool of rollouts; add --rollout-reuse pool, or leave it at 1.")
        self._check_divides("minibatches", self.prompts_per_step * self.num_rollouts, "prompts_per_step * num_rollouts")
        if self.micro_batch is not None:
            self._check_divides("micro_batch", self.update_size, "the sequences of one update")

    def _check_divides(self, name: str, total: int, meaning: str) -> None:
        if total % getattr(self, name):
            fits = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0)
            given = f"{name} is {getattr(self, name)}"
            raise InputError(f"{given} and does not divide {meaning}, {total}; choose one of {fits}.")


def suggestions(model: str) -> dict[str, int]:
    """Settings that depend on the model: short runs for the embedded ones, the book's scripts for any other."""
    embedded = model in {variant.recipe.model for variant in VARIANTS.values()}
    suggested = {name: field.metadata.get("suggested") for name, field in settings_of(RunConfig).items()}
    return {name: values[not embedded] for name, values in suggested.items() if values}


def parse_weights(name: str, text: str) -> dict[str, float]:
    """ "correct=1,format=0.5" -> {"correct": 1.0, "format": 0.5}; a name alone weighs 1, "" is none.

    Raises:
      InputError: for anything else; `name` is the setting in the message.
    """
    weights = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not key or key in weights:
            raise InputError(
                f"{name} has {part!r}, which has no name or repeats one; write each name once, such as correct=1."
            )
        try:
            weights[key] = float(value) if equals else 1.0
        except ValueError:
            raise InputError(
                f"{name} has {part!r}; write name=number, separated by commas, such as correct=1,format=0.5."
            ) from None
    return weights
