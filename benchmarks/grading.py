"""How good and how fast are the graders?

    python benchmarks/grading.py                      labelled pairs of tests/answers/, and answers per second
    python benchmarks/grading.py --outputs FILE.jsonl the verdicts on a model's answers, and where the graders differ
    python benchmarks/grading.py --golds FILE...      whether right answers equal themselves, and which cannot be read

`--outputs` takes rows with "gold" and one of "extracted", "answer" and "text" (whose last box is the answer), as an
evaluation writes them. `--golds` takes .json or .jsonl rows with "answer", of which only the part after #### counts.
math-verify is skipped if it is not installed.
"""

import argparse
import collections
import importlib.util
import json
import os
import platform
import random
import time
from pathlib import Path
from typing import Any

from grpojax.grading.answers import canonical_answer, extract_answer
from grpojax.grading.equality import tree_of
from grpojax.grading.grader import GRADERS, Grader, quick_verdict
from grpojax.grading.latex import TooLarge, Unreadable

ANSWERS = Path(__file__).parents[1] / "tests" / "answers"
NAMES = [name for name in GRADERS if name != "math-verify" or importlib.util.find_spec("math_verify")]


def rows_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text("utf-8")
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def verdicts_of(name: str, pairs: list[tuple[str, str]]) -> tuple[list[bool], int]:
    """The verdicts of a grader, and how many pairs hit a limit."""
    grader = Grader(name)
    verdicts = grader.grade_many(pairs)
    grader.close()
    return verdicts, grader.timeouts


def report_corpus(show_all: bool) -> None:
    rows = [row for path in sorted(ANSWERS.glob("*.jsonl")) if path.stem != "hostile" for row in rows_of(path)]
    same = sum(row["verdict"] == "same" for row in rows)
    print(f"{len(rows)} labelled pairs: {same} the same, {len(rows) - same} different\n")
    print("| grader | missed: the same, graded as different | accepted: different, graded as the same | hit a limit |")
    print("| --- | --- | --- | --- |")
    wrong = {}
    for name in NAMES:
        verdicts, at_limit = verdicts_of(name, [(row["answer"], row["gold"]) for row in rows])
        wrong[name] = [
            row for row, verdict in zip(rows, verdicts, strict=True) if verdict != (row["verdict"] == "same")
        ]
        missed = sum(row["verdict"] == "same" for row in wrong[name])
        print(f"| {name} | {missed} | {len(wrong[name]) - missed} | {at_limit} |")
    print("\nWrong verdicts by kind, as missed + accepted:\n")
    print(f"| kind | pairs | {' | '.join(NAMES)} |\n|{' --- |' * (len(NAMES) + 2)}")
    for kind, pairs in sorted(collections.Counter(row["kind"] for row in rows).items()):
        cells = []
        for name in NAMES:
            labels = [row["verdict"] for row in wrong[name] if row["kind"] == kind]
            cells.append(f"{labels.count('same')} + {labels.count('different')}" if labels else "")
        print(f"| {kind} | {pairs} | {' | '.join(cells)} |")
    for name in NAMES if show_all else []:
        for label, title in (("different", "accepted, but different"), ("same", "missed")):
            print(f"\n{name}, {title}:\n")
            for row in wrong[name]:
                if row["verdict"] == label:
                    print(f"- `{row['answer']}` for `{row['gold']}`")


def ordinary_pairs(count: int, group: int, seed: int = 0) -> list[tuple[str, str]]:
    """Answers in about the shares of MATH and GSM8K: three in five whole numbers, one in seven fractions, then
    decimals, roots, multiples of pi, polynomials, points, intervals, complex numbers, choices, and one in fifty that
    takes sympy. Half are right, in several spellings; `group` answers belong to one right answer.
    """
    draw = random.Random(seed)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        n = draw.choice([draw.randint(0, 20), draw.randint(-50, 200), draw.randint(100, 20_000)])
        a, b, c, p = draw.randint(2, 30), draw.randint(2, 30), draw.randint(2, 9), draw.choice([2, 3, 5, 7, 11, 13])
        whole = (
            [f"{n}", f"{n:,}", f"{n}.0", rf"\${n}", f"{n} apples", f"x = {n}"],
            [f"{n + 1}", f"{2 * n + 1}", f"{n}.5"],
        )
        fraction = [rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}", rf"\dfrac{{{2 * a}}}{{{2 * b}}}"]
        root = [rf"{a} \sqrt{{{p}}}", rf"\sqrt{{{a * a * p}}}"], [rf"{a + 1}\sqrt{{{p}}}", rf"\sqrt{{{a * p}}}"]
        circle = [rf"\pi\cdot {a}", rf"\frac{{{2 * a}\pi}}{{2}}"], [rf"{a + 1}\pi", f"{a * 3.14:.2f}"]
        polynomial = [f"{b}x-{c}+{a}x^2", f"x({a}x+{b})-{c}"], [f"{a}x^2-{b}x-{c}", f"{b}x^2+{a + 1}x"]
        point = [rf"\left({a},{b}\right)", f"({a}, {b})"], [f"({b + 1},{a})", f"[{a},{b}]"]
        interval = [rf"x\ge {a}", rf"\left[{a},\infty\right)"], [rf"({a},\infty)", f"{a}"]
        cube = [rf"\sqrt[3]{{{a**3 * p}}}", rf"\sqrt[3]{{{p}}}\cdot {a}"], [rf"{a}\sqrt{{{p}}}", f"{a}"]
        angle = [rf"{a}\cos {b}x", rf"\cos({b}x)\cdot {a}"], [rf"{a}\sin {b}x", rf"{b}\cos {a + 1}x"]
        kinds = [
            (62, f"{n}", *whole),
            (14, fraction[0], fraction, [rf"\frac{{{b + 1}}}{{{a}}}", f"{a / b:.3f}1", f"{a}"]),
            (4, f"{a}.{b}", [f"{a}.{b}0", rf"{a}.{b}\text{{ cm}}"], [f"{b}.{a}1", f"{a}"]),
            (5, rf"{a}\sqrt{{{p}}}", *root),
            (4, rf"{a}\pi", *circle),
            (4, f"{a}x^2+{b}x-{c}", *polynomial),
            (2, f"({a},{b})", *point),
            (1, rf"[{a},\infty)", *interval),
            (1, f"{a}+{b}i", [f"{b}i+{a}"], [f"{a}-{b}i"]),
            (1, r"\text{(C)}", ["C", "(C)"], ["B", "A"]),
            (1, rf"{a}\sqrt[3]{{{p}}}", *cube),
            (1, rf"{a}\cos({b}x)", *angle),
        ]
        _, gold, right, wrong = draw.choices(kinds, weights=[kind[0] for kind in kinds])[0]
        pairs += [(draw.choice(right if draw.random() < 0.5 else wrong), gold) for _ in range(group)]
    return pairs[:count]


