"""Slow, obvious float64 versions of the functional core, and random inputs to compare them on.

No masks, no vectorisation: each row is compressed to the list of its valid entries first, and every
formula is written as in the paper, with Python loops. One oracle for each public function, under
its name; those of elementwise functions take the numbers of one token.
"""

import math
import statistics
from itertools import combinations, groupby, product

import torch
from hypothesis import settings
from hypothesis import strategies as st

PROPERTY = settings(deadline=None, max_examples=40, derandomize=True, database=None)


# ---- random inputs ------------------------------------------------------------------------------


@st.composite
def masks(draw, max_rows=5, max_steps=9):
    """A bool mask (B, T): right, left or no padding, gaps, empty rows."""
    rows, steps = draw(st.integers(1, max_rows)), draw(st.integers(1, max_steps))
    out = torch.zeros(rows, steps, dtype=torch.bool)
    for row in range(rows):
        kind = draw(st.sampled_from(["right", "left", "gaps", "full", "empty"]))
        length = draw(st.integers(1, steps))
        if kind == "gaps":
            out[row] = torch.tensor(draw(st.lists(st.booleans(), min_size=steps, max_size=steps)))
        elif kind != "empty":
            start = {"right": 0, "left": steps - length, "full": 0}[kind]
            out[row, start : steps if kind == "full" else start + length] = True
    return out


@st.composite
def generators(draw):
    return torch.Generator().manual_seed(draw(st.integers(0, 2**16)))


def noise(generator, *shape, scale=1.0):
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def poison(x, mask, value=float("nan")):
    """Put `value` wherever nothing valid stands."""
    return torch.where(mask, x, torch.full_like(x, value))


def valid(x, mask):
    """Valid entries of a flat or 2-d tensor as a Python list."""
    pairs = zip(x.flatten().tolist(), mask.flatten().tolist(), strict=True)
    return [v for v, m in pairs if m]


def rows_of(x, mask):
    return [valid(a, b) for a, b in zip(x, mask, strict=True)]


def scatter(rows, mask):
    """The inverse of `rows_of`, with zeros outside the mask."""
    out = torch.zeros(mask.shape, dtype=torch.float64)
    for i, row in enumerate(rows):
        out[i, mask[i]] = torch.tensor(row, dtype=torch.float64)
    return out


# ---- masked statistics --------------------------------------------------------------------------


def zero_outside(x, mask):
    return scatter(rows_of(x, mask), mask)


def masked_sum(x, mask):
    return [math.fsum(row) for row in rows_of(x, mask)]


def masked_mean(x, mask):
    return [math.fsum(row) / len(row) if row else 0.0 for row in rows_of(x, mask)]


def variance(xs, ddof=0):
    mean = math.fsum(xs) / len(xs)
    return math.fsum((x - mean) ** 2 for x in xs) / max(len(xs) - ddof, 1)


def masked_whiten(x, mask, shift_mean=True, ddof=0, eps=1e-8):
    xs = valid(x, mask)
    if len(xs) < 2 or max(xs) == min(xs):
        return torch.zeros(mask.shape, dtype=torch.float64)
    mean = math.fsum(xs) / len(xs) if shift_mean else 0.0
    scale = math.sqrt(variance(xs, ddof) + eps)
    return scatter([[(v - mean) / scale for v in row] for row in rows_of(x, mask)], mask)


def explained_variance(values, returns, mask):
    vs, rs = valid(values, mask), valid(returns, mask)
    if not rs or max(rs) == min(rs):
        return 0.0
    return 1 - variance([r - v for r, v in zip(rs, vs, strict=True)]) / variance(rs)


# ---- advantages ---------------------------------------------------------------------------------


def gae_row(rewards, values, gamma, lam, after):
    """The double sum, O(T^2): A_t = sum_l (gamma lam)^l delta_{t+l}."""
    steps = len(rewards)
    nexts = [*values[1:], after]
    delta = [rewards[t] + gamma * nexts[t] - values[t] for t in range(steps)]
    return [
        math.fsum((gamma * lam) ** k * delta[t + k] for k in range(steps - t)) for t in range(steps)
    ]


