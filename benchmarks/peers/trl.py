"""TRL's GRPOTrainer, with transformers' `generate` for the rollouts (vLLM needs a GPU or a server of its own).

Settings: one prompt with its 8 generations is one batch, so a step is one forward and backward pass; one iteration and
no KL term, so no pass for old or reference log-probs is made; no gradient checkpointing, which TRL turns on and which
costs a second forward pass; in bfloat16 the weights themselves are bfloat16, without autocast, which would cast them at
each use; attention by scaled dot product; nothing logged or saved. `min_new_tokens` disables the end token. The loss is
TRL's default; all of its losses take the same passes.

A step lasts from the end of the trainer's last one to its own. Its rollouts are `_generate_single_turn`, its update
everything after `_generate_and_score_completions`.
"""

import importlib.metadata
import tempfile
import time
from collections.abc import Callable
from typing import Any

import datasets
import torch
import transformers
import trl

from peers import workload
from peers.protocol import Turn, serve
from peers.torch_device import peak_bytes, prepare
from peers.workload import Task


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [workload.even_share(ids) for ids in completion_ids]


class Measured(trl.GRPOTrainer):
    """Notes how long its parts take."""

    peer: "TRL"

    def _generate_single_turn(self, *arguments, **named):
        turn = self.peer.turn
        with turn.time("rollout", self.peer.wait):
            answers = super()._generate_single_turn(*arguments, **named)
        turn.lengths = [len(ids) for ids in answers[0]]
        return answers

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        self.peer.wait()
        self.peer.scored_at = time.perf_counter()
        return batch


class AfterStep(transformers.TrainerCallback):
    """Calls a function at the end of each step."""

    def __init__(self, call: Callable[[], None]):
        self.call = call

    def on_step_end(self, *_, **__):
        self.call()


class TRL:
    def __init__(self, task: Task):
        self.work = work = task.workload
        _, self.wait = prepare(task)
        self.versions = {name: importlib.metadata.version(name) for name in ("trl", "transformers", "torch")}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            task.folder, dtype=getattr(torch, task.dtype), attn_implementation="sdpa", local_files_only=True
        )
        settings = trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(), use_cpu=task.device == "cpu", bf16=False, fp16=False,
            per_device_train_batch_size=work.rollouts, num_generations=work.rollouts, gradient_accumulation_steps=1,
            num_iterations=1, beta=0.0, max_completion_length=work.new_tokens, mask_truncated_completions=False,
            temperature=workload.TEMPERATURE, top_p=workload.TOP_P, top_k=0,
            generation_kwargs={"min_new_tokens": work.new_tokens}, gradient_checkpointing=False,
            learning_rate=workload.LEARNING_RATE, lr_scheduler_type="constant", weight_decay=workload.WEIGHT_DECAY,
            max_grad_norm=workload.MAX_GRAD_NORM, max_steps=10**6, logging_strategy="no", save_strategy="no",
            eval_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        prompts = datasets.Dataset.from_list([{"prompt": workload.prompt_text(work)}] * 1024)
        tokenizer = transformers.AutoTokenizer.from_pretrained(task.folder, local_files_only=True)
        self.trainer = Measured(self.model, reward, settings, prompts, processing_class=tokenizer)
        self.trainer.peer = self
        self.turn, self.scored_at = Turn(), 0.0
        self.watched = self._matrix().clone()

    def logps(self, rows: list[list[int]]) -> list[list[float]]:
        found = []
        with torch.inference_mode():
            for row in torch.tensor(rows, device=self.model.device):
                logps = torch.log_softmax(self.model(row[None]).logits[0].float(), dim=-1)
                found.append(logps[:-1].gather(1, row[1:, None])[self.work.prompt_tokens - 1 :, 0].tolist())
        return found

    def train(self, pause: Callable[[], None]) -> None:
        def after_step() -> None:
            self.wait()
            self.turn.seconds["update"] = time.perf_counter() - self.scored_at
            pause()

        self.trainer.add_callback(AfterStep(after_step))
        self.trainer.train()

    def moved(self) -> float:
        return (self._matrix() - self.watched).abs().max().item()

    def peak_bytes(self) -> int:
        return peak_bytes()

    def _matrix(self) -> torch.Tensor:
        return self.model.model.layers[0].self_attn.k_proj.weight.detach()


if __name__ == "__main__":
    serve(TRL)
