"""Validation metrics: exact on any split of the problems, over all responses to each."""

import itertools
import re
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_reason.functional import majority_at_k, pass_at_k
from lit_reason.metrics import GroupMetrics
from lit_reason.scores import STATUSES, Samples, why_nothing_is_right
from lit_reason.verdict import Status

NAMES = [status.value for status in STATUSES]


def samples_of(problems):
    """Problems as (index, source, k statuses, k answer classes)."""
    status = torch.tensor([[NAMES.index(s) for s in p[2]] for p in problems]).view(-1, 2)
    return Samples(
        index=torch.tensor([p[0] for p in problems]).long(),
        source=torch.tensor([p[1] for p in problems]).long(),
        status=status,
        classes=torch.tensor([p[3] for p in problems]).long().view(-1, 2),
        lengths=torch.ones_like(status),
        truncated=torch.zeros_like(status).bool(),
    )


def judged(correct, answers=None, **extra):
    """Samples from verdicts: by default all right answers are one, and all wrong ones another."""
    correct = torch.as_tensor(correct)
    wrong = (~correct).long()
    return Samples(
        **{
            "index": torch.arange(len(correct)),
            "source": torch.zeros(len(correct)).long(),
            "status": wrong,
            "classes": wrong if answers is None else torch.tensor(answers),
            "lengths": torch.ones(correct.shape),
            "truncated": torch.zeros_like(correct),
            **extra,
        }
    )


def measure(*samples, pass_k=None, sources=()):
    metric = GroupMetrics(samples[0].status.shape[1], pass_k, sources)
    for part in samples:
        metric.update(part)
    return metric.compute()


def test_every_response_counts_and_not_only_the_first():
    """J04."""
    values = measure(judged([[False, True, True, True], [False, True, False, False]]))
    assert values["accuracy"] == values["pass_at_1"] == 0.5
    assert values["pass_at_4"] == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(8, 2, 4), (10, 3, 5), (4, 1, 4), (4, 0, 2), (4, 4, 1)])
def test_j01_pass_at_k_is_unbiased_in_any_order(n, c, k):
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(n, generator=generator) < c for _ in range(5)]
    values = measure(judged([order.tolist() for order in orders]), pass_k=[k])
    assert values[f"pass_at_{k}"] == pytest.approx(pass_at_k(n, c, k), abs=1e-6)
    assert values[f"pass_at_{k}_low"] == values[f"pass_at_{k}_high"]


def test_pass_at_k_is_reported_for_powers_of_two_and_for_all_samples():
    values = measure(judged([[True] * 6]))
    assert [k for k in values if k.startswith("pass") and k[-1].isdigit()] == [
        "pass_at_1",
        "pass_at_2",
        "pass_at_4",
        "pass_at_6",
    ]


@pytest.mark.parametrize(("answers", "gold"), [([3, 3, 7, 7], 7), ([1, 2, 3, 4], 3)])
def test_j02_ties_in_the_majority_share_the_credit(answers, gold):
    for order in itertools.permutations(answers):
        values = measure(judged([[a == gold for a in order]], [order]))
        assert values["maj_at_4"] == majority_at_k(order, gold) == answers.count(gold) / 4


def test_a_task_that_does_not_say_what_was_answered_has_no_majority():
    values = measure(judged([[True, False]], [[-1, -1]]))
    assert values["accuracy"] == 0.5
    assert "maj_at_2" not in values


def test_without_an_answer_there_is_no_vote_and_failures_are_counted():
    values = measure(
        samples_of(
            [
                (0, 0, ["no_answer", "correct"], [-1, 0]),
                (1, 0, ["no_answer", "no_answer"], [-1, -1]),
                (2, 0, ["timeout", "error"], [1, -1]),
            ]
        )
    )
    assert values["maj_at_2"] == pytest.approx(1 / 3)
    assert values["no_answer"] == values["accuracy"] * 3 == 0.5
    assert values["unverified"] == pytest.approx(1 / 3)


