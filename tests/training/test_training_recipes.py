"""What the papers' recipes need beyond a loss: pools, dynamic sampling, kept sampling masks, domains, references."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fakes import FakeGrader, loop_config, whole_sequences

from grpojax.errors import InputError
from grpojax.loss.logprobs import token_logps, unpack_keep
from grpojax.tasks.problems import Problem
from grpojax.training import draw
from grpojax.training.checkpoint import load_checkpoint, save_checkpoint
from grpojax.training.rollout import concat_rollouts, make_rollouts
from grpojax.training.sampling import keep_likely, make_sampler
from grpojax.training.state import initial_state, run_optimizer, run_variant
from grpojax.training.train import train
from grpojax.training.update import make_batch, score

pytestmark = pytest.mark.slow

TEMPLATE = "{problem} ="
PROBLEMS = [Problem(text, str(i)) for i, text in enumerate(("1 + 1", "2 + 7", "3 * 5", "8 - 6", "9 + 4", "7 * 7", "5 + 5"))]


def make_config(variant="grpo", **changes):
    return loop_config(variant, **changes)


class Verdicts(FakeGrader):
    """Counts the groups of 4 answers that it grades; in a live group the first answer is right, in others none is."""

    def __init__(self, live):
        self.live, self.graded = live, 0

    def grade_many(self, pairs):
        groups = range(self.graded, self.graded + len(pairs) // 4)
        self.graded += len(pairs) // 4
        return [self.live(group) and answer == 0 for group in groups for answer in range(4)]


def always(group):
    return True


@pytest.fixture
def steps_of(tiny_policy):
    def make(config, state=None, live=always, policy=tiny_policy, problems=PROBLEMS):
        state = state or initial_state(config, policy.params)
        return train(config, policy, problems, state, TEMPLATE, Verdicts(live))

    return make


def batches(updates):
    return [args[5] for args, _ in updates]


# --- learning ---


RECIPES = ("clipped", "dapo", "deepseek-v3.2", "gdpo", "book-olmo3")
"""Every path through the loop; test_update.py shows that each distinct loss learns."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_raises_the_probability_of_a_rewarded_token(name, tiny_policy, monkeypatch):
    """Reward 1 for an answer that begins with a token of the upper half of the ids: after a few steps it is more likely."""
    half = tiny_policy.tokenizer.size // 2

    def graded(answers, names, grader):
        return lambda: [dataclasses.replace(answer, correct=answer.token_ids[0] >= half) for answer in answers]

    def rewarded(answers, names, **_):
        return {name: [float(answer.correct) for answer in answers] for name in names}

    def probability(params):
        prompt = jnp.array([tiny_policy.tokenizer.prompt_ids("1 + 1 =", True)])
        return float(jax.nn.softmax(tiny_policy.apply(params, prompt)[0, -1])[half:].sum())

    monkeypatch.setattr(draw, "grade_answers", graded)
    monkeypatch.setattr(draw, "score_answers", rewarded)
    config = make_config(variant=name, steps=4, prompts_per_step=1, num_rollouts=16, max_new_tokens=1, kl_coeff=0.0)
    state = initial_state(config, tiny_policy.params)
    before = probability(tiny_policy.params)
    *_, (state, _) = train(config, tiny_policy, PROBLEMS[:1], state, TEMPLATE)
    assert probability(state.params) > before + 0.05


# --- dynamic sampling ---


def problems_of(record):
    return [sample.problem for sample in record.samples[::4]]


def names(*indices):
    return [PROBLEMS[i].text for i in indices]


def test_a_step_draws_until_enough_groups_disagree_and_carries_the_rest(steps_of):
    # Groups 0, 3, 4, 5, ... have signal. Step 1: round 1 draws 0 and 1 (one live), round 2 draws 2 and 3 (one live).
    # Step 2: round 1 draws 4 and 5: both live.
    config = make_config(dynamic_sampling=5, steps=2)
    (state, first), (_, second) = steps_of(config, live=lambda g: g not in (1, 2))
    assert problems_of(first) == names(0, 3)
    assert (first.metrics["groups_drawn"], first.metrics["groups_carried"]) == (4, 0)
    assert state.problems_used == 4
    assert problems_of(second) == names(4, 5)
    assert first.metrics["zero_adv_frac"] == 0.0
    # 4 groups of 4 answers were drawn, of which two have one right answer each
    assert first.metrics["drawn_correct_avg"] == 2 / 16
    assert first.metrics["correct_avg"] == 2 / 8


