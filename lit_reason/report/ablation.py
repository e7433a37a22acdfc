"""Runs every point of a sweep on this machine and collects what came of them.

A point's folder holds `command.json` (written first: the folder is this runner's), `log.txt`, the
run folder `run`, and once it has ended `result.json`. A second call therefore continues the first;
what failed is run again. Secrets of a command reach the run, and none of these files.
`results.csv` has a row a run, `curves.csv` a row a rollout.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from lit_reason.errors import ConfigError
from lit_reason.files import replacing, take_lock, write_text
from lit_reason.given import read_configs
from lit_reason.report.child import Child, end, start
from lit_reason.report.curves import Curve, curve_of, write_curves
from lit_reason.report.history import read_run
from lit_reason.report.provenance import commit, config_hash
from lit_reason.report.sweep import Point, Sweep, check_seeds
from lit_reason.secrecy import command_without_secrets, setting_without_secrets

# the page and the table read the files of the run; a bar would only fill the log
QUIET = ("--trainer.logger=null", "--trainer.enable_progress_bar=false")
LOCK = ".lock"
POLL = 0.1  # seconds between looks at the runs under way


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
        config_hash: Of the run's whole configuration without its seed and folder.
        commit: Commit of the code when the run started, with a "+" if files had been changed.
    """

    point: str
    seed: int
    status: str
    before: float | None = None
    after: float | None = None
    rollouts: int = 0
    minutes: float = 0.0
    config_hash: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Started:
    """A run under way."""

    point: Point
    seed: int
    since: float
    commit: str


