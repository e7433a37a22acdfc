"""What a rollout says of a critic: numbers for the log and curves, exact over ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_reason.advantages import monte_carlo_returns
from lit_reason.batch import Experience
from lit_reason.errors import PARTS
from lit_reason.functional import (
    Reduce,
    advantage_parts,
    effective_horizon,
    gae,
    relative_position,
    reward_share,
    unchecked_values,
)
from lit_reason.value_metrics import explained_of_sums


@dataclass(frozen=True)
class Grid:
    """Where things are measured; the same on every rank and for every rollout.

    Attributes:
        positions: Equal parts of a response, each with a logged explained variance.
        points: Points of a curve over the response. A token counts at every point that it covers,
            by its share there, so that responses of fewer tokens than points leave no gaps.
        low: Lower end of the calibration bins.
        high: Upper end.
        bins: Their number. A prediction beyond the ends counts in the outermost bin.
        length_bins: Parts into which the lengths up to the longest response are cut.
    """

    positions: int = 4
    points: int = 20
    low: float = -1.0
    high: float = 1.0
    bins: int = 10
    length_bins: int = 8


@dataclass(frozen=True)
class Diagnosis:
    """What one rollout says.

    Attributes:
        scalars: Quantities to log; without those that nothing was measured for on any rank.
        curves: Lists of numbers for a file, `None` where nothing was measured.
    """

    scalars: dict[str, float]
    curves: dict[str, Any]


@torch.no_grad()
@unchecked_values()  # a critic that has diverged is the guard's business; it shows as a gap
def diagnose(
    experience: Experience,
    gamma: float,
    longest: int,
    grid: Grid = Grid(),
    reduce: Reduce | None = None,
) -> Diagnosis:
    """Compares the values of a rollout with what followed, and its advantages with each other.

    What is said of values is over all sampled tokens of the responses that train the critic, what
    is said of advantages over the tokens that train the actor.

    Args:
        experience: The rollout of this rank, with values and rewards.
        gamma: Discount γ.
        longest: Length of the longest response of any rank.
        grid: Where to measure.
        reduce: Sums a tensor over ranks; `None` in a single process.
    """
    longest = max(longest, 1)  # of a rollout in which every response is empty
    measured = _Measured(experience, gamma, reduce)
    sums = {
        "values": measured.values(grid.points),
        "parts": measured.parts(grid.positions),
        "advantages": measured.advantages(grid.points),
        "calibration": measured.calibration(grid),
        "start": measured.start(),
        "lambda": measured.lambdas(longest, grid.length_bins),
    }
    totals = _reduced(sums, reduce)
    scalars = _of_values(totals["parts"])
    count, error = totals["start"].tolist()
    if count:
        scalars["value/bias"] = -error / count
    scalars |= measured.of_advantages(totals["lambda"])
    return Diagnosis(scalars, _curves(totals, grid, longest))


class _Measured:
    """The tensors of a rollout that diagnostics read, and their sums on this rank."""

    def __init__(self, experience: Experience, gamma: float, reduce: Reduce | None) -> None:
        assert experience.values is not None
        assert experience.rewards is not None
        self.advantage = experience.advantages
        self.lam, self.after = experience.lam, experience.after
        self.predicted, self.rewards = experience.values, experience.rewards
        self.gamma, self.reduce = gamma, reduce
        rollout = experience.rollout
        self.mask = rollout.policy_mask
        self.verdict = rollout.right[:, None] % 3  # 2 where nobody judged
        # a warm-up on last tokens is judged at all tokens too
        self.seen = self.mask & rollout.value_mask.any(dim=1, keepdim=True)
        self.acting = self.mask & rollout.loss_mask
        self.returns = monte_carlo_returns(self.rewards, self.mask, gamma, self.after)
        self.errors = self.returns - self.predicted
        self.td = gae(self.rewards, self.predicted, self.mask, gamma, 0.0, self.after)
        self.moments = self._moments()

    def _moments(self) -> list[Tensor]:
        """R, R², E, E², δ, δ² of each token.

        R, E and δ are taken from their means over all ranks, so that the squares do not cancel.
        What is not finite is left out of the means, and spoils only the places where it is.
        """
        columns = [x.double() for x in (self.returns, self.errors, self.td)]
        totals = [x[self.seen].nan_to_num(0.0, 0.0, 0.0).sum() for x in columns]
        first = torch.stack([self.seen.sum().double(), *totals])
        count, *means = first if self.reduce is None else self.reduce(first)
        centred = [x - mean / count.clamp(min=1) for x, mean in zip(columns, means, strict=True)]
        return [y for x in centred for y in (x, x**2)]

    def values(self, points: int) -> Tensor:
        """(verdicts, points, 6): n, R, R², E, E², V by verdict and point."""
        return self._along(self.seen, points, *self.moments[:4], self.predicted)

    def parts(self, positions: int) -> Tensor:
        """(positions, 7): n, R, R², E, E², δ, δ² by equal parts of a response."""
        place = relative_position(self.mask, positions).masked_fill(~self.seen, -1)
        return sums_by(place, positions, *self.moments)

    def advantages(self, points: int) -> Tensor:
        """(verdicts, points, 2): n and A by verdict and point."""
        return self._along(self.acting, points, self.advantage)

    def calibration(self, grid: Grid) -> Tensor:
        """(bins, 3): n, V and R of the tokens whose V lies in a bin."""
        width = (grid.high - grid.low) / grid.bins
        place = ((self.predicted - grid.low) / width).floor().nan_to_num(0.0)
        place = place.clamp(0, grid.bins - 1).long().masked_fill(~self.seen, -1)
        return sums_by(place, grid.bins, self.predicted, self.returns)

    def start(self) -> Tensor:
        """(2,): the number of responses, and R - V before their first token."""
        first = self.seen & (self.mask.cumsum(1) == 1)
        return torch.stack([first.sum().double(), self.errors[first].double().sum()])

    def lambdas(self, longest: int, bins: int) -> Tensor:
        """(bins, 3): n, λ and effective horizon of the responses whose length lies in a bin."""
        lengths, lam = self.mask.sum(dim=1), self.lam
        if lam is None:
            return torch.zeros(bins, 3, dtype=torch.float64, device=lengths.device)
        place = (lengths * bins).div(longest, rounding_mode="floor").clamp(max=bins - 1)
        place = place.masked_fill(~self.acting.any(dim=1), -1)
        return sums_by(place, bins, lam, effective_horizon(lengths, lam, self.gamma))

    def of_advantages(self, lambdas: Tensor) -> dict[str, float]:
        """The effective horizon, and how much of the advantages the rewards make."""
        count, _, horizon = lambdas.sum(dim=0).tolist()
        if self.lam is None or not count:
            return {}
        given = self.rewards, self.predicted, self.mask, self.gamma, self.lam, self.after
        parts = advantage_parts(*given)
        share = reward_share(*parts, self.acting, reduce=self.reduce)
        return {"gae/horizon": horizon / count, "advantage/reward_share": float(share)}

    def _along(self, mask: Tensor, points: int, *columns: Tensor) -> Tensor:
        """(verdicts, points, 1 + columns): sums over the tokens that cover each point.

        Token i of l covers [n i, n (i + 1)) where point p covers [l p, l (p + 1)).
        """
        length = self.mask.sum(dim=1, keepdim=True)
        place, shortest = self.mask.cumsum(1) - 1, length[length > 0].min() if length.any() else 1
        first = place * points // length.clamp(min=1)
        sums = torch.zeros(3 * points, 1 + len(columns), dtype=torch.float64, device=mask.device)
        for point in (first + step for step in range(min(points // int(shortest) + 2, points))):
            start = torch.maximum(place * points, point * length)
            end = torch.minimum((place + 1) * points, (point + 1) * length)
            cell = (self.verdict * points + point).masked_fill(~mask | (start >= end), -1)
            sums += sums_by(cell, 3 * points, *columns, weight=(end - start) / points)
        return sums.view(3, points, -1)


def sums_by(place: Tensor, size: int, *columns: Tensor, weight: Tensor | None = None) -> Tensor:
    """Counts and sums over the entries of each place.

    Args:
        place: (*) int64 in [0, size), or -1: counts nowhere.
        size: Number of places.
        *columns: (*) each.
        weight: (*) how much an entry counts; `None` is 1 each.

    Returns:
        (size, 1 + columns) float64.

    Example:
        >>> sums_by(torch.tensor([0, 2, 0, -1]), 3, torch.tensor([1.0, 2.0, 3.0, 9.0]))
        tensor([[2., 4.],
                [0., 0.],
                [1., 2.]], dtype=torch.float64)
    """
    flat = place.flatten() + 1
    counts = (torch.ones_like(place) if weight is None else weight).double()
    sums = [
        torch.zeros(size + 1, dtype=torch.float64, device=flat.device).index_add_(
            0, flat, column.flatten()
        )
        for column in (counts, *(counts * x.double() for x in columns))
    ]
    return torch.stack(sums, dim=1)[1:]


def _reduced(sums: dict[str, Tensor], reduce: Reduce | None) -> dict[str, Tensor]:
    """All sums over all ranks, in one reduction."""
    flat = torch.cat([x.flatten() for x in sums.values()])
    total = flat if reduce is None else reduce(flat)
    parts = total.cpu().split([x.numel() for x in sums.values()])
    return {name: part.view_as(sums[name]) for name, part in zip(sums, parts, strict=True)}


def _of_values(parts: Tensor) -> dict[str, float]:
    """Explained variance by equal parts of a response, and the spread of TD errors."""
    scalars = {
        f"value/explained_variance_{i + 1}": explained_of_sums(part[:5])
        for i, part in enumerate(parts)
        if part[0]
    }
    count, td, squares = parts.sum(dim=0)[[0, 5, 6]].tolist()
    if count:
        scalars["value/td_variance"] = squares / count - (td / count) ** 2
    return scalars


def _curves(sums: dict[str, Tensor], grid: Grid, longest: int) -> dict[str, Any]:
    values, advantages = sums["values"], sums["advantages"]
    calibration, lambdas = sums["calibration"], sums["lambda"]
    edges = [grid.low + (grid.high - grid.low) * i / grid.bins for i in range(grid.bins + 1)]
    return {
        "value": _by_verdict(values[..., 0], values[..., 5]),
        "explained_variance": [number(explained_of_sums(x[:5])) for x in values.sum(dim=0)],
        "advantage": _by_verdict(advantages[..., 0], advantages[..., 1]),
        "calibration": {
            "edges": [number(x) for x in edges],
            "count": calibration[:, 0].long().tolist(),
            "predicted": means(calibration[:, 0], calibration[:, 1]),
            "realised": means(calibration[:, 0], calibration[:, 2]),
        },
        "lambda": {
            "edges": [number(longest * i / grid.length_bins) for i in range(grid.length_bins + 1)],
            "count": lambdas[:, 0].long().tolist(),
            "mean": means(lambdas[:, 0], lambdas[:, 1]),
        },
    }


def _by_verdict(count: Tensor, total: Tensor) -> dict[str, list[float | None]]:
    """Means along the response: of wrong, of correct and of all, the unjudged among these."""
    return {
        "correct": means(count[1], total[1]),
        "wrong": means(count[0], total[0]),
        "all": means(count.sum(dim=0), total.sum(dim=0)),
    }


def means(count: Tensor, total: Tensor) -> list[float | None]:
    """`total / count`, `None` where nothing was counted or the total is not finite."""
    pairs = zip(count.tolist(), total.tolist(), strict=True)
    return [number(x / n) if n else None for n, x in pairs]


def number(x: float) -> float | None:
    """Six digits of a number, `None` if it is not finite: files stay small and valid JSON."""
    return float(f"{x:.6g}") if math.isfinite(x) else None


def check_grid(grid: Grid) -> Sequence[str]:
    """What is wrong with a grid, each as `name=value: rule`."""
    counts = {n: getattr(grid, n) for n in ("positions", "points", "bins", "length_bins")}
    wrong = [f"{n}={value}: must be at least 1" for n, value in counts.items() if value < 1]
    wrong += [f"{n}={v}: must be at most {PARTS}" for n, v in counts.items() if v > PARTS]
    if not -math.inf < grid.low < grid.high < math.inf:
        wrong.append(f"low={grid.low}, high={grid.high}: low must be below high, both finite")
    return wrong
