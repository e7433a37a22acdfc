"""Responses that no reward term can judge: no part of their group, of the loss or of the filter."""

import copy
import math

import pytest
import torch

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.backbones import Bundled
from lit_reason.batch import Response, RolloutBatch
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.filters import DropUniform
from lit_reason.judge import reward
from lit_reason.learner import Update
from lit_reason.rewards import Correctness, Format, Reward, TokenReward
from lit_reason.statistics import describe, over_ranks
from lit_reason.verdict import Status, Verdict
from tests.conftest import demonstrations, ready
from tests.test_data import MIXED, RIGHT, attach, data_of, module_of, run, same, weights
from tests.test_rewards import PROMPT


@pytest.fixture(scope="module")
def policy():
    return Bundled()


class Given(Reward):
    """Returns what it was given, group after group the same."""

    def __init__(self, *values, weight=1.0):
        super().__init__(weight)
        self.values = list(values)

    def __call__(self, prompt, responses, verdicts):
        return self.values


class Steps(TokenReward):
    def __call__(self, prompt, responses, verdicts):
        return [[2.0] + [None] * (r.length - 1) for r in responses]


def group_of(**terms):
    answers = [Response((5, 6, 7), "x", truncated=False)] * 3
    return reward(PROMPT, [1], answers, [Verdict.of(True)] * 3, terms)


def test_a_term_without_a_value_is_left_out_of_the_sum():
    group = group_of(a=Given(1, None, None, weight=2.0), b=Given(5, 7, None))
    assert group.rewards == [7.0, 7.0, 0.0]
    assert group.scored == [True, True, False]
    assert group.terms == {"a": [2.0, None, None], "b": [5.0, 7.0, None]}


def test_what_steps_say_of_a_response_counts_as_a_score():
    group = group_of(a=Given(1, None, None), steps=Steps())
    assert group.scored == [True] * 3
    batch = RolloutBatch.from_groups([group], pad_id=0)
    assert batch.step_mask[:, 0].all()
    assert batch.step_mask[:, 2].tolist() == [True, False, False]


class Required(Given):
    required = True


def test_a_response_without_a_required_value_is_unscored_whatever_other_terms_say():
    group = group_of(a=Required(1, None, 3, weight=2.0), b=Given(5, 7, None), steps=Steps())
    assert group.rewards == [7.0, 0.0, 6.0]
    assert group.scored == [True, False, True]
    assert group.terms == {"a": [2.0, None, 6.0], "b": [5.0, 7.0, None], "steps": [2.0] * 3}


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.ERROR])
def test_what_nobody_has_judged_is_unscored_beside_other_terms(status):
    verdicts = [Verdict.of(True), Verdict(status, "9^9"), Verdict.of(False)]
    answers = [Response((5, 6), "x", truncated=False)] * 3
    terms = {"correctness": Correctness(unverified="unscored"), "format": Format("x")}
    terms["format"].setup(None, 8, None)
    assert reward(PROMPT, [1], answers, verdicts, terms).scored == [True, False, True]
    terms["correctness"] = Correctness()
    group = reward(PROMPT, [1], answers, verdicts, terms)
    assert (group.scored, group.rewards) == ([True] * 3, [2.0, 0.0, 0.0])


def test_an_unscored_response_trains_neither_network_and_keeps_its_tokens():
    batch = RolloutBatch.from_groups([group_of(a=Given(1.0, None, -1.0))], pad_id=0)
    assert batch.scored.tolist() == [True, False, True]
    assert batch.response_mask.all()
    for mask in (batch.loss_mask, batch.value_mask):
        assert mask.any(dim=1).tolist() == [True, False, True]
    assert batch.loss_mask.data_ptr() != batch.value_mask.data_ptr()
    assert batch[torch.tensor([1])].scored.tolist() == [False]


def outcome_tokens(batch):
    tokens = torch.zeros(batch.response_ids.shape)
    tokens[torch.arange(len(batch)), batch.lengths - 1] = batch.rewards
    return tokens


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, None, 0), [0.707107, 0, -0.707107]),
        ((None, 1, None), [0, 0, 0]),
        ((None, None, None), [0, 0, 0]),
        ((1, None, 1), [0, 0, 0]),
    ],
)
def test_the_baseline_is_that_of_the_scored_responses(values, expected):
    """B03, B04: a group of one or none is 0, never NaN."""
    batch = RolloutBatch.from_groups([group_of(a=Given(*values))], pad_id=0)
    advantages = GroupRelative()(batch, outcome_tokens(batch), None).advantages
    torch.testing.assert_close(advantages[:, 0], torch.tensor(expected).float(), atol=1e-5, rtol=0)


def test_steps_of_an_unscored_response_are_no_part_of_the_group(policy):
    batch = demonstrations(policy, groups=1)
    batch.step_mask = batch.response_mask.clone()
    batch.token_rewards = torch.rand(batch.response_ids.shape)
    batch.scored[1] = False
    rewards = batch.token_rewards.masked_fill(~batch.response_mask, 0.0)
    rows = torch.tensor([0, 2, 3])
    whole = GroupRelative()(batch, rewards, None).advantages
    alone = GroupRelative()(batch[rows], rewards[rows], None).advantages
    torch.testing.assert_close(whole[rows], alone)
    assert (whole[1] == 0).all()


def test_whitening_does_not_see_them(policy):
    batch = demonstrations(policy)
    batch.scored[3] = False
    batch.loss_mask[3] = False
    values, estimator = torch.rand(batch.response_ids.shape), GAE(whiten=True)
    first = estimator(batch, outcome_tokens(batch), values).advantages
    batch.rewards[3] = 50.0
    second = estimator(batch, outcome_tokens(batch), values).advantages
    rows = batch.scored
    assert torch.equal(first[rows], second[rows])


