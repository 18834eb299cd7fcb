"""Rollouts of tiny models: against full forward passes, and on chains whose every token is known beforehand."""

import dataclasses

import jax
import numpy as np
import pytest
from fakes import TINY, chain, tokenizer

from grpojax.errors import InputError
from grpojax.loss import logprobs
from grpojax.qwen import attention
from grpojax.qwen.model import param_shapes
from grpojax.qwen.weights import Policy
from grpojax.training import rollout
from grpojax.training.rollout import BUCKETS, bucket, generate, make_rollouts, pad_prompts
from grpojax.training.sampling import GREEDY, make_sampler

# Compiled as a whole; eagerly, each operation would be compiled separately.
token_entropy = jax.jit(logprobs.token_entropy)
token_logps = jax.jit(logprobs.token_logps)

PROMPTS = [[5, 9, 14, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]


def full_logits(policy, rows):
    """Logits of whole sequences [B, 32, V], padded right, without a cache."""
    padded = np.zeros((len(rows), 32), np.int32)
    for line, ids in zip(padded, rows, strict=True):
        line[: len(ids)] = ids
    return padded, np.asarray(policy.apply(policy.params, padded))


def sampled(policy, prompts=PROMPTS[:2], seed=0, sampler=None, num_rollouts=3, max_new_tokens=12):
    sampler = make_sampler(0.8, 0.9) if sampler is None else sampler
    return make_rollouts(policy, policy.params, prompts, jax.random.key(seed), sampler, num_rollouts, max_new_tokens)


@pytest.fixture(scope="module")
def greedy(tiny):
    """Prompts of 4, 1 and 11 tokens in one call, greedy."""
    return sampled(tiny, PROMPTS, sampler=GREEDY, num_rollouts=1)


@pytest.fixture(scope="module")
def drawn(tiny):
    return sampled(tiny)


def test_cached_greedy_answers_equal_repeated_full_passes(tiny, greedy):
    """Every prompt beside others of other lengths, and the same tokens as alone without cache and padding."""
    for row, prompt in enumerate(PROMPTS):
        ids = list(prompt)
        while len(ids) < len(prompt) + 12 and (len(ids) == len(prompt) or ids[-1] not in (3, 17)):
            ids.append(int(full_logits(tiny, [ids])[1][0, len(ids) - 1, :20].argmax()))
        assert greedy.answer_ids(row) == ids[len(prompt) :]
    assert len({tuple(greedy.answer_ids(row)) for row in range(3)}) == 3


def test_a_prompt_alone_equals_the_same_beside_longer_ones(tiny, greedy):
    for row, prompt in enumerate(PROMPTS):
        alone = sampled(tiny, [prompt], sampler=GREEDY, num_rollouts=1)
        assert alone.answer_ids(0) == greedy.answer_ids(row)
        np.testing.assert_allclose(alone.logps[0], greedy.logps[row], atol=1e-5)


def test_recorded_log_probs_and_entropies_are_those_of_a_full_pass(tiny, drawn):
    """At temperature 1 over the whole vocabulary, though drawn at 0.8 with top-p."""
    owners = [prompt for prompt in PROMPTS[:2] for _ in range(3)]
    tokens, logits = full_logits(tiny, [prompt + drawn.answer_ids(row) for row, prompt in enumerate(owners)])
    logps, entropies = (np.asarray(x) for x in (token_logps(logits, tokens), token_entropy(logits[:, :-1])))
    for row, prompt in enumerate(owners):
        length = drawn.answer_lens[row]
        answer = slice(len(prompt) - 1, len(prompt) - 1 + length)
        np.testing.assert_allclose(drawn.logps[row, :length], logps[row, answer], atol=1e-5)
        np.testing.assert_allclose(drawn.entropies[row, :length], entropies[row, answer], atol=1e-5)
        assert (drawn.logps[row, length:] == 0).all() and (drawn.entropies[row, length:] == 0).all()


def test_fields_of_the_record(drawn):
    assert drawn.group_size == 3
    assert drawn.prompt_lens.tolist() == [4, 1]
    assert drawn.prompts[:, :4].tolist() == [[5, 9, 14, 2], [7, 0, 0, 0]]
    assert drawn.answers.shape == drawn.logps.shape == drawn.entropies.shape == (6, 12)
    assert drawn.keep is None  # nobody asked for it
    assert {name for name, x in vars(drawn).items() if isinstance(x, jax.Array)} == {"targets", "logps"}  # for the update
    np.testing.assert_array_equal(drawn.targets, drawn.answers)


def test_the_key_decides(tiny, drawn):
    again, other = sampled(tiny), sampled(tiny, seed=1)
    for field in dataclasses.fields(drawn):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(drawn, field.name))
    assert (other.answers != drawn.answers).any()
    assert len({tuple(drawn.answer_ids(row)) for row in range(6)}) == 6  # and each row draws its own


