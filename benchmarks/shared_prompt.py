"""How much is saved by computing a prompt once for all of its answers?

    python benchmarks/shared_prompt.py

Prints the seconds of rollouts (greedy, stop tokens disabled), scoring and update for 8 answers to one prompt, with
the prompt shared and with 8 copies of it. Layers and vocabulary are reduced by the same factor, so the ratio is that
of the whole model. Checked first: answers, log-probs and gradient are the same.
"""

import dataclasses
import functools

import jax
import numpy as np
import optax
import timing

from grpojax.training.rollout import generate
from grpojax.training.sampling import GREEDY
from grpojax.training.update import Batch, init_optimizer, make_optimizer, score, update_in_place
from grpojax.variants import get_variant


def main() -> None:
    parser = timing.make_parser(__doc__, layers=1)
    parser.add_argument("--prompt", type=int, default=100, help="tokens in the prompt (default: 100)")
    parser.add_argument("--rollouts", type=int, default=8, help="answers to the prompt (default: 8)")
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 256], help="tokens per answer")
    args = parser.parse_args()
    config = timing.part_config(args.layers)
    params = timing.random_params(config)
    rows = []
    for width in args.widths:
        shared = timing.random_batch(config, args.prompt, args.rollouts, width)
        copied = dataclasses.replace(
            shared,
            prompts=np.repeat(shared.prompts, args.rollouts, axis=0),
            prompt_lens=np.repeat(shared.prompt_lens, args.rollouts),
            prompt_of=np.arange(args.rollouts, dtype=np.int32),
        )
        batches = {"shared": shared, "copied": copied}
        for what, measure in {"rollouts": rollouts, "scoring": scoring, "update": updating}.items():
            programs, compile_seconds, same = measure(config, params, batches)
            seconds = timing.median_of(programs, args.repeats)
            rows.append({
                "": what, "tokens per answer": width, "shared s": seconds["shared"], "copied s": seconds["copied"],
                "copied / shared": seconds["copied"] / seconds["shared"], "largest difference": f"{same:.0e}",
                "compile shared s": compile_seconds["shared"], "compile copied s": compile_seconds["copied"],
            })  # fmt: skip
    work = f"prompt of {args.prompt} tokens, {args.rollouts} answers"
    timing.report(
        args, rows, f"{timing.part_of_model(config)}, float32; {work}.",
        "Largest difference: log-probs in nats (the tokens are the same); gradients relative to their largest entry.",
    )  # fmt: skip


def rollouts(config, params, batches: dict[str, Batch]):
    """With 8 copies each prompt has one answer. Row b is sampled with the same key either way."""
    programs, seconds = {}, {}
    for name, batch in batches.items():
        inputs = (params, batch.prompts, batch.prompt_lens, jax.random.key(0), GREEDY)
        rows, width = batch.targets.shape
        program, seconds[name] = timing.compiled(
            generate, config, *inputs, num_rollouts=rows // len(batch.prompts), max_new_tokens=width, stop_ids=(),
            known_ids=config.vocab_size,
        )  # fmt: skip
        programs[name] = functools.partial(program, *inputs)
    ours, theirs = (programs[name]() for name in ("shared", "copied"))
    timing.check_same("answers", ours["answers"], theirs["answers"], bound=0)
    return programs, seconds, timing.check_same("log-probs", ours["logps"], theirs["logps"])


def scoring(config, params, batches: dict[str, Batch]):
    programs, seconds = {}, {}
    for name, batch in batches.items():
        program, seconds[name] = timing.compiled(score, config, params, batch)
        programs[name] = functools.partial(program, params, batch)
    return programs, seconds, timing.check_same("log-probs", programs["shared"](), programs["copied"]())


def updating(config, params, batches: dict[str, Batch]):
    """The learning rate is 0, so every repetition computes the same. Adam's mu is a multiple of the gradient."""
    variant, optimizer, programs, seconds, moments = get_variant("tracking").loss, make_optimizer(), {}, {}, {}
    for name, batch in batches.items():
        own = jax.tree.map(lambda x: x.copy(), params)  # the update reuses their memory
        state = [own, init_optimizer(optimizer, own)]
        rows = len(batch.targets)
        program, seconds[name] = timing.compiled(update_in_place, config, optimizer, *state, variant, batch, 0.0, rows)

        def run(program=program, state=state, batch=batch):
            state[0], state[1], metrics = program(*state, variant, batch, 0.0)
            return metrics

        programs[name] = run
        if not 0 < run()["grad_norm"] < float("inf"):
            raise SystemExit("the gradient is 0 or not finite; nothing is timed")
        moments[name] = jax.device_get(optax.tree.get(state[1], "mu"))
    return programs, seconds, timing.check_same("gradients", *moments.values(), relative=True)


if __name__ == "__main__":
    main()
