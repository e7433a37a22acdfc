"""The reward terms that a config can name; a run's reward is the sum of its named terms."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch

from lit_reason.batch import Prompt, Response
from lit_reason.errors import ConfigError
from lit_reason.functional import kimi_length, soft_overlong
from lit_reason.tasks import Task


class Reward(ABC):
    """One named term of the reward, computed for the responses to one prompt together.

    Args:
        weight: Multiplies the term; 0 is refused, drop the term instead.
    """

    per_token: ClassVar[bool] = False

    def __init__(self, weight: float = 1.0) -> None:
        if weight == 0:
            raise ConfigError(
                f"{type(self).__name__}.weight=0: the term would have no effect; set it to null"
            )
        self.weight = weight

    def setup(self, task: Task, max_new_tokens: int, tokenizer: object) -> None:  # noqa: B027
        """Called once before the first rollout with what the term may need to know."""

    @abstractmethod
    def __call__(
        self, prompt: Prompt, responses: list[Response], correct: list[bool]
    ) -> list[float]:
        """Scores the G responses of one group, before `weight`.

        Args:
            prompt: The problem.
            responses: Its G responses.
            correct: The task's verdict on each.
        """


class TokenReward(Reward):
    """A term that rewards single tokens (process supervision)."""

    per_token = True

    @abstractmethod
    def __call__(  # type: ignore[override]
        self, prompt: Prompt, responses: list[Response], correct: list[bool]
    ) -> list[list[float | None]]:
        """For each response one value per sampled token; `None` where nothing is judged."""


class Correctness(Reward):
    """The task's verdict as a reward.

    Args:
        right: Reward of a correct response (+1 in VC-PPO, DAPO and VAPO).
        wrong: Reward of any other (-1 there, 0 in Open-Reasoner-Zero).
        weight: Multiplies the term.
    """

    def __init__(self, right: float = 1.0, wrong: float = -1.0, weight: float = 1.0) -> None:
        super().__init__(weight)
        self.right, self.wrong = right, wrong

    def __call__(
        self, prompt: Prompt, responses: list[Response], correct: list[bool]
    ) -> list[float]:
        """See `Reward.__call__`."""
        return [self.right if c else self.wrong for c in correct]


class SoftOverlong(Reward):
    """DAPO's soft overlong punishment (Eq. 13): 0, then a ramp of `cache` tokens down to -1.

    Args:
        cache: L_cache, width of the ramp: a number of tokens, or below 1 a share of L_max (0.2 in
            DAPO: 4,096 of 20,480 tokens).
        max_length: L_max, where the ramp ends; null takes `data.sampling.max_new_tokens`.
        weight: Multiplies the term.
    """

    def __init__(
        self, cache: float = 0.2, max_length: int | None = None, weight: float = 1.0
    ) -> None:
        super().__init__(weight)
        self.cache, self.max_length = cache, max_length

    def setup(self, task: Task, max_new_tokens: int, tokenizer: object) -> None:
        """Takes the token budget as L_max if none was given, and checks the ramp."""
        if self.max_length is None:
            self.max_length = max_new_tokens
        self.ramp = round(self.cache * self.max_length) if self.cache < 1 else int(self.cache)
        if not 0 < self.ramp <= self.max_length:
            raise ConfigError(
                f"SoftOverlong.cache={self.cache}: must be a share of L_max between 0 and 1, or a "
                f"number of tokens up to max_length={self.max_length} "
                "(data.sampling.max_new_tokens)"
            )
        if self.max_length - self.ramp >= max_new_tokens:
            raise ConfigError(
                f"SoftOverlong.max_length={self.max_length}: would have no effect, responses "
                f"end at data.sampling.max_new_tokens={max_new_tokens}, before the ramp; set it to "
                "null"
            )

    def __call__(
        self, prompt: Prompt, responses: list[Response], correct: list[bool]
    ) -> list[float]:
        """See `Reward.__call__`."""
        lengths = torch.tensor([r.length for r in responses])
        assert self.max_length is not None
        return soft_overlong(lengths, self.max_length, self.ramp).tolist()


class KimiLength(Reward):
    """Kimi k1.5's length reward: short correct responses gain, long ones lose, within the group."""

    def __call__(
        self, prompt: Prompt, responses: list[Response], correct: list[bool]
    ) -> list[float]:
        """See `Reward.__call__`."""
        lengths = torch.tensor([r.length for r in responses])
        return kimi_length(lengths, torch.tensor(correct)).tolist()


class Format(Reward):
    """1 if the whole response matches a pattern, else 0 (DeepSeek-R1's format reward).

    Args:
        pattern: Regular expression over the whole response; null takes the task's own format.
        weight: Multiplies the term.
    """

    def __init__(self, pattern: str | None = None, weight: float = 1.0) -> None:
        super().__init__(weight)
        self.pattern = pattern

    def setup(self, task: Task, max_new_tokens: int, tokenizer: object) -> None:
        """Takes the task's pattern if none was given."""
        self.pattern = self.pattern or task.response_pattern
        if self.pattern is None:
            raise ConfigError(
                f"Format.pattern=null: {type(task).__name__} declares no format; give a pattern "
                r"such as '<think>.*</think>\s*<answer>.*</answer>'"
            )
        try:
            self.regex = re.compile(self.pattern, re.DOTALL)
        except re.error as error:
            raise ConfigError(
                f"Format.pattern={self.pattern}: not a regular expression ({error})"
            ) from error

    def __call__(
        self, prompt: Prompt, responses: list[Response], correct: list[bool]
    ) -> list[float]:
        """See `Reward.__call__`."""
        return [float(self.regex.fullmatch(r.text.strip()) is not None) for r in responses]


class LanguageConsistency(Reward):
    """Share of the response's words in the target language's script (DeepSeek-R1 §2.3.2).

    A word is a run of letters; each ideograph is a word of its own. Digits, signs and formulas
    without letters do not count; a response without any word scores 0.

    Args:
        script: Unicode script of the target language.
        weight: Multiplies the term.
    """

    def __init__(
        self,
        script: Literal[
            "LATIN", "CJK", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "HANGUL"
        ] = "LATIN",
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight)
        self.script = script

    def __call__(
        self, prompt: Prompt, responses: list[Response], correct: list[bool]
    ) -> list[float]:
        """See `Reward.__call__`."""
        return [self._share(r.text) for r in responses]

    def _share(self, text: str) -> float:
        words = [_script(word[0]) for word in _WORD.findall(text)]
        return sum(word == self.script for word in words) / len(words) if words else 0.0


_WORD = re.compile(r"[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+")


def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").split()[0]


class StepCorrectness(TokenReward):
    """Process supervision: +right / wrong on the last token of each step that the task judges.

    Args:
        right: Reward of a valid step.
        wrong: Reward of an invalid one.
        weight: Multiplies the term.
    """

    def __init__(self, right: float = 1.0, wrong: float = -1.0, weight: float = 1.0) -> None:
        super().__init__(weight)
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
        self, prompt: Prompt, responses: list[Response], correct: list[bool]
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
