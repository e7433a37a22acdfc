"""A critic of its own stage: pretrained online or from a file, kept, and taken up by later runs."""

import copy
import math
import re
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForSequenceClassification

from lit_reason.__main__ import main
from lit_reason.advantages import GAE, GroupRelative
from lit_reason.architecture import architecture, difference
from lit_reason.backbones import Bundled, Pretrained, Scratch, character_tokenizer
from lit_reason.callbacks import CriticMonitor, OverlongFilter, ValuePretraining, ValueWarmup
from lit_reason.critics import notes_of, save_critic
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.filters import GroupFilter
from lit_reason.functional import explained_variance, gae, last_token
from lit_reason.learner import Update
from lit_reason.lora import LoRA
from lit_reason.module import ReasonModule
from lit_reason.networks import state_values, values_and_after
from lit_reason.objectives import ClippedSurrogate
from lit_reason.rewards import Correctness, StepCorrectness
from lit_reason.rollout import Sampling, ValSampling
from lit_reason.tasks import PlanCount, Task
from lit_reason.tasks.plan_count import ALPHABET
from lit_reason.value_metrics import ValueMetrics
from tests.conftest import SMALL, config, demonstrations, fails, fit, ready, tiny
from tests.runs import Keep, module_of, run, shipped, weights
from tests.runs import few_problems as data_of

MONITORED = "val/value/explained_variance"
PRETRAIN = [config("value_pretrain.yaml"), *SMALL, "--model.update.critic_minibatch_size=8"]


# --- the stage ------------------------------------------------------------------------------------


def test_the_command_trains_a_critic_only_and_a_later_run_starts_from_it():
    folder = fit(*PRETRAIN)
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    untouched = shipped().actor().state_dict()
    assert all(torch.equal(state[f"actor.{name}"], value) for name, value in untouched.items())
    saved = load_file(folder / "critic" / "critic.safetensors")
    assert all(torch.equal(state[f"critic.{name}"], value) for name, value in saved.items())
    assert saved["head.weight"].any()

    init = f"--model.backbone.critic_init={folder / 'critic'}"
    flags = ["--callbacks.value_warmup=null", "--model.actor_optimizer.lr=1e-9"]
    later = fit(*tiny("vapo"), *SMALL, init, *flags, run_dir="later")
    first = torch.load(later / "checkpoints" / "last.ckpt", weights_only=True)
    for name, value in saved.items():
        assert torch.allclose(first["state_dict"][f"critic.{name}"], value, atol=1e-6)
    assert first["optimizer_states"][0]["state"][0]["step"] == 4  # 2 rollouts of 2 mini-batches


def test_any_configuration_becomes_its_own_value_pretraining_with_one_key():
    folder = fit(*tiny("vapo"), *SMALL, "--callbacks.value_warmup=ValuePretraining")
    assert (folder / "critic" / "critic.safetensors").exists()


