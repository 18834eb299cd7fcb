"""The book's package, reasoning-from-scratch, used as its script of section 7.4 uses it.

One rollout at a time with a KV cache, the prompt prefilled for each; the old policy is a copy of the model, whose
sequence log-prob with full logits is taken after each rollout; the loss's sequence log-probs one at a time; one
backward pass, the gradient norm bounded by 1, AdamW. The functions are the package's own; the step between them follows
the script (ch07/03_rlvr_grpo_scripts_advanced/7_4_plus_clip_ratio.py), without its files and with the benchmark's
reward.

Settings: one inner epoch, as every peer makes one update a step (the script's default is two, with fresh rollouts for
each). The head is tied to the embedding, as the package's loader has it for such checkpoints; the package's own 0.6B
checkpoints hold it twice, which would cost memory and time.
"""

import copy
import importlib.metadata
import os
from types import SimpleNamespace

import safetensors.torch
import torch
from reasoning_from_scratch.ch06 import sample_response
from reasoning_from_scratch.ch07 import sequence_logprob_and_entropy
from reasoning_from_scratch.qwen3 import Qwen3Model, load_hf_weights_into_qwen

from peers import workload
from peers.protocol import Turn, serve
from peers.torch_device import peak_bytes, prepare
from peers.workload import Task, Workload

CLIP_EPS = 10.0  # the script's


def load_model(work: Workload, folder: str, dtype: torch.dtype) -> Qwen3Model:
    """The package's model with the weights of a Hugging Face folder."""
    shape = {
        "vocab_size": work.vocab_size, "context_length": 40_960, "emb_dim": work.hidden_size,
        "n_heads": work.num_heads, "n_layers": work.num_layers, "hidden_dim": work.intermediate_size,
        "head_dim": work.head_dim, "qk_norm": True, "n_kv_groups": work.num_kv_heads, "rope_base": work.rope_theta,
        "dtype": dtype,
    }  # fmt: skip
    model = Qwen3Model(shape)
    tensors = safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))
    load_hf_weights_into_qwen(model, shape, tensors)
    return model


class Book:
    def __init__(self, task: Task):
        self.work = work = task.workload
        self.device, self.wait = prepare(task)
        self.versions = {name: importlib.metadata.version(name) for name in ("reasoning-from-scratch", "torch")}
        self.model = load_model(work, task.folder, getattr(torch, task.dtype)).to(self.device)
        self.tokenizer = SimpleNamespace(
            encode=lambda text: workload.prompt_ids(work),
            decode=lambda ids: " ".join(f"t{i}" for i in ids),
            eos_token_id=None,
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=workload.LEARNING_RATE)
        self.model.train()
        self.watched = self._matrix().clone()

    def logps(self, rows: list[list[int]]) -> list[list[float]]:
        found = []
        with torch.inference_mode():
            for row in torch.tensor(rows, device=self.device):
                logps = torch.log_softmax(self.model(row[None])[0].float(), dim=-1)
                found.append(logps[:-1].gather(1, row[1:, None])[self.work.prompt_tokens - 1 :, 0].tolist())
        return found

    def step(self) -> Turn:
        turn, rollouts, old_logps, rewards = Turn(), [], [], []
        with turn.time("step"):
            old_model = copy.deepcopy(self.model).to(self.device)
            old_model.eval()
            for parameter in old_model.parameters():
                parameter.requires_grad = False
            for _ in range(self.work.rollouts):
                with turn.time("rollout", self.wait):
                    token_ids, prompt_len, _ = sample_response(
                        old_model, self.tokenizer, "", self.device,
                        self.work.new_tokens, workload.TEMPERATURE, workload.TOP_P,
                    )  # fmt: skip
                with turn.time("scoring", self.wait), torch.no_grad():
                    old_logp, _ = sequence_logprob_and_entropy(old_model, token_ids, prompt_len)
                rollouts.append(token_ids)
                old_logps.append(old_logp)
                rewards.append(workload.even_share(token_ids[prompt_len:].tolist()))
            rewards = torch.tensor(rewards, device=self.device)
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            with turn.time("update", self.wait):
                new_logps = torch.stack(
                    [sequence_logprob_and_entropy(self.model, ids, self.work.prompt_tokens)[0] for ids in rollouts]
                )
                ratio = torch.exp(new_logps - torch.stack(old_logps))
                unclipped = ratio * advantages
                clipped = torch.clamp(ratio, 1.0 - CLIP_EPS, 1.0 + CLIP_EPS) * advantages
                bounded = torch.where(
                    advantages >= 0, torch.minimum(unclipped, clipped), torch.maximum(unclipped, clipped)
                )
                loss = -bounded.mean()
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), workload.MAX_GRAD_NORM)
                self.optimizer.step()
        turn.lengths = [len(ids) - self.work.prompt_tokens for ids in rollouts]
        return turn

    def moved(self) -> float:
        return (self._matrix() - self.watched).abs().max().item()

    def peak_bytes(self) -> int:
        return peak_bytes()

    def _matrix(self) -> torch.Tensor:
        return self.model.trf_blocks[0].att.W_key.weight.detach()


if __name__ == "__main__":
    serve(Book)
