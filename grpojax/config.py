"""RunConfig: everything that repeats a training run, checked in one place."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from grpojax.errors import InputError
from grpojax.training.sampling import Sampler, make_sampler
from grpojax.variants import VARIANTS, Variant, get_variant


def _flag(default: Any, text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": text, **extra})


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

    clip_eps: float | None = _flag(None, "how far the ratio may move from 1, both sides", number=True)
    clip_low: float | None = _flag(None, "how far the ratio may fall below 1", number=True)
    clip_high: float | None = _flag(None, "how far the ratio may rise above 1", number=True)
    kl_coeff: float | None = _flag(None, "weight of the KL term; 0 takes it away", number=True)
    format_reward_weight: float | None = _flag(None, "weight of the think-format reward; 0 takes it away", number=True)
    conditional_reward: bool | None = _flag(None, "format reward only where the answer is correct", number=True)
    inner_epochs: int | None = _flag(None, "updates from one frozen old policy", number=True)
    rollout_reuse: str = _flag(
        "fresh", "inner epochs draw fresh rollouts from the old policy, or go over one pool of them", choices=("fresh", "pool")
    )
    minibatches: int = _flag(1, "parts a pool is split into, one update each")
    skip_zero_advantage_updates: bool = _flag(False, "no update where every group agrees on its reward")

    lr: float = _flag(1e-5, "learning rate of AdamW")
    weight_decay: float = _flag(0.01, "weight decay of AdamW")
    max_grad_norm: float = _flag(1.0, "bound on the global gradient norm")
    micro_batch: int | None = _flag(None, "sequences per backward pass; saves memory, changes nothing else (default: what fits)")
    param_dtype: str = _flag("float32", "dtype of the weights", choices=("float32", "bfloat16"))
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
        config = dataclasses.replace(self, model=model, inner_epochs=variant.inner_epochs, **filled)
        config._check()
        return config

    def make_variant(self) -> Variant:
        """The variant's row with the numbers that were given."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata.get("number")}
        return get_variant(self.variant, **{key: value for key, value in given.items() if value is not None})

    def make_sampler(self) -> Sampler:
        """How the rollouts are drawn."""
        return make_sampler(self.temperature, self.top_p, self.top_k)

    @property
    def update_size(self) -> int:
        """Sequences of one update."""
        return self.prompts_per_step * self.num_rollouts // self.minibatches

    def _check(self) -> None:
        self.make_sampler()
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
