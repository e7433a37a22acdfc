"""What a run is said to need, beside what it takes."""

from dataclasses import replace

import pytest
import torch
from lightning.pytorch import Callback
from torch.profiler import ProfilerActivity, profile

from lit_reason.backbones import Scratch
from lit_reason.cli import run as command
from lit_reason.dry_run import load_of, moments
from lit_reason.estimate import shape_of, stages
from lit_reason.learner import Update
from lit_reason.rollout import HFEngine, Sampling
from lit_reason.tasks import PlanCount
from tests.conftest import SMALL, fails, tiny
from tests.runs import data_of, module_of, run

FACTOR = 1.4  # as stated in docs/scale.md


class Peaks(Callback):
    """The most bytes that the tensors made in each stage took at once."""

    def __init__(self):
        self.found, self.stage, self.profile = {}, None, None

    def on_stage(self, trainer, stage):
        self.on_train_batch_end()
        self.stage, self.profile = (
            stage,
            profile(activities=[ProfilerActivity.CPU], profile_memory=True),
        )
        self.profile.start()

    def on_train_batch_end(self, *_):
        if self.profile is None:
            return
        self.profile.stop()
        held = most = 0
        for event in self.profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                most = max(most, held)
        self.found[self.stage], self.profile = most, None


ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
HALVED = {"rows": 16, "generated": 32}
CASES = {
    "a critic": {},
    "checkpointing in bfloat16": {"checkpointing": True, "precision": "bf16-mixed", **HALVED},
    "a large vocabulary": {"vocabulary": 8000, "rows": 4, "critic": False},
    "long responses": {"tokens": 200, "rows": 4, "generated": 16},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_near_what_each_stage_takes(case):
    given = {"rows": 32, "generated": 64, "tokens": 64, "vocabulary": 0, **CASES[case]}
    more = "".join(map(chr, range(0x4E00, 0x4E00 + given["vocabulary"])))
    backbone = Scratch(ALPHABET + more, context_length=1024)
    backbone.gradient_checkpointing = given.get("checkpointing", False)
    backbone.eos_ids = [10**6]  # no response ends before its budget
    rows = given["rows"]
    update = Update(1, 2 * rows, rows)
    module = module_of(backbone, critic=given.get("critic", True), update=update)
    data = data_of(
        task=PlanCount(n_max=14),  # prompts of several lengths, and so padding
        groups_per_rollout=4,
        group_size=max(2 * rows, given["generated"]) // 4,
        engine=HFEngine(given["generated"]),
        sampling=Sampling(max_new_tokens=given["tokens"]),
    )
    peaks = Peaks()
    trainer = run(module, data, peaks, precision=given.get("precision", "32-true"))
    shape = shape_of(backbone.config)
    load = load_of(module, data, trainer, shape)
    assert shape.weights == sum(p.numel() for p in module.actor.parameters())
    if module.critic is not None:
        assert load.networks["critic"] == sum(p.numel() for p in module.critic.parameters())
    state = trainer.optimizers[0].state.values()
    kept = sum(v.numel() for s in state for v in s.values() if v.ndim)
    assert kept == load.moments[module.trained[0]] * load.trained[module.trained[0]]
    for stage, parts in stages(shape, load).items():
        own = sum(v for name, v in parts.items() if name not in ("weights", "optimizer states"))
        assert own / FACTOR < peaks.found[stage] < own * FACTOR, stage


def loads(name, *flags):
    """The command line's parts after one rollout, their shape and their load."""
    one = ["--trainer.fast_dev_run=1", "--run_dir=run"]
    cli = command(["fit", *tiny(name), *SMALL, *flags, *one])
    shape = shape_of(cli.model.backbone.config)
    return cli, shape, load_of(cli.model, cli.datamodule, cli.trainer, shape)


@pytest.mark.parametrize("targets", ["all-linear", "[q_proj,up_proj]"])
def test_adapters_are_counted_as_they_are_made(targets):
    pytest.importorskip("peft")
    flags = ["--model.backbone=LoRA", "--model.backbone.base=Bundled", "--model.backbone.r=4"]
    flags += [f"--model.backbone.target_modules={targets}"]
    cli, shape, load = loads("ppo", *flags)
    for network in ("actor", "critic"):
        trained = [p for p in getattr(cli.model, network).parameters() if p.requires_grad]
        assert load.trained[network] == sum(p.numel() for p in trained)
    assert load.networks["base"] == shape.weights
    assert load.lent == 0


def test_a_budget_of_tokens_bounds_the_micro_batch():
    budget = ["--model.update.micro_batch_tokens=100", "--model.update.micro_batch_size=8"]
    _, _, load = loads("grpo", *budget)
    assert load.rows == 100 // load.width == 2
    assert load.networks.keys() == {"actor", "reference"}
    assert load.passes == {"actor": 1}


def test_shards_share_what_is_held_and_gather_what_runs():
    _, shape, load = loads("grpo")
    half, lent = replace(load, shards=2), replace(load, lent=shape.weights, networks={"actor": 1})
    whole, split, offloaded = (stages(shape, x) for x in (load, half, lent))
    for part in ("weights", "optimizer states", "gradients"):
        assert split["update"][part] == whole["update"][part] / 2
    assert split["rollout"]["gathered weights"] == 4 * shape.weights
    assert split["update"]["gathered weights"] < 4 * shape.weights
    assert "gathered weights" not in whole["rollout"]
    assert offloaded["scoring"]["reference, lent"] == 4 * shape.weights
    assert "reference, lent" not in offloaded["update"]


def test_what_optimizers_keep():
    def kept(optimizer):
        return moments(module_of(actor_optimizer=optimizer), "actor")

    assert kept(lambda p: torch.optim.AdamW(p, lr=1.0)) == 2
    assert kept(lambda p: torch.optim.SGD(p, lr=1.0)) == 0
    assert kept(lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)) == 1


# --- the command ----------------------------------------------------------------------------------


def dry(*flags):
    command(["fit", *tiny("vapo"), *SMALL, "--callbacks.value_warmup=null", *flags])


def test_a_dry_run_prints_and_leaves_nothing(capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        dry("--dry_run=true")
    assert stop.value.code == 0
    said = capsys.readouterr().out
    for part in ("weights", "optimizer states", "gradients", "activations", "key-value cache"):
        assert part in said
    assert "measured" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_times_rollouts_and_leaves_nothing(capsys, tmp_path):
    dry("--dry_run=1", "--run_dir=run")
    said = capsys.readouterr().out
    assert "seconds, at least" in said
    assert "measured, 1 rollouts of the joint phase" in said
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_something_else_is_refused(capsys):
    line = fails(capsys, "validate", *tiny("vapo"), *SMALL, "--dry_run=true")
    assert "dry_run=True: only `fit`" in line
    for number in (-1, 0):
        line = fails(capsys, "fit", *tiny("vapo"), *SMALL, f"--dry_run={number}")
        assert f"dry_run={number}: must be true, or how many rollouts to time" in line
