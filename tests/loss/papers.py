"""The papers' objectives, transcribed one by one into float64 loops.

Nothing here knows grpojax. A step is a list of groups, a group the answers to one prompt, an answer the log-probs of
its tokens. Each recipe returns what its paper maximises, averaged over the prompts q, with the papers' letters:

  A  advantage   r  ratio of a token   s  ratio of a sequence   G  answers per prompt   |o|  tokens of an answer

sg[x], a value that no gradient passes, is computed from `held`, a copy of the new log-probs that `gradient` does not
move. The papers divide by a std and seldom say whether over G or G - 1, or how a group without spread stays finite;
here it is the std over G - 1, plus 1e-4.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

EPS = 1e-4


@dataclass(frozen=True)
class Answer:
    """One answer: natural logs of its tokens' probabilities under four policies, and its rewards."""

    new: tuple[float, ...]  # the policy being trained
    old: tuple[float, ...]  # the trainer's, of the weights that sampled it
    ref: tuple[float, ...]  # the reference
    sampler: tuple[float, ...]  # what the sampler itself recorded
    rewards: tuple[float, ...]  # one, or one per reward function
    held: tuple[float, ...]  # equal to new


Step = list[list[Answer]]


# --- advantages ---


def normalised(rewards: list[float]) -> list[float]:
    """arXiv:2402.03300 section 4.1.2: (r - mean(r)) / std(r)."""
    return [x / (_std(rewards) + EPS) for x in centred(rewards)]


def centred(rewards: list[float]) -> list[float]:
    """arXiv:2503.20783 section 3.2: r - mean(r)."""
    return [r - _mean(rewards) for r in rewards]


def decoupled(groups: list[list[tuple[float, ...]]], weights: list[float]) -> list[list[float]]:
    """GDPO, arXiv:2601.05242: each reward normalised in its group (eq. 4), the weighted sum of them (eq. 7), and the
    sums normalised over the batch (eq. 6). `groups[i][j][n]` is reward n of answer j to prompt i.
    """
    sums = []
    for group in groups:
        total = [0.0] * len(group)
        for n, weight in enumerate(weights):
            for j, advantage in enumerate(normalised([rewards[n] for rewards in group])):
                total[j] += weight * advantage
        sums.append(total)
    batch = [x for total in sums for x in total]
    return [[(x - _mean(batch)) / (_std(batch) + EPS) for x in total] for total in sums]


# --- recipes ---


def grpo(step: Step, epsilon: float, beta: float) -> float:
    """GRPO, arXiv:2402.03300 eq. 3, its KL estimate eq. 4."""
    total = 0.0
    for group in step:
        for answer, A in zip(group, normalised([a.rewards[0] for a in group]), strict=True):
            tokens = 0.0
            for new, old, ref in zip(answer.new, answer.old, answer.ref, strict=True):
                r = math.exp(new - old)
                kl = math.exp(ref - new) - (ref - new) - 1
                tokens += min(r * A, _clip(r, 1 - epsilon, 1 + epsilon) * A) - beta * kl
            total += tokens / len(answer.new) / len(group)
    return total / len(step)


def dapo(step: Step, epsilon_low: float, epsilon_high: float) -> float:
    """DAPO, arXiv:2503.14476 eq. 8 and 12, A by eq. 9. The paper writes the sum over the G answers to one q over all
    their tokens, and E over q: for one prompt that is this. Of several prompts this divides by the tokens of all of
    them, as verl does for the authors' recipe (loss_agg_mode: token-mean); `dapo_by_prompt` is the other reading.
    """
    total, count = 0.0, 0
    for group in step:
        for answer, A in zip(group, normalised([a.rewards[0] for a in group]), strict=True):
            for new, old in zip(answer.new, answer.old, strict=True):
                r = math.exp(new - old)
                total += min(r * A, _clip(r, 1 - epsilon_low, 1 + epsilon_high) * A)
                count += 1
    return total / count


def dapo_by_prompt(step: Step, epsilon_low: float, epsilon_high: float) -> float:
    """arXiv:2503.14476 eq. 8 to the letter: the mean over q of the mean over the tokens of its group."""
    return _mean([dapo([group], epsilon_low, epsilon_high) for group in step])


def dr_grpo(step: Step, epsilon: float, budget: int) -> float:
    """Dr. GRPO, arXiv:2503.20783 section 3.2: GRPO without 1/|o| and without std. The sum over tokens is divided by a
    constant, the generation budget (listing 1; generate_max_length in the authors' code).
    """
    total = 0.0
    for group in step:
        for answer, A in zip(group, centred([a.rewards[0] for a in group]), strict=True):
            for new, old in zip(answer.new, answer.old, strict=True):
                r = math.exp(new - old)
                total += min(r * A, _clip(r, 1 - epsilon, 1 + epsilon) * A) / budget / len(group)
    return total / len(step)


def gspo(step: Step, epsilon_left: float, epsilon_right: float) -> float:
    """GSPO, arXiv:2507.18071 eq. 5, the ratio eq. 7."""
    total = 0.0
    for group in step:
        for answer, A in zip(group, normalised([a.rewards[0] for a in group]), strict=True):
            s = math.exp(sum(new - old for new, old in zip(answer.new, answer.old, strict=True)) / len(answer.new))
            total += min(s * A, _clip(s, 1 - epsilon_left, 1 + epsilon_right) * A) / len(group)
    return total / len(step)


