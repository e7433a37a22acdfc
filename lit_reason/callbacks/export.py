"""The policy of a finished run as a `transformers` folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_reason.export import save_policy
from lit_reason.model_card import model_card
from lit_reason.run_dir import CONFIG
from lit_reason.sharding import parts, whole


class ExportPolicy(Callback):
    """Writes the policy to `RUN_DIR/policy` when the run ends, where `from_pretrained` loads it.

    It is the policy of `last.ckpt`; `scripts/export_hf.py` writes that of any other checkpoint. A
    run that was told to stop writes none, and the run that continues replaces an earlier one.
    Adapters are merged into their base, and sharded weights are gathered on rank 0.
    """

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the folder, from rank 0."""
        module: Any = pl_module
        actor = module.actor
        if parts(actor):  # of which every rank has a share
            weights = whole(actor.state_dict(), keep=trainer.is_global_zero)
            if trainer.is_global_zero:
                actor = module.backbone.actor()
                actor.load_state_dict(weights)
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        config = folder / CONFIG  # which a trainer of the user's own has not
        settings = yaml.safe_load(config.read_text(encoding="utf-8")) if config.is_file() else {}
        card = model_card(settings, module.policy_version)
        save_policy(actor, module.backbone, folder / "policy", card)
