"""Checkpoints that were tampered with, or written by something else: one line, before a rollout."""

import shutil
from pathlib import Path

import pytest
import torch

from lit_reason.cli import run
from lit_reason.errors import ConfigWarning
from tests.conftest import SMALL, fails, fit, tiny

GRPO = [*tiny("grpo"), *SMALL, "--data.rollouts_per_epoch=1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        fit(*GRPO, "--trainer.limit_val_batches=0", run_dir=folder)
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


REFUSED = {
    "its exp_avg of the actor's weight 0 has shape": wrong_moment,
    "holds a state of the actor's weight 999, and there are": wrong_weight,
    "its optimizer_states are no states of optimizers": given([1], "optimizer_states"),
    "its policy_version is 'x', expected a count": given("x", "policy_version"),
    "its policy_version is True, expected a count": given(True, "policy_version"),
    "its cursor is 'x', expected a count": given("x", "RolloutDataModule", "cursor"),
    "its cursor is None, expected a count": without("RolloutDataModule", "cursor"),
    "holds no RolloutDataModule, the place in the problems": without("RolloutDataModule"),
    "holds no loops, the epoch": without("loops"),
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


@pytest.mark.parametrize("message", REFUSED)
def test_a_checkpoint_from_which_a_run_would_not_go_on_is_one_line(message, copied, capsys):
    tamper(copied, REFUSED[message])
    end = ["--run_dir=run", "--trainer.max_epochs=2"]
    line = fails(capsys, "fit", *GRPO, f"--ckpt_path={copied}", *end)
    assert message in line


def test_a_checkpoint_without_a_configuration_is_warned_of(copied):
    tamper(copied, without("callbacks", "RecordConfig"))
    end = ["--run_dir=run", "--trainer.max_epochs=2", "--trainer.limit_val_batches=0"]
    with pytest.warns(ConfigWarning, match=r"ckpt_path=\S+: does not say with which config"):
        run(["fit", *GRPO, f"--ckpt_path={copied}", *end])


@pytest.mark.parametrize(
    "content", [{"a": 1}, [1, 2], torch.ones(2)], ids=["dict", "list", "tensor"]
)
@pytest.mark.parametrize("subcommand", ["fit", "validate"])
def test_a_file_that_is_no_checkpoint_of_a_run_is_one_line(subcommand, content, capsys):
    torch.save(content, "other.ckpt")
    fails(capsys, subcommand, *GRPO, "--ckpt_path=other.ckpt", "--run_dir=new")