@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=12),
    st.integers(1, 5),
)
@settings(max_examples=50, deadline=None)
def test_batches_and_ranks_split_the_problems_without_a_trace(verdicts, parts):
    """I06, J05: a problem is a row, and any split gives the values and intervals of all rows."""
    rows = torch.tensor(verdicts)
    lengths = torch.arange(rows.numel()).view(rows.shape) % 7 + 1
    truncated, rewards = lengths == 7, rows.float() - 0.5
    merged = GroupMetrics(3)
    for rank in range(parts):
        for chunk in torch.arange(len(rows))[rank::parts].split(2):
            extra = {"lengths": lengths, "truncated": truncated, "rewards": rewards}
            chosen = {name: column[chunk] for name, column in extra.items()}
            merged.update(judged(rows[chunk].view(-1, 3), index=chunk, **chosen))
    values = merged.compute()
    expected = {
        "accuracy": rows.double().mean(),
        "pass_at_3": rows.any(1).double().mean(),
        "maj_at_3": (rows.sum(1) > 1).double().mean(),
        "length": lengths.double().mean(),
        "truncated": truncated.double().mean(),
        "reward": rewards.double().mean(),
    }
    got = {k: values[k] for k in expected}
    assert got == {k: pytest.approx(float(v), abs=1e-6) for k, v in expected.items()}
    assert values == measure(judged(verdicts, **extra))


def test_data_sets_are_reported_one_by_one_when_there_are_several():
    source = torch.tensor([1, 0, 1])
    samples = judged([[True, True], [False, False], [True, False]], source=source)
    values = measure(samples, sources=("aime", "gsm8k"))
    assert values["accuracy"] == 0.5
    assert values["aime/accuracy"] == 0
    assert values["gsm8k/accuracy"] == 0.75
    assert (values["gsm8k/accuracy_low"], values["gsm8k/accuracy_high"]) == (0.5, 1.0)
    assert not [k for k in measure(samples, sources=("gsm8k",)) if "/" in k]


def test_unscored_responses_leave_the_mean_reward():
    nan = torch.nan
    rewards = torch.tensor([[1.0, nan], [nan, nan], [0.0, -1.0]])
    samples = judged([[True, True]] * 3, rewards=rewards)
    assert measure(samples)["reward"] == pytest.approx(0.25)
    assert "reward" not in measure(judged([[True, True]]))


def test_many_problems_are_added_without_rounding_and_bootstrapped_fast():
    metric = GroupMetrics(1)
    for i in range(50):
        index = torch.arange(100) + 100 * i
        metric.update(judged([[True]] * 100, index=index, lengths=torch.full((100, 1), 16777216.0)))
    started = time.perf_counter()
    values = metric.compute()
    assert time.perf_counter() - started < 5
    assert values["accuracy"] == 1
    assert values["length"] == 16777216


def test_a_metric_starts_again_after_a_reset():
    metric = GroupMetrics(2)
    metric.update(judged([[True, True]]))
    metric.reset()
    metric.update(judged([[False, False]]))
    assert metric.compute()["accuracy"] == 0
    metric.reset()
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert metric.compute() == {}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, "none equals its gold one: compare them in the file that `predict` writes"),
        ({"no_answer": 1.0}, r"100% .* no answer .*: let the prompt ask for the task's answer for"),
        ({"truncated": 0.7}, r"70% of the responses are cut off: raise data\.val_sampling\.max_"),
        ({"unverified": 0.5}, "50% of the responses could not be verified"),
    ],
)
def test_j07_the_reasons_for_nothing_right_are_named(changed, reason):
    values = {"no_answer": 0.2, "truncated": 0.2, "unverified": 0.0, **changed}
    text = why_nothing_is_right("val", values)
    assert re.match(rf"val/accuracy=0: no response is correct; .*{reason}", text)


def test_every_status_has_a_number():
    assert set(STATUSES) == set(Status)
