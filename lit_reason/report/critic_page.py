"""The page of a critic: the picture, how to read it, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from lit_reason.report.critic import PLOTS, Row
from lit_reason.report.history import Run
from lit_reason.report.page import image, plain, write_html


def write_critic_page(run: Run, rows: Sequence[Row], picture: Path, path: Path) -> None:
    """Writes a page that needs no other file.

    Args:
        run: As it was drawn.
        rows: Likewise.
        picture: The PNG that `draw_critic` wrote; it becomes part of the page.
        path: File to write.
    """
    parts = [
        image(picture, f"Diagnostics of the critic of {run.name}"),
        "<h2>How to read it</h2>",
        f"<ol>{''.join(f'<li>{plot.text}</li>' for plot in PLOTS)}</ol>",
        "<h2>First and last</h2>",
        _table(run),
        "<h2>Calibration</h2>",
        *(_calibration(row) for row in {id(r): r for r in (rows[0], rows[-1])}.values()),
    ]
    write_html(path, f"Critic of {run.name}", parts)


def _table(run: Run) -> str:
    """First and last value of everything that is about the critic."""
    about = ("value/", "val/value/", "loss/value", "advantage/", "gae/")
    rows = []
    for key, series in sorted(run.series.items()):
        if key.startswith(about):
            cells = "".join(f"<td>{series.values[i]:.3f}</td>" for i in (0, -1))
            rows.append(f"<tr><td>{plain(key)}</td>{cells}</tr>")
    head = "<tr><th></th><th>first</th><th>last</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _calibration(row: Row) -> str:
    bins = row["calibration"]
    columns = zip(
        pairwise(bins["edges"]), bins["count"], bins["predicted"], bins["realised"], strict=True
    )
    lines = [
        f"<tr><td>{low:g} to {high:g}</td><td>{n}</td><td>{_cell(v)}</td><td>{_cell(r)}</td></tr>"
        for (low, high), n, v, r in columns
    ]
    title = plain(f"rollout {row['rollout']} ({row['phase']})")
    return (
        f"<table><caption>{title}</caption><thead><tr><th>V</th><th>tokens</th><th>mean V</th>"
        f"<th>mean return</th></tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
