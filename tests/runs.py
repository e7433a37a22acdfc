"""Small runs of real networks, built in Python rather than from a configuration."""

from functools import lru_cache

import torch
from lightning.pytorch import Callback, Trainer

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.backbones import Bundled
from lit_reason.data import RolloutDataModule
from lit_reason.learner import Update
from lit_reason.module import ReasonModule
from lit_reason.objectives import ClippedSurrogate, ValueLoss
from lit_reason.rewards import Correctness
from lit_reason.rollout import Sampling
from lit_reason.tasks import PlanCount


@lru_cache
def shipped():
    """The shipped policy, loaded once."""
    return Bundled()


def module_of(policy=None, critic=True, **kwargs):
    estimator, value = (GAE(), ValueLoss()) if critic else (GroupRelative(), None)
    kwargs.setdefault("advantage", estimator)
    kwargs.setdefault("update", Update(1, 8, 8))
    kwargs.setdefault("actor_optimizer", lambda p: torch.optim.AdamW(p, lr=1e-3))
    backbone = policy or shipped()
    return ReasonModule(backbone, policy=ClippedSurrogate(), value=value, **kwargs)


def data_of(**kwargs):
    settings = {
        "task": PlanCount(n_max=3),
        "val_task": PlanCount("held_out", n_max=3, limit=4),
        "rewards": {"correctness": Correctness()},
        "groups_per_rollout": 2,
        "group_size": 4,
        "rollouts_per_epoch": 2,
        "sampling": Sampling(max_new_tokens=24),
        "val_samples": 2,
        "seed": 0,
    }
    return RolloutDataModule(**{**settings, **kwargs})


def run(module, data, *callbacks, ckpt_path=None, **kwargs):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "max_epochs": 1,
        "default_root_dir": "run",
    }
    trainer = Trainer(
        accelerator="cpu",
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{**quiet, **kwargs},
    )
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return trainer


def few_problems(**kwargs):
    """`data_of` so few problems that three rollouts hold every one of them."""
    few = {"task": PlanCount(n_max=3, limit=6), "rollouts_per_epoch": 3}
    return data_of(**{**few, **kwargs})


class Keep(Callback):
    """Keeps every rollout, experience and logged value."""

    def __init__(self):
        self.rollouts, self.experiences, self.rows = [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rollouts.append(batch)
        self.experiences.append(outputs["experience"])
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items()})


def weights(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])
