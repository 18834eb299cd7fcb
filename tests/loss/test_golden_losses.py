"""The loss, its gradients and one update against the reference's own numbers, through the programs a run uses.

`golden/` holds a tiny Qwen3 in three versions (trained, sampling, reference), six answers to one prompt, and what the
book's scripts computed for them in float32 with PyTorch.
"""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax import answer_mask, gdpo_advantages, get_variant, load_policy, policy_loss, token_entropy, token_logps
from grpojax.qwen.conversion import tensors_from_tree
from grpojax.training.rollout import Rollouts
from grpojax.training.update import init_optimizer, make_batch, make_optimizer, score, update
from grpojax.variants import variant_advantages

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "golden.json").read_text())
PROMPT, ANSWERS = GOLDEN["prompt"], GOLDEN["answers"]
REWARDS = {  # by name of the reward function; the scripts score an answer without a box by its last number
    "correct": GOLDEN["rewards"], "correct_or_number": GOLDEN["rewards"],
    "format": GOLDEN["format_rewards"], "boxed": GOLDEN["boxed_rewards"],
}  # fmt: skip
LR = 1e-3

CASES = {  # case -> variant and its overrides
    "tracking": ("book-7.3", {}),
    "clipped_eps10": ("book-7.4", {"clip_eps": 10.0}),
    "clipped_eps0.2": ("book-7.4", {"clip_eps": 0.2}),
    "kl_0.02": ("book-7.5", {"clip_eps": 10.0, "kl_coeff": 0.02}),
    "format_w1": ("book-7.6", {"clip_eps": 10.0, "kl_coeff": 0.0, "format_reward_weight": 1.0}),
    "format_w0.1_conditional_kl": (
        "book-7.6", {"clip_eps": 10.0, "kl_coeff": 0.001, "format_reward_weight": 0.1, "conditional_reward": True},
    ),
    "olmo3": ("book-olmo3", {"clip_low": 0.2, "clip_high": 10.0}),
    "olmo3_tight": ("book-olmo3", {"clip_low": 0.01, "clip_high": 0.02}),
    "deepseek_v32": ("book-deepseek-v3.2", {"clip_eps": 10.0, "kl_coeff": 0.02, "off_policy_delta": 0.001}),
    "gdpo": ("book-gdpo", {"clip_eps": 10.0, "kl_coeff": 0.02, "rewards": {"correct_or_number": 1.0, "boxed": 0.1}}),
}  # fmt: skip
WHOLE = [(name, len(ANSWERS)) for name in CASES]
MICRO = [pytest.param("deepseek_v32", 2, marks=pytest.mark.slow)]  # the case with every part: ratio, KL term, safeguard and keep mask


def test_every_case_is_here():
    assert set(CASES) == set(GOLDEN["cases"]) and len(CASES) == 10


@pytest.fixture(scope="module")
def policies():
    return {name: load_policy(FOLDER / name) for name in ("policy", "old", "ref")}


@pytest.fixture(scope="module")
def arrays():
    with np.load(FOLDER / "arrays.npz") as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def batch(policies):
    """The six answers as rollouts of the old policy, put into a batch and scored by old and reference."""
    size = 16
    answers = np.zeros((len(ANSWERS), size), np.int32)
    for row, ids in zip(answers, ANSWERS, strict=True):
        row[: len(ids)] = ids
    zeros = np.zeros(answers.shape, np.float32)
    rollouts = Rollouts(
        prompts=np.array([PROMPT + [0] * 10], np.int32),
        prompt_lens=np.array([len(PROMPT)], np.int32),
        answers=answers,
        answer_lens=np.array([len(ids) for ids in ANSWERS], np.int32),
        truncated=np.zeros(len(ANSWERS), bool),
        logps=zeros,
        entropies=zeros,
    )
    return scored(policies, make_batch(rollouts, np.zeros((1, len(ANSWERS)), np.float32)))


def scored(policies, batch):
    old, ref = (np.asarray(score(policies[name].config, policies[name].params, batch)) for name in ("old", "ref"))
    return dataclasses.replace(batch, old_logps=old, ref_logps=ref)


@pytest.fixture(scope="module")
def kept_batch(policies, batch, arrays):
    """The same over the ids that could be sampled, packed as a run stores them; all ids where there is no answer."""
    keep = np.ones((*batch.targets.shape, arrays["keep_mask"].shape[-1]), bool)
    keep[batch.mask > 0] = arrays["keep_mask"]
    return scored(policies, dataclasses.replace(batch, keep=np.packbits(keep, axis=-1)))


@dataclasses.dataclass(frozen=True)
class Step:
    """What one update of a case did, in Hugging Face's tensor names and layout."""

    metrics: dict
    advantages: np.ndarray
    gradients: dict
    params: dict


