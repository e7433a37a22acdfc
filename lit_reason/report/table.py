"""The comparison of an ablation's points, as a Markdown table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from lit_reason.report.ablation import Result

HEADER = ("point", "seeds", "before", "after", "change")


def compare(results: Sequence[Result], metric: str) -> str:
    """Mean ± standard error over seeds of every point, in the order of the results.

    Args:
        results: Of all runs; failed ones are counted and left out of the means.
        metric: Named above the table.
    """
    rows = [HEADER]
    for name in dict.fromkeys(r.point for r in results):
        own = [r for r in results if r.point == name]
        done = [r for r in own if r.status == "finished"]
        change = [r.after - r.before for r in done if r.after is not None and r.before is not None]
        failed = f" ({len(own) - len(done)} failed)" if len(done) < len(own) else ""
        before = mean_and_error([r.before for r in done if r.before is not None])
        after = mean_and_error([r.after for r in done if r.after is not None])
        rows.append((name, f"{len(done)}{failed}", before, after, mean_and_error(change, "+")))
    return f"{metric}, mean ± standard error over seeds\n\n{_markdown(rows)}"


def mean_and_error(values: Sequence[float], sign: str = "") -> str:
    """Mean and standard error of the mean; the mean alone if there is one value.

    Example:
        >>> mean_and_error([0.4, 0.5, 0.6]), mean_and_error([0.4]), mean_and_error([])
        ('0.500 ± 0.058', '0.400', '-')
    """
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):{sign}z.3f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
