"""What a training run is made of: what stays fixed (`Run`), what a step changes (`TrainState`), and the groups it draws."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from grpojax.config import RunConfig
from grpojax.grading.grader import Grader
from grpojax.qwen.model import Params
from grpojax.qwen.weights import Policy
from grpojax.records import Sample
from grpojax.tasks.problems import Problem
from grpojax.tasks.prompts import render_prompt
from grpojax.training.rollout import Rollouts
from grpojax.training.update import BatchShape, batch_shapes, init_optimizer, make_optimizer
from grpojax.variants import Variant


@dataclasses.dataclass(frozen=True)
class Group:
    """The graded answers to one prompt."""

    rollouts: Rollouts  # of this prompt alone
    samples: list[Sample]
    rewards: np.ndarray  # [K, G] in the order of the recipe's rewards, NaN where a reward function abstains
    domain: str  # of the problem
    old_logps: np.ndarray | None = None  # [G, N] of a group carried over: the trainer's, for the weights that sampled it


@dataclasses.dataclass(frozen=True)
class TrainState:
    """What a step changes, and a checkpoint holds."""

    step: int  # steps done
    params: Params
    opt_state: optax.OptState
    problems_used: int = 0  # the next step starts at this index of the list, which wraps around
    carried: tuple[Group, ...] = ()  # groups that dynamic sampling drew beyond its need, for the next step
    reference: Params | None = None  # the refreshed reference of a KL term; None: the weights the run began with


@dataclasses.dataclass(frozen=True)
class Run:
    """What stays the same in all steps of a run."""

    config: RunConfig  # resolved
    policy: Policy  # structure, tokenizer, and the starting weights if there is a KL term
    problems: Sequence[Problem]
    template: str  # the prompt around a problem
    grader: Grader
    variant: Variant
    optimizer: optax.GradientTransformation

    def problems_from(self, start: int, count: int) -> list[Problem]:
        """`count` problems from index `start`, wrapping around at the end of the list."""
        return [self.problems[i % len(self.problems)] for i in range(start, start + count)]

    def prompt_ids(self, problem: Problem) -> list[int]:
        """The prompt of a problem as tokens."""
        return self.policy.tokenizer.prompt_ids(render_prompt(problem.text, self.template), self.config.thinking)

    @functools.cached_property
    def shapes(self) -> tuple[BatchShape, ...]:
        """The shapes of the run's batches, for the prompts that it can draw."""
        config, rounds = self.config, max(1, self.variant.recipe.dynamic_sampling)
        drawn = min(len(self.problems), config.steps * config.prompts_per_step * rounds)
        lengths = [len(self.prompt_ids(problem)) for problem in self.problems[:drawn]]
        return batch_shapes(lengths, config.max_new_tokens)


def initial_state(config: RunConfig, params: Params) -> TrainState:
    """The state before the first step. Its params are a copy: training overwrites them in place."""
    own = copy_arrays(params)
    return TrainState(0, own, init_optimizer(run_optimizer(config), own, config.moment_dtype))


def run_optimizer(config: RunConfig) -> optax.GradientTransformation:
    """The optimizer of a run."""
    return make_optimizer(config.max_grad_norm, config.weight_decay)


def run_variant(config: RunConfig, problems: Sequence[Problem]) -> Variant:
    """The variant of a run on these problems; it has no KL term if kl_domains gives all of them the weight 0."""
    variant = config.make_variant()
    numbers, domains = dict(variant.loss.numbers), variant.recipe.kl_domains
    if "kl_coeff" in numbers and all(domains.get(problem.domain, 1.0) == 0 for problem in problems):
        del numbers["kl_coeff"]
    return dataclasses.replace(variant, loss=dataclasses.replace(variant.loss, numbers=numbers))


def any_deleted(tree: Any) -> bool:
    """Whether an array of the tree was donated to a program, so that it cannot be read any more."""
    return any(array.is_deleted() for array in jax.tree.leaves(tree))


copy_arrays = jax.jit(functools.partial(jax.tree.map, jnp.copy))
"""Copies a tree of arrays in one program."""
