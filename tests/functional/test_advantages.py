"""GAE, length-adaptive lambda, reward placement and the KL reward."""

import math
import time

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, generators, masks, noise, poison

from lit_reason.functional import (
    gae,
    kl_penalised_rewards,
    length_adaptive_lambda,
    outcome_to_tokens,
)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


R, V = f64([[0.0, 0, 1]]), f64([[0.2, 0.5, 0.6]])
ALL = torch.ones(1, 3, dtype=torch.bool)


def close(got, want, atol=1e-9):
    torch.testing.assert_close(got, torch.as_tensor(want, dtype=got.dtype), rtol=0, atol=atol)


@PROPERTY
@given(masks(), generators(), st.floats(0, 1), st.floats(0, 1), st.booleans(), st.booleans())
def test_gae_equals_the_definition(mask, generator, gamma, lam, per_row, bootstrapped):
    rewards, values = noise(generator, *mask.shape), noise(generator, *mask.shape)
    lam = lam * torch.rand(len(mask), generator=generator).double() if per_row else lam
    after = noise(generator, len(mask)) if bootstrapped else None
    want = oracles.gae(rewards, values, mask, gamma, lam, after)
    got = gae(poison(rewards, mask), poison(values, mask), mask, gamma, lam, after)
    close(got, want)
    narrow = after.float() if bootstrapped else None
    in32 = gae(rewards.float(), values.float(), mask, gamma, lam, narrow)
    assert in32.dtype == torch.float32
    close(in32.double(), want, 1e-4)


@pytest.mark.parametrize(
    ("gamma", "lam", "want"),
    [
        (1.0, 1.0, [0.8, 0.5, 0.4]),
        (1.0, 0.95, [0.756, 0.48, 0.4]),
        (1.0, 0.5, [0.45, 0.3, 0.4]),
        (1.0, 0.0, [0.3, 0.1, 0.4]),
        (0.9, 0.95, [0.57661, 0.382, 0.4]),
        (0.9, 1.0, [0.61, 0.4, 0.4]),
    ],
)
def test_gae_golden_values(gamma, lam, want):
    close(gae(R, V, ALL, gamma, lam)[0], want)


def test_returns_golden_values():
    close((gae(R, V, ALL) + V)[0], [1.0, 1, 1])
    close((gae(R, V, ALL, lam=0.95) + V)[0], [0.956, 0.98, 1])


def test_decoupled_golden_values():
    advantages, returns = gae(R, V, ALL, lam=0.95), gae(R, V, ALL, lam=1.0) + V
    close(advantages[0], [0.756, 0.48, 0.4])
    close(returns[0], [1.0, 1, 1])
    assert not torch.allclose(returns, advantages + V)


def test_kl_reward_golden_values():
    """beta = .02 and k1 = [.5, -.25, 1] give r = [-.01, .005, .98]."""
    k1 = f64([[0.5, -0.25, 1.0]])
    rewards = kl_penalised_rewards(R, k1 - 3.0, torch.full((1, 3), -3.0).double(), ALL, 0.02)
    close(rewards[0], [-0.01, 0.005, 0.98])
    close(gae(rewards, V, ALL)[0], [0.775, 0.485, 0.38])


def test_bootstrap_golden_values():
    zero, after = torch.zeros_like(R), f64([0.7])
    close(gae(zero, V, ALL, bootstrap=after)[0], [0.5, 0.2, 0.1])
    close(gae(zero, V, ALL, lam=0.95, bootstrap=after)[0], [0.48525, 0.195, 0.1])


@pytest.mark.parametrize(
    ("lam", "want", "targets"),
    [
        (1.0, [0.8, 0.6, 0.4], [1, 1, 1]),
        (0.5, [0.4] * 3, [0.6, 0.8, 1.0]),
        (0.0, [0.2, 0.2, 0.4], None),
    ],
)
@pytest.mark.parametrize("padding", [9.0, -4.0, float("nan"), float("inf")])
def test_b11_critic_output_on_padding_does_not_leak(lam, want, targets, padding):
    mask = torch.tensor([[True, True, True, False, False]])
    values = f64([[0.2, 0.4, 0.6, padding, padding]])
    rewards = f64([[0.0, 0, 1, padding, padding]])
    got = gae(rewards, values, mask, lam=lam)[0]
    close(got, [*want, 0, 0])
    if targets:
        close(got[:3] + values[0, :3], targets)


@PROPERTY
@given(st.integers(1, 7), generators(), st.floats(0, 1))
def test_lambda_return_identity(steps, generator, lam):
    """A + V is the lambda-return; its weights sum to one."""
    rewards, values = noise(generator, 1, steps), noise(generator, 1, steps)
    got = gae(rewards, values, torch.ones(1, steps, dtype=torch.bool), lam=lam) + values
    r, v = rewards[0].tolist(), values[0].tolist()
    close(got[0], [oracles.lambda_return(r, v, lam, t) for t in range(steps)])
    weights = [(1 - lam) * lam ** (k - 1) for k in range(1, steps)] + [lam ** (steps - 1)]
    assert math.fsum(weights) == pytest.approx(1)


