"""Clipped surrogate, clip masks, value loss, KL estimators, language-model loss."""

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import PROPERTY, generators, noise

from lit_reason.functional import (
    clip_masks,
    clipped_surrogate,
    gae,
    group_relative,
    kl_k1,
    kl_k2,
    kl_k3,
    masked_mean,
    nll,
    token_mean,
    value_loss,
)


def close(got, want, atol=1e-6):
    want = torch.as_tensor(want, dtype=got.dtype)
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


def surrogate_and_slope(ratio, advantage, low, high, dual=None):
    """Loss and its derivative with respect to the ratio, in float64."""
    ratio = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor(advantage, dtype=torch.float64)
    loss = clipped_surrogate(ratio.log(), torch.zeros_like(ratio), advantage, low, high, dual)
    (slope,) = torch.autograd.grad(loss.sum(), ratio)
    return loss.detach(), slope


@pytest.mark.parametrize(
    ("advantage", "ratio", "surrogate", "slope"),
    [
        (1, 0.5, 0.5, 1), (1, 1.25, 1.25, 1), (1, 1.29, 1.28, 0), (1, 5.0, 1.28, 0),
        (-1, 0.79, -0.8, 0), (-1, 0.81, -0.81, -1), (-1, 1.29, -1.29, -1), (-1, 5.0, -5.0, -1),
    ],
)  # fmt: skip
def test_clip_higher_golden_values(advantage, ratio, surrogate, slope):
    loss, grad = surrogate_and_slope([ratio], [float(advantage)], 0.2, 0.28)
    close(loss, [-surrogate], 1e-12)
    close(grad, [-slope], 1e-12)


def test_symmetric_and_dual_clip_golden_values():
    loss, grad = surrogate_and_slope([1.25], [1.0], 0.2, 0.2)
    close(torch.cat([loss, grad]), [-1.2, 0], 1e-12)
    loss, grad = surrogate_and_slope([5.0, 2.0, 5.0], [-1.0, -1.0, 1.0], 0.2, 0.28, 3.0)
    close(loss, [3.0, 2.0, -1.28], 1e-12)
    close(grad, [0.0, 1.0, 0.0], 1e-12)


def test_b17_clip_higher_and_the_sign_of_the_advantage():
    loss, grad = surrogate_and_slope([1.25, 1.5, 0.7, 1.5, 0.7], [1.0, 1, -1, -1, 1], 0.2, 0.28)
    close(loss, [-1.25, -1.28, 0.8, 1.5, -0.7], 1e-12)
    assert (grad == 0).tolist() == [False, True, True, False, False]


def test_probability_bounds_of_the_dapo_example():
    """Clipping p = .01 at 1.2 (1.28) allows .012 (.0128); p = .9 is in effect unconstrained."""
    for p, high, want in [(0.01, 0.2, 0.012), (0.01, 0.28, 0.0128), (0.9, 0.2, 1.08)]:
        loss, _ = surrogate_and_slope([100.0], [p], 0.2, high)
        close(-loss, [want], 1e-12)


@PROPERTY
@given(generators(), st.floats(0, 0.5), st.floats(0, 2), st.sampled_from([None, 1.5, 3.0]))
def test_surrogate_slope_and_masks_equal_the_loops(generator, low, high, dual):
    ratio, advantages = noise(generator, 40).exp(), noise(generator, 40)
    advantages[::7] = 0.0
    loss, slope = surrogate_and_slope(ratio.tolist(), advantages.tolist(), low, high, dual)
    pairs = zip(ratio.tolist(), advantages.tolist(), strict=True)
    bounds = low, high, dual
    pairs = list(pairs)
    close(loss, [oracles.clipped_surrogate(r, a, *bounds) for r, a in pairs], 1e-9)
    holding = [oracles.clip_masks(r, a, *bounds) for r, a in pairs]
    masks = clip_masks(ratio.log(), torch.zeros_like(ratio), advantages, low, high, dual)
    for name, mask in zip(("low", "high", "dual"), masks, strict=True):
        assert mask.tolist() == [bound == name for bound in holding]
    stopped = masks[0] | masks[1] | masks[2]
    assert torch.equal(slope == 0, stopped | (advantages == 0))
    close(slope, torch.where(stopped, 0.0, -advantages), 1e-9)
    assert (-loss <= ratio * advantages + 1e-9)[~masks[2]].all()  # min(.) <= r A


