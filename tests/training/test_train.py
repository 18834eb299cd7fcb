"""The training loop: what a step samples, updates and records; a resumed run draws what an unbroken one does."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fakes import FakeGrader, loop_config, whole_sequences

from grpojax.config import RunConfig
from grpojax.errors import InputError, RunError
from grpojax.loss.logprobs import token_logps
from grpojax.qwen.weights import load_policy
from grpojax.records import METRIC_COLUMNS
from grpojax.tasks.problems import Problem
from grpojax.training import draw
from grpojax.training import train as module
from grpojax.training.checkpoint import load_checkpoint, save_checkpoint
from grpojax.training.rollout import generate
from grpojax.training.state import initial_state, run_optimizer
from grpojax.training.train import train
from grpojax.training.update import batch_shapes, update_in_place

TEMPLATE = "{problem} ="
PROBLEMS = [Problem(text, str(i)) for i, text in enumerate(("1 + 1", "2 + 7", "3 * 5", "8 - 6", "9 + 4"))]
CLOCKS = {"rollout_seconds", "update_seconds", "step_seconds", "tokens_per_sec"}


def make_config(variant="clipped", **changes):
    return loop_config(variant, **changes)


@pytest.fixture
def steps_of(tiny_policy, every_other_grader):
    """Starts the loop: `steps_of(config)`, from the beginning or from a state."""

    def make(config, state=None, policy=tiny_policy, grader=every_other_grader):
        state = state or initial_state(config, policy.params)
        return train(config, policy, PROBLEMS, state, TEMPLATE, grader)

    return make


def adam_count(state) -> int:
    return int(next(part.count for part in state.opt_state if isinstance(part, optax.ScaleByAdamState)))


def assert_same_arrays(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def without_clocks(record):
    return {name: value for name, value in record.metrics.items() if name not in CLOCKS}


# --- a generator without side effects ---


def test_a_config_is_resolved_and_a_missing_state_is_created(tiny_policy, every_other_grader):
    config = RunConfig(
        model="tiny", steps=1, prompts_per_step=2, num_rollouts=4, max_new_tokens=8, temperature=1.0, top_p=1.0, lr=1e-2
    )
    ((state, record),) = train(config, tiny_policy, PROBLEMS, template=TEMPLATE, grader=every_other_grader)
    assert (state.step, record.step, record.total_steps) == (1, 1, 1)
    with pytest.raises(InputError, match="num_rollouts is 1"):
        next(train(dataclasses.replace(config, num_rollouts=1), tiny_policy, PROBLEMS))


def test_nothing_happens_before_the_first_step_is_taken(steps_of, spy):
    calls = spy("make_rollouts")
    steps_of(make_config())
    assert not calls


def test_it_neither_prints_nor_writes(steps_of, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    records = [record for _, record in steps_of(make_config())]
    assert [(record.step, record.total_steps) for record in records] == [(1, 2), (2, 2)]
    assert [(record.evaluation, record.checkpoint) for record in records] == [(None, None)] * 2
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_state_that_has_done_all_steps_yields_nothing(steps_of, tiny_policy):
    config = make_config()
    done = dataclasses.replace(initial_state(config, tiny_policy.params), step=2)
    assert list(steps_of(config, done)) == []


def test_the_starting_weights_are_not_changed(steps_of, tiny_policy):
    before = jax.tree.map(np.array, tiny_policy.params)
    *_, (state, _) = steps_of(make_config())
    assert_same_arrays(before, tiny_policy.params)
    moved = jax.tree.map(lambda new, old: np.any(np.asarray(new) != old), state.params, before)
    assert all(jax.tree.leaves(moved))


# --- the same seed, the same run ---


def test_the_same_seed_gives_the_same_run(steps_of):
    runs = [[record for _, record in steps_of(make_config())] for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        assert first.samples == second.samples
        assert without_clocks(first) == without_clocks(second)


def test_another_seed_gives_other_answers(steps_of):
    texts = [[s.text for s in next(steps_of(make_config(seed=seed)))[1].samples] for seed in (42, 43)]
    assert texts[0] != texts[1]


def test_another_default_generator_gives_the_same_answers(steps_of):
    # Field report d15: the root key names threefry, so the default does not matter.
    plain = next(steps_of(make_config()))[1].samples
    with jax.default_prng_impl("rbg"):
        assert next(steps_of(make_config()))[1].samples == plain


def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(steps_of, tiny_folder, tmp_path):
    # Field reports d11, d13, f07: rollouts, problems and the optimizer continue where they stopped.
    config = make_config(steps=4)
    unbroken = []
    for state, record in steps_of(config):
        unbroken.append(record)
        if state.step == 2:
            save_checkpoint(tmp_path, load_policy(tiny_folder), state)
    policy = load_policy(tiny_folder)
    resumed = load_checkpoint(tmp_path, policy, run_optimizer(config))
    assert (resumed.step, adam_count(resumed)) == (2, 4)  # two inner epochs a step
    records = []
    for again, record in steps_of(config, resumed, policy):
        records.append(record)
    assert [record.step for record in records] == [3, 4]
    for first, second in zip(unbroken[2:], records, strict=True):
        assert first.samples == second.samples
        assert without_clocks(first) == without_clocks(second)
    assert_same_arrays(state.params, again.params)
    assert_same_arrays(state.opt_state, again.opt_state)
    assert adam_count(again) == 8


def test_problems_are_taken_in_order_and_start_over_also_after_a_resume(steps_of, tiny_policy):
    def asked(steps):
        return [[sample.problem for sample in record.samples[::4]] for _, record in steps]

    def texts(*indices):
        return [PROBLEMS[i].text for i in indices]

    config = make_config(steps=4, inner_epochs=1)
    order = [texts(0, 1), texts(2, 3), texts(4, 0), texts(1, 2)]
    assert asked(steps_of(config)) == order
    third = dataclasses.replace(initial_state(config, tiny_policy.params), step=2, problems_used=4)
    assert asked(steps_of(config, third)) == order[2:]


def test_answers_belong_to_their_problem(steps_of):
    record = next(steps_of(make_config()))[1]
    assert [(s.problem, s.gold) for s in record.samples] == [("1 + 1", "0")] * 4 + [("2 + 7", "1")] * 4


# --- inner epochs ---


def test_each_inner_epoch_samples_anew_from_the_frozen_old_policy(steps_of, spy):
    calls = spy("make_rollouts")
    config = make_config(inner_epochs=3)
    (first_state, _), _ = steps_of(config)
    old = [args[1] for args, _ in calls]
    root = jax.random.key(config.seed, impl="threefry2x32")
    assert len(calls) == 6
    assert old[0] is old[1] is old[2]
    assert old[3] is old[4] is old[5] is first_state.params
    keys = [jax.random.key_data(args[3]).tolist() for args, _ in calls]
    expected = [jax.random.fold_in(jax.random.fold_in(root, step), epoch) for step in (1, 2) for epoch in (0, 1, 2)]
    assert keys == [jax.random.key_data(key).tolist() for key in expected]
    answers = [rollouts.answers.tolist() for _, rollouts in calls]
    assert answers[0] != answers[1] != answers[2]


def test_the_ratio_is_one_in_the_first_inner_epoch_and_moves_in_the_second(steps_of):
    # Decoding with a cache and scoring in one pass differ by rounding alone: 8 tokens of at most 1e-6 each.
    one, two = (next(steps_of(make_config(inner_epochs=epochs)))[1].metrics["policy_ratio"] for epochs in (1, 2))
    assert one == pytest.approx(1.0, abs=1e-5)
    assert abs(two - 1.0) > 1e-2


@pytest.mark.slow
def test_a_pool_is_sampled_once_and_split_into_minibatches(steps_of, spy):
    rollouts, updates = spy("make_rollouts"), spy("update_in_place")
    config = make_config(rollout_reuse="pool", minibatches=2, inner_epochs=3)
    state, record = next(steps_of(config))
    assert len(rollouts) == 1
    assert len(updates) == adam_count(state) == 6
    batches = [args[5] for args, _ in updates]
    assert all(len(batch.targets) == 4 for batch in batches)
    # Every epoch goes over the whole pool once, in another order, with the log-probs of the one old policy.
    pool = rollouts[0][1]
    orders = []
    for epoch in range(3):
        targets = np.concatenate([batch.targets for batch in batches[2 * epoch : 2 * epoch + 2]])
        old = np.concatenate([batch.old_logps for batch in batches[2 * epoch : 2 * epoch + 2]])
        orders.append([pool.logps[:, 0].tolist().index(value) for value in old[:, 0].tolist()])
        assert sorted(orders[-1]) == list(range(8))
        np.testing.assert_array_equal(targets[:, :8], pool.answers[orders[-1]])
    assert len({tuple(order) for order in orders}) > 1
    assert len(record.samples) == 8


def test_tokens_per_second_counts_the_rollouts_of_all_inner_epochs(steps_of, spy):
    calls = spy("make_rollouts")
    metrics = next(steps_of(make_config(inner_epochs=2)))[1].metrics
    tokens = sum(int(rollouts.answer_lens.sum()) for _, rollouts in calls)
    assert metrics["tokens_per_sec"] == pytest.approx(tokens / metrics["step_seconds"])
    assert metrics["rollout_seconds"] + metrics["update_seconds"] <= metrics["step_seconds"]


# --- groups that agree ---


class Verdicts(FakeGrader):
    """Repeats the given verdicts."""

    def __init__(self, *verdicts):
        self.verdicts = verdicts

    def grade_many(self, pairs):
        return [self.verdicts[i % len(self.verdicts)] for i in range(len(pairs))]


def test_skipping_leaves_weights_and_optimizer_alone(steps_of, tiny_policy):
    config = make_config(skip_zero_advantage_updates=True, variant="kl")
    for state, record in steps_of(config, grader=Verdicts(False)):
        assert_same_arrays(state.params, tiny_policy.params)
        assert adam_count(state) == 0
        metrics = record.metrics
        assert (metrics["loss"], metrics["pg_loss"], metrics["zero_adv_frac"]) == (0.0, 0.0, 1.0)
        assert all(metrics.get(name) is None for name in ("policy_ratio", "clip_frac", "grad_norm"))


def test_without_skipping_weight_decay_moves_the_weights(steps_of, tiny_policy):
    # No gradient: AdamW takes lr * weight_decay = 1e-4 of each weight in each of the two updates.
    state, record = next(steps_of(make_config(), grader=Verdicts(False)))
    weight = lambda params: np.asarray(params["layers"]["mlp"]["up"]["weight"])
    np.testing.assert_allclose(weight(state.params), weight(tiny_policy.params) * (1 - 1e-4) ** 2, rtol=1e-6)
    assert adam_count(state) == 2
    assert record.metrics["grad_norm"] == 0.0


def test_one_group_that_differs_is_enough_for_an_update(steps_of):
    verdicts = Verdicts(True, True, True, True, False, True, True, True)
    state, record = next(steps_of(make_config(skip_zero_advantage_updates=True), grader=verdicts))
    assert adam_count(state) == 2
    assert record.metrics["zero_adv_frac"] == 0.5


# --- metrics ---


@pytest.mark.slow
def test_metrics_hold_every_column_that_applies(steps_of):
    kl, formats = {"kl_loss", "kl_k1", "kl_k3"}, {"format_reward_avg"}
    special = {"groups_carried", "safeguard_weight", "logp_gap"}  # of dynamic sampling, of safeguards
    absent = {
        "baseline": kl | formats | {"policy_ratio"},
        "clipped": kl | formats,
        "kl": formats,
        "format": kl,
    }
    for variant, missing in absent.items():
        metrics = next(steps_of(make_config(variant=variant)))[1].metrics
        rewards = {"reward_correct"} | ({"reward_format"} if variant == "format" else set())
        assert set(metrics) - set(METRIC_COLUMNS) == rewards
        found = {name for name in METRIC_COLUMNS if metrics.get(name) is not None}
        assert found - {"clip_frac"} == set(METRIC_COLUMNS) - {"eval_acc", "clip_frac"} - special - missing, variant
        assert ("clip_frac" in found) == (variant != "baseline")
        assert all(np.isfinite(metrics[name]) for name in found)


def test_metrics_summarise_the_samples(steps_of):
    record = next(steps_of(make_config()))[1]
    metrics, samples = record.metrics, record.samples
    # Every other answer is right: mean 1/2; std of 1 0 1 0 1 0 1 0 over 7: sqrt(8 / 4 / 7) = 0.5345.
    assert (metrics["reward_avg"], metrics["correct_avg"]) == (0.5, 0.5)
    assert metrics["reward_std"] == pytest.approx(0.534522, abs=1e-6)
    # A group of 1 0 1 0 has std sqrt(1/3) over 3, so advantages +-0.5 / 0.57745 = +-0.865875.
    assert [sample.advantage for sample in samples] == pytest.approx([0.865875, -0.865875] * 4, abs=1e-5)
    assert metrics["adv_avg"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["adv_std"] == pytest.approx(0.865875 * np.sqrt(8 / 7), abs=1e-5)
    assert metrics["zero_adv_frac"] == 0.0
    assert metrics["avg_response_len"] == np.mean([sample.length for sample in samples])
    assert metrics["truncated_frac"] == np.mean([sample.truncated for sample in samples])
    assert (metrics["step"], metrics["total_steps"], metrics["lr"]) == (1, 2, 1e-2)
    assert 0 < metrics["entropy_avg"] < np.log(300)


def test_metrics_are_those_of_the_last_inner_epoch(steps_of, spy):
    updates, rollouts = spy("update_in_place"), spy("make_rollouts")
    record = next(steps_of(make_config(inner_epochs=2)))[1]
    assert record.metrics["loss"] == float(updates[1][1][2]["loss"]) != float(updates[0][1][2]["loss"])
    assert record.metrics["avg_response_len"] == rollouts[1][1].answer_lens.mean()
    assert [s.length for s in record.samples] == rollouts[1][1].answer_lens.tolist()


# --- KL and format ---


def test_the_reference_of_the_kl_term_is_the_starting_model(steps_of, spy, tiny_policy):
    # Field report b34: at the first update of a run the policy is the reference, so the term is 0.
    scores, updates = spy("score"), spy("update_in_place")
    config = make_config(variant="kl", inner_epochs=1, kl_coeff=0.5)
    records = [record for _, record in steps_of(config)]
    assert all(args[1] is tiny_policy.params for args, _ in scores)
    assert records[0].metrics["kl_loss"] == pytest.approx(0.0, abs=1e-5)
    assert records[0].metrics["kl_k1"] == pytest.approx(0.0, abs=1e-6)
    # Step 2 recomputed with a full forward pass of both models. The term is 0.5 * mean_i sum_t (new - ref).
    (_, _, params, _, _, batch, *_), _ = updates[1]
    tokens = whole_sequences(batch)
    score = jax.jit(lambda params: token_logps(tiny_policy.apply(params, tokens), tokens))
    new, ref = (np.asarray(score(p)) for p in (params, tiny_policy.params))
    at = batch.prompt_lens[batch.prompt_of][:, None] - 1 + np.arange(batch.mask.shape[1])
    gaps = np.where(batch.mask > 0, np.take_along_axis(new - ref, at, axis=1), 0.0).sum(axis=1)
    assert abs(gaps).max() > 0.1
    assert records[1].metrics["kl_loss"] == pytest.approx(0.5 * gaps.mean(), abs=1e-4)
    assert records[1].metrics["loss"] == pytest.approx(
        records[1].metrics["pg_loss"] + records[1].metrics["kl_loss"], abs=1e-5
    )


def test_the_format_reward_is_weighted_and_recorded(steps_of, tiny_policy, monkeypatch):
    opening, closing = tiny_policy.tokenizer.think_ids
    sampled = draw.make_rollouts

    def with_thoughts(*args, **kwargs):
        rollouts = sampled(*args, **kwargs)
        answers = np.full_like(rollouts.answers, 9)
        answers[0, :3] = (opening, 9, closing)
        answers[1, :3] = (closing, 9, opening)
        answers[2, :2] = (opening, closing)
        answers[3, 0] = opening
        return dataclasses.replace(rollouts, answers=answers, answer_lens=np.full(8, 8))

    monkeypatch.setattr(draw, "make_rollouts", with_thoughts)

    def record(**changes):
        config = make_config(variant="format", format_reward_weight=0.5, **changes)
        return next(steps_of(config, grader=Verdicts(True, False, False, False)))[1]

    plain = record()
    assert [sample.rewards["format"] for sample in plain.samples] == [1, 0, 1, 0, 0, 0, 0, 0]
    assert [sample.rewards["correct"] for sample in plain.samples] == [1, 0, 0, 0, 1, 0, 0, 0]
    assert [sample.reward for sample in plain.samples] == [1.5, 0, 0.5, 0, 1, 0, 0, 0]
    assert plain.metrics["format_reward_avg"] == 0.25
    assert plain.metrics["correct_avg"] == 0.25
    assert plain.metrics["reward_avg"] == 3 / 8
    conditional = record(conditional_reward=True)
    assert [sample.reward for sample in conditional.samples] == [1.5, 0, 0, 0, 1, 0, 0, 0]


# --- numbers that are not finite ---


def test_an_update_that_is_not_finite_stops_with_the_last_good_state(steps_of):
    # A learning rate of 1e38 makes the weights huge in step 1; the gradient of step 2 overflows.
    steps = steps_of(make_config(inner_epochs=1, lr=1e38, steps=5))
    state, _ = next(steps)
    params = jax.tree.map(np.array, state.params)  # step 2 overwrites them
    message = (
        r"^(loss|grad_norm) became (nan|inf) at step 2; that update was not made and training stopped\. Start again"
    )
    with pytest.raises(RunError, match=message) as caught:
        next(steps)
    good = caught.value.state
    assert (good.step, adam_count(good)) == (1, 1)
    assert_same_arrays(good.params, params)


def test_weights_that_are_not_finite_are_named_by_the_loss(steps_of, tiny_policy):
    broken = tiny_policy.params | {"norm": {"scale": tiny_policy.params["norm"]["scale"] * np.nan}}
    policy = dataclasses.replace(tiny_policy, params=broken)
    with pytest.raises(RunError, match="^loss became nan at step 1;"):
        next(steps_of(make_config(), policy=policy))


# --- failures in the middle of a step ---


@pytest.fixture
def update_fails(monkeypatch):
    """Makes the n-th update fail: `update_fails(error, n)`; None: its loss is NaN. Two updates a step: the 4th is the second of step 2."""

    def make(error, failing=4):
        real, calls = module.update_in_place, itertools.count(1)

        def update(config, optimizer, params, opt_state, loss, batch, *rest):
            if next(calls) == failing:
                if error is not None:
                    raise error
                batch = dataclasses.replace(batch, advantages=batch.advantages * np.nan)
            return real(config, optimizer, params, opt_state, loss, batch, *rest)

        monkeypatch.setattr(module, "update_in_place", update)

    return make


@pytest.mark.parametrize("changes", [{}, {"inner_epochs": 1, "rollout_reuse": "pool", "minibatches": 2}])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_a_failure_in_the_middle_of_a_step_keeps_the_state_before_it(steps_of, update_fails, changes, error):
    update_fails(error)
    steps = steps_of(make_config(**changes))
    state, _ = next(steps)
    before = jax.tree.map(np.array, (state.params, state.opt_state))
    with pytest.raises(RunError if error is None else KeyboardInterrupt) as caught:
        next(steps)
    kept = caught.value.state
    assert (kept.step, kept.problems_used) == (1, 2)
    assert_same_arrays((kept.params, kept.opt_state), before)


def test_an_interrupt_inside_the_update_that_took_the_weights_leaves_no_state(steps_of, monkeypatch):
    def interrupted(config, optimizer, params, *rest):
        for array in jax.tree.leaves(params):
            array.delete()
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "update_in_place", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        next(steps_of(make_config(inner_epochs=1)))
    assert caught.value.state is None


def test_after_an_update_that_is_not_finite_the_next_ones_of_the_step_are_not_made(steps_of, update_fails, monkeypatch):
    """So the state is as before the step, even if it is too large to copy."""
    monkeypatch.setattr(module, "BACKUP_BYTES", 0)
    update_fails(None, failing=3)
    steps = steps_of(make_config())
    state, _ = next(steps)
    before = jax.tree.map(np.array, (state.params, state.opt_state))
    with pytest.raises(RunError, match="^loss became nan at step 2;") as caught:
        next(steps)
    assert_same_arrays((caught.value.state.params, caught.value.state.opt_state), before)


def test_a_state_too_large_to_copy_is_none(steps_of, update_fails, monkeypatch):
    monkeypatch.setattr(module, "BACKUP_BYTES", 0)
    update_fails(None)
    steps = steps_of(make_config())
    state, _ = next(steps)
    with pytest.raises(RunError) as caught:
        next(steps)
    assert caught.value.state is None
    assert any(array.is_deleted() for array in jax.tree.leaves((state.params, state.opt_state)))  # cannot be saved


# --- shapes of the batches ---


@pytest.mark.parametrize(
    ("lengths", "budget", "shapes"),
    [
        ([40, 41, 44], 48, [(48, 48)]),  # a short budget is not halved
        ([40], 512, [(48, 256), (48, 512)]),
        ([40] * 99 + [90], 512, [(48, 512), (96, 512)]),  # 90 % of the prompts fit in half the width
        ([40] * 80 + [90] * 20, 512, [(96, 256), (96, 512)]),  # 80 % do
        ([100] * 95 + [400] * 5, 1000, [(128, 1024), (448, 1024)]),
    ],
)
def test_a_run_has_two_shapes_at_most(lengths, budget, shapes):
    assert [tuple(shape) for shape in batch_shapes(lengths, budget)] == shapes


@pytest.mark.slow
def test_prompts_of_20_to_400_tokens_compile_every_program_twice_at_most(tiny_policy, every_other_grader):
    """As on MATH: most prompts are short, a few are long, and no two steps are alike."""
    config = dataclasses.replace(tiny_policy.config, max_position_embeddings=1024)
    policy = dataclasses.replace(tiny_policy, config=config)
    lengths = [20, 33, 47, 61, 75, 90, 104, 118, 132, 146, 160, 174, 185, 186, 187, 188, 189, 190, 191, 400]
    texts = ["1" * (length - 2) for length in lengths]  # " =" are two more tokens
    assert [len(policy.tokenizer.prompt_ids(f"{text} =")) for text in texts] == lengths
    problems = [Problem(text, "1") for text in texts]
    config = make_config("baseline", steps=10, num_rollouts=2, temperature=0.9)
    programs = (generate, update_in_place)
    before = [program._cache_size() for program in programs]
    for state, record in train(config, policy, problems, None, TEMPLATE, every_other_grader):
        assert np.isfinite(record.metrics["loss"])
    assert state.step == 10
    assert [program._cache_size() - count for program, count in zip(programs, before, strict=True)] == [2, 2]


@pytest.mark.slow
def test_moments_in_bfloat16(steps_of, tiny_policy, tmp_path):
    """A step and a checkpoint keep their dtype, and they move the weights almost as float32 moments do."""
    config, exact = make_config(moment_dtype="bfloat16", steps=1, inner_epochs=1), make_config(steps=1, inner_epochs=1)
    state, _ = next(steps_of(config))
    want, _ = next(steps_of(exact))
    adam = next(part for part in state.opt_state if isinstance(part, optax.ScaleByAdamState))
    assert {x.dtype for x in jax.tree.leaves((adam.mu, adam.nu))} == {jnp.dtype("bfloat16")}
    # At step 1 every weight moves by lr = 1e-2 in the direction of its gradient, whatever the moments' rounding.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), state.params, want.params)
    save_checkpoint(tmp_path / "checkpoints", tiny_policy, state)
    again = load_checkpoint(tmp_path / "checkpoints", tiny_policy, run_optimizer(config), "bfloat16")
    assert_same_arrays(again.opt_state, state.opt_state)