@pytest.fixture(scope="module")
def step(policies, batch, kept_batch):
    policy, optimizer, done = policies["policy"], make_optimizer(max_grad_norm=1.0, weight_decay=0.01), {}

    def made(case, micro_batch):
        if (case, micro_batch) not in done:
            name, overrides = CASES[case]
            variant = get_variant(name, **overrides)
            advantages = np.asarray(variant_advantages(variant, rewards_of(variant)))
            full = kept_batch if variant.recipe.keep_sampling_mask else batch
            ref = full.ref_logps if "kl_coeff" in variant.loss.numbers else None
            part = dataclasses.replace(full, advantages=advantages.reshape(-1), ref_logps=ref)
            state = init_optimizer(optimizer, policy.params)
            params, state, metrics = update(
                policy.config, optimizer, policy.params, state, variant.loss, part, LR, micro_batch
            )
            # After one step Adam's first moment is 0.1 of the gradient, cut to norm 1 where it is longer.
            scale = 10 * max(1.0, float(metrics["grad_norm"]))
            gradients = jax.tree.map(lambda moment: np.asarray(moment) * scale, state[1].mu)
            done[case, micro_batch] = Step(
                jax.tree.map(float, metrics),
                advantages.reshape(-1),
                tensors_from_tree(policy.config, gradients),
                tensors_from_tree(policy.config, params),
            )
        return done[case, micro_batch]

    return made


def rewards_of(variant):
    """[K, 1, 6] rewards in the order of the variant's."""
    rewards = {name: np.float32(values) for name, values in REWARDS.items()}
    if variant.recipe.conditional_reward:
        rewards["format"] = rewards["format"] * rewards["correct"]
    return np.stack([rewards[name] for name in variant.recipe.rewards])[:, None]


def tensors_of(arrays, prefix):
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


@pytest.mark.parametrize(("case", "micro_batch"), WHOLE + MICRO)
def test_loss(step, case, micro_batch):
    got, want = step(case, micro_batch), GOLDEN["cases"][case]
    np.testing.assert_allclose(got.advantages, want["advantages"], atol=1e-5)
    for name in ("loss", "pg_loss", "kl_loss"):
        assert got.metrics[name] == pytest.approx(want[name], abs=1e-5), name
    if want["policy_ratio"] is None:
        assert np.isnan(got.metrics["policy_ratio"])
    else:
        assert got.metrics["policy_ratio"] == pytest.approx(want["policy_ratio"], abs=1e-5)
    assert got.metrics["grad_norm"] == pytest.approx(want["grad_norm"], rel=1e-5)


@pytest.mark.parametrize(("case", "micro_batch"), WHOLE + MICRO)
def test_every_gradient(step, arrays, case, micro_batch):
    """To 1e-4 of each tensor's largest entry."""
    got, want = step(case, micro_batch).gradients, tensors_of(arrays, f"grad/{case}/")
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-4, atol=1e-4 * np.abs(gradient).max(), err_msg=name)


@pytest.mark.parametrize(("case", "micro_batch"), WHOLE + MICRO)
def test_weights_after_one_update(step, arrays, case, micro_batch):
    """The step is lr (g / (|g| + 1e-8) + 0.01 w), g over its norm (41 to 50 here), so an error of g moves the weight by
    lr error / (|g| + 1e-8), and by 2 lr at most. Float32 sums leave errors up to 1e-5 of a tensor's largest entry.
    A weight whose gradient is exactly 0 (the embedding of an unused id) only decays. Storing it rounds off 1e-7 of it.
    """
    got, want = step(case, micro_batch), tensors_of(arrays, f"after_adamw/{case}/")
    assert got.params.keys() == want.keys()
    for name, weights in want.items():
        gradient = np.abs(arrays[f"grad/{case}/{name}"] / GOLDEN["cases"][case]["grad_norm"])
        by_error = np.where(gradient == 0, 0.0, np.minimum(2.0, 1e-5 * gradient.max() / (gradient + 1e-8)))
        assert np.mean(by_error > 0.02) < 0.05, name  # else the next line says nothing
        assert (np.abs(got.params[name] - weights) <= LR * by_error + 2e-7 * np.abs(weights) + 1e-9).all(), name


@pytest.mark.parametrize(("case", "micro_batch"), MICRO)
def test_micro_batches_give_the_same_gradients(step, case, micro_batch):
    """Sums in another order, float32. A sequence's log-prob is about -45 nats, rounded to 4e-6, and that is the
    relative error of its ratio, which multiplies its gradient; the loss is what terms near 1 leave of each other.
    """
    whole, parts = step(case, len(ANSWERS)), step(case, micro_batch)
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(parts.gradients[name], gradient, atol=2e-5 * np.abs(gradient).max(), err_msg=name)
    for name, value in whole.metrics.items():
        assert parts.metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-5, nan_ok=True), name