class Ablation:
    """A sweep with everything that its runs share.

    Args:
        sweep: The grid.
        out: Folder of all points.
        seeds: Seeds of every point; `None` takes those of the sweep.
        overlays: Configuration files laid over those of the sweep's command.
        extra: Further arguments of every run.

    Raises:
        ConfigError: A seed stands twice, or is none.
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
        check_seeds("--seeds", self.seeds)
        self.overlays, self.extra = overlays, extra
        self.points = sweep.points()

    def runs(self) -> list[tuple[Point, int]]:
        """All runs; every point has its first seed before one gets its second."""
        return [(point, seed) for seed in self.seeds for point in self.points]

    def folder(self, point: Point, seed: int) -> Path:
        """Where a run is kept."""
        return self.out / point.name / f"seed_{seed}"

    def command(self, point: Point, seed: int) -> list[str]:
        """The whole command of a run, with its secrets."""
        own = [f"--run_dir={self.folder(point, seed) / 'run'}", *QUIET]
        return self.sweep.arguments(point, seed, self.overlays, [*own, *self.extra])

    def check_configs(self) -> None:
        """Reads every configuration file of the commands, before each run would fail for one.

        Raises:
            ConfigError: The first that is missing or no configuration.
        """
        for point in self.points:
            read_configs(self.command(point, self.seeds[0]))

    def check(self) -> None:
        """Refuses folders that are not those of runs, before anything is run in their place.

        Raises:
            ConfigError: The first such folder.
        """
        for point, seed in self.runs():
            folder = self.folder(point, seed)
            if folder.is_dir() and not (folder / "command.json").is_file():
                raise ConfigError(f"{folder}: exists and is no run of an ablation; choose --out")

    def recorded(self) -> dict[tuple[str, int], Result]:
        """Every result in `out`, failures too, also of seeds that this call was not asked for.

        Every seed has all of its points before the next one.

        Raises:
            ConfigError: A run of another command has finished there.
        """
        found = {}
        for point in self.points:
            for path in sorted((self.out / point.name).glob("seed_*/result.json")):
                result, ours = read_result(path), path.with_name("command.json").is_file()
                if not ours or result is None or path.parent != self.folder(point, result.seed):
                    continue
                if setting(_read_command(path.parent)) == setting(self.command(point, result.seed)):
                    found[point.name, result.seed] = result
                elif result.status == "finished":
                    raise ConfigError(
                        f"{path.parent}: holds the result of another command; choose another "
                        "--out, or give the same --config and arguments"
                    )
        return dict(sorted(found.items(), key=lambda item: item[0][1]))

    def collect(self) -> list[Result]:
        """Every result in `out`; writes `results.csv` and `curves.csv` of them.

        Raises:
            ConfigError: There is none, or one is that of another command.
        """
        results = self.recorded()
        if not results:
            raise ConfigError(
                f"--out {self.out}: no run of {self.sweep.name} has finished there; give the "
                "--out of its runs, or wait for the first of them"
            )
        with hold(self.out / LOCK) as free:
            if free:  # otherwise a runner is at work, which writes both after each run
                self._write(results)
        return list(results.values())

    def run(self, jobs: int = 1) -> Iterator[Result]:
        """Runs what is not finished; yields the result of every run, earlier ones first.

        Args:
            jobs: Runs at a time.

        Raises:
            ConfigError: `out` holds something else, or another runner is at work on it.
        """
        with hold(self.out / LOCK) as free:
            if not free:
                raise ConfigError(
                    f"--out {self.out}: another runner is at work there; wait for it, or choose "
                    "another --out"
                )
            self.check()
            yield from self._run(jobs)

    def _run(self, jobs: int) -> Iterator[Result]:
        asked = [(point.name, seed) for point, seed in self.runs()]
        results = {
            key: result
            for key, result in self.recorded().items()
            if result.status == "finished" or key not in asked
        }
        waiting = deque((p, seed) for p, seed in self.runs() if (p.name, seed) not in results)
        if results:
            self._write(results)
        yield from (results[key] for key in asked if key in results)
        running: dict[Child, Started] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    started = Started(*waiting.popleft(), time.perf_counter(), commit())
                    running[self._start(started.point, started.seed)] = started
                for child in [c for c in running if c.poll() is not None]:
                    result = self._result(running.pop(child), child.returncode)
                    results[result.point, result.seed] = result
                    self._write(results)
                    yield result
                time.sleep(POLL)
        finally:
            end(list(running))

    def _start(self, point: Point, seed: int) -> Child:
        folder, command = self.folder(point, seed), self.command(point, seed)
        if folder.is_dir():
            shutil.rmtree(folder)  # half-finished; `check` has seen that it is this runner's
        folder.mkdir(parents=True)
        told = command_without_secrets(command)
        write_text(folder / "command.json", json.dumps(told, indent=1))
        return start(command, folder / "log.txt")

    def _result(self, run: Started, status: int) -> Result:
        folder = self.folder(run.point, run.seed)
        minutes = round((time.perf_counter() - run.since) / 60, 2)
        if status != 0:
            result = Result(run.point.name, run.seed, "failed", minutes=minutes, commit=run.commit)
        else:
            before, after, rollouts = outcome(folder, self.sweep.metric)
            result = Result(
                run.point.name, run.seed, "finished", before, after, rollouts, minutes,
                config_hash(folder / "run" / "config.yaml"), run.commit,
            )  # fmt: skip
        write_text(folder / "result.json", json.dumps(vars(result)))
        return result

    def curves(self, results: Sequence[Result]) -> list[Curve]:
        """The curves of finished runs."""
        points = {point.name: point for point in self.points}
        folders = [(r, self.folder(points[r.point], r.seed) / "run") for r in results]
        return [
            curve_of(read_run(folder), self.sweep.metric, r.point, r.seed, r.before, r.after)
            for r, folder in folders
            if r.status == "finished"
        ]

    def _write(self, results: dict[tuple[str, int], Result]) -> None:
        """Rewrites `results.csv`, with the values of the swept keys, and `curves.csv`."""
        places = {point.name: i for i, point in enumerate(self.points)}
        rows = sorted(results.values(), key=lambda r: (r.seed, places[r.point]))
        values = {
            point.name: {k: setting_without_secrets(k, str(v)) for k, v in point.values.items()}
            for point in self.points
        }
        columns = ["point", *self.sweep.grid, *(f.name for f in fields(Result)[1:])]
        path = self.out / "results.csv"
        with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows({**values[r.point], **vars(r)} for r in rows)
        write_curves(self.curves(rows), self.sweep.metric, self.out / "curves.csv")


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


def setting(command: Sequence[str]) -> list[str]:
    """What a command asks for, wherever its folder and the interpreter are, without secrets.

    Example:
        >>> setting(["/usr/bin/python3", "-m", "lit_reason", "--run_dir=a/run", "--model.x=1"])
        ['-m', 'lit_reason', '--model.x=1']
    """
    own = [word for word in command[1:] if not word.startswith("--run_dir=")]
    return command_without_secrets(own)


def read_result(path: Path) -> Result | None:
    """What a run left; `None` if the file is damaged, as that of a run that was cut off.

    Args:
        path: A `result.json`, also of an earlier release, which calls the hash `config`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content.setdefault("config_hash", content.pop("config", ""))
        return Result(**{f.name: content[f.name] for f in fields(Result) if f.name in content})
    except (AttributeError, TypeError, ValueError):
        return None


def _read_command(folder: Path) -> list[str]:
    path = folder / "command.json"
    try:
        return [str(word) for word in json.loads(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is damaged; remove {folder} to run it again") from error


@contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Holds a lock file for the block; says whether it could, as no other process does.

    The system lets go of it however this process ends; the file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        yield take_lock(file.fileno())
