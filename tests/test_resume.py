"""Resumption: a run that was stopped or killed ends as if it had not been, bit for bit."""

import csv
import json
import os
import re
import shutil
import signal
import sys
import warnings
from pathlib import Path

import pytest
import torch
import yaml

from lit_reason import checkpoints
from lit_reason.__main__ import main
from lit_reason.checkpoints import Checkpoints
from lit_reason.cli import run
from lit_reason.errors import ConfigWarning
from scripts.kill_test import arguments, compare, metrics
from tests.conftest import SMALL, config, fails, fit, full_disk, tiny

VAPO = [*tiny("vapo"), *SMALL]


def rows_of(run_dir):
    with (Path(run_dir) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


# every part that has a state: two networks, a schedule, a warm-up, a filter, a reference
FULL = [
    *VAPO,
    "--data.group_filter=DropUniform",
    "--data.max_rounds=3",
    "--model.terms.kl=KLToReference",
    "--model.actor_optimizer.lr=3e-3",
    "--model.actor_scheduler=torch.optim.lr_scheduler.LinearLR",
    "--callbacks.value_warmup.rollouts=1",
    "--callbacks.samples.every_n_rollouts=1",
    "--callbacks.critic=CriticMonitor",
]
DIES = """
import os, signal
from lightning.pytorch import Callback

class Dies(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if module.policy_version == 3:
            raise RuntimeError("killed")

class Starting(Callback):
    def on_stage(self, trainer, stage):
        if trainer.training and stage == "rollout":
            os.kill(os.getpid(), signal.SIGTERM)

class Enough(Callback):
    def on_train_batch_end(self, trainer, module, *_):
        trainer.should_stop |= module.policy_version == 1

class Third(Callback):
    def on_stage(self, trainer, stage):
        if trainer.lightning_module.policy_version == 3 and stage == "scoring":
            os.kill(os.getpid(), signal.SIGTERM)

class Updating(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if module.policy_version == 2:
            os.kill(os.getpid(), signal.SIGTERM)

class Generating(Callback):
    def on_stage(self, trainer, stage):
        if trainer.lightning_module.policy_version == 3 and stage == "scoring":
            os.kill(os.getpid(), signal.SIGINT)

class Validating(Callback):
    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking and module.policy_version == 2:
            os.kill(os.getpid(), signal.SIGTERM)

class NextEpoch(Callback):
    def on_stage(self, trainer, stage):
        version = trainer.lightning_module.policy_version
        if trainer.training and version == 2 and stage == "scoring":
            os.kill(os.getpid(), signal.SIGINT)

class Ending(Callback):
    def __init__(self, number: int):
        self.number = number

    def on_validation_batch_start(self, trainer, *args):
        if trainer.state.fn == "validate":
            os.kill(os.getpid(), self.number)

class Last(Callback):
    def __init__(self, number: int):
        self.number = number

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if module.policy_version == 1:
            os.kill(os.getpid(), self.number)

class Interrupts(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if module.policy_version == 3:
            raise KeyboardInterrupt

class First(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        os.kill(os.getpid(), signal.SIGTERM)

class Checking(Callback):
    def on_sanity_check_start(self, trainer, module):
        os.kill(os.getpid(), signal.SIGTERM)

class Twice(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
"""
SIGNALLED = {  # exit status, rollouts it keeps
    "Updating": (143, 3),
    "Generating": (130, 3),
    "Validating": (143, 2),
    "NextEpoch": (130, 2),
}
RESUMED = ["halves", "killed", *SIGNALLED, "twice"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four rollouts at once; two and two; killed and stopped at several moments; stopped twice."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "callback_that_dies.py").write_text(DIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        torch.set_num_threads(1)

        def go(name, *extra):
            patch.delenv("PL_GLOBAL_SEED", raising=False)
            return run(["fit", *FULL, f"--run_dir={folder / name}", *extra])

        done = {"whole": go("whole", "--trainer.max_epochs=2")}
        go("halves", "--trainer.max_epochs=1")
        shutil.copytree(folder / "halves", folder / "half")
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        saved = f"--config={folder / 'halves' / 'config.yaml'}"
        done["halves"] = run(["fit", saved, "--ckpt_path=last", "--trainer.max_epochs=2"])
        with pytest.raises(SystemExit):
            go("killed", "--trainer.max_epochs=2", "--callbacks.dies=callback_that_dies.Dies")
        shutil.copytree(folder / "killed", folder / "dead")
        last = folder / "killed" / "checkpoints" / "last.ckpt"
        done["killed"] = go("killed", "--trainer.max_epochs=2", f"--ckpt_path={last}")

        def stops(folder_name, callback, *extra):
            status, rollouts = SIGNALLED[callback]
            given = ["--trainer.max_epochs=2", f"--callbacks.x=callback_that_dies.{callback}"]
            with pytest.raises(SystemExit) as stop:
                go(folder_name, *given, *extra)
            assert stop.value.code == status
            assert checkpoint(folder, folder_name)["policy_version"] == rollouts

        for name in SIGNALLED:
            stops(name, name)
            done[name] = go(name, "--trainer.max_epochs=2", "--ckpt_path=last")
        stops("twice", "Validating")
        stops("twice", "NextEpoch", "--ckpt_path=last")
        done["twice"] = go("twice", "--trainer.max_epochs=2", "--ckpt_path=last")
        patch.delenv("PL_GLOBAL_SEED", raising=False)
    return folder, done


def checkpoint(folder, name):
    return torch.load(folder / name / "checkpoints" / "last.ckpt", weights_only=True)


def assert_same(a, b, where=""):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}/{i}")
    else:
        assert a == b, where


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(runs, name):
    """Weights, both optimizers' moments, schedules, prompt cursor and rollout counter."""
    folder, done = runs
    whole, other = checkpoint(folder, "whole"), checkpoint(folder, name)
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "policy_version", "global_step"):
        assert_same(whole[key], other[key], key)
    assert whole["RolloutDataModule"] == other["RolloutDataModule"]
    assert whole["policy_version"] == 4
    assert_same(done["whole"].model.actor.state_dict(), done[name].model.actor.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_the_metrics_of_a_resumed_run_are_those_of_an_uninterrupted_one(runs, name):
    """G08: the same rows, strictly monotone."""
    folder, _ = runs
    unlike = {"time/rollout", "tokens_per_second"}
    whole, other = rows_of(folder / "whole"), rows_of(folder / name)
    for a, b in zip(whole, other, strict=True):
        assert a.keys() == b.keys()
        for key in a.keys() - unlike:
            assert a[key] == b[key] or (a[key] == b[key] == "nan"), key
    updates = [row for row in other if row["reward"]]
    assert [float(row["rollout"]) for row in updates] == [1, 2, 3, 4]
    steps = [int(row["step"]) for row in updates]
    assert steps == sorted(set(steps))
    for file in ("samples.jsonl", "critic.jsonl"):
        assert (folder / name / file).read_text() == (folder / "whole" / file).read_text()


@pytest.mark.slow
def test_a_killed_run_had_written_what_the_resumed_one_replaced(runs):
    folder, _ = runs
    assert [float(r["rollout"]) for r in rows_of(folder / "dead") if r["reward"]] == [1, 2, 3]
    assert checkpoint(folder, "dead")["policy_version"] == 2
    assert checkpoint(folder, "half")["policy_version"] == 2


@pytest.mark.slow
def test_an_epoch_after_a_resumption_is_a_whole_one_with_new_prompts(runs):
    """E02, E03: two more rollouts, of the prompts that an uninterrupted run would draw."""
    folder, _ = runs
    cursors = {
        name: checkpoint(folder, name)["RolloutDataModule"]["cursor"]
        for name in ("half", "halves", "whole")
    }
    assert cursors["half"] < cursors["halves"] == cursors["whole"]


@pytest.mark.slow
def test_checkpoints_count_rollouts_and_hold_the_weights_after_the_update(runs):
    """E05, E06: Lightning's own counter adds up the steps of both optimizers."""
    folder, done = runs
    names = {p.name for p in (folder / "whole" / "checkpoints").iterdir()}
    (best,) = [name for name in names if name.startswith("best_")]
    assert names == {"last.ckpt", "rollout_00004.ckpt", best}
    scores, rollout = {}, 0
    for row in rows_of(folder / "whole"):
        rollout = float(row["rollout"] or rollout)
        if row["val/accuracy"] and rollout:
            scores[rollout] = float(row["val/accuracy"])
    assert scores[float(best[5:10])] == max(scores.values())
    saved = checkpoint(folder, "whole")
    assert saved["global_step"] > 4
    actor = done["whole"].model.actor.state_dict()
    for key, value in actor.items():
        assert torch.equal(saved["state_dict"][f"actor.{key}"], value)
    start = done["whole"].model.backbone.actor().state_dict()
    assert any(not torch.equal(start[key], value) for key, value in actor.items())


@pytest.mark.slow
def test_the_reference_stays_the_starting_policy_also_after_resumption(runs):
    """E08: bit for bit; absent from the checkpoint; the policy moves away from it."""
    folder, done = runs
    for name in ("whole", *RESUMED):
        module = done[name].model
        assert_same(module.reference.state_dict(), module.backbone.actor().state_dict())
        assert not any(p.requires_grad for p in module.reference.parameters())
        assert not [k for k in checkpoint(folder, name)["state_dict"] if "reference" in k]
        updates = [row for row in rows_of(folder / name) if row.get("loss/kl")]
        assert float(updates[-1]["loss/kl"]) > 0


def prompts_of(run_dir):
    """Number of the rollout and tokens of the prompt of each group that a run trained on."""
    with (Path(run_dir) / "rollouts.jsonl").open() as file:
        rows = [json.loads(line) for line in file]
    return [(row["rollout"], tuple(row["prompt_ids"])) for row in rows]


RECORDED = [*tiny("grpo"), *SMALL, "--callbacks.recorder=RolloutRecorder"]


def test_e02_a_run_that_ended_with_its_fourth_batch_goes_on_for_four_more():
    args = [*RECORDED, "--data.rollouts_per_epoch=4", "--data.groups_per_rollout=2"]
    fit(*args, "--trainer.max_epochs=1")
    assert checkpoint(Path(), "run")["policy_version"] == 4
    fit(*args, "--trainer.max_epochs=2", "--ckpt_path=last")
    assert checkpoint(Path(), "run")["policy_version"] == 8
    updates = [row for row in rows_of("run") if row["reward"]]
    assert [int(float(row["rollout"])) for row in updates] == list(range(1, 9))


@pytest.mark.filterwarnings("ignore:.*that the tokenizer does not know")
@pytest.mark.usefixtures("own_parts")
def test_e03_each_of_eight_prompts_comes_once_though_the_run_died_after_two_batches():
    problems = [{"problem": f"{i}+{i}=", "answer": str(2 * i)} for i in range(8)]
    Path("p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    args = [x for x in RECORDED if not x.startswith("--data.task")]
    args += ["--data.task=MathProblems", "--data.task.path=p.jsonl", "--data.groups_per_rollout=2"]
    args.append("--trainer.max_epochs=2")
    fit(*args, run_dir="whole")
    with pytest.raises(SystemExit):
        fit(*args, "--callbacks.x=callback_that_dies.Dies")
    assert checkpoint(Path(), "run")["policy_version"] == 2
    fit(*args, "--ckpt_path=last")
    assert [rollout for rollout, _ in prompts_of("run")] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len({prompt for _, prompt in prompts_of("run")}) == 8
    assert prompts_of("run") == prompts_of("whole")


def test_e08_the_reference_is_the_starting_policy_after_five_updates_and_a_resumption():
    args = [*RECORDED, "--data.rollouts_per_epoch=5", "--data.groups_per_rollout=2"]
    for more in ([], ["--trainer.max_epochs=2", "--ckpt_path=last"]):
        module = run(["fit", *args, "--run_dir=run", *more]).model
        assert_same(module.reference.state_dict(), module.backbone.actor().state_dict())
        assert not any(p.requires_grad for p in module.reference.parameters())
        stepped = {id(p) for o in module.trainer.optimizers for p in o.param_groups[0]["params"]}
        assert not stepped & {id(p) for p in module.reference.parameters()}
        assert not [k for k in checkpoint(Path(), "run")["state_dict"] if "reference" in k]
    kl = [float(row["loss/kl"]) for row in rows_of("run") if row["loss/kl"]]
    assert len(kl) == 10
    assert all(x > 0 for x in kl[1:])


@pytest.fixture
def own_parts(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    Path("callback_that_dies.py").write_text(DIES)
    sys.modules.pop("callback_that_dies", None)


@pytest.mark.filterwarnings("ignore:.*that the tokenizer does not know")
def test_other_problems_than_those_that_a_run_began_with_are_warned_of():
    rows = [{"problem": f"{i}+{i}=", "answer": str(2 * i)} for i in range(9)]
    path = Path("p.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:8]))
    args = [x for x in RECORDED if not x.startswith("--data.task")]
    fit(*args, "--data.task=MathProblems", "--data.task.path=p.jsonl")
    on = ["fit", "--config=run/config.yaml", "--ckpt_path=last"]
    text = r"data\.task: holds other problems than those .* \({}, \w+; it was {}, \w+\), so the run"
    for epochs, content in enumerate((rows, [*rows[:8], {"problem": "8+8=", "answer": "17"}]), 2):
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
        with pytest.warns(ConfigWarning, match=text.format(9, 8 if epochs == 2 else 9)):
            main([*on, f"--trainer.max_epochs={epochs}"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "data.task: holds other")
        main([*on, "--trainer.max_epochs=4"])


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize("moment", ["Validating", "NextEpoch"])
def test_stops_where_an_epoch_ends_leave_the_steps_of_the_loggers_as_they_are(moment):
    """Twice in a row: what Lightning counts for loggers is counted anew for each evaluation."""
    args = arguments("grpo", rollouts=4)
    fit(*args, run_dir="whole")
    stop = f"--callbacks.x=callback_that_dies.{moment}"
    with pytest.raises(SystemExit):
        fit(*args, stop)
    with pytest.raises(SystemExit):
        fit(*args, "--callbacks.x=callback_that_dies.NextEpoch", "--ckpt_path=last")
    assert versions()["last.ckpt"] == 2
    fit(*args, "--ckpt_path=last")
    assert compare(Path("whole"), Path("run"), rollouts=4) == []


VALIDATES = {  # when, with the length of an epoch, and rollouts of the last checkpoint before 3
    "every_second_epoch": (["--trainer.check_val_every_n_epoch=2"], 1, 3),
    "after_each_rollout": (["--trainer.val_check_interval=1"], 2, 2),
    "over_epochs": (
        ["--trainer.val_check_interval=3", "--trainer.check_val_every_n_epoch=null"],
        2,
        2,
    ),
    "never": (["--trainer.limit_val_batches=0"], 1, 3),
}


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize("when", VALIDATES)
def test_every_epoch_ends_with_a_checkpoint_whenever_the_run_validates(when):
    """Killed and continued, with the bits and the rows of a run that was not."""
    flags, length, kept = VALIDATES[when]
    args = [*arguments("grpo", rollouts=4), *flags, f"--data.rollouts_per_epoch={length}"]
    args.append(f"--trainer.max_epochs={4 // length}")
    fit(*args, run_dir="whole")
    assert versions("whole") == {"last.ckpt": 4, "rollout_00004.ckpt": 4}
    with pytest.raises(SystemExit):
        fit(*args, "--callbacks.x=callback_that_dies.Dies")
    assert versions() == {"last.ckpt": kept, f"rollout_{kept:05d}.ckpt": kept}
    with pytest.raises(SystemExit):
        fit(*args, "--callbacks.x=callback_that_dies.Third", "--ckpt_path=last")
    assert versions()["last.ckpt"] == 3
    fit(*args, "--ckpt_path=last")
    assert compare(Path("whole"), Path("run"), rollouts=4) == []
    assert versions()["last.ckpt"] == 4


@pytest.mark.usefixtures("own_parts")
def test_a_run_goes_on_from_the_best_checkpoint_of_the_middle_of_an_epoch():
    """Which is of the weights that scored best."""
    args = [*arguments("grpo", rollouts=2), "--trainer.val_check_interval=1"]
    args.append("--data.rollouts_per_epoch=4")
    fit(*args, run_dir="whole")
    scores = [float(row["val/accuracy"]) for row in rows_of("whole") if row["val/accuracy"]]
    (best,) = Path("whole/checkpoints").glob("best_*.ckpt")
    rollout = torch.load(best, weights_only=True)["policy_version"]
    assert best.name == f"best_{rollout:05d}.ckpt"
    assert scores[rollout] == max(scores[1:])
    assert 0 < rollout < 4
    shutil.copytree("whole", "run")
    fit(*args, f"--ckpt_path=run/checkpoints/{best.name}")
    assert compare(Path("whole"), Path("run"), rollouts=4) == []


@pytest.mark.usefixtures("own_parts")
def test_a_run_that_was_stopped_before_it_trained_keeps_the_evaluation_before_training():
    args = arguments("grpo", rollouts=4)
    fit(*args, run_dir="whole")
    for more in ([], ["--ckpt_path=last"]):
        with pytest.raises(SystemExit):
            fit(*args, "--callbacks.x=callback_that_dies.Starting", *more)
        assert [row["rollout"] for row in rows_of("run")] == ["0.0"]
    fit(*args, "--ckpt_path=last")
    assert compare(Path("whole"), Path("run"), rollouts=4) == []


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_with_nothing_left_to_train_keeps_its_rows(every):
    """Of a checkpoint that Lightning wrote before it had counted the last rollout for loggers."""
    own = ["--callbacks.own=lightning.pytorch.callbacks.ModelCheckpoint"]
    own += ["--callbacks.own.every_n_train_steps=1", "--callbacks.own.save_top_k=-1"]
    args = [*arguments("grpo", rollouts=4), *own, f"--trainer.check_val_every_n_epoch={every}"]
    fit(*args)
    shutil.copytree("run", "whole")
    newest = max(Path("run/checkpoints").glob("*.ckpt"), key=os.path.getmtime)
    for _ in range(2):
        fit(*args, f"--ckpt_path={newest}")
        (*rows, last), (*earlier, before) = metrics(Path("run")), metrics(Path("whole"))
        assert rows == earlier
        place = {key: before[key] for key in ("step", "epoch")}
        assert {**last, **place} == before


KILLED_IN_A_CHECKPOINT = """
from lightning.pytorch import Callback

class Kill(Callback):
    def __init__(self, saved: bool):
        self.saved = saved

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if module.policy_version < 3:
            return
        if not self.saved:
            raise RuntimeError
        save = trainer.save_checkpoint
        def dies(*args, **kwargs):
            save(*args, **kwargs)
            raise RuntimeError
        trainer.save_checkpoint = dies
"""


@pytest.mark.parametrize(
    "kind",
    ["ModelCheckpoint", pytest.param("OnExceptionCheckpoint", marks=pytest.mark.slow)],
)
def test_a_run_killed_after_a_checkpoint_of_ones_own_loses_no_row(kind, monkeypatch, tmp_path):
    """Lightning logs a rollout after the callbacks that may save it."""
    monkeypatch.syspath_prepend(tmp_path)
    Path("kill_in_a_checkpoint.py").write_text(KILLED_IN_A_CHECKPOINT)
    sys.modules.pop("kill_in_a_checkpoint", None)
    args = [*arguments("grpo", rollouts=6), "--data.rollouts_per_epoch=3"]
    args += ["--trainer.max_epochs=2", f"--callbacks.own=lightning.pytorch.callbacks.{kind}"]
    if kind == "ModelCheckpoint":
        args += ["--callbacks.own.every_n_train_steps=1", "--callbacks.own.save_top_k=-1"]
    else:
        args += ["--callbacks.own.dirpath=run/checkpoints"]
    fit(*args, run_dir="whole")
    whole = metrics(Path("whole"))
    dies = ["--callbacks.dies=kill_in_a_checkpoint.Kill"]
    dies += [f"--callbacks.dies.saved={kind == 'ModelCheckpoint'}"]
    with pytest.raises(SystemExit):
        fit(*args, *dies)
    (row,) = (row for row in metrics(Path("run")) if row["rollout"] == "3.0")
    assert row in whole
    newest = max(Path("run/checkpoints").glob("*.ckpt"), key=os.path.getmtime)
    assert torch.load(newest, weights_only=True)["policy_version"] == 3
    fit(*args, f"--ckpt_path={newest}")
    assert [r for r in metrics(Path("run")) if r["reward"]] == [r for r in whole if r["reward"]]


def test_a_run_whose_time_is_up_ends_with_its_epoch_and_goes_on_as_one_without_a_limit():
    args = arguments("grpo", rollouts=4)
    fit(*args, run_dir="whole")
    fit(*args, "--trainer.max_time={milliseconds: 1}")
    assert versions() == {"last.ckpt": 2, "rollout_00002.ckpt": 2}
    fit(*args, "--trainer.max_time={milliseconds: 1}", "--ckpt_path=last")
    assert versions()["last.ckpt"] == 2  # it counts over all parts of the run
    fit(*args, "--trainer.max_time={hours: 1}", "--ckpt_path=last")
    assert compare(Path("whole"), Path("run"), rollouts=4) == []


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize("stopper", ["callback_that_dies.Enough", "EarlyStopping", "Timer"])
def test_a_callback_ends_a_run_with_its_epoch(stopper):
    args = [*arguments("grpo", rollouts=6), "--data.rollouts_per_epoch=3"]
    args += ["--trainer.max_epochs=2", "--trainer.val_check_interval=1"]
    how = [f"--callbacks.enough={stopper}"]
    if stopper == "EarlyStopping":
        how += ["--callbacks.enough.monitor=val/accuracy", "--callbacks.enough.patience=1"]
        how += ["--callbacks.enough.divergence_threshold=2", "--callbacks.enough.mode=max"]
    elif stopper == "Timer":
        how += ["--callbacks.enough.duration={milliseconds: 1}"]
    fit(*args, run_dir="whole")
    fit(*args, *how)
    assert versions()["last.ckpt"] == 3
    fit(*args, "--ckpt_path=last")
    assert compare(Path("whole"), Path("run"), rollouts=6) == []


def test_a_part_whose_state_cannot_be_written_is_not_blamed_on_a_checkpoint(capsys):
    schedule = "--model.actor_scheduler=torch.optim.lr_scheduler.LambdaLR"
    flags = [schedule, "--model.actor_scheduler.lr_lambda=math.cos"]  # torch asks its __dict__
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *flags)
    assert line.startswith("error: trainer: a part has a state that no checkpoint holds ('builtin_")


@pytest.mark.usefixtures("own_parts")
def test_an_epoch_that_trained_nothing_ends_with_a_checkpoint_too():
    flags = ["--data.sampling.max_new_tokens=1", "--callbacks.overlong=OverlongFilter"]
    with pytest.warns(ConfigWarning, match="none of the 2 rollouts trained the policy"):
        fit(*tiny("grpo"), *SMALL, *flags)
    assert versions() == {"last.ckpt": 2, "rollout_00002.ckpt": 2}


@pytest.mark.usefixtures("own_parts")
def test_a_second_signal_ends_the_run_at_once_and_without_a_checkpoint(capsys):
    with pytest.raises(SystemExit) as stop:
        fit(*tiny("grpo"), *SMALL, "--callbacks.x=callback_that_dies.Twice")
    assert stop.value.code == 143
    assert "stopped by SIGTERM, without a new checkpoint" in capsys.readouterr().err
    assert not list(Path().rglob("*.ckpt"))


def stopped(capsys, *args):
    """Exit status and last line of a run that is stopped."""
    with pytest.raises(SystemExit) as stop:
        fit(*args)
    return stop.value.code, capsys.readouterr().err.splitlines()[-1]


CONTINUE = "python -m lit_reason fit --config run/config.yaml --ckpt_path run/checkpoints/last.ckpt"


@pytest.mark.usefixtures("own_parts")
def test_a_second_signal_while_the_checkpoint_is_written_says_how_to_continue(capsys, monkeypatch):
    save = checkpoints.save_tensors

    def slow(value, path):
        if value["policy_version"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        save(value, path)

    monkeypatch.setattr(checkpoints, "save_tensors", slow)
    stop = "--callbacks.x=callback_that_dies.Updating"
    status, said = stopped(capsys, *GRPO, "--trainer.max_epochs=2", stop)
    assert status == 143
    assert said == f"stopped by SIGTERM, without a new checkpoint; continue with: {CONTINUE}"
    assert versions() == {"last.ckpt": 2, "rollout_00002.ckpt": 2}


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["Ending", "Last"])
def test_a_signal_in_or_before_the_evaluation_after_the_last_epoch_ends_it(moment, number, capsys):
    """What is left is the evaluation, which the run that continues makes."""
    args = [*GRPO, "--trainer.check_val_every_n_epoch=9"]
    stop = [f"--callbacks.x=callback_that_dies.{moment}", f"--callbacks.x.number={number:d}"]
    status, said = stopped(capsys, *args, *stop)
    assert status == 128 + number
    assert said == f"stopped by {number.name}, without a new checkpoint; continue with: {CONTINUE}"
    fit(*args, "--ckpt_path=last")
    assert "2 rollouts in" in capsys.readouterr().out


@pytest.mark.usefixtures("own_parts")
def test_a_run_that_is_told_to_stop_in_its_last_rollout_is_done_in_order(capsys):
    fit(*GRPO, "--callbacks.x=callback_that_dies.Last", f"--callbacks.x.number={signal.SIGTERM:d}")
    assert versions() == {"last.ckpt": 2, "rollout_00002.ckpt": 2}
    assert "2 rollouts in" in capsys.readouterr().out


@pytest.mark.usefixtures("own_parts")
def test_an_evaluation_that_is_interrupted_says_so(capsys):
    stop = ["--callbacks.x=callback_that_dies.Ending", f"--callbacks.x.number={signal.SIGINT:d}"]
    with pytest.raises(SystemExit) as stopped:
        main(["validate", *tiny("grpo"), *SMALL, *stop])
    assert stopped.value.code == 130
    said = capsys.readouterr().err
    assert said.endswith("stopped by SIGINT\n")
    assert "KeyboardInterrupt" not in said


@pytest.mark.usefixtures("own_parts")
def test_an_interrupt_that_a_part_raises_is_one_by_the_user(capsys):
    stop = "--callbacks.x=callback_that_dies.Interrupts"
    status, said = stopped(capsys, *GRPO, "--trainer.max_epochs=2", stop)
    assert status == 130
    assert said == f"stopped by SIGINT, without a new checkpoint; continue with: {CONTINUE}"
    assert versions()["last.ckpt"] == 2


STATES = {  # of VAPO's the tests above tell
    "ppo": ["--model.kl_in_reward=0.01"],
    "grpo": ["--model.reference_refresh=2"],  # before the signal, so that the policy has moved on
    "dapo": ["--data.max_rounds=3"],
    "vc_ppo": ["--callbacks.value_warmup.rollouts=3"],  # ends with the signal
}


@pytest.mark.slow
@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize("algorithm", STATES)
def test_every_algorithm_continues_with_the_bits_of_an_uninterrupted_run(algorithm):
    """Networks, optimizers, schedules, prompts, metrics, samples and every generated token."""
    args = [*arguments(algorithm, rollouts=4), *STATES[algorithm]]
    fit(*args, run_dir="whole")
    with pytest.raises(SystemExit):
        fit(*args, "--callbacks.x=callback_that_dies.Updating")
    assert versions()["last.ckpt"] == 3
    fit(*args, "--ckpt_path=last")
    assert compare(Path("whole"), Path("run"), rollouts=4) == []


def versions(folder="run"):
    """Rollouts that each checkpoint holds."""
    return {
        path.name: torch.load(path, weights_only=True)["policy_version"]
        for path in Path(folder, "checkpoints").iterdir()
        if not path.name.startswith("best_")
    }


@pytest.mark.usefixtures("own_parts")
def test_the_last_checkpoint_is_the_newest_whatever_a_run_continues_from():
    """Lightning counts versions of a file that the continued run does not know as its own."""
    with pytest.raises(SystemExit):
        fit(*GRPO, "--callbacks.x=callback_that_dies.First")
    assert versions() == {"last.ckpt": 1}
    fit(*GRPO, "--ckpt_path=run/checkpoints/last.ckpt")
    assert versions() == {"last.ckpt": 2, "rollout_00002.ckpt": 2}
    shutil.copytree("run", "copy")
    fit(*GRPO, "--trainer.max_epochs=2", "--ckpt_path=last", run_dir="copy")
    assert versions("copy")["last.ckpt"] == 4
    assert "last-v1.ckpt" not in versions("copy")
    (best,) = Path("run/checkpoints").glob("best_*.ckpt")
    fit(*GRPO, "--trainer.max_epochs=2", f"--ckpt_path={best}")
    assert versions()["last.ckpt"] == 4
    assert "last-v1.ckpt" not in versions()


def test_a_folder_without_a_last_checkpoint_names_the_newest_of_the_others(copied, capsys):
    copied.unlink()
    newest = "run/checkpoints/rollout_00002.ckpt"
    os.utime(newest)
    hint = re.escape(f"continue it with --ckpt_path={newest}")
    assert re.search(hint, fails(capsys, "fit", *GRPO, "--run_dir=run"))
    line = resumed(capsys, *GRPO, "--ckpt_path=last")
    assert f"run_dir=run holds no last.ckpt; the newest is --ckpt_path={newest}" in line


COLD = """
import os, signal
from lightning.pytorch import Callback

class Stops(Callback):
    def __init__(self, number: int):
        self.number = number

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 3:
            os.kill(os.getpid(), self.number)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_cold_start_that_was_stopped_ends_with_the_same_policy(number, monkeypatch, capsys):
    """In the middle of the second of three epochs."""
    monkeypatch.syspath_prepend(Path().resolve())
    Path("callback_that_stops.py").write_text(COLD)
    sys.modules.pop("callback_that_stops", None)
    few = {
        "trainer.max_epochs": 3,
        "trainer.log_every_n_steps": 1,
        "data.batches_per_epoch": 2,
        "data.batch_size": 2,
    }
    args = [config("cold_start.yaml"), *(f"--{key}={value}" for key, value in few.items())]
    args += ["--data.task.n_max=3", "--trainer.enable_progress_bar=false"]
    main(["cold_start", *args, "--run_dir=whole"])
    stops = ["--callbacks.x=callback_that_stops.Stops", f"--callbacks.x.number={number:d}"]
    with pytest.raises(SystemExit) as stop:
        main(["cold_start", *args, *stops, "--run_dir=run"])
    assert stop.value.code == 128 + number
    assert not Path("run/policy").exists()
    said = re.search(
        r"after 4 steps; continue with: python -m lit_reason (.*)\n", capsys.readouterr().err
    )
    main(said[1].split())
    whole, other = (Path(name, "policy", "model.safetensors") for name in ("whole", "run"))
    assert whole.read_bytes() == other.read_bytes()
    assert rows_of("whole") == rows_of("run")


def test_a_file_that_is_no_checkpoint_is_refused_in_one_line(capsys):
    Path("broken.ckpt").write_bytes(b"not a checkpoint")
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--ckpt_path=broken.ckpt", "--run_dir=run")
    assert re.search(r"ckpt_path=broken\.ckpt: not a checkpoint", line)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A GRPO run of two rollouts."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        fit(*GRPO, run_dir=folder)
    return folder


GRPO = [
    *tiny("grpo"),
    *SMALL,
    "--model.actor_optimizer.lr=1e-3",
    "--model.actor_scheduler=torch.optim.lr_scheduler.LinearLR",
    "--model.actor_scheduler.total_iters=4",
]


@pytest.fixture
def copied(finished, tmp_path):
    """The run again, to break or to continue, and its last checkpoint."""
    shutil.copytree(finished, tmp_path / "run")
    return Path("run/checkpoints/last.ckpt")


def resumed(capsys, *args):
    return fails(capsys, "fit", *args, "--run_dir=run", "--trainer.max_epochs=2")


@pytest.mark.usefixtures("own_parts")
def test_a_resumed_run_that_is_stopped_before_it_trains_says_how_to_continue(copied, capsys):
    before = copied.read_bytes()
    with pytest.raises(SystemExit) as stop:
        fit(*GRPO, "--callbacks.x=callback_that_dies.Checking", "--ckpt_path=last")
    assert stop.value.code == 143
    said = capsys.readouterr().err
    command = f"fit --config run/config.yaml --ckpt_path {copied}"
    assert f"without a new checkpoint; continue with: python -m lit_reason {command}\n" in said
    assert copied.read_bytes() == before


def test_what_changed_is_printed_also_where_nothing_is_left_to_train(copied, capsys):
    fit(*GRPO, "--ckpt_path=last", "--data.sampling.temperature=0.9")
    assert versions()["last.ckpt"] == 2
    printed = capsys.readouterr().out
    assert "changed on resuming: data.sampling.temperature=0.9, was 1.0" in printed


def test_steps_that_were_not_finite_are_counted_on(copied):
    saved = torch.load(copied, weights_only=True)
    assert saved["nonfinite"] == {"actor": 0, "rewards": 0}
    torch.save({**saved, "nonfinite": {"actor": 3}}, copied)
    assert run(["fit", *GRPO, "--run_dir=run", "--ckpt_path=last"]).model.guard.in_a_row == {
        "actor": 3
    }


def test_settings_given_on_resuming_apply_and_are_printed(copied, capsys):
    """Lightning would restore those of the optimizer and the schedule from the checkpoint."""
    given = ["--model.actor_optimizer.lr=2e-3", "--model.actor_optimizer.weight_decay=0.3"]
    given += ["--model.actor_scheduler.total_iters=8", "--data.sampling.temperature=0.9"]
    config = f"--config={copied.parents[1] / 'config.yaml'}"
    end = ["--trainer.max_epochs=2", "--ckpt_path=last", "--run_dir=run"]
    cli = run(["fit", config, *given, *end])
    assert cli.model.policy_version == 4
    printed = capsys.readouterr().out
    for line in (
        "model.actor_optimizer.lr=0.002, was 0.001",
        "model.actor_scheduler.total_iters=8, was 4",
        "data.sampling.temperature=0.9, was 1.0",
        "trainer.max_epochs=2, was 1",
    ):
        assert f"changed on resuming: {line}" in printed
    assert printed.count("changed on resuming") == 5
    (group,) = cli.trainer.optimizers[0].param_groups
    assert (group["initial_lr"], group["weight_decay"]) == (2e-3, 0.3)
    (schedule,) = cli.trainer.lr_scheduler_configs
    assert schedule.scheduler.total_iters == 8
    assert cli.datamodule.sampling.temperature == 0.9
    assert (
        yaml.safe_load(Path("run/config.yaml").read_text())["data"]["sampling"]["temperature"]
        == 0.9
    )


def test_a_schedule_without_a_length_is_refused_on_resuming_too(copied, capsys):
    line = resumed(capsys, *GRPO, "--ckpt_path=last", "--model.actor_scheduler.total_iters=-3")
    assert "model.actor_scheduler.total_iters=-3: must be at least 1" in line
    assert versions()["last.ckpt"] == 2


def test_another_optimizer_cannot_go_on_from_the_state_of_the_old_one(copied, capsys):
    line = resumed(capsys, *GRPO, f"--ckpt_path={copied}", "--model.actor_optimizer=SGD")
    assert re.search(
        r"model\.actor_optimizer=\S*SGD: the checkpoint holds the state of .*AdamW", line
    )


class Evil:
    """What a pickle may do: it makes a file."""

    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def damaged(path):
    """A bit of the weights."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def dangerous(path):
    saved = torch.load(path, weights_only=True)
    torch.save({**saved, "evil": Evil()}, path)


@pytest.mark.parametrize("change", [damaged, cut, dangerous])
def test_a_checkpoint_that_was_changed_is_one_line_and_nothing_of_it_runs(change, copied, capsys):
    change(copied)
    line = resumed(capsys, *GRPO, f"--ckpt_path={copied}")
    assert re.search(r"ckpt_path=run/checkpoints/last\.ckpt: .*RUN_DIR/checkpoints", line), line
    assert not Path("executed").exists()


def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint_whole(copied, capsys):
    before = copied.read_bytes()
    with full_disk(len(before) // 2):
        line = resumed(capsys, *GRPO, f"--ckpt_path={copied}")
    assert re.search(r"\w+_00004\.ckpt: cannot be written \(File too large\); make room", line)
    assert copied.read_bytes() == before
    assert not [p for p in Path().rglob("*") if "partial" in p.name]


def test_a_checkpoint_is_replaced_at_once_or_not_at_all(tmp_path, monkeypatch):
    """Killed at any moment, the earlier file is there; only the rename shows the new one."""
    path, seen = tmp_path / "last.ckpt", []
    monkeypatch.setenv("LIT_REASON_RUN_DIR", str(tmp_path))
    (tmp_path / ".rollout_00002.ckpt.partial").write_text("of a run that was killed")
    Checkpoints().save_checkpoint({"a": 1}, path)
    rename = Path.replace
    monkeypatch.setattr(
        Path,
        "replace",
        lambda self, to: (seen.append(torch.load(path)["a"]), rename(self, to)),
    )
    Checkpoints().save_checkpoint({"a": 2}, path)
    assert (seen, torch.load(path)["a"]) == ([1], 2)
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]