def test_a_surplus_group_is_carried_to_the_next_step(steps_of):
    # Groups 1, 2, 3 are live: step 1 takes 1 and 2 of four drawn, 3 is carried over. Step 2 draws 4 and 5 (5 live) and takes 3 and 5.
    config = make_config(dynamic_sampling=5, steps=2)
    (state, first), (_, second) = steps_of(config, live=lambda g: g in (1, 2, 3, 5))
    assert problems_of(first) == names(1, 2) and first.metrics["groups_carried"] == 1
    assert [group.samples[0].problem for group in state.carried] == names(3)
    assert problems_of(second) == names(3, 5) and second.metrics["groups_drawn"] == 2
    assert second.metrics["groups_carried"] == 0


def test_rounds_are_bounded_and_groups_without_signal_fill_the_step(steps_of, spy):
    rollouts = spy("make_rollouts")
    state, record = next(steps_of(make_config(dynamic_sampling=3), live=lambda g: g == 4))
    assert len(rollouts) == 3 and state.problems_used == 6
    assert problems_of(record) == names(4, 0)
    assert record.metrics["zero_adv_frac"] == 0.5
    assert record.metrics["groups_drawn"] == 6


def test_rounds_draw_other_answers_to_the_same_problem(steps_of, spy):
    rollouts = spy("make_rollouts")
    next(steps_of(make_config(dynamic_sampling=2), live=lambda g: False, problems=PROBLEMS[:2]))
    first, second = (result.answers for _, result in rollouts)
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_a_carried_group_keeps_the_log_probs_of_the_policy_that_sampled_it(steps_of, spy):
    """With a safeguard the trainer scores: a carried group keeps the scores of the step that sampled it."""
    updates = spy("update_in_place")
    config = make_config("olmo3", dynamic_sampling=5, lr=0.05, inner_epochs=1)
    list(steps_of(config, live=lambda g: g in (1, 2, 3, 5)))
    second = batches(updates)[1]  # groups 3 (carried) and 5
    np.testing.assert_allclose(second.old_logps, second.sampler_logps, atol=1e-5)
    fresh = score(*updates[1][0][0:1], updates[1][0][2], second)  # the weights before the second update
    assert np.abs(np.asarray(fresh) - second.old_logps)[:4].max() > 1e-3  # have moved since
    np.testing.assert_allclose(np.asarray(fresh)[4:], second.old_logps[4:], atol=1e-5)


def test_a_draw_that_fails_leaves_the_state_as_it_was(tiny_policy, monkeypatch):
    """Fresh rollouts of a later inner epoch are graded before the first update overwrites the optimizer state."""
    calls = []

    def failing(answers, names, **_):
        calls.append(names)
        if len(calls) == 4:
            raise InputError("the second epoch of the second step")
        return {name: [float(i % 2) for i in range(len(answers))] for name in names}

    monkeypatch.setattr(draw, "score_answers", failing)
    config = make_config(variant="clipped")
    steps = train(config, tiny_policy, PROBLEMS, initial_state(config, tiny_policy.params), TEMPLATE, Verdicts(always))
    state, _ = next(steps)
    with pytest.raises(InputError):
        next(steps)
    assert not any(array.is_deleted() for array in jax.tree.leaves((state.params, state.opt_state)))


def test_a_resumed_run_has_its_carried_groups(steps_of, tiny_policy, tmp_path):
    config = make_config(dynamic_sampling=5, steps=2)

    def live(group):
        return group in (1, 2, 3, 5)

    steps = steps_of(config, live=live)
    state, _ = next(steps)
    save_checkpoint(tmp_path, tiny_policy, state)
    expected = next(steps)[1]
    again = load_checkpoint(tmp_path, tiny_policy, run_optimizer(config))
    assert again.problems_used == 4 and again.carried[0].samples == state.carried[0].samples
    grader = Verdicts(live)
    grader.graded = 4
    _, record = next(train(config, tiny_policy, PROBLEMS, again, TEMPLATE, grader))
    assert record.samples == expected.samples
    assert record.metrics["loss"] == expected.metrics["loss"]


# --- kept sampling masks ---


