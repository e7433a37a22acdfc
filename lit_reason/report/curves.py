"""Curves of the runs of an ablation, as a file and on a common axis.

The axis counts the rollouts that train the policy: rollouts of a value warm-up stand at 0, so that
rows with and without one are compared after equally many updates.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lit_reason.errors import ConfigError, printable
from lit_reason.files import replacing
from lit_reason.report.history import Run, Series

HEAD = ("point", "seed", "warmup", "rollout")
KEPT = (
    "accuracy",
    "response_length",
    "truncated",
    "entropy",
    "reward/soft_overlong",
    "policy/clip_fraction_high",
    "gae/lambda_mean",
    "gae/lambda_min",
    "gae/lambda_max",
    "groups/rounds",
    "value/explained_variance",
    "val/value/explained_variance",
)


@dataclass(frozen=True)
class Curve:
    """What one run measured.

    Attributes:
        point: Row of the table that the run belongs to.
        seed: Its seed.
        warmup: Rollouts that trained the critic alone.
        series: By key, against rollouts of the whole run.
    """

    point: str
    seed: int
    warmup: int
    series: dict[str, Series]

    def get(self, key: str) -> Series:
        """The series of a key, against rollouts that train the policy; empty without it.

        Of several values at 0, all measured on the starting policy, the last stays.
        """
        series = self.series.get(key, Series())
        places = [max(x - self.warmup, 0.0) for x in series.rollouts]
        at = dict(zip(places, series.values, strict=True))
        return Series(list(at), list(at.values()))

    @property
    def policy_rollouts(self) -> int:
        """Rollouts that trained the policy."""
        last = max((s.rollouts[-1] for s in self.series.values() if s), default=0)
        return int(max(last - self.warmup, 0))


def curve_of(
    run: Run,
    metric: str,
    point: str,
    seed: int,
    before: float | None = None,
    after: float | None = None,
) -> Curve:
    """The curve of a run.

    Args:
        run: As read from its folder.
        metric: Held-out quantity that is compared.
        point: Row of the table.
        seed: Its seed.
        before: The metric of the starting policy, where the run's files do not have it.
        after: The metric at the end, likewise.
    """
    series = {key: run.get(key) for key in (metric, *KEPT) if run.get(key)}
    held_out = dict(zip(run.get(metric).rollouts, run.get(metric).values, strict=True))
    for place, value in ((0.0, before), (float(run.rollouts), after)):
        if value is not None:
            held_out.setdefault(place, value)
    places = sorted(held_out)
    series[metric] = Series(places, [held_out[x] for x in places])
    return Curve(point, seed, int(run.warmup_end or 0), series)


def common_rollouts(curves: Iterable[Curve]) -> int:
    """Rollouts of the policy that every run has: the place at which they are compared."""
    return min((curve.policy_rollouts for curve in curves), default=0)


def value_at(series: Series, place: float) -> float | None:
    """The last value measured at or before a place.

    Example:
        >>> value_at(Series([0.0, 5.0, 10.0], [0.1, 0.4, 0.7]), 8)
        0.4
    """
    known = [y for x, y in zip(series.rollouts, series.values, strict=True) if x <= place]
    return known[-1] if known else None


def first_reach(series: Series, level: float) -> float | None:
    """The place at which a curve, read as straight lines, first reaches a level.

    Example:
        >>> first_reach(Series([0.0, 10.0], [0.2, 0.6]), 0.4)
        5.0
    """
    before: tuple[float, float] | None = None
    for x, y in zip(series.rollouts, series.values, strict=True):
        if y >= level:
            if before is None:
                return x
            x0, y0 = before
            return x0 + (x - x0) * (level - y0) / (y - y0)
        before = x, y
    return None


def seeds_at(curves: Sequence[Curve], metric: str) -> tuple[list[float], list[list[float]]]:
    """Places, and the values there of every run: a list a run.

    Places are those of any run; a run that did not measure there counts with its last value, from
    the place where all have begun to the one where the first of them ends.
    """
    series = [s for s in (curve.get(metric) for curve in curves) if s]
    if not series:
        return [], []
    begin, end = max(s.rollouts[0] for s in series), min(s.rollouts[-1] for s in series)
    places = sorted({x for s in series for x in s.rollouts if begin <= x <= end})
    return places, [[y for x in places if (y := value_at(s, x)) is not None] for s in series]


def mean_curve(curves: Sequence[Curve], metric: str) -> tuple[list[float], list[float]]:
    """Places, and the mean over runs there."""
    places, values = seeds_at(curves, metric)
    return places, [math.fsum(at) / len(at) for at in zip(*values, strict=True)]


def write_curves(curves: Sequence[Curve], metric: str, path: Path) -> None:
    """Writes a row a run and rollout; a quantity not measured there is empty.

    The metric is written exactly, so that a table made of the file is the one made of the runs.
    Another quantity has a column if any run has measured it.
    """
    measured = {key for curve in curves for key, series in curve.series.items() if series}
    keys = list(dict.fromkeys([metric, *(key for key in KEPT if key in measured)]))
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*HEAD, *keys])
        for curve in curves:
            at = {k: dict(zip(s.rollouts, s.values, strict=True)) for k, s in curve.series.items()}
            places = sorted({x for values in at.values() for x in values})
            for place in places:
                values = [at.get(key, {}).get(place) for key in keys]
                cells = [_cell(value, "" if i == 0 else ".5g") for i, value in enumerate(values)]
                writer.writerow([curve.point, curve.seed, curve.warmup, f"{place:g}", *cells])


def read_curves(path: Path) -> list[Curve]:
    """Reads what `write_curves` wrote.

    Raises:
        ConfigError: There is no such file, or it holds something else.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; scripts/run_ablation.py writes it")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        try:
            lacking = [name for name in HEAD if name not in (reader.fieldnames or ())]
            if lacking:
                raise ConfigError(
                    f"{path}: has no column {lacking[0]}; give a curves.csv of "
                    "scripts/run_ablation.py"
                )
            return _curves(reader)
        except (csv.Error, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            why = printable(f"line {reader.line_num}: {error}")
            raise ConfigError(f"{path}: is not as it was written ({why}); repair it") from error


def _curves(rows: Iterable[dict[str, str]]) -> list[Curve]:
    curves: dict[tuple[str, int], Curve] = {}
    for row in rows:
        point, seed, warmup, place = (row.pop(name) for name in HEAD)
        curve = Curve(point, int(seed), int(warmup), {})
        curve = curves.setdefault((point, curve.seed), curve)
        for key, cell in row.items():
            if cell:
                series = curve.series.setdefault(key, Series())
                series.rollouts.append(float(place))
                series.values.append(float(cell))
    return list(curves.values())


def _cell(value: float | None, form: str) -> str:
    return "" if value is None or not math.isfinite(value) else format(value, form)
