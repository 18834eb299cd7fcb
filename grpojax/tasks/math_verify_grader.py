"""The verdicts of the math-verify library, for comparison. It runs in a worker process only: its limits are those of
the worker, and its reader evaluates what it takes for Python expressions.

Source: https://github.com/huggingface/Math-Verify, installed by the extra `verify`.
"""


def verdict(answer: str, gold: str) -> str:
    """`=`, `!` or `?` for a pair of raw answers, each read as LaTeX between dollar signs."""
    import math_verify  # not everywhere installed

    try:
        parsed = [math_verify.parse(f"${text}$", parsing_timeout=None) for text in (gold, answer)]
        return "=" if all(parsed) and math_verify.verify(*parsed, timeout_seconds=None) else "!"
    except MemoryError:
        return "?"
    except Exception:  # noqa: BLE001 - sympy raises anything
        return "!"
