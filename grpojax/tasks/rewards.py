"""Reward functions by name: each gives one float per answer, before any weighting, or None to abstain."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from grpojax.errors import InputError, did_you_mean
from grpojax.grading.answers import extract_answer
from grpojax.grading.grader import Grader
from grpojax.plugins import import_object


@dataclasses.dataclass(frozen=True)
class Answer:
    """One generated answer with all that a reward function may look at."""

    problem: str  # the problem's text
    gold: str  # its right answer
    text: str  # the generated text alone, special tokens included
    token_ids: Sequence[int]  # the generated ids alone, the first stop token included
    truncated: bool  # the budget ran out before a stop token
    budget: int  # tokens an answer may have
    think_ids: tuple[int, int] | None = None  # of <think> and </think>; None where the tokenizer has none
    correct: bool = False  # the grader's verdict on the last box of the text
    correct_or_number: bool = False  # its verdict on the last box, or else on the last number; only where a reward asks for it

    @property
    def extracted(self) -> str:
        r"""What stands in the last complete `\boxed{}`; "" without one."""
        return extract_answer(self.text)


def correct(answer: Answer) -> float:
    r"""1.0 if the last complete `\boxed{}` of the generated text alone holds the right answer, else 0.0.

    A right number outside a box earns nothing here, while an evaluation may count it.
    """
    return float(answer.correct)


def correct_or_number(answer: Answer) -> float:
    """As `correct`, with the last number of a text that has no box. Source: the book's script gdpo.py of 7.6.3."""
    return float(answer.correct_or_number)


def boxed(answer: Answer) -> float:
    r"""1.0 if the text has a complete `\boxed{}` that is not empty. Source: the book's script gdpo.py of 7.6.3."""
    return float(answer.extracted != "")


def think_format(answer: Answer) -> float:
    """1.0 if the generated ids open a think section before they first close one, else 0.0.

    Source: book 7.6, the first of each decides.
    """
    opening, closing = answer.think_ids
    ids = list(answer.token_ids)
    if opening not in ids or closing not in ids:
        return 0.0
    return float(ids.index(opening) < ids.index(closing))


def overlong(answer: Answer, overlong_cache: float | None = None) -> float:
    """0 up to budget - cache tokens, from there falling in a line to -1 at the budget.

    Args:
      overlong_cache: the cache, in tokens; None: a fifth of the budget, as in the paper (4,096 of 20,480).

    Source: arXiv:2503.14476 (DAPO), eq. 13. Budget 100, cache 20, 95 tokens: (80 - 95) / 20.

    >>> overlong(Answer("", "", "", [0] * 95, False, 100), 20)
    -0.75
    """
    cache = answer.budget / 5 if overlong_cache is None else overlong_cache
    return max(-1.0, min(0.0, (answer.budget - cache - len(answer.token_ids)) / cache))


def repetition(answer: Answer) -> float:
    """Minus the share of the text's three-word runs that were there before: 0 without any, towards -1 for a loop.

    Source: Open-R1, `rewards.py`, get_repetition_penalty_reward with n-grams of 3 words and a penalty of at most 1.
    "a b c a b c" has the runs abc, bca, cab, abc: one of four is a repetition.

    >>> repetition(Answer("", "", "a b c A B c", [], False, 100))
    -0.25
    """
    words = answer.text.lower().split()
    runs = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(runs)) / len(runs) - 1.0 if runs else 0.0


REWARDS: dict[str, Callable[..., float | None]] = {
    "correct": correct,
    "correct_or_number": correct_or_number,
    "format": think_format,
    "boxed": boxed,
    "overlong": overlong,
    "repetition": repetition,
}
"""Every reward function by the name a variant gives it. A user's own is named "module:function"."""


def reward_function(name: str) -> Callable[..., float | None]:
    """A reward function by name: one of `REWARDS`, or a user's own as "module:function", imported.

    A user's function takes one `Answer` and returns a float, or None to abstain: the answer then gets nothing from it,
    and where all abstain it takes no part in its group.

    Raises:
      InputError: for an unknown name, a module that cannot be imported, or a name in it that is no function.
    """
    if name in REWARDS:
        return REWARDS[name]
    if ":" not in name:
        raise InputError(
            f"unknown reward {name!r}; choose one of {', '.join(REWARDS)}, or your own as module:function."
            f"{did_you_mean(name, REWARDS)}"
        )
    function = import_object("reward", name)
    if not callable(function):
        raise InputError(f"reward {name!r} is a value of type {type(function).__name__}, not a function; name a function.")
    return function


def grade_answers(answers: Sequence[Answer], names: Sequence[str], grader: Grader) -> Callable[[], list[Answer]]:
    """Starts grading, in the grader's own processes; what is returned waits for the answers with their verdicts.

    Args:
      names: the reward functions that will be asked: only some need a second verdict.
    """
    wanted = [(answer.extracted, answer.gold) for answer in answers]
    numbered = "correct_or_number" in names
    if numbered:
        wanted += [(a.extracted or extract_answer(a.text, "last_number"), a.gold) for a in answers]
    pending = grader.submit(wanted)

    def wait() -> list[Answer]:
        verdicts = pending.result()
        seconds = verdicts[len(answers) :] if numbered else [False] * len(answers)
        return [
            dataclasses.replace(answer, correct=first, correct_or_number=second)
            for answer, first, second in zip(answers, verdicts[: len(answers)], seconds, strict=True)
        ]

    return wait


def score_answers(
    answers: Sequence[Answer], names: Sequence[str], *, conditional: bool = False, overlong_cache: float | None = None
) -> dict[str, list[float]]:
    """The rewards of a batch of graded answers, position by position.

    Args:
      answers: as `grade_answers` gives them back.
      names: reward functions, see `reward_function`.
      conditional: pay the format reward to correct answers only.
      overlong_cache: see `overlong`.

    Returns:
      For each name its rewards; NaN where it abstains.

    Raises:
      InputError: if a user's function raises or returns something else than a finite number or None; it names it.
    """
    functions = {name: reward_function(name) for name in names}
    rewards = {name: [_reward(name, functions[name], answer, overlong_cache) for answer in answers] for name in names}
    if conditional:
        rewards["format"] = [r * a.correct for r, a in zip(rewards["format"], answers, strict=True)]
    return rewards


def _reward(name: str, function: Callable[..., float | None], answer: Answer, overlong_cache: float | None) -> float:
    if function is overlong:
        return overlong(answer, overlong_cache)
    if name in REWARDS:
        return function(answer)
    try:
        value = function(answer)
        value = math.nan if value is None else float(value)
    except Exception as error:  # a user's function may raise anything
        raise InputError(f"reward {name!r} failed on an answer ({type(error).__name__}: {error}); mend the function.") from error
    if math.isinf(value):
        raise InputError(f"reward {name!r} returned {value}; return a finite number, or None to abstain.")
    return value
