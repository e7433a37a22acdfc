"""Our arguments reproduce other trainers' numbers; `docs/conventions.md` is the table."""

import conventions_reference as theirs
import pytest
import torch

from lit_reason.functional import (
    aggregate,
    clipped_surrogate,
    constant_mean,
    constant_weights,
    explained_variance,
    gae,
    group_relative,
    kl_k1,
    kl_k2,
    kl_k3,
    length_adaptive_lambda,
    masked_mean,
    masked_whiten,
    outcome_to_tokens,
    sequence_mean,
    sequence_weights,
    soft_overlong,
    token_mean,
    token_weights,
    value_loss,
)

B, T = 6, 9


@pytest.fixture
def g():
    return torch.Generator().manual_seed(11)


def random(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


RIGHT = torch.arange(T) < torch.tensor([[9], [4], [1], [7], [2], [5]])
GAPS = RIGHT & torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
LEFT = RIGHT.flip(1)


def equal(a, b, tolerance=1e-10):
    torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance)


def equal32(a, b):
    """For aggregations, whose weights are float32."""
    equal(a, b, 1e-6)


# ---- GAE ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8)])
@pytest.mark.parametrize("mask", [RIGHT, LEFT, GAPS], ids=["right", "left", "gaps"])
def test_gae_equals_verl_and_nemo(g, mask, gamma, lam):
    values, rewards = random(g, B, T), random(g, B, T)
    want = theirs.verl_gae(rewards, values, mask.double(), gamma, lam)
    equal(gae(rewards, values, mask, gamma, lam), want * mask)


@pytest.mark.parametrize("lam", [1.0, 0.95])
def test_gae_equals_trl_where_no_slot_follows_or_lambda_is_one(g, lam):
    """With a slot behind, TRL's last token gets lam R + (1 - lam) V(after) - V, ours R - V."""
    outcomes, values, lengths = random(g, B), random(g, B, T), RIGHT.sum(1)
    want = theirs.trl_gae(outcomes, values, lengths, lam)
    got = gae(outcome_to_tokens(outcomes, RIGHT), values, RIGHT, 1.0, lam)
    full = lengths == T
    assert full.any()
    assert not full.all()
    equal(got[full], want[full])
    if lam == 1.0:
        equal(got, want)
        return
    rows = (~full).nonzero().squeeze(1)
    last = lengths[rows] - 1
    behind = values[rows, last + 1]
    blend = lam * outcomes[rows] + (1 - lam) * behind - values[rows, last]
    equal(want[rows, last], blend)
    equal(got[rows, last], outcomes[rows] - values[rows, last])


@pytest.mark.parametrize("lam", [1.0, 0.95])
def test_gae_equals_openrlhf_on_right_padding(g, lam):
    rewards, values = outcome_to_tokens(random(g, B), RIGHT), random(g, B, T)
    equal(
        gae(rewards, values, RIGHT, 1.0, lam),
        theirs.zeroed_gae(rewards, values, RIGHT.double(), 1.0, lam),
    )


def test_zeroed_values_leak_at_gaps_and_ours_do_not(g):
    """Before a tool span the zeroed value makes a phantom error of -V there: not reproduced."""
    rewards, values = outcome_to_tokens(random(g, B), GAPS), random(g, B, T)
    want = theirs.zeroed_gae(rewards, values, GAPS.double(), 1.0, 0.5)
    assert not torch.allclose(gae(rewards, values, GAPS, 1.0, 0.5), want)


def test_bootstrap_equals_a_recursion_that_starts_from_a_value(g):
    rewards, values, after = random(g, B, T), random(g, B, T), random(g, B)
    want = theirs.recursion(rewards, values, 0.9, 0.8, after)
    equal(gae(rewards, values, torch.ones(B, T, dtype=torch.bool), 0.9, 0.8, after), want)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 2.0])
def test_length_adaptive_lambda_equals_nemo(alpha):
    lengths = RIGHT.sum(1).double()
    equal(length_adaptive_lambda(lengths, alpha), theirs.nemo_lambda(RIGHT.double(), alpha))


# ---- whitening ----------------------------------------------------------------------------------


def test_whitening_equals_verl_trl_and_openrlhf(g):
    x, m = random(g, B, T), GAPS.double()
    equal(masked_whiten(x, GAPS, ddof=1), theirs.verl_whiten(x, m) * m)
    equal(masked_whiten(x, GAPS, ddof=0, eps=0.0), theirs.openrlhf_whiten(x, m) * m)


