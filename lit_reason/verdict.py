"""What a task says of a response."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """How the judgement of a response ended."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"  # the response states none where the task looks for it
    TIMEOUT = "timeout"  # the verifier did not finish in time
    ERROR = "error"  # the verifier failed
    UNJUDGED = "unjudged"  # the task judges no response


FAILURES = (Status.TIMEOUT, Status.ERROR)
"""The judgement did not come to an end: the response may be right."""


class Verdict(NamedTuple):
    """The judgement of one response.

    Attributes:
        status: How it ended.
        answer: The answer found in the response; `None` if there is none or the task extracts none.
    """

    status: Status
    answer: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the response is right."""
        return self.status is Status.CORRECT

    @classmethod
    def of(cls, correct: bool, answer: str | None = None) -> Verdict:
        """The verdict of a task that only knows right and wrong.

        Raises:
            TypeError: `correct` is neither True nor False: a function without a `return` is no
                judgement.
        """
        if correct not in (True, False):
            raise TypeError(f"a verdict must be True or False, not {correct!r}")
        return cls(Status.CORRECT if correct else Status.WRONG, answer)
