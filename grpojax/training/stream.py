"""Continuous batching: answers to many prompts in a fixed number of slots. A finished answer's slot goes to the next prompt."""

import collections
import dataclasses
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from grpojax.device import program
from grpojax.qwen.attention import Cache, Prefix, RowCache, cache_type
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import Params, decoding_params, head_logits, hidden_states, unstacked
from grpojax.qwen.weights import Policy
from grpojax.training.rollout import answer_keys, bucket, draw_tokens, encode_prompts, pad_prompts, prompt_mask
from grpojax.training.sampling import Sampler

PARTS = 4
"""Waiting prompts are admitted when this fraction of the slots, one in four, is free."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """S slots, each with a prompt and its G answers: B = S * G rows."""

    prompts: list[Cache]  # keys and values of the prompts, one block, by layer; empty: each answer's cache begins with them
    prefix_mask: Array  # [S, Tp] bool, true at the tokens of each prompt
    prompt_lens: Array  # [S]
    cache: list[Cache]  # keys and values of the answers, by layer; token n of a row is at position n, or follows its prompt
    keys: Array  # [B] random keys
    answers: Array  # [B, N] int32
    answer_lens: Array  # [B], tokens drawn so far
    stopped: Array  # [B] bool, whether the last token is a stop token
    done: Array  # [B] bool, whether the row draws no more tokens


class Finished(NamedTuple):
    """All answers to one prompt."""

    prompt: int  # index in the list of prompts
    answers: list[list[int]]  # tokens, the stop token included
    truncated: list[bool]  # whether the token budget ran out before a stop token


def stream_answers(
    policy: Policy,
    params: Params,
    prompt_ids: Sequence[list[int]],
    keys: Array,
    sampler: Sampler,
    num_samples: int,
    max_new_tokens: int,
    slots: int,
    skip: Collection[int] = (),
) -> Iterator[list[Finished]]:
    """Answers every prompt, at most `slots` at a time, longest prompts first, so that no long one is left for the end.

    Answer g to prompt p draws its token n with fold_in(fold_in(keys[p], g), n), and its keys and values are at the same
    cache positions in any slot: it depends neither on other answers nor on when it starts.

    Args:
      prompt_ids: n token lists; with their answers they must fit the model's context.
      keys: [n] random keys.
      num_samples: answers per prompt; they share one prefill.
      skip: indices of prompts to leave out. The programs, and so the rounding, are those that answer all prompts.

    Yields:
      Prompts whose answers have all finished since the last time. Meanwhile the device decodes on.
    """
    lengths = [len(ids) for ids in prompt_ids]
    slots = min(slots, len(lengths))
    waiting = collections.deque(sorted(set(range(len(lengths))) - set(skip), key=lambda prompt: (-lengths[prompt], prompt)))
    if not waiting:
        return
    together = -(-slots // PARTS)  # prompts of one prefill
    ids = {"stop_ids": policy.tokenizer.stop_ids, "known_ids": policy.tokenizer.size}
    state = _empty(policy.config, slots, num_samples, bucket(max(lengths)), max_new_tokens, keys[0])
    layers = _decoding_params(policy.config, params)
    key_data, key_impl = np.asarray(jax.random.key_data(keys)), jax.random.key_impl(keys)
    prompt_of: list[int | None] = [None] * slots  # by slot

    def next_prompts() -> list[int]:
        """Prompts for one prefill: of one bucket, so that the numbers of a prompt do not depend on the others."""
        group = [waiting.popleft()]
        while waiting and len(group) < together and bucket(lengths[waiting[0]]) == bucket(lengths[group[0]]):
            group.append(waiting.popleft())
        return group

    def advance(state: Slots) -> Slots:
        """Admits waiting prompts to free slots, and decodes until others are free."""
        free = [slot for slot, prompt in enumerate(prompt_of) if prompt is None]
        while waiting and len(free) >= min(together, len(waiting)):
            group = next_prompts()
            taken = [free.pop(0) for _ in group]
            for slot, prompt in zip(taken, group, strict=True):
                prompt_of[slot] = prompt
            padded = group + group[-1:] * (together - len(group))  # to the batch size of the compiled program
            state = admit(
                policy.config, params, state, *pad_prompts([prompt_ids[prompt] for prompt in padded]),
                np.array(taken + [slots] * (together - len(taken)), np.int32),
                jax.random.wrap_key_data(key_data[padded], impl=key_impl), sampler, num_samples=num_samples, **ids,
            )  # fmt: skip
        enough = min(together, len(waiting)) if waiting else min(len(free) + together, slots)
        return decode(policy.config, layers, state, sampler, enough, **ids)

    state = advance(state)
    while any(prompt is not None for prompt in prompt_of):
        finished = _finished(state, prompt_of)
        for slot in finished:
            prompt_of[slot] = None
        if waiting or any(prompt is not None for prompt in prompt_of):
            state = advance(state)
        yield list(finished.values())


def _finished(state: Slots, prompt_of: list[int | None]) -> dict[int, Finished]:
    """The finished prompts, by slot. Waits for the device."""
    fields = jax.device_get([state.answers, state.answer_lens, state.stopped, state.done])
    by_slot = [x.reshape(len(prompt_of), -1, *x.shape[1:]) for x in fields]
    finished = {}
    for slot, (prompt, answers, lens, stopped, done) in enumerate(zip(prompt_of, *by_slot, strict=True)):
        if prompt is not None and done.all():
            tokens = [ids[:n].tolist() for ids, n in zip(answers, lens, strict=True)]
            finished[slot] = Finished(prompt, tokens, (~stopped).tolist())
    return finished


_decoding_params = jax.jit(decoding_params, static_argnames="config")


@functools.partial(jax.jit, static_argnames=("config", "slots", "num_samples", "prompt_width", "max_new_tokens"))
def _empty(config: QwenConfig, slots: int, num_samples: int, prompt_width: int, max_new_tokens: int, key: Array) -> Slots:
    """Free slots: all rows are done."""
    rows, kind = slots * num_samples, cache_type(config)
    prompts = [] if kind is RowCache else unstacked(config, kind.empty(config, slots, prompt_width, one_block=True))
    return Slots(
        prompts=prompts,
        prefix_mask=jnp.zeros((slots, prompt_width), bool),
        prompt_lens=jnp.zeros(slots, jnp.int32),
        cache=unstacked(config, kind.empty(config, rows, max_new_tokens + (0 if prompts else prompt_width))),
        keys=jnp.broadcast_to(key, (rows,)),
        answers=jnp.zeros((rows, max_new_tokens), jnp.int32),
        answer_lens=jnp.zeros(rows, jnp.int32),
        stopped=jnp.zeros(rows, bool),
        done=jnp.ones(rows, bool),
    )


@program(static_argnames=("config", "num_samples", "stop_ids", "known_ids"), donate_argnames="state")
def admit(
    config: QwenConfig,
    params: Params,
    state: Slots,
    prompts: Array,
    prompt_lens: Array,
    slots: Array,
    keys: Array,
    sampler: Sampler,
    *,
    num_samples: int,
    stop_ids: tuple[int, ...],
    known_ids: int,
) -> Slots:
    """Prefills R prompts [R, Tp] into slots [R], and draws the first token of their answers. A slot out of range is skipped."""
    last, prompt_cache = encode_prompts(config, params, prompts, prompt_lens)
    row_keys = answer_keys(keys, num_samples)
    logits = jnp.repeat(head_logits(config, params, last), num_samples, axis=0)
    token, _ = draw_tokens(logits, row_keys, 0, sampler, known_ids, config.device.kind)
    stopped = jnp.isin(token, jnp.asarray(stop_ids, jnp.int32))
    rows = (slots[:, None] * num_samples + jnp.arange(num_samples)[None, :]).reshape(-1)
    put = lambda whole, new: whole.at[slots].set(new, mode="drop")
    put_rows = lambda whole, new: whole.at[rows].set(new, mode="drop")

    def put_layers(wholes: list[Cache], rows: Array, cache: Cache) -> list[Cache]:
        return [whole.put(rows, new) for whole, new in zip(wholes, unstacked(config, cache), strict=True)]

    if state.prompts:
        caches = {"prompts": put_layers(state.prompts, slots, prompt_cache)}
    else:
        repeated = jax.tree.map(lambda x: jnp.repeat(x, num_samples, axis=1), prompt_cache)
        caches = {"cache": put_layers(state.cache, rows, repeated)}
    return dataclasses.replace(
        state,
        **caches,
        prefix_mask=put(state.prefix_mask, prompt_mask(state.prefix_mask, prompt_lens)),
        prompt_lens=put(state.prompt_lens, prompt_lens),
        keys=put_rows(state.keys, row_keys),
        answers=state.answers.at[rows, 0].set(token, mode="drop"),
        answer_lens=put_rows(state.answer_lens, 1),
        stopped=put_rows(state.stopped, stopped),
        done=put_rows(state.done, stopped | (state.answers.shape[1] == 1)),
    )


@program(static_argnames=("config", "stop_ids", "known_ids"), donate_argnames="state")
def decode(
    config: QwenConfig,
    params: Params,
    state: Slots,
    sampler: Sampler,
    enough: int,
    *,
    stop_ids: tuple[int, ...],
    known_ids: int,
) -> Slots:
    """Draws tokens of all rows that are not done, until all rows of `enough` slots are."""
    slots, (rows, budget) = len(state.prefix_mask), state.answers.shape
    positions, stops = jnp.arange(budget)[None, :], jnp.asarray(stop_ids, jnp.int32)
    lengths = jnp.repeat(state.prompt_lens, rows // slots)
    prefix, start, width = Prefix(state.prompts, state.prefix_mask), 0, budget
    if not state.prompts:
        prefix, start, width = None, lengths, budget + state.prefix_mask.shape[1]

    def step(carry):
        cache, answers, n, stopped, done = carry  # n tokens of each row are drawn
        token = jnp.take_along_axis(answers, jnp.maximum(n - 1, 0)[:, None], axis=1)
        mask = (jnp.arange(width)[None] < (start + n)[:, None]) & ~done[:, None]
        hidden, cache = hidden_states(
            config, params, token, (lengths + n - 1)[:, None], mask[:, None], cache, start + n - 1, prefix
        )
        drawn, _ = draw_tokens(head_logits(config, params, hidden[:, 0]), state.keys, n, sampler, known_ids, config.device.kind)
        answers = jnp.where((positions == n[:, None]) & ~done[:, None], drawn[:, None], answers)
        stopped = stopped | (~done & jnp.isin(drawn, stops))
        return cache, answers, n + ~done, stopped, done | stopped | (n + 1 >= budget)

    def too_few(carry):
        *_, done = carry
        return jnp.sum(jnp.all(done.reshape(slots, -1), axis=1)) < enough

    changing = (state.cache, state.answers, state.answer_lens, state.stopped, state.done)
    cache, answers, answer_lens, stopped, done = jax.lax.while_loop(too_few, step, changing)
    return dataclasses.replace(state, cache=cache, answers=answers, answer_lens=answer_lens, stopped=stopped, done=done)
