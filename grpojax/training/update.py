"""Scoring and the update: two compiled programs over a batch of graded answers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from grpojax.loss.logprobs import chunked_logps, length_mask
from grpojax.loss.policy_loss import policy_loss
from grpojax.products import with_float32_gradient
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import COMPILER_OPTIONS, Cache, Params, Prefix, causal_inputs, head_matrix, hidden_states
from grpojax.training.rollout import Rollouts, bucket, encode_prompts, prompt_mask
from grpojax.variants import Variant

ACTIVATION_BYTES = 2**29
"""What the layers' activations of one micro-batch may take, about. Where even one sequence takes more, the results of the
layers' products are not kept but computed again in the backward pass."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Answers to P prompts, ready for an update. Several answers may have one prompt, which is then computed once."""

    prompts: np.ndarray  # [P, Tp] int32, padded right
    prompt_lens: np.ndarray  # [P]
    prompt_of: np.ndarray  # [B] int32, the prompt of each answer
    targets: np.ndarray  # [B, N] int32, the answers, padded right
    mask: np.ndarray  # [B, N] float32, 1 at answer tokens
    old_logps: np.ndarray  # [B, N] float32 nats
    advantages: np.ndarray  # [B] float32
    ref_logps: np.ndarray | None = None  # [B, N]; None for a variant without a KL term
    sampler_logps: np.ndarray | None = None  # [B, N], where a safeguard compares trainer and sampler
    kl_scale: np.ndarray | None = None  # [B], factors on kl_coeff; None: 1
    keep: np.ndarray | None = None  # [B, N, ceil(V / 8)] uint8, the ids that could be sampled; None: all

    def rows(self, index: np.ndarray) -> "Batch":
        """The batch of some of the answers, with the prompts of all."""
        some = jax.tree.map(lambda x: x[index], self.answers())
        return dataclasses.replace(some, prompts=self.prompts, prompt_lens=self.prompt_lens)

    def answers(self) -> "Batch":
        """What there is one of for each answer: everything but the prompts."""
        return dataclasses.replace(self, prompts=None, prompt_lens=None)


jax.tree_util.register_dataclass(Batch)


def make_batch(rollouts: Rollouts, advantages: np.ndarray, width: int | None = None) -> Batch:
    """Rollouts and their advantages as a batch.

    Args:
      rollouts: P prompts with G answers each.
      advantages: [P, G].
      width: N, at least the longest answer; None: its bucket.
    """
    size = width or bucket(int(rollouts.answer_lens.max()))
    return Batch(
        prompts=rollouts.prompts,
        prompt_lens=rollouts.prompt_lens,
        prompt_of=np.repeat(np.arange(len(rollouts.prompts), dtype=np.int32), rollouts.group_size),
        targets=_fit(rollouts.answers, size),
        mask=length_mask(rollouts.answer_lens, size),
        old_logps=_fit(rollouts.logps, size),
        advantages=np.asarray(advantages, np.float32).reshape(-1),
        keep=None if rollouts.keep is None else _fit(rollouts.keep, size, fill=0xFF),
    )


@functools.cache  # one object for the same numbers: `update` would compile anew for an equal one
def make_optimizer(max_grad_norm: float = 1.0, weight_decay: float = 0.01) -> optax.GradientTransformation:
    """AdamW (betas 0.9 and 0.999, eps 1e-8) behind a bound on the global gradient norm, for gradients in float32.

    The learning rate is not part of it: `update` multiplies by it, so that it stays a number. Weight decay 0.01 is
    torch's default, and the book's; optax's own is 1e-4. Source: arXiv:1711.05101, algorithm 2.
    """
    return optax.chain(bound_norm(max_grad_norm), optax.scale_by_adam(), optax.add_decayed_weights(weight_decay))


def bound_norm(max_grad_norm: float) -> optax.GradientTransformation:
    """Scales gradients down to a global norm of `max_grad_norm` where theirs is larger.

    `optax.clip_by_global_norm` divides each number by the norm, for which XLA's CPU backend makes a second copy of all
    gradients; a product with one factor it makes on the way.
    """

    def bound(grads, params):
        factor = jnp.minimum(1.0, max_grad_norm / optax.global_norm(grads))
        return jax.tree.map(lambda grad: grad * factor, grads)

    return optax.stateless(bound)


