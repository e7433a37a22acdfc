"""Importance weights of tokens that were drawn from another distribution than the trainer's."""

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, generators, masks, noise, poison, rows_of

from lit_reason.functional import importance_weights, unchecked_values


@PROPERTY
@given(
    masks(),
    generators(),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from(["token", "sequence"]),
    st.sampled_from(["truncate", "mask"]),
)
def test_against_the_oracle_whatever_stands_on_padding(mask, generator, cap, level, cut):
    logprobs, sampled = (noise(generator, *mask.shape) for _ in range(2))
    args = poison(logprobs, mask), poison(sampled, mask)
    weights = importance_weights(*args, mask, cap, level, cut)
    assert not weights[~mask].any()
    rows = zip(rows_of(logprobs, mask), rows_of(sampled, mask), strict=True)
    for got, (row, drawn) in zip(rows_of(weights, mask), rows, strict=True):
        assert got == pytest.approx(oracles.importance_weights(row, drawn, cap, level, cut))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("cut", ["truncate", "mask"])
def test_the_trainers_own_samples_weigh_one(level, cut):
    logprobs, mask = torch.randn(3, 5), torch.ones(3, 5, dtype=torch.bool)
    assert importance_weights(logprobs, logprobs, mask, 1.0, level, cut).eq(1).all()


def test_the_mean_under_the_engine_is_that_of_the_policy():
    """E_mu[w f] = E_pi[f], where no ratio is cut."""
    engine, policy = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.5, 0.3]).double()
    f = torch.tensor([1.0, -2.0, 4.0]).double()
    mask = torch.ones(1, 3, dtype=torch.bool)
    weights = importance_weights(policy.log()[None], engine.log()[None], mask, 9.0)[0]
    torch.testing.assert_close((engine * weights * f).sum(), (policy * f).sum())


def test_ratios_that_overflow_stay_finite():
    mask = torch.ones(2, 1, dtype=torch.bool)
    far = torch.tensor([[0.0], [-500.0]])
    weights = importance_weights(far, torch.tensor([[-500.0], [0.0]]), mask, 3.0)
    assert weights.tolist() == [[3.0], [pytest.approx(0, abs=1e-8)]]
    assert not importance_weights(far, far, mask).requires_grad


def test_log_ratios_beyond_twenty_are_held_there():
    """e^20 = 4.85e8, which only a cap above it leaves alone."""
    logprobs, sampled = torch.tensor([[0.0, -50.0]]), torch.tensor([[-30.0, 0.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    for cut in ("truncate", "mask"):
        found = importance_weights(logprobs, sampled, mask, cap=1e9, cut=cut)
        torch.testing.assert_close(found, torch.tensor([[20.0, -20.0]]).exp())


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("cut", ["truncate", "mask"])
@pytest.mark.parametrize("infinity", [float("inf"), -float("inf")])
def test_an_infinite_log_prob_has_no_ordinary_weight(level, cut, infinity):
    logprobs, mask = torch.tensor([[infinity, 0.0]]), torch.ones(1, 2, dtype=torch.bool)
    with unchecked_values():
        for args in ((logprobs, torch.zeros(1, 2)), (torch.zeros(1, 2), logprobs)):
            assert importance_weights(*args, mask, 2.0, level, cut)[0, 0].isnan()


def test_golden_weights():
    """TIS with a cap of 2; what the cap lets through is the ratio."""
    ratio, mask = torch.tensor([[0.5, 1.0, 2.5]]), torch.ones(1, 3, dtype=torch.bool)
    args = ratio.log(), torch.zeros(1, 3), mask
    torch.testing.assert_close(importance_weights(*args), torch.tensor([[0.5, 1.0, 2.0]]))
    masked = importance_weights(*args, cut="mask")
    torch.testing.assert_close(masked, torch.tensor([[0.5, 1.0, 0.0]]))


def test_the_ratio_of_a_sequence_is_clamped_and_not_those_of_its_tokens():
    logprobs, mask = torch.tensor([[25.0, -24.0]]), torch.ones(1, 2, dtype=torch.bool)
    weights = importance_weights(logprobs, torch.zeros(1, 2), mask, 9.0, "sequence")
    torch.testing.assert_close(weights, torch.full((1, 2), math.e))
    weights = importance_weights(logprobs + 30, torch.zeros(1, 2), mask, 1e30, "sequence")
    torch.testing.assert_close(weights, torch.full((1, 2), math.exp(20.0)))
