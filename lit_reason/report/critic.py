"""What a run says of its critic, as a picture of twelve plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lit_reason.errors import ConfigError
from lit_reason.files import replacing
from lit_reason.jsonl import read_rows
from lit_reason.report.history import Run
from lit_reason.report.plot import (
    GREY,
    NO_CRITIC,
    STYLE,
    Panel,
    draw_panel,
    draw_series,
    fit_rollouts,
    legend,
    say,
    shade_warmup,
)

Row = dict[str, Any]
CURVES = "critic.jsonl"
KEYS = {"rollout", "phase", "value", "explained_variance", "advantage", "calibration", "lambda"}
SHADES = ("#9ecae1", "#5b9bd5", "#1f5fa8", "#08224f")  # early to late
LOWEST = -1.0  # of an explained variance that is drawn: a fresh critic may be far below

EXPLAINED = Panel(
    "Explained variance",
    "1 is perfect",
    "value/explained_variance",
    "val/value/explained_variance",
    absent=NO_CRITIC,
)
LOSS = Panel("Value loss", "½ squared error", "loss/value", absent=NO_CRITIC)
BIAS = Panel("Bias before the first token", "V(s₀) - return", "value/bias", "val/value/bias")
TD = Panel("Variance of TD errors", "squared return", "value/td_variance")
SHARE = Panel("|A| that comes from the rewards", "share", "advantage/reward_share", share=True)
HORIZON = Panel("Effective horizon of λ", "tokens", "gae/horizon")


def read_curves(folder: Path) -> list[Row]:
    """The rows that `CriticMonitor` wrote, one a rollout.

    Raises:
        ConfigError: There is no file, no row, or one that is not of `CriticMonitor`.
    """
    path = folder / CURVES
    if not path.is_file():
        raise ConfigError(
            f"{folder}: holds no {CURVES}; run with --callbacks.critic=CriticMonitor to have one"
        )
    try:
        rows = list(read_rows(path))
    except ValueError as error:
        raise ConfigError(f"{path}: is not what CriticMonitor writes ({error})") from error
    if not rows:
        raise ConfigError(f"{path}: holds no rollout yet; wait for the first one to finish")
    if any(not isinstance(row, dict) or not row.keys() >= KEYS for row in rows):
        raise ConfigError(f"{path}: is not what CriticMonitor writes; a row lacks one of its parts")
    return rows


def chosen(rows: Sequence[Row], count: int = len(SHADES)) -> list[Row]:
    """Up to `count` rows from the first to the last, evenly spread.

    Example:
        >>> [row["rollout"] for row in chosen([{"rollout": i} for i in range(10)])]
        [0, 3, 6, 9]
    """
    last, count = len(rows) - 1, min(count, len(rows))
    places = {last * i // max(count - 1, 1) for i in range(count)}
    return [rows[i] for i in sorted(places)]


@dataclass(frozen=True)
class Plot:
    """A plot with what it says.

    Attributes:
        draw: Draws on axes what a run and the chosen rows hold.
        text: How to read it, as HTML.
    """

    draw: Callable[[Any, Run, Sequence[Row]], None]
    text: str


def draw_critic(run: Run, rows: Sequence[Row], path: Path) -> None:
    """Writes the picture as PNG.

    Args:
        run: What the run logged.
        rows: As `read_curves` gives them.
        path: File to write.
    """
    some = chosen(rows)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 13.6), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        for plot, axes in zip(PLOTS, figure.subplots(4, 3).flat, strict=True):
            plot.draw(axes, run, some)
        # a name may hold characters that matplotlib takes for mathematics
        name = run.name.replace("$", r"\$")
        plural = "" if run.rollouts == 1 else "s"
        figure.suptitle(f"Critic of {name} · {run.rollouts} rollout{plural}", fontsize=12)
        handles = [*legend([run]), *_of_curves(some)]
        figure.legend(handles=handles, loc="outside lower center", ncols=5)
        with replacing(path) as partial:
            figure.savefig(partial, format="png")


# ---- plots ---------------------------------------------------------------------------------------


def _of_panel(panel: Panel, lowest: float | None = None) -> Callable[..., None]:
    def draw(axes: Any, run: Run, rows: Sequence[Row]) -> None:
        draw_panel(axes, panel, [run])
        if lowest is not None and axes.get_ylim()[0] < lowest:
            axes.set_ylim(bottom=lowest, top=max(axes.get_ylim()[1], 0.05))

    return draw


def _by_position(axes: Any, run: Run, rows: Sequence[Row]) -> None:
    axes.set(title="Explained variance by position", xlabel="rollout", ylabel="1 is perfect")
    prefix = "value/explained_variance_"
    keys = sorted((k for k in run.series if k.startswith(prefix)), key=lambda k: (len(k), k))
    if not keys:
        return say(axes, "not logged")
    shade_warmup(axes, run, GREY)
    for i, key in enumerate(keys):
        colour = mpl.colormaps["viridis"](i / max(len(keys), 1))
        draw_series(axes, run.get(key), mpl.colors.to_hex(colour))
        axes.plot([], [], color=colour, label=f"part {key.removeprefix(prefix)} of {len(keys)}")
    axes.legend(loc="lower right", fontsize=8)
    fit_rollouts(axes, run.rollouts)
    if axes.get_ylim()[0] < LOWEST:
        axes.set_ylim(bottom=LOWEST, top=1.02)
    return None


def _calibrated(axes: Any, run: Run, rows: Sequence[Row]) -> None:
    axes.set(title="Calibration", xlabel="mean prediction of a bin", ylabel="mean return")
    ends = [rows[0]["calibration"]["edges"][i] for i in (0, -1)]
    axes.plot(ends, ends, color=GREY, lw=1, ls=":")
    for row, colour in zip(rows, _shades(rows), strict=True):
        bins = row["calibration"]
        x, y, size = _known(bins["predicted"], bins["realised"], bins["count"])
        axes.plot(x, y, color=colour, lw=1)
        axes.scatter(x, y, s=[4 + 60 * n / max(sum(size), 1) for n in size], color=colour, zorder=3)


def _along(part: str, title: str, unit: str, kinds: dict[str, str]) -> Callable[..., None]:
    def draw(axes: Any, run: Run, rows: Sequence[Row]) -> None:
        axes.set(title=title, xlabel="position in the response, start to end", ylabel=unit)
        axes.axhline(0, color=GREY, lw=0.8)
        for row, colour in zip(rows, _shades(rows), strict=True):
            for kind, line in kinds.items():
                curve = row[part][kind]
                places = [(i + 0.5) / len(curve) for i in range(len(curve))]
                axes.plot(*_known(places, curve), color=colour, ls=line, lw=1.5)
        axes.set_xlim(0, 1)

    return draw


def _lambdas(axes: Any, run: Run, rows: Sequence[Row]) -> None:
    axes.set(title="λ by length, last rollout", xlabel="tokens", ylabel="responses")
    found = rows[-1]["lambda"]
    if not sum(found["count"]):
        return say(axes, "this estimator has no λ")
    edges = found["edges"]
    widths = [b - a for a, b in pairwise(edges)]
    axes.bar(edges[:-1], found["count"], widths, align="edge", color="#dddddd", edgecolor="white")
    lam = axes.twinx()
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    lam.plot(*_known(middles, found["mean"]), "o-", color=SHADES[-1], ms=4)
    lam.set(ylim=(-0.02, 1.02), ylabel="mean λ")
    lam.grid(False)
    return None


def _known(*columns: Sequence[Any]) -> list[list[Any]]:
    """Columns without the rows in which one has no value."""
    kept = [row for row in zip(*columns, strict=True) if None not in row]
    return [list(column) for column in zip(*kept, strict=True)] or [[] for _ in columns]


def _shades(rows: Sequence[Row]) -> Sequence[str]:
    return SHADES[-len(rows) :]


def _of_curves(rows: Sequence[Row]) -> list[Any]:
    handles: list[Any] = [
        Line2D([], [], color=colour, lw=2, label=f"rollout {row['rollout']}")
        for row, colour in zip(rows, _shades(rows), strict=True)
    ]
    handles.append(Line2D([], [], color="#333333", label="correct responses, or all"))
    handles.append(Line2D([], [], color="#333333", ls="--", label="wrong responses"))
    return handles


BOTH = {"correct": "-", "wrong": "--"}
PLOTS = (
    Plot(
        _of_panel(EXPLAINED, LOWEST),
        "<b>Explained variance.</b> How much of the differences between returns the critic sees "
        "coming, over all tokens. Below 0 it is worse than a constant. It falls when the returns "
        "stop differing; the held-out line is on the same problems throughout.",
    ),
    Plot(
        _by_position,
        "<b>By position.</b> Early parts lie lower: less has been decided. All parts alike and "
        "low: the critic knows the problem at most, not the response.",
    ),
    Plot(
        _of_panel(LOSS),
        "<b>Value loss.</b> A constant at the mean return reaches half the variance of returns.",
    ),
    Plot(
        _of_panel(BIAS),
        "<b>Bias.</b> V before the first token minus the return. Explained variance is blind to "
        "it. Below 0, early tokens get positive advantages whatever they are.",
    ),
    Plot(
        _calibrated,
        "<b>Calibration.</b> Tokens with a prediction of x should see returns of x on average. "
        "Dots are as large as their share of tokens.",
    ),
    Plot(
        _of_panel(TD),
        "<b>TD errors.</b> Their variance is what λ &lt; 1 adds up; a noisy critic makes it large.",
    ),
    Plot(
        _along("value", "Value along the response", "mean V", BOTH),
        "<b>Values.</b> Correct and wrong responses should part where the decision falls.",
    ),
    Plot(
        _along("advantage", "Advantage along the response", "mean A", BOTH),
        "<b>Advantages.</b> They are large where the values part.",
    ),
    Plot(
        _along("advantage", "Advantage of all responses", "mean A", {"all": "-"}),
        "<b>Advantages of all responses.</b> Flat and near 0 for a critic without bias. High at "
        "the start and low at the end is the value-initialisation bias of VC-PPO.",
    ),
    Plot(
        _of_panel(SHARE),
        "<b>Rewards or critic.</b> How much of |A| the rewards make; the rest is what the critic "
        "says, its baseline included.",
    ),
    Plot(
        _lambdas,
        "<b>λ by length.</b> Bars count responses. λ at 0: only the next value teaches.",
    ),
    Plot(
        _of_panel(HORIZON),
        "<b>Effective horizon.</b> Tokens that an advantage looks ahead; what lies beyond reaches "
        "it through the critic alone.",
    ),
)
