"""Length rewards."""

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY

from lit_reason.functional import kimi_length, soft_overlong


@pytest.mark.parametrize(
    ("limit", "cache", "want"),
    [
        (20480, 4096, {16384: 0, 16385: -0.000244140625, 17408: -0.25}),
        (20480, 4096, {18432: -0.5, 20480: -1, 20481: -1}),
        (10, 4, {6: 0, 7: -0.25, 8: -0.5, 9: -0.75, 10: -1, 11: -1}),
    ],
)  # fmt: skip
def test_soft_overlong_golden_values(limit, cache, want):
    got = soft_overlong(torch.tensor(list(want)), limit, cache)
    assert got.tolist() == list(want.values())  # all exact in binary


def test_b24_boundaries():
    got = soft_overlong(torch.tensor([1, 15, 16, 18, 20, 21]), 20, 5)
    assert got.tolist() == pytest.approx([0, 0, -0.2, -0.6, -1.0, -1.0])
    assert not torch.signbit(got[:2]).any()


@pytest.mark.parametrize("cache", [25, 0, -1])
def test_b24_impossible_ramp_is_refused(cache):
    with pytest.raises(ValueError, match="cache"):
        soft_overlong(torch.tensor([1]), 20, cache)


@PROPERTY
@given(st.integers(1, 200), st.data())
def test_soft_overlong_is_eq_13_continuous_and_non_increasing(limit, data):
    cache = data.draw(st.integers(1, limit))
    lengths = torch.arange(limit + 20)
    got = soft_overlong(lengths, limit, cache)
    want = [oracles.soft_overlong(n, limit, cache) for n in lengths.tolist()]
    assert got.tolist() == pytest.approx(want, abs=1e-6)
    assert ((got.diff() <= 0) & (got.diff() >= -1 / cache - 1e-6)).all()
    assert ((got >= -1) & (got <= 0)).all()


def test_total_reward_range():
    lengths = torch.arange(1, 30)
    for correctness in (1.0, -1.0):
        total = correctness + soft_overlong(lengths, 20, 5)
        assert ((total >= -2) & (total <= 1)).all()


def test_kimi_golden_values():
    lengths, right = torch.tensor([100, 200, 300]), torch.ones(3, dtype=torch.bool)
    assert kimi_length(lengths, right).tolist() == [0.5, 0, -0.5]
    assert kimi_length(lengths, ~right).tolist() == [0, 0, -0.5]
    assert kimi_length(torch.tensor([7, 7]), right[:2]).tolist() == [0, 0]


def test_kimi_of_lengths_one_token_apart():
    lengths, right = torch.tensor([4, 3]), torch.ones(2, dtype=torch.bool)
    assert kimi_length(lengths, right).tolist() == [-0.5, 0.5]


@PROPERTY
@given(st.lists(st.tuples(st.integers(1, 99), st.booleans()), min_size=1, max_size=8))
def test_kimi_equals_the_loops(samples):
    lengths, correct = zip(*samples, strict=True)
    want = oracles.kimi_length(lengths, correct)
    got = kimi_length(torch.tensor(lengths), torch.tensor(correct))
    assert got.tolist() == pytest.approx(want, abs=1e-6)


def test_kimi_refuses_an_empty_group():
    with pytest.raises(ValueError, match="correct"):
        kimi_length(torch.zeros(0), torch.zeros(0, dtype=torch.bool))
