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
from grpojax.qwen.config import QwenConfig
from grpojax.qwen.model import Cache, Params, Prefix, causal_inputs, head_matrix, hidden_states
from grpojax.training.rollout import Rollouts, bucket, encode_prompts, prompt_mask
from grpojax.variants import Variant

ACTIVATION_BYTES = 2**31
"""What the layers' activations of one micro-batch may take, about. Where even one sequence takes more, they are
recomputed in the backward pass."""


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
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(), optax.add_decayed_weights(weight_decay)
    )


def init_optimizer(
    optimizer: optax.GradientTransformation, params: Params, moment_dtype: str = "float32"
) -> optax.OptState:
    """The optimizer's state for these parameters; its moments are in `moment_dtype` whatever theirs is."""
    return optimizer.init(jax.tree.map(lambda x: x.astype(moment_dtype), params))


@functools.partial(jax.jit, static_argnames="config")
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
    updates, new_state = optimizer.update(grads, opt_state, _float32(params))
    new_state = jax.tree.map(lambda new, old: new.astype(old.dtype), new_state, opt_state)
    moved = jax.tree.map(lambda p, u: (p.astype(jnp.float32) - lr * u).astype(p.dtype), params, updates)
    finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(grad_norm)
    new, old = (moved, new_state), (params, opt_state)
    moved, new_state = jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
    return moved, new_state, metrics | {"grad_norm": grad_norm}


_STRUCTURE = ("config", "optimizer", "micro_batch")
update = jax.jit(_update, static_argnames=_STRUCTURE, donate_argnames="opt_state")
update_in_place = jax.jit(_update, static_argnames=_STRUCTURE, donate_argnames=("params", "opt_state"))
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
    prompts, back_to_params = jax.vjp(
        lambda params: encode_prompts(config, params, batch.prompts, batch.prompt_lens, remat), params
    )

    def loss_of(params, prompts, part):
        part = dataclasses.replace(part, prompts=batch.prompts, prompt_lens=batch.prompt_lens)
        logps = _answer_logps(config, params, prompts, part, variant.numbers.get("score_temperature"), remat)
        loss, aux = policy_loss(
            variant, logps, part.old_logps, part.ref_logps, part.advantages, part.mask,
            whole_mask=batch.mask, sampler_logps=part.sampler_logps, kl_scale=part.kl_scale,
        )  # fmt: skip
        return loss, aux | {"loss": loss}

    def gradient_of(part):
        grads, metrics = jax.grad(loss_of, argnums=(0, 1), has_aux=True)(params, prompts, part)
        return _float32(grads), metrics

    if rows == micro_batch:
        (grads, of_prompts), metrics = gradient_of(batch.answers())
    else:
        parts = jax.tree.map(lambda x: x.reshape(rows // micro_batch, micro_batch, *x.shape[1:]), batch.answers())
        one = jax.tree.map(lambda x: x[0], parts)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient_of, one))
        add = lambda total, part: (jax.tree.map(jnp.add, total, gradient_of(part)), None)
        ((grads, of_prompts), metrics), _ = jax.lax.scan(add, zeros, parts)
    (rest,) = back_to_params(jax.tree.map(lambda grad, x: grad.astype(x.dtype), of_prompts, prompts))
    return jax.tree.map(lambda grad, more: grad + more.astype(jnp.float32), grads, rest), metrics


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
    own = lambda x: x if len(lengths) == 1 else x[of]  # answers to one prompt share its keys without a copy
    positions, causal = causal_inputs(batch.targets)
    hidden, _ = hidden_states(
        config, params, batch.targets, lengths[of][:, None] + positions, causal,
        prefix=Prefix(jax.tree.map(own, cache), own(there)), remat=remat,
    )  # fmt: skip
    predicting = jnp.concatenate([last[of][:, None], hidden[:, :-1]], axis=1)
    head = head_matrix(config, params)
    return chunked_logps(predicting, head, batch.targets, temperature=temperature, keep=batch.keep)


def activation_bytes(config: QwenConfig, batch: Batch, rows: int) -> int:
    """About what the backward pass keeps of the layers for so many answers of a batch: activations and attention."""
    itemsize = jnp.dtype(config.compute_dtype).itemsize
    length, keys = batch.targets.shape[1], batch.targets.shape[1] + batch.prompts.shape[1]
    per_token = 8 * config.hidden_size + 3 * config.intermediate_size + 4 * config.num_heads * config.head_dim
    per_token = per_token * itemsize + 3 * config.num_heads * keys * 4
    return rows * length * config.num_layers * per_token


def _fit(rows: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """[B, n, ...] cut or padded to [B, size, ...]."""
    room = ((0, 0), (0, max(0, size - rows.shape[1])), *((0, 0),) * (rows.ndim - 2))
    return np.pad(rows[:, :size], room, constant_values=fill)


def _float32(tree: Params) -> Params:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
