"""Tells the progress bar what the run is doing: rollout, scoring or update."""

from __future__ import annotations

from typing import Any, Literal

Stage = Literal["rollout", "scoring", "update", "validation", "demonstrations"]


def enter_stage(trainer: Any, stage: Stage) -> None:
    """Calls `on_stage(trainer, stage)` of every callback that has it."""
    for callback in trainer.callbacks:
        hook = getattr(callback, "on_stage", None)
        if hook is not None:
            hook(trainer, stage)
