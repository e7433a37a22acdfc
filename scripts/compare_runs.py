"""Compares runs as an ablation's table does: intervals over seeds, curves with bands.

python scripts/compare_runs.py runs/000 runs/001
python scripts/compare_runs.py vapo=runs/a dapo=runs/b --metric val/accuracy

Each argument is one row: a run folder, an offline run of W&B (wandb/offline-run-TIME-ID), a folder
that holds several of them, which count as seeds of the row, or a row of an ablation's curves,
ablations/results/NAME/curves.csv#ROW. NAME= names the row; without it, the folder does, or
the parents that tell it from the others. The first row is the one that the others are compared
with. Writes OUT/table.md, OUT/comparison.png, OUT/comparison.html, OUT/results.json and
OUT/curves.csv.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from lit_reason.errors import ConfigError, in_one_line
from lit_reason.report.comparison import write_comparison
from lit_reason.report.curves import Curve, curve_of, read_curves, write_curves
from lit_reason.report.history import Run, read_run
from lit_reason.report.table import markdown, tabulate
from lit_reason.report.wandb_files import offline_file, read_offline


@dataclass(frozen=True)
class Source:
    """One argument: where a row comes from, and the name that was given to it, if one was."""

    name: str | None
    path: Path
    row: str | None

    @property
    def parts(self) -> tuple[str, ...]:
        """What it may be named after: the last part, with those before it where need be."""
        parts = Path(os.path.abspath(self.path)).parts
        return parts if self.row is None else (*parts, self.row)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", metavar="[NAME=]FOLDER")
    parser.add_argument("--metric", default="val/accuracy", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs", "comparison"))
    given = parser.parse_args(args)
    with in_one_line():
        sources = [source_of(row) for row in given.rows]
        rows = zip(sources, labels(sources), strict=True)
        curves = [c for source, label in rows for c in curves_of(source, label, given.metric)]
        table = tabulate(curves, given.metric)
        files = write_comparison(table, curves, given.out)
        files.append(given.out / "curves.csv")
        write_curves(curves, given.metric, files[-1])
    print(f"{markdown(table)}\n")
    print("\n".join(map(str, files)))


def source_of(text: str) -> Source:
    """Splits an argument; names and paths may hold "=" and "#" themselves."""
    place = located(text)
    if place:
        return Source(None, *place)
    if "=" not in text:
        return Source(None, *unlocated(text))
    name, rest = next((cut for cut in cuts(text, "=") if located(cut[1])), text.split("=", 1))
    if not name:
        raise ConfigError(f"{text}: the name before = is empty; write NAME=FOLDER, or FOLDER alone")
    return Source(name, *(located(rest) or unlocated(rest)))


def cuts(text: str, mark: str) -> Iterator[tuple[str, str]]:
    """What stands before and after each place of a mark."""
    for i, letter in enumerate(text):
        if letter == mark:
            yield text[:i], text[i + 1 :]


def located(text: str) -> tuple[Path, str | None] | None:
    """The path, and the row of its curves, that a text names; `None` if there is none."""
    if text and Path(text).exists():
        return Path(text), None
    found = (cut for cut in cuts(text, "#") if Path(cut[0]).is_file())
    return next(((Path(file), row) for file, row in found), None)


def unlocated(text: str) -> tuple[Path, str | None]:
    """The same of a text that names nothing: reading it says so."""
    if not text:
        raise ConfigError("NAME=FOLDER: the folder is empty; write . for this one")
    file, cut, row = text.partition("#")
    return Path(file), row if cut else None


def labels(sources: Sequence[Source]) -> list[str]:
    """The name of every row.

    Raises:
        ConfigError: Two rows have the same one.
    """
    derived = iter(distinct([source.parts for source in sources if source.name is None]))
    found = [next(derived) if source.name is None else source.name for source in sources]
    for label in found:
        if found.count(label) > 1:
            raise ConfigError(
                f"{label}: names {found.count(label)} rows; give each a name of its own, "
                "as NAME=FOLDER"
            )
    return found


def distinct(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """The last part of each path, or the parts that tell it from others that end alike.

    Example:
        >>> distinct([("x", "ppo", "run"), ("x", "vapo", "run"), ("x", "dapo")])
        ['ppo', 'vapo', 'dapo']
    """
    names = []
    for path in paths:
        alike = {other for other in paths if other[-1] == path[-1]}
        length = next(n for n in count(1) if len({p[-n:] for p in alike}) == len(alike))
        places = [i for i in range(length, 0, -1) if len({part(p, i) for p in alike}) > 1]
        names.append("/".join(filter(None, (part(path, i) for i in places))) or path[-1])
    return names


def part(path: tuple[str, ...], place: int) -> str:
    """A part of a path, counted from its end; "" before its beginning."""
    return path[-place] if place <= len(path) else ""


def curves_of(source: Source, label: str, metric: str) -> list[Curve]:
    """The curves of one row; its runs count as seeds 0, 1, ... in the order of their names."""
    if source.row is not None:
        return rename(read_curves(source.path), source.row, label, source.path, metric)
    if source.path.is_file():
        raise ConfigError(f"{source.path}: is a file; give a folder, or FILE#ROW")
    runs = read_all(source.path)
    missing = [run.name for run in runs if not run.get(metric)]
    if missing:
        raise ConfigError(f"--metric {metric}: {source.path}: {missing[0]} has not measured it")
    return [curve_of(run, metric, label, seed) for seed, run in enumerate(runs)]


def rename(curves: list[Curve], wanted: str, label: str, file: Path, metric: str) -> list[Curve]:
    """Those of one row, under another name."""
    found = [replace(curve, point=label) for curve in curves if curve.point == wanted]
    if not found:
        rows = ", ".join(dict.fromkeys(curve.point for curve in curves))
        raise ConfigError(f"{file}#{wanted}: no such row; it has {rows}")
    if not all(curve.get(metric) for curve in found):
        raise ConfigError(f"--metric {metric}: {file}#{wanted} does not hold it")
    return found


def read_all(folder: Path) -> list[Run]:
    """The run that a folder is, or all that it holds."""
    if (folder / "metrics.csv").is_file():
        return [read_run(folder)]
    if offline_file(folder):
        return [read_offline(folder)]
    found = sorted(path.parent for path in folder.rglob("metrics.csv"))
    logged = sorted({path.parent for path in folder.rglob("run-*.wandb")})
    # a run whose folder W&B logged into is there twice
    offline = [path for path in logged if not set(found) & set(path.parents)]
    if not found and not offline:
        raise ConfigError(f"{folder}: holds neither a run nor an offline run of W&B")
    return [*map(read_run, found), *map(read_offline, offline)]


if __name__ == "__main__":
    main()
