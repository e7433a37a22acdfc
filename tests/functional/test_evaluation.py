"""avg@k, pass@k, maj@k and their intervals."""

from itertools import permutations, product
from math import comb

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, generators

from lit_reason.functional import (
    bootstrap_interval,
    majority_at_k,
    majority_of_classes,
    mean_at_k,
    pass_at_k,
)


@pytest.mark.parametrize(
    ("n", "c", "k", "want"),
    [
        (4, 2, 2, 0.833333), (10, 3, 5, 0.916667), (32, 1, 8, 0.25), (32, 1, 32, 1.0),
        (8, 2, 4, 0.785714), (4, 1, 4, 1.0), (4, 0, 2, 0.0), (4, 4, 1, 1.0),
    ],
)  # fmt: skip
def test_j01_pass_at_k(n, c, k, want):
    assert pass_at_k(n, c, k) == pytest.approx(want, abs=5e-7)


def test_j01_is_not_the_biased_formula():
    assert pytest.approx(0.683594, abs=1e-6) == 1 - (1 - 2 / 8) ** 4
    assert pytest.approx(0.831930, abs=1e-6) == 1 - (1 - 3 / 10) ** 5
    assert pass_at_k(8, 2, 4) - 0.683594 > 0.1


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 5), (3, 1, 0), (3, 4, 1), (3, -1, 1)])
def test_j01_impossible_counts_are_errors(n, c, k):
    with pytest.raises(ValueError, match=r"`[ck]`=.* must"):
        pass_at_k(n, c, k)


@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_subsets(verdicts, data):
    k = data.draw(st.integers(1, len(verdicts)))
    want = oracles.pass_at_k(verdicts, k)
    assert pass_at_k(len(verdicts), sum(verdicts), k) == pytest.approx(want)
    mean = mean_at_k(torch.tensor(verdicts)).item()
    assert mean == pytest.approx(oracles.mean_at_k(verdicts))
    assert pass_at_k(len(verdicts), sum(verdicts), 1) == pytest.approx(mean)


def test_j02_ties_do_not_depend_on_the_order():
    """Fractional credit: 0.5 for two of two tied answers, 0.25 for one of four."""
    assert {majority_at_k(order, 7) for order in permutations([3, 3, 7, 7])} == {0.5}
    assert {majority_at_k(order, 3) for order in permutations([1, 2, 3, 4])} == {0.25}


def test_votes_of_tensors_are_refused():
    """No two tensors are the same answer, even if they hold the same number."""
    for answers in (torch.tensor([3, 3, 7]), list(torch.tensor([3, 3, 7]))):
        with pytest.raises(ValueError, match="`answers`"):
            majority_at_k(answers, 3)
    assert majority_at_k(torch.tensor([3, 3, 7]).tolist(), 3) == 1.0


def test_missing_answers_do_not_vote():
    assert majority_at_k([None, None, None, 7], 7) == 1.0
    assert majority_at_k([None, None], None) == 0.0
    assert majority_at_k([], 7) == 0.0


@PROPERTY
@given(st.lists(st.integers(0, 3), max_size=8), st.integers(0, 3))
def test_majority_equals_the_loops(answers, gold):
    assert majority_at_k(answers, gold) == pytest.approx(oracles.majority_at_k(answers, gold))


def test_j04_every_sample_is_scored():
    correct = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0]], dtype=torch.bool)
    assert mean_at_k(correct).tolist() == [0.75, 0.25]
    assert mean_at_k(correct).mean() == 0.5
    assert [pass_at_k(4, int(c), 4) for c in correct.sum(1)] == [1.0, 1.0]


def test_no_sample_is_an_error():
    with pytest.raises(ValueError, match="no sample"):
        mean_at_k(torch.zeros(2, 0, dtype=torch.bool))


# --- maj@k over classes ---------------------------------------------------------------------------


def test_j02_classes_are_scored_in_any_order_and_many_at_once():
    for answers, gold, want in (([3, 3, 7, 7], 7, 0.5), ([1, 2, 3, 4], 3, 0.25)):
        classes = torch.tensor(list(permutations(answers)))
        assert majority_of_classes(classes, classes == gold).tolist() == [want] * 24


@PROPERTY
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=8), st.integers(0, 3))
def test_classes_give_what_answers_give(classes, gold):
    answers = [None if c < 0 else c for c in classes]
    ids = torch.tensor([classes])
    got = majority_of_classes(ids, (ids == gold)).item()
    assert got == pytest.approx(majority_at_k(answers, gold))


@PROPERTY
@given(st.integers(1, 4), st.integers(1, 7), generators())
def test_classes_are_those_of_the_definition(problems, k, generator):
    classes = torch.randint(-1, 3, (problems, k), generator=generator)
    correct = torch.rand(problems, k, generator=generator) < 0.5
    want = oracles.majority_of_classes(classes, correct)
    torch.testing.assert_close(majority_of_classes(classes, correct).double(), want)


def test_answers_that_cast_no_vote_earn_nothing_whatever_their_verdict():
    classes = torch.tensor([[-1, -1], [-1, 4]])
    correct = torch.tensor([[True, True], [True, False]])
    assert majority_of_classes(classes, correct).tolist() == [0, 0]


