"""Evaluations: statistics computed by hand, the report, the comparison, and the results file."""

import json
import math
import random

import pytest

from grpojax.errors import InputError
from grpojax.records import EvalRow
from grpojax.reporting.evaluation import (
    append_result,
    difference_interval,
    format_comparison,
    format_report,
    majority_correct,
    open_results,
    paired_p_value,
    pass_at_k,
    read_results,
    settings_file,
    share_interval,
    wilson_interval,
)

# --- intervals ---


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        # z^2 = 3.841459. 8 of 10: center (0.8 + 0.192073) / 1.384146 = 0.716740, half width
        # 1.959964 sqrt(0.016 + 0.009604) / 1.384146 = 0.226577. The normal interval is 0.552 to 1.048.
        (8, 10, 0.4902, 0.9433),
        # 0 of 20: the lower end is 0, the upper z^2 / (20 + z^2) = 3.841459 / 23.841459. The normal one has no width.
        (0, 20, 0.0, 0.1611),
        (20, 20, 0.8389, 1.0),
        # 81 of 263, the example of R. G. Newcombe, Stat. Med. 17 (1998) 857: 0.2553 to 0.3662.
        (81, 263, 0.2553, 0.3662),
    ],
)
def test_wilson_by_hand(right, count, low, high):
    assert wilson_interval(right / count, count) == pytest.approx((low, high), abs=5e-5)
    # With one answer per problem it is the same interval, in any order.
    assert share_interval([1] * right + [0] * (count - right)) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_of_samples_by_hand():
    # Four problems of 4 answers, with 4, 4, 2 and 0 correct: mean 0.625. With two more all correct and two all wrong,
    # the mean is (2.5 + 2) / 8 = 0.5625, the variance (1 + 1 + 0.25 + 2) / 8 - 0.5625^2 = 0.53125 - 0.316406
    # = 0.214844, its maximum 0.5625 x 0.4375 = 0.246094; r = 0.873016, so the effective number of problems is 4.581818.
    expected = wilson_interval(0.625, 4.581818)
    assert share_interval([1, 1, 0.5, 0], trials=4) == pytest.approx(expected, abs=1e-6)
    # It is between 16 independent answers and 4 problems with one answer each.
    narrow, wide = wilson_interval(0.625, 16), wilson_interval(0.625, 4)
    assert wide[0] < expected[0] < narrow[0] < 0.625 < narrow[1] < expected[1] < wide[1]


def test_many_samples_of_problems_never_solved_are_worth_one_each():
    assert share_interval([0.0] * 20, trials=64) == pytest.approx(wilson_interval(0.0, 20), abs=1e-12)
    assert share_interval([1.0] * 20, trials=64) == pytest.approx(wilson_interval(1.0, 20), abs=1e-12)
    # One correct answer of 1280 does not turn 20 problems into many (the variance alone would say 1280).
    low, high = share_interval([1 / 64] + [0.0] * 19, trials=64)
    assert low < 1 / 1280 < 0.15 < high < 0.165


def test_equal_shares_count_as_at_most_independent_answers():
    # 10,000 problems with 2 of 4 correct have no variance, but no more information than 40,000 coin tosses.
    assert share_interval([0.5] * 10_000, trials=4) == pytest.approx(wilson_interval(0.5, 40_000), abs=1e-12)


def test_the_interval_covers_the_true_mean_95_percent_of_the_time_and_the_naive_one_does_not():
    # 50 problems of 16 samples. Most are almost never solved, some almost always: Beta(0.2, 1.8), mean 0.1.
    rng = random.Random(0)
    covered = naive = 0
    for _ in range(1000):
        rates = [rng.betavariate(0.2, 1.8) for _ in range(50)]
        shares = [sum(rng.random() < rate for _ in range(16)) / 16 for rate in rates]
        low, high = share_interval(shares, trials=16)
        covered += low <= 0.1 <= high
        low, high = wilson_interval(sum(shares) / 50, 800)
        naive += low <= 0.1 <= high
    assert covered >= 950
    assert naive <= 650


def test_difference_interval_by_hand():
    # Only B solves 3 of 10, only A solves 1. Mean 2 / 12; variance (4 + 1) / 12 - (2 / 12)^2 = 0.388889; its root over
    # sqrt(12) is 0.1800206; 0.1666667 -+ 1.959964 x 0.1800206.
    differences = [1, 1, 1, -1] + [0] * 6
    assert difference_interval(differences) == pytest.approx((-0.186167, 0.519501), abs=1e-6)
    # No observed difference still leaves some uncertainty: 0 -+ 1.959964 sqrt((1 / 12) / 12).
    assert difference_interval([0] * 10) == pytest.approx((-0.163330, 0.163330), abs=1e-6)
    assert difference_interval([1, 1])[1] == 1.0  # clipped