def test_the_outcome_fades_over_a_hundred_tokens():
    """lam = .95 leaves .95^100 = .00592 of the outcome 100 tokens before the end."""
    outcome = torch.zeros(1, 101).double()
    outcome[0, -1] = 1.0
    got = gae(outcome, 0 * outcome, torch.ones(1, 101, dtype=torch.bool), lam=0.95)
    assert got[0, 0].item() == pytest.approx(0.00592, abs=1e-6)


@PROPERTY
@given(masks(), generators(), st.floats(-9, 9))
def test_the_target_at_lambda_one_is_the_reward_to_go_whatever_the_critic(mask, generator, scale):
    rewards, values = noise(generator, *mask.shape), noise(generator, *mask.shape, scale=scale)
    want = oracles.scatter(
        [[math.fsum(row[t:]) for t in range(len(row))] for row in oracles.rows_of(rewards, mask)],
        mask,
    )
    close((gae(rewards, values, mask) + values) * mask, want)


def test_packed_sequences_are_told_apart_by_a_mask_each():
    """Two sequences in one row, the second of other length: each as if it stood alone."""
    first, second = f64([[0.2, 0.5, 0.6]]), f64([[0.1, -0.3]])
    rewards, values = f64([[0.0, 0, 1, 0, -1]]), torch.cat([first, second], 1)
    masks_ = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]], dtype=torch.bool)
    packed = gae(rewards.expand(2, 5), values.expand(2, 5), masks_, lam=0.95).sum(0)
    alone = [
        gae(rewards[:, :3], first, ALL, lam=0.95),
        gae(rewards[:, 3:], second, ALL[:, :2], lam=0.95),
    ]
    close(packed, torch.cat(alone, 1)[0])
    close(packed[:3], [0.756, 0.48, 0.4])
    leaking = gae(rewards, values, torch.ones(1, 5, dtype=torch.bool), lam=0.95)
    assert (leaking[0, :3] - packed[:3]).abs().min() > 0.1


def test_terminal_reward_decays_with_distance():
    """dA_t / dr_{T-1} = lam^(T-1-t)."""
    steps, lam = 6, 0.9
    mask, values = torch.ones(1, steps, dtype=torch.bool), torch.randn(1, steps).double()
    bump = torch.zeros(1, steps).double()
    bump[0, -1] = 1.0
    slope = gae(bump, values, mask, lam=lam) - gae(0 * bump, values, mask, lam=lam)
    close(slope[0], [lam ** (steps - 1 - t) for t in range(steps)])


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_perfect_critic_has_no_advantage(lam):
    rewards = f64([[0.5, -1.0, 2.0, 0.25]])
    values = rewards.flip(1).cumsum(1).flip(1)
    close(gae(rewards, values, torch.ones(1, 4, dtype=torch.bool), lam=lam)[0], [0.0] * 4)


def test_constant_shift_of_the_critic():
    """gamma = lam = 1: A moves by -c, returns stay."""
    close(gae(R, V + 0.3, ALL), gae(R, V, ALL) - 0.3)
    close(gae(R, V + 0.3, ALL) + V + 0.3, gae(R, V, ALL) + V)


def test_padding_gap_permutation_and_packing():
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1]], dtype=torch.bool)
    values = torch.full((3, 5), 999.0).double()
    values[mask] = V.repeat(3, 1).flatten()
    rewards = outcome_to_tokens(torch.ones(3).double(), mask)
    got = gae(rewards, values, mask, lam=0.95)
    close(got[mask].view(3, 3), [[0.756, 0.48, 0.4]] * 3)
    assert (got[~mask] == 0).all()
    order = [2, 0, 1]
    close(gae(rewards[order], values[order], mask[order], lam=0.95), got[order])


def test_equal_lambdas_make_decoupling_vanish_and_tensor_equals_scalar():
    a, b = gae(R, V, ALL, lam=0.95), gae(R, V, ALL, lam=f64([0.95]))
    assert torch.equal(a, b)


def test_no_gradient_flows():
    rewards, values = R.clone().requires_grad_(), V.clone().requires_grad_()
    assert not gae(rewards, values, ALL).requires_grad
    assert not kl_penalised_rewards(rewards, values, values, ALL, 0.1).requires_grad


def test_half_precision_inputs_are_summed_in_float32():
    steps = 600
    mask = torch.ones(1, steps, dtype=torch.bool)
    got = gae(torch.ones(1, steps).bfloat16(), torch.zeros(1, steps).bfloat16(), mask)
    assert got[0, 0] == steps  # bfloat16 sums stop at 256