def gae(rewards, values, mask, gamma=1.0, lam=1.0, bootstrap=None):
    lams = lam.tolist() if isinstance(lam, torch.Tensor) else [lam] * len(mask)
    afters = [0.0] * len(mask) if bootstrap is None else bootstrap.tolist()
    both = zip(rows_of(rewards, mask), rows_of(values, mask), lams, afters, strict=True)
    return scatter([gae_row(r, v, gamma, k, a) for r, v, k, a in both], mask)


def lambda_return(rewards, values, lam, t):
    """(1 - lam) sum_l lam^(l-1) G_{t:t+l} + lam^(T-t-1) G_{t:T}, gamma = 1."""
    steps = len(rewards)

    def n_step(h):
        tail = values[t + h] if t + h < steps else 0.0
        return math.fsum(rewards[t : t + h]) + tail

    ahead = math.fsum(lam ** (k - 1) * n_step(k) for k in range(1, steps - t))
    return (1 - lam) * ahead + lam ** (steps - t - 1) * n_step(steps - t)


def length_adaptive_lambda(length, alpha, lambda_min=0.0):
    return lambda_min if length == 0 else max(1 - 1 / (alpha * length), lambda_min)


def kl_penalised_rewards(rewards, logprobs, ref, mask, coef):
    rows = zip(*(rows_of(x, mask) for x in (rewards, logprobs, ref)), strict=True)
    return scatter(
        [[r - coef * (p - q) for r, p, q in zip(*row, strict=True)] for row in rows], mask
    )


def outcome_to_tokens(rewards, mask):
    lengths = mask.sum(1).tolist()
    return scatter(
        [([0.0] * (n - 1) + [r])[: n or 0] for r, n in zip(rewards.tolist(), lengths, strict=True)],
        mask,
    )


def normalise(rewards, scale_by_std=True, ddof=1, eps=1e-6):
    """One group."""
    if len(rewards) < 2 or max(rewards) - min(rewards) <= 1e-6:
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    scale = math.sqrt(variance(rewards, ddof)) + eps if scale_by_std else 1.0
    return [(r - mean) / scale for r in rewards]


def group_relative(rewards, group_ids, **options):
    rewards, ids = rewards.tolist(), group_ids.tolist()
    out = [0.0] * len(ids)
    order = sorted(range(len(ids)), key=ids.__getitem__)
    for _, members in groupby(order, key=ids.__getitem__):
        where = list(members)
        scaled = normalise([float(rewards[i]) for i in where], **options)
        for i, a in zip(where, scaled, strict=True):
            out[i] = a
    return torch.tensor(out, dtype=torch.float64)


def group_relative_process(step_rewards, step_mask, mask, group_ids, **options):
    steps = [
        (i, j, step_rewards[i, j].item())
        for i in range(len(mask))
        for j in range(mask.shape[1])
        if step_mask[i, j]
    ]
    if not steps:
        return torch.zeros(mask.shape, dtype=torch.float64)
    rewards = torch.tensor([r for _, _, r in steps], dtype=torch.float64)
    ids = torch.tensor([int(group_ids[i]) for i, _, _ in steps])
    scaled = group_relative(rewards, ids, **options).tolist()
    out = torch.zeros(mask.shape, dtype=torch.float64)
    for i in range(len(mask)):
        for t in range(mask.shape[1]):
            ahead = [a for a, (k, j, _) in zip(scaled, steps, strict=True) if k == i and j >= t]
            out[i, t] = math.fsum(ahead) if mask[i, t] else 0.0
    return out


# ---- losses of one token ------------------------------------------------------------------------


def clipped_surrogate(ratio, advantage, low, high, dual=None):
    clipped = min(max(ratio, 1 - low), 1 + high)
    objective = min(ratio * advantage, clipped * advantage)
    if dual is not None and advantage < 0:
        objective = max(objective, dual * advantage)
    return -objective


def clip_masks(ratio, advantage, low, high, dual=None):
    """Which bound holds the gradient back, or None."""
    if advantage > 0 and ratio > 1 + high:
        return "high"
    if advantage < 0 and ratio < 1 - low:
        return "low"
    if advantage < 0 and dual is not None and ratio > dual:
        return "dual"
    return None


