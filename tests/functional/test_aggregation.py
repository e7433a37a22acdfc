"""Loss aggregation: golden values, oracles, and independence of how the batch is split."""

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, generators, masks, noise, poison

from lit_reason.functional import (
    aggregate,
    clipped_surrogate,
    constant_mean,
    constant_weights,
    prompt_mean,
    prompt_weights,
    sequence_mean,
    sequence_weights,
    token_mean,
    token_weights,
)

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
LOSS = torch.tensor([[1.0, 1, 9, 9], [0, 0, 0, 0]])


def approx(x, tolerance=1e-6):
    return pytest.approx(x, abs=tolerance)


@PROPERTY
@given(masks(), generators())
def test_aggregations_equal_the_loops(mask, generator):
    loss = noise(generator, *mask.shape)
    ids = torch.randint(0, 3, (len(mask),), generator=generator)
    nans = poison(loss, mask)
    assert token_mean(nans, mask).item() == approx(oracles.token_mean(loss, mask))
    assert sequence_mean(nans, mask).item() == approx(oracles.sequence_mean(loss, mask))
    assert prompt_mean(nans, mask, ids).item() == approx(oracles.prompt_mean(loss, mask, ids))
    assert constant_mean(nans, mask, 7).item() == approx(oracles.constant_mean(loss, mask, 7))


def test_golden_values():
    assert sequence_mean(LOSS, MASK).item() == approx(0.5)
    assert token_mean(LOSS, MASK).item() == approx(1 / 3)
    assert constant_mean(LOSS, MASK, 10).item() == approx(0.1)


def test_opposite_advantages_cancel_by_sequence_but_not_by_token():
    """A = (+1, -1), ratio 1: objective 0 by sequence, (2 - 4) / 6 by token."""
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 4)
    objective = -clipped_surrogate(torch.zeros(2, 4), torch.zeros(2, 4), advantages)
    assert sequence_mean(objective, MASK).item() == approx(0.0)
    assert token_mean(objective, MASK).item() == approx(-1 / 3)


def test_two_prompts_golden_values():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    loss = torch.tensor([[1.0] * 4, [1.0] * 4, [0.0] * 4, [0.0] * 4])
    ids = torch.tensor([5, 5, 2, 2])
    assert token_mean(loss, mask).item() == approx(0.75)
    assert prompt_mean(loss, mask, ids).item() == approx(0.5)
    assert sequence_mean(loss, mask).item() == approx(0.5)


def test_equal_lengths_make_all_aggregations_agree():
    loss, mask = torch.randn(6, 4), torch.ones(6, 4, dtype=torch.bool)
    want = loss.mean().item()
    ids = torch.tensor([0, 0, 1, 1, 2, 2])
    for got in (token_mean(loss, mask), sequence_mean(loss, mask), prompt_mean(loss, mask, ids),
                constant_mean(loss, mask, 4)):  # fmt: skip
        assert got.item() == approx(want)


def test_b08_filtered_tokens_leave_numerator_and_denominator():
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    ids, loss = torch.tensor([0, 1]), torch.ones(2, 4)
    for got in (token_mean(loss, mask), sequence_mean(loss, mask), prompt_mean(loss, mask, ids),
                constant_mean(loss, mask, 2)):  # fmt: skip
        assert got.item() == approx(1.0)


def test_b09_token_mean_over_micro_batches():
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    loss = torch.tensor([[1.0] * 6, [3.0] * 6])
    weights, count = token_weights(mask)
    parts = [aggregate(loss[i : i + 1], weights[i : i + 1], count) for i in (0, 1)]
    assert sum(parts).item() == approx(2.5)
    naive = sum(token_mean(loss[i : i + 1], mask[i : i + 1]) for i in (0, 1)) / 2
    assert naive.item() == approx(2.0)  # the bug: a mean of means
    whole, split = (torch.zeros(2, 6, requires_grad=True) for _ in range(2))
    aggregate(loss + whole, weights, count).backward()
    for i in (0, 1):
        rows = slice(i, i + 1)
        aggregate((loss + split)[rows], weights[rows], count).backward()
    assert torch.equal(whole.grad, split.grad)
    torch.testing.assert_close(whole.grad, mask / 8)