def test_warm_up_inside_a_run_gives_the_critic_of_the_stage():
    warm = module_of()
    run(warm, data_of(), ValueWarmup(3, save=True))
    alone = module_of()
    callback = ValuePretraining(patience=None)
    run(alone, data_of(), callback, default_root_dir="alone")
    assert torch.equal(weights(warm.critic), weights(alone.critic))
    a, b = (load_file(Path(f, "critic", "critic.safetensors")) for f in ("run", "alone"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_best_critic_is_kept_and_the_run_ends_when_none_is_better():
    scores = [0.3, 0.5, 0.4, 0.504, 0.1, 0.9]
    kept = []

    class Scripted(ValuePretraining):
        def on_validation_end(self, trainer, pl_module):
            pl_module.last_evaluation[MONITORED] = scores[pl_module.policy_version - 1]
            super().on_validation_end(trainer, pl_module)
            kept.append(load_file(Path("run", "critic", "critic.safetensors"))["head.weight"])

    callback = Scripted(patience=3)
    module = module_of()
    whole = {"max_epochs": 6, "limit_val_batches": 1.0}
    trainer = run(module, data_of(rollouts_per_epoch=1), callback, **whole)
    assert trainer.current_epoch == 5  # 0.504 is no rise by the least that patience counts
    assert not torch.equal(kept[0], kept[1])
    assert torch.equal(kept[1], kept[2])
    assert not torch.equal(kept[2], kept[3])  # but it is the best so far
    assert torch.equal(kept[3], kept[4])
    assert callback.state_dict() == {"best": 0.504, "risen": 0.5, "waited": 3}
    closing = callback.closing(trainer)
    assert closing.startswith("kept the critic of rollout 4 (explained variance 0.5040 on held-out")
    assert closing.endswith("start from it with --model.backbone.critic_init=run/critic")


class Scores(ValuePretraining):
    """Is told what held-out problems say of the critic, by the number of rollouts."""

    def __init__(self, *scores, **kwargs):
        super().__init__(**kwargs)
        self.scores = scores

    def on_validation_end(self, trainer, pl_module):
        pl_module.last_evaluation[self.monitored] = self.scores[pl_module.policy_version]
        super().on_validation_end(trainer, pl_module)


WHOLE = {"limit_val_batches": 1.0, "num_sanity_val_steps": -1}


def test_a_run_taken_back_gives_up_the_critic_of_later_rollouts():
    one = data_of(rollouts_per_epoch=1)
    trainer = run(module_of(), one, Scores(0, 0.2, patience=None), max_epochs=1, **WHOLE)
    trainer.save_checkpoint("early.ckpt")
    run(module_of(), data_of(rollouts_per_epoch=1), Scores(0, 0.2, 0.9, patience=None),
        max_epochs=2, ckpt_path="early.ckpt", **WHOLE)  # fmt: skip
    assert notes_of(Path("run/critic/critic.safetensors"))["rollouts"] == "2"
    callback = Scores(0, 0.2, 0.1, patience=None)
    with pytest.warns(ConfigWarning, match=r"critic.safetensors: is of a later rollout than 1"):
        run(module_of(), data_of(rollouts_per_epoch=1), callback,
            max_epochs=2, ckpt_path="early.ckpt", **WHOLE)  # fmt: skip
    notes = notes_of(Path("run/critic/critic.safetensors"))
    assert (notes["rollouts"], notes["explained_variance"]) == ("2", "0.1000")


@pytest.mark.parametrize(
    ("score", "why"),
    [
        (0.0, "all responses to held-out problems earn the same"),
        (-math.inf, r"has diverged; lower model\.critic_optimizer\.lr"),
    ],
)
def test_a_score_that_says_nothing_is_warned_of(score, why):
    callback = Scores(0.5, 0.25, score, score, patience=1)
    with pytest.warns(ConfigWarning, match=f"explained_variance={score}: .*{why}"):
        run(module_of(), data_of(rollouts_per_epoch=1), callback, max_epochs=3, **WHOLE)
    assert callback.state_dict() == {"best": 0.25, "risen": 0.25, "waited": 0}
    assert notes_of(Path("run/critic/critic.safetensors"))["rollouts"] == "1"


def test_a_critic_that_has_diverged_is_not_kept():
    callback = Scores(0.5, -math.inf, patience=None)
    with (
        pytest.warns(ConfigWarning, match=r"has diverged; lower model\.critic_optimizer"),
        pytest.warns(ConfigWarning, match="keeps no critic, as it has diverged"),
    ):
        run(module_of(), data_of(rollouts_per_epoch=1), callback, max_epochs=1, **WHOLE)
    assert not Path("run/critic/critic.safetensors").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_a_critic_that_has_diverged(value):
    class Broken(Scores):
        def on_validation_end(self, trainer, pl_module):
            pl_module.last_evaluation["val/value/bias"] = value
            super().on_validation_end(trainer, pl_module)

    callback = Broken(math.nan, math.nan, patience=None)
    with (
        pytest.warns(ConfigWarning, match="explained_variance=nan: the critic has diverged"),
        pytest.warns(ConfigWarning, match="keeps no critic, as it has diverged"),
    ):
        run(module_of(), data_of(rollouts_per_epoch=1), callback, max_epochs=1, **WHOLE)


def test_a_critic_that_would_be_judged_on_other_responses_is_warned_of():
    data = data_of(val_sampling=ValSampling(top_p=0.7, max_new_tokens=24))
    match = r"data\.val_sampling\.top_p=0\.7: .*drawn otherwise .* data\.val_sampling=null"
    with pytest.warns(ConfigWarning, match=match):
        run(module_of(), data, ValuePretraining(patience=None), max_epochs=1)


def test_a_warm_up_longer_than_its_run_keeps_nothing_and_says_so():
    data = data_of(rollouts_per_epoch=1)
    with pytest.warns(ConfigWarning, match=r"rollouts=3: the run has 1 rollouts, so no critic is"):
        run(module_of(), data, ValueWarmup(3, save=True), max_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        data = data_of(rollouts_per_epoch=1)
        run(module_of(), data, ValueWarmup(1, save=True), max_epochs=1)
    assert Path("run/critic/critic.safetensors").exists()


def test_explained_variance_is_of_what_happened_whatever_the_critic_learns_from():
    rows = []
    for lam in (1.0, 0.0):
        keep, module = Keep(), module_of(advantage=GAE(lam_critic=lam))
        run(module, data_of(rollouts_per_epoch=2), CriticMonitor(positions=1), keep, max_epochs=1)
        rows.append(keep.rows)
    for row in (rows[0][0], rows[1][0], rows[1][1]):
        whole, part = row["value/explained_variance"], row["value/explained_variance_1"]
        assert float(whole) == pytest.approx(float(part), abs=1e-5)
    assert float(rows[0][0]["loss/value"]) != float(rows[1][0]["loss/value"])


def test_small_rises_that_add_up_count():
    callback = Scores(0, 0.1, 0.104, 0.108, 0.112, patience=2)
    trainer = run(module_of(), data_of(rollouts_per_epoch=1), callback, max_epochs=4, **WHOLE)
    assert trainer.current_epoch == 4
    assert callback.state_dict() == {"best": 0.112, "risen": 0.108, "waited": 1}


def test_a_critic_that_has_not_trained_is_not_the_best_of_them():
    callback = Scores(0.9, 0.1)
    run(module_of(), data_of(rollouts_per_epoch=1), callback, **WHOLE)
    assert callback.best == 0.1


def test_a_resumed_run_remembers_the_best_critic_and_how_long_it_waits():
    scores, one = (0, 0.5, 0.4, 0.3, 0.2), data_of(rollouts_per_epoch=1)
    trainer = run(module_of(), one, Scores(*scores), max_epochs=2, **WHOLE)
    trainer.save_checkpoint("half.ckpt")
    kept = Path("run/critic/critic.safetensors").read_bytes()
    callback = Scores(*scores)
    again = run(module_of(), data_of(rollouts_per_epoch=1), callback, max_epochs=9,
                ckpt_path="half.ckpt", **WHOLE)  # fmt: skip
    assert again.current_epoch == 4
    assert callback.state_dict() == {"best": 0.5, "risen": 0.5, "waited": 3}
    assert Path("run/critic/critic.safetensors").read_bytes() == kept


@pytest.mark.parametrize("score", [0.9, 0.0])
def test_validating_writes_nothing_and_ends_nothing(score):
    module, data, callback = module_of(), data_of(rollouts_per_epoch=1), Scores(0, 0.1, patience=1)
    trainer = run(module, data, callback, **WHOLE)
    kept, state = Path("run/critic/critic.safetensors").read_bytes(), callback.state_dict()
    callback.scores, trainer.should_stop = (0, score), False
    trainer.validate(module, data)
    assert callback.state_dict() == state
    assert not trainer.should_stop
    assert Path("run/critic/critic.safetensors").read_bytes() == kept


def test_a_critic_that_took_no_step_is_not_kept():
    module, data = module_of(), data_of(sampling=Sampling(max_new_tokens=2))
    with pytest.warns(ConfigWarning, match=r"ValuePretraining keeps no critic, .* 3 rollouts"):
        trainer = run(module, data, OverlongFilter(), callback := ValuePretraining(), **WHOLE)
    assert callback.best == -torch.inf
    assert not Path("run/critic").exists()
    assert callback.closing(trainer) is None
    with pytest.warns(ConfigWarning, match=r"ValueWarmup keeps no critic"):
        run(module_of(), data, OverlongFilter(), ValueWarmup(1, save=True))


def test_the_best_checkpoint_follows_what_can_change():
    folder = fit(*PRETRAIN, "--trainer.max_epochs=2")
    best = torch.load(next(folder.glob("checkpoints/best*")), weights_only=True)
    monitored = [v["monitor"] for k, v in best["callbacks"].items() if "BestCheckpoint" in k]
    assert monitored == [MONITORED]


@pytest.mark.filterwarnings("ignore:.*evaluation uses the training problems")
def test_pretraining_without_held_out_problems_is_refused(capsys):
    line = fails(capsys, "fit", *PRETRAIN, "--data.val_task=null")
    assert re.search(
        r"data\.val_task=null: ValuePretraining keeps .* name a task of held-out", line
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit_val_batches": 0}, r"trainer\.limit_val_batches=0: .*; leave it out, or ValueP"),
        (
            {"limit_val_batches": 1.0, "check_val_every_n_epoch": 2},
            r"check_val_every_n_epoch=2: the run has 1 epochs .*; choose at most 1, or ValueP",
        ),
    ],
)
def test_a_stage_that_never_looks_is_warned_of_by_what_keeps_it(settings, message):
    with pytest.warns(ConfigWarning, match=message):
        run(module_of(), data_of(rollouts_per_epoch=1), ValuePretraining(), **settings)


NO_EFFECT = {
    "--model.advantage.lam_critic=0.9": "model.advantage.lam_critic=0.9",
    "--model.advantage.lam_policy=0.9 --callbacks.critic=null": "model.advantage.lam_policy=0.9",
    "--model.policy.clip_low=0.1": "model.policy.clip_low=0.1",
    "--model.update.epochs=3": "model.update.epochs=3",
    "--model.actor_optimizer.lr=1e-3": "model.actor_optimizer.lr=1e-3",
    "--model.actor_scheduler=torch.optim.lr_scheduler.LinearLR": "model.actor_scheduler",
    "--model.terms.bonus=EntropyBonus": "model.terms.bonus",
}


@pytest.mark.parametrize("flags", list(NO_EFFECT))
def test_what_nothing_reads_while_the_policy_never_trains_is_warned_of(flags):
    says = re.escape(NO_EFFECT[flags]) + ".*: has no effect while the policy never trains"
    with pytest.warns(ConfigWarning, match=says):
        main(["fit", *PRETRAIN, *flags.split(), "--trainer.fast_dev_run=true"])


@pytest.mark.parametrize(
    "flags",
    [
        [*PRETRAIN, "--model.advantage.lam_policy=0.9"],
        [*tiny("vapo"), *SMALL, "--callbacks.value_warmup=ValuePretraining"],
    ],
)
def test_shipped_configurations_pretrain_without_a_warning(flags):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        main(["fit", *flags, "--run_dir=run"])


def test_the_policy_is_not_scored_while_nobody_reads_it(monkeypatch):
    module, calls = module_of(), []
    monkeypatch.setattr(module, "score", lambda *_: calls.append(1))
    run(module, data_of(), ValuePretraining(patience=None))
    assert not calls


def test_held_out_problems_are_evaluated_with_the_critic():
    folder = fit(*PRETRAIN)
    with (folder / "metrics.csv").open() as file:
        header = file.readline()
    for part in ("", "_1", "_4"):
        assert f"{MONITORED}{part}" in header
    assert "val/value/bias" in header


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"patience": 0}, "patience=0: must be at least 1"), ({"min_delta": -1}, "min_delta=-1: mus")],
)
def test_settings_without_a_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ValuePretraining(**settings)


