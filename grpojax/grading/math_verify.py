"""The verdicts of the math-verify library, for comparison. It runs only in a worker process, within its limits, because
its parser evaluates what looks like a Python expression.

Source: https://github.com/huggingface/Math-Verify, installed by the extra `verify`.
"""


def verdict(answer: str, gold: str) -> str:
    """`=`, `!` or `?` for a pair of raw answers, each read as LaTeX between dollar signs."""
    import math_verify  # optional

    try:
        parsed = [math_verify.parse(f"${text}$", parsing_timeout=None) for text in (gold, answer)]
        return "=" if all(parsed) and math_verify.verify(*parsed, timeout_seconds=None) else "!"
    except MemoryError:
        return "?"
    except Exception:  # noqa: BLE001 - sympy raises anything
        return "!"
