"""The interface of a task."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, warn_of_no_effect
from lit_reason.verdict import Verdict


class Task(ABC):
    """Prompts with gold answers, and the program that judges a response.

    Attributes:
        judges: Responses are right or wrong. Without that no accuracy is reported, and what needs
            verdicts is refused.
        response_pattern: Regular expression of a well-formed response, for the `Format` reward;
            `None` if the task prescribes none.
        answer_format: Name of the way in which responses state their answer, written beside
            predictions so that they can be judged again without the task; `None` if it has none.
        of_demonstrations: Arguments that change demonstrations only, which a cold start reads.
    """

    judges: bool = True
    response_pattern: str | None = None
    answer_format: str | None = None
    of_demonstrations: tuple[str, ...] = ()

    @abstractmethod
    def __len__(self) -> int:
        """Number of problems."""

    @abstractmethod
    def __getitem__(self, index: int) -> Prompt:
        """The problem of row `index`."""

    @abstractmethod
    def verify(self, prompt: Prompt, text: str) -> bool:
        """Whether `text` answers `prompt` correctly. Never raises on any text."""

    def judge(self, prompts: list[Prompt], texts: list[str]) -> list[Verdict]:
        """The verdict on each text, an answer to the prompt beside it.

        A task overrides this to judge many responses at once, or to tell more than right and wrong.
        """
        return [Verdict.of(self.verify(p, t)) for p, t in zip(prompts, texts, strict=True)]

    def same_answers(self, pairs: list[tuple[str, str]]) -> Sequence[bool | None]:
        """Whether the two extracted answers of each pair are the same; majority votes count by it.

        A task overrides this where an answer has several spellings. After `None`, which says that
        nobody can tell, the second of the pair is compared no more.
        """
        return [a == b for a, b in pairs]

    def scoring(self, prompt: Prompt) -> dict[str, Any] | None:
        """What else judging a response needs besides the gold answer, as JSON values.

        It is written beside predictions, so that they can be judged again without the task.
        """
        return None

    def question(self, prompt: Prompt) -> str:
        """The problem without any prompt around it, to compare training and held-out problems."""
        return prompt.text

    def judge_steps(self, prompt: Prompt, text: str) -> list[tuple[int, bool]]:
        """(end of the step in characters, step is valid) of each step, for process rewards."""
        raise ConfigError(f"{type(self).__name__} does not judge steps")

    def difficulty(self, prompt: Prompt) -> float:
        """Between 0 (easiest) and 1; a curriculum shows easy demonstrations first."""
        return 0.0

    def demonstration(self, prompt: Prompt, rng: random.Random) -> str:
        """One response for the supervised cold start; it may contain mistakes."""
        raise ConfigError(f"{type(self).__name__} has no demonstrations to start from")


def warn_of_limit(limit: int | None, count: int) -> None:
    """Warns of a limit above the `count` problems that a task has."""
    if limit is not None and count < limit:
        warn_of_no_effect(f"with only {count} problems", {"task.limit": limit})