def test_an_answer_does_not_depend_on_budget_and_padding(tiny, drawn, monkeypatch):
    """A larger budget in a cache of four blocks, and a neighbour with a longer prompt (another bucket): the same tokens, as
    far as they go."""
    monkeypatch.setattr(attention, "BLOCK_SIZE", 5)
    other = sampled(tiny, [PROMPTS[0], list(range(20))], max_new_tokens=20)
    assert other.prompts.shape[1] != drawn.prompts.shape[1]
    for row in range(3):
        length = drawn.answer_lens[row]
        assert other.answers[row, :length].tolist() == drawn.answer_ids(row)
        np.testing.assert_allclose(other.logps[row, :length], drawn.logps[row, :length], atol=1e-5)


def test_chains_end_with_their_first_stop_token():
    """1 2 3 4 5 stop with 9; 6 7 8 stop with 10; 0 goes on for ever."""
    policy = chain([0, 2, 3, 4, 5, 9, 7, 8, 10, 1, 1], stop_ids=(9, 10))
    got = sampled(policy, [[1], [5, 4], [8], [6, 6, 6], [0], [9, 2]], num_rollouts=1, max_new_tokens=6)
    assert [got.answer_ids(row) for row in range(6)] == [
        [2, 3, 4, 5, 9],
        [5, 9],
        [10],  # the stop token alone is an answer of one token
        [7, 8, 10],
        [0, 0, 0, 0, 0, 0],
        [3, 4, 5, 9],  # a stop token inside the prompt does not count
    ]
    assert got.answer_lens.tolist() == [5, 2, 1, 3, 6, 4]
    assert got.truncated.tolist() == [False, False, False, False, True, False]
    for row, length in enumerate(got.answer_lens):
        for values in (got.answers, got.logps, got.entropies):
            assert (values[row, length:] == 0).all()
    np.testing.assert_allclose(got.logps, 0, atol=1e-6)  # certain


def test_a_stop_token_that_just_fits_is_no_truncation():
    policy = chain([1, 2, 3, 3], stop_ids=(3,))
    got = sampled(policy, [[0], [1]], num_rollouts=2, max_new_tokens=3)
    assert got.answers.tolist() == [[1, 2, 3]] * 2 + [[2, 3, 0]] * 2
    assert not got.truncated.any()
    short = sampled(policy, [[0], [1]], num_rollouts=2, max_new_tokens=2)
    assert short.answers.tolist() == [[1, 2]] * 2 + [[2, 3]] * 2
    assert short.truncated.tolist() == [True, True, False, False]


@pytest.mark.parametrize(("stop_ids", "answer"), [((3,), [1, 2, 3]), ((1, 3), [1]), ((9, 2), [1, 2])])
def test_every_stop_id_stops(stop_ids, answer):
    policy = chain([1, 2, 3, 0, 0, 0, 0, 0, 0, 0], stop_ids=stop_ids)
    assert sampled(policy, [[0]], num_rollouts=1, max_new_tokens=4, sampler=GREEDY).answer_ids(0) == answer


