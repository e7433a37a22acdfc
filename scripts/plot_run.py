"""Draws one or several runs.

python scripts/plot_run.py RUN_DIR               writes RUN_DIR/report.png and RUN_DIR/report.html
python scripts/plot_run.py RUN_DIR RUN_DIR ...   draws them over one another, into the first folder
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lit_reason.errors import in_one_line
from lit_reason.report.history import read_run
from lit_reason.report.page import write_page
from lit_reason.report.plot import draw


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, help="folder to write to; default: the first RUN_DIR")
    given = parser.parse_args(args)
    out = given.out or given.run_dirs[0]
    with in_one_line():
        runs = [read_run(folder) for folder in given.run_dirs]
        draw(runs, out / "report.png")
        write_page(runs, out / "report.png", out / "report.html")
    print(f"{out / 'report.png'}\n{out / 'report.html'}")


if __name__ == "__main__":
    main()
