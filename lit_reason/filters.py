"""Which groups of responses are worth training on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor


class GroupFilter(ABC):
    """Keeps or drops whole groups before the update; the loader refills what is dropped.

    Attributes:
        needs_verdicts: It reads `correct`, so it is refused with a task that judges no response.
    """

    needs_verdicts: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, correct: Tensor, rewards: Tensor, scored: Tensor) -> Tensor:
        """Decides on groups.

        Args:
            correct: (N, G) bool, the task's verdicts.
            rewards: (N, G) float32, the shaped rewards.
            scored: (N, G) bool, False where no reward term gave a value: not to be looked at.

        Returns:
            (N,) bool: True keeps the group.
        """


class DropUniform(GroupFilter):
    """DAPO's dynamic sampling: 0 < |{correct}| < G (arXiv 2503.14476, Eq. 8).

    It reads the verdict, not the reward: length penalties would make an all-wrong group look mixed.
    Unscored responses do not train and count for neither side.

    Example:
        >>> import torch
        >>> correct = torch.tensor([[True, True], [True, False], [False, False]])
        >>> DropUniform()(correct, correct.float(), torch.ones_like(correct)).tolist()
        [False, True, False]
    """

    needs_verdicts = True

    def __call__(self, correct: Tensor, rewards: Tensor, scored: Tensor) -> Tensor:
        """See `GroupFilter.__call__`."""
        return (correct & scored).any(dim=1) & (~correct & scored).any(dim=1)