@pytest.mark.parametrize("sampler", [GREEDY, make_sampler(5.0), make_sampler(1.0, 0.95, 3)])
def test_ids_past_the_tokenizer_are_never_drawn(sampler):
    """The likeliest id by far is 6, padding of the vocabulary; ids 0 to 4 exist."""
    policy = chain([6] * 7, stop_ids=(), size=5)
    got = sampled(policy, [[0]], num_rollouts=50, max_new_tokens=4, sampler=sampler)
    assert got.answers.max() < 5 and got.truncated.all()
    assert np.isfinite(got.logps).all() and (got.logps < -100).all()  # over the whole vocabulary they are unlikely


def test_the_loop_ends_when_all_rows_have_stopped(monkeypatch):
    """Four draws for answers of 2, 3 and 4 tokens, not the 29 of the budget."""
    draws = []

    def counted(*arguments):
        jax.debug.callback(lambda: draws.append(None))
        return sample(*arguments)

    sample = rollout.sample
    monkeypatch.setattr(rollout, "sample", counted)
    policy = chain([1, 2, 3, 4, 4], stop_ids=(4,))  # a budget of 29 is used nowhere else, so this is traced anew
    got = sampled(policy, [[2], [1], [0]], num_rollouts=1, max_new_tokens=29, sampler=GREEDY)
    jax.effects_barrier()
    assert got.answer_lens.tolist() == [2, 3, 4]
    assert len(draws) == 4


def test_answers_of_a_chain_are_drawn_from_its_distribution():
    """A coin: 0 with 3/4, 1 with 1/4, at every position. 2,000 answers of 4: 8000 draws, ones 2000 +- 4 * 38.7."""
    policy = chain([0, 0], stop_ids=())
    # the hidden state is one-hot times sqrt(2), so that its mean square is 1
    head = np.float32([[1.0, 1.0], [0.0, 0.0]]) * np.float32(np.log(3) / np.sqrt(2))
    params = policy.params | {"head": {"weight": head}}
    got = make_rollouts(policy, params, [[0]], jax.random.key(3), make_sampler(1.0), 2000, 4)
    np.testing.assert_allclose(np.exp(got.logps), np.where(got.answers == 0, 0.75, 0.25), rtol=1e-4)
    assert abs(got.answers.sum() - 2000) < 155
    columns = got.answers.sum(axis=0)  # and the positions are independent: each 500 +- 4 * 19.4
    assert (abs(columns - 500) < 78).all()
    assert abs(np.corrcoef(got.answers[:, 0], got.answers[:, 1])[0, 1]) < 0.09  # 4 / sqrt(2000)


def test_new_numbers_and_lengths_do_not_compile_again():
    policy = chain([1, 2, 3, 0], stop_ids=(3,))

    def run(prompt, temperature, top_p, scale=1.0, seed=0):
        params = jax.tree.map(lambda x: x * np.float32(scale), policy.params)
        make_rollouts(policy, params, [prompt] * 2, jax.random.key(seed), make_sampler(temperature, top_p), 2, 3)

    run([0], 0.8, 0.9)
    before = generate._cache_size()
    run([0], 1.3, 0.9)
    run([0], 0.8, 0.3)
    run([0], 0.8, 0.9, scale=0.5)
    run([0], 0.8, 0.9, seed=4)
    run([0, 1, 0] * 5, 0.8, 0.9)  # 15 tokens, the same bucket as 1
    assert generate._cache_size() == before
    run([0] * 17, 0.8, 0.9)  # the next bucket
    assert generate._cache_size() == before + 1


