"""How well a critic predicts on held-out problems, exact over batches and ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_reason.functional import last_token, relative_position


class ValueMetrics(Metric):
    r"""Explained variance of the critic and its bias before the first token.

    .. math:: \mathrm{EV} = 1 - \mathrm{Var}(R - V) / \mathrm{Var}(R), \qquad
              \mathrm{bias} = \overline{V(s_0)} - \overline{R}

    Over all tokens of all responses, by relative position in the response, and at its last token. 0
    where the returns do not vary, and NaN where there is no token. The state is sums in float64, so
    that it does not depend on batches or ranks.

    Args:
        positions: Equal parts of a response, each with an explained variance of its own.

    Example:
        >>> metric = ValueMetrics(positions=2)
        >>> returns = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
        >>> values = returns * torch.tensor([0.0, 0.5])  # sees the outcome halfway
        >>> metric.update(values, returns, torch.ones(2, 2, dtype=torch.bool))
        >>> scores = metric.compute()
        >>> [scores[f"explained_variance_{i}"] for i in (1, 2)], scores["bias"]
        ([0.0, 0.75], 0.0)
    """

    full_state_update = False
    sums: Tensor
    last: Tensor
    start: Tensor

    def __init__(self, positions: int = 4) -> None:
        super().__init__()
        self.positions = positions
        shape = (positions, 5)
        self.add_state("sums", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("last", torch.zeros(5, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("start", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self, values: Tensor, returns: Tensor, mask: Tensor, trains: Tensor | None = None
    ) -> None:
        """Adds responses.

        Args:
            values: (B, T) V before each token.
            returns: (B, T) what followed.
            mask: (B, T) bool: the token was sampled.
            trains: (B, T) bool: it would train the critic, so that it counts; `None` is all.
        """
        part, sampled = relative_position(mask, self.positions), mask
        mask = sampled if trains is None else sampled & trains
        r, e = returns.double(), (returns - values).double()
        columns = torch.stack([torch.ones_like(r), r, r**2, e, e**2], dim=-1)
        for i in range(self.positions):
            self.sums[i] += columns[mask & (part == i)].sum(dim=0)
        self.last += columns[mask & last_token(sampled)].sum(dim=0)
        first = sampled & (sampled.cumsum(1) == 1) & mask.any(dim=1, keepdim=True)
        self.start += torch.stack([first.sum().double(), -e[first].sum()])

    def compute(self) -> dict[str, float]:
        """`explained_variance`, that of each part as `_1` to `_N`, that of `_last`, and `bias`."""
        parts = {f"explained_variance_{i + 1}": row for i, row in enumerate(self.sums)}
        scores = {"explained_variance": explained_of_sums(self.sums.sum(dim=0))}
        scores |= {name: explained_of_sums(row) for name, row in parts.items()}
        scores["explained_variance_last"] = explained_of_sums(self.last)
        count, total = self.start.tolist()
        return {**scores, "bias": total / max(count, 1.0)}


def explained_of_sums(sums: Tensor) -> float:
    """Explained variance of n returns R with errors E = R - V.

    0 where the returns do not vary, and NaN where there are none.

    Args:
        sums: (5,) float64: n and the sums of R, R², E and E², of which any constant may have been
            subtracted first.
    """
    n, r, rr, e, ee = sums.tolist()
    if n == 0:
        return math.nan
    total, residual = rr - r * r / n, ee - e * e / n
    # rounding of equal returns leaves a spread of about eps
    return 0.0 if total <= 1e-12 * max(rr, 1e-300) else 1.0 - residual / total
