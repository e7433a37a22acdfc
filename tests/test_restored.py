"""Checkpoints that were tampered with, or written by something else: one line, before a rollout."""

import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from lit_reason.cli import run
from lit_reason.errors import ConfigWarning
from tests.conftest import SMALL, fails, fit, tiny

GRPO = [
    *tiny("grpo"),
    *SMALL,
    "--model.actor_scheduler=torch.optim.lr_scheduler.LinearLR",
    "--trainer.limit_val_batches=0",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        fit(*GRPO, run_dir=folder)
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return Path("run/checkpoints/last.ckpt")


def wrong_moment(saved):
    state = saved["optimizer_states"][0]["state"]
    state[0]["exp_avg"] = state[0]["exp_avg"][:-1].clone()


def wrong_weight(saved):
    saved["optimizer_states"][0]["state"][999] = {}


def moment(value, name="exp_avg", weight=3):
    def change(saved):
        saved["optimizer_states"][0]["state"][weight][name] = value

    return change


def without(*names):
    def drop(saved):
        for name in names:
            saved = saved[name] if name != names[-1] else saved
        del saved[names[-1]]

    return drop


def given(value, *names):
    def change(saved):
        for name in names[:-1]:
            saved = saved[name]
        saved[names[-1]] = value

    return change


def setting(value, name):
    def change(saved):
        saved["optimizer_states"][0]["param_groups"][0][name] = value

    return change


def of_schedules(states):
    return given(states, "lr_schedulers")


def nan_weight(saved):
    next(iter(saved["state_dict"].values()))[0] = torch.nan


FIRST = ("optimizer_states", 0)
PROGRESS = ("loops", "fit_loop", "epoch_loop.batch_progress")
# of the kinds of training alike
DAMAGED = {
    "holds weights that are not finite, the first in": nan_weight,
    "holds the states of 0 optimizers, and this configuration trains actor": given(
        [], "optimizer_states"
    ),
    "holds moments of 0 weights of the actor, and": given({}, *FIRST, "state"),
    "weights of the actor, and 38 were written": without(*FIRST, "state", 5),
    "its exp_avg of the actor's weight 5 is 'missing', no number": without(
        *FIRST, "state", 5, "exp_avg"
    ),
    "its step of the actor's weight 3 is 'x', no number": moment("x", "step"),
    "its step of the actor's weight 3 is nan": moment(torch.tensor(torch.nan), "step"),
    "its exp_avg of the actor's weight 3 has shape (2,), not": moment(torch.ones(2)),
    "its lr of the actor is 'x'": setting("x", "lr"),
    "its lr of the actor is nan": setting(float("nan"), "lr"),
    "its betas of the actor is (0.9,)": setting((0.9,), "betas"),
    "its param_groups of the actor are not of its weights": given([], *FIRST, "param_groups"),
    "its lr_schedulers are not the states of 1 schedules": of_schedules([]),
    "its last_epoch is 'x', expected a count": of_schedules([{"last_epoch": "x"}]),
    "its loops hold no epoch_progress.current": given({}, "loops"),
    "its loops hold no epoch_loop.batch_progress.total": without(*PROGRESS, "total"),
    "its processed is 'x', expected a count": given("x", *PROGRESS, "total", "processed"),
    "is damaged, or no checkpoint of a run (AttributeError": given(
        3, "loops", "fit_loop", "state_dict"
    ),
    "its loops are a list, not a dict": given([], "loops"),
    "its callbacks are a list, not a dict": given([], "callbacks"),
    "holds no callbacks, the states of callbacks": without("callbacks"),
    "holds no loops, the epoch": without("loops"),
}
REFUSED = {
    "its exp_avg of the actor's weight 0 has shape": wrong_moment,
    "holds a state of the actor's weight 999, and there are": wrong_weight,
    "its optimizer_states are no states of optimizers": given([1], "optimizer_states"),
    "its policy_version is 'x', expected a count": given("x", "policy_version"),
    "its policy_version is True, expected a count": given(True, "policy_version"),
    "its cursor is 'x', expected a count": given("x", "RolloutDataModule", "cursor"),
    "its cursor is None, expected a count": without("RolloutDataModule", "cursor"),
    "holds no RolloutDataModule, the place in the problems": without("RolloutDataModule"),
    "its policy_version is 1, and its loops have trained on 2 batches": given(1, "policy_version"),
    "its policy_version is 1000000000, and its loops": given(10**9, "policy_version"),
    "its cursor is 0, and its loops have trained on": given(0, "RolloutDataModule", "cursor"),
    f"its cursor is {10**30}, expected a count": given(10**30, "RolloutDataModule", "cursor"),
    "holds no policy_version, the number of rollouts": without("policy_version"),
    "holds no optimizer_states": without("optimizer_states"),
    "holds no state_dict": without("state_dict"),
    "the configuration that it holds is no YAML": given(
        {"config": "a: ["}, "callbacks", "RecordConfig"
    ),
}


def tamper(path, change):
    saved = torch.load(path, weights_only=True)
    change(saved)
    torch.save(saved, path)


@pytest.mark.parametrize("message", DAMAGED | REFUSED)
def test_a_checkpoint_from_which_a_run_would_not_go_on_is_one_line(message, copied, capsys):
    tamper(copied, (DAMAGED | REFUSED)[message])
    before = Path("run/config.yaml").read_bytes()
    end = ["--run_dir=run", "--trainer.max_epochs=2"]
    line = fails(capsys, "fit", *GRPO, f"--ckpt_path={copied}", *end)
    assert message in line
    assert Path("run/config.yaml").read_bytes() == before


MISTAKES = {  # what a new run would say
    "optimizer.lr=-1": "optimizer: Invalid learning rate: -1.0",
    "optimizer.lr=1e400": "optimizer.lr=inf: must be finite",
    "optimizer.weight_decay=1e400": "optimizer.weight_decay=inf: must be finite",
    "optimizer.betas=[0.5, 1.6]": "optimizer: Invalid beta parameter at index 1: 1.6",
}


@pytest.mark.parametrize("flag", MISTAKES)
def test_a_mistake_that_is_given_on_resuming_is_not_blamed_on_the_checkpoint(flag, copied, capsys):
    on = ["--config=run/config.yaml", "--run_dir=run", "--ckpt_path=last", f"--model.actor_{flag}"]
    line = fails(capsys, "fit", *on, "--trainer.max_epochs=2")
    assert line == f"error: model.actor_{MISTAKES[flag]}"


def test_an_optimizer_that_took_no_step_yet_has_no_moments_to_miss():
    """The actor's, while only the critic trains."""
    args = [*tiny("vapo"), *SMALL, "--data.rollouts_per_epoch=1", "--trainer.limit_val_batches=0"]
    args += ["--callbacks.value_warmup.rollouts=1"]
    with pytest.warns(ConfigWarning, match="so the policy does not train"):
        last = fit(*args) / "checkpoints" / "last.ckpt"
    moments = torch.load(last, weights_only=True)["moments"]
    assert moments["actor"] == 0 < moments["critic"]
    fit(*args, "--ckpt_path=last", "--trainer.max_epochs=2")
    saved = torch.load(last, weights_only=True)
    assert saved["policy_version"] == 2
    assert min(saved["moments"].values()) > 0


def test_a_schedule_for_a_run_that_had_none_is_one_line(copied, capsys):
    saved = torch.load(copied, weights_only=True)
    text = saved["callbacks"]["RecordConfig"]["config"]
    own = yaml.safe_load(text)
    own["model"]["actor_scheduler"] = None
    tamper(copied, given({"config": yaml.safe_dump(own)}, "callbacks", "RecordConfig"))
    line = fails(capsys, "fit", *GRPO, f"--ckpt_path={copied}", "--run_dir=run")
    assert "LinearLR: the checkpoint was written without one; set it to null, or" in line
    off = "--model.actor_scheduler=null"
    tamper(copied, given({"config": text}, "callbacks", "RecordConfig"))
    line = fails(capsys, "fit", *GRPO, off, f"--ckpt_path={copied}", "--run_dir=run")
    assert re.search(r"model\.actor_scheduler=null: .* state of \S*LinearLR; continue with", line)


def test_a_checkpoint_that_was_cut_off_is_said_to_be(copied, capsys):
    copied.write_bytes(copied.read_bytes()[:-1000])
    line = fails(capsys, "fit", *GRPO, "--ckpt_path=last", "--run_dir=run")
    assert re.search(
        r"last\.ckpt: cannot be read \(File is not a zip file\), the file was cut", line
    )


def test_another_optimizer_does_not_matter_to_an_evaluation(copied):
    run(["validate", *GRPO[:-1], "--model.actor_optimizer=SGD", f"--ckpt_path={copied}"])


def test_a_checkpoint_without_a_configuration_is_warned_of(copied):
    tamper(copied, without("callbacks", "RecordConfig"))
    end = ["--run_dir=run", "--trainer.max_epochs=2"]
    with pytest.warns(ConfigWarning, match=r"ckpt_path=\S+: does not say with which config"):
        run(["fit", *GRPO, f"--ckpt_path={copied}", *end])


@pytest.mark.parametrize(
    "content", [{"a": 1}, [1, 2], torch.ones(2)], ids=["dict", "list", "tensor"]
)
@pytest.mark.parametrize("subcommand", ["fit", "validate"])
def test_a_file_that_is_no_checkpoint_of_a_run_is_one_line(subcommand, content, capsys):
    torch.save(content, "other.ckpt")
    fails(capsys, subcommand, *GRPO, "--ckpt_path=other.ckpt", "--run_dir=new")