def kl_k1(logprob, ref):
    return logprob - ref


def kl_k2(logprob, ref):
    return (logprob - ref) ** 2 / 2


def importance_weights(logprobs, sampled, cap, level, cut):
    """Of the tokens of one response."""
    ratios = [math.exp(a - b) for a, b in zip(logprobs, sampled, strict=True)]
    if level == "sequence":
        ratios = [math.prod(ratios)] * len(ratios)
    return [min(r, cap) if cut == "truncate" else (r if r <= cap else 0.0) for r in ratios]


def kl_k3(logprob, ref):
    return math.exp(ref - logprob) - (ref - logprob) - 1


def nll(logprob):
    return -logprob


def value_loss(value, target, old=None, clip=None):
    if clip is None:
        return 0.5 * (value - target) ** 2
    clipped = min(max(value, old - clip), old + clip)
    return 0.5 * max((value - target) ** 2, (clipped - target) ** 2)


# ---- aggregation --------------------------------------------------------------------------------


def aggregate(loss, weights, count):
    pairs = zip(loss.flatten().tolist(), weights.flatten().tolist(), strict=True)
    return math.fsum(w * x for x, w in pairs if w != 0) / count if count else 0.0


def token_weights(mask):
    return [1.0 if m else 0.0 for row in mask.tolist() for m in row], int(mask.sum())


def sequence_weights(mask):
    weights = [1 / sum(row) if m else 0.0 for row in mask.tolist() for m in row]
    return weights, sum(any(row) for row in mask.tolist())


def prompt_weights(mask, group_ids):
    rows, ids = mask.tolist(), group_ids.tolist()
    tokens = {g: sum(sum(row) for row, k in zip(rows, ids, strict=True) if k == g) for g in ids}
    weights = [1 / tokens[g] if m else 0.0 for row, g in zip(rows, ids, strict=True) for m in row]
    return weights, sum(n > 0 for n in tokens.values())


def constant_weights(mask, length):
    weights = [1 / length if m else 0.0 for row in mask.tolist() for m in row]
    return weights, sum(any(row) for row in mask.tolist())


def token_mean(loss, mask):
    xs = valid(loss, mask)
    return math.fsum(xs) / len(xs) if xs else 0.0


def sequence_mean(loss, mask):
    means = [statistics.fmean(row) for row in rows_of(loss, mask) if row]
    return statistics.fmean(means) if means else 0.0


def prompt_mean(loss, mask, group_ids):
    means = []
    for g in sorted(set(group_ids.tolist())):
        tokens = [
            x for row, k in zip(rows_of(loss, mask), group_ids, strict=True) if k == g for x in row
        ]
        means += [statistics.fmean(tokens)] if tokens else []
    return statistics.fmean(means) if means else 0.0


def constant_mean(loss, mask, length):
    sums = [math.fsum(row) / length for row in rows_of(loss, mask) if row]
    return statistics.fmean(sums) if sums else 0.0


# ---- tokens -------------------------------------------------------------------------------------


def position_ids(mask):
    """Of the real tokens; what stands elsewhere is free."""
    return [[sum(row[:t]) for t, m in enumerate(row) if m] for row in mask.tolist()]


def last_token(mask):
    """Column of the last token of each row; None in a row without one."""
    return [max((t for t, m in enumerate(row) if m), default=None) for row in mask.tolist()]


def relative_position(mask, parts):
    """For each row, the part that each of its tokens is in."""
    return [
        [math.floor(parts * i / sum(row)) for i in range(sum(row))] for row in mask.long().tolist()
    ]


def response_mask(ids, eos_ids, lengths):
    mask, truncated = torch.zeros(ids.shape, dtype=torch.bool), []
    for i, row in enumerate(ids.tolist()):
        generated = row[: lengths[i]]
        ends = [t for t, token in enumerate(generated) if token in eos_ids]
        mask[i, : ends[0] + 1 if ends else len(generated)] = True
        truncated.append(not ends)
    return mask, torch.tensor(truncated)


