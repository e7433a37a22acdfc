"""Loss and gradients do not depend on micro-batches, ranks, row order or padding: every term.

A small policy and critic read fixed features of each token, so that "the gradient" is that of real
shared parameters. Tolerance 1e-6 in float32, as an absolute difference of numbers of order one.
"""

import pytest
import torch

from lit_reason.functional import (
    aggregate,
    clipped_surrogate,
    constant_weights,
    kl_k1,
    kl_k2,
    kl_k3,
    logprobs_and_entropy,
    nll,
    prompt_weights,
    sequence_weights,
    token_weights,
    value_loss,
    zero_outside,
)

B, T, V, H = 8, 7, 6, 5
NAN = float("nan")
LENGTHS = [7, 3, 1, 0, 5, 2, 4, 6]

GIVEN = ["old", "advantages", "returns", "old_values"]  # of each token, known before the update

AGGREGATIONS = {
    "token": lambda mask, ids: token_weights(mask),
    "sequence": lambda mask, ids: sequence_weights(mask),
    "prompt": prompt_weights,
    "constant": lambda mask, ids: constant_weights(mask, 10),
}


def policy(batch, heads):
    return logprobs_and_entropy(batch["hidden"] @ heads["policy"], batch["ids"], 1.0, "grad")


def surrogate(batch, heads, **options):
    return clipped_surrogate(policy(batch, heads)[0], batch["old"], batch["advantages"], **options)


def value(batch, heads, *clip):
    return value_loss(batch["hidden"] @ heads["value"], batch["returns"], *clip)


TERMS = {
    "surrogate": lambda b, h: surrogate(b, h, clip_high=0.28),
    "dual_clip": lambda b, h: surrogate(b, h, dual_clip=2.0),
    "k1": lambda b, h: kl_k1(policy(b, h)[0], b["old"]),
    "k2": lambda b, h: kl_k2(policy(b, h)[0], b["old"]),
    "k3": lambda b, h: kl_k3(policy(b, h)[0], b["old"]),
    "nll": lambda b, h: nll(policy(b, h)[0]),
    "entropy": lambda b, h: -policy(b, h)[1],
    "value": value,
    "value_clip": lambda b, h: value(b, h, b["old_values"], 0.2),
}


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(3)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    old = -torch.rand(B, T, generator=g) - 1.0
    return {
        "mask": mask,
        "group_ids": torch.tensor([4, 4, 1, 1, 4, 9, 9, 9]),
        "hidden": torch.randn(B, T, H, generator=g),
        "ids": torch.randint(0, V, (B, T), generator=g),
        "old": old,
        "advantages": torch.randn(B, T, generator=g),
        "returns": torch.randn(B, T, generator=g),
        "old_values": torch.randn(B, T, generator=g),
    }


@pytest.fixture
def heads():
    g = torch.Generator().manual_seed(4)
    shapes = {"policy": (H, V), "value": (H,)}
    return {k: torch.randn(*s, generator=g).requires_grad_() for k, s in shapes.items()}


def step(batches, term, aggregation, heads, micro, poison=0.0):
    """One optimiser step's loss and gradients: `batches` are ranks, each split in micro-batches.

    What the batch says of masked tokens passes `zero_outside`; `poison` is added to their losses.
    """
    pairs = [AGGREGATIONS[aggregation](b["mask"], b["group_ids"]) for b in batches]
    count = sum(c for _, c in pairs)  # what the all-reduce yields
    used = heads["value" if term.startswith("value") else "policy"]
    total, grad = 0.0, torch.zeros_like(used)
    for b, (weights, _) in zip(batches, pairs, strict=True):
        for start in range(0, len(weights), micro):
            part = {k: v[start : start + micro] for k, v in b.items()}
            mask = part["mask"]
            clean = {k: zero_outside(part[k], mask) for k in GIVEN}
            loss = TERMS[term]({**part, **clean}, heads)
            loss = loss + torch.where(mask, 0.0, poison)
            out = aggregate(loss, weights[start : start + micro], count)
            total += out.item()
            grad += torch.autograd.grad(out, used)[0]
    return torch.tensor(total), grad


def same(a, b):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


def take(batch, rows):
    return {k: v[rows] for k, v in batch.items()}


every = pytest.mark.parametrize("aggregation", list(AGGREGATIONS))
terms = pytest.mark.parametrize("term", list(TERMS))


@every
@terms
def test_micro_batch_size(batch, heads, term, aggregation):
    whole = step([batch], term, aggregation, heads, B)
    assert whole[1].abs().max() > 1e-3
    for micro in range(1, B):
        same(step([batch], term, aggregation, heads, micro), whole)


@every
@terms
def test_row_permutation(batch, heads, term, aggregation):
    order = torch.randperm(B, generator=torch.Generator().manual_seed(0))
    whole = step([batch], term, aggregation, heads, B)
    same(step([take(batch, order)], term, aggregation, heads, 3), whole)


@every
@terms
def test_ranks(batch, heads, term, aggregation):
    """Rank sums equal one process; groups stay whole on a rank, as a rollout deals them out."""
    whole = step([batch], term, aggregation, heads, B)
    ranks = [take(batch, [0, 1, 4]), take(batch, [2, 3, 5, 6, 7])]
    same(step(ranks, term, aggregation, heads, 2), whole)
    empty = take(batch, [3])  # a rank whose only row is fully masked
    rest = take(batch, [0, 1, 2, 4, 5, 6, 7])
    same(step([empty, rest], term, aggregation, heads, 2), whole)


@every
@terms
@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 4), (2, 2)])
def test_padding(batch, heads, term, aggregation, left, right):
    """Padding holds arbitrary ids and features, which a network reads; all else in it is nan.

    `zero_outside` takes the nan out of what is given, and `aggregate` ignores it in the losses.
    """

    def pad(name, x):
        fill = {"mask": False, "ids": 1, "hidden": 7.7}.get(name, NAN)
        columns = [x.new_full((B, n, *x.shape[2:]), fill) for n in (left, right)]
        return torch.cat([columns[0], x, columns[1]], 1)

    padded = {k: v if k == "group_ids" else pad(k, v) for k, v in batch.items()}
    assert padded["old"].isnan().any()
    whole = step([batch], term, aggregation, heads, B)
    same(step([padded], term, aggregation, heads, B, NAN), whole)
    same(step([padded], term, aggregation, heads, 3, NAN), whole)


@every
def test_wrong_weighting_is_noticed(batch, heads, aggregation):
    """The check can fail: local counts per micro-batch, the usual mistake, change the result."""
    whole, _ = step([batch], "nll", aggregation, heads, B)
    naive = 0.0
    for start in (0, 4):
        part = take(batch, slice(start, start + 4))
        pair = AGGREGATIONS[aggregation](part["mask"], part["group_ids"])
        naive += aggregate(TERMS["nll"](part, heads), *pair).item() / 2
    assert abs(naive - whole.item()) > 1e-3
