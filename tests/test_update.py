"""The update as a whole: real networks, every loss term, any split of the rows."""

import copy
import itertools
from functools import partial

import pytest
import torch

from lit_reason import objectives
from lit_reason.advantages import GroupRelative
from lit_reason.aggregation import SequenceMean
from lit_reason.annotation import token_rewards
from lit_reason.backbones import Bundled
from lit_reason.batch import Group, Prompt, Response, RolloutBatch
from lit_reason.errors import ConfigError
from lit_reason.functional import group_relative, kl_k3
from lit_reason.learner import Learner, Update, _buckets
from lit_reason.networks import policy_outputs
from lit_reason.objectives import (
    ClippedSurrogate,
    KLToReference,
    LossTerm,
    PositiveExampleLM,
)
from lit_reason.verdict import Verdict
from tests import runs
from tests.conftest import SMALL, demonstrations, fit, tiny
from tests.steps import (
    AGGREGATIONS,
    TERMS,
    Recorder,
    build,
    close,
    experience_of,
    shift_weights,
    step,
)

# every term alone by tokens, and all terms by every aggregation
MIXES = [
    *[(name, AGGREGATIONS[0]) for name in TERMS],
    *[("all", aggregation) for aggregation in AGGREGATIONS[1:]],
]


@pytest.mark.parametrize(
    ("terms", "aggregation"), MIXES, ids=[f"{t}-{type(a).__name__}" for t, a in MIXES]
)
def test_loss_and_gradient_do_not_depend_on_the_micro_batch_size(backbone, terms, aggregation):
    rollout = demonstrations(backbone)
    module = build(backbone, TERMS[terms], aggregation)
    experience = experience_of(module, rollout)
    shift_weights(module)
    whole = step(module, experience, "actor", 16, terms)
    if terms in ("policy", "all"):
        assert whole[0]["policy/clip_fraction_high"] > 0
        assert whole[0]["policy/clip_fraction_low"] > 0
    for size in (1, 2, 5, 8):
        close(whole, step(module, experience, "actor", size, terms))


def test_value_loss_and_gradient_do_not_depend_on_the_micro_batch_size(backbone):
    module = build(backbone)
    experience = experience_of(module, demonstrations(backbone))
    shift_weights(module)
    whole = step(module, experience, "critic", 16)
    assert whole[0]["value/clip_fraction"] > 0
    for size in (1, 2, 5, 8):
        close(whole, step(module, experience, "critic", size))


def widen(rollout: RolloutBatch, left: int, right: int) -> RolloutBatch:
    """The same responses with more padding on both sides; its content must not matter."""

    def pad(x, columns, before, value):
        fill = torch.full((len(x), columns), value, dtype=x.dtype)
        return torch.cat([fill, x] if before else [x, fill], dim=1)

    wide = copy.copy(rollout)
    wide.prompt_ids = pad(rollout.prompt_ids, left, True, 7)
    wide.prompt_mask = pad(rollout.prompt_mask, left, True, False)
    wide.response_ids = pad(rollout.response_ids, right, False, 9)
    for name in ("response_mask", "policy_mask", "loss_mask", "value_mask", "step_mask"):
        setattr(wide, name, pad(getattr(rollout, name), right, False, False))
    wide.token_rewards = pad(rollout.token_rewards, right, False, 0.0)
    return wide


CRITIC = [("all", AGGREGATIONS[0]), ("all", AGGREGATIONS[1])]
NETWORKS = [*[("actor", *mix) for mix in MIXES], *[("critic", *mix) for mix in CRITIC]]