def gspo_token(step: Step, epsilon_left: float, epsilon_right: float) -> float:
    """GSPO-token, arXiv:2507.18071 eq. 13, the ratio eq. 14: s_t = sg[s] pi_t / sg[pi_t]."""
    total = 0.0
    for group in step:
        for answer, A in zip(group, normalised([a.rewards[0] for a in group]), strict=True):
            s = math.exp(sum(x - old for x, old in zip(answer.held, answer.old, strict=True)) / len(answer.new))
            for new, held in zip(answer.new, answer.held, strict=True):
                s_t = s * math.exp(new - held)
                surrogate = min(s_t * A, _clip(s_t, 1 - epsilon_left, 1 + epsilon_right) * A)
                total += surrogate / len(answer.new) / len(group)
    return total / len(step)


def cispo(step: Step, bound: float) -> float:
    """CISPO, arXiv:2506.13585 eq. 4 and 5: sg[min(r, bound)] A log pi, divided as in DAPO. The paper bounds r above
    only, at 1 + eps without a number; arXiv:2510.13786 (eq. 4) has the bound itself.
    """
    total, count = 0.0, 0
    for group in step:
        for answer, A in zip(group, normalised([a.rewards[0] for a in group]), strict=True):
            for new, old, held in zip(answer.new, answer.old, answer.held, strict=True):
                total += min(math.exp(held - old), bound) * A * new
                count += 1
    return total / count


def sapo(step: Step, tau_pos: float, tau_neg: float) -> float:
    """SAPO, arXiv:2511.20347: f(r) A in GRPO's averages, f(x) = sigmoid(tau (x - 1)) 4 / tau, tau_neg unless A > 0."""
    total = 0.0
    for group in step:
        for answer, A in zip(group, normalised([a.rewards[0] for a in group]), strict=True):
            tau = tau_pos if A > 0 else tau_neg
            for new, old in zip(answer.new, answer.old, strict=True):
                gate = 1 / (1 + math.exp(-tau * (math.exp(new - old) - 1))) * 4 / tau
                total += gate * A / len(answer.new) / len(group)
    return total / len(step)


def olmo3(step: Step, epsilon_low: float, epsilon_high: float, rho: float) -> float:
    """Olmo 3, arXiv:2512.13961 eq. 1 and 2, over the tokens of the whole batch, as the text beside eq. 1 has it."""
    total, count = 0.0, 0
    for group in step:
        for answer, A in zip(group, centred([a.rewards[0] for a in group]), strict=True):
            for new, old, sampler in zip(answer.new, answer.old, answer.sampler, strict=True):
                r = math.exp(new - old)
                surrogate = min(r * A, _clip(r, 1 - epsilon_low, 1 + epsilon_high) * A)
                total += min(math.exp(old - sampler), rho) * surrogate
                count += 1
    return total / count


def deepseek_v32(step: Step, epsilon: float, beta: float, delta: float, scale: Sequence[float]) -> float:
    """DeepSeek-V3.2, arXiv:2512.02556 section 3.1: GRPO with A = R - mean(R), its KL estimate times r (eq. 7), and the
    surrogate (not the KL) of an answer multiplied by M (eq. 8 and 9): 0 where A < 0 and the mean of log pi_sampler -
    log pi is above delta, pi_sampler being what the sampler returned. scale[i] is what prompt i's domain makes of beta.
    """
    total = 0.0
    for i, group in enumerate(step):
        for answer, A in zip(group, centred([a.rewards[0] for a in group]), strict=True):
            drift = sum(p - x for p, x in zip(answer.sampler, answer.held, strict=True)) / len(answer.new)
            M = 0.0 if A < 0 and drift > delta else 1.0
            tokens = 0.0
            for new, old, ref in zip(answer.new, answer.old, answer.ref, strict=True):
                r = math.exp(new - old)
                kl = r * (math.exp(ref - new) - (ref - new) - 1)
                tokens += min(r * A, _clip(r, 1 - epsilon, 1 + epsilon) * A) * M - beta * scale[i] * kl
            total += tokens / len(answer.new) / len(group)
    return total / len(step)


def gdpo(step: Step, epsilon: float, weights: list[float]) -> float:
    """GDPO, arXiv:2601.05242: A by eq. 4 to 7 in the objective of eq. 3, which omits the KL term."""
    total = 0.0
    advantages = decoupled([[a.rewards for a in group] for group in step], weights)
    for group, of_group in zip(step, advantages, strict=True):
        for answer, A in zip(group, of_group, strict=True):
            for new, old in zip(answer.new, answer.old, strict=True):
                r = math.exp(new - old)
                surrogate = min(r * A, _clip(r, 1 - epsilon, 1 + epsilon) * A)
                total += surrogate / len(answer.new) / len(group)
    return total / len(step)


# --- gradients ---


def gradient(objective: Callable[[Step], float], step: Step, width: float = 1e-5) -> list[list[list[float]]]:
    """d objective / d log-prob of every token, by central differences: [prompt][answer][token].

    The error is width^2 / 6 times the third derivative, 1e-10 of it, plus 1e-16 / width of rounding.
    """
    out = []
    for i, group in enumerate(step):
        out.append([])
        for j, answer in enumerate(group):
            out[i].append([])
            for t in range(len(answer.new)):
                up, down = (objective(_moved(step, i, j, t, by)) for by in (width, -width))
                out[i][j].append((up - down) / (2 * width))
    return out


def _moved(step: Step, i: int, j: int, t: int, by: float) -> Step:
    """The step with one new log-prob moved, and `held` as it was."""
    answer = step[i][j]
    new = answer.new[:t] + (answer.new[t] + by,) + answer.new[t + 1 :]
    group = step[i][:j] + [replace(answer, new=new)] + step[i][j + 1 :]
    return step[:i] + [group] + step[i + 1 :]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _std(values: list[float]) -> float:
    return math.sqrt(sum((x - _mean(values)) ** 2 for x in values) / (len(values) - 1))


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)
