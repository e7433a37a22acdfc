"""Draws what a run says of its critic.

python scripts/critic_report.py RUN_DIR   writes RUN_DIR/critic.png and RUN_DIR/critic.html

The run must have had the callback CriticMonitor.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lit_reason.errors import in_one_line
from lit_reason.report.critic import draw_critic, read_curves
from lit_reason.report.critic_page import write_critic_page
from lit_reason.report.history import read_run


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--out", type=Path, help="folder to write to; default: RUN_DIR")
    given = parser.parse_args(args)
    out = given.out or given.run_dir
    with in_one_line():
        run, rows = read_run(given.run_dir), read_curves(given.run_dir)
        draw_critic(run, rows, out / "critic.png")
        write_critic_page(run, rows, out / "critic.png", out / "critic.html")
    print(f"{out / 'critic.png'}\n{out / 'critic.html'}")


if __name__ == "__main__":
    main()
