"""Masked sums, means, whitening and explained variance."""

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, generators, masks, noise, poison

from lit_reason.functional import (
    explained_variance,
    masked_mean,
    masked_sum,
    masked_whiten,
    zero_outside,
)

BAD = [float("nan"), float("inf"), -float("inf")]


@PROPERTY
@given(masks(), generators(), st.sampled_from(BAD))
def test_sum_and_mean_equal_the_loops(mask, generator, bad):
    x = noise(generator, *mask.shape)
    dirty = poison(x, mask, bad)
    total, mean = oracles.masked_sum(x, mask), oracles.masked_mean(x, mask)
    assert masked_sum(dirty, mask, 1).tolist() == pytest.approx(total, abs=1e-12)
    assert masked_mean(dirty, mask, 1).tolist() == pytest.approx(mean, abs=1e-12)
    assert masked_sum(dirty, mask).item() == pytest.approx(math.fsum(total), abs=1e-12)
    whole = oracles.token_mean(x, mask)
    assert masked_mean(dirty, mask).item() == pytest.approx(whole, abs=1e-12)
    assert torch.equal(zero_outside(dirty, mask), oracles.zero_outside(x, mask))


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("function", [masked_sum, masked_mean])
def test_masked_positions_leak_neither_forward_nor_backward(function, bad):
    x = torch.tensor([1.0, bad, 3.0], requires_grad=True)
    mask = torch.tensor([True, False, True])
    out = function(x, mask)
    out.backward()
    assert torch.isfinite(out)
    share = 1.0 if function is masked_sum else 0.5
    torch.testing.assert_close(x.grad, torch.tensor([share, 0.0, share]))


def test_masking_before_a_nonlinearity_keeps_the_gradient_finite():
    x = torch.tensor([1.0, 1000.0], requires_grad=True)
    mask = torch.tensor([True, False])
    masked_sum(zero_outside(x, mask).exp(), mask).backward()
    torch.testing.assert_close(x.grad, torch.tensor([math.e, 0.0]))


def test_b07_nothing_valid_is_zero_with_zero_gradient():
    x = torch.full((2, 4), float("nan"), requires_grad=True)
    mask = torch.zeros(2, 4, dtype=torch.bool)
    (masked_mean(x, mask) + masked_mean(x, mask, 1).sum()).backward()
    assert masked_mean(x, mask) == 0
    assert (x.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float16])
def test_low_precision_and_integers_are_averaged_in_float32(dtype):
    x = torch.ones(3000, dtype=dtype)
    mean = masked_mean(x, torch.ones(3000, dtype=torch.bool))
    assert mean.dtype == torch.float32
    assert mean == 1.0  # a bfloat16 accumulator would stop at 256


@PROPERTY
@given(masks(), generators(), st.booleans(), st.sampled_from([0, 1]))
def test_whitening_equals_the_loops(mask, generator, shift, ddof):
    x = noise(generator, *mask.shape, scale=3.0) + 1
    got = masked_whiten(poison(x, mask), mask, shift, ddof)
    torch.testing.assert_close(
        got, oracles.masked_whiten(x, mask, shift, ddof), rtol=1e-9, atol=1e-9
    )


def test_b23_whitening_golden_values():
    """B23: population by default, sample with ddof=1, and scaling alone is pure."""
    x, mask = torch.tensor([1.0, 3, 5, 100]), torch.tensor([True, True, True, False])
    close = lambda a, b: torch.testing.assert_close(a, torch.tensor(b), rtol=0, atol=1e-5)  # noqa: E731
    close(masked_whiten(x, mask), [-1.22474, 0, 1.22474, 0])
    close(masked_whiten(x, mask, ddof=1), [-1.0, 0, 1, 0])
    close(masked_whiten(x, mask, shift_mean=False), [0.61237, 1.83712, 3.06186, 0])


@pytest.mark.parametrize("shift", [True, False])
def test_b23_one_valid_token_whitens_to_zero(shift):
    mask = torch.tensor([False, True, False])
    assert (masked_whiten(torch.tensor([9.0, 7.0, 9.0]), mask, shift) == 0).all()


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 100.1, 1e4 + 0.1])
def test_constant_data_whitens_to_exactly_zero(shift, value):
    """The rounding residue of the mean must not be divided by sqrt(eps)."""
    for dtype in (torch.float32, torch.float64):
        x = torch.full((7,), value, dtype=dtype)
        assert (masked_whiten(x, torch.ones(7, dtype=torch.bool), shift) == 0).all()


