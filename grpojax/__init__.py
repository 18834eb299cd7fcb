"""grpojax: reinforcement learning with verifiable rewards for Qwen models, as pure jitted JAX functions.

Public names are imported on first use, so `import grpojax` takes no time.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_MODULE_OF = {
    "Policy": "qwen.weights",
    "load_policy": "qwen.weights",
    "save_policy": "qwen.weights",
    "QwenConfig": "qwen.config",
    "token_logps": "loss.logprobs",
    "token_entropy": "loss.logprobs",
    "answer_mask": "loss.logprobs",
    "group_advantages": "loss.advantages",
    "gdpo_advantages": "loss.advantages",
    "centred_advantages": "loss.advantages",
    "batch_std_advantages": "loss.advantages",
    "leave_one_out_advantages": "loss.advantages",
    "policy_loss": "loss.policy_loss",
    "Loss": "loss.policy_loss",
    "VARIANTS": "variants",
    "Variant": "variants",
    "Recipe": "variants",
    "get_variant": "variants",
    "register_variant": "variants",
    "explain": "describe",
    "RunConfig": "config",
    "grade": "grading.grader",
    "extract_answer": "grading.answers",
    "load_problems": "tasks.problems",
    "render_prompt": "tasks.prompts",
    "make_rollouts": "training.rollout",
    "make_sampler": "training.sampling",
    "make_batch": "training.update",
    "make_optimizer": "training.update",
    "init_optimizer": "training.update",
    "update": "training.update",
    "score": "training.update",
    "train": "training.train",
    "initial_state": "training.state",
    "evaluate": "training.evaluate",
    "InputError": "errors",
    "RunError": "errors",
}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'grpojax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"grpojax.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
