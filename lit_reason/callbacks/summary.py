"""The table printed when a run ends."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.table import Table

from lit_reason.errors import printable
from lit_reason.restored import numbers


class RunSummary(Callback):
    """Keeps accuracy on held-out problems before and after, and prints it with the run's files.

    The command line calls `show` when `fit` has ended.
    """

    def __init__(self) -> None:
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}
        self.validated = -1
        self.started = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """The first evaluation, which a resumed run compares with too."""
        return {"before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `state_dict`."""
        self.before = numbers(state_dict, "before")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self.started = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps the first and the last validation; the first is the sanity check's."""
        module: Any = pl_module
        self.after = dict(module.last_evaluation)
        self.validated = module.policy_version
        self.before = self.before or self.after
        if trainer.sanity_checking and module.policy_version == 0:
            # Lightning logs nothing of the sanity check, which is the evaluation before training;
            # that of a resumed run is in its file already, and a step 0 would empty the file
            for logger in trainer.loggers:
                logger.log_metrics({**self.after, "rollout": 0.0}, step=0)

    def _interval(self, name: str) -> str:
        if f"{name}_low" not in self.after:
            return ""
        return f"[{self.after[f'{name}_low']:.3f}, {self.after[f'{name}_high']:.3f}]"

    @rank_zero_only
    def show(self, trainer: Trainer) -> None:
        """Prints the table."""
        minutes = (time.perf_counter() - self.started) / 60
        table = Table(title=f"{self.validated} rollouts in {minutes:.1f} min")
        for column in ("held-out problems", "before", "after", "95 % interval"):
            table.add_column(column, justify="left" if column.startswith("held") else "right")
        for name, value in self.after.items():
            if _is_shown(name):
                # what was not measured before, as the majority of answers nobody stated
                before = self.before.get(name, math.nan)
                table.add_row(name, f"{before:.3f}", f"{value:.3f}", self._interval(name))
        # paths are shown as they are, also with what rich takes for its own
        console = Console(markup=False, emoji=False, highlight=False)
        if self.after:
            console.print(table)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        lines = [
            callback.closing(trainer) for callback in callbacks if hasattr(callback, "closing")
        ]
        for line in filter(None, lines):
            console.print(line, soft_wrap=True)
        folder = Path(trainer.default_root_dir)
        for path in sorted(p for p in folder.glob("*") if not p.name.startswith(".")):
            console.print(printable(f"  {path}"), soft_wrap=True)


def _is_shown(name: str) -> bool:
    """Of a single data set only the accuracy, and no interval on its own."""
    if "/value/" in name:
        return name.endswith(("/explained_variance", "/bias"))
    single = name.count("/") > 1
    return name.endswith("/accuracy") if single else not name.endswith(("_low", "_high"))