@pytest.mark.parametrize(
    ("network", "term", "aggregation"),
    NETWORKS,
    ids=[f"{n}-{t}-{type(a).__name__}" for n, t, a in NETWORKS],
)
def test_loss_and_gradient_do_not_depend_on_order_or_padding(backbone, network, term, aggregation):
    rollout = demonstrations(backbone)
    variants = [
        rollout[torch.randperm(16, generator=torch.Generator().manual_seed(0))],
        widen(rollout, 5, 0),
        widen(rollout, 0, 6),
        widen(rollout, 3, 2),
    ]
    module = build(backbone, TERMS[term], aggregation)
    plain, *others = [experience_of(module, variant) for variant in (rollout, *variants)]
    shift_weights(module)
    want = step(module, plain, network, 4, term)
    for other in others:
        close(want, step(module, other, network, 4, term))


@pytest.mark.parametrize("entropy", [False, True])
def test_the_first_ratio_is_exactly_one(backbone, entropy):
    module = build(backbone, TERMS["entropy"] if entropy else {})
    module.monitor_entropy = entropy
    rollout = demonstrations(backbone)
    generator = torch.Generator().manual_seed(0)
    update = Update(1, 8, 4)
    plan = update.partition(rollout, torch.arange(16), 8, generator)
    experience, _ = module.annotate(rollout, [rows for part in plan for rows in part])
    for part in plan:
        learner = module.learners()["actor"]
        recorder = Recorder(learner.parameters)
        stats = learner.update(experience, part, recorder, torch.Tensor.backward)
        assert stats["policy/ratio"] == 1
        assert stats["policy/approx_kl"] == 0
        assert stats["policy/clip_fraction_low"] == stats["policy/clip_fraction_high"] == 0


def test_micro_batches_keep_to_the_budget_of_tokens(backbone):
    """Short responses go together, a response that is longer than the budget goes alone."""
    rollout = demonstrations(backbone, n_max=9)
    prompts, lengths = rollout.prompt_mask.sum(1), rollout.lengths
    for budget, most in ((20, 16), (100, 16), (100, 3), (10**6, 16), (10**6, 3)):
        update = Update(1, 16, most, micro_batch_tokens=budget)
        (parts,) = update.partition(rollout, torch.arange(16), 16, torch.Generator())
        assert sorted(torch.cat(parts).tolist()) == list(range(16))
        tokens = [len(p) * int(prompts[p].max() + lengths[p].max()) for p in parts]
        sizes = [len(p) for p in parts]
        assert all(t <= budget or n == 1 for t, n in zip(tokens, sizes, strict=True))
        assert max(sizes) <= most
        for a, b in itertools.pairwise(parts):  # no two could have been one
            both = torch.cat([a, b[:1]])
            width = int(prompts[both].max() + lengths[both].max())
            assert len(both) > most or len(both) * width > budget


def test_an_update_does_not_depend_on_the_budget_of_tokens(backbone):
    module = build(backbone, TERMS["all"])
    experience = experience_of(module, demonstrations(backbone))
    shift_weights(module)
    update = Update(1, 16, 16, micro_batch_tokens=64)
    (parts,) = update.partition(experience.rollout, torch.arange(16), 16, torch.Generator())
    assert len(parts) > 4
    results = []
    for plan in (parts, [torch.cat(parts)]):
        learner = module.learners()["actor"]
        recorder = Recorder(learner.parameters)
        stats = learner.update(experience, plan, recorder, torch.Tensor.backward)
        results.append((stats, recorder.gradients))
    close(*results)


def test_the_first_ratio_is_exactly_one_in_bfloat16(backbone):
    module = build(backbone)
    rollout = demonstrations(backbone)
    rows = [torch.arange(16)]
    with torch.autocast("cpu", torch.bfloat16):
        experience, _ = module.annotate(rollout, rows)
        learner = module.learners()["actor"]
        recorder = Recorder(learner.parameters)
        stats = learner.update(experience, rows, recorder, torch.Tensor.backward)
    assert stats["policy/ratio"] == 1
    assert stats["policy/clip_fraction_low"] == stats["policy/clip_fraction_high"] == 0


