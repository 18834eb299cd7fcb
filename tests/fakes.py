"""Stand-ins that several tests share."""

from concurrent.futures import Future

import numpy as np

from grpojax.config import RunConfig


class FakeGrader:
    """A grader whose verdicts a test decides: give it a `grade_many`."""

    name = "fake"
    timeouts = 0

    def submit(self, pairs):
        future = Future()
        future.set_result(self.grade_many(pairs))
        return future

    def close(self):
        pass


def whole_sequences(batch):
    """[B, T]: each answer of a batch behind its prompt, padded right with 0."""
    prompts, lengths = batch.prompts[batch.prompt_of], batch.prompt_lens[batch.prompt_of]
    tokens = np.pad(prompts, ((0, 0), (0, batch.targets.shape[1])))
    for row, length, answer in zip(tokens, lengths, batch.targets, strict=True):
        row[length : length + len(answer)] = answer
    return tokens


def loop_config(variant, **changes):
    """Two prompts of four answers of at most eight tokens, from the whole distribution; one shape for all tests of the loop."""
    settings = {
        "variant": variant, "model": "tiny", "steps": 2, "prompts_per_step": 2, "num_rollouts": 4, "max_new_tokens": 8,
        "temperature": 1.0, "top_p": 1.0, "lr": 1e-2,
    }  # fmt: skip
    return RunConfig(**settings | changes).resolved()
