"""Does the cost of rollouts and updates grow faster than the number of tokens?

    python benchmarks/growth.py

Prints the time per token of rollouts (4 answers, greedy, stop tokens disabled) and of the update with 4 answers, for
answers of 64 to 1024 tokens. A constant time per token means linear growth; attention over longer answers makes it
rise. Layers and vocabulary are reduced by the same factor. Checked first: a longer answer begins with the shorter
one.
"""

import functools

import jax
import numpy as np
import timing

from grpojax.training.rollout import generate
from grpojax.training.sampling import GREEDY
from grpojax.training.update import fitting_micro_batch, init_optimizer, make_optimizer, update_in_place
from grpojax.variants import get_variant


def main() -> None:
    parser = timing.make_parser(__doc__, layers=1)
    parser.add_argument("--prompt", type=int, default=100, help="tokens in the prompt (default: 100)")
    parser.add_argument("--rollouts", type=int, default=4, help="answers to the prompt (default: 4)")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help="tokens per answer")
    args = parser.parse_args()
    config = timing.part_config(args.layers)
    params = timing.random_params(config)
    of_rollouts, of_update = rollout_seconds(config, params, args), update_seconds(config, params, args)
    rows = []
    for width in args.widths:
        tokens = width * args.rollouts
        rows.append({
            "tokens per answer": width,
            "rollouts s": of_rollouts[width], "ms per token": 1e3 * of_rollouts[width] / tokens,
            "update s": of_update[width], "ms per token, update": 1e3 * of_update[width] / tokens,
        })  # fmt: skip
    work = f"prompt of {args.prompt} tokens, {args.rollouts} answers"
    timing.report(args, rows, f"{timing.part_of_model(config)}, float32; {work}.")


def rollout_seconds(config, params, args) -> dict[int, float]:
    prompts = timing.random_batch(config, args.prompt, 1, 1).prompts
    inputs = (params, prompts, np.array([args.prompt], np.int32), jax.random.key(0), GREEDY)
    programs = {}
    for width in args.widths:
        program, _ = timing.compiled(
            generate, config, *inputs, num_rollouts=args.rollouts, max_new_tokens=width, stop_ids=(),
            known_ids=config.vocab_size,
        )  # fmt: skip
        programs[width] = functools.partial(program, *inputs)
    first, second = sorted(args.widths)[:2]
    short, long = programs[first](), programs[second]()
    timing.check_same("answers", short["answers"], long["answers"][:, :first], bound=0)
    timing.check_same("log-probs", short["logps"], long["logps"][:, :first])
    return timing.median_of(programs, args.repeats)


def update_seconds(config, params, args) -> dict[int, float]:
    """With the micro-batch of a training run. The learning rate is 0, so every repetition computes the same."""
    optimizer, variant = make_optimizer(), get_variant("tracking").loss
    state = [params, init_optimizer(optimizer, params)]
    programs = {}
    for width in args.widths:
        batch = timing.random_batch(config, args.prompt, args.rollouts, width)
        micro_batch = fitting_micro_batch(config, batch)
        program, _ = timing.compiled(update_in_place, config, optimizer, *state, variant, batch, 0.0, micro_batch)

        def run(program=program, batch=batch):
            state[0], state[1], metrics = program(*state, variant, batch, 0.0)
            return metrics

        programs[width] = run
    return timing.median_of(programs, args.repeats)


if __name__ == "__main__":
    main()