@functools.partial(jax.jit, static_argnames=("optimizer", "moment_dtype"))
def init_optimizer(
    optimizer: optax.GradientTransformation, params: Params, moment_dtype: str = "float32"
) -> optax.OptState:
    """The optimizer's state for these parameters; its moments are in `moment_dtype` whatever theirs is."""
    return optimizer.init(jax.tree.map(lambda x: x.astype(moment_dtype), params))


@functools.partial(jax.jit, static_argnames="config", compiler_options=COMPILER_OPTIONS)
def score(config: QwenConfig, params: Params, batch: Batch, temperature: float | None = None) -> Array:
    """Log-probs of the answers under some weights, [B, N] float32 nats; 0 outside the answers.

    Args:
      temperature: logits are divided by it first; None: 1. Where the batch has `keep`, they are over the kept ids.
    """
    prompts = encode_prompts(config, params, batch.prompts, batch.prompt_lens)
    return jnp.where(batch.mask > 0, _answer_logps(config, params, prompts, batch, temperature, remat=False), 0.0)


def _update(
    config: QwenConfig,
    optimizer: optax.GradientTransformation,
    params: Params,
    opt_state: optax.OptState,
    variant: Variant,
    batch: Batch,
    lr: float,
    micro_batch: int,
) -> tuple[Params, optax.OptState, dict[str, Array]]:
    """One step down the variant's loss.

    Gradients are summed over micro-batches; each contributes its share of the whole step's loss, so their size changes
    memory and nothing else. The new optimizer state takes the memory of the old one, which cannot be used any more.

    Args:
      lr: learning rate, data.
      micro_batch: sequences at a time; divides B.

    Returns:
      New params (same dtypes), new optimizer state, and scalars: loss, grad_norm (before the bound), and the loss's aux.
      Where loss or gradient is not finite, params and state come back as they were.
    """
    grads, metrics = gradients(config, params, variant, batch, micro_batch)
    grad_norm = optax.global_norm(grads)
    finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(grad_norm)
    choose = lambda new, old: jnp.where(finite, new.astype(old.dtype), old)
    updates, _ = optimizer.update(grads, opt_state, _float32(params))
    moved = jax.tree.map(lambda p, u: choose(p.astype(jnp.float32) - lr * u, p), params, updates)
    old_state = _after(moved, opt_state, optimizer)  # now the moments, which depend on the gradient alone
    _, new_state = optimizer.update(grads, old_state, _float32(params))
    return moved, jax.tree.map(choose, new_state, old_state), metrics | {"grad_norm": grad_norm}


def _after(params: Params, opt_state: optax.OptState, optimizer: optax.GradientTransformation) -> optax.OptState:
    """The same state, but nothing that is made of it can come before these params.

    XLA makes new params and new moments of the old moments in separate loops. Left free to order them, it copies all
    moments first, since either could overwrite what the other still reads.
    """
    wait = lambda old, p: jnp.where(jnp.isnan(p[(0,) * p.ndim]), jnp.nan, old).astype(old.dtype)
    return optax.tree.map_params(optimizer, wait, opt_state, params)


_compiled = functools.partial(
    jax.jit, _update, static_argnames=("config", "optimizer", "micro_batch"), compiler_options=COMPILER_OPTIONS
)
update = _compiled(donate_argnames="opt_state")
update_in_place = _compiled(donate_argnames=("params", "opt_state"))
"""`update`, but the new params take the memory of the old ones too, which cannot be used any more."""


def fitting_micro_batch(config: QwenConfig, batch: Batch) -> int:
    """The largest divisor of B with which the activations of so many answers stay within ACTIVATION_BYTES, or 1."""
    rows = len(batch.targets)
    fits = [n for n in range(1, rows + 1) if rows % n == 0 and activation_bytes(config, batch, n) <= ACTIVATION_BYTES]
    return max(fits, default=1)


