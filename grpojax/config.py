"""RunConfig: everything that repeats a training run, checked in one place."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from grpojax.errors import InputError
from grpojax.training.sampling import Sampler, make_sampler
from grpojax.variants import (
    ADVANTAGES,
    KL_ESTIMATORS,
    KL_LEVELS,
    RATIOS,
    REDUCTIONS,
    ROLLOUT_REUSE,
    VARIANTS,
    Variant,
    get_variant,
)


def _flag(default: Any, text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": text, **extra})


def _number(text: str, **extra: Any) -> Any:
    """A setting of the variant; None: as its row has it."""
    return _flag(None, text, variant=True, **extra)


@dataclass(frozen=True)
class RunConfig:
    """The flags of run.py, by name. None means "what the variant or the model suggests"; `resolved` fills it in."""

    variant: str = _flag("clipped", "which loss to train with; `grpojax variants` lists them")
    model: str | None = _flag(None, "embedded model, folder, checkpoint or hub name (default: the variant's embedded one)")
    tokenizer_kind: str | None = _flag(
        None, "plain prompts and <|endoftext|>, or chat turns (default: what the checkpoint's end ids say)", choices=("base", "reasoning")
    )
    dataset: str = _flag("arithmetic", "problems to train on: arithmetic, gsm8k, math, math500, or a .json/.jsonl file")
    eval_dataset: str | None = _flag(None, "problems to evaluate on (default: the evaluation part of --dataset)")
    prompt_template: str | None = _flag(None, "file with the prompt; {problem} marks where the problem goes")
    out: str | None = _flag(None, "run folder (default: runs/VARIANT-MODEL-TIME)")
    resume: bool = _flag(False, "continue the run in --out; its settings come from its config.json")

    steps: int | None = _flag(None, "training steps")
    prompts_per_step: int = _flag(1, "prompts of a step")
    num_rollouts: int = _flag(8, "answers sampled to each prompt")
    max_new_tokens: int | None = _flag(None, "most tokens of an answer")
    temperature: float = _flag(0.8, "sampling temperature; 0 is greedy")
    top_p: float = _flag(0.9, "sample from the likeliest tokens that hold this much probability; 1 keeps all")
    top_k: int = _flag(0, "sample from the k likeliest tokens; 0 keeps all")
    thinking: bool = _flag(True, "chat prompt of reasoning models: let the model think; off closes an empty think block")

    clip_eps: float | None = _number("how far the ratio may move from 1, both sides")
    clip_low: float | None = _number("how far the ratio may fall below 1")
    clip_high: float | None = _number("how far the ratio may rise above 1")
    clip_dual: float | None = _number("largest ratio of an answer with a negative advantage; 0: none")
    ratio_cap: float | None = _number("cispo: largest weight of a token, the bound itself")
    sapo_tau_pos: float | None = _number("sapo: how sharply the gate closes for good answers")
    sapo_tau_neg: float | None = _number("sapo: how sharply the gate closes for bad ones")
    ratio: str | None = _number("of each token, of the whole sequence, their geometric mean, or that with each token's own gradient", choices=tuple(RATIOS))
    reduction: str | None = _number("from tokens to one loss: sum or mean of each sequence, mean over all tokens, constant divisor", choices=tuple(REDUCTIONS))
    token_budget: float | None = _number("the constant divisor of an answer's tokens (default: max_new_tokens)")
    advantage: str | None = _number("from rewards to advantages", choices=tuple(ADVANTAGES))
    kl_coeff: float | None = _number("weight of the KL term; 0 takes it away")
    kl_estimator: str | None = _number("estimator of the KL term", choices=tuple(KL_ESTIMATORS))
    kl_level: str | None = _number("KL of each token, or of whole sequences", choices=KL_LEVELS)
    kl_reweight: bool | None = _number("multiply the KL estimate by the importance ratio")
    length_normalize: bool | None = _number("divide the KL estimate by the answer's length")
    kl_domains: str | None = _number("factors on kl_coeff by a problem's domain, such as math=0,code=2")
    reference_refresh: int | None = _number("every so many steps the policy becomes the reference; 0: never")
    tis_cap: float | None = _number("truncated importance sampling of trainer against sampler: the largest weight; 0: none")
    sequence_mask_cap: float | None = _number("leave out answers whose weight of trainer over sampler is larger; 0: none")
    off_policy_delta: float | None = _number("leave out bad answers this much less likely than when sampled, in nats a token")
    keep_sampling_mask: bool | None = _number("take log-probs over the ids that could be sampled")
    sampling_temperature: bool | None = _number("take log-probs at the temperature of sampling")
    rewards: str | None = _number("reward functions and weights in place of the variant's, such as correct=1,format=0.5")
    reward: str | None = _flag(None, "reward functions beside the variant's own, such as my_module:my_function or boxed=0.1")
    format_reward_weight: float | None = _number("weight of the think-format reward; 0 takes it away")
    grader: str = _flag("grpojax", "who compares answers: grpojax, book (the reference's verdicts), math-verify (that library)")
    conditional_reward: bool | None = _number("format reward only where the answer is correct")
    overlong_cache: float | None = _number("tokens before the budget's end over which the overlong punishment grows")
    mask_truncated: bool | None = _number("leave answers that the budget cut off out of the loss")
    dynamic_sampling: int | None = _number("most rounds of prompts a step draws until its groups have some, not all answers right; 0: one")
    inner_epochs: int | None = _number("passes over the rollouts of one frozen old policy")
    rollout_reuse: str | None = _number(
        "inner epochs draw fresh rollouts from the old policy, or go over one pool of them", choices=ROLLOUT_REUSE
    )
    minibatches: int = _flag(1, "parts a pool is split into, one update each")
    skip_zero_advantage_updates: bool = _flag(False, "no update where every group agrees on its reward")

    lr: float = _flag(1e-5, "learning rate of AdamW")
    weight_decay: float = _flag(0.01, "weight decay of AdamW")
    max_grad_norm: float = _flag(1.0, "bound on the global gradient norm")
    micro_batch: int | None = _flag(None, "sequences per backward pass; saves memory, changes nothing else (default: what fits)")
    param_dtype: str = _flag("float32", "dtype of the weights", choices=("float32", "bfloat16"))
    moment_dtype: str = _flag(
        "float32", "dtype of AdamW's two moments; bfloat16 saves 4 bytes a weight and loses small changes", choices=("float32", "bfloat16")
    )
    compute_dtype: str | None = _flag(
        None, "dtype of products (default: float32 on CPU, bfloat16 elsewhere)", choices=("float32", "bfloat16")
    )
    untie_head: bool = _flag(False, "give a tied model an output head of its own, as the book's code does")
    seed: int = _flag(42, "decides problems and samples")

    checkpoint_every: int = _flag(50, "steps between checkpoints; 0: only at the end")
    keep_checkpoints: int = _flag(3, "newest checkpoints to keep beside the best one")
    eval_on_checkpoint: int | None = _flag(None, "held-out problems to evaluate before training and at each checkpoint")

    def resolved(self) -> "RunConfig":
        """The same with every None replaced that the variant or the model decides, checked.

        Raises:
          InputError: for the first setting that cannot be used.
        """
        variant = self.make_variant()
        model = self.model or variant.model
        suggested = EMBEDDED if model in _EMBEDDED_MODELS else BOOK
        filled = {key: value for key, value in suggested.items() if getattr(self, key) is None}
        decided = {"inner_epochs": variant.inner_epochs, "rollout_reuse": variant.rollout_reuse}
        config = dataclasses.replace(self, model=model, **decided, **filled)
        config._check()
        return config

    def make_variant(self) -> Variant:
        """The variant's row with the settings that were given, and the numbers it takes from the run."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata.get("variant")}
        given = {name: value for name, value in given.items() if value is not None}
        for name in ("rewards", "kl_domains"):
            if name in given:
                given[name] = parse_weights(name, given[name])
        if self.reward is not None:
            given["rewards"] = given.get("rewards", VARIANTS.get(self.variant, VARIANTS["baseline"]).rewards) | parse_weights("reward", self.reward)
        variant = get_variant(self.variant, **given)
        numbers = dict(variant.numbers)
        if variant.reduction is REDUCTIONS["constant"] and self.max_new_tokens is not None:
            numbers.setdefault("token_budget", float(self.max_new_tokens))
        if variant.sampling_temperature and self.temperature > 0:
            numbers["score_temperature"] = float(self.temperature)
        return dataclasses.replace(variant, numbers=numbers)

    def make_sampler(self) -> Sampler:
        """How the rollouts are drawn."""
        return make_sampler(self.temperature, self.top_p, self.top_k)

    @property
    def update_size(self) -> int:
        """Sequences of one update."""
        return self.prompts_per_step * self.num_rollouts // self.minibatches

    def _check(self) -> None:
        self.make_sampler()
        variant = self.make_variant()
        if variant.keep_sampling_mask and self.temperature == 0:
            raise InputError(
                "keep_sampling_mask with temperature 0 leaves one possible token, whose log-prob is always 0; give a temperature "
                "above 0, or --no-keep-sampling-mask."
            )
        check_seed(self.seed)
        if self.num_rollouts < 2:
            raise InputError(
                f"num_rollouts is {self.num_rollouts}; at least 2 are needed, because each is compared with its group."
            )
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be {least} or more.")
        for name in ("lr", "weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; it must be a finite number, 0 or more.")
        if self.eval_dataset is not None and self.eval_on_checkpoint == 0:
            raise InputError("eval_dataset is given but eval_on_checkpoint is 0; say how many of its problems to evaluate.")
        if self.minibatches > 1 and self.rollout_reuse != "pool":
            raise InputError("minibatches splits a pool of rollouts; add --rollout-reuse pool, or leave it at 1.")
        self._check_divides("minibatches", self.prompts_per_step * self.num_rollouts, "prompts_per_step * num_rollouts")
        if self.micro_batch is not None:
            self._check_divides("micro_batch", self.update_size, "the sequences of one update")

    def _check_divides(self, name: str, total: int, meaning: str) -> None:
        if getattr(self, name) < 1 or total % getattr(self, name):
            fits = ", ".join(str(n) for n in range(1, total + 1) if total % n == 0)
            raise InputError(f"{name} is {getattr(self, name)} and does not divide {meaning}, {total}; choose one of {fits}.")


