"""Group-relative advantages."""

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, generators, masks, noise, poison

from lit_reason.filters import DropUniform
from lit_reason.functional import group_relative, group_relative_process, unchecked_values


def close(got, want, atol=1e-5):
    torch.testing.assert_close(
        got.double(), torch.as_tensor(want, dtype=torch.float64), rtol=0, atol=atol
    )


def one_group(rewards, **options):
    rewards = torch.as_tensor(rewards)
    return group_relative(rewards, torch.zeros(len(rewards), dtype=torch.long), **options)


@PROPERTY
@given(st.integers(1, 12), generators(), st.booleans(), st.sampled_from([0, 1]), st.booleans())
def test_group_relative_equals_the_loops(size, generator, scale, ddof, binary):
    ids = torch.randint(-2, 3, (size,), generator=generator)
    rewards = noise(generator, size)
    rewards = (rewards > 0).double() if binary else rewards
    options = {"scale_by_std": scale, "ddof": ddof}
    got = group_relative(rewards, ids, **options)
    close(got, oracles.group_relative(rewards, ids, **options), 1e-9)
    for g in ids.unique():
        assert abs(got[ids == g].sum().item()) < 1e-6
    order = torch.randperm(size, generator=generator)
    close(group_relative(rewards[order], ids[order], **options), got[order], 1e-12)


@PROPERTY
@given(st.integers(1, 12), generators(), st.booleans())
def test_responses_left_out_are_as_if_they_had_not_been_drawn(size, generator, scale):
    ids = torch.randint(0, 3, (size,), generator=generator)
    valid = torch.rand(size, generator=generator) < 0.6
    rewards = poison(noise(generator, size), valid)
    got = group_relative(rewards, ids, scale, valid=valid)
    assert (got[~valid] == 0).all()
    close(got[valid], oracles.group_relative(rewards[valid], ids[valid], scale_by_std=scale), 1e-9)


def test_b03_a_group_with_one_response_left_is_zero():
    rewards, valid = torch.tensor([1, 0, 1, 0]), torch.tensor([True, False, True, True])
    close(group_relative(rewards, torch.tensor([0, 0, 1, 1]), valid=valid), [0, 0, 0.7071, -0.7071])
    assert (group_relative(rewards, torch.zeros(4).long(), valid=torch.zeros(4).bool()) == 0).all()


@pytest.mark.parametrize(
    ("rewards", "ddof", "want"),
    [
        ([1.0, 1, -1, -1], 0, [1, 1, -1, -1]),
        ([1.0, 1, -1, -1], 1, [0.866025, 0.866025, -0.866025, -0.866025]),
        ([1.0, 0, 0, 0], 0, [1.732051, -0.577350, -0.577350, -0.577350]),
        ([1.0, 0, 0, 0], 1, [1.5, -0.5, -0.5, -0.5]),
        ([1.0] * 15 + [-1.0], 0, [0.258199] * 15 + [-3.872983]),
        ([1.0] * 15 + [-1.0], 1, [0.25] * 15 + [-3.75]),
        ([1, 0.5, -1, -1.5], 0, [1.212678, 0.727607, -0.727607, -1.212678]),
    ],
)
def test_golden_values(rewards, ddof, want):
    close(one_group(rewards, ddof=ddof), want, 1e-5)


@pytest.mark.parametrize("successes", range(1, 8))
def test_binary_closed_form(successes):
    p = successes / 8
    got = one_group([1.0] * successes + [0.0] * (8 - successes), ddof=0)
    close(got[0], ((1 - p) / p) ** 0.5)
    close(got[-1], -((p / (1 - p)) ** 0.5))


def test_affine_invariance_up_to_eps():
    rewards = torch.tensor([1.0, 0, 0, 1, 1])
    close(one_group(2 * rewards - 1), one_group(rewards), 1e-5)


def test_dr_grpo_golden_values_and_leave_one_out():
    rewards = torch.tensor([1.0, 0, 0, 1, 1])
    got = one_group(rewards, scale_by_std=False)
    close(got, [0.4, -0.6, -0.6, 0.4, 0.4])
    others = torch.stack([rewards[torch.arange(5) != i].mean() for i in range(5)])
    close(got, 4 / 5 * (rewards - others))


@pytest.mark.parametrize("value", [0.1, 0.3, 0.35, 1 / 3, 0.7, 1000.1])
@pytest.mark.parametrize("eps", [1e-8, 1e-6, 1e-4])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
def test_b01_identical_rewards_give_exactly_zero(value, eps, size):
    """B01: the rounding residue of the mean must not be divided by the one of the deviation."""
    for scale in (True, False):
        assert (one_group(torch.full((size,), value), eps=eps, scale_by_std=scale) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.3, 1000.1, -7.7])
def test_b01_rewards_that_differ_by_rounding_only_give_zero(dtype, value):
    x = torch.full((5,), value, dtype=dtype)
    x[2] = torch.nextafter(x[2], torch.tensor(torch.inf, dtype=dtype))
    assert x.max() > x.min()
    assert (one_group(x, eps=1e-30) == 0).all()
    assert (one_group(x, scale_by_std=False) == 0).all()


def test_differences_above_the_tolerance_are_kept():
    """A quarter of a thousandth is one token of DAPO's length ramp: a signal, not rounding."""
    got = one_group([1.0, 1.0 - 1 / 4096])
    close(got, [0.707107, -0.707107], 1e-2)
    assert (one_group([1.0, 1.0 - 1 / 4096], tolerance=1e-3) == 0).all()