@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_the_first_mini_batch_of_a_run_has_ratio_one(monkeypatch):
    """Through the trainer, two mini-batches of ragged micro-batches: old and new are scored alike.

    On an accelerator the last digits of a row depend on what is scored with it. Here that is made
    certain, and large: another partition than the one that was annotated moves every ratio.
    """
    same, steps, surrogate, update = [], [], objectives.clipped_surrogate, Learner.update

    def score(network, micro, *rest):
        outputs = policy_outputs(network, micro, *rest)
        shift = 1e-3 * (micro.response_ids.sum() % 17) * micro.response_mask
        return outputs._replace(logprobs=outputs.logprobs + shift)

    def compare(logprobs, old_logprobs, *rest):
        same.append(torch.equal(logprobs.detach(), old_logprobs))
        return surrogate(logprobs, old_logprobs, *rest)

    def record(self, *args):
        steps.append(update(self, *args))
        return steps[-1]

    monkeypatch.setattr("lit_reason.module.policy_outputs", score)
    monkeypatch.setattr(objectives, "clipped_surrogate", compare)
    monkeypatch.setattr(Learner, "update", record)
    fit(*tiny("grpo"), *SMALL, "--model.actor_optimizer.init_args.lr=1e-3")
    assert len(steps) == 4  # two rollouts of two mini-batches of two micro-batches
    assert same == [True, True, False, False] * 2
    for first in steps[::2]:
        assert first["policy/ratio"] == 1
        assert first["policy/approx_kl"] == 0
        assert first["policy/clip_fraction_low"] == first["policy/clip_fraction_high"] == 0
        assert first["policy/tokens"] > 8


def test_a_first_loss_of_zero_still_has_a_gradient(backbone):
    """B16: equal lengths and a balanced group give loss 0, which is not a dead run."""
    rollout = demonstrations(backbone, groups=1, size=4)
    length = int(rollout.lengths.min())
    keep = torch.arange(rollout.response_mask.shape[1]) < length
    for name in ("response_mask", "loss_mask", "value_mask"):
        setattr(rollout, name, getattr(rollout, name) & keep)
    rollout.rewards = torch.tensor([1.0, 0.0, 0.0, 1.0])
    module = build(backbone, advantage=GroupRelative(), value=None)
    stats, gradient = step(module, experience_of(module, rollout), "actor", 4)
    assert stats["loss/policy"].abs() < 1e-6
    assert gradient.norm() > 1e-3


@pytest.mark.parametrize("network", ["actor", "critic"])
def test_a_mini_batch_without_a_token_changes_nothing_and_is_counted(backbone, network):
    module = build(backbone, TERMS["all"])
    rollout = demonstrations(backbone)
    rollout.loss_mask[:] = False
    rollout.value_mask[:] = False
    experience = experience_of(module, rollout)
    before = copy.deepcopy(getattr(module, network).state_dict())
    optimizer = torch.optim.AdamW(getattr(module, network).parameters(), lr=0.1)
    learner = module.learners()[network]
    rows = list(torch.arange(16).split(4))
    stats = learner.update(experience, rows, optimizer, torch.Tensor.backward)
    assert stats == {f"update/skipped_{network}": 1}
    after = getattr(module, network).state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not optimizer.state


def updated(module, network, experience, minibatch):
    """Statistics of a real optimizer step that also decays weights, and whether any changed."""
    before = copy.deepcopy(getattr(module, network).state_dict())
    optimizer = torch.optim.AdamW(getattr(module, network).parameters(), lr=0.1, weight_decay=0.5)
    learner = module.learners()[network]
    stats = learner.update(experience, minibatch, optimizer, torch.Tensor.backward)
    after = getattr(module, network).state_dict()
    return stats, any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("network", ["actor", "critic"])
