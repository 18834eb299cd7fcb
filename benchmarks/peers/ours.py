"""grpojax: `gj.train` for the step; make_rollouts, score and update for its parts. In bfloat16 only the products
are; weights, moments and log-probs stay float32.

No other file here depends on grpojax's API.
"""

import dataclasses
import importlib.metadata
from typing import Any

import jax
import numpy as np

import grpojax as gj
from grpojax.process import prepare_process
from grpojax.tasks.problems import Problem
from grpojax.training.train import run_optimizer
from grpojax.training.update import fitting_micro_batch
from peers import workload
from peers.protocol import Turn, serve
from peers.workload import Task


def reward(answer: Any) -> float:
    """The benchmark's reward as a user's own, "module:function"."""
    return workload.even_share(answer.token_ids)


class Ours:
    def __init__(self, task: Task):
        self.work = work = task.workload
        self.versions = {name: importlib.metadata.version(name) for name in ("grpojax", "jax", "flax", "optax")}
        prepare_process()
        policy = gj.load_policy(task.folder, dtype="float32", kind="base", compute_dtype=task.dtype)
        policy.tokenizer.stop_ids = (-1,)  # an id that never comes
        self.config = gj.RunConfig(
            variant="clipped", model=task.folder, rewards="peers.ours:reward", steps=10**9, inner_epochs=1,
            num_rollouts=work.rollouts, max_new_tokens=work.new_tokens, eval_on_checkpoint=0,
            temperature=workload.TEMPERATURE, top_p=workload.TOP_P, lr=workload.LEARNING_RATE,
            weight_decay=workload.WEIGHT_DECAY, max_grad_norm=workload.MAX_GRAD_NORM, compute_dtype=task.dtype,
        ).resolved()  # fmt: skip
        self.problems = [Problem(workload.prompt_text(work), "")]
        self.state = gj.initial_state(self.config, policy.params)
        self.policy = dataclasses.replace(policy, params={})  # as run.py: without a KL term only the state has weights
        self.watched = np.array(_smallest_matrix(policy.params))

    def logps(self, rows: list[list[int]]) -> np.ndarray:
        start, found = self.work.prompt_tokens - 1, []
        for row in np.array(rows, np.int32):
            logits = self.policy.apply(self.state.params, row[None])
            found.append(np.asarray(gj.token_logps(logits, row[None]))[0, start:])
        return np.array(found)

    def step(self) -> Turn:
        turn = Turn()
        with turn.time("step"):
            steps = gj.train(self.config, self.policy, self.problems, self.state, template="{problem}")
            state, record = next(steps)
            jax.block_until_ready(state.params)
        self.state = state
        turn.lengths = [sample.length for sample in record.samples]
        return turn

    def parts(self) -> Turn:
        turn, config, policy, params = Turn(), self.config, self.policy, self.state.params
        key = jax.random.key(self.state.step)
        with turn.time("rollout"):
            rollouts = gj.make_rollouts(
                policy, params, [workload.prompt_ids(self.work)], key, config.make_sampler(),
                self.work.rollouts, self.work.new_tokens,
            )  # fmt: skip
        turn.lengths = rollouts.answer_lens.tolist()
        rewards = [[workload.even_share(rollouts.answer_ids(i)) for i in range(self.work.rollouts)]]
        batch = gj.make_batch(rollouts, gj.group_advantages(np.array(rewards)))
        if policy.config.compute_dtype != "float32":  # else the sampler's own log-probs are the old ones
            with turn.time("scoring"):
                old_logps = np.asarray(gj.score(policy.config, params, batch))
            batch = dataclasses.replace(batch, old_logps=old_logps, sampler_logps=batch.old_logps)
        loss = config.make_variant().loss
        with turn.time("update"):
            params, opt_state, metrics = gj.update(
                policy.config, run_optimizer(config), params, self.state.opt_state, loss, batch, config.lr,
                fitting_micro_batch(policy.config, batch),
            )  # fmt: skip
            jax.block_until_ready(params)
            jax.device_get(metrics)
        self.state = dataclasses.replace(self.state, step=self.state.step + 1, params=params, opt_state=opt_state)
        return turn

    def moved(self) -> float:
        return np.abs(np.asarray(_smallest_matrix(self.state.params)) - self.watched).max()

    def peak_bytes(self) -> int:
        return jax.devices()[0].memory_stats()["peak_bytes_in_use"]


def _smallest_matrix(params: Any) -> Any:
    return min((leaf for leaf in jax.tree.leaves(params["layers"]) if leaf.ndim > 2), key=lambda leaf: leaf.size)


if __name__ == "__main__":
    serve(Ours)
