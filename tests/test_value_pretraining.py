"""A critic of its own stage: pretrained online or from a file, kept, and taken up by later runs."""

import copy
import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForSequenceClassification

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.backbones import Pretrained, Scratch, character_tokenizer
from lit_reason.callbacks import RolloutRecorder, ValuePretraining, ValueWarmup
from lit_reason.critics import save_critic
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.filters import GroupFilter
from lit_reason.fingerprint import fingerprint
from lit_reason.functional import explained_variance, gae, last_token
from lit_reason.learner import Update
from lit_reason.module import ReasonModule
from lit_reason.networks import state_values, values_and_after
from lit_reason.objectives import ClippedSurrogate
from lit_reason.recorded import Recorded
from lit_reason.tasks import PlanCount
from lit_reason.tasks.plan_count import ALPHABET
from lit_reason.value_metrics import ValueMetrics
from tests import runs
from tests.conftest import SMALL, config, demonstrations, fails, fit, ready, tiny
from tests.runs import module_of, run, shipped

MONITORED = "val/value/explained_variance"
PRETRAIN = [config("value_pretrain.yaml"), *SMALL, "--model.update.critic_minibatch_size=8"]


def data_of(**kwargs):
    """Few problems, so that every one of them is recorded."""
    few = {"task": PlanCount(n_max=3, limit=6), "rollouts_per_epoch": 3}
    return runs.data_of(**{**few, **kwargs})


class Keep(Callback):
    """Keeps every rollout, experience and logged value."""

    def __init__(self):
        self.rollouts, self.experiences, self.rows = [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rollouts.append(batch)
        self.experiences.append(outputs["experience"])
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items()})


def weights(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


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
    assert trainer.current_epoch == 5  # 0.504 is no rise by the least that counts
    assert callback.best == 0.5
    assert not torch.equal(kept[0], kept[1])
    assert all(torch.equal(kept[1], other) for other in kept[2:])
    assert callback.state_dict() == {"best": 0.5, "waited": 3}


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
    assert re.search(r"no critic to warm up; set .* to null, or model\.value", line), line


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
    assert metric.compute()["explained_variance"] == 0
    metric.update(torch.randn(3, 4), torch.full((3, 4), 0.1), torch.ones(3, 4).bool())
    assert metric.compute()["explained_variance"] == 0


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
        (lambda f: reward_model(f, labels=2), "has 2 labels; a reward model has 1"),
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


# --- from a file ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """The responses of three rollouts of the shipped policy, as text, and those rollouts."""
    folder, keep = tmp_path_factory.mktemp("recording"), Keep()
    callbacks = ValuePretraining(patience=None), RolloutRecorder(), keep
    run(module_of(), data_of(), *callbacks, default_root_dir=folder)
    return (folder / "rollouts.jsonl").read_text(), keep.rollouts


@pytest.fixture
def recorded(recording):
    path = Path("run/rollouts.jsonl")
    path.parent.mkdir()
    path.write_text(recording[0])
    return path, recording[1]


def test_a_recorded_rollout_holds_what_was_sampled(recorded):
    path, rollouts = recorded
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["rollout"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert {row["policy"] for row in rows} == {fingerprint(shipped().actor())}
    batch = rollouts[1]
    for i in range(8):
        response = rows[2 + i // 4]["responses"][i % 4]
        assert response["ids"] == batch.response_ids[i][batch.response_mask[i]].tolist()
        assert response["truncated"] == bool(batch.truncated[i])
        assert response["text"] == batch.texts[i]


def test_a_critic_learns_from_recorded_responses_for_many_epochs(recorded):
    path, rollouts = recorded
    known = {
        tuple(r.response_ids[i][r.response_mask[i]].tolist())
        for r in rollouts
        for i in range(len(r))
    }
    keep, module = Keep(), module_of()
    data = data_of(engine=Recorded(str(path)))
    callback = ValuePretraining(patience=None)
    run(module, data, callback, keep, max_epochs=2, limit_val_batches=1.0)
    assert len(keep.rollouts) == 6
    for batch in keep.rollouts:
        assert not batch.on_policy
        ids = [tuple(row[m].tolist()) for row, m in zip(
            batch.response_ids, batch.response_mask, strict=True)]  # fmt: skip
        assert set(ids) <= known
    assert torch.equal(weights(module.actor), weights(shipped().actor()))
    assert keep.rows[-1]["loss/value"] < keep.rows[0]["loss/value"]
    assert MONITORED in module.last_evaluation  # held-out problems were sampled


def test_offline_pretraining_resumes_to_the_same_bits(recorded):
    path, _ = recorded

    def go(epochs, ckpt_path=None):
        module = module_of()
        engine = Recorded(str(path))
        trainer = run(
            module,
            data_of(engine=engine),
            ValuePretraining(patience=None),
            max_epochs=epochs,
            ckpt_path=ckpt_path,
        )
        return module, trainer

    whole, _ = go(4)
    _, trainer = go(2)
    trainer.save_checkpoint("half.ckpt")
    rest, _ = go(4, "half.ckpt")
    assert torch.equal(weights(whole.critic), weights(rest.critic))


def test_responses_of_another_policy_are_refused_unless_forced(recorded, tmp_path):
    path, _ = recorded
    lines = path.read_text().replace(fingerprint(shipped().actor()), "0123456789abcdef")
    path.write_text(lines)
    with pytest.raises(ConfigError, match=r"path=.*policy 0123456789abcdef.*force=true"):
        run(module_of(), data_of(engine=Recorded(str(path))), ValuePretraining(patience=None))
    engine = Recorded(str(path), force=True)
    run(module_of(), data_of(engine=engine), ValuePretraining(patience=None))


def test_recorded_responses_do_not_train_a_policy(recorded):
    path, _ = recorded
    with pytest.raises(ConfigError, match="may train the critic only; add the callback ValuePre"):
        run(module_of(), data_of(engine=Recorded(str(path))))


@pytest.mark.usefixtures("recorded")
def test_files_that_hold_no_rollouts_of_this_task_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.engine\.path=nowhere: no recorded rollouts"):
        Recorded("nowhere")
    data = data_of(engine=Recorded("run"), group_size=8)
    with pytest.raises(ConfigError, match=r"group_size=8: .* holds 4 responses"):
        run(module_of(), data, ValuePretraining(patience=None))
    data = data_of(engine=Recorded("run"), task=PlanCount(n_min=4, n_max=5, limit=1))
    with pytest.raises(ConfigError, match="holds responses to none of the 1 prompts"):
        run(module_of(), data, ValuePretraining(patience=None))
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=r"other\.jsonl is no file of RolloutRecorder"):
        run(module_of(), data_of(engine=Recorded(str(other))), ValuePretraining(patience=None))


def test_a_resumed_run_records_no_rollout_twice():
    module = module_of()
    trainer = run(module, data_of(), ValuePretraining(patience=None), RolloutRecorder())
    trainer.save_checkpoint("half.ckpt")
    whole = Path("run/rollouts.jsonl").read_text()
    with Path("run/rollouts.jsonl").open("a") as file:
        file.write('{"rollout": 3}\n{"roll')
    callbacks = ValuePretraining(patience=None), RolloutRecorder()
    run(module_of(), data_of(), *callbacks, max_epochs=2, ckpt_path="half.ckpt")
    rows = Path("run/rollouts.jsonl").read_text()
    assert rows.startswith(whole)
    assert [json.loads(r)["rollout"] for r in rows.splitlines()] == [i // 2 for i in range(12)]


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
