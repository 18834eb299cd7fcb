"""Answers to many prompts: slots are reused, and no answer depends on its neighbours, its slot or when it starts."""

import dataclasses
import functools

import jax
import pytest
from fakes import TINY, chain

from grpojax.qwen import attention
from grpojax.training import stream
from grpojax.training.rollout import make_rollouts
from grpojax.training.sampling import GREEDY, make_sampler
from grpojax.training.stream import Finished, stream_answers

pytestmark = pytest.mark.slow

PROMPTS = [[5, 9, 14, 2], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], list(range(20)), [6, 6], [4, 19], [11] * 16]
WARM = make_sampler(1.0, 0.9)


def keys_of(count, seed=4):
    return jax.random.split(jax.random.key(seed), count)


def streamed(policy, prompts=PROMPTS, sampler=WARM, num_samples=1, max_new_tokens=12, slots=3, skip=()):
    keys = keys_of(len(prompts))
    groups = stream_answers(policy, policy.params, prompts, keys, sampler, num_samples, max_new_tokens, slots, skip)
    return [answered for group in groups for answered in group]


def alone(policy, prompt, key, sampler=WARM, num_samples=1, max_new_tokens=12):
    """The same answers by `make_rollouts`, one prompt at a time."""
    got = make_rollouts(policy, policy.params, [prompt], key[None], sampler, num_samples, max_new_tokens)
    return [got.answer_ids(row) for row in range(num_samples)], got.truncated.tolist()


@pytest.fixture(scope="module")
def expected(tiny):
    """By number of samples: the answers to each prompt by itself."""
    keys = keys_of(len(PROMPTS))

    @functools.cache
    def answers(samples):
        return [alone(tiny, prompt, key, num_samples=samples) for prompt, key in zip(PROMPTS, keys, strict=True)]

    return answers


@pytest.mark.parametrize(("slots", "samples"), [(3, 1), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((1, 1), (5, 3), (64, 3)))])
def test_answers_are_those_of_one_prompt_at_a_time(tiny, expected, slots, samples):
    """Whatever the number of slots, with prompts of two buckets and answers that end early and late."""
    each = expected(samples)
    got = streamed(tiny, num_samples=samples, slots=slots)
    assert sorted(answered.prompt for answered in got) == list(range(len(PROMPTS)))
    for answered in got:
        assert (answered.answers, answered.truncated) == each[answered.prompt]
    lengths = [len(ids) for answered in got for ids in answered.answers]
    assert min(lengths) < 4 and max(lengths) == 12 and any(t for _, truncated in each for t in truncated)


@pytest.mark.slow
def test_a_cache_of_several_blocks_gives_the_same_answers(tiny, monkeypatch):
    each = [alone(tiny, *both, max_new_tokens=13) for both in zip(PROMPTS, keys_of(len(PROMPTS)), strict=True)]
    monkeypatch.setattr(attention, "BLOCK_SIZE", 5)  # 5, 5 and 3
    got = streamed(tiny, max_new_tokens=13)
    assert {answered.prompt: (answered.answers, answered.truncated) for answered in got} == dict(enumerate(each))


@pytest.mark.slow
def test_greedy_answers(tiny):
    for answered in streamed(tiny, sampler=GREEDY):
        prompt = PROMPTS[answered.prompt]
        assert (answered.answers, answered.truncated) == alone(tiny, prompt, jax.random.key(0), GREEDY)


def test_what_is_skipped_changes_nothing_for_the_others(tiny, expected):
    samples, each = 1, expected(1)
    for skip in ({0}, {3, 6}, {1, 2, 3, 4, 5}):
        got = streamed(tiny, num_samples=samples, skip=skip)
        assert {answered.prompt: (answered.answers, answered.truncated) for answered in got} == {
            prompt: answers for prompt, answers in enumerate(each) if prompt not in skip
        }
    assert streamed(tiny, num_samples=samples, skip=set(range(7))) == []


COUNTDOWN = chain([0, 0, 1, 2, 3, 4, 5, 6, 7, 7], stop_ids=(0,))
"""After token n come n - 1, ..., 1 and 0, which stops: n tokens."""


