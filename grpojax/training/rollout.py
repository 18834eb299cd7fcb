"""Rollouts: one prefill per prompt, shared by its G answers, then one compiled decode loop until all have stopped."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from grpojax.device import program
from grpojax.errors import InputError
from grpojax.loss.logprobs import logsumexp_and_entropy, pack_keep
from grpojax.qwen.attention import Cache
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import Params, answer_caches, decoding_params, head_logits, hidden_states, sequence_positions
from grpojax.qwen.weights import Policy
from grpojax.training.sampling import Sampler, sample

BUCKETS = (16, 32, 48, 64, 96, 128, *(part * 2**power for power in range(5, 15) for part in (5, 6, 7, 8)))
"""Lengths are padded to one of these (four per octave from 128 to 131,072), so that a new length rarely compiles again."""


def bucket(length: int) -> int:
    """The smallest bucket that holds `length`.

    >>> bucket(33), bucket(48)
    (48, 48)
    """
    return next(size for size in BUCKETS if size >= length)


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """G answers to each of P prompts, prompt-major. Padding is on the right.

    What an update reads, `targets`, `logps` and `keep`, stays on the device that sampled it; the rest is on the host.

    `logps` and `entropies` come from the logits the tokens were sampled from, at temperature 1 over the whole vocabulary.
    With `keep_mask` or `score_temperature` of `make_rollouts`, log-probs are over the kept ids or at that temperature;
    entropies stay as they are, so that they are comparable.
    """

    prompts: np.ndarray  # [P, Tp] int32
    prompt_lens: np.ndarray  # [P]
    answers: np.ndarray  # [B, N] int32
    answer_lens: np.ndarray  # [B], the first stop token included
    truncated: np.ndarray  # [B] bool: the token budget ran out before a stop token
    logps: Array | np.ndarray  # [B, N] float32 nats, 0 after the end
    entropies: np.ndarray  # [B, N] float32 nats, 0 after the end
    keep: Array | np.ndarray | None = None  # [B, N, ceil(V / 8)] uint8, the ids that could be sampled, as bits; all set after the end
    targets: Array | np.ndarray = None  # `answers` on the device; if not given, `answers` themselves

    def __post_init__(self):
        if self.targets is None:
            object.__setattr__(self, "targets", self.answers)

    @property
    def group_size(self) -> int:
        """G, the number of answers per prompt."""
        return len(self.answers) // len(self.prompts)

    def group(self, prompt: int) -> "Rollouts":
        """The rollouts of one prompt."""
        if len(self.prompts) == 1:
            return self
        size = self.group_size
        rows = slice(prompt * size, (prompt + 1) * size)
        whole = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        own = {"prompts": self.prompts[prompt : prompt + 1], "prompt_lens": self.prompt_lens[prompt : prompt + 1]}
        return Rollouts(**{name: None if x is None else x[rows] for name, x in whole.items()} | own)

    def answer_ids(self, row: int) -> list[int]:
        """The tokens of one answer, the stop token included."""
        return self.answers[row, : self.answer_lens[row]].tolist()


def make_rollouts(
    policy: Policy,
    params: Params,
    prompt_ids: list[list[int]],
    key: Array,
    sampler: Sampler,
    num_rollouts: int,
    max_new_tokens: int,
    keep_mask: bool = False,
    score_temperature: float | None = None,
    prompt_width: int | None = None,
) -> Rollouts:
    """Samples `num_rollouts` answers to each prompt.

    Args:
      policy: structure, stop ids and the size of the tokenizer; ids beyond it are never sampled.
      params: the weights that sample, the old policy.
      prompt_ids: P token lists.
      key: random key, consumed. Row b draws token n with fold_in(fold_in(key, b), n), so an answer does not depend on
        padding or on the length of other answers. With keys [P], answer g of prompt p draws with fold_in(keys[p], g),
        and does not depend on the other prompts either.
      max_new_tokens: token budget of an answer.
      keep_mask: record the ids that could be sampled, and take `logps` over them alone.
      score_temperature: temperature of `logps`; None: 1.
      prompt_width: prompts are padded to it; None: to the bucket of the longest.

    Raises:
      InputError: if a prompt and its answer do not fit the model's context.
    """
    check_context(policy, max(map(len, prompt_ids)), max_new_tokens)
    prompts, lengths = pad_prompts(prompt_ids, prompt_width)
    out = generate(
        policy.config, params, prompts, lengths, key, sampler,
        num_rollouts=num_rollouts, max_new_tokens=max_new_tokens,
        stop_ids=policy.tokenizer.stop_ids, known_ids=policy.tokenizer.size,
        keep_mask=keep_mask, score_temperature=score_temperature,
    )  # fmt: skip
    on_host = jax.device_get({name: out.pop(name) for name in ("answer_lens", "truncated", "entropies")} | {"answers": out["answers"]})
    return Rollouts(prompts, lengths, **on_host, logps=out["logps"], keep=out.get("keep"), targets=out["answers"])


def concat_rollouts(parts: list[Rollouts]) -> Rollouts:
    """Joins rollouts of the same group size and token budget."""
    if len(parts) == 1:
        return parts[0]
    width = max(part.prompts.shape[1] for part in parts)
    wide = [dataclasses.replace(p, prompts=np.pad(p.prompts, ((0, 0), (0, width - p.prompts.shape[1])))) for p in parts]
    fields = {f.name: [getattr(part, f.name) for part in wide] for f in dataclasses.fields(Rollouts)}
    join = lambda arrays: (jnp if any(isinstance(x, Array) for x in arrays) else np).concatenate(arrays)
    return Rollouts(**{name: None if arrays[0] is None else join(arrays) for name, arrays in fields.items()})


def check_context(policy: Policy, prompt_len: int, max_new_tokens: int) -> None:
    """Raises an InputError if prompt and answer are longer than the model's context."""
    context = policy.config.max_position_embeddings
    if prompt_len + max_new_tokens > context:
        raise InputError(
            f"a prompt of {prompt_len} tokens and {max_new_tokens} new ones exceed the model's context of {context}; "
            "lower --max-new-tokens or use shorter problems."
        )


