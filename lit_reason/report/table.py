"""The rows of an ablation beside the papers' numbers, as plain values and as Markdown."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lit_reason.errors import ConfigError
from lit_reason.functional import bootstrap_interval
from lit_reason.report.curves import Curve, common_rollouts, first_reach, mean_curve, value_at
from lit_reason.report.history import Series

PREVIOUS = "previous"
RESAMPLES = 10_000
# not "95 %": over five seeds its ends cover about 84 %
BAND = "bootstrap interval"
# Student's t, two-sided 95 %, by degrees of freedom; that of 9 is conservative for more
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Paper:
    """What a paper reports for the rows of a sweep.

    Attributes:
        source: Where, and in which unit.
        rows: The paper's number of each row.
        reference: Row with which the others are compared, or "previous": each with the one above.
    """

    source: str = ""
    rows: dict[str, float] = field(default_factory=dict)
    reference: str = ""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and its interval; nan where nothing was measured."""

    mean: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return not math.isnan(self.mean)


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        name: Of the point.
        seeds: Runs that finished.
        failed: Runs that did not.
        paper: The paper's number.
        value: The metric after the common number of rollouts.
        against: Row that this one is compared with; "" for none.
        difference: To that row, within a seed.
        margin: Half the width of Student's 95 % interval of the difference; nan below two seeds.
        paper_difference: The paper's.
        reached: Rollouts of the policy after which the mean over seeds first is at what the other
            row has in the end; `None` if it never is.
    """

    name: str
    seeds: int
    failed: int
    paper: float | None
    value: Interval
    against: str
    difference: Interval
    margin: float
    paper_difference: float | None
    reached: float | None

    @property
    def verdict(self) -> str:
        """Whether the difference has the paper's sign; by Student's t, as seeds are few."""
        if not self.paper_difference or math.isnan(self.margin):
            return ""
        along = math.copysign(self.difference.mean, self.difference.mean * self.paper_difference)
        return "yes" if along > self.margin else "opposite" if -along > self.margin else "not shown"


@dataclass(frozen=True)
class Table:
    """All rows.

    Attributes:
        metric: What is compared.
        rollouts: Rollouts that trained the policy in every run, after which it is compared.
        source: Of the paper's numbers; "" without any.
        rows: In the order of the sweep.
        note: Said below the rows; "" for nothing.
    """

    metric: str
    rollouts: int
    source: str
    rows: list[Row]
    note: str = ""


def read_paper(path: Path, name: str) -> Paper:
    """The entry of a sweep in a file of papers' numbers; an empty one if there is none.

    Raises:
        ConfigError: It is not such a file.
    """
    if not path.is_file():
        return Paper()
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Paper(**content[name]) if name in content else Paper()
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: is not JSON with source, rows and reference of {name}; repair or remove it"
        ) from error


def tabulate(
    curves: Sequence[Curve],
    metric: str,
    names: Sequence[str] = (),
    paper: Paper | None = None,
    failed: Sequence[str] = (),
) -> Table:
    """Compares the rows after the number of rollouts of the policy that all runs have.

    Args:
        curves: Of all finished runs.
        metric: Held-out quantity that is compared.
        names: Order of the rows; those of the curves by default.
        paper: The paper's numbers; without one the first row is the reference.
        failed: Row of every run that failed.
    """
    paper = paper or Paper()
    order = list(names) or list(dict.fromkeys(curve.point for curve in curves))
    place = common_rollouts(curves)
    measured: dict[str, dict[int, float]] = {name: {} for name in order}
    for curve in curves:
        value = value_at(curve.get(metric), place)
        if value is not None and curve.point in measured:
            measured[curve.point][curve.seed] = value
    rows = []
    for i, name in enumerate(order):
        against = _reference(paper, order, i)
        base = measured.get(against, {})
        both = [own - base[s] for s, own in measured[name].items() if s in base]
        known = name in paper.rows and against in paper.rows
        goal = interval(list(base.values())).mean
        rows.append(
            Row(
                name,
                len(measured[name]),
                list(failed).count(name),
                paper.rows.get(name),
                interval(list(measured[name].values())),
                against,
                interval(both),
                margin(both),
                paper.rows[name] - paper.rows[against] if known else None,
                _reached([c for c in curves if c.point == name], metric, goal, place),
            )
        )
    return Table(metric, place, paper.source, rows)


def _reached(curves: Sequence[Curve], metric: str, goal: float, end: float) -> float | None:
    places, mean = mean_curve(curves, metric)
    place = first_reach(Series(places, mean), goal)  # None for nan, which nothing reaches
    return place if place is not None and place <= end else None


def _reference(paper: Paper, order: Sequence[str], i: int) -> str:
    if paper.reference == PREVIOUS:
        return order[i - 1] if i else ""
    reference = paper.reference or order[0]
    return "" if order[i] == reference else reference


def interval(values: Sequence[float]) -> Interval:
    """Mean over seeds and 95 % percentile bootstrap interval; the same values give the same one.

    With five values its ends lie too close together: it covers about 84 %, not 95 %.

    Example:
        >>> interval([0.25, 0.5, 0.75]), interval([0.5])
        (Interval(mean=0.5, low=0.25, high=0.75), Interval(mean=0.5, low=0.5, high=0.5))
    """
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    column = torch.tensor(values, dtype=torch.float64)[:, None]
    low, high = bootstrap_interval(column, resamples=RESAMPLES)
    return Interval(statistics.fmean(values), low.item(), high.item())


def margin(values: Sequence[float]) -> float:
    """Half the width of Student's 95 % interval of the mean; nan for fewer than two values.

    Example:
        >>> round(margin([0.1, 0.2, 0.3]), 4)
        0.2484
    """
    count = len(values)
    if count < 2:
        return math.nan
    t = T975[min(count - 1, len(T975)) - 1]
    return t * statistics.stdev(values) / math.sqrt(count)


def cells(table: Table) -> list[list[str]]:
    """The table as text: a list of headings, then one list a row."""
    papers = any(row.paper is not None for row in table.rows)
    heading = ["row", "seeds", f"ours [{BAND}]", "against", f"difference [{BAND}]"]
    heading.append("its end reached at")
    body = [
        [
            row.name,
            f"{row.seeds} ({row.failed} failed)" if row.failed else str(row.seeds),
            _text(row.value, row.seeds),
            row.against or "-",
            _text(row.difference, row.seeds, "+") if row.against else "-",
            "-" if row.reached is None else f"{row.reached:.0f}",
        ]
        for row in table.rows
    ]
    if not papers:
        return [heading, *body]
    more = [
        [_number(row.paper), _number(row.paper_difference, "+"), row.verdict or "-"]
        for row in table.rows
    ]
    heading += ["paper", "paper's difference", "same direction at 95 %"]
    return [heading, *([*a, *b] for a, b in zip(body, more, strict=True))]


def caption(table: Table) -> str:
    """What the table shows, in a sentence."""
    says = (
        f"{table.metric} {when(table.rollouts)}; mean over seeds "
        f"and {BAND}; differences are within a seed. The last column of ours is the "
        "rollout at which a row's mean first is where the row that it is compared with ends."
    )
    return f"{says} Paper: {table.source}." if table.source else says


def when(rollouts: int) -> str:
    """The place at which rows are compared, in words.

    Example:
        >>> when(0), when(1)
        ('before the policy trains', 'after 1 rollout that trains the policy')
    """
    if rollouts == 0:
        return "before the policy trains"
    what = "rollout that trains" if rollouts == 1 else "rollouts that train"
    return f"after {rollouts} {what} the policy"


def markdown(table: Table) -> str:
    """The table and its caption as Markdown."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in cells(table)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    note = ["", sentence(table.note)] if table.note else []
    return "\n".join([caption(table), "", lines[0], rule, *lines[1:], *note])


def sentence(text: str) -> str:
    """A text as a sentence of its own.

    Example:
        >>> sentence("the end")
        'The end.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def _text(value: Interval, count: int, sign: str = "") -> str:
    if not value.known:
        return "-"
    mean = f"{value.mean:{sign}z.3f}"
    return mean if count < 2 else f"{mean} [{value.low:z.3f}, {value.high:z.3f}]"


def _number(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}g}"