def parse_weights(name: str, text: str) -> dict[str, float]:
    """ "correct=1,format=0.5" -> {"correct": 1.0, "format": 0.5}; a name alone weighs 1, "" is none.

    Raises:
      InputError: for anything else; `name` is the setting it speaks of.
    """
    weights = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not key.strip() or key.strip() in weights:
            raise InputError(f"{name} has {part!r}, without a name or one that was there before; write each name once, such as correct=1.")
        try:
            weights[key.strip()] = float(value) if equals else 1.0
        except ValueError:
            raise InputError(f"{name} has {part!r}; write name=number, separated by commas, such as correct=1,format=0.5.") from None
    return weights


def check_seed(seed: int) -> None:
    """Raises an InputError for a seed that is no unsigned 32-bit number: random keys hold no more."""
    if not 0 <= seed < 2**32:
        raise InputError(f"seed is {seed}; it must be from 0 to {2**32 - 1}.")


_LEAST = {
    "steps": 1, "prompts_per_step": 1, "max_new_tokens": 1, "minibatches": 1,
    "checkpoint_every": 0, "keep_checkpoints": 1, "eval_on_checkpoint": 0,
}  # fmt: skip

_EMBEDDED_MODELS = sorted({row.model for row in VARIANTS.values()})

EMBEDDED = {"steps": 200, "max_new_tokens": 48, "eval_on_checkpoint": 200}
"""What the embedded models suggest: a visible result in a few minutes on two CPU cores."""

BOOK = {"steps": 500, "max_new_tokens": 512, "eval_on_checkpoint": 0}
"""What any other model starts from: the settings of the book's scripts."""