def pad_prompts(prompt_ids: list[list[int]], width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Token lists -> [P, width] int32 padded right with 0 (None: to the bucket of the longest), and their lengths [P]."""
    lengths = np.array([len(ids) for ids in prompt_ids], np.int32)
    prompts = np.zeros((len(prompt_ids), width or bucket(int(lengths.max()))), np.int32)
    for row, ids in zip(prompts, prompt_ids, strict=True):
        row[: len(ids)] = ids
    return prompts, lengths


@program(static_argnames=("config", "num_rollouts", "max_new_tokens", "stop_ids", "known_ids", "keep_mask"))
def generate(
    config: QwenConfig,
    params: Params,
    prompts: Array,
    prompt_lens: Array,
    key: Array,
    sampler: Sampler,
    *,
    num_rollouts: int,
    max_new_tokens: int,
    stop_ids: tuple[int, ...],
    known_ids: int,
    keep_mask: bool = False,
    score_temperature: float | None = None,
) -> dict[str, Array]:
    """The compiled program of `make_rollouts`.

    Args:
      prompts: [P, Tp] int32, padded right. prompt_lens: [P].
      known_ids: ids from here on are padding of the vocabulary, with probability 0.

    Returns:
      answers [B, N], answer_lens [B], truncated [B], logps [B, N], entropies [B, N] and, with keep_mask, keep; see
      `Rollouts`.
    """
    batch = prompts.shape[0] * num_rollouts
    last, prompt_cache = encode_prompts(config, params, prompts, prompt_lens)
    first_logits = head_logits(config, params, last)
    cache, prefix, start = answer_caches(
        config, prompt_cache, prompt_mask(prompts, prompt_lens), prompt_lens, num_rollouts, max_new_tokens
    )
    share = functools.partial(jnp.repeat, repeats=num_rollouts, axis=0)
    lengths, stops = share(prompt_lens), jnp.asarray(stop_ids, jnp.int32)
    row_keys = answer_keys(key, num_rollouts) if key.ndim else answer_keys(key[None], batch)
    cache_positions = jnp.arange(max_new_tokens + (0 if prefix else prompts.shape[1]))

    def draw(n, logits, drawn: _Drawn) -> _Drawn:
        """Token n of every row that has not stopped."""
        token, keep = draw_tokens(logits, row_keys, n, sampler, known_ids, config.device.kind)
        normalizer, entropies = logsumexp_and_entropy(logits)
        scored = logits if score_temperature is None else logits / score_temperature
        scored = jnp.where(keep, scored, -jnp.inf) if keep_mask else scored
        if scored is not logits:
            normalizer = jax.nn.logsumexp(scored, axis=-1)
        logps = jnp.take_along_axis(scored, token[:, None], axis=-1)[:, 0] - normalizer
        running = ~drawn.done
        return _Drawn(
            answers=drawn.answers.at[:, n].set(jnp.where(running, token, 0)),
            logps=drawn.logps.at[:, n].set(jnp.where(running, logps, 0.0)),
            entropies=drawn.entropies.at[:, n].set(jnp.where(running, entropies, 0.0)),
            answer_lens=drawn.answer_lens + running,
            done=drawn.done | jnp.isin(token, stops),
            keep=drawn.keep.at[:, n].set(pack_keep(keep | ~running[:, None])) if keep_mask else None,
        )

    def step(carry):
        n, drawn, cache = carry  # n tokens are drawn; the last one is the input, and token n is drawn
        token = jax.lax.dynamic_index_in_dim(drawn.answers, n - 1, axis=1)
        mask = jnp.broadcast_to((cache_positions[None] < jnp.reshape(start + n, (-1, 1)))[:, None], (batch, 1, cache_positions.size))
        positions = (lengths + n - 1)[:, None]
        hidden, cache = hidden_states(config, params, token, positions, mask, cache, start + n - 1, prefix)
        return n + 1, draw(n, head_logits(config, params, hidden[:, 0]), drawn), cache

    drawn = draw(0, share(first_logits), _Drawn.empty(batch, max_new_tokens, config.vocab_size if keep_mask else None))
    params = decoding_params(config, params)
    _, drawn, _ = jax.lax.while_loop(
        lambda carry: (carry[0] < max_new_tokens) & ~jnp.all(carry[1].done), step, (1, drawn, cache)
    )
    fields = {name: array for name, array in vars(drawn).items() if name != "done" and array is not None}
    return fields | {"truncated": ~drawn.done}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Drawn:
    """What a decode loop has sampled so far; see `Rollouts`."""

    answers: Array  # [B, N] int32
    logps: Array  # [B, N] float32 nats
    entropies: Array  # [B, N] float32 nats
    answer_lens: Array  # [B] int32
    done: Array  # [B] bool, whether a stop token was drawn
    keep: Array | None  # [B, N, ceil(V / 8)] uint8; None: not recorded

    @classmethod
    def empty(cls, batch: int, max_new_tokens: int, keep_ids: int | None) -> "_Drawn":
        zeros = functools.partial(jnp.zeros, (batch, max_new_tokens))
        keep = None if keep_ids is None else jnp.full((batch, max_new_tokens, -(-keep_ids // 8)), 0xFF, jnp.uint8)
        return cls(zeros(jnp.int32), zeros(jnp.float32), zeros(jnp.float32), jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool), keep)


def answer_keys(keys: Array, num_rollouts: int) -> Array:
    """[P] keys of prompts -> [P * num_rollouts] keys of their answers."""
    of_one = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(of_one, (0, None))(keys, jnp.arange(num_rollouts)).reshape(-1)


def draw_tokens(
    logits: Array, row_keys: Array, n: Array, sampler: Sampler, known_ids: int, device: str = "cpu"
) -> tuple[Array, Array]:
    """Token n of [B] answers (one number, or one for each row), drawn with their keys; returns what `sample` returns."""
    possible = jnp.arange(logits.shape[-1])[None, :] < known_ids
    keys = jax.vmap(jax.random.fold_in)(row_keys, jnp.broadcast_to(n, row_keys.shape))
    return sample(jnp.where(possible, logits, -jnp.inf), keys, sampler, device)


def encode_prompts(
    config: QwenConfig, params: Params, prompts: Array, prompt_lens: Array, remat: bool = False
) -> tuple[Array, Cache]:
    """Prefills prompts [P, Tp]: the hidden state [P, D] of each last token, which predicts the answer's first one, and the cache."""
    hidden, cache = hidden_states(config, params, prompts, sequence_positions(prompts), remat=remat)
    return jnp.take_along_axis(hidden, (prompt_lens - 1)[:, None, None], axis=1)[:, 0], cache


def prompt_mask(prompts: Array, prompt_lens: Array) -> Array:
    """[P, Tp] bool, true at the tokens of each prompt, false at padding. Of `prompts` only the shape is used."""
    return jnp.arange(prompts.shape[1])[None, :] < prompt_lens[:, None]
