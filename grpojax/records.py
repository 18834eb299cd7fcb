"""Shape letters, and the records that are passed between subpackages.

    P  prompts of a step             T  tokens of a sequence: prompt and answer, right-padded
    G  rollouts of one prompt        S  T - 1 predicting positions; position s predicts token s + 1
    B  P * G sequences, prompt-major N  tokens of an answer, right-padded
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
"""The columns of metrics.csv in every run. Times are in seconds, entropies in nats, eval_acc in percent; fractions and
rewards are from 0 to 1."""


def reward_column(name: str) -> str:
    """The column for the unweighted mean of one reward function. These columns follow METRIC_COLUMNS."""
    return f"reward_{name}"


@dataclasses.dataclass(frozen=True)
class Sample:
    """One graded answer, as written to samples.jsonl."""

    problem: str
    gold: str
    text: str  # the generated text without the prompt, special tokens included
    extracted: str  # the content of the last complete box; "" without one
    correct: bool  # the grader's verdict on `extracted`
    rewards: dict[str, float | None]  # unweighted, by reward function; None if it abstains
    reward: float | None  # the weighted sum; None if all functions abstain
    advantage: float
    length: int  # generated tokens, including the stop token
    truncated: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalRow:
    """An evaluated problem. Lists have one entry per answer.

    What counts as the answer of a text is its last complete box; by the second rule (`_or_last_number`) the last number
    of a text without a box counts too. Fields of the second rule are None in files that predate it.
    """

    index: int = 0  # position in the list of problems
    problem: str
    gold: str
    subject: str = ""
    level: int | None = None
    text: list[str]
    extracted: list[str]  # "" if there is no answer
    correct: list[bool]
    same_as: list[int | None] | None = None  # see `answer_problems`; None with a single answer
    extracted_or_last_number: list[str] | None = None
    correct_or_last_number: list[bool] | None = None
    same_as_or_last_number: list[int | None] | None = None
    length: list[int]  # generated tokens, including the stop token
    truncated: list[bool]

    def to_json(self) -> dict[str, Any]:
        """The row as written to disk: with a single answer, plain values instead of lists."""
        single = len(self.text) == 1
        row = {name: value for name, value in vars(self).items() if value is not None or name == "level"}
        return {name: value[0] if single and name not in _NO_LISTS else value for name, value in row.items()}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "EvalRow":
        """The inverse of `to_json`; fields with a default may be missing."""
        single = not isinstance(row["text"], list)
        known = [field.name for field in dataclasses.fields(cls) if field.name in row]
        return cls(**{name: [row[name]] if single and name not in _NO_LISTS else row[name] for name in known})


_NO_LISTS = ("index", "problem", "gold", "subject", "level")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Accuracy on a fixed list of problems."""

    step: int  # number of updates before it; 0 is the untrained model
    dataset: str
    correct: int  # answers with the correct content in the last box
    total: int  # number of answers: problems times samples
    avg_response_len: float
    truncated_frac: float
    seconds: float
    rows: list[EvalRow]  # one per problem
    correct_or_last_number: int | None = None  # `correct` by the second rule of `EvalRow`

    @property
    def accuracy(self) -> float:
        """Percentage of correct answers."""
        return 100.0 * self.correct / self.total


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """The results of one training step."""

    step: int  # from 1
    total_steps: int
    metrics: dict[str, float | None]  # by column of metrics.csv; None if a value does not apply
    samples: list[Sample]
    evaluation: Evaluation | None = None
    checkpoint: str | None = None  # the folder of the checkpoint saved after this step
