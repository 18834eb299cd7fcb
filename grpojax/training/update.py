"""Batches of graded answers, and two compiled programs on them: scoring and the update."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from grpojax.device import Program, program
from grpojax.errors import InputError
from grpojax.loss.logprobs import CHUNK_ELEMENTS, chunked_logps, length_mask
from grpojax.loss.policy_loss import Loss, policy_loss
from grpojax.precision import with_float32_gradient
from grpojax.qwen.attention import Cache, Prefix, fused_attention
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import Params, compute_params, head_matrix, hidden_states, param_bytes, sequence_positions
from grpojax.training.rollout import Rollouts, bucket, encode_prompts, prompt_mask

ACTIVATION_BYTES = 2**29
"""About how much the activations of one micro-batch may take on a device whose memory is unknown."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Answers to P prompts, ready for an update. A prompt that several answers share is computed once.

    Each array is on the host or on the device.
    """

    prompts: Array | np.ndarray  # [P, Tp] int32, padded right
    prompt_lens: Array | np.ndarray  # [P]
    prompt_of: Array | np.ndarray  # [B] int32, the prompt of each answer
    targets: Array | np.ndarray  # [B, N] int32, the answers, padded right
    mask: Array | np.ndarray  # [B, N] float32, 1 at answer tokens
    old_logps: Array | np.ndarray  # [B, N] float32 nats
    advantages: Array | np.ndarray  # [B] float32
    ref_logps: Array | np.ndarray | None = None  # [B, N]; None without a KL term
    sampler_logps: Array | np.ndarray | None = None  # [B, N], if a safeguard compares trainer and sampler
    kl_scale: Array | np.ndarray | None = None  # [B], factors on kl_coeff; None: 1
    keep: Array | np.ndarray | None = None  # [B, N, ceil(V / 8)] uint8, the ids that could be sampled; None: all

    def rows(self, index: Array | np.ndarray) -> "Batch":
        """The batch of some of the answers, with the prompts of all."""
        some = jax.tree.map(lambda x: jnp.take(x, index, axis=0), self.answers())
        return dataclasses.replace(some, prompts=self.prompts, prompt_lens=self.prompt_lens)

    def answers(self) -> "Batch":
        """The batch without its prompts: only arrays with one row per answer."""
        return dataclasses.replace(self, prompts=None, prompt_lens=None)


jax.tree_util.register_dataclass(Batch)


USUAL, SHORT_BUDGET = 90, 128
"""The percentile of the prompt lengths that narrow prompts hold; tokens of answers below which there are no narrow ones."""


class BatchShape(NamedTuple):
    """The padded widths of a batch."""

    prompt: int
    answer: int


def batch_shapes(prompt_lens: Sequence[int], max_new_tokens: int) -> tuple[BatchShape, ...]:
    """The shapes that the batches of a run may have, narrow first: one or two, so that `update` compiles at most twice.

    If the usual prompt needs at most half the width of the longest one, the narrow shape has narrow prompts, otherwise
    answers of half the budget. A short budget is not halved: compiling again would cost more than the padding.

    >>> batch_shapes([100] * 99 + [400], 512)
    (BatchShape(prompt=128, answer=512), BatchShape(prompt=448, answer=512))
    >>> batch_shapes([40, 44], 512)
    (BatchShape(prompt=48, answer=256), BatchShape(prompt=48, answer=512))
    """
    longest, usual = bucket(max(prompt_lens)), bucket(int(np.percentile(prompt_lens, USUAL, method="higher")))
    budget = bucket(max_new_tokens)
    half = bucket(-(-budget // 2)) if budget >= SHORT_BUDGET else budget
    narrow = BatchShape(usual, budget) if usual <= longest // 2 else BatchShape(longest, half)
    return tuple(dict.fromkeys((narrow, BatchShape(longest, budget))))


def make_batch(rollouts: Rollouts, advantages: np.ndarray, shape: BatchShape | None = None) -> Batch:
    """Rollouts and their advantages as a batch.

    Args:
      rollouts: P prompts with G answers each.
      advantages: [P, G].
      shape: widths of prompts and answers; None: the buckets of the longest.
    """
    shape = shape or BatchShape(bucket(int(rollouts.prompt_lens.max())), bucket(int(rollouts.answer_lens.max())))
    return Batch(
        prompts=fit_width(rollouts.prompts, shape.prompt),
        prompt_lens=rollouts.prompt_lens,
        prompt_of=np.repeat(np.arange(len(rollouts.prompts), dtype=np.int32), rollouts.group_size),
        targets=fit_width(rollouts.targets, shape.answer),
        mask=length_mask(rollouts.answer_lens, shape.answer),
        old_logps=fit_width(rollouts.logps, shape.answer),
        advantages=np.asarray(advantages, np.float32).reshape(-1),
        keep=None if rollouts.keep is None else fit_width(rollouts.keep, shape.answer, fill=0xFF),
    )


@functools.cache  # one object for the same numbers: `update` would compile again for an equal one
def make_optimizer(max_grad_norm: float = 1.0, weight_decay: float = 0.01) -> optax.GradientTransformation:
    """AdamW (betas 0.9 and 0.999, eps 1e-8) after a bound on the global gradient norm, for float32 gradients.

    The learning rate is not part of it: `update` multiplies by it, so that changing it does not compile again. Weight decay
    0.01 is the default of torch and the book; optax's is 1e-4. Source: arXiv:1711.05101, algorithm 2.

    Raises:
      InputError: if max_grad_norm is not a finite number above 0.
    """
    if not 0 < max_grad_norm < float("inf"):
        raise InputError(f"max_grad_norm is {max_grad_norm}; it must be a finite number above 0.")
    return optax.chain(bound_norm(max_grad_norm), optax.scale_by_adam(), optax.add_decayed_weights(weight_decay))


def bound_norm(max_grad_norm: float) -> optax.GradientTransformation:
    """Scales gradients down to a global norm of `max_grad_norm` if theirs is larger.

    For the divisions of `optax.clip_by_global_norm` XLA's CPU backend makes a second copy of all gradients; it fuses a
    product with one factor.
    """

    def bound(grads, params):
        factor = max_grad_norm / jnp.maximum(optax.global_norm(grads), max_grad_norm)  # no 0 / 0 for a gradient of 0
        return jax.tree.map(lambda grad: grad * factor, grads)

    return optax.stateless(bound)


@functools.partial(jax.jit, static_argnames=("optimizer", "moment_dtype"))
def init_optimizer(
    optimizer: optax.GradientTransformation, params: Params, moment_dtype: str = "float32"
) -> optax.OptState:
    """The optimizer state for these parameters, with moments in `moment_dtype`."""
    return optimizer.init(jax.tree.map(lambda x: x.astype(moment_dtype), params))


@program(static_argnames=("config", "micro_batch"))
def score(
    config: QwenConfig, params: Params, batch: Batch, temperature: float | None = None, micro_batch: int | None = None
) -> Array:
    """Log-probs of the answers under some weights, [B, N] float32 nats; 0 outside the answers.

    Args:
      temperature: logits are divided by it first; None: 1. If the batch has `keep`, log-probs are over the kept ids.
      micro_batch: answers at a time, a divisor of B; None: all. It changes memory and nothing else.
    """
    if config.device.accelerated:
        params = compute_params(config, params)
    prompts = encode_prompts(config, params, batch.prompts, batch.prompt_lens)

    def logps(part: Batch) -> Array:
        part = dataclasses.replace(part, prompts=batch.prompts, prompt_lens=batch.prompt_lens)
        return _answer_logps(config, params, prompts, part, temperature, remat=False)

    if micro_batch in (None, len(batch.targets)):
        found = logps(batch.answers())
    else:
        found = jax.lax.map(logps, _parts(batch, micro_batch)).reshape(batch.targets.shape)
    return jnp.where(batch.mask > 0, found, 0.0)


def _update(
    config: QwenConfig,
    optimizer: optax.GradientTransformation,
    params: Params,
    opt_state: optax.OptState,
    loss: Loss,
    batch: Batch,
    lr: float,
    micro_batch: int,
    skip: Array | bool = False,
) -> tuple[Params, optax.OptState, dict[str, Array]]:
    """One optimizer step on a loss.

    Gradients are summed over micro-batches. Each contributes its share of the whole step's loss, so their size changes
    memory and nothing else. The old optimizer state is donated and cannot be used afterwards.

    Args:
      lr: learning rate; another one does not compile again.
      micro_batch: answers at a time; divides B.
      skip: [] bool, `skipped` of the update before: after one that was not made, the next ones of a step are not made either.

    Returns:
      New params (same dtypes), new optimizer state, and scalars: loss, grad_norm (before the bound), the loss's aux, and
      skipped: if it is true, because loss or gradient is not finite or by `skip`, params and state are unchanged.
    """
    grads, metrics = gradients(config, params, loss, batch, micro_batch)
    grad_norm = optax.global_norm(grads)
    skipped = skip | ~(jnp.isfinite(metrics["loss"]) & jnp.isfinite(grad_norm))
    metrics |= {"grad_norm": grad_norm, "skipped": skipped}
    choose = lambda new, old: jnp.where(skipped, old, new.astype(old.dtype))
    updates, new_state = optimizer.update(grads, opt_state, _float32(params))
    moved = jax.tree.map(lambda p, u: choose(p.astype(jnp.float32) - lr * u, p), params, updates)
    if config.device.accelerated:
        return moved, jax.tree.map(choose, new_state, opt_state), metrics
    old_state = _after(moved, opt_state, optimizer)  # the moments depend on the gradient alone
    _, new_state = optimizer.update(grads, old_state, _float32(params))
    return moved, jax.tree.map(choose, new_state, old_state), metrics


def _after(params: Params, opt_state: optax.OptState, optimizer: optax.GradientTransformation) -> optax.OptState:
    """The same state, but what is computed from it must wait for these params.

    XLA's CPU backend computes new params and new moments from the old moments in separate loops. If it may choose their order, it copies
    all moments first, because either loop could overwrite what the other still reads.
    """
    wait = lambda old, p: jnp.where(jnp.isnan(p[(0,) * p.ndim]), jnp.nan, old).astype(old.dtype)
    return optax.tree.map_params(optimizer, wait, opt_state, params)


_compiled = functools.partial(Program, _update, static_argnames=("config", "optimizer", "micro_batch"))
update = _compiled(donate_argnames="opt_state")
update_in_place = _compiled(donate_argnames=("params", "opt_state"))
"""`update` that donates the params too."""


def fitting_micro_batch(config: QwenConfig, batch: Batch, backward: bool = True) -> int:
    """The largest divisor of B such that the activations of that number of answers fit into the device's memory, or 1.

    Without a backward pass only those of one layer are there at a time.
    """
    rows, budget = len(batch.targets), activation_budget(config, batch.ref_logps is not None)
    layers = None if backward else 1
    return max((n for n in range(1, rows + 1) if rows % n == 0 and activation_bytes(config, batch, n, layers) <= budget), default=1)


def activation_budget(config: QwenConfig, reference: bool) -> int:
    """About how many bytes the activations of one micro-batch may take.

    Of a device's memory, 10 % stay free. The size of the float32 parameters is there four and a half times (weights, two
    moments, gradients, and weights in the compute dtype), and once more for a reference model. Activations get a quarter of the
    rest, because their gradients, logits and the optimizer's step need memory too.
    """
    if config.device.memory is None:
        return ACTIVATION_BYTES
    held = (5.5 if reference else 4.5) * param_bytes(config)
    return max(ACTIVATION_BYTES, int(0.9 * config.device.memory - held) // 4)


def gradients(
    config: QwenConfig, params: Params, loss: Loss, batch: Batch, micro_batch: int
) -> tuple[Params, dict[str, Array]]:
    """Gradient of a loss (float32, the tree of params), and loss and aux.

    The prompts are computed once, forward and backward: micro-batches add up the gradient of the prompts' keys, values and
    last hidden states, and the sum is propagated through the prompts.
    """
    rows = len(batch.targets)
    # If even this does not fit, the results of the layers' matrix products are computed again in the backward pass.
    remat = activation_bytes(config, batch, micro_batch) > activation_budget(config, batch.ref_logps is not None)
    if config.device.accelerated:
        params = compute_params(config, params)  # cast once, not in every micro-batch; gradients stay float32
    wanted, attach = with_float32_gradient(params)
    zeros = lambda tree: jax.tree.map(lambda x: jax.new_ref(jnp.zeros(x.shape, jnp.float32)), tree)
    prompts, back_to_params = jax.vjp(
        lambda wanted: encode_prompts(config, attach(wanted), batch.prompts, batch.prompt_lens, remat), wanted
    )
    grads, of_prompts = zeros(wanted), zeros(prompts)

    def loss_of(part, wanted, prompts32):
        part = dataclasses.replace(part, prompts=batch.prompts, prompt_lens=batch.prompt_lens)
        seen = jax.tree.map(lambda new, old: new.astype(old.dtype), prompts32, prompts)
        logps = _answer_logps(config, attach(wanted), seen, part, loss.numbers.get("score_temperature"), remat)
        value, aux = policy_loss(
            loss, logps, part.old_logps, part.ref_logps, part.advantages, part.mask,
            whole_mask=batch.mask, sampler_logps=part.sampler_logps, kl_scale=part.kl_scale,
        )  # fmt: skip
        return value, aux | {"loss": value}

    def add_gradient(part):
        value, back, metrics = jax.vjp(functools.partial(loss_of, part), wanted, _float32(prompts), has_aux=True)
        back.with_refs(grads, of_prompts)(jnp.ones_like(value))
        return metrics

    if rows == micro_batch:
        metrics = add_gradient(batch.answers())
    else:
        _, metrics = jax.lax.scan(lambda _, part: (None, add_gradient(part)), None, _parts(batch, micro_batch))
        metrics = jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)
    back_to_params.with_refs(grads)(jax.tree.map(lambda ref, x: ref[...].astype(x.dtype), of_prompts, prompts))
    return jax.tree.map(jax.freeze, grads), metrics


def _parts(batch: Batch, micro_batch: int) -> Batch:
    """The answers of a batch in parts, [B / micro_batch, micro_batch, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, micro_batch, *x.shape[1:]), batch.answers())


