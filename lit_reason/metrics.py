"""The torchmetrics form of `lit_reason.scores`: exact over batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lit_reason.scores import Samples, powers_of_two, problem_scores, score_names, summarise


class GroupMetrics(Metric):
    """Scores of k responses to each held-out problem, with intervals, over all and by data set.

    The state holds one row a problem, so that the bootstrap draws from the problems of all ranks
    and the result does not depend on which rank had which. A problem is known by its index; two
    problems with the same text stay two.

    Args:
        k: Responses to each problem.
        pass_k: Numbers of allowed samples of pass@k; `None` takes powers of two up to `k`.
        sources: Names of the data sets that `Samples.source` numbers.

    Example:
        >>> import torch
        >>> metric = GroupMetrics(k=2)
        >>> status = torch.tensor([[0, 1], [0, 0]])  # right and wrong, twice right
        >>> zeros = torch.zeros_like(status)
        >>> index = torch.arange(2)
        >>> metric.update(Samples(index, zeros[:, 0], status, status, zeros, zeros.bool()))
        >>> values = metric.compute()
        >>> values["accuracy"], values["pass_at_2"], values["maj_at_2"]
        (0.75, 1.0, 0.75)
    """

    full_state_update = False
    scores: list[Tensor]
    index: list[Tensor]
    source: list[Tensor]

    def __init__(
        self, k: int, pass_k: Sequence[int] | None = None, sources: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.k, self.pass_k = k, powers_of_two(k) if pass_k is None else list(pass_k)
        self.sources = tuple(sources)
        for name in ("scores", "index", "source"):
            self.add_state(name, [], "cat")

    def update(self, samples: Samples) -> None:
        """Adds problems; there may be none."""
        self.scores.append(problem_scores(samples, self.pass_k))
        self.index.append(samples.index)
        self.source.append(samples.source)

    def compute(self) -> dict[str, float]:
        """See `summarise`; empty without a problem."""
        if not len(self.scores):
            return {}
        scores, index, source = map(dim_zero_cat, (self.scores, self.index, self.source))
        return summarise(score_names(self.k, self.pass_k), scores, index, source, self.sources)
