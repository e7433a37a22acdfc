"""Compares runs as an ablation's table does: intervals over seeds, curves with bands.

python scripts/compare_runs.py runs/000 runs/001
python scripts/compare_runs.py vapo=runs/a dapo=runs/b --metric val/accuracy

Each argument is one row: a run folder, an offline run of W&B (wandb/offline-run-TIME-ID), a folder
that holds several of them, which count as seeds of the row, or a row of an ablation's curves,
ablations/results/NAME/curves.csv#ROW. NAME= names the row. The first row is the one that the others
are compared with. Writes OUT/table.md, OUT/comparison.png,
OUT/comparison.html, OUT/results.json and OUT/curves.csv.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from lit_reason.errors import ConfigError, in_one_line
from lit_reason.report.comparison import write_comparison
from lit_reason.report.curves import Curve, curve_of, read_curves, write_curves
from lit_reason.report.history import Run, read_run
from lit_reason.report.table import markdown, tabulate
from lit_reason.report.wandb_files import offline_file, read_offline


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="+", metavar="[NAME=]FOLDER")
    parser.add_argument("--metric", default="val/accuracy", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs", "comparison"))
    given = parser.parse_args(args)
    with in_one_line():
        curves = [curve for row in given.rows for curve in curves_of(row, given.metric)]
        table = tabulate(curves, given.metric)
        files = write_comparison(table, curves, given.out)
        write_curves(curves, given.metric, given.out / "curves.csv")
    print(f"{markdown(table)}\n")
    print("\n".join(map(str, files)))


def curves_of(row: str, metric: str) -> list[Curve]:
    """The curves of one argument; its runs count as seeds 0, 1, ... in the order of their names."""
    name, cut, path = row.partition("=")
    file, cut_row, wanted = (path if cut else row).partition("#")
    if cut_row:
        return rename(read_curves(Path(file)), wanted, name if cut else wanted, file)
    folder = Path(file)
    runs = read_all(folder)
    missing = [run.name for run in runs if not run.get(metric)]
    if missing:
        raise ConfigError(f"--metric {metric}: {folder}: {missing[0]} has not measured it")
    label = name if cut else folder.name
    return [curve_of(run, metric, label, seed) for seed, run in enumerate(runs)]


def rename(curves: list[Curve], wanted: str, label: str, file: str) -> list[Curve]:
    """Those of one row, under another name."""
    found = [replace(curve, point=label) for curve in curves if curve.point == wanted]
    if not found:
        rows = ", ".join(dict.fromkeys(curve.point for curve in curves))
        raise ConfigError(f"{file}#{wanted}: no such row; it has {rows}")
    return found


def read_all(folder: Path) -> list[Run]:
    """The run that a folder is, or all that it holds."""
    if (folder / "metrics.csv").is_file():
        return [read_run(folder)]
    if offline_file(folder):
        return [read_offline(folder)]
    found = sorted(path.parent for path in folder.rglob("metrics.csv"))
    offline = sorted({path.parent for path in folder.rglob("run-*.wandb")})
    if not found and not offline:
        raise ConfigError(f"{folder}: holds neither a run nor an offline run of W&B")
    return [*map(read_run, found), *map(read_offline, offline)]


if __name__ == "__main__":
    main()