def test_complement_of_the_clip_masks_is_cispos_mask():
    ratio = torch.tensor([0.5, 0.5, 1.0, 1.0, 2.0, 2.0])
    advantages = torch.tensor([1.0, -1, 1, -1, 1, -1])
    low, high, dual = clip_masks(ratio.log(), torch.zeros(6), advantages, 0.2, 0.28)
    assert (~(low | high | dual)).tolist() == [True, False, True, True, False, True]
    assert not dual.any()


def test_on_policy_loss_is_minus_a_and_its_gradient_minus_a_score():
    """B15: before the first update ratios are exactly 1 and nothing is clipped."""
    for dtype in (torch.float32, torch.bfloat16):
        logprobs = (-torch.rand(9) * 40).to(dtype).requires_grad_()
        advantages = torch.linspace(-2, 2, 9)
        loss = clipped_surrogate(logprobs, logprobs, advantages, 0.0, 0.0)
        assert torch.equal(loss, -advantages)
        (grad,) = torch.autograd.grad(loss.sum(), logprobs)
        assert torch.equal(grad, -advantages.to(dtype))
        assert not any(m.any() for m in clip_masks(logprobs, logprobs, advantages, 0.0, 0.0))
        assert (kl_k3(logprobs, logprobs) == 0).all()


@pytest.mark.parametrize("bounds", [(0.2, 0.2), (0.2, 0.28)], ids=["PPO, GRPO", "DAPO, VAPO"])
def test_at_ratio_one_every_surrogate_has_the_gradient_of_cispo(bounds):
    """CISPO: sg(clip(r)) A log pi. GRPO's KL term is flat where policy and reference agree."""
    logprobs = -torch.rand(9).requires_grad_() - 0.1
    advantages, old = torch.linspace(-2, 2, 9), logprobs.detach()
    loss = clipped_surrogate(logprobs, old, advantages, *bounds) + 0.04 * kl_k3(logprobs, old)
    weight = (logprobs.detach() - old).exp().clamp(max=1 + bounds[1])
    grads = [
        torch.autograd.grad(x.sum(), logprobs)[0] for x in (loss, -weight * advantages * logprobs)
    ]
    assert torch.equal(*grads)
    close(grads[0], -advantages)


def test_grpo_gradient_coefficient():
    """DeepSeekMath Eq. 21, on-policy: A + beta (pi_ref / pi - 1) times the score."""
    ratio, advantages, beta = torch.tensor([0.5, 1.0, 2.0, 4.0]), torch.tensor([1.0, -1, 0, 2]), 0.5
    logprobs = torch.full((4,), -1.5, requires_grad=True)
    ref = logprobs.detach() + ratio.log()
    loss = clipped_surrogate(logprobs, logprobs, advantages) + beta * kl_k3(logprobs, ref)
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    close(-grad, [1 + 0.5 * -0.5, -1.0, 0.5 * 1.0, 2 + 0.5 * 3.0])


def test_b16_first_loss_is_zero_but_not_its_gradient():
    advantages = group_relative(torch.tensor([1, 0, 0, 1]), torch.zeros(4).long())[:, None]
    logprobs = torch.full((4, 3), -1.0, requires_grad=True)
    mask = torch.ones(4, 3, dtype=torch.bool)
    loss = token_mean(clipped_surrogate(logprobs, logprobs, advantages.expand(4, 3)), mask)
    (grad,) = torch.autograd.grad(loss, logprobs)
    assert abs(loss.item()) < 1e-6
    assert grad.norm() > 0.1


