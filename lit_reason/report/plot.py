"""The picture of one or several runs: six panels over the rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lit_reason.files import replacing
from lit_reason.report.history import Run, Series

# seven of Okabe and Ito, told apart with every common kind of colour blindness, then three more
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
    "#882255", "#999933", "#7F7F7F",
)  # fmt: skip
DISTANT = 7  # what is drawn in one after these needs another line too
GREY = "#8a8a8a"
STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
}
SMOOTH_FROM = 40  # training rollouts from which a running mean is drawn over the single values


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
        title: What is shown.
        unit: Label of the vertical axis.
        train: Key measured on training rollouts.
        held_out: Key measured on held-out problems, if there is one.
        absent: Said in place of a plot that no run has values for.
        share: The values are shares of 1, shown as percentages from 0 to 100.
    """

    title: str
    unit: str
    train: str
    held_out: str | None = None
    absent: str = "not logged"
    share: bool = False


NO_CRITIC = "no critic in this configuration"
PANELS = (
    Panel("Reward", "mean per response", "reward", "val/reward"),
    Panel("Accuracy", "correct responses", "accuracy", "val/accuracy", share=True),
    Panel("Response length", "tokens", "response_length", "val/length"),
    Panel(
        "Entropy of the policy",
        "nats per token",
        "entropy",
        absent="not logged;\nadd callbacks.entropy: EntropyMonitor",
    ),
    Panel("Value loss", "½ squared error", "loss/value", absent=NO_CRITIC),
    Panel(
        "Explained variance of the critic",
        "1 is perfect",
        "value/explained_variance",
        absent=NO_CRITIC,
    ),
)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Writes the picture as PNG.

    Args:
        runs: Drawn over one another, a colour each; with one run the colours tell training
            rollouts from held-out problems instead.
        path: File to write.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 7.2), dpi=120, layout="constrained")
        FigureCanvasAgg(figure)
        for panel, axes in zip(PANELS, figure.subplots(2, 3).flat, strict=True):
            draw_panel(axes, panel, runs)
        rollouts = max(run.rollouts for run in runs)
        names = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
        figure.suptitle(f"{names} · {rollouts} rollout{'' if rollouts == 1 else 's'}", fontsize=12)
        handles = legend(runs)
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5))
        with replacing(path) as partial:
            figure.savefig(partial, format="png")


def draw_panel(axes: Any, panel: Panel, runs: Sequence[Run]) -> None:
    """Draws what a panel shows of every run, or says that no run has it."""
    axes.set(title=panel.title, xlabel="rollout", ylabel=panel.unit)
    keys = [k for k in (panel.train, panel.held_out) if k]
    if not any(run.get(key) for run in runs for key in keys):
        say(axes, panel.absent)
        return
    for i, run in enumerate(runs):
        train, held_out = colours(i, len(runs))
        shade_warmup(axes, run, GREY if len(runs) == 1 else train)
        if series := run.get(panel.train):
            draw_series(axes, series, train)
        if panel.held_out and (series := run.get(panel.held_out)):
            look = {"ms": 4.5, "lw": 1.3, "mec": "white", "mew": 0.6, "zorder": 4}
            axes.plot(series.rollouts, series.values, "o--", color=held_out, **look)
    fit_rollouts(axes, max(run.rollouts for run in runs))
    if panel.share:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def say(axes: Any, text: str) -> None:
    """Puts a text where nothing can be drawn."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY)
    axes.set(xticks=[], yticks=[])


def fit_rollouts(axes: Any, rollouts: int) -> None:
    """Makes the horizontal axis that of the rollouts of a run."""
    axes.set_xlim(left=0, right=max(rollouts, 1) * 1.015)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def draw_series(axes: Any, series: Series, colour: str) -> None:
    """Draws values of training rollouts, and a running mean over many of them."""
    if len(series.values) < SMOOTH_FROM:
        dots = {"marker": "."} if len(series.values) == 1 else {}
        axes.plot(series.rollouts, series.values, color=colour, lw=1.6, zorder=3, **dots)
        return
    axes.plot(series.rollouts, series.values, color=colour, lw=0.8, alpha=0.3, zorder=2)
    smooth = running_mean(series.values, len(series.values) // 20)
    axes.plot(series.rollouts, smooth, color=colour, lw=1.8, zorder=3)


def shade_warmup(axes: Any, run: Run, colour: str) -> None:
    """Marks the rollouts that train the critic alone."""
    if run.warmup_end is not None:
        axes.axvspan(0, run.warmup_end + 0.5, color=colour, alpha=0.12, lw=0, zorder=0)


def legend(runs: Sequence[Run]) -> list[Any]:
    """What lines, dots and shades stand for."""
    several = len(runs) > 1
    train, held_out = ("#333333", "#333333") if several else colours(0, 1)
    handles: list[Any] = []
    if several:
        handles += [Patch(color=colours(i, len(runs))[0], label=r.name) for i, r in enumerate(runs)]
    handles.append(Line2D([], [], color=train, lw=1.6, label="training rollouts"))
    if any(len(run.get("reward").values) >= SMOOTH_FROM for run in runs):
        handles[-1].set_label("training rollouts (bold: running mean)")
    if any(key.startswith("val/") for run in runs for key in run.series):
        handles.append(
            Line2D([], [], color=held_out, ls="--", marker="o", ms=4.5, label="held-out problems")
        )
    if any(run.warmup_end is not None for run in runs):
        handles.append(Patch(color=GREY, alpha=0.25, label="value warm-up: only the critic learns"))
    return handles


def colours(index: int, runs: int) -> tuple[str, str]:
    """Colours of the training and the held-out line of a run."""
    if runs == 1:
        return COLOURS[0], COLOURS[1]
    colour = COLOURS[index % len(COLOURS)]
    return colour, colour


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over up to `window` values on each side; fewer at the ends.

    Example:
        >>> running_mean([0.0, 3.0, 6.0, 0.0], 1)
        [1.5, 3.0, 3.0, 3.0]
    """
    parts = (values[max(i - window, 0) : i + window + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in parts]
