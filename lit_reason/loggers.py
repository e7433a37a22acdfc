"""`metrics.csv` of a run."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_only


class MetricsFile(CSVLogger):
    """Writes `RUN_DIR/metrics.csv`, one row a rollout, and continues it when a run is resumed.

    Rows at or after the step at which the run resumes are dropped: they will be written again.

    Args:
        run_dir: Folder of the run.
    """

    def __init__(self, run_dir: str) -> None:
        super().__init__(run_dir, name="", version="", flush_logs_every_n_steps=1)
        self._earlier = _read(Path(run_dir, "metrics.csv"))

    @property
    def experiment(self) -> Any:
        """Lightning's writer, without its warning about the file that this class continues."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Experiment logs directory")
            return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Adds a row."""
        if self._earlier and step is not None:
            kept = [row for row in self._earlier if int(row["step"]) < step]
            self.experiment.metrics = [*kept, *self.experiment.metrics]
            self._earlier = []
        super().log_metrics(metrics, step)

    @rank_zero_only
    def save(self) -> None:
        """Writes the rows; hyper-parameters are in `config.yaml`, not in a second file."""
        # Lightning's writer would add an empty hparams.yaml; its base class writes metrics only
        super(type(self.experiment), self.experiment).save()


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        # the last row of a run that was killed may be cut off
        return [row for row in csv.DictReader(file) if (row.get("step") or "").isdigit()]