def test_a_mini_batch_that_weighs_nothing_changes_nothing_and_is_counted(backbone, network):
    """Weight decay alone would move every parameter."""
    module = build(backbone, TERMS["all"])
    experience = experience_of(module, demonstrations(backbone))
    experience.rollout.loss_weight[:8] = 0.0
    rows = torch.arange(16)
    stats, changed = updated(module, network, experience, list(rows[:8].split(4)))
    assert stats == {f"update/skipped_{network}": 1}
    assert not changed
    stats, changed = updated(module, network, experience, list(rows[4:12].split(4)))
    assert stats[f"update/skipped_{network}"] == 0
    assert changed


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_row_of_weight_zero_stays_in_the_normaliser(backbone, aggregation):
    """As if its advantages were 0, and unlike a row that is masked."""
    module = build(backbone, aggregation=aggregation)
    experience = experience_of(module, demonstrations(backbone))
    shift_weights(module)
    generator = torch.Generator().manual_seed(0)
    experience.advantages = torch.randn(experience.advantages.shape, generator=generator)
    whole = step(module, experience, "actor", 4)
    experience.rollout.loss_weight[:4] = 0.0
    weighed = step(module, experience, "actor", 4)
    experience.rollout.loss_weight[:4] = 1.0
    experience.advantages[:4] = 0.0
    stats, gradient = step(module, experience, "actor", 4)
    torch.testing.assert_close(weighed[0]["loss/policy"], stats["loss/policy"], atol=1e-6, rtol=0)
    torch.testing.assert_close(weighed[1], gradient, atol=1e-6, rtol=0)
    assert (weighed[1] - whole[1]).norm() > 1e-3
    assert weighed[0]["policy/tokens"] == whole[0]["policy/tokens"]


class OnlyPadding(LossTerm):
    """Counts what the policy term does not."""

    uses_advantages = False

    def mask(self, experience):
        return experience.rollout.response_mask & ~experience.rollout.loss_mask

    def loss(self, experience, outputs):
        return outputs.logprobs.square() + outputs.logprobs


def test_a_mini_batch_that_only_a_later_term_counts_is_stepped(backbone):
    module = build(backbone)
    module.terms = {"padding": OnlyPadding(aggregation=SequenceMean())}
    experience = experience_of(module, demonstrations(backbone))
    experience.rollout.loss_mask[:] = False
    stats, changed = updated(module, "actor", experience, [torch.arange(16)])
    assert stats["policy/tokens"] == stats["update/skipped_actor"] == 0
    assert stats["padding/tokens"] > 0
    assert changed


def test_statistics_of_a_single_token_are_that_tokens(backbone):
    module = build(backbone)
    experience = experience_of(module, demonstrations(backbone))
    shift_weights(module)
    for mask in (experience.rollout.loss_mask, experience.rollout.value_mask):
        mask[:] = False
        mask[3, 1] = True
    experience.advantages[3, 1] = 1.0
    ratio = policy_outputs(module.actor, experience.rollout).logprobs - experience.old_logprobs
    stats, _ = step(module, experience, "actor", 4)
    assert stats["policy/tokens"] == 1
    torch.testing.assert_close(stats["policy/ratio"], ratio[3, 1].exp().detach())
    experience.values[3, 1], experience.returns[3, 1] = -9.0, 0.0
    stats, _ = step(module, experience, "critic", 4)
    assert stats["value/clip_fraction"] == 1


def test_fully_masked_rows_have_no_effect(backbone):
    rollout = demonstrations(backbone)
    module = build(backbone, TERMS["all"], SequenceMean())
    experience = experience_of(module, rollout)
    shift_weights(module)
    kept = step(module, experience[torch.arange(12)], "actor", 4)
    experience.rollout.loss_mask[12:] = False
    close(kept, step(module, experience, "actor", 4))


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(backbone):
    module = build(backbone)
    experience = experience_of(module, demonstrations(backbone))
    experience.advantages[0, 0] = float("inf")
    before = copy.deepcopy(module.actor.state_dict())
    optimizer = torch.optim.AdamW(module.actor.parameters(), lr=0.1)
    learner = module.learners()["actor"]
    stats = learner.update(experience, [torch.arange(16)], optimizer, torch.Tensor.backward)
    assert stats["update/skipped_actor"] == 1
    after = module.actor.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