def test_an_algorithm_without_a_critic_has_none_to_pretrain(capsys):
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--callbacks.v=ValuePretraining")
    assert re.search(
        r"callbacks: ValuePretraining has no critic .*; leave it out, or set mod", line
    )


# --- held-out metrics -----------------------------------------------------------------------------


def test_value_metrics_are_those_of_all_responses_however_they_arrive():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (12,), generator=generator)
    mask = torch.arange(9) < lengths[:, None]
    values = torch.randn(12, 9, generator=generator)
    returns = values + 0.5 * torch.randn(12, 9, generator=generator) + 100
    whole, parts = ValueMetrics(3), ValueMetrics(3)
    whole.update(values, returns, mask)
    for rows in torch.arange(12).split(5):
        parts.update(values[rows], returns[rows], mask[rows])
    parts.update(values[:0], returns[:0], mask[:0])
    got = whole.compute()
    assert got == pytest.approx(parts.compute())
    want = explained_variance(values.double(), returns.double(), mask)
    assert got["explained_variance"] == pytest.approx(float(want))
    assert got["bias"] == pytest.approx(float((values - returns)[:, 0].mean()), rel=1e-6)
    third = [(i, t) for i, n in enumerate(lengths.tolist()) for t in range(n) if 3 * t // n == 1]
    rows, columns = zip(*third, strict=True)
    chosen = torch.zeros_like(mask)
    chosen[list(rows), list(columns)] = True
    want = explained_variance(values.double(), returns.double(), chosen)
    assert got["explained_variance_2"] == pytest.approx(float(want))


def test_constant_returns_leave_nothing_to_explain():
    metric = ValueMetrics()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The ``compute`` method of metric ValueMetrics was call")
        assert math.isnan(metric.compute()["explained_variance"])
    metric.update(torch.randn(3, 4), torch.full((3, 4), 0.1), torch.ones(3, 4).bool())
    assert metric.compute()["explained_variance"] == 0


def test_only_what_would_train_the_critic_counts():
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(9) < torch.randint(2, 9, (12,), generator=generator)[:, None]
    values, returns = torch.randn(2, 12, 9, generator=generator)
    rows = torch.arange(12) % 3 > 0
    got, want = ValueMetrics(), ValueMetrics()
    got.update(values, returns, mask, mask & rows[:, None])
    want.update(values[rows], returns[rows], mask[rows])
    assert got.compute() == pytest.approx(want.compute())
    late = ValueMetrics()
    late.update(values, returns, mask, mask & (torch.arange(9) > 0))
    early = (values - returns)[:, 0].mean()  # V before the first token, whether or not it counts
    assert late.compute()["bias"] == pytest.approx(float(early), rel=1e-6)
    last = ValueMetrics()
    last.update(values, returns, mask)
    at = last_token(mask)
    want = explained_variance(values.double(), returns.double(), at)
    assert last.compute()["explained_variance_last"] == pytest.approx(float(want))


@pytest.mark.parametrize("truncation", ["terminal", "bootstrap"])
def test_the_held_out_target_is_that_of_value_pretraining(truncation):
    rollout = demonstrations(shipped())
    rollout.truncated = torch.arange(16) % 3 == 0
    rollout.scored[5] = False
    rollout.value_mask[5] = False
    rollout.token_rewards = 0.1 * rollout.response_mask
    estimator = GAE(0.9, lam_critic=0.5, truncation=truncation)
    module = ready(module_of(advantage=estimator))
    with torch.no_grad():
        module.critic.head.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    values, returns, mask, trains = module.evaluator._values_and_returns(rollout)
    module.phase = "value_warmup"
    wanted, _ = module.annotate(rollout, [torch.arange(16)])
    torch.testing.assert_close(values, wanted.values)
    torch.testing.assert_close(returns[mask], wanted.returns[mask], atol=1e-5, rtol=1e-5)
    assert torch.equal(mask, rollout.policy_mask)
    assert torch.equal(trains, rollout.value_mask)
    assert values.abs().max() > 0.1


class Seen(Callback):
    """Keeps the held-out batches as the evaluation gets them."""

    def on_validation_batch_end(self, trainer, module, outputs, batch, *_):
        self.batch = batch


@pytest.mark.parametrize("critic", [True, False])
def test_held_out_responses_that_would_be_dropped_do_not_count(critic):
    seen = Seen()
    held_out = {
        "val_task": PlanCount("held_out", limit=8),
        "val_sampling": ValSampling(max_new_tokens=24),
    }
    data = data_of(**held_out, rollouts_per_epoch=1)
    run(module_of(), data, OverlongFilter(critic), seen, limit_val_batches=1.0)
    batch = seen.batch
    assert 0 < batch.truncated.sum() < len(batch)
    kept = batch.response_mask & ~batch.truncated[:, None]
    assert torch.equal(batch.value_mask, kept if critic else batch.response_mask)


def test_held_out_returns_hold_the_rewards_of_tokens():
    """Those of the held-out task, which the term was not set up for."""
    seen = Seen()
    rewards = {"correctness": Correctness(), "steps": StepCorrectness(weight=0.5)}
    data = data_of(rewards=rewards, rollouts_per_epoch=1)
    run(module_of(), data, seen, limit_val_batches=1.0)
    batch, term = seen.batch, StepCorrectness(weight=0.5)
    term.setup(data.val_task, 24, shipped().tokenizer)
    for i, (prompt, text) in enumerate(zip(batch.prompts, batch.texts, strict=True)):
        steps = data.val_task.judge_steps(prompt, text)
        assert float(batch.token_rewards[i].sum()) == sum(0.5 if v else -0.5 for _, v in steps)
    assert batch.token_rewards.any()
    run(module_of(critic=False), data, seen, limit_val_batches=1.0)
    assert not seen.batch.token_rewards.any()  # nobody would read them


class NoSteps(PlanCount):
    """Held-out problems whose steps nobody judges."""

    judge_steps = Task.judge_steps


def test_rewards_of_tokens_that_held_out_problems_cannot_have_are_warned_of():
    rewards = {"correctness": Correctness(), "steps": StepCorrectness()}
    val_task = NoSteps("held_out", n_max=3, limit=4)
    data = data_of(rewards=rewards, val_task=val_task, rollouts_per_epoch=1)
    with pytest.warns(
        ConfigWarning, match=r"rewards\.steps: left out of val/value.*NoSteps does no"
    ):
        run(module_of(), data, limit_val_batches=1.0)


def test_a_stage_of_last_tokens_is_judged_at_them():
    callback = Scores(0, 0.1, 0.2, tokens="last")
    assert callback.monitored == f"{MONITORED}_last"
    module = module_of()
    run(module, data_of(rollouts_per_epoch=1), callback, max_epochs=2, **WHOLE)
    assert callback.best == 0.2
    assert f"{MONITORED}_last" in module.last_evaluation


# --- where a critic starts ------------------------------------------------------------------------


def reward_model(folder, vocabulary=ALPHABET, labels=1):
    torch.manual_seed(0)
    tokenizer = character_tokenizer(vocabulary)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    ids = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_labels=labels, initializer_range=0.3, **size, **heads, **ids
    )
    model = LlamaForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def policy_like(folder, model):
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_config(model.config).save_pretrained(folder)
    character_tokenizer(ALPHABET).save_pretrained(folder)
    return str(folder)