def test_trl_without_shifting_is_ours_with_shifting_plus_the_mean(g):
    x, m = random(g, B, T) + 2, GAPS.double()
    want = theirs.trl_whiten(x, m, shift_mean=False)
    equal((masked_whiten(x, GAPS, ddof=1) + masked_mean(x, GAPS)) * m, want * m)
    assert not torch.allclose(masked_whiten(x, GAPS, shift_mean=False, ddof=1), want * m)


# ---- groups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainer", "eps"),
    [(theirs.verl_group, 1e-6), (theirs.trl_group, 1e-4), (theirs.openrlhf_group, 1e-9)],
)
def test_group_normalisation_equals_theirs(g, trainer, eps):
    rewards = random(g, 12)
    ids = torch.tensor([3, 1, 3, 1, 1, 3, 3, 1, 2, 2, 2, 2])
    got = group_relative(rewards, ids, ddof=1, eps=eps)
    for i in (1, 2, 3):
        equal(got[ids == i], trainer(rewards[ids == i]))


def test_leave_one_out_baseline_is_ours_without_scaling_times_g_over_g_minus_1(g):
    rewards = random(g, 8)
    ours = group_relative(rewards, torch.zeros(8).long(), scale_by_std=False)
    equal(ours * 8 / 7, theirs.nemo_baseline(rewards))


def test_group_of_one_differs_from_verl_on_purpose():
    one = torch.tensor([0.7])
    assert theirs.verl_group(one).item() == pytest.approx(0.7, abs=1e-5)
    assert group_relative(one, torch.tensor([0])).item() == 0.0


# ---- policy loss --------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.0, 10.0)])
def test_policy_loss_equals_verl_and_trl_with_gradients(g, low, high):
    logprobs = random(g, B, T).requires_grad_()
    old, advantages = random(g, B, T), random(g, B, T)
    pairs = [
        (clipped_surrogate(logprobs, old, advantages, low, high, 3.0),
         theirs.verl_policy(logprobs, old, advantages, low, high, 3.0)),
        (clipped_surrogate(logprobs, old, advantages, low, high),
         theirs.trl_policy(logprobs, old, advantages, low, high)),
    ]  # fmt: skip
    for ours, other in pairs:
        equal(ours, other)
        grads = [torch.autograd.grad(x.sum(), logprobs)[0] for x in (ours, other)]
        equal(*grads)


# ---- aggregation --------------------------------------------------------------------------------

EMPTY_ROW = RIGHT & (torch.arange(B) != 3)[:, None]


def test_aggregation_equals_verl_and_trl(g):
    loss, m = random(g, B, T), RIGHT.double()
    for theirs_token in (theirs.verl_token_mean, theirs.verl_token_mean_2025, theirs.trl_bnpo):
        equal(token_mean(loss, RIGHT), theirs_token(loss, m), 1e-9)
    for theirs_row in (theirs.verl_seq_mean_token_mean, theirs.trl_grpo):
        equal32(sequence_mean(loss, RIGHT), theirs_row(loss, m))
    equal32(sequence_mean(loss, RIGHT), theirs.verl_seq_mean_token_mean_2025(loss, m))
    equal32(constant_mean(loss, RIGHT, 1), theirs.verl_seq_mean_token_sum(loss, m))
    equal32(constant_mean(loss, RIGHT, 40), theirs.trl_dr_grpo(loss, m, 40))
    equal32(constant_mean(loss, RIGHT, T), theirs.verl_seq_mean_token_sum_norm(loss, m))
    equal32(constant_mean(loss, RIGHT, 40), theirs.verl_seq_mean_token_sum_norm(loss, m, 40))


def test_verls_norm_was_the_mean_times_the_number_of_rows(g):
    loss, m = random(g, B, T), RIGHT.double()
    want = theirs.verl_seq_mean_token_sum_norm_2025(loss, m)
    equal32(aggregate(loss, constant_weights(RIGHT, T)[0], 1), want)
    equal32(B * constant_mean(loss, RIGHT, T), want)


def test_rows_without_tokens_counted_as_theirs_by_passing_the_count(g):
    """TRL and verl's engine divide by all rows; ours, and verl's default, by those with a token."""
    loss, m = random(g, B, T), EMPTY_ROW.double()
    weights, count = sequence_weights(EMPTY_ROW)
    assert count == B - 1
    ours, all_rows = aggregate(loss, weights, count), aggregate(loss, weights, B)
    assert not torch.isclose(ours, all_rows)
    equal32(ours, theirs.verl_seq_mean_token_mean(loss, m))
    equal32(all_rows, theirs.verl_seq_mean_token_mean(loss, m, rows=B))
    equal32(all_rows, theirs.trl_grpo(loss, m))
    assert theirs.verl_seq_mean_token_mean_2025(loss, m).isnan()
    weights, count = constant_weights(EMPTY_ROW, 40)
    equal32(aggregate(loss, weights, B), theirs.trl_dr_grpo(loss, m, 40))
    equal32(aggregate(loss, weights, B), theirs.verl_seq_mean_token_sum_norm(loss, m, 40, rows=B))
    equal32(aggregate(loss, weights, count), theirs.verl_seq_mean_token_sum_norm(loss, m, 40))


