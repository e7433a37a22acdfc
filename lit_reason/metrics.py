"""Validation metrics over groups of k responses to each held-out problem."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_reason.functional import pass_at_k


class GroupMetrics(Metric):
    """avg@k, pass@k, truncated share, length and reward, each the mean over problems.

    Rows with `prompt_index` -1 only fill up a shard and are not counted. A problem is a group, so
    that two problems with the same text stay two.

    Args:
        k: Responses to each problem.

    Example:
        >>> metric = GroupMetrics(k=2)
        >>> verdicts = torch.tensor([[True, False], [True, True]])
        >>> metric.update(verdicts, lengths=torch.ones(2, 2))
        >>> metric.compute()["accuracy"].item()
        0.75
    """

    full_state_update = False
    names = ("accuracy", "pass_at_k", "length", "truncated", "reward")
    total: Tensor
    problems: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.add_state("total", torch.zeros(len(self.names), dtype=torch.float64), "sum")
        self.add_state("problems", torch.zeros((), dtype=torch.float64), "sum")

    def update(
        self,
        correct: Tensor,
        lengths: Tensor,
        truncated: Tensor | None = None,
        rewards: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> None:
        """Adds problems.

        Args:
            correct: (N, k) bool.
            lengths: (N, k) tokens.
            truncated: (N, k) bool.
            rewards: (N, k).
            valid: (N,) bool, False leaves a problem out.
        """
        solved = correct.sum(dim=1).tolist()
        best = torch.tensor([pass_at_k(self.k, c, self.k) for c in solved], device=correct.device)
        none = torch.zeros_like(lengths, dtype=torch.float64)
        columns = [
            correct.double().mean(1),
            best.double(),
            lengths.double().mean(1),
            (none if truncated is None else truncated.double()).mean(1),
            (none if rewards is None else rewards.double()).mean(1),
        ]
        keep = torch.ones_like(best, dtype=torch.bool) if valid is None else valid
        self.total += torch.stack(columns)[:, keep].sum(dim=1)
        self.problems += keep.sum()

    def compute(self) -> dict[str, Tensor]:
        """Means over all problems of all ranks."""
        mean = (self.total / self.problems.clamp(min=1)).float()
        return dict(zip(self.names, mean, strict=True))
