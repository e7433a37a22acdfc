"""Engines apart from the trainer: what is logged, what is corrected, and tokens of tools."""

import copy
import csv
import math
import random
import re
import warnings
from dataclasses import replace

import pytest
import torch

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.annotation import token_rewards
from lit_reason.batch import Group, Prompt, Response, RolloutBatch
from lit_reason.correction import Correction
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.networks import state_values
from lit_reason.objectives import ClippedSurrogate
from lit_reason.rollout import HFEngine, RolloutEngine, Sampling
from lit_reason.statistics import mismatch
from lit_reason.verdict import Verdict
from tests.conftest import SMALL, demonstrations, fails, fit, tiny
from tests.steps import Recorder, build, experience_of, shift_weights

QUIET = [*SMALL, "--trainer.max_epochs=1", "--data.rollouts_per_epoch=1"]


class Hotter(HFEngine):
    """Draws from a hotter distribution than it is asked for, and says so."""

    def generate(self, prompts, samples, sampling, seed):
        return super().generate(prompts, samples, replace(sampling, temperature=1.5), seed)


class Silent(HFEngine):
    """Does not say with what probability it drew."""

    def generate(self, prompts, samples, sampling, seed):
        groups = super().generate(prompts, samples, sampling, seed)
        return [[replace(r, logprobs=None) for r in group] for group in groups]


class Tool(RolloutEngine):
    """Every response calls a tool that answers `3=`; only what stands around it was sampled."""

    called = 0

    def generate(self, prompts, samples, sampling, seed):
        tokenizer, rng = self.module.backbone.tokenizer, random.Random(seed)
        groups = []
        for _ in prompts:
            groups.append([])
            for _ in range(samples):
                said = tokenizer("7+4=")["input_ids"]
                tool = tokenizer("3=")["input_ids"]
                end = [*tokenizer(rng.choice("123"))["input_ids"], tokenizer.eos_token_id]
                mask = [True] * len(said) + [False] * len(tool) + [True] * len(end)
                ids = (*said, *tool, *end)
                groups[-1].append(Response(ids, tokenizer.decode(ids), False, None, tuple(mask)))
        Tool.called += 1
        return groups


def metrics(folder):
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {k: float(v) for row in rows for k, v in row.items() if v and k != "epoch"}


def test_the_mismatch_of_the_own_engine_is_rounding():
    logged = metrics(fit(*tiny("dapo"), *QUIET))
    assert 0 < logged["mismatch/logprob_max"] < 1e-4
    assert logged["mismatch/logprob"] < 1e-5
    assert logged["mismatch/ratio"] == pytest.approx(1, abs=1e-5)
    assert abs(logged["mismatch/kl"]) < 1e-6


def test_an_engine_that_samples_otherwise_shows():
    logged = metrics(fit(*tiny("dapo"), *QUIET, f"--data.engine={__name__}.Hotter"))
    assert logged["mismatch/logprob"] > 0.01
    assert logged["mismatch/kl"] > 1e-4


def test_the_policy_term_is_weighed_by_the_correction():
    args = [f"--data.engine={__name__}.Hotter", "--model.policy.correction.cap=1.05"]
    logged = metrics(fit(*tiny("dapo"), *QUIET, *args))
    assert 0 < logged["policy/correction_cut"] < 1
    assert 0 < logged["policy/correction_weight"] <= 1.05


def test_an_engine_without_log_probs_cannot_be_corrected():
    args = [*tiny("grpo"), *QUIET, f"--data.engine={__name__}.Silent"]
    assert not [k for k in metrics(fit(*args)) if k.startswith("mismatch")]
    with pytest.raises(SystemExit):
        fit(*args, "--model.policy.correction.cap=2", run_dir="other")


@pytest.mark.parametrize(
    ("cap", "rule"),
    [
        (0.0, "above 0, for example 2"),
        (-1.0, "above 0"),
        (math.nan, "above 0"),
        (math.inf, "from 1.2e-38 to 3.4e+38, which float32 holds, for example 2"),
        (1e300, "from 1.2e-38 to 3.4e+38"),
        (1e-300, "from 1.2e-38 to 3.4e+38"),
    ],
)
def test_a_cap_that_cuts_nothing_or_all_is_refused(cap, rule):
    message = re.escape(f"model.policy.correction.cap={cap}: must be {rule}")
    with pytest.raises(ConfigError, match=message):
        Correction(cap)