def logprobs_and_entropy(logits, token, temperature):
    """One position, by the definition."""
    z = [x / temperature for x in logits]
    top = max(z)
    total = math.fsum(math.exp(x - top) for x in z)
    logp = [x - top - math.log(total) for x in z]
    return logp[token], -math.fsum(math.exp(x) * x for x in logp if x > -math.inf)


def hidden_logprobs_and_entropy(hidden, weight, token, temperature):
    """One position; `weight` holds one row of the head for each token of the vocabulary."""
    logits = [math.fsum(h * w for h, w in zip(hidden, row, strict=True)) for row in weight]
    return logprobs_and_entropy(logits, token, temperature)


# ---- length rewards and evaluation --------------------------------------------------------------


def soft_overlong(length, limit, cache):
    """DAPO Eq. 13, case by case."""
    if length <= limit - cache:
        return 0.0
    return ((limit - cache) - length) / cache if length <= limit else -1.0


def kimi_length(lengths, correct):
    low, high = min(lengths), max(lengths)
    scores = [0.5 - (n - low) / (high - low) if high > low else 0.0 for n in lengths]
    return [s if right else min(0.0, s) for s, right in zip(scores, correct, strict=True)]


def mean_at_k(verdicts):
    return sum(verdicts) / len(verdicts)


def pass_at_k(verdicts, k):
    """Over every choice of k samples."""
    subsets = list(combinations(verdicts, k))
    return sum(any(s) for s in subsets) / len(subsets)


def majority_of_classes(classes, correct):
    """The mean over the classes tied for most frequent of the share of each that is right."""
    credits = []
    for ids, verdicts in zip(classes.tolist(), correct.tolist(), strict=True):
        members = {c: [v for i, v in zip(ids, verdicts, strict=True) if i == c] for c in ids}
        votes = {c: m for c, m in members.items() if c >= 0}
        most = max((len(m) for m in votes.values()), default=0)
        shares = [sum(m) / len(m) for m in votes.values() if len(m) == most]
        credits.append(sum(shares) / len(shares) if shares else 0.0)
    return torch.tensor(credits, dtype=torch.float64)


def bootstrap_interval(column, level):
    """The exact interval of a column of few rows: every one of the n^n resamples."""
    draws = product(column, repeat=len(column))
    means = sorted(math.fsum(draw) / len(column) for draw in draws)
    return tuple(means[round(end * (len(means) - 1))] for end in ((1 - level) / 2, (1 + level) / 2))


def majority_at_k(answers, gold):
    """Expected credit over every way of breaking the tie."""
    best = max((answers.count(a) for a in answers), default=0)
    winners = {a for a in answers if answers.count(a) == best}
    return (gold in winners) / len(winners) if winners else 0.0


# ---- what advantages are made of -----------------------------------------------------------------


def advantage_parts(rewards, values, mask, gamma, lam, after=None):
    """Row by row, the definition's sums of rewards and of differences of values."""
    parts = torch.zeros(2, *mask.shape, dtype=torch.float64)
    for i, row in enumerate(mask):
        where = row.nonzero().flatten().tolist()
        decay = gamma * float(lam[i] if isinstance(lam, torch.Tensor) else lam)
        end = 0.0 if after is None else float(after[i])
        v = [float(values[i, t]) for t in where] + [end]
        for k, t in enumerate(where):
            for j in range(k, len(where)):
                weight = decay ** (j - k)
                parts[0, i, t] += weight * float(rewards[i, where[j]])
                parts[1, i, t] += weight * (gamma * v[j + 1] - v[j])
    return parts[0], parts[1]


def reward_share(from_rewards, from_values, mask):
    rewards = math.fsum(abs(x) for x in valid(from_rewards, mask))
    values = math.fsum(abs(x) for x in valid(from_values, mask))
    return rewards / (rewards + values) if rewards + values > 0 else 0.0


def effective_horizon(length, lam, gamma):
    """The weights summed one by one, never more of the sum than there are tokens."""
    decay = gamma * lam
    return length if decay == 1 else min(length, 1 / (1 - decay))
