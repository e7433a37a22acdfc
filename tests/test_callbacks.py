"""Callbacks: by hand on batches, and in runs of real networks."""

import copy
import itertools
import json
import math

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn
from transformers import Qwen2Config

from lit_reason.__main__ import main
from lit_reason.advantages import GAE
from lit_reason.aggregation import TokenMean
from lit_reason.backbones import Bundled, Pretrained
from lit_reason.batch import Experience, Prediction
from lit_reason.callbacks import (
    EntropyMonitor,
    OverlongFilter,
    PredictionWriter,
    ReasonProgressBar,
    RunSummary,
    SampleTable,
    ValueWarmup,
)
from lit_reason.callbacks.predictions import prediction_rows
from lit_reason.callbacks.samples import COLUMNS, describe_rows
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.learner import Update
from lit_reason.lists import as_list
from lit_reason.module import ReasonModule
from lit_reason.objectives import ClippedSurrogate, ValueLoss
from lit_reason.rollout import Sampling
from lit_reason.tasks import PlanCount
from tests.conftest import SMALL, demonstrations, fails, ready, tiny
from tests.runs import data_of, module_of, run

# some runs here are parts of longer ones and end within their warm-up
pytestmark = pytest.mark.filterwarnings(
    "ignore:ValueWarmup.rollouts:lit_reason.errors.ConfigWarning"
)


@pytest.fixture(scope="module")
def policy():
    return Bundled()


class Watch(Callback):
    """Keeps, after every rollout, whatever `look` returns."""

    def __init__(self, look=None):
        self.look, self.seen, self.rows, self.experiences = look, [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.experiences.append(outputs["experience"])
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items()})
        if self.look is not None:
            self.seen.append(self.look(module))


def state(module, network):
    """Weights and optimizer state of one network, copied."""
    optimizer = as_list(module.optimizers())[module.trained.index(network)]
    weights = getattr(module, network).state_dict()
    return copy.deepcopy([weights, optimizer.optimizer.state_dict()])


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


# --- overlong filter ------------------------------------------------------------------------------


def edit(callback, batch, module):
    callback.log = lambda *args, **_: callback.__dict__.setdefault("logged", {}).update([args[:2]])
    callback.on_train_batch_start(module.trainer, module, batch, 0)
    return {k: float(v) for k, v in callback.logged.items()}


@pytest.mark.parametrize("critic", [True, False])
def test_the_overlong_filter_masks_exactly_the_truncated_rows(policy, critic):
    batch = demonstrations(policy)
    batch.truncated[[1, 6, 7]] = True
    before = copy.deepcopy(batch)
    logged = edit(OverlongFilter(critic), batch, ready(module_of(policy)))
    kept = before.response_mask & ~before.truncated[:, None]
    assert torch.equal(batch.loss_mask, kept)
    assert torch.equal(batch.value_mask, kept if critic else before.response_mask)
    assert torch.equal(batch.response_mask, before.response_mask)
    assert torch.equal(batch.rewards, before.rewards)
    assert logged == {"overlong/masked": pytest.approx(3 / 16)}


def test_filtered_rows_leave_the_denominator_too(policy):
    """B08: per-token loss 1 over 2 kept and 4 filtered tokens is 1, not 1/3."""
    batch = demonstrations(policy, groups=1, size=2)
    keep = torch.arange(batch.response_mask.shape[1])
    batch.response_mask[:] = keep < torch.tensor([[2], [4]])
    batch.loss_mask, batch.value_mask = batch.response_mask.clone(), batch.response_mask.clone()
    batch.truncated = torch.tensor([False, True])
    module = ready(module_of(policy, critic=False))
    edit(OverlongFilter(), batch, module)
    zeros = torch.zeros(batch.response_ids.shape)
    mask = module.policy.mask(Experience(batch, zeros, zeros))
    weight, count = TokenMean()(mask, batch.group_ids)
    assert count == 2
    assert (weight * torch.ones_like(zeros)).sum() / count == 1