@pytest.mark.parametrize(
    ("rewards", "differ"),
    [
        ([1e-7, 5e-7], False),  # relative to 1 where rewards are smaller than that
        ([0.0, 9e-7], False),
        ([0.0, 1.2e-6], True),
        ([0.0, -1.2e-6], True),
        ([100.0, 100.0 + 9e-5], False),  # relative to the largest above
        ([-100.0, -100.0 - 9e-5], False),
        ([100.0, 100.0 + 1.2e-4], True),
    ],
)
def test_what_counts_as_no_difference_is_relative_to_the_rewards_but_at_least_to_one(
    rewards, differ
):
    got = one_group(torch.tensor(rewards, dtype=torch.float64), eps=0.0)
    close(got.abs(), [0.5**0.5 if differ else 0.0] * 2)


def test_advantages_carry_no_gradient():
    rewards = torch.tensor([1.0, 0.0], requires_grad=True)
    mask, ids = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2).long()
    assert not group_relative(rewards, ids).requires_grad
    assert not group_relative(rewards, ids, scale_by_std=False).requires_grad
    assert not group_relative_process(rewards[:, None], mask, mask, ids).requires_grad


@PROPERTY
@given(st.lists(st.booleans(), min_size=2, max_size=16), st.booleans())
def test_a_group_of_both_verdicts_has_no_zero_advantage(correct, scale):
    """Dynamic sampling keeps 0 < |{correct}| < G, so that every kept response trains."""
    rewards = torch.tensor([1.0 if c else -1.0 for c in correct])
    kept = DropUniform()(torch.tensor([correct]), rewards[None], torch.ones(1, len(correct)).bool())
    assert bool((one_group(rewards, scale_by_std=scale) != 0).all()) == bool(kept)


def test_b01_one_deviating_member_keeps_its_signal():
    for scale, others, last in ((True, 0.353553, -2.474874), (False, 0.04375, -0.30625)):
        got = one_group([0.35] * 7 + [0.0], scale_by_std=scale)
        close(got, [others] * 7 + [last], 3e-5)
    # leave-one-out (RLOO) is the centred reward times G / (G - 1)
    close(got * 8 / 7, [0.05] * 7 + [-0.35], 1e-6)
    got = one_group([0.35] * 7 + [0.0])
    assert torch.isfinite(got).all()
    close(got[-1], -2.474874, 3e-5)  # eps against a deviation of 0.124


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("ddof", "want"), [(1, (0.35355, -2.47487)), (0, (0.37796, -2.64575))])
def test_b02_integer_bool_and_low_precision_rewards(dtype, ddof, want):
    rewards = torch.tensor([1] * 7 + [0]).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = one_group(rewards, ddof=ddof)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    close(got, [want[0]] * 7 + [want[1]], 2e-5)


@pytest.mark.parametrize("ddof", [0, 1])
def test_b03_group_of_one_is_zero(ddof):
    close(group_relative(torch.tensor([1.0, 5.0]), torch.tensor([0, 1]), ddof=ddof), [0, 0], 0)


def test_b04_groups_of_unequal_size():
    rewards = torch.tensor([1.0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1, 0])
    ids = torch.tensor([0] * 4 + [1] * 3 + [2] * 5)
    a, b, c = (
        [0.86603] * 2 + [-0.86603] * 2,
        [1.15470, -0.57735, -0.57735],
        [0.44721] * 4 + [-1.78885],
    )
    close(group_relative(rewards, ids), a + b + c, 2e-5)
    order = torch.tensor([11, 0, 4, 7, 1, 5, 8, 2, 6, 9, 3, 10])
    close(group_relative(rewards[order], ids[order]), torch.tensor(a + b + c)[order], 2e-5)


@PROPERTY
@given(masks(), generators(), st.booleans())
def test_process_supervision_equals_the_loops(mask, generator, scale):
    ids = torch.randint(0, 3, (len(mask),), generator=generator)
    step_mask = torch.rand(mask.shape, generator=generator) < 0.5
    rewards = noise(generator, *mask.shape)
    got = group_relative_process(poison(rewards, step_mask), step_mask, mask, ids, scale)
    want = oracles.group_relative_process(rewards, step_mask, mask, ids, scale_by_std=scale)
    close(got, want, 1e-9)


def test_process_supervision_with_one_final_step_is_outcome_supervision():
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.bool)
    step_mask = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    rewards = torch.tensor([1.0, 0.0, 0.5])
    got = group_relative_process(
        rewards[:, None] * step_mask, step_mask, mask, torch.zeros(3).long()
    )
    close(got, one_group(rewards)[:, None] * mask)


def test_masked_responses_stay_in_the_statistics():
    """A filtered (overlong) response has no advantage but keeps its part in mean and deviation."""
    step_mask = torch.tensor([[False, True], [False, True], [False, True]])
    mask = torch.tensor([[True, True], [True, True], [False, False]])
    rewards = torch.tensor([[0.0, 1], [0, 1], [0, -1]])
    got = group_relative_process(rewards, step_mask, mask, torch.zeros(3).long())
    close(got, [[0.577350] * 2] * 2 + [[0, 0]])


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_reward_that_is_not_finite_shows_where_values_are_not_checked(value):
    rewards, ids = torch.tensor([1.0, 0.0, value]), torch.zeros(3, dtype=torch.long)
    with unchecked_values():
        assert group_relative(rewards, ids).isnan().any()