def gradients(
    config: QwenConfig, params: Params, variant: Variant, batch: Batch, micro_batch: int
) -> tuple[Params, dict[str, Array]]:
    """Gradient of the variant's loss (float32, the tree of params), with loss and aux.

    The prompts are computed once, forward and backward: each micro-batch adds to the gradient of what its answers saw of
    them, and the sum goes back through the prompts.
    """
    rows = len(batch.targets)
    remat = activation_bytes(config, batch, micro_batch) > ACTIVATION_BYTES
    wanted, attach = with_float32_gradient(params)
    zeros = lambda tree: jax.tree.map(lambda x: jax.new_ref(jnp.zeros(x.shape, jnp.float32)), tree)
    prompts, back_to_params = jax.vjp(
        lambda wanted: encode_prompts(config, attach(wanted), batch.prompts, batch.prompt_lens, remat), wanted
    )
    grads, of_prompts = zeros(wanted), zeros(prompts)

    def loss_of(part, wanted, prompts32):
        part = dataclasses.replace(part, prompts=batch.prompts, prompt_lens=batch.prompt_lens)
        seen = jax.tree.map(lambda new, old: new.astype(old.dtype), prompts32, prompts)
        logps = _answer_logps(config, attach(wanted), seen, part, variant.numbers.get("score_temperature"), remat)
        loss, aux = policy_loss(
            variant, logps, part.old_logps, part.ref_logps, part.advantages, part.mask,
            whole_mask=batch.mask, sampler_logps=part.sampler_logps, kl_scale=part.kl_scale,
        )  # fmt: skip
        return loss, aux | {"loss": loss}

    def add_gradient(part):
        loss, back, metrics = jax.vjp(functools.partial(loss_of, part), wanted, _float32(prompts), has_aux=True)
        back.with_refs(grads, of_prompts)(jnp.ones_like(loss))
        return metrics

    if rows == micro_batch:
        metrics = add_gradient(batch.answers())
    else:
        parts = jax.tree.map(lambda x: x.reshape(rows // micro_batch, micro_batch, *x.shape[1:]), batch.answers())
        _, metrics = jax.lax.scan(lambda _, part: (None, add_gradient(part)), None, parts)
        metrics = jax.tree.map(lambda x: jnp.sum(x, axis=0), metrics)
    back_to_params.with_refs(grads)(jax.tree.map(lambda ref, x: ref[...].astype(x.dtype), of_prompts, prompts))
    return jax.tree.map(jax.freeze, grads), metrics


def _answer_logps(
    config: QwenConfig,
    params: Params,
    prompts: tuple[Array, Cache],
    batch: Batch,
    temperature: float | None,
    remat: bool,
) -> Array:
    """[B, N] log-probs of batch.targets; the head sees only the positions that predict an answer token."""
    (last, cache), lengths, of = prompts, batch.prompt_lens, batch.prompt_of
    there = prompt_mask(batch.prompts, lengths)
    own = lambda x, axis: x if len(lengths) == 1 else jnp.take(x, of, axis)  # answers to one prompt share its keys
    positions, causal = causal_inputs(batch.targets)
    hidden, _ = hidden_states(
        config, params, batch.targets, lengths[of][:, None] + positions, causal,
        prefix=Prefix(jax.tree.map(lambda x: own(x, 1), cache), own(there, 0)), remat=remat,
    )  # fmt: skip
    predicting = jnp.concatenate([last[of][:, None], hidden[:, :-1]], axis=1)
    head = head_matrix(config, params)
    return chunked_logps(predicting, head, batch.targets, temperature=temperature, keep=batch.keep)


def activation_bytes(config: QwenConfig, batch: Batch, rows: int) -> int:
    """About what so many answers of a batch take in the backward pass: the results of all layers' products, and the
    attention of the one layer that is at work."""
    itemsize = jnp.dtype(config.compute_dtype).itemsize
    length, keys = batch.targets.shape[1], batch.targets.shape[1] + batch.prompts.shape[1]
    products = 3 * config.hidden_size + 2 * config.intermediate_size
    products += (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    attention = 3 * config.num_heads * keys  # scores, their exponentials, and the gradient of either: float32
    return rows * length * (config.num_layers * products * itemsize + attention * 4)


def _fit(rows: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """[B, n, ...] cut or padded to [B, size, ...]."""
    room = ((0, 0), (0, max(0, size - rows.shape[1])), *((0, 0),) * (rows.ndim - 2))
    return np.pad(rows[:, :size], room, constant_values=fill)


def _float32(tree: Params) -> Params:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
