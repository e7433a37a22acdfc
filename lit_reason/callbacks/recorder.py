"""Keeps what a policy generated, to train critics on later."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_reason.batch import RolloutBatch
from lit_reason.errors import ConfigError
from lit_reason.fingerprint import fingerprint
from lit_reason.jsonl import append_rows, drop_from
from lit_reason.rollout import Sampling


class RolloutRecorder(Callback):
    """Writes every response of a run to `RUN_DIR/rollouts.jsonl`, one group of them a line.

    Token ids beside texts, how they were drawn, and the fingerprint of the policy: the engine
    `Recorded` gives them to another run as if its policy had just sampled them. With several ranks
    each writes its own `rollouts_RANK.jsonl`.
    """

    def path(self, trainer: Trainer) -> Path:
        """The file of this rank."""
        suffix = f"_{trainer.global_rank}" if trainer.world_size > 1 else ""
        return Path(trainer.default_root_dir, f"rollouts{suffix}.jsonl")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses to record what the policy of the run did not generate."""
        engine = getattr(getattr(trainer, "datamodule", None), "engine", None)
        if stage == "fit" and not getattr(engine, "on_policy", True):
            raise ConfigError(
                f"callbacks: RolloutRecorder would give responses of data.engine="
                f"{type(engine).__name__} out as this policy's; leave it out, and copy the file"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drops rollouts that a resumed run will generate again."""
        module: Any = pl_module
        drop_from(self.path(trainer), module.policy_version)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        """Appends the rollout, before the update changes the policy."""
        module: Any = pl_module
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        groups = recorded_groups(batch, fingerprint(module.actor), data.sampling)
        append_rows(self.path(trainer), groups)


def recorded_groups(batch: RolloutBatch, policy: str, sampling: Sampling) -> list[dict[str, Any]]:
    """The groups of a rollout as plain values.

    Args:
        batch: The rollout.
        policy: Fingerprint of the policy that generated it.
        sampling: How it was drawn.
    """
    groups: dict[int, dict[str, Any]] = {}
    for i, number in enumerate(batch.group_ids.tolist()):
        group = groups.setdefault(
            number,
            {
                "rollout": batch.policy_version,
                "policy": policy,
                **asdict(sampling),
                "prompt_ids": batch.prompt_ids[i][batch.prompt_mask[i]].tolist(),
                "responses": [],
            },
        )
        ids = batch.response_ids[i][batch.response_mask[i]].tolist()
        cut = bool(batch.truncated[i])
        row = {"ids": ids, "text": batch.texts[i], "truncated": cut}
        sampled = batch.policy_mask[i][batch.response_mask[i]]
        if not bool(sampled.all()):
            row["mask"] = sampled.tolist()
        group["responses"].append(row)
    return list(groups.values())
