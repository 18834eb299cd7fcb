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
from grpojax.qwen.model import Params, causal_inputs, head_matrix, hidden_states
from grpojax.training.rollout import Rollouts, bucket
from grpojax.variants import Variant

ACTIVATION_BYTES = 2**31
"""What the layers' activations of one micro-batch may take, about. Where even one sequence takes more, they are
recomputed in the backward pass."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Answers ready for an update. Answer token n of row b is predicted by position prompt_lens[b] - 1 + n."""

    tokens: np.ndarray  # [B, T] int32, prompt and answer, padded right
    prompt_lens: np.ndarray  # [B]
    targets: np.ndarray  # [B, N] int32, the answers alone
    mask: np.ndarray  # [B, N] float32, 1 at answer tokens
    old_logps: np.ndarray  # [B, N] float32 nats
    advantages: np.ndarray  # [B] float32
    ref_logps: np.ndarray | None = None  # [B, N]; None for a variant without a KL term
    sampler_logps: np.ndarray | None = None  # [B, N], where a safeguard compares trainer and sampler
    kl_scale: np.ndarray | None = None  # [B], factors on kl_coeff; None: 1
    keep: np.ndarray | None = None  # [B, N, ceil(V / 8)] uint8, the ids that could be sampled; None: all

    def rows(self, index: np.ndarray) -> "Batch":
        """The batch of some of the sequences."""
        return jax.tree.map(lambda x: x[index], self)


jax.tree_util.register_dataclass(Batch)


def make_batch(rollouts: Rollouts, advantages: np.ndarray) -> Batch:
    """Puts each answer behind its prompt; widths are buckets of the longest answer and of the prompts.

    Args:
      rollouts: P prompts with G answers each.
      advantages: [P, G].
    """
    size = bucket(int(rollouts.answer_lens.max()))
    answers = _fit(rollouts.answers, size)
    prompts = np.repeat(rollouts.prompts, rollouts.group_size, axis=0)
    lengths = np.repeat(rollouts.prompt_lens, rollouts.group_size)
    tokens = np.pad(prompts, ((0, 0), (0, size)))
    for row, length, answer in zip(tokens, lengths, answers, strict=True):
        row[length : length + size] = answer
    return Batch(
        tokens=tokens,
        prompt_lens=lengths,
        targets=answers,
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


def init_optimizer(optimizer: optax.GradientTransformation, params: Params) -> optax.OptState:
    """The optimizer's state for these parameters; its moments are float32 whatever their dtype."""
    return optimizer.init(_float32(params))


@functools.partial(jax.jit, static_argnames="config")
def score(config: QwenConfig, params: Params, batch: Batch, temperature: float | None = None) -> Array:
    """Log-probs of the answers under some weights, [B, N] float32 nats; 0 outside the answers.

    Args:
      temperature: logits are divided by it first; None: 1. Where the batch has `keep`, they are over the kept ids.
    """
    return jnp.where(batch.mask > 0, _answer_logps(config, params, batch, temperature, remat=False), 0.0)


@functools.partial(jax.jit, static_argnames=("config", "optimizer", "micro_batch"), donate_argnames="opt_state")
def update(
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
    memory and nothing else. `params` is not donated: the caller may still need it as the old policy.

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
    moved = jax.tree.map(lambda p, u: (p.astype(jnp.float32) - lr * u).astype(p.dtype), params, updates)
    finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(grad_norm)
    new, old = (moved, new_state), (params, opt_state)
    moved, new_state = jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
    return moved, new_state, metrics | {"grad_norm": grad_norm}


def fitting_micro_batch(config: QwenConfig, rows: int, width: int) -> int:
    """The largest divisor of `rows` whose activations at `width` tokens a sequence stay within ACTIVATION_BYTES, or 1."""
    fits = [n for n in range(1, rows + 1) if rows % n == 0 and activation_bytes(config, n, width) <= ACTIVATION_BYTES]
    return max(fits, default=1)


def gradients(
    config: QwenConfig, params: Params, variant: Variant, batch: Batch, micro_batch: int
) -> tuple[Params, dict[str, Array]]:
    """Gradient of the variant's loss (float32, the tree of params), with loss and aux."""
    rows, width = batch.tokens.shape
    remat = activation_bytes(config, micro_batch, width) > ACTIVATION_BYTES

    def loss_of(params, part):
        logps = _answer_logps(config, params, part, variant.numbers.get("score_temperature"), remat)
        loss, aux = policy_loss(
            variant, logps, part.old_logps, part.ref_logps, part.advantages, part.mask,
            whole_mask=batch.mask, sampler_logps=part.sampler_logps, kl_scale=part.kl_scale,
        )  # fmt: skip
        return loss, aux | {"loss": loss}

    def gradient_of(part):
        grads, metrics = jax.grad(loss_of, has_aux=True)(params, part)
        return _float32(grads), metrics

    if rows == micro_batch:
        return gradient_of(batch)
    parts = jax.tree.map(lambda x: x.reshape(rows // micro_batch, micro_batch, *x.shape[1:]), batch)
    one = jax.tree.map(lambda x: x[0], parts)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient_of, one))
    return jax.lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, gradient_of(part)), None), zeros, parts)[0]


def _answer_logps(config: QwenConfig, params: Params, batch: Batch, temperature: float | None, remat: bool) -> Array:
    """[B, N] log-probs of batch.targets; the head sees only the positions that predict an answer token."""
    hidden, _ = hidden_states(config, params, batch.tokens, *causal_inputs(batch.tokens), remat=remat)
    at = batch.prompt_lens[:, None] - 1 + jnp.arange(batch.targets.shape[1])[None, :]
    return chunked_logps(
        jnp.take_along_axis(hidden, at[:, :, None], axis=1), head_matrix(config, params), batch.targets,
        temperature=temperature, keep=batch.keep,
    )  # fmt: skip


def activation_bytes(config: QwenConfig, rows: int, width: int) -> int:
    """About what the backward pass of the layers keeps for [rows, width] tokens: each block's activations and attention."""
    itemsize = jnp.dtype(config.compute_dtype).itemsize
    per_token = 8 * config.hidden_size + 3 * config.intermediate_size + 4 * config.num_heads * config.head_dim
    per_token = per_token * itemsize + 3 * config.num_heads * width * 4
    return rows * width * config.num_layers * per_token


def _fit(rows: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """[B, n, ...] cut or padded to [B, size, ...]."""
    room = ((0, 0), (0, max(0, size - rows.shape[1])), *((0, 0),) * (rows.ndim - 2))
    return np.pad(rows[:, :size], room, constant_values=fill)


def _float32(tree: Params) -> Params:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
