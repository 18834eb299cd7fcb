"""Reward functions by name: each gives one float per answer, before any weighting."""

from collections.abc import Sequence

from grpojax.tasks.answers import extract_answer
from grpojax.tasks.grading import Grader, grade


def correctness(text: str, gold: str) -> float:
    r"""1.0 if the last complete `\boxed{}` of the generated text alone holds the right answer, else 0.0.

    A right number outside a box earns nothing here, while an evaluation may count it (`fallback="last_number"`).

    >>> correctness(r"2 + 2 is \boxed{4}", "4"), correctness("The answer is 4.", "4")
    (1.0, 0.0)
    """
    answer = extract_answer(text)
    return float(answer != "" and grade(answer, gold))


def think_format(token_ids: Sequence[int], think_ids: tuple[int, int]) -> float:
    """1.0 if the generated ids open a think section before they first close one, else 0.0.

    Args:
      token_ids: the generated ids alone.
      think_ids: the ids of `<think>` and `</think>`.

    Source: book 7.6, the first of each decides.

    >>> think_format([7, 1, 5, 2, 9], (1, 2)), think_format([2, 1, 5, 2], (1, 2)), think_format([1, 5], (1, 2))
    (1.0, 0.0, 0.0)
    """
    ids = list(token_ids)
    opening, closing = think_ids
    if opening not in ids or closing not in ids:
        return 0.0
    return float(ids.index(opening) < ids.index(closing))


def score_answers(
    texts: Sequence[str],
    token_ids: Sequence[Sequence[int]],
    golds: Sequence[str],
    think_ids: tuple[int, int],
    format_weight: float | None,
    conditional: bool,
    grader: Grader,
) -> dict[str, list[float] | None]:
    """The rewards of a batch of answers, position by position.

    Args:
      texts: the generated texts, without their prompts.
      token_ids: the generated ids of each text.
      golds: the right answer to each.
      think_ids: the ids of `<think>` and `</think>`.
      format_weight: weight of the format reward; None where there is none.
      conditional: pay the format reward to correct answers only.
      grader: compares the answers, within its limits.

    Returns:
      "correct", "format" (None without a format reward) and "total" = correct + format_weight * format.
    """
    answers = [extract_answer(text) for text in texts]
    verdicts = grader.grade_many(list(zip(answers, golds, strict=True)))
    correct = [float(verdict) for verdict in verdicts]
    if format_weight is None:
        return {"correct": correct, "format": None, "total": correct}
    formats = [think_format(ids, think_ids) for ids in token_ids]
    if conditional:
        formats = [f * c for f, c in zip(formats, correct, strict=True)]
    total = [c + format_weight * f for c, f in zip(correct, formats, strict=True)]
    return {"correct": correct, "format": formats, "total": total}