# --- several samples ---


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [
        # 1 - C(n - c, k) / C(n, k); in the comments 1 - (1 - c/n)^k, which is too low.
        (4, 1, 2, 1 - 3 / 6),  # 0.5, not 0.4375
        (4, 2, 2, 1 - 1 / 6),  # 0.8333, not 0.75
        (10, 3, 5, 1 - 21 / 252),  # 0.9167, not 0.8319
        (8, 0, 8, 0.0),
        (8, 1, 8, 1.0),
        (8, 5, 4, 1.0),  # only 3 are wrong, so one of any 4 is correct
        (8, 3, 1, 3 / 8),
    ],
)
def test_pass_at_k_by_formula(samples, correct, k, expected):
    assert pass_at_k(samples, correct, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("rate", "k"), [(0.3, 2), (0.3, 5), (0.9, 3)])
def test_pass_at_k_is_unbiased(rate, k):
    # Its mean over the binomial number of correct samples is the probability that one of k answers is correct.
    probabilities = [math.comb(6, c) * rate**c * (1 - rate) ** (6 - c) for c in range(7)]
    mean = sum(p * pass_at_k(6, c, k) for c, p in enumerate(probabilities))
    assert mean == pytest.approx(1 - (1 - rate) ** k, abs=1e-12)


@pytest.mark.parametrize(
    ("same_as", "correct", "expected"),
    [
        ([0, 1, 0, 3], [True, False, True, False], True),
        ([0, 1, 1, 3], [True, False, False, False], False),  # a correct answer, outvoted
        ([0, 1, 1, 0], [False, True, True, False], False),  # a tie: the first one
        ([None, None, None, 3], [False, False, False, True], True),  # no answer, no vote
        ([None, None], [False, False], False),
    ],
)
def test_majority(same_as, correct, expected):
    assert majority_correct(same_as, correct) is expected


# --- p-values ---


@pytest.mark.parametrize(
    ("b", "c", "expected"),
    [
        # Twice the binomial tail of b + c fair coins: 2 (C(6,0) + C(6,1)) / 64 = 14 / 64.
        (5, 1, 14 / 64),
        (0, 6, 2 / 64),
        (10, 0, 2 / 1024),
        (2, 9, 2 * (1 + 11 + 55) / 2048),
        (4, 4, 1.0),  # twice the tail exceeds 1
        (0, 0, 1.0),
        (1, 0, 1.0),
    ],
)
def test_mcnemar_by_binomial_counts(b, c, expected):
    assert paired_p_value([1] * b + [-1] * c + [0] * 7) == pytest.approx(expected, abs=1e-15)


def test_sign_flips_by_enumeration():
    # |3|, |2|, |1| with signs ++-: sum 4. Of the 8 patterns 6 (+++), 4 (++-), -4 and -6 are as far from 0: p = 1/2.
    # A sign test that ignores the sizes (2 up, 1 down) would give 1.
    assert paired_p_value([3, 2, -1, 0]) == 0.5
    # 2, 2, 1 all up: only +++ and --- reach a sum of 5.
    assert paired_p_value([2, 2, 1]) == 0.25


def test_sign_flips_of_a_large_evaluation():
    # 500 problems of 64 samples: 40 up by 64, 20 down by 64, the others equal. A binomial tail of 60 coins.
    p = paired_p_value([64] * 40 + [-64] * 20 + [0] * 440)
    tail = sum(math.comb(60, i) for i in range(21))
    assert p == pytest.approx(2 * tail / 2**60, rel=1e-9)


# --- the report ---


def row(index, correct, extracted="7", **changes):
    """A row with a single answer, or several if `correct` is a list."""
    each = (lambda value: [value] * len(correct)) if isinstance(correct, list) else (lambda value: value)
    return EvalRow.from_json({
        "index": index, "problem": f"{index} + 0", "gold": str(index), "subject": "", "level": None, "text": each("t"),
        "extracted": each(extracted), "correct": correct, "extracted_or_last_number": each(extracted),
        "correct_or_last_number": correct, "length": each(10), "truncated": each(False),
    } | changes)  # fmt: skip