def test_a_class_that_was_judged_both_ways_counts_in_part():
    classes = torch.tensor([[0, 0, 0, 0, 1]])
    correct = torch.tensor([[True, True, True, False, False]])
    assert majority_of_classes(classes, correct).tolist() == [0.75]


@pytest.mark.parametrize("shape", [(2, 0), ()])
def test_classes_of_no_sample_are_an_error(shape):
    with pytest.raises(ValueError, match="no sample"):
        majority_of_classes(torch.zeros(shape).long(), torch.zeros(shape).bool())


# --- intervals ------------------------------------------------------------------------------------


def binomial_quantile(n, p, level):
    total = 0.0
    for x in range(n + 1):
        total += comb(n, x) * p**x * (1 - p) ** (n - x)
        if total >= level:
            return x / n
    raise AssertionError


@pytest.mark.parametrize(("rows", "ones"), [(40, 10), (40, 39), (200, 100), (7, 3)])
def test_the_interval_of_a_share_is_that_of_a_binomial(rows, ones):
    """Drawing rows with replacement makes the number of ones binomial."""
    values = (torch.arange(rows) < ones).float()[:, None]
    low, high = bootstrap_interval(values, resamples=20_000)
    for end, level in ((low, 0.025), (high, 0.975)):
        assert abs(end.item() - binomial_quantile(rows, ones / rows, level)) <= 1 / rows + 1e-9


@pytest.mark.parametrize("column", [[0.0, 1.0, 2.0, 4.0, 8.0], [0.2, 0.2, 0.9, 1.0]])
@pytest.mark.parametrize("level", [0.5, 0.8])
def test_the_interval_of_few_rows_is_that_of_all_resamples(column, level):
    exact = oracles.bootstrap_interval(column, level)
    drawn = bootstrap_interval(torch.tensor(column)[:, None], 20_000, level)
    for got, want in zip(drawn, exact, strict=True):
        assert got.item() == pytest.approx(want, abs=0.2 * max(column) / len(column))


@PROPERTY
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.sampled_from([0.5, 0.8, 0.95]))
def test_interval_ends_are_quantiles_of_all_resamples(column, level):
    """Of the 4^4 resamples, drawn often enough that no end is missed by more than one step."""
    values = torch.tensor(column, dtype=torch.float32)[:, None]
    low, high = bootstrap_interval(values, 4000, level)
    means = sorted({sum(drawn) / len(column) for drawn in product(column, repeat=len(column))})
    for got, want in zip((low, high), oracles.bootstrap_interval(column, level), strict=True):
        near = [abs(m - want) for m in means if abs(m - want) > 1e-9]
        assert abs(got.item() - want) <= min(near, default=0.0) + 1e-9


def test_intervals_cover_the_true_mean_as_often_as_they_claim():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 400, generator=generator) + 5  # 400 studies of 60 problems
    low, high = bootstrap_interval(values, resamples=400, level=0.9)
    covered = ((low <= 5) & (high >= 5)).double().mean().item()
    assert covered == pytest.approx(0.9, abs=0.04)


def test_intervals_repeat_and_follow_the_seed_and_do_not_depend_on_other_columns():
    values = torch.rand(50, 3, generator=torch.Generator().manual_seed(1))
    first = torch.stack(bootstrap_interval(values))
    assert torch.equal(first, torch.stack(bootstrap_interval(values)))
    assert not torch.equal(first, torch.stack(bootstrap_interval(values, seed=1)))
    torch.testing.assert_close(first[:, 1:2], torch.stack(bootstrap_interval(values[:, 1:2])))
    assert (first[0] < values.mean(0)).all()
    assert (first[1] > values.mean(0)).all()


def test_rows_without_a_value_leave_the_means():
    values = torch.tensor([[1.0, 2.0, torch.nan], [1.0, torch.nan, torch.nan]])
    low, high = bootstrap_interval(values)
    assert (low[:2].tolist(), high[:2].tolist()) == ([1, 2], [1, 2])
    assert low[2].isnan()
    assert bootstrap_interval(values[:0])[0].isnan().all()


def test_many_rows_are_drawn_in_blocks_that_change_nothing(monkeypatch):
    from lit_reason.functional import evaluation

    values = torch.rand(30, 2, generator=torch.Generator().manual_seed(1))
    whole = torch.stack(bootstrap_interval(values))
    monkeypatch.setattr(evaluation, "_blocks", lambda resamples, rows: [7] * (resamples // 7) + [6])
    torch.testing.assert_close(torch.stack(bootstrap_interval(values)), whole, atol=0.03, rtol=0)
    monkeypatch.undo()
    assert sum(evaluation._blocks(1000, 10**6)) == 1000
    assert max(evaluation._blocks(1000, 10**6)) == 4


@pytest.mark.parametrize("settings", [{"resamples": 0}, {"level": 0}, {"level": 1}])
def test_impossible_intervals_are_errors(settings):
    with pytest.raises(ValueError, match="must be"):
        bootstrap_interval(torch.ones(3, 1), **settings)


def test_no_columns_have_no_interval():
    low, high = bootstrap_interval(torch.zeros(3, 0))
    assert low.shape == high.shape == (0,)
