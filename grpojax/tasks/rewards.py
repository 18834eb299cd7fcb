"""Reward functions by name. Each returns one float per answer, before weighting, or None to abstain."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from grpojax.errors import InputError, did_you_mean
from grpojax.grading.answers import extract_answer
from grpojax.grading.grader import Grader
from grpojax.plugins import import_object


@dataclasses.dataclass(frozen=True)
class Answer:
    """One generated answer with everything that a reward function can use."""

    problem: str  # the problem's text
    gold: str  # the correct answer
    text: str  # the generated text without the prompt, special tokens included
    token_ids: Sequence[int]  # the generated ids, including the stop token
    truncated: bool  # the token budget ran out before a stop token
    budget: int  # maximum number of generated tokens
    think_ids: tuple[int, int] | None = None  # of <think> and </think>; None if the tokenizer has none
    correct: bool = False  # the grader's verdict on `extracted`
    correct_or_number: bool = False  # the same, with the last number of a text without a box; only if a reward needs it

    @property
    def extracted(self) -> str:
        r"""The content of the last complete `\boxed{}`; "" without one."""
        return extract_answer(self.text)


def correct(answer: Answer) -> float:
    r"""1.0 if the last complete `\boxed{}` of the generated text has the correct answer, else 0.0."""
    return float(answer.correct)


def correct_or_number(answer: Answer) -> float:
    """Like `correct`, but without a box the last number counts. Source: the book's script gdpo.py of 7.6.3."""
    return float(answer.correct_or_number)


def boxed(answer: Answer) -> float:
    r"""1.0 if the text has a complete, non-empty `\boxed{}`, else 0.0. Source: the book's script gdpo.py of 7.6.3."""
    return float(answer.extracted != "")


def think_format(answer: Answer) -> float:
    """1.0 if the first <think> comes before the first </think>, else 0.0. Source: book 7.6."""
    ids, (opening, closing) = list(answer.token_ids), answer.think_ids
    return float(opening in ids and closing in ids and ids.index(opening) < ids.index(closing))


def overlong(answer: Answer, overlong_cache: float | None = None) -> float:
    """0 up to budget - cache tokens, then falling linearly to -1 at the budget.

    Args:
      overlong_cache: the cache, in tokens; None means a fifth of the budget, as in the paper (4,096 of 20,480).

    Source: arXiv:2503.14476 (DAPO), eq. 13. Budget 100, cache 20, 95 tokens: (80 - 95) / 20.

    >>> overlong(Answer("", "", "", [0] * 95, False, 100), 20)
    -0.75
    """
    cache = answer.budget / 5 if overlong_cache is None else overlong_cache
    return max(-1.0, min(0.0, (answer.budget - cache - len(answer.token_ids)) / cache))


def repetition(answer: Answer) -> float:
    """Minus the share of repeated 3-grams of words: 0 without repetition, close to -1 for a loop.

    Source: Open-R1, `rewards.py`, get_repetition_penalty_reward with n-grams of 3 words and a maximum penalty of 1.
    Of the 3-grams abc, bca, cab, abc one of four is a repetition:

    >>> repetition(Answer("", "", "a b c A B c", [], False, 100))
    -0.25
    """
    words = answer.text.lower().split()
    ngrams = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(ngrams)) / len(ngrams) - 1.0 if ngrams else 0.0


REWARDS: dict[str, Callable[..., float | None]] = {
    "correct": correct,
    "correct_or_number": correct_or_number,
    "format": think_format,
    "boxed": boxed,
    "overlong": overlong,
    "repetition": repetition,
}
"""The built-in reward functions. A user's own function is named "module:function"."""


def reward_function(name: str) -> Callable[..., float | None]:
    """Looks up a reward function: one of `REWARDS`, or a user's own as "module:function".

    A user's function takes one `Answer` and returns a float, or None to abstain. An answer on which all functions
    abstain is left out of its group.

    Raises:
      InputError: for an unknown name, a module that cannot be imported, or a name that is not a function.
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
        raise InputError(f"reward {name!r} is of type {type(function).__name__}, not a function; name a function.")
    return function


def grade_answers(answers: Sequence[Answer], names: Sequence[str], grader: Grader) -> Callable[[], list[Answer]]:
    """Starts grading in the grader's processes.

    Args:
      names: the reward functions that `score_answers` will call; "correct_or_number" needs a second verdict.

    Returns:
      A function that waits for the verdicts and returns the answers with them.
    """
    pairs = [(answer.extracted, answer.gold) for answer in answers]
    if "correct_or_number" in names:
        pairs += [(a.extracted or extract_answer(a.text, "last_number"), a.gold) for a in answers]
    pending = grader.submit(pairs)

    def wait() -> list[Answer]:
        verdicts = pending.result()
        boxed, numbered = verdicts[: len(answers)], verdicts[len(answers) :] or [False] * len(answers)
        return [
            dataclasses.replace(answer, correct=correct, correct_or_number=correct_or_number)
            for answer, correct, correct_or_number in zip(answers, boxed, numbered, strict=True)
        ]

    return wait


def score_answers(
    answers: Sequence[Answer], names: Sequence[str], *, conditional: bool = False, overlong_cache: float | None = None
) -> dict[str, list[float]]:
    """The rewards of graded answers.

    Args:
      names: names for `reward_function`.
      conditional: give the format reward to correct answers only.

    Returns:
      By name, one reward per answer; NaN where the function abstains.

    Raises:
      InputError: if a user's function raises, or returns anything but a finite number or None.
    """
    rewards = {}
    for name in names:
        function = reward_function(name)
        if function is overlong:
            function = functools.partial(overlong, overlong_cache=overlong_cache)
        rewards[name] = [_reward(name, function, answer) for answer in answers]
    if conditional:
        rewards["format"] = [r * a.correct for r, a in zip(rewards["format"], answers, strict=True)]
    return rewards


def _reward(name: str, function: Callable[[Answer], float | None], answer: Answer) -> float:
    if name in REWARDS:
        return function(answer)
    try:
        value = function(answer)
        value = math.nan if value is None else float(value)
    except Exception as error:  # a user's function may raise anything
        message = f"reward {name!r} failed on an answer ({type(error).__name__}: {error}); fix the function."
        raise InputError(message) from error
    if math.isinf(value):
        raise InputError(f"reward {name!r} returned {value}; return a finite number, or None to abstain.")
    return value
