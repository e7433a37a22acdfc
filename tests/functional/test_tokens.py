"""Positions and response masks: from positions and counts, never from the pad id."""

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, masks

from lit_reason.functional import (
    last_token,
    outcome_to_tokens,
    position_ids,
    relative_position,
    response_mask,
    sequence_mean,
    token_mean,
)

EOS = [2]


@PROPERTY
@given(masks())
def test_position_ids_count_the_real_tokens(mask):
    got = position_ids(mask)
    assert [row[m].tolist() for row, m in zip(got, mask, strict=True)] == oracles.position_ids(mask)
    assert torch.equal(position_ids(mask.long()), got)
    assert (got >= 0).all()


def test_position_ids_of_a_left_padded_row_equal_those_alone():
    mask = torch.tensor([[0] * 7 + [1] * 4])
    assert position_ids(mask)[0, 7:].tolist() == position_ids(torch.ones(1, 4).bool())[0].tolist()


@PROPERTY
@given(masks())
def test_the_last_token_is_the_one_behind_which_there_is_none(mask):
    got = last_token(mask)
    assert [row.nonzero().flatten().tolist() for row in got] == [
        [] if t is None else [t] for t in oracles.last_token(mask)
    ]


@PROPERTY
@given(masks(), st.integers(1, 7))
def test_relative_positions_cut_a_response_into_equal_parts(mask, parts):
    got = relative_position(mask, parts)
    rows = [row[m].tolist() for row, m in zip(got, mask, strict=True)]
    assert rows == oracles.relative_position(mask, parts)
    assert (got[~mask] == -1).all()


@PROPERTY
@given(
    st.integers(1, 5), st.integers(0, 8), st.integers(0, 2**16), st.sampled_from([[2], [2, 3], []])
)
def test_response_mask_equals_the_loops(rows, steps, seed, eos_ids):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 6, (rows, steps), generator=g)
    lengths = torch.randint(0, steps + 1, (rows,), generator=g)
    got = response_mask(ids, eos_ids, lengths)
    want = oracles.response_mask(ids, eos_ids, lengths.tolist())
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_c02_pad_id_equal_to_eos_id_keeps_the_sampled_end():
    mask, truncated = response_mask(torch.tensor([[7, 8, 2, 2, 2]]), EOS)
    assert mask.int().tolist() == [[1, 1, 1, 0, 0]]
    assert not truncated.item()
    assert outcome_to_tokens(torch.ones(1), mask)[0].tolist() == [0, 0, 1, 0, 0]


def test_c03_end_ids_in_the_prompt_do_not_matter():
    """Response A [7,7,7] is cut, B [7,2] is not; only response ids are looked at."""
    ids, lengths = torch.tensor([[7, 7, 7], [7, 2, 2]]), torch.tensor([3, 2])
    mask, truncated = response_mask(ids, EOS, lengths)
    assert truncated.tolist() == [True, False]
    assert mask.sum(1).tolist() == [3, 2]


def test_c03_a_pad_equal_to_eos_does_not_end_a_cut_response():
    """A row cut after two tokens in a wider batch: the pads behind it are not end tokens."""
    mask, truncated = response_mask(torch.tensor([[7, 7, 2, 2]]), EOS, torch.tensor([2]))
    assert truncated.tolist() == [True]
    assert mask.int().tolist() == [[1, 1, 0, 0]]


def test_c05_exactly_at_the_limit():
    ids = torch.tensor([[7, 7, 7, 2], [7, 7, 7, 7], [7, 2, 0, 0]])
    assert response_mask(ids, EOS)[1].tolist() == [False, True, False]
    narrow = torch.tensor([[7, 7, 2], [7, 2, 0]])
    assert response_mask(narrow, EOS)[1].tolist() == [False, False]


def test_several_end_ids():
    mask, truncated = response_mask(torch.tensor([[7, 3, 2], [7, 7, 2]]), [2, 3])
    assert mask.sum(1).tolist() == [2, 3]
    assert not truncated.any()


def test_c18_empty_responses():
    """[EOS] has length 1; an empty list has no token, and neither yields a nan."""
    ids, lengths = torch.tensor([[2, 0, 0], [7, 8, 2], [0, 0, 0]]), torch.tensor([1, 3, 0])
    mask, truncated = response_mask(ids, EOS, lengths)
    assert mask.int().tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
    assert truncated.tolist() == [False, False, True]
    for mean in (token_mean, sequence_mean):
        assert mean(torch.ones(3, 3), mask) == 1.0


@pytest.mark.parametrize("lengths", [[4], [-1]])
def test_impossible_lengths_are_refused(lengths):
    with pytest.raises(ValueError, match="lengths"):
        response_mask(torch.zeros(1, 3).long(), EOS, torch.tensor(lengths))
