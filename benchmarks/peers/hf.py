"""Hugging Face transformers: `generate` for the rollouts, and no trainer.

Settings: the prompt once with num_return_sequences (generate repeats it before the prefill), the default dynamic cache,
scaled-dot-product attention, inference mode. The model has no end token, so neither a length processor nor a stopping
criterion besides the length runs. top_k is 0: its default of 50 would be another distribution.
"""

import importlib.metadata

import torch
import transformers

from peers import workload
from peers.protocol import Turn, serve
from peers.torch_device import peak_bytes, prepare
from peers.workload import Task


class HuggingFace:
    def __init__(self, task: Task):
        self.work = task.workload
        self.device, self.wait = prepare(task)
        self.versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch")}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            task.folder, dtype=getattr(torch, task.dtype), attn_implementation="sdpa", local_files_only=True
        ).to(self.device)
        self.model.eval()
        self.settings = transformers.GenerationConfig(
            do_sample=True, temperature=workload.TEMPERATURE, top_p=workload.TOP_P, top_k=0, use_cache=True,
            num_return_sequences=self.work.rollouts, max_new_tokens=self.work.new_tokens,
            eos_token_id=None, pad_token_id=self.work.vocab_size - 1,
        )  # fmt: skip
        self.prompt = torch.tensor([workload.prompt_ids(self.work)], device=self.device)

    def logps(self, rows: list[list[int]]) -> list[list[float]]:
        found = []
        with torch.inference_mode():
            for row in torch.tensor(rows, device=self.device):
                logps = torch.log_softmax(self.model(row[None]).logits[0].float(), dim=-1)
                found.append(logps[:-1].gather(1, row[1:, None])[self.work.prompt_tokens - 1 :, 0].tolist())
        return found

    def parts(self) -> Turn:
        turn = Turn()
        with turn.time("rollout", self.wait), torch.inference_mode():
            tokens = self.model.generate(
                self.prompt, attention_mask=torch.ones_like(self.prompt), generation_config=self.settings
            )
        turn.lengths = [tokens.shape[1] - self.work.prompt_tokens] * tokens.shape[0]
        return turn

    def moved(self) -> float:
        return float("nan")  # nothing is trained

    def peak_bytes(self) -> int:
        return peak_bytes()


if __name__ == "__main__":
    serve(HuggingFace)
