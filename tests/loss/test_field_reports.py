"""Bug reports of people who train with these losses, each as a test of the same name; the input is the report's.

Reports that another test already covers with the same input are not repeated:

  b02  one rollout a prompt                test_advantages.py test_one_rollout_is_refused, tests/test_run_config.py
  b04  constant groups                     test_advantages.py test_constant_groups_are_exactly_zero_compiled
  b06  statistics of each group            test_advantages.py test_statistics_are_of_each_group
  b08  tokens behind the first stop token  test_logprobs.py test_answer_mask, tests/training/test_train.py (lengths)
  b10  two stop ids                        test_logprobs.py test_answer_mask, tests/training/test_rollout.py
  b12  which row scores which token        test_logprobs.py test_position_t_scores_token_t_plus_one
  b14  padding beside a prompt             tests/training/test_rollout.py test_a_prompt_alone_equals_the_same_...
  b16  temperature 0                       tests/training/test_sampling.py, tests/training/test_rollout.py (GREEDY)
  b26  exp of a large log-ratio            test_penalties.py test_large_gaps_are_finite, test_objectives.py
  b28  accumulation                        test_reduce.py test_the_divisor_is_that_of_the_whole_step
  b32  probability 0                       test_logprobs.py test_keep_gives_..., test_entropy_with_impossible_ids
  b34  reference equal to the policy       tests/training/test_train.py, tests/training/test_update.py
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpojax import get_variant, load_policy, policy_loss
from grpojax.training.update import Batch, score

_loss_and_gradient = jax.jit(jax.value_and_grad(policy_loss, argnums=1, has_aux=True))


def loss_and_gradient(variant, new, old, advantages, mask):
    """(loss, aux), d loss / d new."""
    return _loss_and_gradient(variant, new, old, None, advantages, mask)


@pytest.mark.slow
def test_b18_scores_do_not_depend_on_the_size_of_the_batch():
    """8 answers of 512 tokens, at once and alone, with equal weights: tokens to 1e-5. Sums of 512 such gaps are what a
    ratio of whole answers sees; 2e-4 a token would make it 1.108.
    """
    policy = load_policy(Path(__file__).parents[1] / "golden" / "policy")
    answers = np.random.default_rng(0).integers(0, 90, (8, 512)).astype(np.int32)
    batch = Batch(
        prompts=np.full((1, 4), 5, np.int32),
        prompt_lens=np.array([4]),
        prompt_of=np.zeros(8, np.int32),
        targets=answers,
        mask=np.ones((8, 512), np.float32),
        old_logps=np.zeros((8, 512), np.float32),
        advantages=np.ones(8, np.float32),
    )
    together = np.asarray(score(policy.config, policy.params, batch))
    alone = np.stack([np.asarray(score(policy.config, policy.params, batch.rows(np.array([i]))))[0] for i in range(8)])
    assert np.abs(together - alone).max() <= 1e-5
    (_, aux), _ = loss_and_gradient(get_variant("clipped"), together, alone, batch.advantages, batch.mask)
    assert float(aux["policy_ratio"]) == pytest.approx(1.0, abs=5e-3)  # what a run prints: 512 * 1e-5 at most


@pytest.mark.parametrize(
    ("name", "numbers", "ratio", "loss", "clipped"),
    [
        ("grpo", {}, 1.01005, -1.01005, 0.0),  # e^0.01 a token, inside 1.2
        ("grpo", {"clip_eps": 10.0}, 1.01005, -1.01005, 0.0),
        ("clipped", {"clip_eps": 0.2}, 167.335, -1.2, 1.0),  # e^5.12
        ("clipped", {}, 167.335, -11.0, 1.0),
        ("gspo", {"clip_eps": 0.2}, 1.01005, -1.01005, 0.0),  # the 512th root of e^5.12
        ("gspo", {}, 1.01005, -1.0004, 1.0),  # and bounds that fit it
    ],
)
def test_b20_a_drift_of_a_hundredth_per_token(name, numbers, ratio, loss, clipped):
    """512 tokens, each 0.01 likelier, A = 1: the size of the bound must fit the level of the ratio."""
    new, old, mask = (np.full((1, 512), x, np.float32) for x in (-0.99, -1.0, 1.0))
    (got, aux), _ = loss_and_gradient(get_variant(name, kl_coeff=0, **numbers), new, old, np.ones(1, np.float32), mask)
    assert float(aux["policy_ratio"]) == pytest.approx(ratio, rel=1e-4)  # float32 sums of 512 terms
    assert float(got) == pytest.approx(loss, rel=1e-4)
    assert float(aux["clip_frac"]) == clipped


@pytest.mark.parametrize(("ratio", "advantage", "slope"), [(3.0, 1.0, -1.2), (0.5, -1.0, 0.5)])
def test_b22_cispo_keeps_the_gradient_of_every_token(ratio, advantage, slope):
    """Cap 1.2, one token: d loss / d logp = -min(r, 1.2) A, even below 1, where no bound is. PPO's gives 0 for both."""
    old, mask = jnp.full((1, 1), -2.0), jnp.ones((1, 1))
    new = old + np.log(ratio)
    _, got = loss_and_gradient(get_variant("cispo", ratio_cap=1.2), new, old, jnp.array([advantage]), mask)
    np.testing.assert_allclose(got, [[slope]], rtol=1e-5)
    _, ppo = loss_and_gradient(get_variant("dapo", clip_eps=0.2), new, old, jnp.array([advantage]), mask)
    np.testing.assert_array_equal(ppo, [[0.0]])


def test_b24_the_clipped_share_counts_lost_gradients():
    """Ratios 1.5, 0.5, 1.5, 0.5 with A 1, 1, -1, -1, eps 0.2: the first and the last, a half."""
    new = np.log(np.float32([[1.5, 9.0], [0.5, 9.0], [1.5, 9.0], [0.5, 9.0]]))
    mask, advantages = np.float32([[1, 0]] * 4), np.float32([1, 1, -1, -1])
    (_, aux), gradient = loss_and_gradient(get_variant("dapo", clip_eps=0.2), new, np.zeros_like(new), advantages, mask)
    assert float(aux["clip_frac"]) == 0.5
    assert (gradient[:, 0] == 0).tolist() == [True, False, False, True]


@pytest.mark.parametrize(("name", "loss"), [("grpo", 0.0), ("dapo", 0.5), ("dr-grpo", 0.25)])
def test_b30_three_names_three_lengths(name, loss):
    """Answers of 2 and 6 tokens in 8 positions, A 1 and -1, ratio 1: -(1 - 1) / 2, -(2 - 6) / 8, -(2 - 6) / (2 * 8)."""
    logps, mask = np.full((2, 8), -1.0, np.float32), (np.arange(8) < np.array([[2], [6]])).astype(np.float32)
    (got, _), _ = loss_and_gradient(get_variant(name, kl_coeff=0), logps, logps, np.float32([1, -1]), mask)
    assert float(got) == pytest.approx(loss, abs=1e-6)
