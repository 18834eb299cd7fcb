"""What every peer does: the model's shape, the prompt, the sampling, the reward. Standard library alone."""

import dataclasses
import random
from collections.abc import Sequence

TEMPERATURE, TOP_P = 0.8, 0.9
LEARNING_RATE, WEIGHT_DECAY, MAX_GRAD_NORM = 1e-5, 0.01, 1.0


@dataclasses.dataclass(frozen=True)
class Workload:
    """A Qwen3 shape with a tied head, and a step of GRPO on one prompt."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    prompt_tokens: int
    rollouts: int
    new_tokens: int
    together: bool  # all peers fit into memory at once, and take turns; else one at a time
    warmup_steps: int  # uncounted steps before the first round
    steps_per_round: int  # counted steps of a peer's turn
    check_rows: int  # sequences whose log-probs are compared
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6

    @property
    def total_tokens(self) -> int:
        """Of one sequence."""
        return self.prompt_tokens + self.new_tokens

    @property
    def layer_params(self) -> int:
        """Entries of the matrices of all layers; the norms' few are left out."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * (2 * queries + 2 * keys)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def head_params(self) -> int:
        """Entries of the output head, which is the embedding."""
        return self.vocab_size * self.hidden_size


    @property
    def update_operations(self) -> float:
        """Of the update's products with weights: forward, and twice that backward."""
        answers = self.rollouts * self.new_tokens
        return 6.0 * (self.layer_params * (self.prompt_tokens + answers) + self.head_params * answers)


WORKLOADS = {
    "tiny": Workload(
        "tiny", vocab_size=512, hidden_size=192, num_layers=4, num_heads=6, num_kv_heads=3, head_dim=32,
        intermediate_size=512, prompt_tokens=40, rollouts=8, new_tokens=64,
        together=True, warmup_steps=3, steps_per_round=3, check_rows=8,
    ),
    "600m": Workload(
        "600m", vocab_size=151936, hidden_size=1024, num_layers=28, num_heads=16, num_kv_heads=8, head_dim=128,
        intermediate_size=3072, prompt_tokens=100, rollouts=8, new_tokens=32,
        together=False, warmup_steps=1, steps_per_round=1, check_rows=2,
    ),
}  # fmt: skip
"""600m is Qwen3-0.6B's shape."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What a peer is started with."""

    workload: Workload
    folder: str  # of the weights, as Hugging Face has them, with a tokenizer
    dtype: str  # "float32" or "bfloat16"
    device: str  # "cpu" or "gpu"
    cores: int


def prompt_ids(work: Workload) -> list[int]:
    """The one prompt. The last id is the tokenizer's end of text, which no prompt has."""
    draw = random.Random(0)
    return [draw.randrange(work.vocab_size - 1) for _ in range(work.prompt_tokens)]


def prompt_text(work: Workload) -> str:
    """The prompt in words of the benchmark's tokenizer: id 7 is "t7"."""
    return " ".join(f"t{i}" for i in prompt_ids(work))


def check_tokens(work: Workload) -> list[list[int]]:
    """The prompt with fixed random answers, whose log-probs all peers must agree on."""
    draw = random.Random(1)
    answers = [[draw.randrange(work.vocab_size - 1) for _ in range(work.new_tokens)] for _ in range(work.check_rows)]
    return [prompt_ids(work) + answer for answer in answers]


def even_share(ids: Sequence[int]) -> float:
    """The reward of an answer: the share of even ids. Answers of random weights differ in it, so no advantage is all 0.

    >>> even_share([2, 4, 5, 6])
    0.75
    """
    return sum(int(i) % 2 == 0 for i in ids) / len(ids)
