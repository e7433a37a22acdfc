"""Resumption: a run that was stopped or killed ends as if it had not been, bit for bit."""

import csv
import re
import shutil
from pathlib import Path

import pytest
import torch

from lit_reason.cli import run
from tests.conftest import SMALL, fails, tiny

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
from lightning.pytorch import Callback

class Dies(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if module.policy_version == 3:
            raise RuntimeError("killed")
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four rollouts at once; two and two; three, killed, and again from the second."""
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
        last = folder / "halves" / "checkpoints" / "last.ckpt"
        done["halves"] = go("halves", "--trainer.max_epochs=2", f"--ckpt_path={last}")
        with pytest.raises(SystemExit):
            go("killed", "--trainer.max_epochs=2", "--callbacks.dies=callback_that_dies.Dies")
        shutil.copytree(folder / "killed", folder / "dead")
        last = folder / "killed" / "checkpoints" / "last.ckpt"
        done["killed"] = go("killed", "--trainer.max_epochs=2", f"--ckpt_path={last}")
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
@pytest.mark.parametrize("name", ["halves", "killed"])
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(runs, name):
    """Weights, both optimizers' moments, schedules, prompt cursor and rollout counter."""
    folder, done = runs
    whole, other = checkpoint(folder, "whole"), checkpoint(folder, name)
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "policy_version"):
        assert_same(whole[key], other[key], key)
    assert whole["RolloutDataModule"] == other["RolloutDataModule"]
    assert whole["policy_version"] == 4
    assert_same(done["whole"].model.actor.state_dict(), done[name].model.actor.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["halves", "killed"])
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
    assert names == {"last.ckpt", "rollout_00004.ckpt"}
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
    for name in ("whole", "halves", "killed"):
        module = done[name].model
        assert_same(module.reference.state_dict(), module.backbone.actor().state_dict())
        assert not any(p.requires_grad for p in module.reference.parameters())
        assert not [k for k in checkpoint(folder, name)["state_dict"] if "reference" in k]
        updates = [row for row in rows_of(folder / name) if row.get("loss/kl")]
        assert float(updates[-1]["loss/kl"]) > 0


def test_a_file_that_is_no_checkpoint_is_refused_in_one_line(capsys):
    Path("broken.ckpt").write_bytes(b"not a checkpoint")
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--ckpt_path=broken.ckpt", "--run_dir=run")
    assert re.search(r"ckpt_path=broken\.ckpt: not a checkpoint", line)
