"""What a reward term is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from lit_reason.batch import Prompt, Response
from lit_reason.errors import SMALLEST, ConfigError
from lit_reason.tasks import Task
from lit_reason.verdict import Verdict

LARGEST = 1e18  # reward; its square is still a number in float32


class Reward(ABC):
    """One named term of the reward, computed for the responses to one prompt together.

    Args:
        weight: Multiplies the term; 0 is refused, drop the term instead.

    Attributes:
        per_token: The term rewards single tokens.
        compares_group: The term says nothing of a single response.
        needs_verdicts: The term says something only where a task tells right from wrong.
        reads_verdicts: The term may depend on the verdict.
        directed: Its values say which responses are better, so that a negative weight trains for
            the worse ones.
        required: A response for which the term gives `None` is unscored, whatever other terms say.
            Of any other term `None` only leaves the term out.
        when_silent: What to do about a term that gives no value at all, for a warning.
    """

    per_token: ClassVar[bool] = False
    compares_group: ClassVar[bool] = False
    needs_verdicts: ClassVar[bool] = False
    reads_verdicts: ClassVar[bool] = True
    directed: ClassVar[bool] = False
    required: bool = False
    when_silent: ClassVar[str] = "see why it returns None"
    weight: float = 1.0

    def __init__(self, weight: float = 1.0) -> None:
        self.check_values(weight=weight)
        if abs(weight) < SMALLEST:
            raise ConfigError(
                f"{type(self).__name__}.weight={weight:g}: the term would have no effect; set it "
                "to null"
            )
        self.weight = weight

    def check_values(self, **values: float) -> None:
        """Refuses arguments with which rewards would be refused, before anything runs.

        Args:
            **values: Arguments that are rewards, or factors of them, by name.

        Raises:
            ConfigError: The first that is nan, infinite or too large, also with the weight.
        """
        for name, value in values.items():
            key = f"{type(self).__name__}.{name}={value}"
            if not math.isfinite(value):
                raise ConfigError(f"{key}: must be finite")
            if not abs(self.weight * value) < LARGEST:
                raise ConfigError(f"{key}: makes rewards of {LARGEST:.0e} and beyond; lower it")

    @property
    def called(self) -> str:
        """What computes the values, for messages."""
        return type(self).__name__

    def bind(self, module: Any) -> None:  # noqa: B027
        """Called before `setup` with the `ReasonModule`, whose device a term may follow."""

    def setup(self, task: Task, max_new_tokens: int, tokenizer: object) -> None:  # noqa: B027
        """Called once before the first rollout with what the term may need to know."""

    def check(self, task: Task, key: str) -> None:  # noqa: B027
        """Called at set-up with each task whose responses the term will score.

        Args:
            task: The task.
            key: `data.task` or `data.val_task`, for messages.

        Raises:
            ConfigError: The task does not give what the term reads.
        """

    @abstractmethod
    def __call__(
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> Sequence[float | None]:
        """Scores the G responses of one group, before `weight`.

        Args:
            prompt: The problem.
            responses: Its G responses.
            verdicts: The task's verdict on each.

        Returns:
            One value a response; `None` where the term cannot say. A response to which no term, or
            not every `required` one, gives a value does not train, and its group is judged without
            it.
        """


class TokenReward(Reward):
    """A term that rewards single tokens (process supervision)."""

    per_token = True

    @abstractmethod
    def __call__(  # type: ignore[override]
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> list[list[float | None]]:
        """For each response one value per sampled token; `None` where nothing is judged."""