class Infinite(LossTerm):
    """An infinite loss with the gradient of a finite one."""

    def loss(self, experience, outputs):
        return outputs.logprobs + float("inf")


def test_a_loss_that_is_not_finite_changes_nothing_even_with_a_finite_gradient(backbone):
    module = build(backbone, {"infinite": Infinite()})
    experience = experience_of(module, demonstrations(backbone))
    before = copy.deepcopy(module.actor.state_dict())
    optimizer = torch.optim.AdamW(module.actor.parameters(), lr=0.1)
    learner = module.learners()["actor"]
    stats = learner.update(experience, [torch.arange(16)], optimizer, torch.Tensor.backward)
    assert stats["grad_norm/actor"].isfinite()
    assert stats["update/skipped_actor"] == stats["update/nonfinite_actor"] == 1
    after = module.actor.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("infinity", [float("inf"), -float("inf")])
def test_an_infinite_old_log_prob_is_no_ordinary_ratio(backbone, infinity):
    """The clamp of log-ratios would make an ordinary ratio, e^20 or e^-20, of it."""
    module = build(backbone)
    experience = experience_of(module, demonstrations(backbone))
    experience.old_logprobs[0, 0] = infinity
    stats, _ = step(module, experience, "actor", 16)
    assert stats["update/skipped_actor"] == stats["update/nonfinite_actor"] == 1


def test_a_run_that_stays_non_finite_stops_and_keeps_its_mini_batch(backbone, tmp_path):
    module = build(backbone, update=Update(1, 4, 4, max_nonfinite=3))
    experience = experience_of(module, demonstrations(backbone))
    learner = module.learners()["actor"]
    optimizer = torch.optim.SGD(module.actor.parameters(), lr=1e-6)
    path = tmp_path / "run" / "batch.pt"

    def step(rows):
        stats = learner.update(experience, [rows], optimizer, torch.Tensor.backward)
        module.guard.observe("actor", stats, experience, rows, path)

    bad, good, empty = torch.arange(4), torch.arange(4, 8), torch.arange(8, 12)
    experience.advantages[2, 1] = float("nan")
    experience.rollout.loss_mask[8:12] = False
    for rows in (bad, bad, good, bad, empty, bad):  # a good step starts the count again
        step(rows)
    assert not path.exists()
    with pytest.raises(FloatingPointError, match="actor not finite in 3 optimizer steps in a row"):
        step(bad)
    saved = torch.load(path, weights_only=True)
    assert saved["network"] == "actor"
    assert saved["advantages"][2, 1].isnan()
    assert torch.equal(saved["rollout"]["response_ids"], experience.rollout.response_ids[:4])


def test_gradients_are_summed_in_buckets_and_unused_parameters_keep_none():
    """Two ranks that hold the same: twice the gradient, and no zeros where there was none."""
    parameters = [torch.nn.Parameter(torch.randn(n)) for n in (3, 5, 2, 4)]
    for p in parameters[:3]:
        p.grad = torch.randn_like(p)
    network = torch.nn.ParameterList(parameters)
    learner = Learner("actor", network, {}, None, None, reduce=lambda x: x.clone() * 2)
    want = [p.grad * 2 for p in parameters[:3]]
    norm = learner._gradient_norm()
    for p, w in zip(parameters, want, strict=False):
        torch.testing.assert_close(p.grad, w)
    assert parameters[3].grad is None
    torch.testing.assert_close(norm, torch.cat(want).norm())
    sizes = [[p.numel() for p in bucket] for bucket in _buckets(parameters, size=8)]
    assert sizes == [[3, 5], [2, 4]]
    assert [len(b) for b in _buckets(parameters, size=1)] == [1, 1, 1, 1]


