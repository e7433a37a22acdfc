"""Validation metrics: exact on any split of the problems, over all responses to each."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_reason.metrics import GroupMetrics


def measure(verdicts, **extra):
    verdicts = torch.tensor(verdicts)
    metric = GroupMetrics(verdicts.shape[1])
    metric.update(verdicts, torch.ones(verdicts.shape), **extra)
    return {name: float(value) for name, value in metric.compute().items()}


def test_every_response_counts_and_not_only_the_first():
    """J04."""
    values = measure([[False, True, True, True], [False, True, False, False]])
    assert values["accuracy"] == 0.5
    assert values["pass_at_k"] == 1.0


def test_the_order_of_responses_does_not_matter():
    """J01."""
    for order in itertools.permutations([True, False, False, True]):
        assert measure([list(order)]) == measure([[True, True, False, False]])


@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=12),
    st.integers(1, 5),
)
@settings(max_examples=50, deadline=None)
def test_batches_and_ranks_split_the_problems_without_a_trace(verdicts, parts):
    """I06, J05: a problem is a row, and any split gives the mean over all rows."""
    rows = torch.tensor(verdicts)
    lengths = torch.arange(rows.numel()).view(rows.shape) % 7 + 1
    truncated, rewards = lengths == 7, rows.float() - 0.5
    ranks = [GroupMetrics(3) for _ in range(parts)]
    for rank, metric in enumerate(ranks):
        for chunk in torch.arange(len(rows))[rank::parts].split(2):
            if len(chunk):
                metric.update(rows[chunk], lengths[chunk], truncated[chunk], rewards[chunk])
    merged = GroupMetrics(3)
    for metric in ranks:
        merged.total += metric.total
        merged.problems += metric.problems
    merged._update_count = 1  # as torchmetrics does when it reduces over processes
    values = {k: float(v) for k, v in merged.compute().items()}
    expected = {
        "accuracy": rows.double().mean(),
        "pass_at_k": rows.any(1).double().mean(),
        "length": lengths.double().mean(),
        "truncated": truncated.double().mean(),
        "reward": rewards.double().mean(),
    }
    assert values == {k: pytest.approx(float(v), abs=1e-6) for k, v in expected.items()}


def test_rows_that_are_not_valid_leave_no_trace():
    rows = torch.tensor([[True, True], [False, False], [True, False]])
    valid = torch.tensor([False, True, True])
    values = measure(rows.tolist(), valid=valid)
    assert values == measure(rows[1:].tolist())
    assert values["accuracy"] == 0.25


def test_many_problems_are_added_without_rounding():
    metric = GroupMetrics(1)
    for _ in range(100):
        metric.update(torch.ones(100, 1, dtype=torch.bool), torch.full((100, 1), 16_777_217.0))
    assert metric.compute()["accuracy"] == 1
    assert metric.problems == 10_000


def test_a_metric_starts_again_after_a_reset():
    metric = GroupMetrics(2)
    metric.update(torch.tensor([[True, True]]), torch.ones(1, 2))
    metric.reset()
    metric.update(torch.tensor([[False, False]]), torch.ones(1, 2))
    assert metric.compute()["accuracy"] == 0
    metric.reset()
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert not math.isnan(metric.compute()["accuracy"])
