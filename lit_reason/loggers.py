"""`metrics.csv` of a run."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from lit_reason.errors import ConfigError
from lit_reason.files import replacing, writing

PLACE = {"step", "epoch", "rollout"}  # where in the run a row is


class MetricsFile(CSVLogger):
    """Writes `RUN_DIR/metrics.csv`, one row a rollout, and continues it when a run is resumed.

    Rows at or after the step at which the run resumes are dropped, as they will be written again,
    but for the evaluation before training, which is not.

    Args:
        run_dir: Folder of the run.
    """

    def __init__(self, run_dir: str) -> None:
        super().__init__(run_dir, name="", version="", flush_logs_every_n_steps=1)

    @property
    def experiment(self) -> Any:
        """The writer, made when the first row comes."""
        if self._experiment is None and rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            self._experiment = _Writer(self.log_dir)
        return super().experiment

    @rank_zero_only
    def save(self) -> None:
        """Writes the rows; hyper-parameters are in `config.yaml`, not in a second file."""
        self.experiment.save()


def write_row_in_advance(trainer: Trainer) -> None:
    """Writes the row of a rollout that has trained and that Lightning has not logged yet.

    It logs once `on_train_batch_end` is over, where checkpoints are written that count the rollout.

    Args:
        trainer: Of a run, about to write a checkpoint.
    """
    progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    if progress.completed == progress.processed:
        return
    loggers = trainer.loggers
    files = [logger for logger in loggers if isinstance(logger, MetricsFile)]
    trainer.loggers = [*files]  # others have no row to take back
    try:
        trainer._logger_connector.update_train_step_metrics()
    finally:
        trainer.loggers = loggers
    for file in files:
        file.experiment.expect_again()


class _Writer(ExperimentWriter):
    """Lightning's writer, which neither deletes the rows it continues nor loses them in a crash."""

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        self.newest: dict[str, Any] | None = None  # the row written last
        self.again: dict[str, Any] | None = None  # one that comes again, maybe with more in it
        self.drops_last = False

    def expect_again(self) -> None:
        """Takes a row of the same step as another version of the last one, once."""
        self.again = self.newest

    def log_metrics(self, metrics_dict: dict[str, Any], step: int | None = None) -> None:
        """Takes a row."""
        super().log_metrics(metrics_dict, step)
        again, self.again = self.again, None
        if again is not None and again["step"] == self.metrics[-1]["step"]:
            if again == self.metrics[-1]:
                self.metrics.pop()
            else:
                self.drops_last = True

    def _check_log_dir_exists(self) -> None:
        """Nothing: Lightning would delete the file, long before the first row is there."""

    def save(self) -> None:
        """Appends the rows, or writes the file anew when they bring keys it has no column for."""
        if not self.metrics:
            return
        path = Path(self.metrics_file_path)
        first = not self.metrics_keys
        if not self._record_new_keys() and not self.drops_last:
            with writing(path), path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.metrics_keys).writerows(self.metrics)
        else:
            earlier = _read(path)
            if first:
                earlier = _rows_before(earlier, self.metrics[0])
                self.metrics_keys = sorted({*self.metrics_keys, *(earlier[0] if earlier else ())})
            if self.drops_last:
                earlier.pop()
            with replacing(path) as partial, partial.open("w", newline="") as file:
                writer = csv.DictWriter(file, self.metrics_keys)
                writer.writeheader()
                writer.writerows([*earlier, *self.metrics])
        self.newest, self.metrics, self.drops_last = self.metrics[-1], [], False


def _rows_before(earlier: list[dict[str, Any]], first: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the earlier part of a run that its next part does not write again.

    Args:
        earlier: In their order.
        first: The first row of the next part.
    """
    at, again = int(first["step"]), _is_evaluation(first)
    kept = [
        row for row in earlier if int(row["step"]) < at or (not again and _is_before_training(row))
    ]
    # where nothing was left to train, the weights are those that the last epoch evaluated
    if again and kept and _is_evaluation(kept[-1]) and int(kept[-1]["step"]) == at - 1:
        kept.pop()
    return kept


def _is_evaluation(row: Mapping[str, Any]) -> bool:
    names = {name for name, value in row.items() if value not in ("", None)} - PLACE
    return bool(names) and all(name.startswith("val/") for name in names)


def _is_before_training(row: Mapping[str, Any]) -> bool:
    return _is_evaluation(row) and row.get("rollout") == "0.0"


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]  # the last row of a killed run may be cut off
    try:
        rows = list(csv.DictReader(whole.decode().splitlines()))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path}: is not as the run wrote it ({type(error).__name__}: {error}); move it away "
            "to continue without it"
        ) from error
    return [row for row in rows if (row.get("step") or "").isdecimal()]
