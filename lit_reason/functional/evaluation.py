r"""Scores of repeated samples: avg@k, pass@k, maj@k."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import comb

from torch import Tensor

from lit_reason.functional._checks import check_mask, upcast


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
        ValueError: Unless ``0 <= c <= n`` and ``1 <= k <= n``.

    Example:
        >>> round(pass_at_k(n=10, c=3, k=5), 6)
        0.916667
    """
    if not 0 <= c <= n:
        raise ValueError(f"`c`={c} must lie in [0, n={n}]")
    if not 1 <= k <= n:
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

    Example:
        >>> majority_at_k(["3", "3", "7", "7"], gold="7")
        0.5
    """
    votes = Counter(answer for answer in answers if answer is not None)
    top = max(votes.values(), default=0)
    winners = [answer for answer, count in votes.items() if count == top]
    return 1.0 / len(winners) if gold in winners else 0.0