@pytest.mark.parametrize(
    ("cut", "what"), [("truncate", r"are scaled down to 0\.5"), ("mask", "are dropped")]
)
def test_a_cap_that_cuts_what_agrees_is_warned_of(cut, what):
    with pytest.warns(ConfigWarning, match=rf"correction\.cap=0\.5: is below 1, .* {what}; choose"):
        Correction(0.5, cut=cut)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Correction(1.0, cut=cut)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("cut", ["truncate", "mask"])
def test_the_loss_is_that_of_each_token_times_its_weight(backbone, level, cut):
    module = build(backbone)
    rollout = demonstrations(backbone)
    experience = experience_of(module, rollout)
    noise = torch.randn(rollout.response_ids.shape, generator=torch.Generator().manual_seed(0))
    rollout.sampled_logprobs = experience.old_logprobs + 0.5 * noise * rollout.policy_mask
    shift_weights(module)
    with torch.no_grad():
        outputs = module.score(module.actor, rollout)
    plain = ClippedSurrogate(0.2, 0.28).loss(experience, outputs)
    term = ClippedSurrogate(0.2, 0.28, correction=Correction(1.2, level, cut))
    weights = term.correction.weights(experience)
    torch.testing.assert_close(term.loss(experience, outputs), plain * weights)
    assert 0 < float(term.stats(experience, outputs)["correction_cut"].mean()) < 1


# --- old log-probs that are the engine's ----------------------------------------------------------

ENGINE = "--model.old_logprobs=engine"


@pytest.mark.parametrize("algorithm", ["grpo", "vapo"])
def test_old_log_probs_of_the_engine_train_the_same(algorithm):
    joint = [*SMALL, "--trainer.max_epochs=1", "--data.rollouts_per_epoch=2"]
    joint += ["--callbacks.value_warmup.rollouts=1"] if algorithm == "vapo" else []
    own = metrics(fit(*tiny(algorithm), *joint))
    drawn = metrics(fit(*tiny(algorithm), *joint, ENGINE, run_dir="engine"))
    assert own.keys() == drawn.keys()
    apart = {k for k in own if not k.startswith(("time/", "mismatch/"))}
    for key in apart:
        assert drawn[key] == pytest.approx(own[key], abs=2e-4, rel=1e-3), key
    assert 0 < drawn["mismatch/logprob_max"] < 1e-4


@pytest.mark.parametrize("place", ["trainer", "engine"])
def test_what_the_engine_said_is_not_computed_again(backbone, monkeypatch, place):
    rollout, scored = demonstrations(backbone), []
    rollout.sampled_logprobs = torch.zeros(rollout.response_ids.shape)
    module = build(backbone, old_logprobs=place)
    score = module.score
    monkeypatch.setattr(module, "score", lambda n, r, *a: scored.append(len(r)) or score(n, r, *a))
    experience, _ = module.annotate(rollout, list(torch.arange(len(rollout)).split(4)))
    assert scored == ([4, 4, 4, 4] if place == "trainer" else [2])
    assert (experience.old_logprobs == 0).all() == (place == "engine")


def test_entropies_of_the_engine_are_those_of_the_trainer(backbone):
    module = build(backbone, old_logprobs="engine")
    module.monitor_entropy = True
    engine = HFEngine(micro_batch_size=8)
    engine.bind(module)
    prompts = [backbone.tokenizer(t)["input_ids"] for t in ("max(1,2)+3=", "max(7,2)+12=")]
    groups = engine.generate(prompts, 6, Sampling(temperature=0.7, max_new_tokens=40), seed=0)
    made = [
        Group(Prompt(i, "", ""), ids, group, [Verdict.of(False)] * 6, [0.0] * 6)
        for i, (ids, group) in enumerate(zip(prompts, groups, strict=True))
    ]
    rollout = RolloutBatch.from_groups(made, backbone.tokenizer.pad_token_id, temperature=0.7)
    with torch.no_grad():
        want = module.score(module.actor, rollout, "detached")
    torch.testing.assert_close(rollout.sampled_entropy, want.entropy, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(rollout.sampled_logprobs, want.logprobs, atol=2e-5, rtol=1e-5)
    assert torch.equal(experience_of(module, rollout).entropy, rollout.sampled_entropy)


def test_an_engine_that_samples_otherwise_shows_without_a_pass_over_all():
    logged = metrics(fit(*tiny("dapo"), *QUIET, ENGINE, f"--data.engine={__name__}.Hotter"))
    assert logged["mismatch/logprob"] > 0.01


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ([f"--data.engine={__name__}.Silent"], r"data\.engine returns no log-probs"),
        (["--model.policy.correction.cap=2"], r"model\.policy\.correction: "),
        (["--data.sampling.top_p=0.9"], r"data\.sampling\.top_p=0\.9"),
        (["--data.sampling.top_k=5"], r"top_k=5"),
        (["--model.old_logprobs=critic"], r"model\.old_logprobs"),
    ],
)
@pytest.mark.filterwarnings("ignore:data.sampling.top_")
def test_what_the_log_probs_of_an_engine_cannot_do_is_refused(capsys, args, named):
    line = fails(capsys, "fit", *tiny("grpo"), *QUIET, ENGINE, *args, "--run_dir=run")
    assert re.search(named, line), line


