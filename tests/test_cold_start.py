"""The supervised cold start: how it ends, and how it goes on from its checkpoints."""

import re
from pathlib import Path

from tests.conftest import config, fails

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
