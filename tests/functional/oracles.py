"""Slow, obvious float64 versions of the functional core, and random inputs to compare them on.

No masks, no vectorisation: each row is compressed to the list of its valid entries first, and every
formula is written as in the paper, with Python loops.
"""

import math
import statistics
from itertools import groupby

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


def variance(xs, ddof=0):
    mean = math.fsum(xs) / len(xs)
    return math.fsum((x - mean) ** 2 for x in xs) / max(len(xs) - ddof, 1)


def whiten(x, mask, shift_mean=True, ddof=0, eps=1e-8):
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


def surrogate(ratio, advantage, low, high, dual=None):
    """(loss, which bound holds the gradient back or None)."""
    clipped = min(max(ratio, 1 - low), 1 + high)
    bound = None
    if advantage > 0 and ratio > 1 + high:
        bound = "high"
    if advantage < 0 and ratio < 1 - low:
        bound = "low"
    loss = -min(ratio * advantage, clipped * advantage)
    if dual is not None and advantage < 0 and ratio > dual:
        return -dual * advantage, "dual"
    return loss, bound


def value_loss(value, target, old=None, clip=None):
    if clip is None:
        return 0.5 * (value - target) ** 2
    clipped = min(max(value, old - clip), old + clip)
    return 0.5 * max((value - target) ** 2, (clipped - target) ** 2)


# ---- aggregation --------------------------------------------------------------------------------


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


def response_mask(ids, eos_ids, lengths):
    mask, truncated = torch.zeros(ids.shape, dtype=torch.bool), []
    for i, row in enumerate(ids.tolist()):
        generated = row[: lengths[i]]
        ends = [t for t, token in enumerate(generated) if token in eos_ids]
        mask[i, : ends[0] + 1 if ends else len(generated)] = True
        truncated.append(not ends)
    return mask, torch.tensor(truncated)


def logprob_and_entropy(logits, token, temperature):
    """One position, by the definition."""
    z = [x / temperature for x in logits]
    top = max(z)
    total = math.fsum(math.exp(x - top) for x in z)
    logp = [x - top - math.log(total) for x in z]
    return logp[token], -math.fsum(math.exp(x) * x for x in logp if x > -math.inf)


def majority(answers, gold):
    """Expected credit over every way of breaking the tie."""
    best = max((answers.count(a) for a in answers), default=0)
    winners = {a for a in answers if answers.count(a) == best}
    return (gold in winners) / len(winners) if winners else 0.0