def test_unbounded_clip_is_importance_sampling():
    ratio, advantages = [0.01, 0.5, 3.0, 50.0], [1.0, -1.0, 1.0, -2.0]
    loss, slope = surrogate_and_slope(ratio, advantages, float("inf"), float("inf"))
    close(loss, [-r * a for r, a in zip(ratio, advantages, strict=True)], 1e-12)
    close(slope, [-a for a in advantages], 1e-12)


@pytest.mark.parametrize("gap", [-1000.0, -100.0, 100.0, 1000.0])
def test_extreme_log_ratios_stay_finite(gap):
    logprobs = torch.full((2,), gap, requires_grad=True)
    loss = clipped_surrogate(logprobs, torch.zeros(2), torch.tensor([1.0, -1.0]), 0.2, 0.28)
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(grad).all()


def test_log_ratios_are_clamped_on_both_sides():
    """Beyond ±20 the ratio is e^±20 and nothing flows; inside, gradient and ratio are exact."""
    logprobs = torch.tensor([-25.0, -19.0, 19.0, 25.0], dtype=torch.float64, requires_grad=True)
    old = torch.zeros_like(logprobs)
    loss = clipped_surrogate(logprobs, old, torch.ones_like(old), math.inf, math.inf)
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    want = [-math.exp(d) for d in (-20, -19, 19, 20)]
    torch.testing.assert_close(loss, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(grad[1:3], loss[1:3].detach(), rtol=1e-12, atol=0)
    assert grad[0] == grad[3] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [kl_k1, kl_k2, kl_k3, clipped_surrogate, value_loss, nll])
def test_half_precision_is_widened_before_any_arithmetic(function, dtype):
    """-0.1 minus -5.3 is no number of bfloat16, and neither is what follows from it."""
    generator = torch.Generator().manual_seed(0)
    count = {clipped_surrogate: 3, nll: 1}.get(function, 2)
    half = [(-3 * torch.rand(50, generator=generator)).to(dtype) for _ in range(count)]
    got = function(*half)
    assert got.dtype == torch.float32
    want = function(*[x.double() for x in half])
    torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-6)


def test_constants_receive_no_gradient():
    x, y, z = (torch.randn(3, requires_grad=True) for _ in range(3))
    clipped_surrogate(x, y, z).sum().backward()
    value_loss(x, y, z, 0.2).sum().backward()
    kl_k3(x, y).sum().backward()
    assert y.grad is None
    assert z.grad is None


# ---- value loss ---------------------------------------------------------------------------------


@PROPERTY
@given(generators(), st.sampled_from([None, 0.0, 0.2, 0.5]))
def test_value_loss_equals_the_loops(generator, clip):
    v, r, old = (noise(generator, 30) for _ in range(3))
    rows = zip(v.tolist(), r.tolist(), old.tolist(), strict=True)
    close(value_loss(v, r, old, clip), [oracles.value_loss(*row, clip) for row in rows], 1e-12)


@PROPERTY
@given(generators(), st.sampled_from([None, 0.0, 0.2, 0.5]))
def test_the_slope_of_the_value_loss_is_the_error_except_where_the_clip_holds(generator, clip):
    v, r, old = (noise(generator, 30) for _ in range(3))
    v.requires_grad_()
    (slope,) = torch.autograd.grad(value_loss(v, r, old, clip).sum(), v)
    error, step = v.detach() - r, v.detach() - old
    # held: beyond the bound, where the value at the bound is further from its target
    bound = torch.full_like(step, clip if clip is not None else float("inf"))
    at_bound = old + step.clamp(-bound, bound)
    held = (step.abs() > bound) & ((at_bound - r).abs() > error.abs())
    close(slope, torch.where(held, 0.0, error), 1e-12)