# --- tokens that the policy did not sample --------------------------------------------------------


def with_gap(backbone, text="7+4=3=1", hidden=(4, 6)):
    """Two equal responses; of the first, tokens of `hidden` are a tool's."""
    ids = (*backbone.tokenizer(text)["input_ids"], backbone.tokenizer.eos_token_id)
    mask = tuple(not hidden[0] <= i < hidden[1] for i in range(len(ids)))
    responses = [Response(ids, text, False, None, mask), Response(ids, text, False)]
    prompt = backbone.tokenizer("max(1,2)+3=")["input_ids"]
    group = Group(Prompt(0, "", ""), prompt, responses, [Verdict.of(True)] * 2, [1.0, -1.0])
    return RolloutBatch.from_groups([group], backbone.tokenizer.pad_token_id)


def test_a_mask_says_what_trains_and_all_tokens_are_read(backbone):
    batch = with_gap(backbone)
    assert batch.response_mask.all()
    assert batch.lengths.tolist() == [8, 8]
    expected = [True] * 4 + [False] * 2 + [True] * 2
    for mask in (batch.policy_mask, batch.loss_mask, batch.value_mask):
        assert mask.tolist() == [expected, [True] * 8]
    batch.loss_mask[0, 4] = True
    with pytest.raises(ConfigError, match="tokens that the policy did not sample"):
        batch.check()


def test_advantages_carry_over_the_gap(backbone):
    """As if the row had been written without it."""
    batch = with_gap(backbone)
    values = torch.rand(2, 8, generator=torch.Generator().manual_seed(0))
    rewards = torch.zeros(2, 8)
    rewards[:, -1] = batch.rewards
    keep = batch.policy_mask[0]
    out = GAE(lam_policy=0.9, lam_critic=0.8)(batch, rewards, values)
    short = with_gap(backbone, "7+4=1", (0, 0))
    squeezed = GAE(lam_policy=0.9, lam_critic=0.8)(short, rewards[:, keep], values[:, keep])
    torch.testing.assert_close(out.advantages[0, keep], squeezed.advantages[0])
    torch.testing.assert_close(out.returns[0, keep], squeezed.returns[0])
    assert not out.advantages[0, ~keep].any()
    relative = GroupRelative()(batch, rewards, None).advantages
    assert relative[0, keep].all()
    assert not relative[0, ~keep].any()


def test_the_outcome_stands_on_the_last_token_that_the_policy_sampled(backbone):
    batch = with_gap(backbone, hidden=(6, 8))  # the response ends in the words of a tool
    rewards = token_rewards(batch, {}, kl_in_reward=0.0)
    assert rewards.nonzero().tolist() == [[0, 5], [1, 7]]
    assert rewards.sum(1).tolist() == batch.rewards.tolist()


def test_targets_of_the_warm_up_carry_over_the_gap(backbone):
    module = build(backbone, advantage=GAE(gamma=0.5))
    module.phase = "value_warmup"
    batch = with_gap(backbone)
    returns = experience_of(module, batch).returns
    keep = batch.policy_mask[0]
    want = 0.5 ** torch.arange(5, -1, -1) * batch.rewards[0]  # six tokens, not eight
    torch.testing.assert_close(returns[0, keep], want)


def test_the_ratio_of_a_response_is_that_of_the_tokens_it_sampled(backbone):
    batch = with_gap(backbone)
    experience = experience_of(build(backbone), batch)
    batch.sampled_logprobs = experience.old_logprobs.clone()
    batch.sampled_logprobs[0, 4:6] = 0.0  # an engine knows nothing of what a tool said
    weights = Correction(9.0, "sequence").weights(experience)
    torch.testing.assert_close(weights, batch.policy_mask.float())


