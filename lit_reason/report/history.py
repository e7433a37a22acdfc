"""The files of a finished or running run as plain values."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_reason.errors import ConfigError

HELD_OUT = "val/"


@dataclass(frozen=True)
class Series:
    """One logged quantity over the run.

    Attributes:
        rollouts: Rollouts trained on when it was measured, ascending as logged.
        values: Finite values, one for each of `rollouts`.
    """

    rollouts: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.values)


@dataclass(frozen=True)
class Run:
    """What a run logged.

    Attributes:
        name: Name of the run's folder.
        series: Every quantity that has a finite value somewhere.
        samples: Rows of `samples.jsonl`, in the order in which they were written.
    """

    name: str
    series: dict[str, Series]
    samples: list[dict[str, Any]]

    def get(self, key: str) -> Series:
        """The series of a key; an empty one if the run did not log it."""
        return self.series.get(key, Series())

    @property
    def rollouts(self) -> int:
        """Rollouts trained on so far."""
        return int(max(self.get("rollout").values, default=0))

    @property
    def warmup_end(self) -> float | None:
        """The last rollout that trained the critic alone; `None` without such a phase."""
        phase = self.get("joint_phase")
        warm = [x for x, y in zip(phase.rollouts, phase.values, strict=True) if y == 0]
        return max(warm, default=None)


def read_run(folder: Path) -> Run:
    """Reads a run folder.

    Raises:
        ConfigError: It holds no `metrics.csv`, or one without a row, or no table.
    """
    path = folder / "metrics.csv"
    if not path.is_file():
        raise ConfigError(f"{folder}: not a run folder, it holds no metrics.csv")
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            rows = list(csv.DictReader(file))
    except csv.Error as error:
        raise ConfigError(f"{path}: is not as a run writes it ({error}); repair it") from error
    series = collect(rows)
    if not series:
        raise ConfigError(f"{path}: holds no metrics yet; wait for the first rollout to finish")
    return Run(folder.resolve().name, series, read_samples(folder / "samples.jsonl"))


def collect(rows: list[dict[str, Any]]) -> dict[str, Series]:
    """Turns rows into one series a column.

    A row's place is its `rollout`. Held-out rows lack it and take that of the training row before
    them; those before any training row are measured on the starting policy, at rollout 0.

    Args:
        rows: As `csv.DictReader` gives them; cells may be missing, empty or not finite.

    Example:
        >>> rows = [{"val/accuracy": "0.2"}, {"rollout": "1.0"}, {"val/accuracy": "0.5"}]
        >>> collect(rows)["val/accuracy"]
        Series(rollouts=[0.0, 1.0], values=[0.2, 0.5])
    """
    series: dict[str, Series] = {}
    place = 0.0
    for row in rows:
        numbers = {k: x for k, x in ((k, _number(v)) for k, v in row.items()) if x is not None}
        place = numbers.get("rollout", place)
        for key, value in numbers.items():
            entry = series.setdefault(key, Series())
            entry.rollouts.append(place)
            entry.values.append(value)
    return series


def _number(cell: Any) -> float | None:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def read_samples(path: Path) -> list[dict[str, Any]]:
    """Reads `samples.jsonl`; no file is no samples, and a line that is no JSON is left out."""
    if not path.is_file():
        return []
    samples = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            sample = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(sample, dict):
            samples.append(sample)
    return samples
