"""Tunix's GRPOLearner with its own ("vanilla") sampler, on a mesh of one device.

Settings: one prompt with its 8 generations is one micro-batch; one iteration and beta 0, so no pass for old or
reference log-probs is made; no rematerialisation; the cache and the prompt's width are exactly as long as they must be,
so nothing is padded; in bfloat16 weights and products are bfloat16. The tokenizer's ids for end and padding are
negative and never come. The optimizer is optax's AdamW behind a bound on the gradient norm.

A step lasts from the learner's request for a prompt to its next one, with its weights ready. Its rollouts are
`RLCluster.generate`, its update `RLCluster.update_actor`.
"""

import importlib.metadata
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.qwen3.model import ModelConfig
from tunix.models.qwen3.params import create_model_from_safe_tensors
from tunix.rl import rl_cluster as clusters
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig

from peers import workload
from peers.protocol import Turn, serve
from peers.workload import Task, Workload


class Words:
    """The benchmark's tokenizer as Tunix takes one: id 7 is "t7"."""

    def encode(self, text: str) -> list[int]:
        return [int(word[1:]) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"t{i}" for i in ids)

    def bos_id(self) -> int:
        return 0  # read as "none"

    def eos_id(self) -> int:
        return -2

    def pad_id(self) -> int:
        return -1


def reward(prompts: list[str], completions: list[str], **_) -> list[float]:
    return [workload.even_share(Words().encode(text)) for text in completions]


def model_config(work: Workload, dtype: str) -> ModelConfig:
    return ModelConfig(
        num_layers=work.num_layers, vocab_size=work.vocab_size, embed_dim=work.hidden_size,
        hidden_dim=work.intermediate_size, num_heads=work.num_heads, head_dim=work.head_dim,
        num_kv_heads=work.num_kv_heads, rope_theta=int(work.rope_theta), norm_eps=work.rms_norm_eps,
        use_tied_embedding=True, dtype=jnp.dtype(dtype), param_dtype=jnp.dtype(dtype),
    )  # fmt: skip


class Tunix:
    def __init__(self, task: Task):
        self.work = work = task.workload
        self.versions = {name: importlib.metadata.version(name) for name in ("google-tunix", "jax", "flax", "optax")}
        mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        model = create_model_from_safe_tensors(
            task.folder, model_config(work, task.dtype), mesh, dtype=jnp.dtype(task.dtype)
        )
        optimizer = optax.chain(
            optax.clip_by_global_norm(workload.MAX_GRAD_NORM),
            optax.adamw(workload.LEARNING_RATE, weight_decay=workload.WEIGHT_DECAY),
        )
        self.cluster = clusters.RLCluster(
            actor=model,
            tokenizer=Words(),
            cluster_config=clusters.ClusterConfig(
                role_to_mesh=dict.fromkeys(
                    (clusters.Role.ACTOR, clusters.Role.REFERENCE, clusters.Role.ROLLOUT), mesh
                ),
                rollout_engine="vanilla",
                training_config=clusters.RLTrainingConfig(
                    actor_optimizer=optimizer, eval_every_n_steps=10**9, max_steps=10**9,
                    mini_batch_size=1, train_micro_batch_size=1,
                ),
                rollout_config=RolloutConfig(
                    max_tokens_to_generate=work.new_tokens, max_prompt_length=work.prompt_tokens,
                    kv_cache_size=work.total_tokens, temperature=workload.TEMPERATURE, top_p=workload.TOP_P, top_k=None,
                ),
            ),
        )  # fmt: skip
        self.learner = GRPOLearner(
            self.cluster, GRPOConfig(num_generations=work.rollouts, num_iterations=1, beta=0.0), reward
        )
        self.turn = Turn()
        self._measure_parts()
        self.watched = np.array(self._matrix())

    def train(self, pause: Callable[[], None]) -> None:
        def prompts() -> Iterator[dict[str, np.ndarray]]:
            while True:
                yield {"prompts": np.array([workload.prompt_text(self.work)])}
                self._wait()
                pause()

        self.learner.train(prompts())

    def _measure_parts(self) -> None:
        generate, update = self.cluster.generate, self.cluster.update_actor

        def measured_generate(*arguments, **named):
            with self.turn.time("rollout"):
                rollouts = generate(*arguments, **named)
            self.turn.lengths = [len(ids) for ids in rollouts.tokens]
            return rollouts

        def measured_update(*arguments, **named):
            with self.turn.time("update", self._wait):
                update(*arguments, **named)

        self.cluster.generate, self.cluster.update_actor = measured_generate, measured_update

    def _wait(self) -> None:
        jax.block_until_ready(nnx.state(self.cluster.actor_trainer.model))

    def logps(self, rows: list[list[int]]) -> np.ndarray:
        prompts, answers = np.split(np.array(rows, np.int32), [self.work.prompt_tokens], axis=1)
        return np.asarray(self.cluster.rollout.get_per_token_logps(jnp.array(prompts), jnp.array(answers)), np.float32)

    def moved(self) -> float:
        return np.abs(np.asarray(self._matrix()).astype(np.float32) - self.watched.astype(np.float32)).max()

    def peak_bytes(self) -> int:
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"]

    def _matrix(self) -> jax.Array:
        return self.cluster.actor_trainer.model.layers[0].attn.k_proj.w[...]


if __name__ == "__main__":
    serve(Tunix)
