"""Shared helpers: the command line in this process, and small real rollouts."""

import os
import random
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from lit_reason.__main__ import main
from lit_reason.backbones import Bundled
from lit_reason.batch import Group, Response, RolloutBatch
from lit_reason.encoding import encode_prompt
from lit_reason.module import ReasonModule
from lit_reason.tasks import PlanCount
from scripts.kill_test import SIZES

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"

# a run of two small rollouts: what most tests of the command line need
SMALL = [*SIZES, "--trainer.max_epochs=1"]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, tmp_path):
    """Runs land in a folder of the test; no logger asks for an account."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    yield
    os.environ.pop("PL_GLOBAL_SEED", None)


def config(name):
    return f"--config={CONFIGS / name}"


def tiny(name):
    """The arguments that lay one algorithm over the built-in model."""
    return [config(f"{name}.yaml"), config("scale/tiny.yaml")]


def fit(*args, run_dir="run"):
    """Runs `fit` in this process and returns its folder."""
    main(["fit", *args, f"--run_dir={run_dir}"])
    return Path(run_dir)


def fails(capsys, *args):
    """The one line that a command prints when it refuses its arguments."""
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    assert stop.value.code == 2
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


@contextmanager
def full_disk(size):
    """A limit on the size of files is, to the writer, a disk without room for them."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="session")
def backbone():
    return Bundled()


def demonstrations(backbone, groups=4, size=4, seed=0, n_max=5, **extra):
    """A rollout of demonstrated responses: real tokens, uneven lengths, right and wrong ones."""
    task, rng = PlanCount(n_max=n_max, slip=0.05), random.Random(seed)
    built = []
    for _ in range(groups):
        prompt = task[rng.randrange(len(task))]
        texts = [task.demonstration(prompt, rng) for _ in range(size)]
        eos = backbone.tokenizer.eos_token_id
        responses = [
            Response((*backbone.tokenizer(t)["input_ids"], eos), t, truncated=False) for t in texts
        ]
        verdicts = task.judge([prompt] * size, texts)
        rewards = [1.0 if v.correct else -1.0 for v in verdicts]
        ids = encode_prompt(prompt, backbone.tokenizer)
        built.append(Group(prompt, ids, responses, verdicts, rewards))
    return RolloutBatch.from_groups(built, backbone.tokenizer.pad_token_id, **extra)


def ready(module: ReasonModule) -> ReasonModule:
    """A module with its networks built and a trainer attached, outside of `fit`."""
    module.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    module.configure_model()
    return module
