"""Runs a W&B sweep file on this machine, without an account.

python scripts/run_ablation.py ablations/clip_higher.yaml --config configs/scale/tiny.yaml

From the root of the repository, runs the command that a W&B agent would issue for every point of
the grid and every seed. Writes OUT/results.csv and OUT/curves.csv after each run; at the end
OUT/table.md, OUT/comparison.png, OUT/comparison.html and OUT/results.json. Called again it skips
what is finished, and runs again what failed. The files hold all that is finished in OUT, also seeds
of earlier calls.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn

from lit_reason.errors import ConfigError, in_one_line
from lit_reason.report.ablation import Ablation, Result
from lit_reason.report.child import exit_on_signals, saying_how_to_continue
from lit_reason.report.comparison import write_comparison
from lit_reason.report.provenance import mixed
from lit_reason.report.sweep import read_sweep
from lit_reason.report.table import markdown, read_paper, tabulate
from lit_reason.secrecy import command_without_secrets


def main(args: list[str] | None = None) -> None:
    given, extra = parse(sys.argv[1:] if args is None else args)
    with in_one_line():
        sweep = read_sweep(given.sweep)
        out = given.out or Path("runs", "ablations", sweep.name)
        ablation = Ablation(sweep, out, seeds_of(given.seeds), given.config, extra)
        if not given.collect:
            ablation.check_configs()
        if given.dry_run:
            for point, seed in ablation.runs():
                print(shlex.join(command_without_secrets(ablation.command(point, seed))))
            return
        if given.jobs < 1:
            raise ConfigError(f"--jobs {given.jobs}: must be at least 1")
        asked = ablation.collect() if given.collect else run(ablation, given.jobs)
        report(ablation, list(ablation.recorded().values()), given.sweep.parent / "papers.json")
    if any(result.status == "failed" for result in asked):
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
    seeds = "N: seeds 0 to N-1; several numbers: these seeds; default: those of the sweep file"
    parser.add_argument("--seeds", nargs="+", type=int, help=seeds)
    jobs = "runs at a time, on one thread each if there are several"
    parser.add_argument("--jobs", type=int, default=1, help=jobs)
    parser.add_argument("--out", type=Path, help="default: runs/ablations/NAME_OF_SWEEP")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run nothing")
    collect = "run nothing; table and pictures of what is finished"
    parser.add_argument("--collect", action="store_true", help=collect)
    cut = args.index("--") if "--" in args else len(args)
    return parser.parse_args(args[:cut]), args[cut + 1 :]


def seeds_of(given: list[int] | None) -> list[int] | None:
    """One number counts seeds, several name them."""
    if given is None or len(given) > 1:
        return given
    if given[0] < 1:
        raise ConfigError(f"--seeds {given[0]}: one number is how many; give at least 1")
    return list(range(given[0]))


def run(ablation: Ablation, jobs: int) -> list[Result]:
    """Runs all points with a line for each; an interrupt ends the runs under way."""
    if jobs > 1:
        os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the runs
    results: list[Result] = []
    earlier = [key for key, r in ablation.recorded().items() if r.status == "finished"]
    before = sum((point.name, seed) in earlier for point, seed in ablation.runs())
    total = len(ablation.runs())
    started = time.monotonic()
    bar = Progress(*Progress.get_default_columns(), TimeElapsedColumn(), disable=not on_terminal())
    # closed inside, the children have ended before anything is said
    with saying_how_to_continue(), bar, closing(ablation.run(jobs)) as ended:
        task = bar.add_task(escape(ablation.sweep.name), total=total - before)
        for result in ended:
            results.append(result)
            seconds, done = time.monotonic() - started, len(results) - before
            left = remaining(seconds, done, total - len(results))
            print(f"[{len(results)}/{total}] {describe(result, ablation)}{left}", flush=True)
            bar.update(task, completed=max(done, 0))
    return results


def on_terminal() -> bool:
    """Whether a bar can be drawn; in a file the lines say it all."""
    return sys.stdout.isatty()


def remaining(seconds: float, done: int, left: int) -> str:
    """What the rest takes if it goes on as before; "" where that is not known or nothing is left.

    Example:
        >>> remaining(600, 5, 20)
        ', about 40 min left'
    """
    if done < 1 or left < 1:
        return ""
    minutes = seconds / done * left / 60
    return (
        f", about {minutes:.0f} min left" if minutes < 90 else f", about {minutes / 60:.1f} h left"
    )


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


def report(ablation: Ablation, results: list[Result], papers: Path) -> None:
    """Prints the table and writes it with the pictures."""
    curves = ablation.curves(results)
    failed = [result.point for result in results if result.status == "failed"]
    sweep = ablation.sweep
    names = [point.name for point in ablation.points]
    table = tabulate(curves, sweep.metric, names, read_paper(papers, sweep.name), failed)
    note = mixed([result.commit for result in results if result.status == "finished"])
    table = replace(table, note=note)
    facts = {
        "sweep": sweep.name,
        "overlays": list(ablation.overlays),
        "extra": command_without_secrets(ablation.extra),
    }
    facts["runs"] = [vars(result) for result in results]
    files = write_comparison(table, curves, ablation.out, facts)
    print(f"\n{markdown(table)}\n")
    others = sorted({result.seed for result in results} - set(ablation.seeds))
    if others:
        print(f"with seeds {', '.join(map(str, others))} of earlier calls, as {ablation.out} has\n")
    print("\n".join(str(ablation.out / name) for name in ("results.csv", "curves.csv")))
    print("\n".join(map(str, files)))
    if note:
        print(f"warning: {note}", file=sys.stderr)


if __name__ == "__main__":
    exit_on_signals()
    main()
