"""The names of files in a checkpoint: a run that continues removes none but its own."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lit_reason.checkpoints import Checkpoints
from tests.conftest import SMALL, fails, fit, tiny
from tests.test_restored import tamper

GRPO = [*tiny("grpo"), *SMALL, "--data.rollouts_per_epoch=1"]
ON = ["--ckpt_path=last", "--trainer.max_epochs=2"]
LAST = Path("run/checkpoints/last.ckpt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of one rollout."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        patch.chdir(folder)
        fit(*GRPO)
    return folder / "run"


@pytest.fixture
def copied(finished, tmp_path):
    """The run in a folder of the same relative name, beside a file and a folder of others."""
    shutil.copytree(finished, tmp_path / "run")
    Path("victim").mkdir()
    Path("victim/kept.txt").write_text("of somebody else")
    Path("victim.ckpt").write_text("of somebody else")


def names(name, path, folder=None):
    """Names a file in the state of both callbacks."""

    def change(saved):
        for key, state in saved["callbacks"].items():
            if "Checkpoint" in key:
                state[name] = {path: torch.tensor(0.0)} if name == "best_k_models" else path
                state["dirpath"] = folder or state["dirpath"]

    return change


OUTSIDE = {
    "a folder": ("best_model_path", "run/checkpoints/../../victim"),
    "a file that ends as one": ("best_model_path", "run/checkpoints/../../victim.ckpt"),
    "the last": ("last_model_path", "run/checkpoints/../../victim.ckpt"),
    "the worst of the best": ("kth_best_model_path", "run/checkpoints/../../victim.ckpt"),
    "one of the best": ("best_k_models", "run/checkpoints/../../victim.ckpt"),
    "no checkpoint": ("best_model_path", "run/checkpoints/../config.yaml"),
    "another way there": ("best_model_path", "./run/checkpoints/x/../../../victim.ckpt"),
    "the folder": ("best_model_path", "run/checkpoints"),
    "no name": ("best_model_path", 3),
    "no names": ("best_k_models", "x"),
    "a link": ("best_model_path", "run/checkpoints/link.ckpt"),
}


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("what", OUTSIDE)
def test_a_file_outside_of_the_run_is_one_line_and_stays(what, capsys):
    name, path = OUTSIDE[what]
    if what == "a link":
        os.symlink("../../victim.ckpt", path)
    tamper(LAST, names(name, path))
    line = fails(capsys, "fit", *GRPO, *ON, "--run_dir=run")
    assert f"ckpt_path: its {name} is {path!r}, no .ckpt file of run/checkpoints; it was" in line
    assert Path("victim/kept.txt").exists()
    assert Path("victim.ckpt").exists()


@pytest.mark.usefixtures("copied")
def test_a_folder_that_the_checkpoint_names_is_not_looked_into():
    """Only the names in it count, as the folder of the run may have moved."""
    outside = "run/checkpoints/../.."
    for name in ("best_k_models", "kth_best_model_path", "last_model_path", "best_model_path"):
        tamper(LAST, names(name, f"{outside}/victim.ckpt", outside))
    fit(*GRPO, *ON)
    assert Path("victim.ckpt").exists()


@pytest.mark.usefixtures("copied")
def test_a_file_of_a_folder_that_a_run_has_left_is_forgotten():
    tamper(LAST, names("best_model_path", str(Path("victim.ckpt").resolve())))
    fit(*GRPO, *ON)
    assert Path("victim.ckpt").exists()


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("where", ["moved", "absolute", "linked", "emptied", "forked"])
def test_a_folder_that_moved_or_lost_files_is_continued(where, tmp_path):
    folder, flags = Path("run"), ON
    if where == "moved":
        folder = Path("run").rename("elsewhere")
    elif where == "absolute":
        folder = tmp_path / "run"
    elif where == "linked":  # checkpoints on another disk
        Path("run/checkpoints").rename("disk")
        os.symlink("../disk", "run/checkpoints")
    elif where == "emptied":
        for path in Path("run/checkpoints").glob("*_*.ckpt"):
            path.unlink()
    else:
        folder, flags = Path("new"), [f"--ckpt_path={LAST}", *ON[1:]]
    fit(*GRPO, *flags, run_dir=folder)
    held = sorted(path.name for path in (folder / "checkpoints").glob("[lr]*.ckpt"))
    assert held == ["last.ckpt", "rollout_00002.ckpt"]
    assert (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["policy_version"] == 2
    )


def best(folder):
    """Names of the checkpoints of the best validation."""
    return sorted(path.name for path in (folder / "checkpoints").glob("best_*.ckpt"))


@pytest.mark.usefixtures("copied")
def test_a_folder_that_moved_keeps_one_best_checkpoint():
    (held,) = best(Path("run"))
    folder = Path("run").rename("elsewhere")
    path = folder / "checkpoints" / "last.ckpt"
    tamper(path, scores(torch.tensor(2.0)))  # no later validation is better
    fit(*GRPO, *ON, run_dir=folder)
    assert best(folder) == [held]
    tamper(path, scores(torch.tensor(-1.0)))  # any is
    fit(*GRPO, *ON[:1], "--trainer.max_epochs=3", run_dir=folder)
    assert best(folder) == ["best_00003.ckpt"]


@pytest.mark.usefixtures("copied")
def test_a_best_checkpoint_that_is_gone_is_none_to_beat():
    tamper(LAST, scores(torch.tensor(2.0)))
    for path in Path("run/checkpoints").glob("best_*.ckpt"):
        path.unlink()
    fit(*GRPO, *ON)
    assert best(Path("run")) == ["best_00002.ckpt"]


@pytest.mark.usefixtures("copied")
def test_a_finished_run_that_goes_on_from_its_best_checkpoint_writes_no_other_file():
    held = sorted(path.name for path in LAST.parent.iterdir())
    fit(*GRPO, f"--ckpt_path={LAST.parent / 'best_00001.ckpt'}")
    assert sorted(path.name for path in LAST.parent.iterdir()) == held


def scores(value):
    """Gives every best checkpoint a score."""

    def change(saved):
        for key, state in saved["callbacks"].items():
            if "Checkpoint" in key and state["best_k_models"]:
                state["best_k_models"] = dict.fromkeys(state["best_k_models"], value)
                state["kth_value"] = state["best_model_score"] = value

    return change


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("score", ["high", torch.ones(3), None])
def test_a_score_that_cannot_be_is_one_line(score, capsys):
    tamper(LAST, scores(score))
    line = fails(capsys, "fit", *GRPO, *ON, "--run_dir=run")
    assert "ckpt_path: the score of run/checkpoints/best_00001.ckpt is " in line


@pytest.mark.usefixtures("copied")
def test_the_worst_of_the_best_is_found_by_the_scores():
    tamper(LAST, names("kth_best_model_path", "run/checkpoints/other.ckpt"))
    fit(*GRPO, *ON)
    assert len(best(Path("run"))) == 1


OWN = "--callbacks.own=lightning.pytorch.callbacks.ModelCheckpoint"
OWNS = {
    "as the run's": [OWN],
    "of every rollout": [
        OWN,
        "--callbacks.own.every_n_train_steps=1",
        "--callbacks.own.save_top_k=-1",
    ],
    "elsewhere": [OWN, "--callbacks.own.dirpath=elsewhere", "--callbacks.own.save_last=true"],
    "the last": [OWN, "--callbacks.own.save_last=true"],
    "seldom": [OWN, "--callbacks.own.every_n_epochs=3"],
}


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("own", OWNS)
def test_a_checkpoint_callback_of_the_users_own_writes_beside_the_runs(own):
    for epochs in (2, 3):
        fit(*GRPO, *OWNS[own], "--ckpt_path=last", f"--trainer.max_epochs={epochs}")
        assert torch.load(LAST, weights_only=True)["policy_version"] == epochs
    assert [path.name for path in LAST.parent.glob("rollout_*.ckpt")] == ["rollout_00003.ckpt"]
    assert len(best(Path("run"))) == 1


@pytest.mark.usefixtures("copied")
def test_the_last_checkpoint_is_the_runs_also_beside_a_newer_one_of_weights_alone():
    own = [OWN, "--callbacks.own.save_last=true", "--callbacks.own.save_weights_only=true"]
    for epochs in (2, 3):
        fit(*GRPO, *own, "--ckpt_path=last", f"--trainer.max_epochs={epochs}")
        assert torch.load(LAST, weights_only=True)["policy_version"] == epochs


def former(saved):
    """The state as it was before the callback of the run had a key of its own."""
    states = saved["callbacks"]
    for key in [key for key in states if key.startswith("LastCheckpoint")]:
        states[key.replace("LastCheckpoint", "ModelCheckpoint")] = states.pop(key)


@pytest.mark.usefixtures("copied")
def test_the_state_of_an_earlier_run_is_found():
    tamper(LAST, former)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Be aware that when using `ckpt_path`")
        fit(*GRPO, *ON)
    assert [path.name for path in LAST.parent.glob("rollout_*.ckpt")] == ["rollout_00002.ckpt"]


def test_two_callbacks_that_lightning_cannot_tell_apart_are_one_line(capsys):
    more = [OWN, OWN.replace("own", "other")]
    line = fails(capsys, "fit", *GRPO, *more, "--run_dir=run")
    assert "trainer: Found more than one stateful callback of type `ModelCheckpoint`" in line


def test_what_another_run_is_writing_is_left_alone(tmp_path, monkeypatch):
    """Only in the folder of the run nobody else writes, so that a partial file is a leftover."""
    theirs = tmp_path / "shared" / ".theirs.ckpt.partial"
    for run_dir, left in {"run": True, "shared": False}.items():
        monkeypatch.setenv("LIT_REASON_RUN_DIR", str(tmp_path / run_dir))
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_text("half a file")
        Checkpoints().save_checkpoint({"a": 1}, tmp_path / "shared" / "mine.ckpt")
        assert theirs.exists() == left


@pytest.mark.usefixtures("copied")
def test_the_last_checkpoint_is_found_also_by_a_run_that_writes_none(caplog):
    fit(*GRPO, *ON, "--trainer.enable_checkpointing=false")
    assert torch.load(LAST, weights_only=True)["policy_version"] == 1
    assert len(Path("run/metrics.csv").read_text().splitlines()) > 3
    assert "weights_only" not in caplog.text


def test_e05_the_steps_of_an_own_checkpoint_are_rollouts():
    """Of ten, four warm the critic up: Lightning counts 4 + 2 * 6 = 16 steps of optimizers."""
    sizes = ["--data.rollouts_per_epoch=10", "--model.update.minibatch_size=16"]
    own = [OWN, "--callbacks.own.every_n_train_steps=5", "--callbacks.own.save_top_k=-1"]
    warmup = "--callbacks.value_warmup.rollouts=4"
    folder = fit(*tiny("vapo"), *SMALL, *sizes, *own, warmup) / "checkpoints"
    assert {p.name for p in folder.glob("epoch=*")} == {
        "epoch=0-step=5.ckpt",
        "epoch=0-step=10.ckpt",
    }
    saved = torch.load(folder / "epoch=0-step=10.ckpt", weights_only=True)
    assert (saved["policy_version"], saved["global_step"]) == (10, 16)
    last = folder / "epoch=0-step=5.ckpt"
    fit(*tiny("vapo"), *SMALL, *sizes, *own, warmup, f"--ckpt_path={last}", run_dir="on")
    assert [p.name for p in Path("on/checkpoints").glob("epoch=*")] == ["epoch=0-step=10.ckpt"]


def test_e06_every_update_leaves_a_checkpoint_of_the_weights_after_it():
    own = [OWN, "--callbacks.own.every_n_train_steps=1", "--callbacks.own.save_last=true"]
    flags = ["--callbacks.own.save_top_k=-1", "--data.rollouts_per_epoch=3"]
    flags.append("--callbacks.export=ExportPolicy")
    folder = fit(*tiny("grpo"), *SMALL, *own, *flags) / "checkpoints"
    names = [f"epoch=0-step={step}.ckpt" for step in (1, 2, 3)]
    assert {p.name for p in folder.glob("epoch=*")} == set(names)
    saved = [torch.load(folder / n, weights_only=True)["state_dict"] for n in (*names, "last.ckpt")]
    moved = [key for key in saved[0] if not torch.equal(saved[0][key], saved[1][key])]
    assert moved
    assert any(not torch.equal(saved[1][key], saved[2][key]) for key in moved)
    final = load_file("run/policy/model.safetensors")
    for key, value in final.items():
        assert torch.equal(saved[3][f"actor.{key}"], saved[2][f"actor.{key}"])
        assert torch.equal(saved[3][f"actor.{key}"], value)
