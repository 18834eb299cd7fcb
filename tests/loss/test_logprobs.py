"""Log-probs, entropies and answer masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax.loss import logprobs
from grpojax.loss.logprobs import chunked_logps, length_mask

# Compiled as a whole; eagerly, each operation would be compiled separately.
answer_mask = jax.jit(logprobs.answer_mask, static_argnums=2)
token_entropy = jax.jit(logprobs.token_entropy)
token_logps = jax.jit(logprobs.token_logps)

CHAPTER_LOGITS = [0.6667, -2.0, 1.3333, 0.0, -0.6667, 2.0, -1.3333]


def logits_of(rows: list[dict[int, float]], size: int) -> np.ndarray:
    """[1, T, V] logits with the given probabilities of some ids; the others share what is left."""
    out = np.zeros((1, len(rows), size), np.float32)
    for position, chosen in enumerate(rows):
        rest = (1 - sum(chosen.values())) / (size - len(chosen))
        out[0, position] = np.log([chosen.get(i, rest) for i in range(size)])
    return out


def test_position_t_scores_token_t_plus_one():
    # ln p(7 | 5) + ln p(2 | 5 7) + ln p(9 | 5 7 2) with 1/2, 1/4 and 1/8; any other alignment gives other numbers
    logits = logits_of([{7: 0.5}, {2: 0.25}, {9: 0.125}, {5: 0.01, 7: 0.02, 2: 0.03, 9: 0.04}], 10)
    tokens = np.array([[5, 7, 2, 9]])
    got = np.asarray(token_logps(logits, tokens))
    np.testing.assert_allclose(got, [[-0.6931, -1.3863, -2.0794]], atol=5e-5)
    answer, ended = (np.asarray(answer_mask(tokens, np.array([length]), ())) for length in (2, 4))
    assert answer.sum() == 2  # the length of the answer
    assert (got * answer).sum() == pytest.approx(-3.4657, abs=5e-5)
    assert (got * ended).sum() == 0.0  # there is no answer
    assert (np.asarray(token_entropy(logits[:, :-1])) * ended).sum() == 0.0


def test_chapter_numbers():
    logits = np.float32(CHAPTER_LOGITS)
    assert float(token_entropy(logits)) == pytest.approx(1.3700, abs=5e-5)
    pair = np.stack([logits, logits])[None]
    assert token_logps(pair, np.array([[0, 5]])).tolist() == [[pytest.approx(-0.7109, abs=5e-5)]]


def test_temperature_divides_the_logits():
    # (0, ln 9) / 2 = (0, ln 3): probabilities 1/4 and 3/4
    logits = np.log(np.float32([[[1.0, 9.0], [1.0, 9.0]]]))
    np.testing.assert_allclose(token_logps(logits, np.array([[0, 1]]), temperature=2.0), [[np.log(0.75)]], atol=1e-6)


def test_temperature_is_traced():
    traces = []

    @jax.jit
    def scored(logits, tokens, temperature):
        traces.append(None)
        return token_logps(logits, tokens, temperature)

    logits, tokens = np.zeros((1, 3, 4), np.float32), np.zeros((1, 3), np.int32)
    scored(logits, tokens, 1.0), scored(logits, tokens, 0.7)
    assert len(traces) == 1


def test_keep_gives_the_others_probability_zero():
    logits, keep = np.zeros((1, 2, 3), np.float32), np.array([[[True, True, False]]])

    @jax.jit
    @jax.value_and_grad
    def logp_of(logits, token):
        return token_logps(logits, jnp.array([[0, token]]), keep=keep)[0, 0]

    value, gradient = logp_of(logits, 0)
    assert float(value) == pytest.approx(-0.6931, abs=5e-5)
    # 1 - p = 1/2 for the token, -p = -1/2 for the other kept one; 0 for the masked id and the last position
    np.testing.assert_allclose(gradient, [[[0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]], atol=1e-6)
    assert float(logp_of(logits, 2)[0]) == -np.inf


def test_keep_and_temperature_together():
    # kept ids have logits (0, ln 9); at temperature 2 they are 1/4 and 3/4
    logits = np.log(np.float32([[[1.0, 50.0, 9.0], [1.0, 1.0, 1.0]]]))
    keep = np.array([[[True, False, True]]])
    got = token_logps(logits, np.array([[0, 2]]), temperature=2.0, keep=keep)
    np.testing.assert_allclose(got, [[np.log(0.75)]], atol=1e-6)


def test_last_position_is_not_used():
    logits, tokens = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3), np.int32)
    logits[:, -1] = np.nan
    value, gradient = jax.jit(jax.value_and_grad(lambda x: token_logps(x, tokens).sum()))(logits)
    assert float(value) == pytest.approx(-4 * np.log(4), abs=1e-5)
    assert np.isfinite(gradient).all() and (np.asarray(gradient)[:, -1] == 0).all()


def test_low_precision_logits_are_scored_in_float32():
    logits = np.array([[CHAPTER_LOGITS] * 2], jnp.bfloat16)
    got = token_logps(logits, np.array([[0, 5]]))
    assert got.dtype == jnp.float32 and token_entropy(logits).dtype == jnp.float32
    exact = logits[0, 0].astype(np.float64)
    assert got.tolist() == [[pytest.approx(exact[5] - np.log(np.exp(exact).sum()), abs=1e-6)]]


def test_large_logits_do_not_overflow():
    logits = np.float32([[[1e4, 0.0, -1e4]] * 2])
    np.testing.assert_allclose(token_logps(logits, np.array([[0, 1]])), [[-1e4]])
    value, gradient = jax.jit(jax.value_and_grad(lambda x: token_entropy(x).sum()))(logits)
    assert float(value) == 0.0 and np.isfinite(gradient).all()


@pytest.mark.parametrize("size", [2, 97, 151_936])
def test_entropy_of_equal_ids(size):
    # ln V; at V = 151936 that is 11.9312. float32 sums of 1/V err by about 1e-6 relative.
    assert float(token_entropy(np.zeros(size, np.float32))) == pytest.approx(np.log(size), rel=3e-6)


def test_entropy_gradient():
    # dH/dz_i = -p_i (ln p_i + H); p = (1/4, 3/4), H = 0.5623: -0.25 (-1.3863 + 0.5623) = 0.2060
    gradient = jax.jit(jax.grad(token_entropy))(np.log(np.float32([1.0, 3.0])))
    np.testing.assert_allclose(gradient, [0.2060, -0.2060], atol=5e-5)


def test_entropy_with_impossible_ids():
    logits = np.float32([0.0, np.log(3.0), -np.inf])
    value, gradient = jax.jit(jax.value_and_grad(token_entropy))(logits)
    assert float(value) == pytest.approx(0.5623, abs=5e-5)
    np.testing.assert_allclose(gradient, [0.2060, -0.2060, 0.0], atol=5e-5)

    def masked(logits):  # as with a keep mask
        return token_entropy(jnp.where(jnp.array([True, True, False]), logits, -jnp.inf))

    value, gradient = jax.jit(jax.value_and_grad(masked))(np.zeros(3, np.float32))
    assert float(value) == pytest.approx(0.6931, abs=5e-5)
    np.testing.assert_allclose(gradient, np.zeros(3), atol=1e-7)


def test_entropy_of_broken_logits_is_not_a_number():
    """A model whose logits are NaN must not look certain (entropy 0)."""
    assert np.isnan(token_entropy(np.float32([np.nan, 0.0, 0.0])))


END = 0


@pytest.mark.parametrize(
    ("tokens", "prompt_len", "stop_ids", "expected"),
    [
        pytest.param([5, 10, 11, END, 12, 13], 1, (END,), [1, 1, 1, 0, 0], id="nothing after the stop token"),
        pytest.param([5, 7, 8, 10, 11, 12], 3, (END,), [0, 0, 1, 1, 1], id="no stop token"),
        pytest.param([5, 7, END, END, END, END], 2, (END,), [0, 1, 0, 0, 0], id="immediate stop"),
        pytest.param([5, END, 7, 10, END, 12], 3, (END,), [0, 0, 1, 1, 0], id="stop token inside the prompt"),
        pytest.param([5, 7, END, 10, 11, END], 3, (END,), [0, 0, 1, 1, 1], id="prompt ends with a stop token"),
        pytest.param([5, 7, 10, 11, 12, END], 2, (END,), [0, 1, 1, 1, 1], id="stop token at the very end"),
        pytest.param([5, 7, 8, 151643, 9, 9], 1, (151645, 151643), [1, 1, 1, 0, 0], id="second stop id"),
        pytest.param([5, 7, 151645, 8, 151643, 9], 1, (151645, 151643), [1, 1, 0, 0, 0], id="first of two stop tokens"),
        pytest.param([5, 7, 8, 151643, 9, 9], 1, (151645,), [1, 1, 1, 1, 1], id="an id that is not a stop id"),
        pytest.param([5, 7, 8, 10, 11, 12], 6, (END,), [0, 0, 0, 0, 0], id="no answer"),
        pytest.param([5, END, 8, END, 11, 12], 2, (), [0, 1, 1, 1, 1], id="no stop ids"),
    ],
)
def test_answer_mask(tokens, prompt_len, stop_ids, expected):
    got = answer_mask(np.array([tokens]), np.array([prompt_len]), stop_ids)
    assert got.dtype == jnp.float32
    assert got.tolist() == [expected]


def test_answer_mask_handles_rows_independently_and_jits():
    tokens = np.array([[5, 10, 0, 12], [5, 0, 7, 0], [5, 6, 7, 8]], np.int32)
    lens = np.array([1, 2, 3], np.int32)
    expected = [[1, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert logprobs.answer_mask(tokens, lens, (0,)).tolist() == expected
    assert answer_mask(tokens, lens, (0,)).tolist() == expected


def test_length_mask_agrees_with_answer_mask():
    rng = np.random.default_rng(0)
    prompt_len, size = 3, 8
    lengths = np.array([1, 2, 5, 7, 8])
    answers = rng.integers(1, 9, (5, size))  # 0 stops
    for row, length in zip(answers, lengths, strict=True):
        row[length - 1] = 0
        row[length:] = rng.integers(0, 9, size - length)
    tokens = np.concatenate([np.full((5, prompt_len), 4), answers], axis=1).astype(np.int32)
    whole = answer_mask(tokens, np.full(5, prompt_len), (0,))
    got = length_mask(lengths, size)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.asarray(whole)[:, prompt_len - 1 :])
    assert got.sum(axis=1).tolist() == lengths.tolist()


@pytest.mark.parametrize("chunk_elements", [1, 4 * 11, 5 * 11, 10**6])
def test_chunks_do_not_change_results(chunk_elements):
    """12 positions of 11 ids, at 1, 4, 5 (does not divide) and 12 positions at a time, against all logits at once."""
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(3, 5, 6)).astype(np.float32)  # the last position predicts nothing
    head = rng.normal(size=(11, 6)).astype(np.float32)
    tokens = rng.integers(0, 11, (3, 5))
    weights = rng.normal(size=(3, 4)).astype(np.float32)

    def plain(hidden, head):
        logps = token_logps(jnp.einsum("btd,vd->btv", hidden, head), tokens)
        return jnp.sum(weights * logps), logps

    def chunked(hidden, head):
        logps = chunked_logps(hidden[:, :-1], head, tokens[:, 1:], chunk_elements)
        return jnp.sum(weights * logps), logps

    @jax.jit
    def both(hidden, head):
        return [jax.grad(f, argnums=(0, 1), has_aux=True)(hidden, head) for f in (plain, chunked)]

    (expected, want), (got, logps) = both(hidden, head)
    np.testing.assert_allclose(logps, want, atol=1e-5)
    np.testing.assert_allclose(got[0], expected[0], atol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], atol=1e-5)


def test_chunks_bound_the_memory():
    """The compiled gradient has memory for one chunk of logits (4 of 64 positions), not for all of them."""
    hidden, head = np.ones((4, 16, 2), np.float32), np.ones((5_000, 2), np.float32)
    targets = np.zeros((4, 16), np.int32)

    def temporary_bytes(chunk_elements):
        gradient = jax.jit(jax.grad(lambda h, w: chunked_logps(h, w, targets, chunk_elements).sum(), argnums=(0, 1)))
        return gradient.lower(hidden, head).compile().memory_analysis().temp_size_in_bytes

    all_logits = 64 * 5_000 * 4
    assert temporary_bytes(4 * 5_000) < all_logits / 2 < temporary_bytes(64 * 5_000)


def test_chunked_scores_of_low_precision_states_are_float32():
    hidden, head = np.ones((1, 2, 4), jnp.bfloat16), np.ones((3, 4), np.float32)
    got = jax.jit(chunked_logps)(hidden, head, np.zeros((1, 2), np.int32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, np.full((1, 2), -np.log(3)), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: token_logps(np.zeros((2, 3, 5), np.float32), np.zeros((2, 4), np.int32)),
            r"logits has shape \(2, 3, 5\), expected \(2, 4, any\)",
        ),
        (
            lambda: token_logps(
                np.zeros((2, 3, 5), np.float32), np.zeros((2, 3), np.int32), keep=np.ones((2, 3, 5), bool)
            ),
            r"keep has shape \(2, 3, 5\), expected \(2, 2, 5\)",
        ),
        (
            lambda: answer_mask(np.zeros((2, 3), np.int32), np.ones((2, 1), np.int32), (0,)),
            r"prompt_lens has shape \(2, 1\), expected \(2\)",
        ),
        (
            lambda: chunked_logps(
                np.zeros((2, 3, 4), np.float32), np.zeros((5, 4), np.float32), np.zeros((2, 4), np.int32)
            ),
            r"targets has shape \(2, 4\), expected \(2, 3\)",
        ),
    ],
)
def test_wrong_shapes_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
