"""The algorithms learn: held-out accuracy rises within a minute on the shortest problems."""

import pytest

from tests.conftest import config, fit
from tests.test_configs import metrics

SHORT = [
    "--data.task.n_max=5",
    "--data.val_task.n_max=5",
    "--data.val_task.limit=32",
    "--data.sampling.max_new_tokens=40",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.check_val_every_n_epoch=100",
]


def held_out_accuracy(run_dir):
    values = [row["val/accuracy"] for row in metrics(run_dir) if "val/accuracy" in row]
    return values[0], values[-1]


@pytest.mark.slow
def test_vapo_learns_the_plan_from_the_outcome():
    warmup = ["--callbacks.value_warmup.rollouts=4", "--trainer.max_epochs=2"]
    warmup += ["--data.rollouts_per_epoch=8"]
    run_dir = fit(config("quickstart.yaml"), *SHORT, *warmup)
    before, after = held_out_accuracy(run_dir)
    assert before < 0.5
    assert after > 0.7
    rows = [row for row in metrics(run_dir) if "reward" in row]
    assert max(row["value/explained_variance"] for row in rows[:6]) > 0.1


@pytest.mark.slow
def test_dapo_learns_the_plan_too():
    args = [config("dapo.yaml"), config("scale/tiny.yaml"), *SHORT, "--trainer.max_epochs=1"]
    before, after = held_out_accuracy(fit(*args))
    assert before < 0.5
    assert after > 0.65
