"""avg@k, pass@k, maj@k."""

from itertools import permutations

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY

from lit_reason.functional import majority_at_k, mean_at_k, pass_at_k


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
    with pytest.raises(ValueError, match="must lie in"):
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