def test_context_too_long():
    policy = chain([1, 0], stop_ids=(0,))
    fits = [0] * 60
    assert sampled(policy, [fits], num_rollouts=1, max_new_tokens=4).answer_lens.tolist() == [2]
    message = (
        r"a prompt of 61 tokens and 4 new ones exceed the model's context of 64; "
        r"lower --max-new-tokens or use shorter problems\."
    )
    with pytest.raises(InputError, match=message):
        sampled(policy, [[0], fits + [0]], num_rollouts=1, max_new_tokens=4)


def test_a_prompt_longer_than_every_bucket_is_refused():
    policy = chain([1, 0], stop_ids=(0,))
    with pytest.raises(InputError, match="a prompt of 40000 tokens and 4 new ones exceed the model's context of 64"):
        sampled(policy, [[0] * 40_000], num_rollouts=1, max_new_tokens=4)


def test_buckets():
    assert [bucket(n) for n in (1, 16, 17, 49, 512, 513)] == [16, 16, 32, 64, 512, 640]
    assert list(BUCKETS) == sorted(set(BUCKETS))
    for length in range(17, 32_769, 13):  # a row is never padded by more than its own length and 15
        assert length <= bucket(length) < 2 * length + 15
    prompts, lengths = pad_prompts([[4, 5], [6] * 17])
    assert prompts.shape == (2, 32) and prompts.dtype == np.int32
    assert lengths.tolist() == [2, 17]
    assert prompts[0].tolist() == [4, 5] + [0] * 30


def test_no_copy_between_host_and_device_inside_the_loop(tiny_policy):
    """With all arguments on the device, a whole generation moves nothing; an argument from the host is refused."""
    prompts, lengths = jax.device_put(pad_prompts([[5, 6, 7], [8]]))
    sampler = jax.device_put(make_sampler(0.8, 0.9))
    key = jax.random.key(0)
    sizes = dict(num_rollouts=2, max_new_tokens=6, stop_ids=(0,), known_ids=10)
    run = lambda prompts: generate(tiny_policy.config, tiny_policy.params, prompts, lengths, key, sampler, **sizes)
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(run(prompts))
        with pytest.raises(Exception, match="[Dd]isallowed host-to-device transfer"):
            run(np.zeros(prompts.shape, np.int32))


# One row, rows of one prompt, and groups; the head tied or not.
@pytest.mark.parametrize(("prompts", "size", "tied"), [(1, 1, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 8, False), (3, 4, True)))])
def test_bfloat16_has_every_product_it_needs(prompts, size, tied):
    """XLA's CPU backend lacks some bfloat16 products; whatever the number of rows, log-probs come near float32's."""
    config = dataclasses.replace(TINY, tie_word_embeddings=tied, compute_dtype="bfloat16")
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda a: (rng.normal(size=a.shape) * 0.2).astype(np.float32), param_shapes(config))
    half = Policy(config, params, tokenizer(stop_ids=(), size=20))
    drawn = make_rollouts(half, params, PROMPTS[:prompts], jax.random.key(1), make_sampler(1.0), size, 3)
    exact = Policy(dataclasses.replace(config, compute_dtype="float32"), params)
    for row, answer in list(enumerate(drawn.answers))[:: max(1, size // 2)]:
        prompt = PROMPTS[row // size]
        tokens = np.array([[*prompt, *answer]])
        want = np.asarray(token_logps(exact.apply(params, tokens), tokens))[0, len(prompt) - 1 :]
        np.testing.assert_allclose(drawn.logps[row], want, atol=0.1)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about XLA's CPU backend")
def test_cosines_are_made_once_not_in_each_layer():
    """One cosine for the prompt, one for a decode step, whatever the layers. (Free to, XLA copies it into every loop that
    rotates, and takes one for each number of queries and keys.)"""
    config = dataclasses.replace(TINY, num_layers=3)
    arguments = (config, param_shapes(config), *pad_prompts([[1, 2, 3]]), jax.random.key(0), GREEDY)
    program = generate.lower(*arguments, num_rollouts=2, max_new_tokens=4, stop_ids=(1,), known_ids=24).compile()
    assert program.as_text().count(" cosine(") == 2
