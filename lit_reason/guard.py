"""Stops a run that has become non-finite: its losses, gradients or rewards."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lit_reason.batch import Experience, RolloutBatch
from lit_reason.errors import ConfigError
from lit_reason.files import save_tensors
from lit_reason.restored import CHANGED, count


class NonFiniteGuard:
    """Stops a run whose losses, gradients or rewards stay non-finite, and keeps what led there.

    Args:
        limit: Steps of one network, or rollouts with such rewards, in a row; `None` never stops.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.in_a_row: dict[str, int] = {}

    def restore(self, state: object) -> None:
        """Goes on counting where a checkpoint says.

        Raises:
            ConfigError: It says so of nothing, or no counts.
        """
        if not isinstance(state, dict):
            raise ConfigError(f"ckpt_path: its nonfinite is {state!r:.40}, not a dict; {CHANGED}")
        self.in_a_row = {network: count(state, network) for network in state}

    def observe(
        self,
        network: str,
        stats: dict[str, Tensor],
        experience: Experience,
        rows: Tensor,
        path: Path,
    ) -> None:
        """Counts one optimizer step.

        Args:
            network: "actor" or "critic".
            stats: What `Learner.update` returned.
            experience: The whole rollout.
            rows: The mini-batch.
            path: Where to save it.

        Raises:
            FloatingPointError: The limit is reached.
        """
        bad = stats.get(f"update/nonfinite_{network}")
        if bad is None:  # nothing was computed
            return
        if not (in_a_row := self._reached(network, bool(bad))):
            return
        chosen = rows.to(experience.advantages.device)
        # slices for the update keep the texts of the whole rollout
        minibatch = replace(experience[chosen], rollout=experience.rollout[chosen])
        where = _keep({"network": network, "stats": stats, "rows": rows}, minibatch, path)
        raise FloatingPointError(
            f"loss or gradient of the {network} not finite in {in_a_row} optimizer steps in a "
            f"row; the last mini-batch {where} (model.update.max_nonfinite={self.limit})"
        )

    def observe_rewards(self, bad: bool, rollout: RolloutBatch, path: Path) -> None:
        """Counts one rollout.

        Args:
            bad: A reward term gave nan or infinity to some of its responses, on some rank.
            rollout: The rollout, without rewards for them.
            path: Where to save it.

        Raises:
            FloatingPointError: The limit is reached.
        """
        if in_a_row := self._reached("rewards", bad):
            where = _keep({"network": "rewards"}, rollout, path)
            raise FloatingPointError(
                f"data.rewards: nan or infinity in {in_a_row} rollouts in a row; the last one "
                f"{where} (model.update.max_nonfinite={self.limit})"
            )

    def _reached(self, what: str, bad: bool) -> int:
        """How many in a row, 0 below the limit."""
        count = self.in_a_row[what] = self.in_a_row.get(what, 0) + 1 if bad else 0
        return count if self.limit is not None and count >= self.limit else 0


def _keep(about: dict[str, Any], batch: Any, path: Path) -> str:
    """Saves what led to the end of a run; says where it is, or why it is not."""
    try:
        save_tensors({**about, **_tensors(batch)}, path)
    except OSError as error:  # must not hide why the run ends
        return f"is lost, {path}: {error.strerror}"
    return f"is in {path}"


def _tensors(batch: Any) -> dict[str, Any]:
    """The fields of a batch as plain values that `torch.load` takes without trust."""
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    if "verdicts" in values:
        values["verdicts"] = [(str(v.status), v.answer) for v in values["verdicts"]]
        values["prompts"] = [(p.index, p.text, p.answer) for p in values["prompts"]]
    rollout = values.pop("rollout", None)
    return values if rollout is None else {**values, "rollout": _tensors(rollout)}
