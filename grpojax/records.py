"""Shape letters, and the few records that pass from one room of the house to the next.

    P  prompts of a step             T  tokens of a sequence, prompt and answer, padded right
    G  rollouts of one prompt        S  T - 1 predicting positions; position s predicts token s + 1
    B  P * G sequences, prompt-major N  tokens an answer may have, padded right
    V  vocabulary                    K  reward functions
"""

import dataclasses
from typing import Any

METRIC_COLUMNS = (
    "step", "total_steps", "loss", "pg_loss", "kl_loss", "policy_ratio", "clip_frac", "reward_avg", "reward_std",
    "correct_avg", "format_reward_avg", "tokens_per_sec", "avg_response_len", "truncated_frac", "adv_avg", "adv_std",
    "zero_adv_frac", "entropy_avg", "kl_k1", "kl_k3", "grad_norm", "lr", "rollout_seconds", "update_seconds",
    "step_seconds", "eval_acc", "groups_drawn", "groups_carried", "drawn_correct_avg", "safeguard_weight", "logp_gap",
    "grading_timeouts",
)
"""The columns of metrics.csv that every run has. Times are seconds, entropies nats, eval_acc is percent; shares and rewards
are from 0 to 1."""


def reward_column(name: str) -> str:
    """The column of one reward function; a run has one for each, behind METRIC_COLUMNS: the mean before weighting."""
    return f"reward_{name}"


@dataclasses.dataclass(frozen=True)
class Sample:
    """One graded answer, as samples.jsonl keeps it."""

    problem: str
    gold: str
    text: str  # the generated text alone, special tokens included
    extracted: str  # what stood in the last complete box; "" without one
    correct: bool  # the grader's verdict on it, whatever the rewards
    rewards: dict[str, float | None]  # by name of the reward function, before weighting; None where it abstains
    reward: float | None  # the weighted total; None where all abstain
    advantage: float
    length: int  # generated tokens, the stop token included
    truncated: bool


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Accuracy on a fixed list of problems."""

    step: int  # updates made before it; 0 is the model as it came
    dataset: str
    correct: int  # answers whose last box holds the right one
    total: int  # answers: problems times samples
    avg_response_len: float
    truncated_frac: float
    seconds: float
    rows: list[dict[str, Any]]  # one per problem; training/evaluate.py says what is in it
    correct_or_last_number: int | None = None  # the same where the last number of a text without a box counts too

    @property
    def accuracy(self) -> float:
        """Percent of the answers that are correct."""
        return 100.0 * self.correct / self.total


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """What one training step has to say."""

    step: int  # from 1
    total_steps: int
    metrics: dict[str, float | None]  # by column of metrics.csv; None where a value does not apply
    samples: list[Sample]
    evaluation: Evaluation | None = None
    checkpoint: str | None = None  # the folder written after this step
