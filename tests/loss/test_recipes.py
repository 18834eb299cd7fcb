"""Every paper's recipe whole, rewards to advantages to loss and gradient, against `papers` on random padded batches.

The transcription sees the float32 log-probs and rewards as float64. What differs is rounding: float32 sums of some ten
terms of order 1, 1e-6; a gradient is compared to 1e-5 of its largest entry.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import papers
import pytest
from papers import Answer

from grpojax import get_variant, policy_loss
from grpojax.variants import variant_advantages

PROMPTS, ROLLOUTS, POSITIONS = 3, 4, 11

SCALE = (0.0, 1.0, 2.5)  # of the KL weight, by prompt, for the recipe that has one

RECIPES = {  # variant, what overrides its row, the paper's objective, its numbers
    # Without overrides: the numbers of the row are those of the paper.
    "grpo": ("grpo", {}, papers.grpo, {"epsilon": 0.2, "beta": 0.04}),
    "dapo": ("dapo", {"rewards": {"correct": 1.0}}, papers.dapo, {"epsilon_low": 0.2, "epsilon_high": 0.28}),
    "dr-grpo": ("dr-grpo", {}, papers.dr_grpo, {"epsilon": 0.2, "budget": POSITIONS}),
    "gspo": ("gspo", {}, papers.gspo, {"epsilon_left": 3e-4, "epsilon_right": 4e-4}),
    "cispo": ("cispo", {}, papers.cispo, {"bound": 5.0}),
    "sapo": ("sapo", {}, papers.sapo, {"tau_pos": 1.0, "tau_neg": 1.05}),
    "olmo3": ("olmo3", {}, papers.olmo3, {"epsilon_low": 0.2, "epsilon_high": 0.272, "rho": 2.0}),
    "deepseek-v3.2": (
        "deepseek-v3.2", {}, papers.deepseek_v32, {"epsilon": 0.2, "beta": 0.02, "delta": 0.1, "scale": SCALE},
    ),
    "gdpo": ("gdpo", {}, papers.gdpo, {"epsilon": 0.2, "weights": (1.0, 1.0)}),
    # Others, each different from its neighbours, so that a swap shows.
    "grpo, other numbers": ("grpo", {"clip_eps": 0.1, "kl_coeff": 0.5}, papers.grpo, {"epsilon": 0.1, "beta": 0.5}),
    "dapo, other numbers": (
        "dapo", {"clip_low": 0.05, "clip_high": 0.6, "rewards": {"correct": 1.0}},
        papers.dapo, {"epsilon_low": 0.05, "epsilon_high": 0.6},
    ),
    "dr-grpo, other numbers": (
        "dr-grpo", {"clip_eps": 0.3, "token_budget": 16}, papers.dr_grpo, {"epsilon": 0.3, "budget": 16},
    ),
    "gspo, other numbers": (
        "gspo", {"clip_low": 0.02, "clip_high": 0.1}, papers.gspo, {"epsilon_left": 0.02, "epsilon_right": 0.1},
    ),
    "cispo, other numbers": ("cispo", {"ratio_cap": 1.1}, papers.cispo, {"bound": 1.1}),
    "sapo, other numbers": (
        "sapo", {"sapo_tau_pos": 0.5, "sapo_tau_neg": 3.0}, papers.sapo, {"tau_pos": 0.5, "tau_neg": 3.0},
    ),
    "olmo3, other numbers": (
        "olmo3", {"clip_low": 0.4, "clip_high": 0.1, "tis_cap": 1.1},
        papers.olmo3, {"epsilon_low": 0.4, "epsilon_high": 0.1, "rho": 1.1},
    ),
    "deepseek-v3.2, other numbers": (
        "deepseek-v3.2", {"clip_eps": 0.4, "kl_coeff": 0.7, "off_policy_delta": 0.02},
        papers.deepseek_v32, {"epsilon": 0.4, "beta": 0.7, "delta": 0.02, "scale": SCALE},
    ),
    "gdpo, other numbers": (
        "gdpo", {"clip_eps": 0.1, "rewards": {"correct": 1.0, "format": 0.25}},
        papers.gdpo, {"epsilon": 0.1, "weights": (1.0, 0.25)},
    ),
}  # fmt: skip
SPREADS = {"gspo": 6e-4, "cispo": 1.2}  # of new around old, so that ratios fall on both sides of every bound; else 0.4
SEEDS = (0, 1, 2)


def random_step(seed: int, spread: float = 0.4) -> papers.Step:
    """Log-probs around the old policy's, lengths 1 to 7, rewards 0 and 1; each group disagrees on the first reward."""
    rng = np.random.default_rng(seed)
    step = []
    for _ in range(PROMPTS):
        right = rng.permutation(ROLLOUTS) < rng.integers(1, ROLLOUTS)
        group = []
        for j in range(ROLLOUTS):
            old = -rng.uniform(0.05, 3.0, rng.integers(1, 8))
            new, ref, sampler = (old + spread * rng.normal(size=old.size) for _ in range(3))
            new, old, ref, sampler = (tuple(np.float32(x).astype(float).tolist()) for x in (new, old, ref, sampler))
            group.append(Answer(new, old, ref, sampler, (float(right[j]), float(rng.integers(2))), new))
        step.append(group)
    return step