def test_report_of_single_answers():
    rows = [
        row(0, True, level=1, subject="Algebra", length=4),
        row(1, False, "", level=2, subject="Algebra", correct_or_last_number=True, length=7),
        row(2, False, level=2, subject="Geometry", truncated=True, length=12),
        row(3, False, level=2, subject="Geometry", length=11),
    ]
    # Wilson: 1 of 4 is 4.6 to 69.9, 2 of 4 15.0 to 85.0, 0 of 3 0 to 56.1, 1 of 2 9.5 to 90.5, 1 of 1 20.7 to 100.
    assert format_report(rows).splitlines() == [
        "                                    %   95 % interval",
        "accuracy, boxed                  25.0     4.6 to  69.9   1 of 4",
        "accuracy, boxed-or-last-number   50.0    15.0 to  85.0   2 of 4",
        "level 1                         100.0    20.7 to 100.0   1 of 1",
        "level 2                           0.0     0.0 to  56.1   0 of 3",
        "Algebra                          50.0     9.5 to  90.5   1 of 2",
        "Geometry                          0.0     0.0 to  65.8   0 of 2",
        "8.5 tokens on average, the longest answer 12; 25.0 % cut off, 25.0 % without an answer in a box",
    ]
    # The chosen rule comes first, and the groups follow it.
    lines = format_report(rows, "boxed-or-last-number").splitlines()
    assert lines[1].startswith("accuracy, boxed-or-last-number   50.0")
    assert lines[2].startswith("accuracy, boxed                  25.0")
    assert lines[4].startswith("level 2                          33.3")


def test_report_of_several_samples():
    rows = [
        # 2 of 4 correct, and two different wrong answers.
        row(0, [True, False, True, False], same_as=[0, 1, 0, 3], same_as_or_last_number=[0, 1, 0, 3]),
        # 1 of 4 correct, outvoted.
        row(1, [True, False, False, False], same_as=[0, 1, 1, 1], same_as_or_last_number=[0, 1, 1, 1]),
        row(
            2,
            [False] * 4,
            extracted="",
            same_as=[None] * 4,
            same_as_or_last_number=[None] * 4,
            truncated=[True, False] * 2,
        ),
    ]
    lines = format_report(rows).splitlines()
    assert [line[:36] for line in lines[1:-1]] == [
        "accuracy, boxed                  25.",  # 3 of 12
        "accuracy, boxed-or-last-number   25.",
        "pass@2                           44.",  # (5/6 + 1/2 + 0) / 3 = 0.4444
        "pass@4                           66.",  # 2 of 3
        "majority of 4                    33.",  # 1 of 3
    ]
    assert lines[1].endswith("3 of 12 answers, 3 problems")
    assert lines[5].endswith("   1 of 3 problems")
    assert lines[-1].endswith("16.7 % cut off, 33.3 % without an answer in a box")
    # pass@4 of 4 samples is one trial per problem: 2 of 3.
    low, high = wilson_interval(2 / 3, 3)
    assert f"66.7   {100 * low:5.1f} to {100 * high:5.1f}" in lines[4]


def test_pass_at_k_is_shown_for_powers_of_two_and_all_samples():
    rows = [row(0, [True] * 6, same_as=[0] * 6, same_as_or_last_number=[0] * 6)]
    assert [line.split()[0] for line in format_report(rows).splitlines() if line.startswith("pass")] == [
        "pass@2",
        "pass@4",
        "pass@6",
    ]


OLD_ROW = {"problem": "1", "gold": "1", "text": "", "extracted": "1", "correct": True, "length": 3, "truncated": False}


def test_rows_without_the_second_rule_have_one_accuracy():
    assert len(format_report([EvalRow.from_json(OLD_ROW)]).splitlines()) == 3


@pytest.mark.parametrize(
    "line",
    [
        '{"index": 3, "problem": "1 + 1", "gold": "2", "subject": "sums", "level": null, "text": "t", '
        '"extracted": "2", "correct": true, "extracted_or_last_number": "2", "correct_or_last_number": true, '
        '"length": 5, "truncated": false}',
        '{"index": 0, "problem": "1 + 1", "gold": "2", "subject": "", "level": 1, "text": ["t", "u"], '
        '"extracted": ["2", ""], "correct": [true, false], "same_as": [0, null], '
        '"extracted_or_last_number": ["2", "3"], "correct_or_last_number": [true, false], '
        '"same_as_or_last_number": [0, 1], "length": [5, 6], "truncated": [false, true]}',
    ],
)
def test_a_row_on_disk_has_plain_values_for_a_single_answer_and_lists_for_several(line):
    assert json.dumps(EvalRow.from_json(json.loads(line)).to_json()) == line


# --- the comparison ---