def test_b22_clipped_value_loss_takes_the_maximum():
    values = torch.tensor([1.0, -0.5], requires_grad=True)
    loss = value_loss(values, torch.tensor([0.9, 1.0]), torch.zeros(2), 0.2)
    close(loss, [0.245, 1.125])
    (grad,) = torch.autograd.grad(loss.sum(), values)
    close(grad, [0.0, -1.5])


@pytest.mark.parametrize(("p", "want"), [(0.1, 0.18), (0.5, 0.5)])
def test_best_constant_critic_of_a_binary_outcome(p, want):
    """Target ±1 at every token: the loss to beat is 2 p (1 - p)."""
    rewards = torch.full((10, 4), 0.0).double()
    rewards[:, -1] = -1.0
    rewards[: int(10 * p), -1] = 1.0
    values = torch.full_like(rewards, 2 * p - 1)
    returns = gae(rewards, values, torch.ones(10, 4, dtype=torch.bool)) + values
    close(value_loss(values, returns).mean(), want)


# ---- KL estimators ------------------------------------------------------------------------------


def estimators(d, dtype=torch.float32):
    logprobs = torch.zeros(len(d), dtype=dtype, requires_grad=True)
    ref = torch.tensor(d, dtype=dtype)
    return logprobs, kl_k1(logprobs, ref), kl_k2(logprobs, ref), kl_k3(logprobs, ref)


def test_b20_k3_values_and_overflow():
    """B20: inside |d| <= 20 exact; beyond +20 the tangent, so value and gradient stay finite."""
    d = [0.0, 0.1, -0.1, 2.0, -2.0, 100.0, -100.0, 1000.0]
    logprobs, _, _, k3 = estimators(d)
    close(k3[:5], [0, 0.005171, 0.004837, 4.389056, 1.135335])
    (grad,) = torch.autograd.grad(k3.sum(), logprobs)
    assert torch.isfinite(k3).all()
    assert torch.isfinite(grad).all()
    assert (k3 >= 0).all()
    assert k3[6] == 99.0
    assert (grad.sign() == -torch.tensor(d).sign()).all()  # always towards the reference


def test_kl_golden_values():
    _, k1, k2, k3 = estimators([math.log(2), -math.log(2)], torch.float64)
    close(k3, [0.306853, 0.193147])
    close(k1, [-math.log(2), math.log(2)])
    close(k2, [math.log(2) ** 2 / 2] * 2)
    pi, ref = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    for k in (kl_k1, kl_k3):
        close((pi * k(pi.log(), ref.log())).sum(), 0.143841)


@PROPERTY
@given(st.lists(st.floats(-15, 15), min_size=1, max_size=20))
def test_estimators_equal_the_formulas_and_k3_its_slope(d):
    logprobs, k1, k2, k3 = estimators(d, torch.float64)
    close(k1, [oracles.kl_k1(0.0, x) for x in d], 1e-12)
    close(k2, [oracles.kl_k2(0.0, x) for x in d], 1e-9)
    close(k3, [oracles.kl_k3(0.0, x) for x in d], 1e-8)
    close(nll(torch.tensor(d, dtype=torch.float64)), [oracles.nll(x) for x in d], 0)
    (grad,) = torch.autograd.grad(k3.sum(), logprobs)
    close(grad, [1 - math.exp(x) for x in d], 1e-8)
    assert (k3 >= 0).all()


def test_k3_is_never_negative_in_float32():
    d = torch.cat([torch.logspace(-12, 1, 4000), -torch.logspace(-12, 1, 4000)])
    assert (kl_k3(torch.zeros(8000), d) >= 0).all()


def test_k3_is_continuous_and_convex_where_the_tangent_begins():
    d = torch.linspace(19.9, 20.1, 201, dtype=torch.float64)
    value = kl_k3(torch.zeros_like(d), d)
    steps = value.diff()
    assert (steps > 0).all()
    assert (steps.diff() > -1e-6 * value[0]).all()


