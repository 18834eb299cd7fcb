"""Temperature, top-k, top-p and greedy choice, against plain sorts and exact distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.errors import InputError
from grpojax.training import sampling
from grpojax.training.sampling import GREEDY, Sampler, make_sampler


# Compiled as a whole; eagerly, each operation would be compiled separately.
@jax.jit
def sample(logits, keys, sampler):
    """The tokens alone."""
    return sampling.sample(logits, keys, sampler)[0]


keep_likely = jax.jit(sampling.keep_likely, static_argnums=(2, 3))
index_of = jax.jit(sampling._index_of)
draw_many = jax.jit(jax.vmap(sampling.draw, (0, None)))
keys_of = jax.jit(lambda seed, count: jax.random.split(jax.random.key(seed), count), static_argnums=1)


def kept_by(logits, top_p, top_k=None, device="cpu"):
    """[B, V] bool: the ids that are left."""
    return np.isfinite(keep_likely(logits, top_p, top_k, device))


def nucleus(logits, top_p):
    """[B, V] bool by sorting, in float64: the likeliest ids up to a sum of top_p, and all as likely as the last."""
    probs = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    ordered = -np.sort(-probs, axis=1)
    last = np.argmax(np.cumsum(ordered, axis=1) >= top_p - 1e-12, axis=1)
    return probs >= np.take_along_axis(ordered, last[:, None], axis=1)


def random_logits(kind):
    rng = np.random.default_rng(7)
    return {
        "spread": rng.normal(size=(40, 60)) * 3,
        "flat": rng.normal(size=(40, 60)) * 0.01,
        "peaked": rng.normal(size=(40, 60)) * 30,
        "tied": rng.integers(0, 4, (40, 60)),
        "very far apart": rng.normal(size=(40, 60)) * 1e4,
    }[kind].astype(np.float32)


@pytest.mark.parametrize("kind", ["spread", "flat", "peaked", "tied", "very far apart"])
@pytest.mark.parametrize("device", ["cpu", "cuda", "tpu"])
def test_top_p_equals_a_sort(kind, device):
    logits = random_logits(kind)
    for top_p in (0.05, 0.3, 0.5, 0.8, 0.9, 0.99):
        np.testing.assert_array_equal(kept_by(logits, top_p, device=device), nucleus(logits, top_p), err_msg=str(top_p))


@pytest.mark.parametrize(
    ("probs", "top_p", "kept"),
    [
        ([0.5, 0.3, 0.2], 0.49, [1, 0, 0]),
        ([0.5, 0.3, 0.2], 0.51, [1, 1, 0]),  # 0.5 does not reach it; the id that crosses the line belongs to the set
        ([0.5, 0.3, 0.2], 0.81, [1, 1, 1]),
        ([0.2, 0.5, 0.3], 0.6, [0, 1, 1]),  # by probability, not by index
        ([0.4, 0.2, 0.2, 0.2], 0.5, [1, 1, 1, 1]),  # equal ids stay together
        ([0.25, 0.25, 0.25, 0.25], 0.1, [1, 1, 1, 1]),
        ([0.97, 0.01, 0.01, 0.01], 0.9, [1, 0, 0, 0]),
        ([0.5, 0.5, 0.0], 0.9, [1, 1, 0]),
    ],
)
def test_top_p_by_hand(probs, top_p, kept):
    with np.errstate(divide="ignore"):
        logits = np.log(np.float32([probs]))
    assert kept_by(logits, top_p).astype(int).tolist() == [kept]


def test_top_p_near_its_ends():
    logits = random_logits("spread")
    best = logits == logits.max(axis=1, keepdims=True)
    for tiny in (1e-3, 1e-7, 1e-30):
        np.testing.assert_array_equal(kept_by(logits, tiny), best)
    flat = random_logits("flat")  # every id holds more than 1e-2 of the mass
    for nearly_all in (0.9999, 0.9999999):
        assert kept_by(flat, nearly_all).all()
    assert kept_by(np.float32([[200.0, 0.0, 0.0]]), 0.9999999).tolist() == [[True, False, False]]


def test_top_p_of_a_whole_vocabulary():
    """151,936 ids: float32 sums are off by 1e-6, so the set is the smallest one up to ids worth 1e-5."""
    logits = (np.random.default_rng(3).normal(size=(1, 151_936)) * 2).astype(np.float32)
    kept = kept_by(logits, 0.9)[0]
    probs = np.exp(logits[0].astype(np.float64))
    probs /= probs.sum()
    assert probs[kept].min() > probs[~kept].max()
    assert 0.9 - 1e-5 <= probs[kept].sum() <= 0.9 + 1e-5


def test_kept_logits_are_not_changed():
    logits = random_logits("spread")
    got = np.asarray(keep_likely(logits, 0.8, 10))
    kept = np.isfinite(got)
    np.testing.assert_array_equal(got[kept], logits[kept])
    assert (got[~kept] == -np.inf).all() and (kept.sum(axis=1) <= 10).all()


def test_top_k():
    logits = np.float32([[1.0, 4.0, 2.0, 3.0]])
    for k, kept in ((1, [0, 1, 0, 0]), (2, [0, 1, 0, 1]), (3, [0, 1, 1, 1]), (4, [1, 1, 1, 1]), (9, [1, 1, 1, 1])):
        assert kept_by(logits, None, k).astype(int).tolist() == [kept], k
    tied = np.float32([[1.0, 2.0, 2.0, 0.0]])
    assert kept_by(tied, None, 1).tolist() == [[False, True, True, False]]


def test_top_p_takes_its_share_of_the_top_k():
    # of (0.4, 0.3, 0.2, 0.1) the top 3 are 0.444, 0.333, 0.222 of each other: two hold 0.777, of the whole only 0.7
    logits = np.log(np.float32([[0.4, 0.3, 0.2, 0.1]]))
    assert kept_by(logits, 0.75, 3).tolist() == [[True, True, False, False]]
    assert kept_by(logits, 0.75).tolist() == [[True, True, True, False]]


def frequencies(probs, sampler, draws=20_000):
    """How often each id came in independent draws from one distribution."""
    logits = np.broadcast_to(np.log(np.float32([probs])), (draws, len(probs)))
    return np.bincount(sample(logits, keys_of(11, draws), sampler), minlength=len(probs))


# The 0.999 quantile of chi-square; the seed is fixed, so the test passes always or never.
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}
PROBS = [0.05, 0.4, 0.2, 0.1, 0.22, 0.03]


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k", "kept"),
    [
        (1.0, 1.0, 0, [0, 1, 2, 3, 4, 5]),
        (0.7, 1.0, 0, [0, 1, 2, 3, 4, 5]),
        (1.0, 0.8, 0, [1, 2, 4]),  # 0.4 + 0.22 = 0.62, + 0.2 = 0.82
        (1.0, 1.0, 4, [1, 2, 3, 4]),
        (2.0, 0.7, 5, [1, 2, 4]),  # roots 0.632, 0.469, 0.447, 0.316, 0.224 of 2.088: 0.303, 0.527, 0.741
        (0.5, 0.75, 0, [1, 4]),  # squares 0.16, 0.0484, ... of 0.2618: 0.611, 0.796; at 1 it takes 3
    ],
)
def test_frequencies_are_those_of_the_truncated_distribution(temperature, top_p, top_k, kept):
    counts = frequencies(PROBS, make_sampler(temperature, top_p, top_k))
    weights = np.array(PROBS)[kept] ** (1 / temperature)
    expected = 20_000 * weights / weights.sum()
    assert counts.sum() == counts[kept].sum() == 20_000
    assert ((counts[kept] - expected) ** 2 / expected).sum() < CHI_SQUARE[len(kept) - 1]


def test_temperature_limits():
    assert frequencies(PROBS, make_sampler(1e-6), draws=500)[1] == 500  # the likeliest
    counts = frequencies(PROBS, make_sampler(1e6))
    assert ((counts - 20_000 / 6) ** 2 / (20_000 / 6)).sum() < CHI_SQUARE[5]  # uniform


def test_top_1_is_greedy():
    logits = random_logits("spread")
    greedy = sample(logits, keys_of(0, len(logits)), GREEDY)
    np.testing.assert_array_equal(greedy, logits.argmax(axis=1))
    assert greedy.dtype == jnp.int32
    np.testing.assert_array_equal(sample(logits, keys_of(1, len(logits)), make_sampler(1.0, top_k=1)), greedy)
    np.testing.assert_array_equal(sample(logits, keys_of(1, len(logits)), make_sampler(5.0, top_p=1e-6)), greedy)


def test_rows_draw_alone():
    """A row's token comes from its own logits and its own key."""
    logits, keys = random_logits("spread"), keys_of(5, 40)
    together = sample(logits, keys, make_sampler(1.0, 0.9))
    for row in (0, 17):
        assert sample(logits[row : row + 1], keys[row : row + 1], make_sampler(1.0, 0.9))[0] == together[row]