def write(path, rows, settings=None):
    path.write_text("".join(json.dumps(one if isinstance(one, dict) else one.to_json()) + "\n" for one in rows))
    if settings:
        settings_file(path).write_text(json.dumps(settings))
    return path


def test_comparison_of_greedy_evaluations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Only A solves 1, only B 5, both 2, neither 2.
    a = [1, 0, 0, 0, 0, 0, 1, 1, 0, 0]
    b = [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]
    write(tmp_path / "a.jsonl", [row(i, bool(x)) for i, x in enumerate(a)])
    write(tmp_path / "b.jsonl", [row(i, bool(x)) for i, x in reversed(list(enumerate(b)))])  # in another order
    # Mean 4 / 12, variance 7 / 12 - 1 / 9 = 0.472222, reach 1.959964 sqrt(0.472222 / 12) = 0.388806.
    assert format_comparison("a.jsonl", "b.jsonl").splitlines() == [
        "accuracy, boxed      %   95 % interval",
        "A  a.jsonl        30.0    10.8 to  60.3   3 of 10",
        "B  b.jsonl        70.0    39.7 to  89.2   7 of 10",
        "of 10 problems B is better on 5, A on 1",
        "B - A: +40.0 points, 95 % interval -5.5 to +72.2",
        "p = 0.22 (McNemar's exact test)",  # 14 / 64
    ]
    assert "p = 1.00" in format_comparison("a.jsonl", "a.jsonl")


def test_comparison_of_samples_and_settings(tmp_path):
    same = {"same_as": [0, 0], "same_as_or_last_number": [0, 0]}
    rows_a = [row(i, [False, False], **same) for i in range(3)]
    rows_b = [row(0, [True, True], **same), row(1, [True, True], **same), row(2, [True, False], **same)]
    a = write(tmp_path / "a.jsonl", rows_a, {"problems": 3, "max_new_tokens": 64, "model": "a"})
    b = write(tmp_path / "b.jsonl", rows_b, {"problems": 3, "max_new_tokens": 128, "model": "b"})
    lines = format_comparison(a, b).splitlines()
    assert "B - A: +83.3 points" in lines[4]
    assert lines[5] == "p = 0.25 (exact sign-flip test over problems)"  # 2, 2, 1 all up: 2 of 8 sign patterns
    assert lines[6] == "they also differ in max_new_tokens (64 -> 128)"  # the models differ on purpose
    settings_file(b).unlink()  # evaluations of a run have no settings
    assert format_comparison(a, b).splitlines() == lines[:6]


def test_comparison_by_the_other_rule(tmp_path):
    a = write(tmp_path / "a.jsonl", [row(i, False) for i in range(8)])
    b = write(tmp_path / "b.jsonl", [row(i, False, correct_or_last_number=True) for i in range(8)])
    assert "p = 1.00" in format_comparison(a, b)
    by_number = format_comparison(a, b, "boxed-or-last-number")
    assert "p = 0.0078" in by_number  # 2 / 256
    assert by_number.startswith("accuracy, boxed-or-last-number")


def test_a_repeated_problem_counts_twice(tmp_path):
    twice = [row(0, True), row(1, False, problem="0 + 0", gold="0")]
    a = write(tmp_path / "a.jsonl", twice)
    assert "of 2 problems" in format_comparison(a, a)
    b = write(tmp_path / "b.jsonl", twice[:1])
    with pytest.raises(InputError, match=r"different problems \(2 and 1\): only .*a\.jsonl has '0 \+ 0'"):
        format_comparison(a, b)


@pytest.mark.parametrize(
    ("rows_b", "message"),
    [
        (
            [row(0, True), row(5, True)],
            r"a\.jsonl and .*b\.jsonl have different problems \(2 and 2\): only .*a\.jsonl has '1 \+ 0' with the "
            r"answer '1'; evaluate both on the same --dataset and --limit\.",
        ),
        (
            [row(0, True), row(1, True, gold="one")],
            r"only .*a\.jsonl has '1 \+ 0' with the answer '1'",
        ),
        (
            [row(0, True), row(1, True), row(2, True, problem="x" * 70)],
            r"\(2 and 3\): only .*b\.jsonl has 'x{57}\.\.\.' with the answer '2'",
        ),
        (
            [row(i, [True, False]) for i in range(2)],
            r"a\.jsonl has 1 answer per problem and .*b\.jsonl has 2; evaluate both with the same --samples\.",
        ),
        ([], r"b\.jsonl is not finished: it has 0 of 0 problems"),
    ],
)
def test_evaluations_that_cannot_be_paired(rows_b, message, tmp_path):
    a = write(tmp_path / "a.jsonl", [row(0, True), row(1, False)])
    b = write(tmp_path / "b.jsonl", rows_b)
    with pytest.raises(InputError, match=message):
        format_comparison(a, b)