def test_large_batch_is_fast():
    shape = (512, 4096)
    rewards, values = torch.zeros(shape), torch.randn(shape)
    mask, lam = torch.rand(shape) < 0.9, torch.rand(512)
    times = []
    for _ in range(5):
        start = time.thread_time()  # what else runs on the machine does not count
        gae(rewards, values, mask, lam=lam)
        times.append(time.thread_time() - start)
    assert min(times) < 0.5


# ---- length-adaptive lambda ----------------------------------------------------------------------


def test_length_adaptive_lambda_golden_values():
    want = {
        0: 0, 1: 0, 20: 0, 21: 0.047619, 40: 0.5, 100: 0.8, 200: 0.9, 400: 0.95, 1000: 0.98,
        2000: 0.99, 4096: 0.9951171875, 8192: 0.99755859375, 16384: 0.998779296875,
        20480: 0.9990234375,
    }  # fmt: skip
    lam = length_adaptive_lambda(torch.tensor(list(want)), 0.05)
    close(lam, list(want.values()), 2e-7)


def test_effective_horizon_is_a_share_of_the_length():
    for length in (100, 400, 2000):
        lam = length_adaptive_lambda(f64(float(length)), 0.05).item()
        total = math.fsum(lam**t for t in range(length))
        assert total == pytest.approx(0.05 * length * (1 - lam**length), abs=1e-11)
        assert length != 100 or total == pytest.approx(4.999999999, abs=1e-9)
    lam = length_adaptive_lambda(f64(1e6), 0.05).item()
    assert lam ** (1e6 - 1) == pytest.approx(2.06e-9, rel=2e-3)


@PROPERTY
@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=9), st.floats(1e-3, 10), st.floats(0, 0.99)
)
def test_length_adaptive_lambda_is_monotone_and_below_one(lengths, alpha, floor):
    lam = length_adaptive_lambda(torch.tensor(sorted(lengths)), alpha, floor)
    assert (lam.diff() >= 0).all()
    assert ((lam >= torch.tensor(floor)) & (lam < 1)).all()


@PROPERTY
@given(
    st.lists(st.integers(0, 10**5), min_size=1, max_size=9), st.floats(1e-2, 10), st.floats(0, 0.99)
)
def test_length_adaptive_lambda_equals_the_formula(lengths, alpha, floor):
    want = [oracles.length_adaptive_lambda(n, alpha, floor) for n in lengths]
    close(length_adaptive_lambda(torch.tensor(lengths).double(), alpha, floor), want)


# ---- reward placement ----------------------------------------------------------------------------


@PROPERTY
@given(masks(), generators())
def test_outcome_reward_equals_the_loops(mask, generator):
    rewards = noise(generator, len(mask))
    got = outcome_to_tokens(rewards, mask)
    close(got, oracles.outcome_to_tokens(rewards, mask))
    close(got.sum(1), torch.where(mask.any(1), rewards, 0.0))
    assert ((got != 0) & ~mask).sum() == 0


def test_b12_outcome_reward_stands_on_the_last_token():
    """End token inside, no end token at all, end token first."""
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    got = outcome_to_tokens(torch.ones(3), mask)
    assert got.nonzero().tolist() == [[0, 2], [1, 4], [2, 0]]
    assert got.sum(1).tolist() == [1, 1, 1]


@PROPERTY
@given(masks(), generators())
def test_kl_penalised_rewards_equal_the_loops(mask, generator):
    r, p, q = (noise(generator, *mask.shape) for _ in range(3))
    got = kl_penalised_rewards(poison(r, mask), poison(p, mask), poison(q, mask), mask, 0.3)
    close(got, oracles.kl_penalised_rewards(r, p, q, mask, 0.3))


def test_log_probs_in_half_precision_are_subtracted_in_float32():
    new, ref = torch.tensor([[-10.0625]]).bfloat16(), torch.tensor([[-0.03125]]).bfloat16()
    mask = torch.ones(1, 1, dtype=torch.bool)
    got = kl_penalised_rewards(torch.zeros(1, 1), new, ref, mask, coef=1.0)
    assert got.item() == 10.03125


def test_a_bootstrap_value_in_float64_is_kept_in_float64():
    x, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    found = gae(x, x, mask, 0.9, 1.0, torch.tensor([1 / 3], dtype=torch.float64))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor([[0.27, 0.3]], dtype=torch.float64))


def test_values_in_float64_beside_rewards_in_float32_are_kept_in_float64():
    values = torch.tensor([[1 / 3, 0.1]], dtype=torch.float64)
    found = gae(torch.zeros(1, 2), values, torch.ones(1, 2, dtype=torch.bool), 0.9)
    assert found.dtype == torch.float64
    close(found, [[-1 / 3, -0.1]], 1e-15)


def test_an_empty_response_has_the_smallest_lambda_whatever_alpha():
    assert length_adaptive_lambda(torch.tensor([0]), 1e300, lambda_min=0.25) == 0.25