def test_impossible_ids_are_never_drawn():
    logits = np.broadcast_to(np.float32([[0.0, -np.inf, 0.0]]), (500, 3))
    sampler = make_sampler(3.0, 0.99)
    assert set(sample(logits, keys_of(2, 500), sampler).tolist()) == {0, 2}
    assert set(sampling.sample(logits, keys_of(3, 500), sampler)[0].tolist()) == {0, 2}  # not compiled as a whole


def test_make_sampler_says_off_in_one_way():
    assert make_sampler(0) == make_sampler(0.0, 0.5, 3) == GREEDY
    assert make_sampler(0.8) == Sampler(0.8, None, None)
    assert make_sampler(0.8, 1.0, 0) == Sampler(0.8, None, None)
    assert make_sampler(1, 0.9, 20) == Sampler(1.0, 0.9, 20)


def test_numbers_of_a_sampler_are_data():
    traces = []

    @jax.jit
    def drawn(sampler):
        traces.append(None)
        return sampling.sample(jnp.zeros((2, 5)), keys_of(0, 2), sampler)

    drawn(make_sampler(0.8, 0.9)), drawn(make_sampler(1.3, 0.2))
    assert len(traces) == 1
    drawn(make_sampler(0.8)), drawn(make_sampler(0))
    assert len(traces) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, r"temperature is -0\.1; it must be 0 \(greedy\) or a positive number such as 0\.8\."),
        ({"temperature": float("nan")}, "temperature is nan; it must be"),
        ({"temperature": float("inf")}, "temperature is inf; it must be"),
        ({"top_p": 0.0}, r"top_p is 0\.0; it must be above 0 and at most 1 \(1 keeps every token\)\."),
        ({"top_p": -0.1}, r"top_p is -0\.1; it must be above 0"),
        ({"top_p": 1.5}, r"top_p is 1\.5; it must be above 0"),
        ({"top_p": float("nan")}, "top_p is nan; it must be above 0"),
        ({"top_k": -1}, r"top_k is -1; it must be 0 \(keep every token\) or more\."),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        make_sampler(**{"temperature": 1.0} | arguments)