def test_a_critic_that_starts_from_a_reward_model_gives_its_scores(tmp_path):
    model = reward_model(tmp_path / "rm")
    path = policy_like(tmp_path / "policy", model)
    critic = Pretrained(path, critic_init=str(tmp_path / "rm")).critic()
    rollout = demonstrations(shipped())  # of the same alphabet
    _, after = values_and_after(critic, rollout)
    for i in range(len(rollout)):
        prompt = rollout.prompt_ids[i][rollout.prompt_mask[i]]
        ids = torch.cat([prompt, rollout.response_ids[i][rollout.response_mask[i]]])
        with torch.no_grad():
            assert torch.allclose(after[i], model(ids[None]).logits[0, 0], atol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: reward_model(f, labels=2), "has 2 labels; give a reward model, which has 1"),
        (lambda f: reward_model(f, ALPHABET[::-1]), "has another vocabulary than model.backbone"),
        (lambda f: policy_like(f, reward_model(f / "x")), "lacks weights, the first is score"),
    ],
)
def test_what_is_no_reward_model_for_this_policy_is_refused(tmp_path, make, message):
    path = policy_like(tmp_path / "policy", reward_model(tmp_path / "other"))
    make(tmp_path / "rm")
    with pytest.raises(ConfigError, match=rf"critic_init=.*rm.*{message}"):
        Pretrained(path, critic_init=str(tmp_path / "rm")).critic()