def test_a_finished_answer_frees_its_slot_while_a_long_one_continues():
    """Two slots. 8 has 8 tokens before it; those of 2, 3 and 1 follow each other in the other slot meanwhile."""
    got = streamed(COUNTDOWN, [[8], [2], [3], [1]], GREEDY, slots=2)
    assert [answered.prompt for answered in got] == [1, 2, 3, 0]
    assert got == [
        Finished(1, [[1, 0]], [False]),
        Finished(2, [[2, 1, 0]], [False]),
        Finished(3, [[0]], [False]),
        Finished(0, [[7, 6, 5, 4, 3, 2, 1, 0]], [False]),
    ]


@pytest.mark.slow
def test_a_slot_is_free_when_all_its_samples_have_finished(tiny):
    """Samples of different lengths: they come together."""
    got = streamed(tiny, num_samples=4, slots=2)
    assert any(len({len(ids) for ids in answered.answers}) > 1 for answered in got)
    assert all(len(answered.answers) == len(answered.truncated) == 4 for answered in got)


@pytest.mark.parametrize(
    "budget, answers, truncated",
    [(1, [2], True), (2, [2, 1], True), (3, [2, 1, 0], False), (4, [2, 1, 0], False)],
)
def test_the_budget(budget, answers, truncated):
    """A stop token that just fits is no truncation."""
    got = streamed(COUNTDOWN, [[3]] * 5, GREEDY, max_new_tokens=budget, slots=2)
    assert [(a.answers, a.truncated) for a in got] == [([answers], [truncated])] * 5


def test_long_prompts_come_first_and_each_is_prefilled_once(monkeypatch):
    """12 slots take 3 at a time, all of one bucket: of 48, 32 and 16 tokens."""
    admitted, real = [], stream.admit

    def admit(config, params, state, prompts, lens, at, keys, *args, **kwargs):
        real_ones = [[int(x) for x in row[:n]] for row, n, slot in zip(prompts, lens, at, strict=True) if slot < 12]
        admitted.append((prompts.shape, real_ones))
        return real(config, params, state, prompts, lens, at, keys, *args, **kwargs)

    monkeypatch.setattr(stream, "admit", admit)
    policy = dataclasses.replace(COUNTDOWN, config=dataclasses.replace(COUNTDOWN.config, max_position_embeddings=64))
    prompts = [[9] * n for n in (3, 40, 17, 1, 20, 2, 33, 4, 16, 5, 32, 6)]
    got = streamed(policy, prompts, make_sampler(1.0), num_samples=2, slots=12)
    assert sorted(answered.prompt for answered in got) == list(range(12))
    assert [shape for shape, _ in admitted] == [(3, 48), (3, 32), (3, 16), (3, 16), (3, 16)]
    assert [len(prompt) for _, group in admitted for prompt in group] == sorted(map(len, prompts), reverse=True)


def test_the_device_goes_on_while_the_first_answers_are_read(monkeypatch):
    calls, real = [], stream.decode

    def decode(*args, **kwargs):
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(stream, "decode", decode)
    groups = stream_answers(COUNTDOWN, COUNTDOWN.params, [[2]] * 4, keys_of(4), GREEDY, 1, 8, 1)
    assert calls == []
    next(groups)
    assert len(calls) == 2
    assert len(list(groups)) == 3 and len(calls) == 4  # none after the last


def test_programs_are_compiled_once():
    """Another number of prompts, other lengths in the bucket, other answers: the same three programs."""
    policy = chain([0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 9], stop_ids=(0,))
    streamed(policy, [[2], [3, 3]] * 3, slots=2)
    before = stream.admit._cache_size(), stream.decode._cache_size(), stream._empty._cache_size()
    streamed(policy, [[4] * n for n in (1, 5, 9, 16)] * 4, WARM, slots=2)
    assert (stream.admit._cache_size(), stream.decode._cache_size(), stream._empty._cache_size()) == before


@pytest.mark.slow
def test_bfloat16(tiny):
    """The cache takes the dtype of the computation."""
    half = dataclasses.replace(tiny, config=dataclasses.replace(TINY, compute_dtype="bfloat16"))
    for answered in streamed(half, sampler=GREEDY):
        prompt = PROMPTS[answered.prompt]
        assert (answered.answers, answered.truncated) == alone(half, prompt, jax.random.key(0), GREEDY)
