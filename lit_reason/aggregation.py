"""How per-token losses become one number: the loss aggregations that a config can name.

An aggregation is a weight for each token and a local count; the loss is
`sum(weights * loss) / global count`, so that it does not depend on how the mini-batch is split
into micro-batches or over ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from lit_reason.errors import ConfigError
from lit_reason.functional import constant_weights, prompt_weights, sequence_weights, token_weights


class Aggregation(ABC):
    """Base class of loss aggregations."""

    @abstractmethod
    def __call__(self, mask: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Weighs the tokens of one mini-batch.

        Args:
            mask: (B, T) bool, tokens that the loss term counts.
            group_ids: (B,) int64, responses to one prompt share an id.

        Returns:
            Weights (B, T), zero outside `mask`, and the local count ().
        """


class TokenMean(Aggregation):
    """Mean over all tokens of the mini-batch (DAPO Eq. 8 as published code runs it; VAPO Eq. 8)."""

    def __call__(self, mask: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `Aggregation.__call__`."""
        return token_weights(mask)


class SequenceMean(Aggregation):
    """Mean over responses of the mean over their tokens (GRPO, arXiv 2402.03300, Eq. 3)."""

    def __call__(self, mask: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `Aggregation.__call__`."""
        return sequence_weights(mask)


class PromptMean(Aggregation):
    """Mean over prompts of the mean over all tokens of its responses (DAPO Eq. 8, literally)."""

    def __call__(self, mask: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `Aggregation.__call__`."""
        return prompt_weights(mask, group_ids)


class ConstantLength(Aggregation):
    """Sum over tokens divided by a constant, mean over responses (Dr. GRPO, arXiv 2503.20783).

    Args:
        length: The constant, usually the token budget of a response.
    """

    def __init__(self, length: int) -> None:
        if length < 1:
            raise ConfigError(f"aggregation.length={length}: must be at least 1 token")
        self.length = length

    def __call__(self, mask: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `Aggregation.__call__`."""
        return constant_weights(mask, self.length)