@pytest.mark.parametrize("monitored", [False, True])
def test_f04_entropy_is_computed_for_its_readers_only(backbone, monkeypatch, monitored):
    """F04: a metric takes the pass without gradient; only the entropy bonus takes a gradient."""
    asked = []

    def spy(network, micro, temperature, entropy, chunk):
        asked.append((entropy, torch.is_grad_enabled()))
        return policy_outputs(network, micro, temperature, entropy, chunk)

    monkeypatch.setattr("lit_reason.module.policy_outputs", spy)
    for terms in ({}, TERMS["entropy"]):
        asked.clear()
        module = build(backbone, terms)
        module.monitor_entropy = monitored
        experience = experience_of(module, demonstrations(backbone))
        assert (experience.entropy is not None) == monitored
        step(module, experience, "actor", 16)
        watched = "detached" if monitored else "none"
        assert asked == [(watched, False), ("grad" if terms else "none", True)]


def test_b12_the_outcome_reward_stands_on_the_last_sampled_token(backbone):
    """B12: ended before the padding, cut off at the limit, and ended at once; C02: pad is eos."""
    eos = backbone.tokenizer.eos_token_id
    ids = [(3, 4, eos), (3, 4, 5, 6, 7), (eos,)]
    responses = [Response(row, "", truncated=row[-1] != eos) for row in ids]
    group = Group(Prompt(0, "", ""), [3], responses, [Verdict.of(True)] * 3, [1.0] * 3)
    rollout = RolloutBatch.from_groups([group], pad_id=eos)
    rewards = token_rewards(rollout, {}, kl_in_reward=0.0)
    assert rewards.nonzero().tolist() == [[0, 2], [1, 4], [2, 0]]
    assert rewards.sum(1).tolist() == [1.0, 1.0, 1.0]
    assert rollout.lengths.tolist() == [3, 5, 1]
    assert rollout.truncated.tolist() == [False, True, False]


def test_the_positive_example_term_reads_the_verdict_and_only_correct_responses(backbone):
    module = build(backbone, {"positive_lm": PositiveExampleLM(1.0)})
    rollout = demonstrations(backbone)
    rollout.correct[:] = False
    stats, none = step(module, experience_of(module, rollout), "actor", 4)
    assert stats["loss/positive_lm"] == stats["positive_lm/tokens"] == 0
    plain = build(backbone)
    _, without = step(plain, experience_of(plain, rollout), "actor", 4)
    torch.testing.assert_close(none, without, atol=1e-7, rtol=1e-6)
    rollout.correct[3] = True
    rollout.rewards[3] = -5.0
    stats, _ = step(module, experience_of(module, rollout), "actor", 4)
    logprobs = policy_outputs(module.actor, rollout).logprobs[3]
    expected = -logprobs.sum() / rollout.lengths[3]
    torch.testing.assert_close(stats["loss/positive_lm"], expected.detach(), atol=1e-6, rtol=1e-5)
    assert stats["positive_lm/tokens"] == rollout.lengths[3]


class Marked(PositiveExampleLM):
    """Says 1 of every token it counts, and 100 of those it does not."""

    def stats(self, experience, outputs):
        return {"mark": 100.0 - 99.0 * self.mask(experience).float()}


def test_a_statistic_is_the_mean_over_the_tokens_of_its_own_term(backbone):
    module = build(backbone, {"marked": Marked(1.0)})
    rollout = demonstrations(backbone)
    rollout.correct[:] = False
    rollout.correct[[0, 3]] = True
    for size in (4, 16):
        stats, _ = step(module, experience_of(module, rollout), "actor", size)
        assert stats["marked/mark"] == 1


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_positive_example_term_counts_tokens_whatever_the_policy_does(backbone, aggregation):
    """VAPO Eq. 9 divides by the tokens of all correct responses, of uneven lengths here."""
    module = build(backbone, {"positive_lm": PositiveExampleLM(1.0)}, aggregation)
    rollout = demonstrations(backbone)
    rollout.correct[:] = False
    rollout.correct[[0, 3, 6]] = True
    lengths = rollout.lengths[rollout.correct]
    assert len(set(lengths.tolist())) > 1
    stats, _ = step(module, experience_of(module, rollout), "actor", 4)
    logprobs = policy_outputs(module.actor, rollout).logprobs[rollout.correct]
    expected = -logprobs.sum() / lengths.sum()
    torch.testing.assert_close(stats["loss/positive_lm"], expected.detach(), atol=1e-6, rtol=1e-5)


