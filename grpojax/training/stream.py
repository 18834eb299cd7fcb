"""Answers to many prompts in one batch of places: as answers end, the prompts that wait take their places (continuous
batching)."""

import collections
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import (
    COMPILER_OPTIONS, Params, Prefix, decoding_params, empty_cache, head_logits, hidden_states, unstacked,
)  # fmt: skip
from grpojax.qwen.weights import Policy
from grpojax.training.rollout import answer_keys, bucket, draw_tokens, encode_prompts, pad_prompts, prompt_mask
from grpojax.training.sampling import Sampler

PARTS = 4
"""Places are taken again when one in so many is free."""

State = dict[str, Any]
"""What P places hold of their prompts, and of the G answers to each, P * G rows:

    prompts        keys and values of the prompts, as layers of one block each
    there          [P, Tp] bool, which of the prompt's tokens are there
    prompt_lens    [P]
    cache          keys and values of the answers, token n of a row in slot n
    keys           [B] random keys
    answers        [B, N] int32
    answer_lens    [B], how many tokens are drawn
    stopped, done  [B] bool, whether the last token is a stop token, and whether there is none to come
"""


class Answered(NamedTuple):
    """All answers to one prompt."""

    prompt: int  # its place in the list
    answers: list[list[int]]  # tokens, the stop token included
    truncated: list[bool]  # the budget ran out before a stop token


