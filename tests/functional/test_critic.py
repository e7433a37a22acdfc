"""What advantages are made of: parts, shares and horizons against loops."""

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, generators, masks, noise, poison

from lit_reason.functional import (
    advantage_parts,
    effective_horizon,
    gae,
    length_adaptive_lambda,
    reward_share,
)


def close(got, want, atol=1e-9):
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=got.dtype), rtol=0, atol=atol)


@PROPERTY
@given(masks(), generators(), st.floats(0, 1), st.floats(0, 1), st.booleans(), st.booleans())
def test_parts_equal_the_definition_and_sum_to_the_advantage(
    mask, generator, gamma, lam, per_row, bootstrapped
):
    rewards, values = noise(generator, *mask.shape), noise(generator, *mask.shape)
    lam = lam * torch.rand(len(mask), generator=generator).double() if per_row else lam
    after = noise(generator, len(mask)) if bootstrapped else None
    given = (poison(rewards, mask), poison(values, mask), mask, gamma, lam, after)
    parts = advantage_parts(*given)
    for got, want in zip(
        parts, oracles.advantage_parts(rewards, values, mask, gamma, lam, after), strict=True
    ):
        close(got, want)
    close(parts[0] + parts[1], gae(*given))


def test_at_lambda_one_the_critic_is_the_baseline_alone():
    values, mask = torch.rand(3, 5), torch.ones(3, 5, dtype=torch.bool)
    close(advantage_parts(torch.rand(3, 5), values, mask)[1], -values, 1e-6)


@PROPERTY
@given(masks(), generators())
def test_the_share_equals_the_loops(mask, generator):
    parts = [noise(generator, *mask.shape) for _ in range(2)]
    close(reward_share(*(poison(x, mask) for x in parts), mask), oracles.reward_share(*parts, mask))
    in32 = reward_share(*(x.float() for x in parts), mask)
    assert in32.dtype == torch.float32
    close(in32.double(), oracles.reward_share(*parts, mask), 1e-6)


def test_shares_of_two_ranks_are_the_share_of_all():
    g = torch.Generator().manual_seed(0)
    parts, mask = [noise(g, 6, 4), noise(g, 6, 4)], torch.rand(6, 4, generator=g) < 0.7
    numbers = []
    halves = [[x[i : i + 3] for x in (*parts, mask)] for i in (0, 3)]
    for half in halves:
        reward_share(*half, reduce=lambda x: numbers.append(x) or x)
    got = reward_share(*halves[0], reduce=lambda x: sum(numbers[:2]))
    close(got, reward_share(*parts, mask))


def test_nothing_has_no_share():
    zero, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    assert reward_share(zero, zero, mask) == 0
    assert reward_share(zero + 1, zero + 1, mask & False) == 0


@pytest.mark.parametrize("scale", [1e-30, 1e20, 1e37])
def test_shares_of_large_and_small_advantages_do_not_overflow(scale):
    ones, mask = torch.ones(100), torch.ones(100, dtype=torch.bool)
    assert reward_share(ones * scale, 3 * ones * scale, mask) == pytest.approx(0.25)


@PROPERTY
@given(st.integers(0, 50), st.floats(0, 1), st.floats(0, 1))
def test_horizons_equal_the_definition(length, lam, gamma):
    want = oracles.effective_horizon(length, lam, gamma)
    lengths, per_row = torch.tensor([length]).double(), torch.tensor([lam], dtype=torch.float64)
    close(effective_horizon(lengths, lam, gamma)[0], want)
    close(effective_horizon(lengths, per_row, gamma)[0], want)


def test_the_horizon_of_a_length_adaptive_lambda_is_its_share_of_the_length():
    lengths = torch.tensor([40, 100, 1000])
    lam = length_adaptive_lambda(lengths.double(), alpha=0.05)
    close(effective_horizon(lengths.double(), lam), [2.0, 5, 50])