@pytest.mark.parametrize("length", [257, 2049, 70001])
def test_long_responses_are_counted_to_the_token(length):
    """Half precision counts to 2048, bfloat16 to 256; both then stand still."""
    mask, ids = torch.ones(1, length, dtype=torch.bool), torch.zeros(1).long()
    assert token_weights(mask)[1] == length
    for weights in (sequence_weights(mask)[0], prompt_weights(mask, ids)[0]):
        assert (weights == 1 / torch.tensor(length, dtype=torch.float32)).all()


def test_naive_accumulation_differs_from_the_token_mean():
    naive = sum(token_mean(LOSS[i : i + 1], MASK[i : i + 1]) for i in (0, 1)) / 2
    assert naive.item() == approx(0.5)
    assert token_mean(LOSS, MASK).item() == approx(1 / 3)


@pytest.mark.parametrize("padding", [float("nan"), float("inf")])
def test_b07_nothing_valid_gives_zero_loss_and_zero_gradient(padding):
    mask, ids = torch.zeros(2, 4, dtype=torch.bool), torch.tensor([0, 1])
    pairs = [token_weights(mask), sequence_weights(mask), prompt_weights(mask, ids),
             constant_weights(mask, 4)]  # fmt: skip
    for weights, count in pairs:
        loss = torch.full((2, 4), padding, requires_grad=True)
        out = aggregate(loss, weights, count)
        (grad,) = torch.autograd.grad(out, loss)
        assert (out.item(), count.item()) == (0.0, 0.0)
        assert (grad == 0).all()


def test_b07_fully_masked_row_has_no_effect():
    mask = torch.cat([MASK, torch.zeros(1, 4, dtype=torch.bool)])
    loss = torch.cat([LOSS, torch.full((1, 4), float("nan"))])
    ids = torch.tensor([0, 1, 2])
    assert sequence_mean(loss, mask) == sequence_mean(LOSS, MASK)
    assert token_mean(loss, mask) == token_mean(LOSS, MASK)
    assert prompt_mean(loss, mask, ids) == prompt_mean(LOSS, MASK, ids[:2])
    assert constant_mean(loss, mask, 3) == constant_mean(LOSS, MASK, 3)


@PROPERTY
@given(masks(), generators(), st.integers(1, 5))
def test_weights_and_counts_equal_the_loops(mask, generator, groups):
    ids = torch.randint(0, groups, (len(mask),), generator=generator)
    pairs = [
        (token_weights(mask), oracles.token_weights(mask)),
        (sequence_weights(mask), oracles.sequence_weights(mask)),
        (prompt_weights(mask, ids), oracles.prompt_weights(mask, ids)),
        (constant_weights(mask, 7), oracles.constant_weights(mask, 7)),
    ]
    for (weights, count), (want, n) in pairs:
        assert weights.flatten().tolist() == approx(want)
        assert count.item() == n


@PROPERTY
@given(masks(), generators(), st.just(0.0) | st.floats(1e-6, 9))
def test_aggregate_equals_the_loops_for_any_weights_and_count(mask, generator, count):
    loss, weights = noise(generator, *mask.shape), noise(generator, *mask.shape) * mask
    got = aggregate(poison(loss, mask), weights, count).item()
    assert got == approx(oracles.aggregate(loss, weights, count))


def test_loss_weight_of_zero_hides_a_nan():
    loss = torch.tensor([[float("nan"), 2.0]], requires_grad=True)
    out = aggregate(loss, torch.tensor([[0.0, 1.0]]), 1)
    out.backward()
    assert out == 2.0
    assert loss.grad.tolist() == [[0.0, 1.0]]


def test_a_count_given_as_a_number_is_not_rounded_to_float32():
    x, weights = torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    assert aggregate(x, weights, 16_777_217).item() == 2 / 16_777_217