def test_whitening_is_stable_far_from_zero():
    """E[x^2] - E[x]^2 would lose every digit in float32 here."""
    x = torch.tensor([10000.0, 10001.0, 10002.0])
    got = masked_whiten(x, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(got, torch.tensor([-1.224745, 0, 1.224745]), rtol=0, atol=1e-4)


class Ranks:
    """Stands in for a collective: replays the totals recorded from all ranks, call by call."""

    def __init__(self, function, shards):
        self.totals = []
        self.results = [None] * len(shards)
        while any(r is None for r in self.results):
            sent = []
            for i, shard in enumerate(shards):
                calls = iter(self.totals)
                try:
                    self.results[i] = function(
                        *shard, reduce=lambda x, c=calls, s=sent: self.step(x, c, s)
                    )
                except StopIteration:
                    continue
            if sent:
                assert len(sent) == len(shards), "every rank must make every call"
                self.totals.append(sum(sent))

    @staticmethod
    def step(x, calls, sent):
        try:
            return next(calls)
        except StopIteration:
            sent.append(x.clone())
            raise


def test_i02_whitening_over_ranks_equals_one_process():
    """I02: [1, 3] and [5] on two ranks; then the second rank is empty."""
    x, mask = torch.tensor([1.0, 3, 5, 100]), torch.tensor([True, True, True, False])
    whole = masked_whiten(x, mask)
    split = Ranks(masked_whiten, [(x[:2], mask[:2]), (x[2:], mask[2:])]).results
    torch.testing.assert_close(torch.cat(split), whole)
    nothing = torch.zeros(2, dtype=torch.bool)
    with_empty = Ranks(masked_whiten, [(x, mask), (x[:2], nothing)]).results
    torch.testing.assert_close(with_empty[0], whole)
    assert (with_empty[1] == 0).all()


@PROPERTY
@given(masks(), generators())
def test_explained_variance_equals_the_loops(mask, generator):
    values, returns = noise(generator, *mask.shape), noise(generator, *mask.shape)
    got = explained_variance(poison(values, mask), poison(returns, mask), mask)
    want = oracles.explained_variance(values, returns, mask)
    assert got.item() == pytest.approx(want, rel=1e-9, abs=1e-9)
    halves = [(t[: len(t) // 2], t[len(t) // 2 :]) for t in (values, returns, mask)]
    shards = [tuple(h[i] for h in halves) for i in (0, 1)]
    for result in Ranks(explained_variance, shards).results:
        assert result.item() == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_explained_variance_golden_values():
    r = torch.tensor([1.0, -1, 1, 1, -1, 0.5])
    mask = torch.ones(6, dtype=torch.bool)
    cases = [(r, 1), (torch.zeros(6), 0), (0.5 * r, 0.75), (-r, -3), (r + 0.7, 1)]
    for values, want in cases:
        assert explained_variance(values, r, mask).item() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_explained_variance_of_constant_returns_is_zero(dtype):
    returns = torch.full((7,), 0.1, dtype=dtype)
    mask = torch.ones(7, dtype=torch.bool)
    assert explained_variance(torch.randn(7, dtype=dtype), returns, mask) == 0
    assert explained_variance(returns, returns, ~mask) == 0


def test_a_small_spread_is_explained_and_a_rounding_error_is_not():
    """A spread of 84 times the precision of float32, and one of a single bit in many values."""
    mask = torch.ones(10_000, dtype=torch.bool)
    side = torch.where(torch.arange(10_000) % 2 == 0, 1.0, -1.0)
    spread = 1 + 1e-5 * side
    assert explained_variance(spread, spread, mask) == 1
    rounding = torch.where(side > 0, 1.0, 1.0 + torch.finfo(torch.float32).eps)
    assert explained_variance(rounding, rounding, mask) == 0


def test_whitening_what_is_constant_has_no_gradient_rather_than_nan():
    x = torch.full((3,), 2.0, requires_grad=True)
    masked_whiten(x, torch.ones(3, dtype=torch.bool), eps=0.0).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 0.0]


def test_whitening_of_a_small_spread_around_a_large_mean_is_exact():
    x = 5 + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(1000, dtype=torch.bool)
    got = masked_whiten(x, mask)
    want = oracles.masked_whiten(x.double(), mask, True, 0)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-6)
    assert abs(got.double().mean()) < 1e-6


@pytest.mark.parametrize(("steps", "constant"), [(1, True), (16, False)])
def test_a_spread_of_rounding_is_none(steps, constant):
    """One entry of eight that is a few float32 steps of 1.0 away."""
    x, mask = torch.ones(8), torch.ones(8, dtype=torch.bool)
    x[0] += steps * torch.finfo(torch.float32).eps
    assert (masked_whiten(x, mask, eps=0.0) == 0).all() == constant


def test_explained_variance_has_no_lower_bound():
    returns = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    mask = torch.ones(4, dtype=torch.bool)
    assert explained_variance(-9 * returns, returns, mask) == pytest.approx(1 - 100)