def test_kl_to_the_reference_falls(backbone):
    """B19: with zero advantages the KL term moves the policy towards the reference."""
    module = build(backbone, {"kl": KLToReference(1.0, "k3")})
    rollout = demonstrations(backbone)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.actor.parameters():
            p += 0.02 * torch.randn(p.shape, generator=generator)
    experience = experience_of(module, rollout)
    experience.advantages.zero_()
    optimizer = torch.optim.SGD(module.actor.parameters(), lr=2e-3)
    learner = module.learners()["actor"]
    losses = [
        learner.update(experience, [torch.arange(16)], optimizer, torch.Tensor.backward)["loss/kl"]
        for _ in range(20)
    ]
    assert losses[-1] < 0.8 * losses[0]


def test_the_gradient_norm_is_clipped_and_logged_before_clipping(backbone):
    """G06: norms at step time, per network, of a huge loss."""
    module = build(backbone, update=Update(1, 16, 4, max_grad_norm=0.1))
    experience = experience_of(module, demonstrations(backbone))
    experience.advantages *= 1e4
    experience.returns *= 1e4
    for network in ("actor", "critic"):
        stats, gradient = step(module, experience, network, 4)
        assert stats[f"grad_norm/{network}"] > 100
        assert gradient.norm() <= 0.1 * 1.0001


def test_an_optimizer_that_would_be_differentiated_is_refused(backbone):
    kind = partial(torch.optim.AdamW, lr=1e-3, differentiable=True)
    with pytest.raises(ConfigError, match=r"model\.actor_optimizer\.differentiable=true: no step"):
        build(backbone, actor_optimizer=kind).configure_optimizers()


