"""Statistics of evaluations by hand, the report, the comparison of two, and the file an interrupted one leaves."""

import json
import math
import random

import pytest

from grpojax.errors import InputError
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
    # One answer a problem is the same, whatever the order.
    assert share_interval([1] * right + [0] * (count - right)) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_of_samples_by_hand():
    # Four problems of 4 answers, with 4, 4, 2 and 0 right: mean 0.625. With two more all right and two all wrong the
    # mean is (2.5 + 2) / 8 = 0.5625, the spread (1 + 1 + 0.25 + 2) / 8 - 0.5625^2 = 0.53125 - 0.316406 = 0.214844, the
    # most it could be 0.5625 x 0.4375 = 0.246094; r = 0.873016, so 4 problems count as 4.581818.
    expected = wilson_interval(0.625, 4.581818)
    assert share_interval([1, 1, 0.5, 0], trials=4) == pytest.approx(expected, abs=1e-6)
    # Neither the 16 answers as if they were independent, nor 4 problems as if each had one answer.
    narrow, wide = wilson_interval(0.625, 16), wilson_interval(0.625, 4)
    assert wide[0] < expected[0] < narrow[0] < 0.625 < narrow[1] < expected[1] < wide[1]


def test_many_samples_of_problems_never_answered_tell_no_more_than_one_each():
    assert share_interval([0.0] * 20, trials=64) == pytest.approx(wilson_interval(0.0, 20), abs=1e-12)
    assert share_interval([1.0] * 20, trials=64) == pytest.approx(wilson_interval(1.0, 20), abs=1e-12)
    # One right answer among the 1280 does not turn 20 problems into many (the spread alone would say 1280).
    low, high = share_interval([1 / 64] + [0.0] * 19, trials=64)
    assert low < 1 / 1280 < 0.15 < high < 0.165


def test_equal_shares_count_at_most_as_independent_answers():
    # 10,000 problems with 2 of 4 right each: no spread, but 40,000 coins would not tell more either.
    assert share_interval([0.5] * 10_000, trials=4) == pytest.approx(wilson_interval(0.5, 40_000), abs=1e-12)


def test_the_interval_covers_the_truth_19_times_in_20_where_the_naive_one_does_not():
    # 50 problems of 16 samples; most problems are nearly never solved, some nearly always: Beta(0.2, 1.8), mean 0.1.
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
    # B alone right on 3 of 10, A alone on 1. Mean 2 / 12; variance (4 + 1) / 12 - (2 / 12)^2 = 0.388889; its root over
    # sqrt(12) is 0.1800206; 0.1666667 -+ 1.959964 x 0.1800206.
    differences = [1, 1, 1, -1] + [0] * 6
    assert difference_interval(differences) == pytest.approx((-0.186167, 0.519501), abs=1e-6)
    # No difference seen in 10 problems is no proof of none: 0 -+ 1.959964 sqrt((1 / 12) / 12).
    assert difference_interval([0] * 10) == pytest.approx((-0.163330, 0.163330), abs=1e-6)
    assert difference_interval([1, 1])[1] == 1.0  # never beyond


# --- several samples ---


@pytest.mark.parametrize(
    ("samples", "correct", "k", "expected"),
    [
        # 1 - C(n - c, k) / C(n, k); behind it the estimate 1 - (1 - c/n)^k, which is too low.
        (4, 1, 2, 1 - 3 / 6),  # 0.5, not 0.4375
        (4, 2, 2, 1 - 1 / 6),  # 0.8333, not 0.75
        (10, 3, 5, 1 - 21 / 252),  # 0.9167, not 0.8319
        (8, 0, 8, 0.0),
        (8, 1, 8, 1.0),
        (8, 5, 4, 1.0),  # only 3 wrong ones: any 4 hold a right one
        (8, 3, 1, 3 / 8),
    ],
)
def test_pass_at_k_by_formula(samples, correct, k, expected):
    assert pass_at_k(samples, correct, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("rate", "k"), [(0.3, 2), (0.3, 5), (0.9, 3)])
def test_pass_at_k_is_unbiased(rate, k):
    # The mean over the binomial number of right samples is the chance that one of k answers is right.
    chances = [math.comb(6, c) * rate**c * (1 - rate) ** (6 - c) for c in range(7)]
    mean = sum(chance * pass_at_k(6, c, k) for c, chance in enumerate(chances))
    assert mean == pytest.approx(1 - (1 - rate) ** k, abs=1e-12)


