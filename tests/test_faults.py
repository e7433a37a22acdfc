"""Faults in the middle of a run: each has one outcome, which `docs/faults.md` states."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from lit_reason.errors import ConfigWarning
from tests.conftest import ROOT, SMALL, fails, fit, full_disk, tiny

PARTS = """
from pathlib import Path
import torch
from lightning.pytorch import Callback

class Infects(Callback):
    '''Weights that are not finite, for the update of the second rollout or from there on.'''
    def __init__(self, heal: bool = True):
        self.heal = heal

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.before = {k: v.clone() for k, v in module.actor.state_dict().items()}
        if module.policy_version == 1:
            next(module.actor.parameters()).data.fill_(torch.nan)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.heal:
            module.actor.load_state_dict(self.before)

class Deletes(Callback):
    def on_train_start(self, trainer, module):
        Path("problems.jsonl").unlink()
"""


@pytest.fixture(autouse=True)
def _parts(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_faults.py").write_text(PARTS)
    sys.modules.pop("my_faults", None)


def rows_of(run_dir):
    with (run_dir / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["reward"]]


INFECTS = [*tiny("grpo"), *SMALL, "--callbacks.x=my_faults.Infects"]


def test_losses_that_are_not_finite_are_skipped_and_counted():
    rows = rows_of(fit(*INFECTS, "--data.rollouts_per_epoch=3"))
    assert [float(row["update/nonfinite_actor"]) for row in rows] == [0, 1, 0]
    assert [float(row["update/skipped_actor"]) for row in rows] == [0, 1, 0]


def test_losses_that_stay_so_stop_the_run_and_leave_the_batch(capsys):
    line = fails(capsys, "fit", *INFECTS, "--model.update.max_nonfinite=2", "--run_dir=run")
    assert re.search(
        r"not finite in 2 optimizer steps in a row.*model\.update\.max_nonfinite", line
    )
    saved = torch.load("run/nonfinite_rank0.pt", weights_only=True)
    assert saved["network"] == "actor"
    assert len(saved["rollout"]["texts"]) == 8  # one mini-batch


SPOILT = """
from lit_reason.rewards import Correctness

class Spoilt(Correctness):
    def __init__(self, rollouts: int = 1):
        super().__init__()
        self.rollouts = rollouts

    def bind(self, module):
        self.module = module

    def __call__(self, prompt, responses, verdicts):
        values = super().__call__(prompt, responses, verdicts)
        if self.module.trainer.training and 1 <= self.module.policy_version <= self.rollouts:
            values[0], values[1] = float("nan"), float("inf")
        return values
"""


def spoilt(*args):
    Path("spoilt.py").write_text(SPOILT)
    sys.modules.pop("spoilt", None)
    return [*tiny("grpo"), *SMALL, "--data.rewards.correctness=spoilt.Spoilt", *args]


def test_rewards_that_are_not_finite_are_left_out_and_counted():
    with pytest.warns(
        ConfigWarning, match=r"data\.rewards\.correctness=Spoilt: returned nan or inf"
    ):
        rows = rows_of(fit(*spoilt("--data.rollouts_per_epoch=3")))
    assert [float(row["reward/nonfinite"]) for row in rows] == [0, 0.5, 0]
    assert [float(row["reward/unscored"]) for row in rows] == [0, 0.5, 0]
    assert [float(row["update/nonfinite_actor"]) for row in rows] == [0, 0, 0]
    assert all(abs(float(row["reward"])) <= 1 for row in rows)


@pytest.mark.filterwarnings("ignore:data.rewards.correctness=Spoilt")
def test_rewards_that_stay_so_stop_the_run_and_leave_the_rollout(capsys):
    args = spoilt("--data.rollouts_per_epoch=4", "--data.rewards.correctness.rollouts=9")
    line = fails(capsys, "fit", *args, "--model.update.max_nonfinite=2", "--run_dir=run")
    assert line == (
        "error: data.rewards: nan or infinity in 2 rollouts in a row; the last one is in "
        "run/nonfinite_rank0.pt (model.update.max_nonfinite=2)"
    )
    saved = torch.load("run/nonfinite_rank0.pt", weights_only=True)
    assert saved["network"] == "rewards"
    assert saved["stats"]["reward/nonfinite"] == 0.5
    assert saved["scored"].view(-1, 4).tolist() == [[False, False, True, True]] * 4
    assert len(saved["texts"]) == 16


def test_a_batch_that_cannot_be_kept_does_not_hide_why_the_run_ends(capsys):
    Path("run/nonfinite_rank0.pt/is_a_folder").mkdir(parents=True)
    line = fails(capsys, "fit", *INFECTS, "--model.update.max_nonfinite=2", "--run_dir=run")
    assert re.search(r"not finite in 2 optimizer steps .* is lost, run/nonfinite_rank0\.pt", line)


def test_a_disk_without_room_for_a_run_leaves_its_folder_free(capsys):
    with full_disk(100):
        line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--run_dir=run")
    assert re.search(r"run/config\.yaml: cannot be written \(File too large\); make room", line)
    assert not Path("run").exists()


def test_a_policy_that_has_diverged_cannot_sample_and_says_what_to_do(capsys):
    flags = ["--callbacks.x.heal=false", "--data.rollouts_per_epoch=3"]
    line = fails(capsys, "fit", *INFECTS, *flags)
    assert re.search(r"probabilities are not finite.*lower model\.actor_optimizer\.lr", line)


def test_a_run_of_which_every_response_is_truncated_goes_on_and_counts():
    flags = ["--data.sampling.max_new_tokens=1", "--callbacks.overlong=OverlongFilter"]
    with pytest.warns(ConfigWarning, match="none of the 2 rollouts trained the policy"):
        rows = rows_of(fit(*tiny("grpo"), *SMALL, *flags))
    assert [float(row["overlong/masked"]) for row in rows] == [1, 1]
    assert [float(row["update/skipped_actor"]) for row in rows] == [1, 1]


def test_fewer_problems_than_a_rollout_holds_come_more_than_once():
    rows = rows_of(fit(*tiny("grpo"), *SMALL, "--data.task.limit=3"))
    assert [float(row["rollout"]) for row in rows] == [1, 2]


@pytest.mark.filterwarnings("ignore:task.template:lit_reason.errors.ConfigWarning")
def test_a_data_file_that_disappears_is_not_missed():
    """Problems are read at the start; a run that is resumed needs the file again."""
    problems = [{"problem": f"{i}+{j}=", "answer": str(i + j)} for i in range(4) for j in range(4)]
    Path("problems.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    task = {"path": "problems.jsonl", "template": "none", "answer_format": "answer"}
    flags = [f"--data.task.{key}={value}" for key, value in task.items()]
    sizes = [flag for flag in SMALL if "task.n_max" not in flag or "val_task" in flag]
    args = [*tiny("grpo"), "--data.task=MathProblems", *flags, *sizes]
    rows = rows_of(fit(*args, "--callbacks.x=my_faults.Deletes"))
    assert [float(row["rollout"]) for row in rows] == [1, 2]


def test_every_outcome_that_the_page_states_has_its_test():
    page = (ROOT / "docs" / "faults.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", page)
    assert len(named) >= 18
    for file, test in named:
        texts = [path.read_text() for path in (ROOT / "tests").rglob(file)]
        assert any(f"def {test}(" in text for text in texts), (file, test)