def test_dropout_is_off_in_the_trained_networks(backbone, tmp_path):
    """C11: a checkpoint with dropout scores a batch twice alike in training mode."""
    import json
    import shutil

    from lit_reason.backbones import Pretrained

    folder = tmp_path / "model"
    shutil.copytree(backbone.path, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    actor = Pretrained(str(folder)).actor()
    assert actor.training
    rollout = demonstrations(backbone)
    first, second = (policy_outputs(actor, rollout).logprobs for _ in range(2))
    assert torch.equal(first, second)


def test_networks_that_nobody_needs_are_not_built(backbone):
    module = build(Bundled(), advantage=GroupRelative(), value=None)
    assert module.critic is None
    assert module.reference is None
    assert build(Bundled(), {"kl": KLToReference()}).reference is not None
    assert build(Bundled(), kl_in_reward=0.1).reference is not None


def test_a_critic_that_has_diverged_is_skipped_and_counted_rather_than_a_traceback(backbone):
    module = build(backbone)
    with torch.no_grad():
        next(module.critic.head.parameters()).fill_(float("nan"))
    rollout = demonstrations(backbone)
    experience, _ = module.annotate(rollout, [torch.arange(len(rollout))])
    stats, _ = step(module, experience, "critic", len(rollout))
    assert stats["update/nonfinite_critic"] == stats["update/skipped_critic"] == 1


def test_the_run_stops_and_saves_the_mini_batch_once_it_stays_non_finite(backbone):
    """Through the trainer: two steps in a row, of a network whose loss is nan."""
    module = build(backbone, {"broken": NeverFinite()}, update=Update(1, 4, 4, max_nonfinite=2))
    before = [p.clone() for p in module.actor.parameters()]
    with pytest.raises(FloatingPointError, match=r"actor not finite in 2 optimizer steps in a row"):
        runs.run(module, runs.data_of())
    saved = torch.load("run/nonfinite_rank0.pt", weights_only=True)
    assert saved["network"] == "actor"
    assert len(saved["rows"]) == 4
    assert all(torch.equal(a, b) for a, b in zip(before, module.actor.parameters(), strict=True))


class NeverFinite(LossTerm):
    def loss(self, experience, outputs):
        return outputs.logprobs * float("nan")


@pytest.mark.parametrize("broken", ["critic", "reference"])
def test_a_network_that_has_diverged_is_skipped_in_a_run(backbone, broken):
    module = build(backbone, kl_in_reward=0.1, update=Update(1, 4, 4))
    with torch.no_grad():
        for weights in getattr(module, broken).parameters():
            weights.fill_(float("nan"))
    trainer = runs.run(module, runs.data_of())
    row = trainer.callback_metrics
    assert row["update/nonfinite_critic"] == row["update/skipped_critic"] == 1
    assert module.policy_version == 2


def test_mini_batches_are_drawn_at_random_and_hold_every_row_once(backbone):
    update = Update(1, 8, 4)
    generator, rows = torch.Generator().manual_seed(0), torch.arange(32)
    rollout = demonstrations(backbone, groups=8)
    plans = [update.partition(rollout, rows, 8, generator) for _ in range(2)]
    drawn = [[set(torch.cat(part).tolist()) for part in plan] for plan in plans]
    for parts in drawn:
        assert sorted(row for part in parts for row in part) == list(range(32))
        assert parts[0] != set(range(8))
    assert drawn[0] != drawn[1]


def test_dual_clip_bounds_the_loss_of_bad_tokens(backbone):
    plain, bounded = ClippedSurrogate(), ClippedSurrogate(dual_clip=3.0)
    rollout = demonstrations(backbone)
    module = build(backbone)
    experience, _ = module.annotate(rollout, [torch.arange(16)])
    experience.advantages = torch.full_like(experience.advantages, -1.0)
    outputs = Scored(experience.old_logprobs + 2.0)  # a ratio of 7.4
    mask = rollout.response_mask
    assert plain.loss(experience, outputs)[mask].min() > 7
    assert bounded.loss(experience, outputs)[mask].unique().tolist() == [3.0]


class Scored:
    def __init__(self, logprobs):
        self.logprobs, self.entropy = logprobs, None


def test_what_is_left_out_is_what_the_documentation_says():
    """PPO's bounds, GRPO's estimator, and a guard that is on."""
    assert (ClippedSurrogate().clip_low, ClippedSurrogate().clip_high) == (0.2, 0.2)
    assert ClippedSurrogate().dual_clip is None
    assert KLToReference(0.1).estimator is kl_k3
    assert (Update().max_nonfinite, Update().max_grad_norm) == (10, 1.0)


@pytest.mark.parametrize(
    "last", [Response((), "", False), Response((3, 4), "", False, mask=(False, False))]
)
def test_c18_a_response_without_a_token_of_the_policy_counts_in_its_group(backbone, last):
    """From an engine of one's own: no token can learn, but the others compare with it."""
    responses = [Response((3, 4, 2), "", False), Response((3, 5, 2), "", False), last]
    rewards = [1.0, -1.0, -1.0]
    verdicts = [Verdict.of(r > 0) for r in rewards]
    group = Group(Prompt(0, "", ""), [3], responses, verdicts, rewards)
    rollout = RolloutBatch.from_groups([group], pad_id=backbone.tokenizer.pad_token_id)
    module = build(backbone, advantage=GroupRelative(), value=None)
    experience, _ = module.annotate(rollout, [torch.arange(3)])
    want = group_relative(torch.tensor(rewards), torch.zeros(3, dtype=torch.long))
    assert experience.advantages[:2, 0].tolist() == want[:2].tolist()
    assert not experience.advantages[2].any()
