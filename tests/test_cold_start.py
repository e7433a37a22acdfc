"""The supervised cold start: how it ends, and how it goes on from its checkpoints."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

from lit_reason.cli import run
from scripts.kill_test import differences
from tests.conftest import SMALL, config, fails, fit, tiny
from tests.test_checkpoint_files import names
from tests.test_restored import DAMAGED, MISTAKES, given, tamper, without

FEW = {
    "trainer.max_epochs": 2,
    "trainer.log_every_n_steps": 1,
    "trainer.enable_progress_bar": "false",
    "trainer.enable_model_summary": "false",
    "data.batches_per_epoch": 2,
    "data.batch_size": 2,
    "data.task.n_max": 3,
}
ARGS = [config("cold_start.yaml"), *(f"--{key}={value}" for key, value in FEW.items())]
LAST = Path("run/checkpoints/last.ckpt")


def test_a_run_that_diverges_ends_in_one_line_and_writes_no_policy(capsys):
    flags = ["--model.optimizer.lr=1e30", "--model.scheduler=null", "--run_dir=run"]
    line = fails(capsys, "cold_start", *ARGS, *flags)
    assert re.search(r"gradient of the policy not finite in step 2; lower model\.optimizer", line)
    assert not Path("run/policy").exists()


def test_weights_that_are_not_finite_are_not_written(capsys, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    Path("callback_that_breaks.py").write_text(
        "from lightning.pytorch import Callback\n\n"
        "class Breaks(Callback):\n"
        "    def on_train_end(self, trainer, module):\n"
        "        next(module.actor.parameters()).data[0] = float('inf')\n"
    )
    breaks = "--callbacks.x=callback_that_breaks.Breaks"
    line = fails(capsys, "cold_start", *ARGS, breaks, "--run_dir=run")
    assert re.search(r"run/policy: not written, .*not finite, the first in model\.embed", line)
    assert not Path("run/policy").exists()


# --- going on -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A cold start of four steps."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        run(["cold_start", *ARGS, f"--run_dir={folder}"])
    return folder


@pytest.fixture
def continued(finished, tmp_path):
    """The arguments that continue a copy of the run by two steps."""
    shutil.copytree(finished, tmp_path / "run")
    of = ["--config=run/config.yaml", "--run_dir=run", "--ckpt_path=last"]
    return ["cold_start", *of, "--trainer.max_epochs=3"]


def test_settings_given_on_resuming_apply_and_the_schedule_is_that_of_a_new_run(continued, capsys):
    settings = {
        "optimizer.lr": "1e-6",
        "optimizer.weight_decay": "0.5",
        "scheduler.max_lr": "1e-6",
    }
    cli = run([*continued, *(f"--model.{key}={value}" for key, value in settings.items())])
    printed = capsys.readouterr().out
    for key in settings:
        assert f"changed on resuming: model.{key}=" in printed
    anew = AdamW([nn.Parameter(torch.ones(1))], lr=1e-6, betas=(0.9, 0.95), weight_decay=0.5)
    schedule = OneCycleLR(anew, max_lr=1e-6, total_steps=1500, pct_start=0.06)
    for _ in range(6):
        anew.step()
        schedule.step()
    (group,), (expected,) = cli.trainer.optimizers[0].param_groups, anew.param_groups
    assert {k: v for k, v in group.items() if k != "params"} == {
        k: v for k, v in expected.items() if k != "params"
    }
    assert all(state["step"] == 6 for state in cli.trainer.optimizers[0].state.values())
    saved = torch.load(LAST, weights_only=True)
    assert saved["optimizer_states"][0]["param_groups"][0]["weight_decay"] == 0.5
    assert saved["lr_schedulers"][0]["last_epoch"] == 6


@pytest.mark.parametrize("flag", MISTAKES)
def test_a_mistake_that_is_given_on_resuming_is_not_blamed_on_the_checkpoint(
    flag, continued, capsys
):
    line = fails(capsys, *continued, f"--model.{flag}")
    assert line == f"error: model.{MISTAKES[flag]}"


def test_another_optimizer_is_one_line(continued, capsys):
    flags = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.1"]
    line = fails(capsys, *continued, *flags, "--model.scheduler=null")
    assert re.search(r"model\.optimizer=torch\.optim\.SGD: .* the state of \S*AdamW; conti", line)


def test_another_optimizer_is_also_refused_where_the_checkpoint_does_not_say(continued, capsys):
    tamper(LAST, without("callbacks", "RecordConfig"))
    flags = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.1"]
    line = fails(capsys, *continued, *flags)
    assert "holds no 'momentum' of the actor, which its optimizer needs" in line


OF_DEMONSTRATIONS = {
    "holds no Demonstrations, the place in the problems": without("Demonstrations"),
    "its cursor is 'x', expected a count": given("x", "Demonstrations", "cursor"),
    "its cursor is 3, and its loops have trained on 4": given(3, "Demonstrations", "cursor"),
}
REFUSED = DAMAGED | OF_DEMONSTRATIONS


@pytest.mark.parametrize("message", REFUSED)
def test_a_checkpoint_from_which_it_would_not_go_on_is_one_line(message, continued, capsys):
    tamper(LAST, REFUSED[message])
    before = Path("run/config.yaml").read_bytes()
    assert message in fails(capsys, *continued)
    assert Path("run/config.yaml").read_bytes() == before


def test_a_file_outside_of_the_run_is_one_line(continued, capsys):
    outside = str(LAST.parent.resolve() / "../../victim.ckpt")
    tamper(LAST, names("best_model_path", outside, str(LAST.parent.resolve())))
    line = fails(capsys, *continued)
    assert f"its best_model_path is {outside!r:.80}, no .ckpt file of run/checkpoints" in line


def test_checkpoints_of_the_two_kinds_of_training_are_told_apart(continued, capsys):
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, f"--ckpt_path={LAST}", "--run_dir=run")
    assert re.search(r"is a checkpoint of `cold_start`, and this is `fit`; .*=Pretrained", line)
    other = fit(*tiny("grpo"), *SMALL, run_dir="rl") / "checkpoints" / "last.ckpt"
    line = fails(capsys, "cold_start", *ARGS, f"--ckpt_path={other}", "--run_dir=new")
    assert re.search(r"is a checkpoint of `fit`, and this is `cold_start`; .*export_hf", line)
    assert not Path("new").exists()


STOPS = """
import os, signal
from lightning.pytorch import Callback