def test_no_valid_token_is_zero_for_us_and_trl_and_nan_for_verl(g):
    loss, nothing = random(g, B, T), torch.zeros(B, T, dtype=torch.bool)
    m = nothing.double()
    assert theirs.verl_token_mean(loss, m).isnan()
    assert theirs.verl_token_mean_2025(loss, m) == 0
    assert theirs.trl_dapo(loss, m, 0, 1) == theirs.trl_bnpo(loss, m) == 0
    assert token_mean(loss, nothing) == 0


def test_trls_dapo_counts_the_generation_batch_and_ours_the_optimizer_step(g):
    """Two steps on halves of one generation batch; with one step there is no difference."""
    loss, m, tokens = random(g, B, T), RIGHT.double(), int(RIGHT.sum())
    equal(token_mean(loss, RIGHT), theirs.trl_dapo(loss, m, tokens, 1.0))
    for rows in ([0, 1, 3], [2, 4, 5]):
        weights, count = token_weights(RIGHT[rows])
        assert count != tokens / 2
        for share in (0.5, 1.0):  # with and before the correction
            want = theirs.trl_dapo(loss[rows], m[rows], tokens, share)
            equal(aggregate(loss[rows], weights, tokens * share), want)


def test_means_of_micro_batch_means_are_not_offered(g):
    """TRL's bnpo averages them, verl's value loss added them until it took the global count."""
    loss, m = random(g, B, T), RIGHT.double()
    means = [theirs.trl_bnpo(loss[i : i + 2], m[i : i + 2]) for i in range(0, B, 2)]
    assert not torch.isclose(sum(means) / 3, token_mean(loss, RIGHT))
    assert not torch.isclose(sum(means), token_mean(loss, RIGHT))
    parts = [theirs.verl_token_mean(loss[i : i + 2], m[i : i + 2], m.sum()) for i in range(0, B, 2)]
    equal(sum(parts), token_mean(loss, RIGHT))


# ---- KL, value, length --------------------------------------------------------------------------


def test_kl_estimators_equal_verl_and_trl(g):
    logprobs, ref = random(g, B, T), random(g, B, T)
    assert (kl_k3(logprobs, ref) < 10).float().mean() > 0.9
    small = kl_k3(logprobs, ref) < 10  # verl's output is clamped there
    for kind, ours in (("k1", kl_k1), ("k2", kl_k2), ("k3", kl_k3)):
        equal(ours(logprobs, ref)[small], theirs.verl_kl(logprobs, ref, kind)[small])
    equal(kl_k3(logprobs, ref), theirs.trl_k3(logprobs, ref))


def test_k3_plus_has_the_gradient_of_k2(g):
    logprobs, ref = random(g, B, T).requires_grad_(), random(g, B, T)
    plus = theirs.verl_k3_plus(logprobs, ref)
    equal(plus, theirs.verl_kl(logprobs, ref, "k3"))
    grads = [torch.autograd.grad(x.sum(), logprobs)[0] for x in (plus, kl_k2(logprobs, ref))]
    equal(*grads)


def test_value_loss_equals_theirs(g):
    values, returns, old = (random(g, B, T) for _ in range(3))
    for clip in (0.2, 0.5):
        ours = value_loss(values, returns, old, clip)
        equal(ours, theirs.verl_value(values, returns, old, clip))
        equal(2 * ours, theirs.slime_value(values, returns, old, clip))
    equal(value_loss(values, returns), theirs.verl_value(values, returns, old, 1e9))


def test_explained_variance_equals_nemos_plus_the_bias(g):
    values, returns = random(g, B, T) + 0.5, random(g, B, T)
    nemo = theirs.nemo_explained_variance(values, returns, RIGHT.double())
    bias = masked_mean(returns - values, RIGHT)
    variance = masked_mean((returns - masked_mean(returns, RIGHT)).square(), RIGHT)
    equal(explained_variance(values, returns, RIGHT), nemo + bias.square() / variance)


def test_soft_overlong_equals_verls_up_to_the_limit():
    lengths = torch.arange(1, 21)
    want = [theirs.verl_overlong(n, 20, 5) for n in lengths.tolist()]
    equal(soft_overlong(lengths.double(), 20, 5), torch.tensor(want, dtype=torch.float64))
    assert theirs.verl_overlong(30, 20, 5) == -3.0
    assert soft_overlong(torch.tensor([30]), 20, 5) == -1.0
