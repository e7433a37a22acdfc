"""Reward terms that read how long a response is."""

from __future__ import annotations

import math

import torch

from lit_reason.batch import Prompt, Response
from lit_reason.errors import ConfigError, require_at_least_one
from lit_reason.functional import kimi_length, soft_overlong
from lit_reason.rewards.base import Reward
from lit_reason.tasks import Task
from lit_reason.verdict import Verdict


class SoftOverlong(Reward):
    """DAPO's soft overlong punishment (Eq. 13): 0, then a ramp of `cache` tokens down to -1.

    Args:
        cache: L_cache, width of the ramp: a number of tokens, or below 1 a share of L_max (0.2 in
            DAPO: 4,096 of 20,480 tokens).
        max_length: L_max, where the ramp ends; null takes `data.sampling.max_new_tokens`.
        weight: Multiplies the term.
    """

    directed, reads_verdicts = True, False

    def __init__(
        self, cache: float = 0.2, max_length: int | None = None, weight: float = 1.0
    ) -> None:
        super().__init__(weight)
        if not math.isfinite(cache) or (cache >= 1 and cache != int(cache)):
            raise ConfigError(
                f"SoftOverlong.cache={cache}: neither a share below 1 nor a whole number of tokens"
            )
        self.cache, self.max_length = cache, max_length

    def setup(self, task: Task, max_new_tokens: int, tokenizer: object) -> None:
        """Takes the token budget as L_max if none was given, and checks the ramp."""
        require_at_least_one("SoftOverlong", max_length=self.max_length)
        whose = "max_length" if self.max_length else "data.sampling.max_new_tokens"
        if self.max_length is None:
            self.max_length = max_new_tokens
        self.ramp = round(self.cache * self.max_length) if self.cache < 1 else int(self.cache)
        if not 0 < self.ramp <= self.max_length:
            raise ConfigError(
                f"SoftOverlong.cache={self.cache}: must be a share of L_max between 0 and 1, or a "
                f"number of tokens up to {whose}={self.max_length}"
            )
        if self.max_length - self.ramp >= max_new_tokens:
            raise ConfigError(
                f"SoftOverlong.max_length={self.max_length}: would have no effect, responses "
                f"end at data.sampling.max_new_tokens={max_new_tokens}, before the ramp; set it to "
                "null"
            )

    def __call__(
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> list[float]:
        """See `Reward.__call__`."""
        lengths = torch.tensor([r.length for r in responses])
        assert self.max_length is not None
        return soft_overlong(lengths, self.max_length, self.ramp).tolist()


class KimiLength(Reward):
    """Kimi k1.5's length reward: short correct responses gain, long ones lose, within the group."""

    compares_group = directed = True

    def __call__(
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> list[float]:
        """See `Reward.__call__`."""
        correct = torch.tensor([verdict.correct for verdict in verdicts])
        lengths = torch.tensor([r.length for r in responses])
        return kimi_length(lengths, correct).tolist()