def test_a_critic_of_another_vocabulary_or_size_is_refused(tmp_path):
    shuffled = Scratch(ALPHABET[::-1])
    save_critic(shuffled.critic(), tmp_path / "a", shuffled.tokenizer)
    with pytest.raises(ConfigError, match="another vocabulary"):
        Scratch(ALPHABET, critic_init=str(tmp_path / "a")).critic()
    wide = Scratch(ALPHABET, hidden_size=128)
    save_critic(wide.critic(), tmp_path / "b", wide.tokenizer)
    with pytest.raises(ConfigError, match="another architecture"):
        Scratch(ALPHABET, critic_init=str(tmp_path / "b")).critic()


OTHERS = {
    "num_attention_heads": 4,
    "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
    "hidden_act": "relu",
    "rms_norm_eps": 1e-2,
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_a_critic_whose_weights_would_be_another_function_is_refused(name, tmp_path):
    """Its tensors have the same names and shapes."""
    made = Scratch(ALPHABET)
    setattr(made.config, name, OTHERS[name])
    if name == "num_attention_heads":
        made.config.num_key_value_heads, made.config.head_dim = 4, 16
    save_critic(made.critic(), tmp_path, made.tokenizer)
    with pytest.raises(
        ConfigError, match=rf"another architecture than .*: {name}\b.*=.*, not .*; give"
    ):
        Scratch(ALPHABET, critic_init=str(tmp_path)).critic()
    file = tmp_path / "critic.safetensors"
    notes = notes_of(file)
    del notes["architecture"]  # as older files
    save_file(load_file(file), file, notes)
    Scratch(ALPHABET, critic_init=str(tmp_path)).critic()


def test_held_out_responses_that_train_nothing_say_nothing(tmp_path):
    data = data_of(val_sampling=ValSampling(max_new_tokens=1))
    callbacks = OverlongFilter(), ValuePretraining(patience=1)
    module = module_of()
    with (
        pytest.warns(ConfigWarning, match="drawn otherwise"),
        pytest.warns(ConfigWarning, match=r"explained_variance=nan: .* raise data\.val_sampling"),
    ):
        run(module, data, *callbacks, default_root_dir=tmp_path, limit_val_batches=1.0)
    assert math.isnan(module.last_evaluation[MONITORED])
    assert (tmp_path / "critic" / "critic.safetensors").exists()


def test_what_does_not_change_the_function_is_no_other_architecture(tmp_path):
    made = Scratch(ALPHABET, context_length=64)
    made.config.initializer_range, made.config.use_cache = 0.5, False
    save_critic(made.critic(), tmp_path, made.tokenizer)
    Scratch(ALPHABET, context_length=512, critic_init=str(tmp_path)).critic()


def test_a_reward_model_of_another_function_is_refused(tmp_path):
    model = reward_model(tmp_path / "rm")
    path = policy_like(tmp_path / "policy", model)
    model.config.rms_norm_eps = 0.1
    model.save_pretrained(tmp_path / "rm")
    with pytest.raises(ConfigError, match=r"critic_init=.*rm: .*rms_norm_eps=0\.1, not 1e-06"):
        Pretrained(path, critic_init=str(tmp_path / "rm")).critic()


def test_weights_that_are_not_finite_are_no_start(tmp_path):
    made = Scratch(ALPHABET)
    critic = made.critic()
    critic.head.bias.data.fill_(torch.nan)
    save_critic(critic, tmp_path / "a", made.tokenizer)
    with pytest.raises(ConfigError, match=r"not finite, the first in head\.bias; give another st"):
        Scratch(ALPHABET, critic_init=str(tmp_path / "a")).critic()
    model = reward_model(tmp_path / "rm")
    path = policy_like(tmp_path / "policy", model)
    model.score.weight.data[0, 0] = torch.inf
    model.save_pretrained(tmp_path / "rm")
    with pytest.raises(ConfigError, match=r"not finite, the first in head\.weight"):
        Pretrained(path, critic_init=str(tmp_path / "rm")).critic()


@pytest.mark.parametrize("lora", [False, True])
def test_a_critic_that_begins_as_a_reward_model_has_learned_the_outcome_at_last_tokens(lora):
    """`critic_init=rm` is the policy's weights and a warm-up with `tokens=last`."""
    if lora:
        pytest.importorskip("peft")
    critics = []
    for init, tokens in (("policy", "last"), ("rm", "all"), ("policy", "all")):
        backbone = LoRA(Bundled(), r=2, critic_init=init) if lora else Bundled(critic_init=init)
        module = module_of(backbone)
        run(module, data_of(rollouts_per_epoch=2), ValueWarmup(2, save=True, tokens=tokens))
        critics.append(weights(module.critic))
    last, rm, every = critics
    assert torch.equal(rm, last)
    assert not torch.equal(rm, every)


def test_a_critic_that_begins_as_a_reward_model_needs_a_warm_up():
    module = module_of(Bundled(critic_init="rm"))
    with pytest.raises(ConfigError, match=r"critic_init=rm: .* add callbacks\.value_warmup="):
        run(module, data_of())


def test_a_start_that_is_nearly_named_is_pointed_at(tmp_path):
    made = Scratch(ALPHABET)
    save_critic(made.critic(), tmp_path / "critic", made.tokenizer)
    with pytest.raises(ConfigError, match=rf"is a run folder; its critic is {tmp_path}/critic"):
        Scratch(ALPHABET, critic_init=str(tmp_path))


def test_others_may_read_a_critic(tmp_path):
    made = Scratch(ALPHABET)
    save_critic(made.critic(), tmp_path, made.tokenizer)
    (tmp_path / "plain").touch()
    plain, file = (tmp_path / name for name in ("plain", "critic.safetensors"))
    assert file.stat().st_mode == plain.stat().st_mode


def test_a_crash_while_writing_leaves_the_earlier_critic(tmp_path, monkeypatch):
    backbone = Scratch(ALPHABET)
    save_critic(backbone.critic(), tmp_path, backbone.tokenizer)
    before = (tmp_path / "critic.safetensors").read_bytes()

    def half(weights, path, notes):
        Path(path).write_bytes(before[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lit_reason.critics.save_file", half)
    with pytest.raises(OSError, match="No space left"):
        save_critic(backbone.critic(), tmp_path, backbone.tokenizer)
    assert (tmp_path / "critic.safetensors").read_bytes() == before


def test_regressing_the_last_token_only_leaves_the_others_alone():
    keep = Keep()
    run(module_of(), data_of(), ValueWarmup(2, tokens="last"), keep)
    for i, rollout in enumerate(keep.rollouts):
        want = last_token(rollout.response_mask) if i < 2 else rollout.response_mask
        assert torch.equal(rollout.value_mask, want)


# --- everything that was generated ----------------------------------------------------------------


class FirstOnly(GroupFilter):
    """Keeps the first group of each round."""

    def __call__(self, correct, rewards, scored):
        return torch.arange(len(correct)) == 0


def filtered(sees_all, **kwargs):
    keep, module = Keep(), module_of(**kwargs)
    data = data_of(group_filter=FirstOnly(), critic_sees_all=sees_all, groups_per_round=3)
    run(module, data, keep)
    return keep


def test_the_critic_also_learns_from_rejected_groups_and_the_policy_does_not_notice():
    few, all_of_it = filtered(False), filtered(True)
    batch = all_of_it.rollouts[0]
    assert batch.critic_only.tolist() == [False] * 8 + [True] * 16  # two of two rounds of three
    assert not batch.loss_mask[8:].any()
    assert torch.equal(batch.value_mask, batch.response_mask)
    first = few.rollouts[0]
    assert not first.critic_only.any()
    assert torch.equal(batch.of_policy.rewards, first.rewards)
    for key in ("reward", "accuracy", "response_length", "groups/kept", "groups/dropped"):
        assert all_of_it.rows[0][key] == few.rows[0][key]
    assert all_of_it.rows[0]["policy/tokens"] == few.rows[0]["policy/tokens"]
    assert len(batch.response_mask[0]) >= len(first.response_mask[0])


def test_with_monte_carlo_advantages_the_policys_first_update_is_the_same_bit_for_bit():
    """At lambda 1 and V = 0 the first advantage does not depend on the critic."""
    firsts = []
    for sees_all in (False, True):
        module = module_of(advantage=GAE(lam_policy=1.0, whiten=True))
        data = data_of(
            group_filter=FirstOnly(),
            critic_sees_all=sees_all,
            groups_per_round=3,
            rollouts_per_epoch=1,
        )
        run(module, data)
        firsts.append((weights(module.actor), weights(module.critic)))
    assert torch.equal(firsts[0][0], firsts[1][0])
    assert not torch.equal(firsts[0][1], firsts[1][1])


def test_critic_sees_all_without_a_filter_or_a_critic_has_no_effect():
    with pytest.warns(ConfigWarning, match=r"data\.critic_sees_all=True: has no effect without"):
        data_of(critic_sees_all=True)
    module = ReasonModule(shipped(), GroupRelative(), ClippedSurrogate(), update=Update(1, 8, 8))
    data = data_of(critic_sees_all=True, group_filter=FirstOnly())
    with pytest.warns(ConfigWarning, match=r"critic_sees_all=True: has no effect without a critic"):
        run(module, data)


# --- truncated responses --------------------------------------------------------------------------


def test_a_truncated_response_is_worth_what_the_critic_says_of_its_end():
    backbone = shipped()
    rollout = demonstrations(backbone)
    rollout.truncated = torch.arange(16) % 2 == 0
    module = ready(module_of(advantage=GAE(0.9, 0.8, 0.95, truncation="bootstrap")))
    with torch.no_grad():
        for p in module.critic.parameters():
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    experience, _ = module.annotate(rollout, [torch.arange(16)])
    with torch.no_grad():
        _, after = values_and_after(module.critic, rollout)
        mask = rollout.response_mask
        for i in range(16):  # one by one, without padding
            row = rollout[torch.tensor([i])]
            n = int(row.lengths)
            rewards, v = torch.zeros(1, n), state_values(module.critic, row)[:, :n]
            rewards[0, -1] = row.rewards
            end = after[i : i + 1] * rollout.truncated[i]
            whole = torch.ones(1, n, dtype=torch.bool)
            want = gae(rewards, v, whole, 0.9, 0.8, end)
            assert torch.allclose(experience.advantages[i, :n], want[0], atol=1e-5)
            targets = gae(rewards, v, whole, 0.9, 0.95, end) + v
            assert torch.allclose(experience.returns[i, :n], targets[0], atol=1e-5)
    assert not experience.advantages[~mask].any()
    assert after.abs().min() > 0
    ended = copy.deepcopy(rollout)
    ended.truncated[:] = False
    plain = ready(module_of(advantage=GAE(0.9, 0.8, 0.95)))
    plain.critic = module.critic
    a, _ = plain.annotate(rollout, [torch.arange(16)])
    b, _ = module.annotate(ended, [torch.arange(16)])
    assert torch.equal(a.advantages, b.advantages)


def test_warm_up_regresses_on_returns_that_go_on_after_a_truncation():
    rollout = demonstrations(shipped())
    rollout.truncated = torch.arange(16) % 2 == 0
    module = ready(module_of(advantage=GAE(0.9, 0.8, 0.95, truncation="bootstrap")))
    with torch.no_grad():
        module.critic.head.bias.fill_(0.5) if module.critic.head.bias is not None else None
        module.critic.head.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    module.phase = "value_warmup"
    experience, _ = module.annotate(rollout, [torch.arange(16)])
    with torch.no_grad():
        _, after = values_and_after(module.critic, rollout)
    for i in range(16):
        n = int(rollout.lengths[i])
        left = torch.arange(n - 1, -1, -1)
        want = 0.9**left * rollout.rewards[i] + 0.9 ** (left + 1) * after[i] * rollout.truncated[i]
        torch.testing.assert_close(experience.returns[i, :n], want, atol=1e-5, rtol=0)


def test_what_follows_the_last_token_may_be_infinite_where_the_response_ended():
    rollout = demonstrations(shipped())
    module = ready(module_of(advantage=GAE(truncation="bootstrap")))
    with torch.no_grad():
        module.critic.head.weight.fill_(float("inf"))
    experience, _ = module.annotate(rollout, [torch.arange(16)])  # and no word of the estimator
    assert not experience.advantages.isfinite().all()


def test_a_lambda_that_is_held_at_its_bound_is_warned_of_once():
    rollout = demonstrations(shipped())
    estimator = GAE(alpha=0.05)
    rewards = torch.zeros(rollout.response_mask.shape)
    with pytest.warns(ConfigWarning, match=r"model\.advantage\.alpha=0\.05: .* alpha well above"):
        estimator(rollout, rewards, rewards)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator(rollout, rewards, rewards)
        GAE(alpha=5)(rollout, rewards, rewards)


def test_a_bound_lambda_is_not_warned_of_while_no_policy_trains():
    module = module_of(advantage=GAE(alpha=1e-3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*LeafSpec")
        run(module, data_of(rollouts_per_epoch=1), ValuePretraining(patience=None))
    with pytest.warns(ConfigWarning, match=r"alpha=0\.001: .* alpha well above"):
        run(module_of(advantage=GAE(alpha=1e-3)), data_of(), ValueWarmup(1))


def test_what_other_programs_write_into_a_configuration_is_no_architecture():
    one, other = Scratch(ALPHABET).critic().base, Scratch(ALPHABET).critic().base
    one.config.made_by, other.config.made_by = "1.0", "2.0"
    assert difference(architecture(one), architecture(other)) is None
    one.config.rope_parameters = {**one.config.rope_parameters, "type": "default"}
    assert difference(architecture(one), architecture(other)) is None
    one.config.rope_parameters = {**one.config.rope_parameters, "rope_theta": 3.0}
    assert difference(architecture(one), architecture(other)) == (
        "rope_parameters.rope_theta=3.0, not 10000.0"
    )