def report_speed() -> None:
    """Cold: no pair and no right answer was seen before, the workers are running. Warm: the same batch again."""
    print(
        "\n| answers per gold | pairs | distinct | take sympy | cold, pairs/s | warm, pairs/s |\n|" + " --- |" * 6
    )
    for group in (8, 1):
        pairs = ordinary_pairs(10_000, group)
        distinct = list(dict.fromkeys(pairs))
        algebra = sum(quick_verdict(*pair) is None for pair in distinct)
        grader = Grader()
        grader.grade_many([(rf"\sqrt[3]{{{k**3 * 19}}}", rf"{k}\sqrt[3]{{19}}") for k in range(2, 8)])
        canonical_answer.cache_clear()
        tree_of.cache_clear()
        rates = []
        for _ in range(2):
            start = time.perf_counter()
            grader.grade_many(pairs)
            rates.append(f"{len(pairs) / (time.perf_counter() - start):,.0f}")
        grader.close()
        assert grader.timeouts == 0
        print(f"| {' | '.join(map(str, [group, len(pairs), len(distinct), algebra, *rates]))} |")
    print(f"\n{os.cpu_count()} cores ({platform.machine()}, {platform.system()}), Python {platform.python_version()}.")


def report_outputs(path: Path) -> None:
    pairs = []
    for row in rows_of(path):
        answer = row.get("extracted", row.get("answer"))
        pairs.append((extract_answer(row["text"]) if answer is None else answer, row["gold"]))
    print(f"{len(pairs)} answers, {sum(not answer for answer, _ in pairs)} of them empty\n")
    verdicts = {}
    for name in NAMES:
        verdicts[name], at_limit = verdicts_of(name, pairs)
        print(f"{name}: {sum(verdicts[name])} right, {at_limit} hit a limit")
    print(f"\nWhere they differ:\n\n| answer | gold | {' | '.join(NAMES)} |\n|{' --- |' * (len(NAMES) + 2)}")
    for index, (answer, gold) in enumerate(pairs):
        said = [verdicts[name][index] for name in NAMES]
        if len(set(said)) > 1:
            print(f"| `{answer[:80]}` | `{gold}` | {' | '.join('right' if one else 'wrong' for one in said)} |")


def report_golds(paths: list[Path]) -> None:
    for path in paths:
        golds = [row["answer"].rpartition("####")[2].strip() for row in rows_of(path)]
        grader = Grader()
        unread = []
        for gold in dict.fromkeys(golds):
            try:
                tree_of(canonical_answer(gold))
            except (Unreadable, TooLarge):
                unread.append(gold)
        itself = sum(grader.grade_many([(gold, gold) for gold in golds]))
        spaced = sum(
            grader.grade_many([(f"$ {gold.replace('{', '{ ').replace('=', ' = ')} $", gold) for gold in golds])
        )
        print(f"{path.name}: {itself} of {len(golds)} equal themselves, {spaced} with other spacing; unreadable: {unread}")
        grader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=Path, help="a .jsonl file of model answers with their golds")
    parser.add_argument("--golds", type=Path, nargs="+", help="files of right answers")
    parser.add_argument("--list", action="store_true", help="print every wrong verdict on the labelled pairs")
    arguments = parser.parse_args()
    if arguments.outputs:
        report_outputs(arguments.outputs)
    elif arguments.golds:
        report_golds(arguments.golds)
    else:
        report_corpus(arguments.list)
        report_speed()


if __name__ == "__main__":
    main()
