"""Do our recipes compute the same loss as TRL?

    pip install trl          # installs torch too
    python benchmarks/trl_parity.py

Prints one row per recipe with the difference between both losses and gradients on the same random arrays, in float32.
TRL's side is TRL's own code: a GRPOTrainer (or RLOOTrainer), made without its constructor, gets the settings of a
real GRPOConfig and models that return given log-probs. It runs its own `_generate_and_score_completions`, which
computes advantages and the weights of trainer over sampler, and its own `_compute_loss`; torch gives the gradient
with respect to the new log-probs. Our side is `policy_loss` and jax's gradient.

Columns: the difference of the loss; the largest difference of the gradient relative to its largest entry; the share
of ratios at which our bound acted, and the mean weight of our safeguards, which show that the comparison is not
trivial; and a note. Rows marked "differs" are known differences, with their cause.

Exit code 0: every row is as expected. 1: one is not. 2: TRL or torch is not installed.
"""

import importlib.util
import sys
import tempfile
import warnings
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpojax.loss.logprobs import length_mask
from grpojax.loss.policy_loss import policy_loss
from grpojax.variants import Variant, get_variant, variant_advantages

PROMPTS, ROLLOUTS, WIDTH = 4, 8, 12
STOP = 1  # the stop id; 2 stands for every other id
SAME = 1e-5
"""How much float32 sums of a few hundred terms may differ if summed in another order."""


@dataclass(frozen=True)
class Case:
    """One row: our variant with its overrides, TRL's settings, and whether the two should agree."""

    name: str
    variant: str
    overrides: dict[str, Any]
    theirs: dict[str, Any]  # of trl.GRPOConfig or RLOOConfig
    note: str = ""
    differs: bool = False  # a known difference; the note is its cause
    algorithm: str = "GRPO"
    micro_batches: int = 1  # of TRL's gradient accumulation; ours computes the whole step at once
    drift: float = 0.6  # std of the log-ratios of the arrays
    constant: float | None = None  # the reward of every answer
    abstain: bool = False  # some rewards are NaN, and all of one answer's
    truncated: bool = False  # some answers are cut off, and left out of the loss


