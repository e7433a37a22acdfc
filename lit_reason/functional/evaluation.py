r"""Scores of repeated samples: avg@k, pass@k, maj@k, and how sure they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import comb

import torch
from torch import Tensor

from lit_reason.functional._checks import (
    Fault,
    check_dim,
    check_integers,
    check_mask,
    check_positive,
    check_values,
    check_whole,
    upcast,
)


def mean_at_k(correct: Tensor) -> Tensor:
    r"""Share of a problem's k samples that are right: avg@k, an estimate of pass@1.

    :math:`\frac1k \sum_i [o_i \text{ is right}]`. DAPO (arXiv:2503.14476) section 4.1 reports it
    with k = 32. Average over problems yourself.

    Args:
        correct: Verdicts of the k samples of each problem.

    Shapes:
        correct ``(*, k)`` bool; returns ``(*)`` float32.

    Raises:
        ValueError: If there is no sample or `correct` is not boolean.

    Example:
        >>> import torch
        >>> mean_at_k(torch.tensor([[False, True, True, True], [False, True, False, False]]))
        tensor([0.7500, 0.2500])
    """
    check_mask(correct.shape, correct=correct)
    if correct.ndim == 0 or correct.shape[-1] == 0:
        raise ValueError(f"`correct` of shape {tuple(correct.shape)} holds no sample")
    return upcast(correct).mean(-1)


def pass_at_k(n: int, c: int, k: int) -> float:
    r"""Unbiased chance that at least one of k samples is right.

    .. math:: 1 - \binom{n-c}{k} \Big/ \binom{n}{k}

    Codex (arXiv:2107.03374) Eq. 1. The plug-in :math:`1 - (1 - c/n)^k` is biased downwards.

    Args:
        n: Samples drawn.
        c: Samples that are right.
        k: Samples allowed.

    Returns:
        The probability, in [0, 1].

    Raises:
        ValueError: Unless ``0 <= c <= n`` and ``1 <= k <= n``, all whole numbers.

    Example:
        >>> round(pass_at_k(n=10, c=3, k=5), 6)
        0.916667
    """
    check_whole(1, n=n, k=k)
    check_whole(0, c=c)
    if not c <= n:
        raise ValueError(f"`c`={c} must lie in [0, n={n}]")
    if not k <= n:
        raise ValueError(f"`k`={k} must lie in [1, n={n}]")
    return (comb(n, k) - comb(n - c, k)) / comb(n, k)


def majority_at_k(answers: Sequence[Hashable | None], gold: Hashable) -> float:
    r"""Credit of the most frequent answer: maj@k, also called cons@k.

    :math:`[a^\ast \in W] / |W|` with :math:`W = \arg\max_a |\{i : a_i = a\}|`. Of m answers tied
    for most frequent, each gets 1/m of the credit: the expectation over a random tie-break, the
    same for every order of the samples (arXiv:2203.11171 leaves ties open).

    Args:
        answers: Normalised answers of the k samples; None (nothing extracted) casts no vote.
        gold: The right answer, normalised alike.

    Returns:
        The credit, in [0, 1]; 0 if no sample votes.

    Raises:
        ValueError: If `answers` is one string, whose characters would be counted, or holds tensors,
            of which no two are the same answer.

    Example:
        >>> majority_at_k(["3", "3", "7", "7"], gold="7")
        0.5
    """
    if isinstance(answers, str | bytes) or any(isinstance(a, Tensor) for a in answers):
        raise ValueError(
            f"`answers`={answers!r:.60} must be a sequence of answers; of a tensor, a list"
        )
    votes = Counter(answer for answer in answers if answer is not None)
    top = max(votes.values(), default=0)
    winners = [answer for answer, count in votes.items() if count == top]
    return 1.0 / len(winners) if gold in winners else 0.0


def majority_of_classes(classes: Tensor, correct: Tensor) -> Tensor:
    r"""Credit of the most frequent answer of each problem: maj@k over classes of equal answers.

    .. math:: \sum_i [c_i \in W]\,[i\ \mathrm{correct}] \Big/ \sum_i [c_i \in W]

    W is the set of the most frequent classes (self-consistency, arXiv:2203.11171). The rule for
    ties is that of :func:`majority_at_k`: of m classes tied for most frequent, each gets 1/m of the
    credit. A class whose members were not all judged alike counts with the share of them that is
    right.

    Args:
        classes: Number of the class of each sample's answer; below 0 casts no vote.
        correct: Verdicts of the samples.

    Shapes:
        classes ``(*, k)`` int, correct ``(*, k)`` bool; returns ``(*)`` float32.

    Raises:
        ValueError: If the shapes differ, `classes` does not hold integers, `correct` is not
            boolean, or there is no sample.

    Example:
        >>> classes = torch.tensor([[0, 0, 1, 1], [2, 5, 5, -1]])
        >>> correct = torch.tensor([[False, False, True, True], [False, True, True, False]])
        >>> majority_of_classes(classes, correct)
        tensor([0.5000, 1.0000])
    """
    check_integers(classes=classes)
    check_mask(classes.shape, correct=correct)
    if classes.ndim == 0 or classes.shape[-1] == 0:
        raise ValueError(f"`classes` of shape {tuple(classes.shape)} holds no sample")
    votes = classes >= 0
    same = classes[..., :, None] == classes[..., None, :]
    count = same.sum(-1).masked_fill(~votes, 0)
    winners = votes & (count == count.amax(-1, keepdim=True))
    # tied classes have equally many members, so the mean over members is the mean over classes
    return (winners & correct).sum(-1) / winners.sum(-1).clamp(min=1)


def bootstrap_interval(
    values: Tensor, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[Tensor, Tensor]:
    r"""Percentile bootstrap interval of column means, with rows drawn with replacement.

    The ends are the :math:`(1-q)/2` and :math:`(1+q)/2` quantiles of the means of the resamples,
    for a coverage q. The rows are problems and the values means over a problem's samples: drawing
    problems accounts for the choice of problems and for the chance in sampling from the model
    (Efron, 1979). All columns use the same draws. A nan is left out of its column's means.

    With few rows, or a mean near an end of its range, the interval is too narrow; if all rows are
    equal it has no width.

    Args:
        values: One row a problem, one column a quantity, each in its own unit.
        resamples: Number of draws.
        level: Coverage aimed at.
        seed: Of the draws: the same values give the same interval.

    Returns:
        The lower and the upper ends.

    Shapes:
        values ``(N, C)``; returns two ``(C,)`` float64 on the CPU, nan for a column without values.

    Raises:
        ValueError: On a wrong shape, an infinite value, no whole number of resamples above 0, or
            a level outside (0, 1).

    Example:
        >>> low, high = bootstrap_interval(torch.tensor([[0.0], [1.0], [1.0], [1.0]]))
        >>> low.item(), high.item()
        (0.25, 1.0)
    """
    check_dim(2, values=values)
    check_whole(1, resamples=resamples)
    check_whole(-(2**63), 2**63 - 1, seed=seed)
    check_positive(level=level)
    if level >= 1:
        raise ValueError(f"`level`={level} must be in (0, 1)")
    check_values([Fault("values", values.shape, "infinite value(s)", values.isinf())])
    rows, columns = values.shape
    if rows == 0 or columns == 0:
        empty = torch.full((columns,), torch.nan, dtype=torch.float64)
        return empty, empty
    values = values.detach().cpu().double()
    known = ~values.isnan()
    both = torch.cat([values.nan_to_num(), known.double()], dim=1)  # (N, 2C)
    generator = torch.Generator().manual_seed(int(seed))
    means = []
    for size in _blocks(resamples, rows):
        drawn = torch.randint(rows, (size, rows), generator=generator)
        times = torch.zeros(size, rows).scatter_add_(1, drawn, torch.ones(size, rows))
        total, count = (times.double() @ both).split(columns, dim=1)
        means.append(total / count)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.cat(means).nanquantile(ends, dim=0)
    return low, high


def _blocks(resamples: int, rows: int) -> list[int]:
    """Sizes of blocks of resamples that need at most 32 MiB each."""
    size = max(2**22 // rows, 1)
    return [min(size, resamples - start) for start in range(0, resamples, size)]
