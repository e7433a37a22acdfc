"""Runs every point of a sweep on this machine, one after the other, and compares them.

A point's folder holds `command.json` (written first: the folder is this runner's), `log.txt`, the
run folder `run`, and once finished `result.json`. A second call therefore continues the first.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_reason.errors import ConfigError
from lit_reason.report.child import run_to_end
from lit_reason.report.history import read_run
from lit_reason.report.sweep import Point, Sweep

# the page and the table read the files of the run; a bar would only fill the log
QUIET = ("--trainer.logger=null", "--trainer.enable_progress_bar=false")


@dataclass(frozen=True)
class Result:
    """What one run of a point came to.

    Attributes:
        point: Name of the point.
        seed: Its seed.
        status: "finished" or "failed".
        before: Held-out metric of the starting policy; `None` if the run did not measure it.
        after: Held-out metric at the end.
        rollouts: Rollouts trained on.
        minutes: Wall-clock time.
    """

    point: str
    seed: int
    status: str
    before: float | None = None
    after: float | None = None
    rollouts: int = 0
    minutes: float = 0.0


class Ablation:
    """A sweep with everything that its runs share.

    Args:
        sweep: The grid.
        out: Folder of all points.
        seeds: Seeds of every point; `None` takes those of the sweep.
        overlays: Configuration files laid over those of the sweep's command.
        extra: Further arguments of every run.
    """

    def __init__(
        self,
        sweep: Sweep,
        out: Path,
        seeds: Sequence[int] | None = None,
        overlays: Sequence[str] = (),
        extra: Sequence[str] = (),
    ) -> None:
        self.sweep, self.out = sweep, out
        self.seeds = list(sweep.seeds if seeds is None else seeds)
        self.overlays, self.extra = overlays, extra
        self.points = sweep.points()

    def runs(self) -> list[tuple[Point, int]]:
        """All runs; every point has its first seed before one gets its second."""
        return [(point, seed) for seed in self.seeds for point in self.points]

    def folder(self, point: Point, seed: int) -> Path:
        """Where a run is kept."""
        return self.out / point.name / f"seed_{seed}"

    def command(self, point: Point, seed: int) -> list[str]:
        """The whole command of a run."""
        own = [f"--run_dir={self.folder(point, seed) / 'run'}", *QUIET]
        return self.sweep.arguments(point, seed, self.overlays, [*own, *self.extra])

    def check(self) -> None:
        """Refuses a folder that holds results of other commands, before anything runs.

        Raises:
            ConfigError: The first such run.
        """
        for point, seed in self.runs():
            folder = self.folder(point, seed)
            recorded = folder / "command.json"
            if folder.is_dir() and not recorded.is_file():
                raise ConfigError(f"{folder}: exists and is no run of an ablation; choose --out")
            if (folder / "result.json").is_file() and _read(recorded) != self.command(point, seed):
                raise ConfigError(
                    f"{folder}: holds the result of another command; choose another --out, or "
                    "give the same --config and arguments"
                )

    def run(self) -> Iterator[Result]:
        """Runs what is not finished; yields the result of every run, in order."""
        self.check()
        results = self._finished()
        for point, seed in self.runs():
            key = point.name, seed
            if key not in results:
                results[key] = self._run(point, seed)
            self._write(list(results.values()))
            yield results[key]

    def _finished(self) -> dict[tuple[str, int], Result]:
        """Results of earlier calls, also those of seeds that this call was not asked for."""
        found = {}
        for point in self.points:
            for path in sorted((self.out / point.name).glob("seed_*/result.json")):
                result = Result(**_read(path))
                if _read(path.with_name("command.json")) == self.command(point, result.seed):
                    found[point.name, result.seed] = result
        return found

    def _run(self, point: Point, seed: int) -> Result:
        folder, command = self.folder(point, seed), self.command(point, seed)
        if folder.is_dir():
            shutil.rmtree(folder)  # half-finished; `check` has seen that it is this runner's
        folder.mkdir(parents=True)
        (folder / "command.json").write_text(json.dumps(command, indent=1), encoding="utf-8")
        started = time.perf_counter()
        status = run_to_end(command, folder / "log.txt")
        minutes = round((time.perf_counter() - started) / 60, 2)
        if status != 0:
            return Result(point.name, seed, "failed", minutes=minutes)
        before, after, rollouts = outcome(folder, self.sweep.metric)
        result = Result(point.name, seed, "finished", before, after, rollouts, minutes)
        (folder / "result.json").write_text(json.dumps(vars(result)), encoding="utf-8")
        return result

    def _write(self, results: list[Result]) -> None:
        """Rewrites `results.csv`: a row a run, with the values of the swept keys."""
        values = {point.name: point.values for point in self.points}
        columns = ["point", *self.sweep.grid, *list(vars(results[0]))[1:]]
        partial = self.out / "results.csv.part"
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows({**values[r.point], **vars(r)} for r in results)
        partial.replace(self.out / "results.csv")


def outcome(folder: Path, metric: str) -> tuple[float | None, float | None, int]:
    """Before, after and the number of rollouts of a finished run.

    The value before the first update is in `metrics.csv` only if the run logged one at rollout 0;
    otherwise both come from the table that `fit` prints when it ends.

    Args:
        folder: Folder of the point: `run` and `log.txt`.
        metric: Key of a held-out quantity.
    """
    run = read_run(folder / "run")
    measured = dict(zip(run.get(metric).rollouts, run.get(metric).values, strict=True))
    log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    number = r"(-?\d+\.\d+)"
    found = re.findall(rf"{re.escape(metric)}\W+?{number}\W+?{number}", log)
    printed = tuple(map(float, found[-1])) if found else (None, None)
    return measured.get(0, printed[0]), measured.get(run.rollouts, printed[1]), run.rollouts


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
