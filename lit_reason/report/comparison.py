"""The picture and the page of a comparison: curves with bands, and every row beside the paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lit_reason.files import replacing, write_text
from lit_reason.functional import bootstrap_interval
from lit_reason.report.curves import Curve, mean_curve, seeds_at
from lit_reason.report.page import image, plain, write_html
from lit_reason.report.plot import COLOURS, DISTANT, GREY, STYLE, fit_rollouts, say
from lit_reason.report.provenance import machine
from lit_reason.report.table import BAND, Table, caption, cells, markdown, sentence

# tell rows apart where colours come close to one another, and where there are more rows than those
MARKERS = {"-": "o", "--": "s", ":": "^"}
FILES = ("table.md", "comparison.png", "comparison.html", "results.json")


def write_comparison(
    table: Table, curves: Sequence[Curve], out: Path, facts: dict[str, Any] | None = None
) -> list[Path]:
    """Writes the table as Markdown, picture, page and JSON; returns the files.

    Args:
        table: As `tabulate` made it.
        curves: What it was made of.
        out: Folder; made if it does not exist.
        facts: More for the JSON, such as each run.
    """
    files = [out / name for name in FILES]
    write_text(files[0], markdown(table) + "\n")
    draw(table, curves, files[1])
    parts = [f"<p>{plain(caption(table))}</p>", html_table(cells(table))]
    if table.note:
        parts.append(f"<p>{plain(sentence(table.note))}</p>")
    parts.append(image(files[1], f"Learning curves and final {table.metric} of every row"))
    write_html(files[2], out.resolve().name, parts)
    rows = [
        {**vars(r), "value": vars(r.value), "difference": vars(r.difference)} for r in table.rows
    ]
    content = {**vars(table), "rows": rows, "machine": machine(), **(facts or {})}
    text = json.dumps(_without_nan(content), indent=1, ensure_ascii=False)
    write_text(files[3], text + "\n")
    return files


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """A table with a row of headings; all text is escaped."""
    head = "".join(f"<th>{plain(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{plain(cell)}</td>' for cell in row)}</tr>" for row in rows[1:]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def draw(table: Table, curves: Sequence[Curve], path: Path) -> None:
    """Draws curves with bands on the left, the rows with their intervals on the right."""
    looks = {row.name: look(i) for i, row in enumerate(table.rows)}
    height = max(4.6, 1.6 + 0.42 * len(table.rows))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, height), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        papers = any(row.paper is not None for row in table.rows)
        grid = figure.subplots(1, 3 if papers else 2, width_ratios=[2, 1.2, 0.8][: 2 + papers])
        draw_curves(grid[0], table, curves, looks)
        draw_rows(grid[1], table, looks)
        if papers:
            draw_paper(grid[2], table, looks)
        with replacing(path) as partial:
            figure.savefig(partial, format="png")


def look(index: int) -> tuple[str, str]:
    """Colour and line of a row."""
    lines = list(MARKERS)
    return COLOURS[index % len(COLOURS)], lines[index // DISTANT % len(lines)]


def draw_curves(
    axes: Any, table: Table, curves: Sequence[Curve], looks: dict[str, tuple[str, str]]
) -> None:
    """Mean over seeds and bootstrap band of the held-out metric of every row."""
    axes.set(
        title=f"Learning curves, band: {BAND} over seeds",
        xlabel="rollouts that train the policy",
        ylabel=table.metric,
    )
    drawn = False
    for row in table.rows:
        places, mean, low, high = band([c for c in curves if c.point == row.name], table.metric)
        if not places:
            continue
        drawn = True
        colour, line = looks[row.name]
        axes.plot(places, mean, line, color=colour, lw=1.7, label=row.name)
        axes.fill_between(places, low, high, color=colour, alpha=0.13, lw=0)
    if not drawn:
        say(axes, "no run measured it")
        return
    fit_rollouts(axes, max((c.policy_rollouts for c in curves), default=1))
    axes.legend(fontsize=8, loc="best")


def band(
    curves: Sequence[Curve], metric: str
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Places, mean, and lower and upper ends over the runs of a row."""
    places, values = seeds_at(curves, metric)
    if not places:
        return [], [], [], []
    low, high = bootstrap_interval(torch.tensor(values, dtype=torch.float64))
    return places, mean_curve(curves, metric)[1], low.tolist(), high.tolist()


def draw_rows(axes: Any, table: Table, looks: dict[str, tuple[str, str]]) -> None:
    """The metric of every row with its interval."""
    first = {0: "Before the first of them", 1: "After the first of them"}
    axes.set(
        title=first.get(table.rollouts, f"After {table.rollouts} of them"), xlabel=table.metric
    )
    for i, row in enumerate(table.rows):
        if row.value.known:
            ends = [[row.value.mean - row.value.low], [row.value.high - row.value.mean]]
            style = {"fmt": MARKERS[looks[row.name][1]], "color": looks[row.name][0], "capsize": 3}
            axes.errorbar([row.value.mean], [i], xerr=ends, **style)
    _name_rows(axes, table, labels=True)


def draw_paper(axes: Any, table: Table, looks: dict[str, tuple[str, str]]) -> None:
    """The paper's numbers, in its own unit."""
    axes.set(title="Paper", xlabel="score of the paper")
    for i, row in enumerate(table.rows):
        if row.paper is not None:
            axes.barh(i, row.paper, height=0.55, color=looks[row.name][0], alpha=0.55)
            axes.text(row.paper, i, f" {row.paper:g}", va="center", fontsize=8, color=GREY)
    _name_rows(axes, table, labels=False)


def _name_rows(axes: Any, table: Table, labels: bool) -> None:
    names = [row.name for row in table.rows] if labels else [""] * len(table.rows)
    axes.set_yticks(range(len(table.rows)), names, fontsize=8.5)
    axes.set_ylim(len(table.rows) - 0.5, -0.5)


def _without_nan(value: Any) -> Any:
    """The same with null for nan, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and value != value else value