def gradient(module, batch):
    experience, _ = module.annotate(batch, [torch.arange(len(batch))])
    learner = module.learners()["actor"]
    learner.max_grad_norm = None
    optimizer = torch.optim.SGD(module.actor.parameters(), lr=1.0)
    before = copy.deepcopy(module.actor.state_dict())
    stats = learner.update(experience, [torch.arange(len(batch))], optimizer, torch.Tensor.backward)
    after = copy.deepcopy(module.actor.state_dict())
    module.actor.load_state_dict(before)
    return stats, torch.cat([(before[k] - after[k]).flatten() for k in before]), experience


def test_filtered_rows_keep_their_place_in_the_statistics_of_the_group(policy):
    """The update is that of the kept rows, with advantages over all of them."""
    batch = demonstrations(policy)
    batch.truncated[[0, 5, 10]] = True
    module = ready(module_of(policy, critic=False))
    _, _, unfiltered = gradient(module, copy.deepcopy(batch))
    edit(OverlongFilter(), batch, module)
    stats, filtered, experience = gradient(module, batch)
    assert torch.equal(experience.advantages, unfiltered.advantages)
    assert stats["policy/tokens"] == batch.response_mask[~batch.truncated].sum()

    rows = ~batch.truncated
    learner = module.learners()["actor"]
    learner.max_grad_norm = None
    optimizer = torch.optim.SGD(module.actor.parameters(), lr=1.0)
    before = copy.deepcopy(module.actor.state_dict())
    alone = unfiltered[rows.nonzero().flatten()]
    learner.update(alone, [torch.arange(len(alone))], optimizer, torch.Tensor.backward)
    after = module.actor.state_dict()
    expected = torch.cat([(before[k] - after[k]).flatten() for k in before])
    torch.testing.assert_close(filtered, expected, atol=1e-5, rtol=1e-3)
    assert expected.norm() > 1e-3


def test_a_rollout_of_which_everything_is_truncated_trains_nothing(policy):
    """B07, P8: counted, no NaN."""
    module, watch = module_of(policy), Watch()
    module.configure_model()
    before = copy.deepcopy(module.actor.state_dict())
    critic = copy.deepcopy(module.critic.state_dict())
    data = data_of(sampling=Sampling(max_new_tokens=2))
    run(module, data, OverlongFilter(), watch)
    assert [row["overlong/masked"] for row in watch.rows] == [1.0, 1.0]
    assert [row["update/skipped_actor"] for row in watch.rows] == [1.0, 1.0]
    assert same(before, module.actor.state_dict())
    assert same(critic, module.critic.state_dict())


# --- value warm-up --------------------------------------------------------------------------------


def test_a_warm_up_as_long_as_the_run_is_warned_of(policy):
    with pytest.warns(ConfigWarning, match=r"rollouts=2: the run has 2 rollouts, so the policy"):
        run(module_of(policy), data_of(), ValueWarmup(2), max_epochs=1)


@pytest.mark.parametrize("rollouts", [1, 3])
def test_the_actor_is_bit_identical_for_exactly_n_rollouts(policy, rollouts):
    module = module_of(policy)
    watch = Watch(lambda m: (m.phase, state(m, "actor"), state(m, "critic")))
    module.configure_model()
    start = copy.deepcopy(module.actor.state_dict())
    run(module, data_of(), ValueWarmup(rollouts), watch, max_epochs=2)
    phases, actors, critics = zip(*watch.seen, strict=True)
    assert list(phases) == ["value_warmup"] * rollouts + ["joint"] * (4 - rollouts)
    for i, (weights, optimizer) in enumerate(actors):
        warm = i < rollouts
        assert same(weights, start) == warm
        assert (not optimizer["state"]) == warm
    for before, after in itertools.pairwise(critics):
        assert not same(before[0], after[0])
    assert [row["joint_phase"] for row in watch.rows] == [float(p == "joint") for p in phases]