class Generating(Callback):
    '''While a batch is generated, counted from 0 over the whole run.'''
    def __init__(self, batch: int):
        self.batch = batch

    def on_stage(self, trainer, stage):
        if stage == "demonstrations" and trainer.datamodule.cursor == self.batch:
            os.kill(os.getpid(), signal.SIGTERM)
"""


def rows_of(run_dir):
    return Path(run_dir, "metrics.csv").read_text()


@pytest.mark.parametrize(("batch", "steps"), [(2, 1), (4, 1), (5, 2), (9, 3)])
def test_a_step_of_several_batches_is_finished_before_a_run_stops(
    batch, steps, capsys, monkeypatch, tmp_path
):
    """Epochs of 6 batches are steps of 4 and of 2."""
    monkeypatch.syspath_prepend(tmp_path)
    Path("callback_that_stops_between.py").write_text(STOPS)
    more = ["--trainer.accumulate_grad_batches=4", "--data.batches_per_epoch=6"]
    stop = ["--callbacks.x=callback_that_stops_between.Generating", f"--callbacks.x.batch={batch}"]
    run(["cold_start", *ARGS, *more, "--run_dir=whole"])
    with pytest.raises(SystemExit) as stopped:
        run(["cold_start", *ARGS, *more, *stop, "--run_dir=run"])
    assert stopped.value.code == 143
    said = re.search(rf"after {steps} steps; .* lit_reason (.*)\n", capsys.readouterr().err)
    run([*said[1].split(), "--callbacks.x=null"])
    whole, other = (
        torch.load(Path(d) / LAST.relative_to("run"), weights_only=True) for d in ("whole", "run")
    )
    parts = ("state_dict", "optimizer_states", "lr_schedulers", "Demonstrations", "global_step")
    assert [x for key in parts for x in differences(whole[key], other[key], key)] == []
    assert rows_of("whole") == rows_of("run")


@pytest.mark.parametrize("steps", [3, 4])
def test_a_limit_of_steps_that_is_raised_goes_on_in_the_epoch_that_it_cut(steps):
    args = ["cold_start", *ARGS, "--trainer.max_epochs=-1"]
    run([*args, "--trainer.max_steps=6", "--run_dir=whole"])
    run([*args, f"--trainer.max_steps={steps}", "--run_dir=run"])
    run([*args, "--trainer.max_steps=6", "--run_dir=run", "--ckpt_path=last"])
    whole, other = (Path(name, "policy", "model.safetensors") for name in ("whole", "run"))
    assert whole.read_bytes() == other.read_bytes()
    # Lightning counts one epoch less from a limit that was the end of one
    whole, other = (re.sub(r"(?m)^\d+,", "", rows_of(name)) for name in ("whole", "run"))
    assert whole == other


# --- folders --------------------------------------------------------------------------------------


def test_a_copied_folder_is_not_taken_for_the_original(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "copy")
    before = (finished / "checkpoints" / "last.ckpt").read_bytes()
    on = ["cold_start", "--config=copy/config.yaml", "--trainer.max_epochs=3"]
    for path in ("last", "copy/checkpoints/last.ckpt"):
        line = fails(capsys, *on, f"--ckpt_path={path}")
        assert f"run_dir={finished}: is what config=copy/config.yaml names, which lies in" in line
        assert f"give --run_dir=copy for the run in it, or --run_dir={finished} for" in line
    run([*on, "--ckpt_path=last", "--run_dir=copy"])
    assert torch.load("copy/checkpoints/last.ckpt", weights_only=True)["global_step"] == 6
    assert (finished / "checkpoints" / "last.ckpt").read_bytes() == before
    run([*on, "--ckpt_path=last"])  # its configuration names it now


def test_a_relative_folder_is_looked_for_where_the_command_is_given(continued, monkeypatch, capsys):
    run(continued)  # the configuration now says run_dir: run
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    line = fails(capsys, "cold_start", "--config=../run/config.yaml", "--ckpt_path=last")
    assert line.endswith("with checkpoints; give --run_dir=../run for the run in it")
    line = fails(capsys, "cold_start", *ARGS, "--ckpt_path=last", "--run_dir=run")
    assert line.endswith("run_dir=run holds no checkpoint; give the folder of the run as --run_dir")
