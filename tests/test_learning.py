"""The algorithms learn: held-out accuracy rises within a minute on the shortest problems."""

import json
from statistics import fmean

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


def along(run_dir, part, rollouts=4):
    """Mean over the last rollouts of a curve along the response: first point, quarters, last."""
    lines = (run_dir / "critic.jsonl").read_text().splitlines()[-rollouts:]
    curves = zip(*(json.loads(line)[part]["all"] for line in lines), strict=True)
    curve = [fmean([x for x in point if x is not None]) for point in curves]
    return curve[0], [fmean(curve[i : i + 5]) for i in range(0, 20, 5)], curve[-1]


@pytest.mark.slow
def test_a_critic_of_last_tokens_starts_low_and_one_of_all_tokens_is_flat():
    """VC-PPO's value-initialisation bias, where the mean return is above the fresh critic's 0."""
    flags = ["--trainer.max_epochs=1", "--data.rollouts_per_epoch=12"]
    flags += ["--trainer.check_val_every_n_epoch=1", "--data.val_samples=4"]
    flags += ["--callbacks.value_warmup.rollouts=12", "--callbacks.value_warmup.save=true"]
    flags += ["--data.rewards.correctness.wrong=0"]
    flags += ["--model.advantage.alpha=null", "--model.advantage.lam_policy=0.95"]
    short = [flag for flag in SHORT if "check_val" not in flag]
    runs, explained = {}, {}
    for tokens in ("last", "all"):
        args = [*short, *flags, f"--callbacks.value_warmup.tokens={tokens}"]
        runs[tokens] = fit(config("quickstart.yaml"), *args, run_dir=tokens)
        key = "val/value/explained_variance"
        explained[tokens] = [row[key] for row in metrics(runs[tokens]) if key in row][-1]
    first, _, last = along(runs["last"], "value")
    assert first < last - 0.2
    first, _, last = along(runs["last"], "advantage")
    assert first > max(0.15, last + 0.1)
    first, quarters, last = along(runs["all"], "advantage")
    assert max(map(abs, [first, *quarters, last])) < 0.15
    assert explained["all"] > 0.3 > explained["last"]
