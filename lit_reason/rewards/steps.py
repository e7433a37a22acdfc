"""Reward terms for single tokens."""

from __future__ import annotations

from lit_reason.batch import Prompt, Response
from lit_reason.errors import ConfigError
from lit_reason.rewards.base import TokenReward
from lit_reason.tasks import Task
from lit_reason.verdict import Verdict


class StepCorrectness(TokenReward):
    """Process supervision: +right / wrong on the last token of each step that the task judges.

    Args:
        right: Reward of a valid step.
        wrong: Reward of an invalid one.
        weight: Multiplies the term.
    """

    directed = True

    def __init__(self, right: float = 1.0, wrong: float = -1.0, weight: float = 1.0) -> None:
        super().__init__(weight)
        self.check_values(right=right, wrong=wrong)
        self.right, self.wrong = right, wrong

    def setup(self, task: Task, max_new_tokens: int, tokenizer: object) -> None:
        """Keeps the task, whose `judge_steps` knows where steps end."""
        if type(task).judge_steps is Task.judge_steps:
            raise ConfigError(
                f"StepCorrectness: {type(task).__name__} does not judge steps; "
                "implement judge_steps, or drop the term"
            )
        self.task, self.tokenizer = task, tokenizer

    def __call__(  # type: ignore[override]
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> list[list[float | None]]:
        """See `TokenReward.__call__`."""
        return [self._steps(prompt, response) for response in responses]

    def _steps(self, prompt: Prompt, response: Response) -> list[float | None]:
        rewards: list[float | None] = [None] * response.length
        for end, valid in self.task.judge_steps(prompt, response.text):
            rewards[self._token_at(response, end)] = self.right if valid else self.wrong
        return rewards

    def _token_at(self, response: Response, end: int) -> int:
        """First token after which the decoded text has `end` characters."""
        low, high = 1, response.length
        while low < high:
            middle = (low + high) // 2
            text = self.tokenizer.decode(  # type: ignore[attr-defined]
                list(response.ids[:middle]), skip_special_tokens=True
            )
            low, high = (low, middle) if len(text) >= end else (middle + 1, high)
        return low - 1