@pytest.mark.parametrize(
    ("same_as", "correct", "expected"),
    [
        ([0, 1, 0, 3], [True, False, True, False], True),
        ([0, 1, 1, 3], [True, False, False, False], False),  # a right answer, outvoted
        ([0, 1, 1, 0], [False, True, True, False], False),  # a tie: the first given
        ([None, None, None, 3], [False, False, False, True], True),  # no answer is no vote
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
        (4, 4, 1.0),  # twice the tail is more than 1
        (0, 0, 1.0),
        (1, 0, 1.0),
    ],
)
def test_mcnemar_by_binomial_counts(b, c, expected):
    assert paired_p_value([1] * b + [-1] * c + [0] * 7) == pytest.approx(expected, abs=1e-15)


def test_sign_flips_by_enumeration():
    # |3|, |2|, |1| with signs ++-: sum 4. Of the 8 patterns 6 (+++), 4 (++-), -4 and -6 are as far from 0: p = 1/2.
    # A sign test that forgets the sizes (2 up, 1 down of 3) would give 1.
    assert paired_p_value([3, 2, -1, 0]) == 0.5
    # 2, 2, 1 all up: sum 5, reached by +++ and --- alone.
    assert paired_p_value([2, 2, 1]) == 0.25


def test_sign_flips_of_a_large_evaluation():
    # 500 problems of 64 samples: the normal approximation of the same sum, 40 problems up by 64 and 20 down by 64.
    p = paired_p_value([64] * 40 + [-64] * 20 + [0] * 440)
    tail = sum(math.comb(60, i) for i in range(21))
    assert p == pytest.approx(2 * tail / 2**60, rel=1e-9)


# --- the report ---


def row(index, correct, extracted="7", **changes):
    """A row of one answer; give lists for more."""
    many = isinstance(correct, list)
    each = (lambda value: [value] * len(correct)) if many else (lambda value: value)
    return {
        "index": index, "problem": f"{index} + 0", "gold": str(index), "subject": "", "level": None, "text": each("t"),
        "extracted": each(extracted), "correct": correct, "extracted_or_last_number": each(extracted),
        "correct_or_last_number": correct, "length": each(10), "truncated": each(False),
    } | changes  # fmt: skip


def test_report_of_one_answer_each():
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
    # By the other rule it comes first, and the splits follow it.
    lines = format_report(rows, "boxed-or-last-number").splitlines()
    assert lines[1].startswith("accuracy, boxed-or-last-number   50.0")
    assert lines[2].startswith("accuracy, boxed                  25.0")
    assert lines[4].startswith("level 2                          33.3")