@pytest.mark.parametrize("d", [19.5, 20.0, 20.5, 1000.0])
def test_the_slope_of_k3_up_to_the_limit_and_beyond(d):
    """1 - e^d up to 20, and that of the tangent beyond: the limit itself counts once."""
    logprobs, _, _, k3 = estimators([d], torch.float64)
    (grad,) = torch.autograd.grad(k3.sum(), logprobs)
    assert grad.item() == pytest.approx(1 - math.exp(min(d, 20.0)), rel=1e-12)


def test_b19_the_kl_term_pulls_towards_the_reference():
    generator = torch.Generator().manual_seed(0)
    ref = torch.randn(6, 5, generator=generator).log_softmax(-1)
    logits = (ref + torch.randn(6, 5, generator=generator)).requires_grad_()

    def exact():
        logp = logits.detach().log_softmax(-1)
        return (logp.exp() * (logp - ref)).sum(-1).mean().item()

    before = exact()
    for _ in range(20):
        logp = logits.log_softmax(-1)
        ids = torch.multinomial(logp.detach().exp(), 64, replacement=True, generator=generator)
        loss = kl_k3(logp.gather(1, ids), ref.gather(1, ids)).mean()
        (grad,) = torch.autograd.grad(loss, logits)
        logits.data -= 3 * grad
    assert exact() < 0.8 * before


# ---- language-model loss ------------------------------------------------------------------------


def test_nll_golden_values():
    """All log-probs -1: the mean is 1, so mu = .1 adds .1; no correct response: 0, no gradient."""
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)
    close(0.1 * token_mean(nll(logprobs), mask), 0.1)
    nothing = token_mean(nll(logprobs), ~mask)
    (grad,) = torch.autograd.grad(nothing, logprobs)
    assert nothing == 0
    assert (grad == 0).all()


def test_nll_gradient_is_the_policy_gradient_of_advantage_one():
    """On correct tokens, at ratio 1, over the correct tokens; wrong responses do not matter."""
    logprobs = torch.randn(3, 4, requires_grad=True)
    correct = torch.tensor([[True], [False], [True]]).expand(3, 4)
    (a,) = torch.autograd.grad(token_mean(nll(logprobs), correct), logprobs)
    surrogate = clipped_surrogate(logprobs, logprobs, torch.ones(3, 4))
    (b,) = torch.autograd.grad(token_mean(surrogate, correct), logprobs)
    close(a, b, 1e-7)
    assert (a[1] == 0).all()


# ---- neighbours, from the same parts -------------------------------------------------------------


def sequence_log_ratio(logprobs, old, mask):
    """GSPO's log s_i, the mean log-ratio of a response, at each of its tokens."""
    return masked_mean(logprobs - old, mask, dim=1)[:, None].expand_as(logprobs)


def test_gspo_ratio_is_the_geometric_mean_of_token_ratios():
    logprobs, mask = (
        torch.tensor([[0.1, -0.2, 0.4, 9.0]]),
        torch.tensor([[True, True, True, False]]),
    )
    log_ratio = sequence_log_ratio(logprobs, torch.zeros(1, 4), mask)
    close(log_ratio[0].exp(), torch.full((4,), 1.105171))
    close((logprobs * mask).sum().exp(), 1.349859)


def test_gspo_of_one_token_is_ppo():
    logprobs = noise(torch.Generator().manual_seed(0), 6, 1).float().requires_grad_()
    old, advantages, mask = torch.zeros(6, 1), torch.ones(6, 1), torch.ones(6, 1, dtype=torch.bool)
    gspo = clipped_surrogate(sequence_log_ratio(logprobs, old, mask), old, advantages)
    ppo = clipped_surrogate(logprobs, old, advantages)
    close(gspo, ppo)
    grads = [torch.autograd.grad(x.sum(), logprobs)[0] for x in (gspo, ppo)]
    close(*grads)