def test_the_warm_up_learns_monte_carlo_returns_whatever_lambda_the_joint_phase_has(policy):
    module = ReasonModule(
        policy,
        GAE(lam_policy=0.5, lam_critic=0.5),
        ClippedSurrogate(),
        ValueLoss(),
        update=Update(1, 8, 8),
        critic_optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2),
    )
    watch = Watch()
    run(module, data_of(), ValueWarmup(1), watch, max_epochs=1)
    first, second = watch.experiences
    mask = first.rollout.response_mask
    outcome = first.rollout.rewards[:, None].expand(mask.shape)
    torch.testing.assert_close(first.returns[mask], outcome[mask])
    assert second.values.abs().max() > 0
    mask = second.rollout.response_mask
    outcome = second.rollout.rewards[:, None].expand(mask.shape)
    assert (second.returns - outcome)[mask].abs().max() > 1e-4


@pytest.mark.parametrize("reset", [True, False])
def test_the_critics_moments_start_afresh_on_request(policy, reset):
    module, watch = module_of(policy), Watch(lambda m: state(m, "critic")[1])
    run(module, data_of(), ValueWarmup(1, reset_optimizer=reset), watch)
    steps = [{int(s["step"]) for s in optimizer["state"].values()} for optimizer in watch.seen]
    assert steps == [{1}, {1}] if reset else steps == [{1}, {2}]


@pytest.mark.parametrize("rollouts", [1, 2])
def test_the_warmed_up_critic_is_saved_and_another_run_starts_from_it(policy, rollouts, tmp_path):
    """Also where the run ends with the warm-up."""
    module = module_of(policy)
    watch = Watch(lambda m: copy.deepcopy(m.critic.state_dict()))
    run(module, data_of(), ValueWarmup(rollouts, save=True), watch)
    folder = tmp_path / "run" / "critic"
    critic = Bundled(critic_init=str(folder)).critic()
    assert same(critic.state_dict(), watch.seen[rollouts - 1])


def test_a_resumed_run_continues_in_the_right_phase(policy, tmp_path):
    """Three rollouts of warm-up, interrupted after the second."""
    whole = Watch(lambda m: (m.phase, state(m, "actor")[0], state(m, "critic")))
    run(module_of(policy), data_of(), ValueWarmup(3), whole, max_epochs=3)
    half = Watch(lambda m: m.phase)
    first = run(module_of(policy), data_of(), ValueWarmup(3), half, max_epochs=1)
    first.save_checkpoint(tmp_path / "half.ckpt")
    rest = Watch(lambda m: (m.phase, state(m, "actor")[0], state(m, "critic")))
    run(
        module_of(policy),
        data_of(),
        ValueWarmup(3),
        rest,
        max_epochs=3,
        ckpt_path=tmp_path / "half.ckpt",
    )
    assert half.seen == ["value_warmup"] * 2
    assert [phase for phase, *_ in rest.seen] == ["value_warmup", "joint", "joint", "joint"]
    assert same(list(whole.seen[2:]), list(rest.seen))


def test_a_warm_up_that_cannot_be_is_refused(policy, capsys):
    with pytest.raises(ConfigError, match=r"ValueWarmup\.rollouts=0: .*leave the callback out"):
        ValueWarmup(0)
    with pytest.raises(ConfigError, match=r"callbacks: ValueWarmup has no critic to train"):
        run(module_of(policy, critic=False), data_of(), ValueWarmup(1))


# --- entropy --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uniform(tmp_path_factory, policy):
    """A policy that says every token is as likely as any other."""
    folder = tmp_path_factory.mktemp("uniform")
    config = Qwen2Config(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        vocab_size=len(policy.tokenizer),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config)
    nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return Pretrained(str(folder))