def test_report_of_several_samples():
    rows = [
        # Right 2 of 4, against two different wrong ones.
        row(0, [True, False, True, False], same_as=[0, 1, 0, 3], same_as_or_last_number=[0, 1, 0, 3]),
        # Right 1 of 4, outvoted.
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
    # pass@4 of 4 samples is one trial a problem: 2 of 3.
    low, high = wilson_interval(2 / 3, 3)
    assert f"66.7   {100 * low:5.1f} to {100 * high:5.1f}" in lines[4]


def test_pass_at_k_goes_by_powers_of_two_up_to_all_samples():
    rows = [row(0, [True] * 6, same_as=[0] * 6, same_as_or_last_number=[0] * 6)]
    assert [line.split()[0] for line in format_report(rows).splitlines() if line.startswith("pass")] == [
        "pass@2",
        "pass@4",
        "pass@6",
    ]


def test_rows_of_an_older_run_have_one_accuracy():
    rows = [
        {"problem": "1", "gold": "1", "text": "", "extracted": "1", "correct": True, "length": 3, "truncated": False}
    ]
    assert len(format_report(rows).splitlines()) == 3


# --- the comparison ---


def write(path, rows, settings=None):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    if settings:
        settings_file(path).write_text(json.dumps(settings))
    return path


def test_comparison_of_greedy_evaluations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A alone right on 1, B alone on 5, both on 2, neither on 2.
    a = [1, 0, 0, 0, 0, 0, 1, 1, 0, 0]
    b = [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]
    write(tmp_path / "a.jsonl", [row(i, bool(x)) for i, x in enumerate(a)])
    write(tmp_path / "b.jsonl", [row(i, bool(x)) for i, x in reversed(list(enumerate(b)))])  # the order does not matter
    # Mean 4 / 12, variance 7 / 12 - 1 / 9 = 0.472222, reach 1.959964 sqrt(0.472222 / 12) = 0.388806.
    assert format_comparison("a.jsonl", "b.jsonl").splitlines() == [
        "accuracy, boxed      %   95 % interval",
        "A  a.jsonl        30.0    10.8 to  60.3   3 of 10",
        "B  b.jsonl        70.0    39.7 to  89.2   7 of 10",
        "of 10 problems B is better on 5, A on 1",
        "B - A: +40.0 points, 95 % interval -5.5 to +72.2",
        "p = 0.22 (McNemar's exact test)",  # 14 / 64
    ]
    # An evaluation compared with itself.
    assert "p = 1.00" in format_comparison("a.jsonl", "a.jsonl")


def test_comparison_of_samples_and_settings(tmp_path):
    same = {"same_as": [0, 0], "same_as_or_last_number": [0, 0]}
    rows_a = [row(i, [False, False], **same) for i in range(3)]
    rows_b = [row(0, [True, True], **same), row(1, [True, True], **same), row(2, [True, False], **same)]
    a = write(tmp_path / "a.jsonl", rows_a, {"problems": 3, "max_new_tokens": 64, "model": "a"})
    b = write(tmp_path / "b.jsonl", rows_b, {"problems": 3, "max_new_tokens": 128, "model": "b"})
    lines = format_comparison(a, b).splitlines()
    assert "B - A: +83.3 points" in lines[4]
    assert lines[5] == "p = 0.25 (exact sign-flip test over problems)"  # 2, 2, 1 all up: 2 of 8 patterns
    assert lines[6] == "they also differ in max_new_tokens (64 -> 128)"  # that the models differ is the point
    settings_file(b).unlink()  # as for the evaluations of a run
    assert format_comparison(a, b).splitlines() == lines[:6]


def test_comparison_by_the_other_rule(tmp_path):
    a = write(tmp_path / "a.jsonl", [row(i, False) for i in range(8)])
    b = write(tmp_path / "b.jsonl", [row(i, False, correct_or_last_number=True) for i in range(8)])
    assert "p = 1.00" in format_comparison(a, b)
    by_number = format_comparison(a, b, "boxed-or-last-number")
    assert "p = 0.0078" in by_number  # 2 / 256
    assert by_number.startswith("accuracy, boxed-or-last-number")


def test_a_problem_asked_twice_is_two_problems(tmp_path):
    twice = [row(0, True), row(1, False, problem="0 + 0", gold="0")]
    a = write(tmp_path / "a.jsonl", twice)
    assert "of 2 problems" in format_comparison(a, a)
    b = write(tmp_path / "b.jsonl", twice[:1])
    with pytest.raises(InputError, match=r"of different problems, 2 and 1: '0 \+ 0'"):
        format_comparison(a, b)


@pytest.mark.parametrize(
    ("rows_b", "message"),
    [
        (
            [row(0, True), row(5, True)],
            r"a\.jsonl and .*b\.jsonl are of different problems, 2 and 2: '1 \+ 0' with the answer '1' is in "
            r".*a\.jsonl alone; evaluate both on the same --dataset and --limit\.",
        ),
        (
            [row(0, True), row(1, True, gold="one")],
            r"'1 \+ 0' with the answer '1' is in .*a\.jsonl alone",
        ),
        (
            [row(0, True), row(1, True), row(2, True, problem="x" * 70)],
            r"2 and 3: 'x{57}\.\.\.' with the answer '2' is in .*b\.jsonl alone",
        ),
        (
            [row(i, [True, False]) for i in range(2)],
            r"a\.jsonl has 1 answer a problem and .*b\.jsonl has 2; evaluate both with the same --samples\.",
        ),
        ([], r"b\.jsonl is not finished: it holds 0 of 0 problems"),
    ],
)
def test_what_cannot_be_paired(rows_b, message, tmp_path):
    a = write(tmp_path / "a.jsonl", [row(0, True), row(1, False)])
    b = write(tmp_path / "b.jsonl", rows_b)
    with pytest.raises(InputError, match=message):
        format_comparison(a, b)


def test_what_cannot_be_read(tmp_path):
    a = write(tmp_path / "a.jsonl", [row(0, True)])
    with pytest.raises(
        InputError, match=r"cannot read .*none\.jsonl \(No such file or directory\); give a file that `grpo"
    ):
        format_comparison(a, tmp_path / "none.jsonl")
    unfinished = write(tmp_path / "b.jsonl", [row(0, True)], {"problems": 4})
    with pytest.raises(InputError, match=r"b\.jsonl is not finished: it holds 1 of 4 problems; run its command again"):
        format_comparison(a, unfinished)
    old = [{name: value for name, value in row(0, True).items() if not name.endswith("last_number")}]
    with pytest.raises(InputError, match=r"c\.jsonl, line 1 has no 'correct_or_last_number', so it is no row"):
        format_comparison(write(tmp_path / "c.jsonl", old), a, "boxed-or-last-number")
    (tmp_path / "d.jsonl").write_text('{"problem": "1"}\n')
    with pytest.raises(InputError, match=r"d\.jsonl, line 1 has no 'gold'"):
        read_results(tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match=r"d\.jsonl, line 1 has no 'problem'"):
        read_results(tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl").write_text("\x00\n")
    with pytest.raises(InputError, match=r"d\.jsonl, line 1 is no JSON; evaluate again"):
        read_results(tmp_path / "d.jsonl")
    settings_file(tmp_path / "a.jsonl").write_text("[")
    with pytest.raises(InputError, match=r"a\.settings\.json holds no settings of an evaluation; evaluate again"):
        read_results(tmp_path / "a.jsonl")


# --- files ---

SETTINGS = {"problems": 3, "max_new_tokens": 64, "temperature": 0.8, "template": "x" * 300}


def test_a_file_is_begun_and_taken_up(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    assert open_results(path, SETTINGS) == []
    assert json.loads((tmp_path / "new" / "results.settings.json").read_text()) == SETTINGS
    rows = [row(2, True, text="½\n"), row(0, False)]
    for one in rows:
        append_result(path, one)
    whole = path.read_bytes()
    assert open_results(path, SETTINGS) == rows
    # A crash in the middle of a line: what is torn goes, the rest stays byte for byte.
    path.write_bytes(whole + b'{"index": 1, "probl')
    assert open_results(path, SETTINGS) == rows
    assert path.read_bytes() == whole
    append_result(path, row(1, True))
    assert [one["index"] for one in read_results(path)] == [0, 1, 2]


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
            r"results\.jsonl was begun with another max_new_tokens \(64 -> 128\), another temperature \(0\.8 -> 1\.0\)"
            r"; go on with the settings it was begun with, or choose another --out\.",
        ),
        ({"template": "y" * 300}, r"begun with another template; go on"),  # too long to show
        ({"top_p": 0.9}, r"begun with another top_p \(null -> 0\.9\)"),
    ],
)
def test_other_settings_are_refused_and_nothing_is_touched(change, message, tmp_path):
    path = tmp_path / "results.jsonl"
    open_results(path, SETTINGS)
    path.write_bytes(b'{"torn')
    with pytest.raises(InputError, match=message):
        open_results(path, SETTINGS | change)
    assert path.read_bytes() == b'{"torn'
    assert json.loads(settings_file(path).read_text()) == SETTINGS


def test_files_that_are_not_ours(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("mine")
    with pytest.raises(
        InputError, match=r"results\.jsonl exists already, and no results\.settings\.json beside it says how"
    ):
        open_results(path, SETTINGS)
    assert path.read_text() == "mine"
    with pytest.raises(InputError, match=r"cannot write .*results\.jsonl/inner\.jsonl: .*; choose another --out"):
        open_results(path / "inner.jsonl", SETTINGS)


@pytest.mark.parametrize("rows", [[row(0, True), row(0, True)], [row(3, True)]])
def test_rows_that_cannot_be_of_this_evaluation(rows, tmp_path):
    path = write(tmp_path / "results.jsonl", rows, SETTINGS)
    with pytest.raises(InputError, match=r"holds a problem twice or one that is not asked; choose another --out"):
        open_results(path, SETTINGS)