def test_draw_takes_each_index_by_its_weight():
    """Five weights in blocks of three, of which (0, 0) and 1/4, 1/2, 1/4; the last block is padded."""
    weights = np.float32([0.0, 1.0, 0.0, 2.0, 1.0])
    counts = np.bincount(draw_many(keys_of(3, 20_000), weights), minlength=5) / 20_000
    assert counts[0] == counts[2] == 0
    np.testing.assert_allclose(counts[[1, 3, 4]], [0.25, 0.5, 0.25], atol=4 * (0.25 / 20_000) ** 0.5)


@pytest.mark.parametrize("size", [1, 2, 24, 25, 26, 151_936])
def test_draw_never_leaves_the_positive_weights(size):
    """One positive weight, at either end or in the middle, and a uniform number as near 1 as there is."""
    for index in {0, size // 2, size - 1}:
        weights = np.zeros(size, np.float32)
        weights[index] = 1e-30
        assert draw_many(keys_of(4, 8), weights).tolist() == [index] * 8
    almost = np.float32(1 - 2**-24)
    assert index_of(almost, np.float32([0.3, 0.7, 0.0])) == 1
    assert index_of(np.float32(0.0), np.float32([0.0, 0.3, 0.7])) == 1


def test_draw_stays_within_the_positive_weights_if_their_sum_is_rounded():
    """The cumulative sum is not taken from left to right, so it can still grow by a rounding error over trailing zeros."""
    almost, positive, past = np.float32(1 - 2**-24), 293, 0
    for seed in range(100):
        weights = np.zeros(390, np.float32)
        weights[:positive] = np.random.default_rng(seed).random(positive)
        sums = jnp.cumsum(weights)
        past += bool(sums[positive - 1] <= almost * sums[-1])
        assert index_of(almost, weights) == positive - 1
    assert past or jax.default_backend() != "cpu"  # such sums are among them