def stream_answers(
    policy: Policy,
    params: Params,
    prompt_ids: Sequence[list[int]],
    keys: Array,
    sampler: Sampler,
    num_samples: int,
    max_new_tokens: int,
    places: int,
    skip: Collection[int] = (),
) -> Iterator[list[Answered]]:
    """Answers every prompt, so many at a time at most; the longest prompts first, so that none is left for the end.

    Answer g to prompt p draws its token n from fold_in(fold_in(keys[p], g), n), and its keys and values lie in the same
    slots whatever was there before: it depends neither on its neighbours nor on the moment it begins.

    Args:
      prompt_ids: n token lists that fit into the model's context with their answers.
      keys: [n] random keys.
      num_samples: answers to a prompt; they share one prefill.
      skip: prompts to leave out. The others are answered by the programs that answer all, so with the same rounding.

    Yields:
      Prompts whose answers have all ended since the last time. The device goes on meanwhile.
    """
    lengths = [len(ids) for ids in prompt_ids]
    places = min(places, len(lengths))
    waiting = collections.deque(sorted(set(range(len(lengths))) - set(skip), key=lambda prompt: (-lengths[prompt], prompt)))
    if not waiting:
        return
    together = -(-places // PARTS)  # so many prompts are prefilled at once
    rules = {"stop_ids": policy.tokenizer.stop_ids, "known_ids": policy.tokenizer.size}
    state = _empty(policy.config, places, num_samples, bucket(max(lengths)), max_new_tokens, keys[0])
    layers = _decoding_params(policy.config, params)
    numbers, kind = np.asarray(jax.random.key_data(keys)), jax.random.key_impl(keys)
    held: list[int | None] = [None] * places

    def next_prompts() -> list[int]:
        """Those to be prefilled together: of one bucket, so that no prompt's numbers depend on its company."""
        group = [waiting.popleft()]
        while waiting and len(group) < together and bucket(lengths[waiting[0]]) == bucket(lengths[group[0]]):
            group.append(waiting.popleft())
        return group

    def go_on(state: State) -> State:
        """Gives free places to those who wait, and decodes until others are free."""
        free = [place for place, prompt in enumerate(held) if prompt is None]
        while waiting and len(free) >= min(together, len(waiting)):
            group = next_prompts()
            taken = [free.pop(0) for _ in group]
            for place, prompt in zip(taken, group, strict=True):
                held[place] = prompt
            padded = group + group[-1:] * (together - len(group))  # to the size of the compiled program
            state = admit(
                policy.config, params, state, *pad_prompts([prompt_ids[prompt] for prompt in padded]),
                np.array(taken + [places] * (together - len(taken)), np.int32),
                jax.random.wrap_key_data(numbers[padded], impl=kind), sampler, num_samples=num_samples, **rules,
            )  # fmt: skip
        enough = min(together, len(waiting)) if waiting else min(len(free) + together, places)
        return decode(policy.config, layers, state, sampler, enough, **rules)

    state = go_on(state)
    while any(prompt is not None for prompt in held):
        ended = _ended(state, held)
        for place in ended:
            held[place] = None
        if waiting or any(prompt is not None for prompt in held):
            state = go_on(state)
        yield list(ended.values())


def _ended(state: State, held: list[int | None]) -> dict[int, Answered]:
    """What was answered, by place. Waits for the device."""
    fields = jax.device_get([state[name] for name in ("answers", "answer_lens", "stopped", "done")])
    by_place = [x.reshape(len(held), -1, *x.shape[1:]) for x in fields]
    ended = {}
    for place, (prompt, answers, lens, stopped, done) in enumerate(zip(held, *by_place, strict=True)):
        if prompt is not None and done.all():
            tokens = [ids[:n].tolist() for ids, n in zip(answers, lens, strict=True)]
            ended[place] = Answered(prompt, tokens, (~stopped).tolist())
    return ended


_decoding_params = jax.jit(decoding_params, static_argnames="config")


@functools.partial(jax.jit, static_argnames=("config", "places", "num_samples", "prompt_slots", "max_new_tokens"))
def _empty(
    config: QwenConfig, places: int, num_samples: int, prompt_slots: int, max_new_tokens: int, key: Array
) -> State:
    """Places that nobody holds: all rows are done."""
    rows = places * num_samples
    return {
        "prompts": unstacked(config, empty_cache(config, places, prompt_slots, one_block=True)),
        "there": jnp.zeros((places, prompt_slots), bool),
        "prompt_lens": jnp.zeros(places, jnp.int32),
        "cache": unstacked(config, empty_cache(config, rows, max_new_tokens)),
        "keys": jnp.broadcast_to(key, (rows,)),
        "answers": jnp.zeros((rows, max_new_tokens), jnp.int32),
        "answer_lens": jnp.zeros(rows, jnp.int32),
        "stopped": jnp.zeros(rows, bool),
        "done": jnp.ones(rows, bool),
    }


@functools.partial(
    jax.jit,
    static_argnames=("config", "num_samples", "stop_ids", "known_ids"),
    donate_argnames="state",
    compiler_options=COMPILER_OPTIONS,
)
def admit(
    config: QwenConfig,
    params: Params,
    state: State,
    prompts: Array,
    prompt_lens: Array,
    at: Array,
    keys: Array,
    sampler: Sampler,
    *,
    num_samples: int,
    stop_ids: tuple[int, ...],
    known_ids: int,
) -> State:
    """The state with R prompts [R, Tp] at places [R], and the first token of each of their answers.

    A place that does not exist is not filled.
    """
    last, cache = encode_prompts(config, params, prompts, prompt_lens)
    width = prompts.shape[1]
    put = lambda whole, new: whole.at[at].set(new, mode="drop")
    blocks = [
        [(k.at[at, :, :, :width].set(new_k, mode="drop"), v.at[at, :, :width].set(new_v, mode="drop"))]
        for [(k, v)], [(new_k, new_v)] in zip(state["prompts"], unstacked(config, cache), strict=True)
    ]
    row_keys = answer_keys(keys, num_samples)
    logits = jnp.repeat(head_logits(config, params, last), num_samples, axis=0)
    token, _ = draw_tokens(logits, row_keys, 0, sampler, known_ids)
    rows = (at[:, None] * num_samples + jnp.arange(num_samples)[None, :]).reshape(-1)
    put_rows = lambda whole, new: whole.at[rows].set(new, mode="drop")
    budget = state["answers"].shape[1]
    stopped = jnp.isin(token, jnp.asarray(stop_ids, jnp.int32))
    return state | {
        "prompts": blocks,
        "there": put(state["there"], prompt_mask(state["there"], prompt_lens)),
        "prompt_lens": put(state["prompt_lens"], prompt_lens),
        "keys": put_rows(state["keys"], row_keys),
        "answers": state["answers"].at[rows, 0].set(token, mode="drop"),
        "answer_lens": put_rows(state["answer_lens"], 1),
        "stopped": put_rows(state["stopped"], stopped),
        "done": put_rows(state["done"], stopped | (budget == 1)),
    }


@functools.partial(
    jax.jit,
    static_argnames=("config", "stop_ids", "known_ids"),
    donate_argnames="state",
    compiler_options=COMPILER_OPTIONS,
)
def decode(
    config: QwenConfig,
    params: Params,
    state: State,
    sampler: Sampler,
    enough: int,
    *,
    stop_ids: tuple[int, ...],
    known_ids: int,
) -> State:
    """Draws a token of every row that is not done, until all rows of `enough` places are."""
    places, (rows, budget) = len(state["there"]), state["answers"].shape
    slots, stops = jnp.arange(budget)[None, :], jnp.asarray(stop_ids, jnp.int32)
    prompt = Prefix(state["prompts"], state["there"])
    lengths = jnp.repeat(state["prompt_lens"], rows // places)
    fixed = {name: state[name] for name in ("prompts", "there", "prompt_lens", "keys")}

    def step(moving):
        n, running = moving["answer_lens"], ~moving["done"]
        token = jnp.take_along_axis(moving["answers"], jnp.maximum(n - 1, 0)[:, None], axis=1)
        seen = (slots < n[:, None]) & running[:, None]
        hidden, cache = hidden_states(
            config, params, token, (lengths + n - 1)[:, None], seen[:, None], moving["cache"], n - 1, prompt
        )
        drawn, _ = draw_tokens(head_logits(config, params, hidden[:, 0]), state["keys"], n, sampler, known_ids)
        stopped = moving["stopped"] | (running & jnp.isin(drawn, stops))
        return {
            "cache": cache,
            "answers": jnp.where((slots == n[:, None]) & running[:, None], drawn[:, None], moving["answers"]),
            "answer_lens": n + running,
            "stopped": stopped,
            "done": moving["done"] | stopped | (n + 1 >= budget),
        }

    def too_few(moving):
        return jnp.sum(jnp.all(moving["done"].reshape(places, -1), axis=1)) < enough

    return fixed | jax.lax.while_loop(too_few, step, {k: v for k, v in state.items() if k not in fixed})
