"""Runs a W&B sweep file on this machine, without an account.

python scripts/run_ablation.py ablations/clip_higher.yaml --config configs/scale/tiny.yaml

From the root of the repository, runs the command that a W&B agent would issue for every point of
the grid and every seed, writes OUT/results.csv after each, and prints a table. Called again it
skips what is finished.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from lit_reason.errors import ConfigError
from lit_reason.report.ablation import Ablation, Result
from lit_reason.report.child import exit_on_signals
from lit_reason.report.sweep import read_sweep
from lit_reason.report.table import compare


def main(args: list[str] | None = None) -> None:
    given, extra = parse(sys.argv[1:] if args is None else args)
    try:
        sweep = read_sweep(given.sweep)
        out = given.out or Path("runs", "ablations", sweep.name)
        ablation = Ablation(sweep, out, given.seeds, given.config, extra)
        if given.dry_run:
            for point, seed in ablation.runs():
                print(shlex.join(ablation.command(point, seed)))
            return
        results = run(ablation)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    print(f"\n{compare(results, sweep.metric)}\n\n{out / 'results.csv'}")
    if any(result.status == "failed" for result in results):
        sys.exit(1)


def parse(args: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Splits the runner's own arguments from those after `--`, which go to every run."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Arguments after -- go to every run, for example -- --trainer.max_epochs=2",
    )
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="a file in ablations/")
    layered = "configuration laid over the sweep's; may be given several times"
    parser.add_argument("--config", action="append", default=[], metavar="OVERLAY", help=layered)
    parser.add_argument("--seeds", nargs="+", type=int, help="default: those of the sweep file")
    parser.add_argument("--out", type=Path, help="default: runs/ablations/NAME_OF_SWEEP")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    cut = args.index("--") if "--" in args else len(args)
    return parser.parse_args(args[:cut]), args[cut + 1 :]


def run(ablation: Ablation) -> list[Result]:
    """Runs all points with a line for each; an interrupt ends the current child first."""
    results: list[Result] = []
    total = len(ablation.runs())
    try:
        for result in ablation.run():
            results.append(result)
            print(f"[{len(results)}/{total}] {describe(result, ablation)}", flush=True)
    except KeyboardInterrupt:
        print("stopped; the same command continues with the run that was under way")
        sys.exit(130)
    return results


def describe(result: Result, ablation: Ablation) -> str:
    """One line on a finished run."""
    name = f"{result.point} seed {result.seed}"
    if result.status == "failed":
        point = next(p for p in ablation.points if p.name == result.point)
        return f"{name}: failed, see {ablation.folder(point, result.seed) / 'log.txt'}"
    before, after = (
        "?" if value is None else f"{value:.3f}" for value in (result.before, result.after)
    )
    return f"{name}: {before} -> {after} ({result.minutes:.1f} min)"


if __name__ == "__main__":
    exit_on_signals()
    main()