GRPO = {"loss_type": "grpo"}
DAPO = {"loss_type": "dapo", "epsilon_high": 0.28}
GSPO = {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
GDPO = GRPO | {"multi_objective_aggregation": "normalize_then_sum"}
DR_GRPO = {"loss_type": "dr_grpo", "scale_rewards": "none"}
V32 = GRPO | {"beta": 0.02, "use_bias_correction_kl": True, "off_policy_mask_threshold": 0.1, "scale_rewards": "none"}
PLAIN_KL, REWEIGHTED_KL = ({"beta": 0.04, "use_bias_correction_kl": on} for on in (False, True))
NO_KL = {"kl_coeff": 0}


def sampler_weights(mode: str, most: float) -> dict[str, Any]:
    """Settings for TRL's weights of trainer over sampler. TRL has sampler log-probs only with vLLM."""
    return {"use_vllm": True, "vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": most}


CASES = (
    Case("grpo", "grpo", {}, GRPO | PLAIN_KL),
    Case("grpo, KL reweighted", "grpo", {"kl_reweight": True}, GRPO | REWEIGHTED_KL),
    Case("grpo, two-sided", "grpo", NO_KL | {"clip_dual": 1.5}, GRPO | {"delta": 1.5}, "delta is our clip_dual"),
    Case("grpo, std of the batch", "grpo", NO_KL | {"advantage": "batch-std"}, GRPO | {"scale_rewards": "batch"}),
    Case("grpo, no std", "grpo", NO_KL | {"advantage": "centred"}, GRPO | {"scale_rewards": "none"}),
    Case("grpo, abstentions", "grpo", NO_KL, GRPO, "if all rewards abstain the advantage is 0", abstain=True),
    Case(
        "grpo, truncated left out", "grpo", NO_KL, GRPO | {"mask_truncated_completions": True},
        "answers left out count in the divisor on both sides", truncated=True,
    ),
    Case(
        "grpo, sequence mask", "grpo", NO_KL | {"sequence_mask_cap": 3.0}, GRPO | sampler_weights("sequence_mask", 3.0),
        "answers within the cap keep their weight p_old / p_sampler; the others get 0",
    ),
    Case("dapo", "dapo", {}, DAPO, "the loss only: no overlong reward, no dynamic sampling"),
    Case("dapo, 2 micro-batches", "dapo", {}, DAPO, "over the tokens of the step on both sides", micro_batches=2),
    Case("dapo as bnpo", "dapo", {}, DAPO | {"loss_type": "bnpo"}, "in one batch bnpo is dapo"),
    Case("dr-grpo", "dr-grpo", {}, DR_GRPO),
    Case("dr-grpo, budget 100", "dr-grpo", {"token_budget": 100}, DR_GRPO | {"max_completion_length": 100}),
    Case("gspo", "gspo", {}, GRPO | GSPO, drift=1e-3),
    Case("gspo with KL", "gspo", {"kl_coeff": 0.04}, GRPO | GSPO | PLAIN_KL, drift=0.1),
    Case(
        "cispo", "cispo", {}, {"loss_type": "cispo", "epsilon_high": 5.0},
        "epsilon_high is the bound itself, as ratio_cap is", drift=1.2,
    ),
    Case("sapo", "sapo", {}, {"loss_type": "sapo"}, "its gate fades and clips nothing"),
    Case(
        "olmo3", "olmo3", {},
        DAPO | {"epsilon_high": 0.272, "scale_rewards": "none"} | sampler_weights("token_truncate", 2.0),
    ),
    Case("deepseek-v3.2", "deepseek-v3.2", {}, V32, "no sampler log-probs: the mask compares with the trainer's"),
    Case(
        "deepseek-v3.2, sampler", "deepseek-v3.2", {},
        V32 | {"use_vllm": True, "vllm_importance_sampling_correction": False}, "the mask compares with the sampler's",
    ),
    Case(
        "deepseek-v3.2, and weights", "deepseek-v3.2", {"sequence_mask_cap": 3.0}, V32 | {"use_vllm": True},
        "TRL's default with vLLM adds the sequence mask, cap 3",
    ),
    Case("gdpo", "gdpo", {}, GDPO),
    Case("gdpo, weights 1 and 0.3", "gdpo", {"rewards": {"correct": 1.0, "format": 0.3}}, GDPO),
    Case("gdpo, abstentions", "gdpo", {}, GDPO, abstain=True),
    Case(
        "clipped, leave-one-out", "clipped", {"clip_eps": 0.2, "advantage": "leave-one-out"}, {"beta": 0.0},
        "TRL's RLOO without KL: ratio of sums, PPO's min", algorithm="RLOO", drift=0.1,
    ),
    Case(
        "grpo, TRL's KL", "grpo", {}, GRPO | {"beta": 0.04},
        "TRL multiplies k3 by the ratio by default (second row); the GRPO paper does not", differs=True,
    ),
    Case(
        "gspo with KL reweighted", "gspo", {"kl_coeff": 0.04, "kl_reweight": True}, GRPO | GSPO | REWEIGHTED_KL,
        "TRL weights a token's KL by the answer's geometric mean, ours by the token's ratio", differs=True, drift=0.1,
    ),
    Case(
        "dapo as bnpo, 2 micro-batches", "dapo", {}, DAPO | {"loss_type": "bnpo"},
        "bnpo divides each micro-batch by its own tokens: the split matters", differs=True, micro_batches=2,
    ),
    Case(
        "gspo in a token mean", "gspo", {}, GSPO | {"loss_type": "dapo"},
        "TRL weights an answer by its length (and warns); ours always averages answers", differs=True, drift=1e-3,
    ),
    Case(
        "groups that agree", "grpo", NO_KL, GRPO,
        "the float mean of eight 0.7 is not 0.7; TRL divides the rest by 1e-4, ours is 0", differs=True, constant=0.7,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Data:
    """B = PROMPTS * ROLLOUTS answers of up to WIDTH tokens, padded right; float32."""

    new: np.ndarray  # [B, WIDTH] log-probs, of the policy being trained
    old: np.ndarray  # the trainer's, of the weights that sampled
    sampler: np.ndarray  # what the sampler recorded
    ref: np.ndarray  # of the reference
    lengths: np.ndarray  # [B]
    ended: np.ndarray  # [B] bool, by a stop token
    rewards: np.ndarray  # [K, PROMPTS, ROLLOUTS]; NaN is an abstention


def make_data(case: Case, rewards: int) -> Data:
    """Random answers, one of them of full length, and one group without signal."""
    rng = np.random.default_rng(0)
    shape = (PROMPTS * ROLLOUTS, WIDTH)
    old = -rng.exponential(1.0, shape)
    new, sampler, ref = (old + rng.normal(0.0, case.drift, shape) for _ in range(3))
    lengths = rng.integers(1, WIDTH + 1, len(old))
    lengths[0] = WIDTH  # TRL pads to the longest answer
    ended = rng.random(len(old)) < (0.7 if case.truncated else 1.0)
    given = rng.integers(0, 2, (rewards, PROMPTS, ROLLOUTS)).astype(float)
    given[:, 0] = given[:, 0, :1]
    if case.constant is not None:
        given[:] = case.constant
    if case.abstain:
        given[rng.random(given.shape) < 0.2] = np.nan
    new, old, sampler, ref, given = (x.astype(np.float32) for x in (new, old, sampler, ref, given))
    return Data(new, old, sampler, ref, lengths, ended, given)


def our_loss(case: Case, variant: Variant, data: Data) -> tuple[float, np.ndarray, dict[str, Any]]:
    """Loss, its gradient with respect to the new log-probs, and aux."""
    advantages = variant_advantages(variant, data.rewards).reshape(-1)
    sampler = data.sampler if case.theirs.get("use_vllm") else None
    mask = length_mask(data.lengths, WIDTH) * (data.ended[:, None] | (not case.truncated))

    def loss_of(new):
        return policy_loss(variant, new, data.old, data.ref, advantages, mask, sampler_logps=sampler)

    (loss, aux), gradient = jax.value_and_grad(loss_of, has_aux=True)(jnp.asarray(data.new))
    return float(loss), np.asarray(gradient), aux


def trl_loss(case: Case, weights: list[float], data: Data) -> tuple[float, np.ndarray]:
    """Loss and gradient of TRL."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(case, weights, data, folder)
    batch = trainer._generate_and_score_completions([{"prompt": ""}] * len(data.lengths))
    new = torch.tensor(data.new, requires_grad=True)
    total = torch.tensor(0.0)
    for rows in np.split(np.arange(len(data.lengths)), case.micro_batches):
        part = {name: values[rows] if values.ndim else values for name, values in batch.items()}
        total = total + trainer._compute_loss(fixed_model(new[rows]), part)
    total.backward()
    return total.item(), new.grad.numpy()


def fixed_model(logps: Any) -> SimpleNamespace:
    """A stand-in for the model that TRL expects, in training mode."""
    return SimpleNamespace(logps=logps, training=True, is_gradient_checkpointing=False)


def make_trainer(case: Case, weights: list[float], data: Data, folder: str) -> Any:
    """A TRL trainer with the attributes that its loss reads, and with answers, log-probs and rewards from the data."""
    import accelerate
    import torch
    import trl

    parent, config = getattr(trl, f"{case.algorithm}Trainer"), getattr(trl, f"{case.algorithm}Config")
    settings = {"max_completion_length": WIDTH, "num_iterations": 2, "num_generations": ROLLOUTS} | case.theirs
    args = config(
        output_dir=folder, use_cpu=True, bf16=False, report_to="none",
        per_device_train_batch_size=len(data.lengths) // case.micro_batches,
        gradient_accumulation_steps=case.micro_batches, **settings,
    )  # fmt: skip

    class Given(parent):
        def __init__(self):
            pass

        def _generate(self, prompts):
            last = np.where(data.ended, STOP, 2).tolist()
            answers = [[2] * (length - 1) + [end] for length, end in zip(data.lengths, last, strict=True)]
            texts = [""] * len(answers)
            if case.algorithm == "RLOO":
                return [[2]] * len(answers), answers, texts
            logps = [row[:length].tolist() for row, length in zip(data.sampler, data.lengths, strict=True)]
            return [[2]] * len(answers), answers, None, texts, logps if args.use_vllm else None, {}, None, []

        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            return torch.tensor(data.rewards.reshape(len(weights), -1).T)

        def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
            return model.logps, torch.zeros_like(model.logps), None

    trainer = Given()
    trainer.args, trainer.accelerator = args, accelerate.Accelerator(cpu=True)
    for name, value in vars(args).items():
        if not hasattr(parent, name):
            setattr(trainer, name, value)
    trainer.epsilon_low = args.epsilon
    trainer.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    trainer.reward_weights = torch.tensor(weights)
    trainer.reward_funcs = trainer.reward_func_names = [f"reward {k}" for k in range(len(weights))]
    trainer.model, trainer.ref_model = fixed_model(torch.tensor(data.old)), fixed_model(torch.tensor(data.ref))
    trainer.current_gradient_accumulation_steps = case.micro_batches
    trainer._tokenizer, trainer.eos_token_ids = SimpleNamespace(pad_token_id=0), [STOP]
    trainer.environment_factories = trainer.environments = trainer.tools = None
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
    trainer._metrics, trainer._logs = defaultdict(lambda: defaultdict(list)), defaultdict(lambda: defaultdict(list))
    trainer._logs.update(prompt=[], completion=[], advantages=[])
    trainer._pending_extra_logs, trainer._pending_metrics = defaultdict(list), defaultdict(list)
    return trainer


def compare(case: Case) -> tuple[str, bool]:
    """The row of a case, and whether it is as expected."""
    variant = get_variant(case.variant, **case.overrides)
    if "overlong" in variant.recipe.rewards:  # it depends on lengths; rewards are given here
        variant = get_variant(case.variant, rewards={"correct": 1.0}, **case.overrides)
    data = make_data(case, len(variant.recipe.rewards))
    loss, gradient, aux = our_loss(case, variant, data)
    their_loss, their_gradient = trl_loss(case, list(variant.recipe.rewards.values()), data)
    off_loss = abs(loss - their_loss)
    off_gradient = np.abs(gradient - their_gradient).max() / max(np.abs(gradient).max(), np.abs(their_gradient).max())
    equal = bool(off_loss <= SAME and off_gradient <= SAME)
    verdict = ("" if equal != case.differs else "NOT ") + ("differs" if case.differs else "same")
    acted = [f"{aux[key]:.2f}" if np.isfinite(aux[key]) else "" for key in ("clip_frac", "safeguard_weight")]
    row = f"{case.name:30} {verdict:11} {off_loss:8.0e} {off_gradient:9.0e} {acted[0]:>7} {acted[1]:>7}   {case.note}"
    return row, equal != case.differs


def main() -> int:
    missing = [name for name in ("torch", "trl") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"error: {' and '.join(missing)} not installed; to run TRL's own loss: pip install trl", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore", FutureWarning)  # from transformers, about TRL's own defaults
    import torch
    import trl

    versions = f"trl {trl.__version__}, torch {torch.__version__}, jax {jax.__version__}"
    print(f"{versions}; float32, {PROMPTS * ROLLOUTS} answers")
    print(f"{'variant':30} {'':11} {'loss':>8} {'gradient':>9} {'clipped':>7} {'weight':>7}   note")
    expected = True
    for case in CASES:
        row, as_expected = compare(case)
        print(row)
        expected &= as_expected
    return 0 if expected else 1


if __name__ == "__main__":
    sys.exit(main())
