"""Golden values through the classes that a configuration names, not only through the functions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.aggregation import ConstantLength, PromptMean, SequenceMean, TokenMean
from lit_reason.annotation import token_rewards
from lit_reason.batch import Experience, RolloutBatch
from lit_reason.errors import ConfigError
from lit_reason.filters import DropUniform
from lit_reason.functional import soft_overlong
from lit_reason.guard import NonFiniteGuard
from lit_reason.learner import Learner, Update
from lit_reason.module import ReasonModule
from lit_reason.networks import PolicyOutputs, policy_outputs
from lit_reason.objectives import (
    ClippedSurrogate,
    EntropyBonus,
    KLToReference,
    LossTerm,
    PositiveExampleLM,
    ValueLoss,
)
from tests.conftest import demonstrations, ready

PROPERTY = settings(deadline=None, max_examples=40, derandomize=True, database=None)
near = {"atol": 1e-5, "rtol": 1e-5}


def batch(mask, rewards=None, group_ids=None, **fields):
    """A rollout of which only what the tests set matters."""
    mask = torch.as_tensor(mask, dtype=torch.bool)
    size, zeros = len(mask), torch.zeros(mask.shape)
    base = {
        "prompt_ids": torch.zeros(size, 1, dtype=torch.long),
        "prompt_mask": torch.ones(size, 1, dtype=torch.bool),
        "response_ids": zeros.long(),
        "response_mask": mask,
        "policy_mask": mask,
        "loss_mask": mask.clone(),
        "value_mask": mask.clone(),
        "loss_weight": torch.ones(size),
        "rewards": torch.tensor(rewards or [0.0] * size),
        "token_rewards": zeros.clone(),
        "step_mask": torch.zeros_like(mask),
        "correct": torch.zeros(size, dtype=torch.bool),
        "truncated": torch.zeros(size, dtype=torch.bool),
        "scored": torch.ones(size, dtype=torch.bool),
        "critic_only": torch.zeros(size, dtype=torch.bool),
        "group_ids": torch.tensor(group_ids or [0] * size),
        "prompt_index": torch.zeros(size, dtype=torch.long),
    }
    return RolloutBatch(**{**base, **fields})


VALUES = torch.tensor([[0.2, 0.5, 0.6]])
OUTCOME = torch.tensor([[0.0, 0.0, 1.0]])


def test_gae_decouples_policy_and_critic():
    """§11 GAE 3: λ_policy in the advantages, λ_critic in the targets."""
    out = GAE(lam_policy=0.95, lam_critic=1.0)(batch([[1, 1, 1]]), OUTCOME, VALUES)
    torch.testing.assert_close(out.advantages, torch.tensor([[0.756, 0.48, 0.4]]), **near)
    torch.testing.assert_close(out.returns, torch.ones(1, 3), **near)
    out = GAE(lam_policy=1.0, lam_critic=0.95)(batch([[1, 1, 1]]), OUTCOME, VALUES)
    torch.testing.assert_close(out.advantages, torch.tensor([[0.8, 0.5, 0.4]]), **near)
    torch.testing.assert_close(out.returns, torch.tensor([[0.956, 0.98, 1.0]]), **near)


def test_equal_lambdas_are_one_pass():
    """§11 value: targets and advantages differ by the value alone."""
    out = GAE(gamma=0.9, lam_policy=0.7, lam_critic=0.7)(batch([[1, 1, 1]]), OUTCOME, VALUES)
    torch.testing.assert_close(out.returns, out.advantages + VALUES)


def test_gae_takes_its_length_adaptive_lambda_from_each_response():
    mask = torch.arange(400) < torch.tensor([[20], [100], [400]])
    lam = GAE(alpha=0.05).policy_lambda(batch(mask))
    torch.testing.assert_close(lam, torch.tensor([0.0, 0.8, 0.95]), **near)
    lam = GAE(alpha=0.05, lambda_min=0.3).policy_lambda(batch(mask))
    torch.testing.assert_close(lam, torch.tensor([0.3, 0.8, 0.95]), **near)
    with pytest.raises(ConfigError, match="lambda_min=1: must be below 1"):
        GAE(alpha=0.05, lambda_min=1.0)


def test_gae_whitens_over_the_tokens_that_train_and_over_all_ranks():
    rollout = batch([[1, 1, 1]])
    rollout.loss_mask[0, 0] = False
    estimator = GAE(lam_policy=1.0, whiten=True)
    out = estimator(rollout, OUTCOME, VALUES).advantages
    torch.testing.assert_close(out, torch.tensor([[0.0, 1.0, -1.0]]), atol=1e-3, rtol=1e-3)
    calls = []
    estimator.reduce = lambda x: calls.append(x) or x
    estimator(rollout, OUTCOME, VALUES)
    assert calls


def test_gae_scales_without_shifting_on_request():
    """B23: A / std over the tokens that train; the targets are those of no whitening."""
    rollout = batch([[1, 1, 1, 1]])
    rollout.loss_mask[0, 3] = False
    steps, values = torch.tensor([[-2.0, -2.0, -95.0, 100.0]]), torch.zeros(1, 4)
    plain, scaled = (GAE(lam_policy=1.0, whiten=w)(rollout, steps, values) for w in (False, "std"))
    torch.testing.assert_close(plain.advantages, torch.tensor([[1.0, 3.0, 5.0, 100.0]]))
    expected = torch.tensor([[0.61237, 1.83712, 3.06186, 0.0]])
    torch.testing.assert_close(scaled.advantages, expected, **near)
    assert torch.equal(scaled.returns, plain.returns)


def test_group_relative_outcome_and_process():
    """§11: [1,0,0,0] -> 1.5/-.5; step rewards are normalised together and summed to the right."""
    rollout = batch([[1, 1]] * 4)
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    out = GroupRelative()(rollout, rewards, None)
    expected = torch.tensor([[1.5, 1.5], [-0.5, -0.5], [-0.5, -0.5], [-0.5, -0.5]])
    torch.testing.assert_close(out.advantages, expected, **near)
    assert out.stats["advantage/zero_fraction"].sum() == 0
    rollout.step_mask[:] = True
    steps = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    out = GroupRelative(scale_by_std=False)(rollout, steps, None)
    normalised = steps - 0.5
    expected = normalised.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(out.advantages, expected, **near)


def test_dr_grpo_does_not_scale_outcomes_and_padding_is_no_missing_signal():
    """§11: [1,0,0,1,1] less its mean; a response is without signal only if all its tokens are."""
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0, 1.0]]).T
    rewards = torch.cat([rewards, torch.zeros(5, 1)], 1)
    out = GroupRelative(scale_by_std=False)(batch([[1, 0]] * 5), rewards, None)
    expected = torch.tensor([0.4, -0.6, -0.6, 0.4, 0.4])
    torch.testing.assert_close(out.advantages[:, 0], expected, **near)
    assert (out.advantages[:, 1] == 0).all()
    assert (out.stats["advantage/zero_fraction"] == 0).all()


@PROPERTY
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 24)), min_size=2, max_size=8))
def test_every_group_that_dynamic_sampling_keeps_has_an_advantage(responses):
    """§11: kept means a difference in verdicts, which no length penalty can level out."""
    correct, lengths = (torch.tensor(x) for x in zip(*responses, strict=True))
    rewards = torch.where(correct, 1.0, -1.0) + soft_overlong(lengths, 20, 10)
    kept = bool(DropUniform()(correct[None], rewards[None], torch.ones_like(correct)[None]))
    assert kept == (0 < int(correct.sum()) < len(responses))
    if kept:
        rollout = batch([[1]] * len(responses))
        assert GroupRelative()(rollout, rewards[:, None], None).advantages.abs().max() > 0.1


def test_a_group_without_difference_is_counted():
    """B01."""
    rewards = torch.tensor([[0.0, 0.3]] * 7)
    out = GroupRelative()(batch([[1, 1]] * 7), rewards, None)
    assert out.advantages.abs().max() == 0
    assert out.stats["advantage/zero_fraction"].mean() == 1


def experience(rollout, **fields):
    zeros = torch.zeros(rollout.response_mask.shape)
    return Experience(rollout, **{"old_logprobs": zeros, "advantages": zeros, **fields})


def test_the_clip_bounds_are_not_swapped():
    """B17."""
    ratio = torch.tensor([[1.25, 1.5, 0.7, 1.5, 0.7]])
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0, 1.0]])
    term = ClippedSurrogate(0.2, 0.28)
    e = experience(batch([[1] * 5]), advantages=advantages)
    outputs = PolicyOutputs(ratio.log(), None)
    expected = torch.tensor([[-1.25, -1.28, 0.8, 1.5, -0.7]])
    torch.testing.assert_close(term.loss(e, outputs), expected, **near)
    stats = term.stats(e, outputs)
    assert stats["clip_fraction_high"].tolist() == [[0, 1, 0, 0, 0]]
    assert stats["clip_fraction_low"].tolist() == [[0, 0, 1, 0, 0]]
    torch.testing.assert_close(stats["ratio"], ratio, **near)
    # k3 of KL(old ‖ new), estimated on tokens of the old policy: r - log r - 1
    torch.testing.assert_close(stats["approx_kl"], ratio - ratio.log() - 1, **near)


def test_a_value_inside_the_clip_range_is_not_counted_as_clipped():
    """Old value 0, return 1: only a value above 0.2 has its gradient taken away."""
    values = torch.tensor([[0.1, 0.2, 0.5, -0.5]])
    zeros, ones = torch.zeros(1, 4), torch.ones(1, 4)
    e = experience(batch([[1] * 4]), values=zeros, returns=ones)
    assert ValueLoss(clip=0.2).stats(e, values)["clip_fraction"].tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize(
    ("estimator", "value"), [("k1", -0.693147), ("k2", 0.240227), ("k3", 0.306853)]
)
def test_the_kl_term_uses_the_estimator_it_names(estimator, value):
    e = experience(batch([[1]]), ref_logprobs=torch.tensor([[2.0]]).log())
    loss = KLToReference(1.0, estimator).loss(e, PolicyOutputs(torch.zeros(1, 1), None))
    torch.testing.assert_close(loss, torch.tensor([[value]]), **near)


def test_the_entropy_bonus_rewards_entropy():
    outputs = PolicyOutputs(torch.zeros(1, 1), torch.tensor([[0.7]]))
    assert EntropyBonus(0.1).loss(experience(batch([[1]])), outputs).item() == pytest.approx(-0.7)


def test_the_value_clip_takes_the_maximum_and_rests_in_warm_up():
    """B22."""
    e = experience(
        batch([[1, 1]]),
        values=torch.zeros(1, 2),
        returns=torch.tensor([[0.9, 1.0]]),
    )
    values, term = torch.tensor([[1.0, -0.5]]), ValueLoss(clip=0.2)
    torch.testing.assert_close(term.loss(e, values), torch.tensor([[0.245, 1.125]]), **near)
    assert term.stats(e, values)["clip_fraction"].tolist() == [[1, 0]]
    e.phase = "value_warmup"
    torch.testing.assert_close(term.loss(e, values), torch.tensor([[0.005, 1.125]]), **near)
    assert term.stats(e, values) == {}


def test_actor_and_critic_train_on_tokens_of_their_own():
    rollout = batch([[1, 1]])
    rollout.loss_mask[0, 0], rollout.value_mask[0, 1] = False, False
    assert ClippedSurrogate().mask(experience(rollout)).tolist() == [[False, True]]
    assert ValueLoss().mask(experience(rollout)).tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("aggregation", "value"),
    [(TokenMean(), 1 / 3), (SequenceMean(), 0.5), (ConstantLength(10), 0.1), (PromptMean(), 1 / 3)],
    ids=lambda x: type(x).__name__,
)
def test_each_aggregation_is_the_one_it_names(aggregation, value):
    """§11: losses [[1,1],[0,0,0,0]] of one prompt."""
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)
    loss = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0] * 4])
    weights, count = aggregation(mask, torch.zeros(2, dtype=torch.long))
    assert float((weights * loss).sum() / count) == pytest.approx(value)


def test_prompt_mean_weighs_prompts_alike():
    """§11: two prompts, .5 where the token mean is .75."""
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    loss = torch.tensor([[1.0] * 4, [1.0] * 4, [0.0] * 4, [0.0] * 4])
    ids = torch.tensor([0, 0, 1, 1])
    for aggregation, value in ((PromptMean(), 0.5), (TokenMean(), 0.75), (SequenceMean(), 0.5)):
        weights, count = aggregation(mask, ids)
        assert float((weights * loss).sum() / count) == pytest.approx(value)


class Scores(torch.nn.Module):
    """A network whose outputs are its parameters."""

    def __init__(self, logprobs):
        super().__init__()
        self.logprobs = torch.nn.Parameter(torch.tensor(logprobs))


def one_step(terms, rollout, logprobs, left_behind=None, **fields):
    """Losses and gradient of one step of a network that outputs `logprobs`."""
    network = Scores(logprobs)
    network.logprobs.grad = left_behind
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for term in terms.values():
        term.aggregation = term.aggregation or TokenMean()
    learner = Learner(
        "actor", network, terms, lambda net, e: PolicyOutputs(net.logprobs, None), None
    )
    rows = [torch.arange(len(rollout))]
    stats = learner.update(experience(rollout, **fields), rows, optimizer, torch.Tensor.backward)
    return stats, torch.tensor(logprobs) - network.logprobs.detach()


def test_the_lm_loss_enters_with_mu():
    """§11: all log-probs -1 => L_NLL = 1; its gradient is μ over the correct tokens."""
    rollout = batch([[1, 1], [1, 1]], correct=torch.tensor([True, False]))
    stats, gradient = one_step({"lm": PositiveExampleLM(0.1)}, rollout, [[-1.0, -1.0]] * 2)
    assert stats["loss/lm"] == 1
    expected = torch.tensor([[-0.05, -0.05], [0.0, 0.0]])
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-5)


def test_a_gradient_left_behind_does_not_enter_the_step():
    rollout, terms = batch([[1, 1]], correct=torch.tensor([True])), {"lm": PositiveExampleLM(1.0)}
    left_behind = torch.full((1, 2), 7.0)
    _, gradient = one_step(terms, rollout, [[-1.0, -1.0]], left_behind)
    torch.testing.assert_close(gradient, torch.full((1, 2), -0.5))


class Infinite(LossTerm):
    """A loss that is not finite, whose gradient is."""

    def loss(self, experience, outputs):
        return outputs.logprobs + float("inf")


def test_a_loss_that_is_not_finite_skips_a_step_whose_gradient_is():
    stats, step = one_step({"policy": Infinite()}, batch([[1, 1]]), [[-1.0, -1.0]])
    assert stats["grad_norm/actor"].isfinite()
    assert stats["update/skipped_actor"] == stats["update/nonfinite_actor"] == 1
    assert (step == 0).all()


def test_a_row_weight_scales_its_loss_and_not_the_normaliser():
    rollout = batch([[1, 1], [1, 1]])
    rollout.loss_weight = torch.tensor([0.5, 1.0])
    advantages = torch.ones(2, 2)
    policy = {"policy": ClippedSurrogate()}
    _, gradient = one_step(policy, rollout, [[0.0, 0.0]] * 2, advantages=advantages)
    expected = torch.tensor([[-0.125, -0.125], [-0.25, -0.25]])
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-5)


def test_actor_and_critic_have_schedules_of_their_own():
    assert Update(1, 8).schedule("critic") == (1, 8)
    update = Update(1, 8, critic_epochs=3, critic_minibatch_size=4)
    assert update.schedule("actor") == (1, 8)
    assert update.schedule("critic") == (3, 4)


def test_the_guard_counts_each_network_for_itself(tmp_path):
    guard, e = NonFiniteGuard(3), experience(batch([[1]]))
    bad, good = torch.ones(()), torch.zeros(())
    rows, path = torch.arange(1), tmp_path / "batch.pt"
    for _ in range(2):
        guard.observe("critic", {"update/nonfinite_critic": bad}, e, rows, path)
        guard.observe("actor", {"update/nonfinite_actor": good}, e, rows, path)
    assert not path.exists()
    with pytest.raises(FloatingPointError, match="critic not finite in 3"):
        guard.observe("critic", {"update/nonfinite_critic": bad}, e, rows, path)
    assert torch.load(path, weights_only=True)["network"] == "critic"


def module_of(backbone, **kwargs):
    parts = {"advantage": GAE(gamma=0.9, lam_critic=0.5), "value": ValueLoss(), **kwargs}
    return ready(ReasonModule(backbone, policy=ClippedSurrogate(), **parts))


def test_the_kl_penalty_and_token_rewards_enter_the_reward(backbone):
    """§11 GAE 4: β=.02, k1=[.5,-.25,1] => r=[-.01,.005,.98], plus what per-token terms gave."""
    module = module_of(backbone, kl_in_reward=0.02)
    rollout = batch([[1, 1, 1]], rewards=[1.0])
    columns = {
        "old_logprobs": torch.tensor([[0.5, -0.25, 1.0]]),
        "ref_logprobs": torch.zeros(1, 3),
    }
    rewards = token_rewards(rollout, columns, module.kl_in_reward)
    torch.testing.assert_close(rewards, torch.tensor([[-0.01, 0.005, 0.98]]), **near)
    rollout.token_rewards[0, 1] = 2.0
    rewards = token_rewards(rollout, columns, module.kl_in_reward)
    torch.testing.assert_close(rewards, torch.tensor([[-0.01, 2.005, 0.98]]), **near)


def test_the_targets_of_the_warm_up_are_discounted_outcomes(backbone):
    module = module_of(backbone)
    rollout = demonstrations(backbone, groups=1, size=2)
    module.phase = "value_warmup"
    made, _ = module.annotate(rollout, [torch.arange(2)])
    for i, length in enumerate(rollout.lengths.tolist()):
        left = torch.arange(length - 1, -1, -1)
        expected = rollout.rewards[i] * 0.9**left
        torch.testing.assert_close(made.returns[i, :length], expected, **near)


def test_every_policy_is_scored_at_the_sampling_temperature(backbone):
    """C07: old and reference alike."""
    module = module_of(backbone, kl_in_reward=0.1)
    rollout = demonstrations(backbone, groups=1, size=2, temperature=0.5)
    made, _ = module.annotate(rollout, [torch.arange(2)])
    for network, scored in (
        (module.actor, made.old_logprobs),
        (module.reference, made.ref_logprobs),
    ):
        expected = policy_outputs(network, rollout, temperature=0.5).logprobs
        torch.testing.assert_close(scored, expected.detach())
        plain = policy_outputs(network, rollout, temperature=1.0).logprobs
        assert (scored - plain).abs().max() > 1e-3


def test_the_reference_follows_the_policy_every_so_many_joint_rollouts(backbone):
    module = module_of(backbone, kl_in_reward=0.1, reference_refresh=2)
    with torch.no_grad():
        for p in module.actor.parameters():
            p += 0.1

    def same():
        pairs = zip(module.actor.parameters(), module.reference.parameters(), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    for version, phase, refreshed in (
        (1, "joint", False),
        (2, "value_warmup", False),
        (2, "joint", True),
    ):
        module.policy_version, module.phase = version, phase
        module._refresh_reference()
        assert same() == refreshed
    assert not any(p.requires_grad for p in module.reference.parameters())