def _answer_logps(
    config: QwenConfig,
    params: Params,
    prompts: tuple[Array, Cache],
    batch: Batch,
    temperature: float | None,
    remat: bool,
) -> Array:
    """[B, N] log-probs of batch.targets; logits are computed only at positions that predict an answer token."""
    (last, cache), lengths, of = prompts, batch.prompt_lens, batch.prompt_of
    mask = prompt_mask(batch.prompts, lengths)
    own = lambda x, axis: x if len(lengths) == 1 else jnp.take(x, of, axis)  # answers to one prompt share its keys
    hidden, _ = hidden_states(
        config, params, batch.targets, lengths[of][:, None] + sequence_positions(batch.targets),
        prefix=Prefix(jax.tree.map(lambda x: own(x, 1), cache), own(mask, 0)), remat=remat,
    )  # fmt: skip
    predicting = jnp.concatenate([last[of][:, None], hidden[:, :-1]], axis=1)
    head = head_matrix(config, params)
    elements = max(CHUNK_ELEMENTS, (config.device.memory or 0) // 256)  # of four bytes: logits take 1/64 of the memory
    return chunked_logps(predicting, head, batch.targets, elements, temperature, batch.keep)


def activation_bytes(config: QwenConfig, batch: Batch, rows: int, layers: int | None = None) -> int:
    """About how many bytes this number of answers (`rows`) of a batch needs: the results of the matrix products of these layers (None: all, as
    a backward pass needs), and the attention of one layer."""
    itemsize = jnp.dtype(config.compute_dtype).itemsize
    length, keys = batch.targets.shape[1], batch.targets.shape[1] + batch.prompts.shape[1]
    products = 3 * config.hidden_size + 2 * config.intermediate_size
    products += (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    attention = 0 if fused_attention(config) else 3 * config.num_heads * keys  # scores, exponentials, gradients, float32
    layers = config.num_layers if layers is None else layers
    return rows * length * (layers * products * itemsize + attention * 4)


def fit_width(rows: Array | np.ndarray, size: int, fill: int = 0) -> Array | np.ndarray:
    """[B, n, ...] cut or padded to [B, size, ...], where it is: on the host or on the device."""
    if rows.shape[1] == size:
        return rows
    padding = ((0, 0), (0, max(0, size - rows.shape[1])), *((0, 0),) * (rows.ndim - 2))
    return (jnp if isinstance(rows, Array) else np).pad(rows[:, :size], padding, constant_values=fill)


def _float32(tree: Params) -> Params:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