def batch_of(step: papers.Step, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """[B, S] arrays, each answer between a prompt and padding that hold garbage, and the rewards [2, P, G]."""
    rng = np.random.default_rng(seed)
    answers = [answer for group in step for answer in group]
    names, shape = ("new", "old", "ref", "sampler"), (len(answers), POSITIONS)
    arrays = {name: rng.normal(-2, 9, shape).astype(np.float32) for name in names}
    mask = np.zeros(shape, np.float32)
    for row, answer in enumerate(answers):
        first = rng.integers(0, POSITIONS - len(answer.new) + 1)
        mask[row, first : first + len(answer.new)] = 1
        for name, array in arrays.items():
            array[row, mask[row] > 0] = getattr(answer, name)
    rewards = np.float32([[[answer.rewards[n] for answer in group] for group in step] for n in (0, 1)])
    return arrays | {"mask": mask}, rewards


_loss_and_gradient = jax.jit(jax.value_and_grad(policy_loss, argnums=1, has_aux=True))


def computed(variant, step, seed):
    """Loss, and d loss / d log-prob of every token as `papers.gradient` lists it."""
    arrays, rewards = batch_of(step, seed)
    advantages = variant_advantages(variant, rewards[: len(variant.recipe.rewards)])
    # As training derives it from the problems' domains.
    kl_scale = np.repeat(np.float32(SCALE), ROLLOUTS) if variant.recipe.kl_domains else None
    (loss, _), gradient = _loss_and_gradient(
        variant, arrays["new"], arrays["old"], arrays["ref"], jnp.reshape(advantages, -1), arrays["mask"],
        sampler_logps=arrays["sampler"], kl_scale=kl_scale,
    )  # fmt: skip
    assert (np.asarray(gradient)[arrays["mask"] == 0] == 0).all()
    return float(loss), np.asarray(gradient)[arrays["mask"] > 0]


def flat(gradient) -> np.ndarray:
    return np.array([x for group in gradient for answer in group for x in answer])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", RECIPES)
def test_loss_and_gradient_are_the_papers(name, seed):
    row, overrides, objective, numbers = RECIPES[name]
    assert_equal(get_variant(row, **overrides), partial(objective, **numbers), seed, SPREADS.get(name, 0.4))


def assert_equal(variant, objective, seed, spread):
    step = random_step(seed, spread)
    loss, gradient = computed(variant, step, seed)
    # Central differences may not step over a bound: their width is small beside the spread.
    want = -flat(papers.gradient(objective, step, width=1e-5 * min(1.0, spread)))
    assert loss == pytest.approx(-objective(step), rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(gradient, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", RECIPES)
def test_the_batches_tell_numbers_apart(name):
    """Otherwise the test above would pass with another bound: doubling any number changes the paper's objective."""
    _, _, objective, numbers = RECIPES[name]
    steps = [random_step(seed, SPREADS.get(name, 0.4)) for seed in SEEDS]
    for key, value in numbers.items():
        more = (*value[:-1], 2 * value[-1]) if isinstance(value, tuple) else 2 * value
        changes = [abs(objective(step, **numbers | {key: more}) - objective(step, **numbers)) for step in steps]
        assert max(changes) > 1e-5, key


def test_gspo_token():
    """The row of GSPO with the other ratio: eq. 13 and 14, where the gradient of a token is its own."""
    variant = get_variant("gspo", clip_low=0.02, clip_high=0.1, ratio="gspo-token")
    for seed in SEEDS:
        assert_equal(variant, partial(papers.gspo_token, epsilon_left=0.02, epsilon_right=0.1), seed, 0.4)


def test_gspo_token_of_the_paper_is_gspo():
    """One advantage for all tokens of an answer: the same value and gradient. A check of the transcriptions."""
    numbers = {"epsilon_left": 0.02, "epsilon_right": 0.1}
    for seed in SEEDS:
        step = random_step(seed)
        assert papers.gspo_token(step, **numbers) == pytest.approx(papers.gspo(step, **numbers), rel=1e-12)
        one, other = (flat(papers.gradient(partial(f, **numbers), step)) for f in (papers.gspo, papers.gspo_token))
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_dapo_weighs_all_tokens_of_the_step_alike():
    """Not the tokens of each prompt, then the prompts: the paper's formula is about one prompt and leaves several open.
    For one prompt there is no difference.
    """
    numbers = {"epsilon_low": 0.2, "epsilon_high": 0.28}
    for seed in SEEDS:
        step = random_step(seed)
        loss, _ = computed(get_variant("dapo", rewards={"correct": 1.0}), step, seed)
        assert abs(loss + papers.dapo_by_prompt(step, **numbers)) > 1e-4
        loss, _ = computed(get_variant("dapo", rewards={"correct": 1.0}), step[:1], seed)
        assert loss == pytest.approx(-papers.dapo_by_prompt(step[:1], **numbers), rel=1e-5, abs=1e-6)


def test_dapo_punishes_length_as_the_paper_weighs_it():
    """The paper rewards 1 and -1 and punishes with up to -1, the row 1 and 0 and with half of that: half of every
    difference, and the same advantages up to the 1e-4 beside the std (0.66 in the row, 1.33 in the paper).
    """
    right, overlong = np.float32([[1, 1, 0, 0]]), np.float32([[0, -0.75, -1, 0]])
    got = variant_advantages(get_variant("dapo"), np.stack([right, overlong]))
    np.testing.assert_allclose(got, [papers.normalised([1.0, 0.25, -2.0, -1.0])], atol=3e-4)