@pytest.fixture(scope="module")
def logits(policies):
    """Tokens [B, T], and logits [B, T, V] of each policy."""
    tokens = np.zeros((len(ANSWERS), len(PROMPT) + max(map(len, ANSWERS))), np.int32)
    for row, ids in zip(tokens, ANSWERS, strict=True):
        row[: len(PROMPT) + len(ids)] = PROMPT + ids
    return tokens, {name: np.asarray(policy.apply(policy.params, tokens)) for name, policy in policies.items()}


@pytest.mark.parametrize(("name", "case"), [("policy", "tracking"), ("old", "clipped_eps10")])
def test_entropies(logits, name, case):
    """Mean token entropy of each answer under the policy that sampled it: without a ratio, the trained one."""
    entropies, first = np.asarray(token_entropy(logits[1][name][:, :-1])), len(PROMPT) - 1
    got = [row[first : first + len(ids)].mean() for row, ids in zip(entropies, ANSWERS, strict=True)]
    np.testing.assert_allclose(got, GOLDEN["cases"][case]["entropies"], atol=1e-5)


@pytest.fixture(scope="module")
def answers(logits, arrays):
    """Mask [B, S] of the answers, and the ids [B, S, V] that could be sampled. The answers have no stop token; they end
    with their rows."""
    tokens, _ = logits
    after_prompt = answer_mask(tokens, np.full(len(ANSWERS), len(PROMPT)), ())
    ends = np.array([len(PROMPT) - 1 + len(ids) for ids in ANSWERS])
    mask = np.asarray(after_prompt * (np.arange(tokens.shape[1] - 1)[None, :] < ends[:, None]))
    keep = np.ones((*mask.shape, arrays["keep_mask"].shape[-1]), bool)
    keep[mask > 0] = arrays["keep_mask"]
    return mask, keep


@pytest.mark.parametrize("case", ["kl_0.02", "olmo3_tight", "deepseek_v32", "gdpo"])
def test_the_contract_functions_alone_give_the_same_loss(logits, answers, case):
    """From whole logits, as another program would do it."""
    (tokens, of), (mask, keep), want = logits, answers, GOLDEN["cases"][case]
    row, overrides = CASES[case]
    variant = get_variant(row, **overrides)

    @jax.jit
    def loss_of(variant, policy, old, ref):
        kept = keep if variant.recipe.keep_sampling_mask else None
        scores = (token_logps(x, tokens, temperature=1.0, keep=kept) for x in (policy, old, ref))
        new_logps, old_logps, ref_logps = scores
        return policy_loss(variant, new_logps, old_logps, ref_logps, jnp.float32(want["advantages"]), mask)

    loss, aux = loss_of(variant, **of)
    assert float(loss) == pytest.approx(want["loss"], abs=1e-5)
    for name in ("pg_loss", "kl_loss", "policy_ratio"):
        assert float(aux[name]) == pytest.approx(want[name], abs=1e-5), name


def test_entropies_under_the_keep_mask_are_finite(logits, answers):
    """The script's are NaN: a probability of 0 times a log of minus infinity. In float64 over the kept ids alone."""
    assert np.isnan(GOLDEN["cases"]["deepseek_v32"]["entropies"]).all()
    (_, of), (mask, keep) = logits, answers

    def summed(logits):
        entropy = token_entropy(jnp.where(keep, logits[:, :-1], -jnp.inf))
        return jnp.sum(jnp.where(mask > 0, entropy, 0.0)), entropy

    (_, entropy), gradient = jax.jit(jax.value_and_grad(summed, has_aux=True))(of["old"])
    assert np.isfinite(entropy).all() and np.isfinite(gradient).all()
    rows = np.asarray(of["old"], np.float64)[:, :-1][mask > 0]
    for got, row, kept in zip(np.asarray(entropy)[mask > 0], rows, keep[mask > 0], strict=True):
        weights = np.exp(row[kept] - row[kept].max())
        p = weights / weights.sum()
        assert got == pytest.approx(-np.sum(p * np.log(p)), abs=1e-5)


def test_gdpo_advantages():
    """correct + 0.1 boxed in one group, where the group and the batch are the same."""
    rewards = np.array([[GOLDEN["rewards"]], [GOLDEN["boxed_rewards"]]])
    got = gdpo_advantages(rewards, jnp.array([1.0, 0.1]))
    np.testing.assert_allclose(got, [GOLDEN["cases"]["gdpo"]["advantages"]], atol=1e-5)