def test_what_the_trainer_finds_twice_as_likely_weighs_double(backbone):
    batch = with_gap(backbone)
    experience = experience_of(build(backbone), batch)
    batch.sampled_logprobs = experience.old_logprobs - math.log(2)
    weights = Correction(9.0).weights(experience)
    torch.testing.assert_close(weights, 2.0 * batch.policy_mask)


def test_lambda_goes_by_the_tokens_that_the_policy_sampled(backbone):
    lam = GAE(alpha=0.5).policy_lambda(with_gap(backbone))
    torch.testing.assert_close(lam, torch.tensor([1 - 1 / 3, 1 - 1 / 4]))


def test_a_term_that_counts_tokens_of_a_tool_is_refused(backbone):
    class Everything(ClippedSurrogate):
        def mask(self, experience):
            return experience.rollout.response_mask

    module = build(backbone)
    module.policy = Everything()
    experience = experience_of(module, with_gap(backbone))
    learner = module.learners()["actor"]
    recorder = Recorder(learner.parameters)
    with pytest.raises(ConfigError, match=r"mask counts 2 positions of padding, or not of the pol"):
        learner.update(experience, [torch.arange(2)], recorder, torch.Tensor.backward)


def test_rows_of_the_critic_alone_are_in_no_mismatch(backbone):
    rollout = demonstrations(backbone)
    experience = experience_of(build(backbone), rollout)
    rollout.sampled_logprobs = experience.old_logprobs.clone()
    rollout.sampled_logprobs[12:] -= 1.0
    rollout.critic_only[12:] = True
    assert mismatch(rollout, experience.old_logprobs)["mismatch/logprob_max"] == 0


def test_rows_of_the_critic_alone_are_valued_too(backbone):
    module, rollout = build(backbone), demonstrations(backbone)
    with torch.no_grad():
        module.critic.head.weight.normal_(generator=torch.Generator().manual_seed(0))
        want = state_values(module.critic, rollout)
    rollout.critic_only[12:] = True
    experience, _ = module.annotate(rollout, [torch.arange(12)])
    mask = rollout.response_mask
    torch.testing.assert_close(experience.values[mask], want[mask], atol=1e-5, rtol=1e-5)


def test_tokens_of_a_tool_have_no_gradient_of_their_own(backbone):
    """The loss reads no output at them: what the networks say there is free."""
    module = build(backbone)
    batch = with_gap(backbone)
    experience = experience_of(module, batch)
    shift_weights(module)
    gradients = []
    for poisoned in (False, True):
        seen = copy.copy(experience)
        if poisoned:
            gap = ~batch.policy_mask
            for name in ("old_logprobs", "advantages", "values", "returns"):
                setattr(seen, name, getattr(experience, name).masked_fill(gap, 77.0))
        for learner in module.learners().values():
            recorder = Recorder(learner.parameters)
            stats = learner.update(seen, [torch.arange(2)], recorder, torch.Tensor.backward)
            assert not stats[f"update/skipped_{learner.name}"]
            gradients.append(recorder.gradients)
    torch.testing.assert_close(gradients[:2], gradients[2:])


@pytest.mark.parametrize("algorithm", ["dapo", "vapo"])
def test_an_engine_with_a_tool_trains_end_to_end(algorithm):
    before = Tool.called
    drop = {
        "dapo": ["--data.group_filter=null"],
        "vapo": ["--callbacks.value_warmup=null"],
    }[algorithm]
    args = [*tiny(algorithm), *QUIET, *drop, f"--data.engine={__name__}.Tool"]
    logged = metrics(fit(*args))
    assert Tool.called > before
    assert logged["response_length"] == 8
    assert logged["policy/tokens"] == 6 * 8  # of 8 responses in an optimizer step
    if algorithm == "vapo":
        assert logged["value/tokens"] == 6 * 8


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mask": (True,)}, "has 1 entries in mask"),
        ({"mask": (1,) * 8}, "mask of other values than True and False"),
        ({"logprobs": (0.0,)}, "has 1 entries in logprobs"),
        ({"logprobs": (math.nan,) * 8}, "logprobs that are not finite"),
    ],
)
def test_columns_that_do_not_fit_the_tokens_are_refused(changed, message):
    from lit_reason.rollout import Sampling, check_responses

    response = replace(Response((5,) * 8, "x", False), **changed)
    with pytest.raises(ConfigError, match=message):
        check_responses("Tool", [[response]], (1, 1), Sampling(), 20)