def test_the_entropy_of_a_uniform_policy_is_the_logarithm_of_its_vocabulary(uniform):
    """B25: in every part, whatever the padding."""
    frozen = {"actor_optimizer": lambda p: torch.optim.SGD(p, lr=1e-11)}
    module, watch = module_of(uniform, critic=False, **frozen), Watch()
    run(module, data_of(), EntropyMonitor(3), watch)
    expected = math.log(len(uniform.tokenizer))
    for row in watch.rows:
        measured = {k: v for k, v in row.items() if k.startswith("entropy")}
        assert set(measured) == {
            "entropy",
            "entropy/wrong",  # no response was right, so there is no entropy/correct
            "entropy/position_1",
            "entropy/position_2",
            "entropy/position_3",
        }
        for name, value in measured.items():
            assert value == pytest.approx(expected, abs=1e-5), name


def test_entropy_by_verdict_and_by_position(policy):
    module, watch = module_of(policy, critic=False), Watch()
    data = data_of(groups_per_rollout=4)
    run(module, data, EntropyMonitor(4), watch)
    for experience, row in zip(watch.experiences, watch.rows, strict=True):
        rollout, entropy = experience.rollout, experience.entropy
        tokens = [
            (float(entropy[i, t]), bool(rollout.correct[i]), t * 4 // int(rollout.lengths[i]))
            for i in range(len(rollout))
            for t in range(int(rollout.lengths[i]))
        ]

        def mean(values):
            return sum(values) / len(values)

        assert row["entropy"] == pytest.approx(mean([h for h, _, _ in tokens]), rel=1e-4)
        for name, right in (("correct", True), ("wrong", False)):
            chosen = [h for h, c, _ in tokens if c == right]
            if chosen:
                assert row[f"entropy/{name}"] == pytest.approx(mean(chosen), rel=1e-4)
        for part in range(4):
            chosen = [h for h, _, p in tokens if p == part]
            assert row[f"entropy/position_{part + 1}"] == pytest.approx(mean(chosen), rel=1e-4)


def test_positions_split_every_response_into_parts(policy):
    batch = demonstrations(policy)
    for positions in (1, 4, 50):
        masks = EntropyMonitor(positions).masks(batch)
        parts = [masks[f"entropy/position_{i + 1}"] for i in range(positions)]
        assert torch.equal(torch.stack(parts).sum(0), batch.response_mask.long())
    assert set(EntropyMonitor(0).masks(batch)) == {"entropy", "entropy/correct", "entropy/wrong"}
    with pytest.raises(ConfigError, match=r"EntropyMonitor\.positions=-1"):
        EntropyMonitor(-1)


def test_entropy_is_not_computed_for_nobody(policy):
    """F04."""
    watch = Watch()
    run(module_of(policy), data_of(), watch)
    assert all(experience.entropy is None for experience in watch.experiences)


# --- samples and predictions ----------------------------------------------------------------------


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_sample_rows_say_what_the_batch_holds(policy):
    batch = demonstrations(policy, policy_version=7)
    rows = describe_rows(batch, policy.tokenizer, 16)
    assert len(rows) == 16
    task = PlanCount(n_max=5)
    for i, row in enumerate(rows):
        assert tuple(row) == COLUMNS
        assert row["rollout"] == 7
        prompt = task[int(batch.prompt_index[i])]
        assert row["prompt"] == prompt.text
        assert task.verify(prompt, row["response"]) == row["correct"] == bool(batch.correct[i])
        assert row["reward"] == float(batch.rewards[i])
        assert row["length"] == len(row["response"]) + 1
    assert describe_rows(batch, policy.tokenizer, 4) == rows[::4]
    assert describe_rows(batch, policy.tokenizer, 99) == rows
    assert len(describe_rows(batch, policy.tokenizer, 5)) == 5


def test_the_sample_table_is_written_when_due(policy, tmp_path):
    run(module_of(policy), data_of(), SampleTable(every_n_rollouts=2, rows=3), max_epochs=2)
    rows = read(tmp_path / "run" / "samples.jsonl")
    assert [row["rollout"] for row in rows] == [0] * 3 + [2] * 3
    for name in ("every_n_rollouts", "rows"):
        with pytest.raises(ConfigError, match=rf"SampleTable\.{name}=0"):
            SampleTable(**{name: 0})


def test_a_resumed_run_writes_no_sample_twice(policy, tmp_path):
    table = SampleTable(every_n_rollouts=1, rows=2)
    first = run(module_of(policy), data_of(), table, max_epochs=1)
    first.save_checkpoint("half.ckpt")
    run(module_of(policy), data_of(), table, max_epochs=2, ckpt_path="half.ckpt")
    whole = read(tmp_path / "run" / "samples.jsonl")
    # resumed from an older checkpoint than the last row, and cut off while it wrote
    with (tmp_path / "run" / "samples.jsonl").open("a") as file:
        file.write('{"rollout": 1, "pro')
    run(module_of(policy), data_of(), table, max_epochs=2, ckpt_path="half.ckpt")
    assert read(tmp_path / "run" / "samples.jsonl") == whole
    assert [row["rollout"] for row in whole] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_predictions_are_never_overwritten(capsys):
    args = [*tiny("grpo"), *SMALL, "--run_dir=run"]
    from pathlib import Path

    main(["predict", *args])
    before = Path("run/predictions.jsonl").read_text()
    assert len(before.splitlines()) == 6 * 2
    message = fails(capsys, "predict", *args)
    assert message.startswith("error: run_dir=run: already holds predictions.jsonl; choose another")
    assert Path("run/predictions.jsonl").read_text() == before


def test_rows_that_only_fill_up_are_not_predictions(policy, tmp_path):
    batch = demonstrations(policy)
    batch.prompt_index[12:] = -1
    trainer = Trainer(accelerator="cpu", logger=False, default_root_dir=tmp_path / "p")
    trainer.datamodule = data_of()
    trainer.datamodule.val_prompts = [None] * 4
    writer, module = PredictionWriter(), ready(module_of(policy))
    prediction = Prediction(batch, torch.arange(16.0))
    for _ in range(2):
        writer.write_on_batch_end(trainer, module, prediction, None, None, 0, 0)
    rows = read(writer.path(trainer))
    assert rows == prediction_rows(prediction, PlanCount(), 4) * 2
    assert [row["logprob"] for row in rows] == [float(i) for i in range(12)] * 2
    assert [row["sample"] for row in rows] == [0, 1, 2, 3] * 6


# --- summary and progress bar ---------------------------------------------------------------------


def test_the_summary_compares_the_first_evaluation_with_the_last(policy, capsys, tmp_path):
    summary = RunSummary()
    module = module_of(policy)
    trainer = run(
        module, data_of(), summary, num_sanity_val_steps=-1, limit_val_batches=1.0, max_epochs=2
    )
    assert summary.validated == module.policy_version == 4
    assert set(summary.before) == set(summary.after)
    assert {"val/accuracy", "val/pass_at_2", "val/length"} <= set(summary.after)
    summary.before["val/accuracy"], summary.after["val/accuracy"] = 0.125, 0.875
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "metrics.csv").write_text("")
    summary.show(trainer)
    shown = capsys.readouterr().out
    assert "4 rollouts" in shown
    (line,) = [x for x in shown.splitlines() if "val/accuracy" in x]
    assert "0.125" in line
    assert "0.875" in line
    low, high = (summary.after[f"val/accuracy_{end}"] for end in ("low", "high"))
    assert f"[{low:.3f}, {high:.3f}]" in line
    assert "val/accuracy_low" not in shown
    assert "run/metrics.csv" in shown


def test_the_progress_bar_says_phase_stage_and_what_matters(policy, capsys):
    module = module_of(policy)
    run(
        module,
        data_of(),
        ReasonProgressBar(),
        ValueWarmup(1),
        EntropyMonitor(),
        enable_progress_bar=True,
    )
    captured = capsys.readouterr()
    shown = captured.out + captured.err
    for text in (
        "value_warmup · update",
        "Epoch 0 · rollout",
        "Epoch 0 · scoring",
        "Epoch 0 · update",
        "reward=",
        "accuracy=",
        "response_length=",
        "entropy=",
    ):
        assert text in shown, text
    assert "v_num" not in shown