@pytest.fixture(scope="module")
def kept(tiny_policy):
    """Four answers of up to eight tokens to each of two prompts, with the ids that could be sampled."""
    sampler = make_sampler(0.7, top_p=0.8)
    prompts = [tiny_policy.tokenizer.prompt_ids(text, True) for text in ("1 + 1 =", "2 + 30 =")]
    return make_rollouts(tiny_policy, tiny_policy.params, prompts, jax.random.key(0), sampler, 4, 8, True, 0.7)


def test_the_mask_is_the_set_that_could_be_sampled(tiny_policy, kept):
    """Recomputed with a full forward pass: the top-p set of each position at the sampling temperature."""
    vocab, tokens = tiny_policy.config.vocab_size, whole_sequences(make_batch(kept, np.zeros((2, 4))))
    logits = np.asarray(tiny_policy.apply(tiny_policy.params, tokens))
    possible = np.where(np.arange(vocab) < tiny_policy.tokenizer.size, logits / 0.7, -np.inf)
    expected = np.isfinite(keep_likely(jnp.asarray(possible).reshape(-1, vocab), 0.8, None)).reshape(logits.shape)
    recorded, keep = np.asarray(unpack_keep(kept.keep, vocab)), np.ones(logits[:, 1:].shape, bool)
    starts = np.repeat(kept.prompt_lens, 4) - 1  # of the positions that predict the answers
    answers = [(row, slice(start, start + kept.answer_lens[row])) for row, start in enumerate(starts)]
    sizes = set()
    for row, at in answers:
        found = recorded[row, : kept.answer_lens[row]]
        np.testing.assert_array_equal(found, expected[row, at])
        assert np.take_along_axis(found, kept.answers[row, : len(found), None], axis=1).all()
        keep[row, at] = found
        sizes |= set(found.sum(axis=1).tolist())
    logps = token_logps(jnp.asarray(logits), tokens, 0.7, keep)
    for row, at in answers:
        np.testing.assert_allclose(kept.logps[row, : kept.answer_lens[row]], logps[row, at], atol=1e-5)
    assert len(sizes) > 1 and max(sizes) < vocab  # the masks differ, and are masks
    assert kept.keep.shape == (8, 8, -(-vocab // 8)) and kept.keep.dtype == np.uint8


def test_scoring_over_the_kept_ids_gives_the_samplers_logps(tiny_policy, kept):
    batch = make_batch(kept, np.zeros((2, 4)))
    scored = score(tiny_policy.config, tiny_policy.params, batch, 0.7)
    np.testing.assert_allclose(scored, batch.old_logps, atol=1e-5)
    whole = score(tiny_policy.config, tiny_policy.params, dataclasses.replace(batch, keep=None), 0.7)
    assert np.all(np.asarray(scored)[batch.mask > 0] >= np.asarray(whole)[batch.mask > 0])  # of fewer ids
    assert np.abs(np.asarray(scored) - np.asarray(whole)).max() > 0.05


def test_a_kept_mask_needs_something_to_choose_from():
    with pytest.raises(InputError, match="keep_sampling_mask with temperature 0 leaves one possible token"):
        make_config(variant="deepseek-v3.2", temperature=0.0)


@pytest.mark.slow
def test_masks_reach_the_update_and_gradients_stay_finite(steps_of, spy):
    updates = spy("update_in_place")
    _, record = next(steps_of(make_config(variant="deepseek-v3.2", temperature=0.7, top_p=0.8)))
    assert batches(updates)[0].keep is not None
    assert np.isfinite(record.metrics["grad_norm"]) and record.metrics["grad_norm"] > 0
    assert record.metrics["policy_ratio"] != 1.0  # of the second pass
    assert "kl_loss" not in record.metrics  # problems of mathematics


# --- domains, references, truncated answers, abstentions ---


@pytest.mark.slow
def test_a_domain_can_have_no_kl_term(steps_of, spy):
    problems = [dataclasses.replace(PROBLEMS[0]), dataclasses.replace(PROBLEMS[1], domain="code")]
    updates = spy("update_in_place")
    next(steps_of(make_config(kl_domains="math=0,code=2"), problems=problems))
    assert batches(updates)[0].kl_scale.tolist() == [0.0] * 4 + [2.0] * 4
    assert "kl_coeff" in run_variant(make_config(kl_domains="math=0"), problems).loss.numbers
    assert "kl_coeff" not in run_variant(make_config(kl_domains="math=0"), PROBLEMS).loss.numbers


def test_the_reference_follows_the_policy_when_it_is_refreshed(steps_of, tiny_policy, tmp_path):
    config = make_config(steps=3, reference_refresh=2, inner_epochs=1)
    states, records = [], []
    for state, record in steps_of(config):  # the next step overwrites the params of this one
        states.append(dataclasses.replace(state, params=jax.tree.map(jnp.copy, state.params)))
        records.append(record)
    kl = [record.metrics["kl_k3"] for record in records]
    assert kl[0] == 0.0 and kl[1] > 0.0  # before the first update the policy is the reference
    assert kl[2] == pytest.approx(0.0, abs=1e-9)  # after step 2 it is again
    assert [state.reference is None for state in states] == [True, False, False]
    jax.tree.map(np.testing.assert_array_equal, states[1].reference, states[1].params)
    save_checkpoint(tmp_path, tiny_policy, state)
    again = load_checkpoint(tmp_path, tiny_policy, run_optimizer(config))
    # Committed to a device, they would make every program compile again.
    assert not any(array.committed for array in jax.tree.leaves((again.params, again.opt_state, again.reference)))
    jax.tree.map(np.testing.assert_array_equal, again.reference, states[1].params)


def test_truncated_answers_can_be_left_out(steps_of, spy, monkeypatch):
    updates, truncated, sampled = spy("update_in_place"), np.array([True, False] * 4), draw.make_rollouts
    marked = lambda *args, **kwargs: dataclasses.replace(sampled(*args, **kwargs), truncated=truncated)
    monkeypatch.setattr(draw, "make_rollouts", marked)
    _, record = next(steps_of(make_config(mask_truncated=True)))
    lengths = np.array([sample.length for sample in record.samples])
    np.testing.assert_array_equal(batches(updates)[0].mask.sum(axis=1), np.where(truncated, 0, lengths))
    updates.clear()
    next(steps_of(make_config()))
    np.testing.assert_array_equal(batches(updates)[0].mask.sum(axis=1), lengths)


def test_an_answer_on_which_all_rewards_abstain_is_left_out(steps_of, monkeypatch):
    def abstaining(answers, names, **_):
        return {"correct": [1.0, 0.0, float("nan"), 0.0] * (len(answers) // 4)}

    monkeypatch.setattr(draw, "score_answers", abstaining)
    _, record = next(steps_of(make_config()))
    # 1, 0, 0: mean 1/3, std 1/sqrt(3), so 2/3 / 0.57745 and -1/3 / 0.57745
    expected = [1.154501, -0.577250, 0.0, -0.577250]
    assert [s.advantage for s in record.samples[:4]] == pytest.approx(expected, abs=1e-5)
    assert [s.reward for s in record.samples[:4]] == [1.0, 0.0, None, 0.0]
    assert record.metrics["reward_avg"] == pytest.approx(1 / 3)


# --- safeguards ---


def test_a_safeguard_compares_trainer_and_sampler(steps_of, spy):
    updates = spy("update_in_place")
    _, record = next(steps_of(make_config(variant="olmo3", dynamic_sampling=0)))
    batch = batches(updates)[0]
    np.testing.assert_allclose(batch.sampler_logps, batch.old_logps, atol=1e-5)
    assert 0 < record.metrics["logp_gap"] < 1e-4  # float32 rounding of two different programs
    assert record.metrics["safeguard_weight"] == pytest.approx(1.0, abs=1e-4)


def test_all_batches_are_made_before_the_first_update(steps_of):
    """The trainer scores two fresh draws with weights that the first update overwrites."""
    config = make_config("olmo3", dynamic_sampling=2, inner_epochs=2, rollout_reuse="fresh", steps=1)
    _, record = next(steps_of(config))
    assert record.metrics["logp_gap"] < 1e-4


# --- splitting and joining rollouts ---


def test_groups_of_rollouts_are_joined_again(kept):
    again = concat_rollouts([kept.group(0), kept.group(1)])
    for name, array in vars(kept).items():
        np.testing.assert_array_equal(getattr(again, name), array)
    assert kept.group(1).answer_ids(0) == kept.answer_ids(4)