def update_of(module, batch):
    """What one optimizer step does to each network."""
    rows = [torch.arange(len(batch))]
    experience, stats = module.annotate(batch, rows)
    moved = {}
    for name, learner in module.learners().items():
        network = getattr(module, name)
        before = copy.deepcopy(network.state_dict())
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        learner.update(experience, rows, optimizer, torch.Tensor.backward)
        after = network.state_dict()
        moved[name] = torch.cat([(after[k] - before[k]).flatten() for k in before])
        network.load_state_dict(before)
    return moved, stats


@pytest.mark.parametrize("critic", [False, True])
def test_a_rollout_with_unscored_responses_updates_as_one_without_them(policy, critic):
    module = ready(module_of(policy, critic, update=Update(1, 16, 16, max_grad_norm=None)))
    batch = demonstrations(policy)
    batch.scored[[2, 5, 6, 11]] = False
    batch.rewards[~batch.scored] = 0.0
    for mask in (batch.loss_mask, batch.value_mask):
        mask &= batch.scored[:, None]
    with_them, stats = update_of(module, batch)
    without, _ = update_of(module, batch[batch.scored])
    assert with_them.keys() == without.keys()
    for name, change in with_them.items():
        torch.testing.assert_close(change, without[name], atol=1e-5, rtol=1e-3)
        assert change.norm() > 1e-3
    assert stats["reward/unscored"] == 0.25
    assert stats["reward"] == batch.rewards[batch.scored].mean()


class OnlyWrong(Reward):
    """Cannot say of right responses."""

    def __call__(self, prompt, responses, verdicts):
        return [None if v.correct else -1.0 for v in verdicts]


class Nothing(Reward):
    def __call__(self, prompt, responses, verdicts):
        return [None] * len(responses)


def test_the_filter_sees_scored_responses_only():
    correct = torch.tensor([[True, False, False], [True, True, False], [True, False, False]])
    scored = torch.tensor([[False, True, True], [True, True, False], [True, True, False]])
    keep = DropUniform()(correct, correct.float(), scored)
    assert keep.tolist() == [False, False, True]


def test_a_group_that_is_mixed_by_unscored_responses_only_is_dropped(policy):
    data = attach(data_of([MIXED] * 4, rewards={"mine": OnlyWrong()}), module_of(policy))
    batch = data.rollout()
    assert batch.stats["groups/kept"] == 0
    assert batch.stats["groups/dropped_all_wrong"] == batch.stats["groups/dropped"] == 6
    assert batch.stats["groups/dropped_all_right"] == 0


def test_a_rollout_without_any_score_trains_nothing_and_is_counted(policy):
    data = data_of([RIGHT] * 4, rewards={"mine": Nothing()}, group_filter=None, max_rounds=None)
    data.rollouts_per_epoch = 1
    module = module_of(policy)
    module.configure_model()
    before = weights(module.actor)
    with pytest.warns(ConfigWarning, match=r"data\.rewards\.mine=Nothing: gave no value to any of"):
        (row,) = run(data, module).rows
    assert row["reward/unscored"] == row["reward/mine/unscored"] == 1
    assert math.isnan(row["reward"])
    assert math.isnan(row["reward/mine"])
    assert row["update/skipped_actor"] == 1
    assert same(before, weights(module.actor))


def test_evaluation_takes_the_mean_of_what_is_scored(policy):
    data = data_of([MIXED, RIGHT], rewards={"mine": OnlyWrong()}, val_samples=4)
    batch = attach(data, module_of(policy)).val_dataloader().batch(0)
    assert batch.scored.tolist() == [False, True, False, True] + [False] * 4


class TwoRanks:
    """Reduces the values of this rank with those of another."""

    def __init__(self, *others):
        self.others = list(others)

    def reduce(self, values, reduce_op):
        other = self.others.pop(0)
        pair = torch.stack([values, torch.full_like(values, other)])
        return {"mean": pair.mean(0), "min": pair.amin(0), "max": pair.amax(0)}[reduce_op]


def test_a_rank_without_any_reward_does_not_spoil_the_mean_of_the_others(policy):
    batch = demonstrations(policy)
    batch.scored[:] = False
    stats = {k: v for k, v in describe(batch, {}).items() if k == "reward"}
    assert stats["reward"].isnan()
    # the other rank has a reward of 3, and says that it has one
    reduced = over_ranks(stats, TwoRanks(3.0, 1.0, 0.0, 0.0), torch.device("cpu"))
    assert reduced["reward"] == 3
    # a nan elsewhere is not hidden
    reduced = over_ranks(
        {"gae/lambda_mean": torch.tensor(math.nan)}, TwoRanks(3.0, 1.0, 0, 0), torch.device("cpu")
    )
    assert reduced["gae/lambda_mean"].isnan()


def test_the_name_of_the_count_is_taken():
    with pytest.raises(ConfigError, match=r"data\.rewards\.unscored: a metric has this name"):
        data_of([MIXED], rewards={"unscored": Correctness()})


def test_a_response_that_no_term_scores_is_unscored_beside_rewards_of_tokens():
    class Some(Reward):
        def __call__(self, prompt, responses, verdicts):
            return [None, 1.0]

    class Steps(TokenReward):
        def __call__(self, prompt, responses, verdicts):
            return [[None] * r.length for r in responses]

    responses = [Response((1, 2), "ab", False)] * 2
    verdicts = [Verdict.of(False)] * 2
    terms = {"some": Some(), "steps": Steps()}
    group = reward(PROMPT, [1], responses, verdicts, terms)
    assert group.scored == [False, True]