def test_files_that_cannot_be_read(tmp_path):
    a = write(tmp_path / "a.jsonl", [row(0, True)])
    with pytest.raises(
        InputError, match=r"cannot read .*none\.jsonl \(No such file or directory\); give a file that `grpo"
    ):
        format_comparison(a, tmp_path / "none.jsonl")
    unfinished = write(tmp_path / "b.jsonl", [row(0, True)], {"problems": 4})
    with pytest.raises(InputError, match=r"b\.jsonl is not finished: it has 1 of 4 problems; run its command again"):
        format_comparison(a, unfinished)
    with pytest.raises(InputError, match=r"c\.jsonl, line 1 has no 'correct_or_last_number'; give a file that `"):
        format_comparison(write(tmp_path / "c.jsonl", [OLD_ROW]), a, "boxed-or-last-number")
    (tmp_path / "d.jsonl").write_text('{"problem": "1"}\n')
    with pytest.raises(InputError, match=r"d\.jsonl, line 1 has no 'gold'"):
        read_results(tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match=r"d\.jsonl, line 1 has no 'problem'"):
        read_results(tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl").write_text("\x00\n")
    with pytest.raises(InputError, match=r"d\.jsonl, line 1 is not valid JSON; fix or delete the line"):
        read_results(tmp_path / "d.jsonl")
    settings_file(tmp_path / "a.jsonl").write_text("[")
    with pytest.raises(InputError, match=r"a\.settings\.json has no settings of an evaluation; evaluate again"):
        read_results(tmp_path / "a.jsonl")


# --- files ---

SETTINGS = {"problems": 3, "max_new_tokens": 64, "temperature": 0.8, "template": "x" * 300}


def test_a_results_file_is_created_and_continued(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    assert open_results(path, SETTINGS) == []
    assert json.loads((tmp_path / "new" / "results.settings.json").read_text()) == SETTINGS
    rows = [row(2, True, text="½\n"), row(0, False)]
    for one in rows:
        append_result(path, one)
    whole = path.read_bytes()
    assert open_results(path, SETTINGS) == rows
    # After a crash in the middle of a line, only the torn line is removed.
    path.write_bytes(whole + b'{"index": 1, "probl')
    assert open_results(path, SETTINGS) == rows
    assert path.read_bytes() == whole
    append_result(path, row(1, True))
    assert [one.index for one in read_results(path)] == [0, 1, 2]


def test_a_crash_before_the_first_row(tmp_path):
    path = tmp_path / "results.jsonl"
    open_results(path, SETTINGS)
    path.unlink()
    assert open_results(path, SETTINGS) == []
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"max_new_tokens": 128, "temperature": 1.0},
            r"results\.jsonl was started with other settings: max_new_tokens \(64 -> 128\), "
            r"temperature \(0\.8 -> 1\.0\); use the same settings, or choose another --out\.",
        ),
        ({"template": "y" * 300}, r"other settings: template; use"),  # too long to show
        ({"top_p": 0.9}, r"other settings: top_p \(null -> 0\.9\)"),
    ],
)
def test_other_settings_are_refused_and_nothing_changes(change, message, tmp_path):
    path = tmp_path / "results.jsonl"
    open_results(path, SETTINGS)
    path.write_bytes(b'{"torn')
    with pytest.raises(InputError, match=message):
        open_results(path, SETTINGS | change)
    assert path.read_bytes() == b'{"torn'
    assert json.loads(settings_file(path).read_text()) == SETTINGS


def test_other_files_are_not_overwritten(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("mine")
    with pytest.raises(
        InputError, match=r"results\.jsonl exists already, and there is no results\.settings\.json with"
    ):
        open_results(path, SETTINGS)
    assert path.read_text() == "mine"
    with pytest.raises(InputError, match=r"cannot write .*results\.jsonl/inner\.jsonl: .*; choose another --out"):
        open_results(path / "inner.jsonl", SETTINGS)


@pytest.mark.parametrize("rows", [[row(0, True), row(0, True)], [row(3, True)]])
def test_rows_of_another_evaluation_are_refused(rows, tmp_path):
    path = write(tmp_path / "results.jsonl", rows, SETTINGS)
    with pytest.raises(InputError, match=r"has a row twice or a row of another evaluation; choose another --out"):
        open_results(path, SETTINGS)
