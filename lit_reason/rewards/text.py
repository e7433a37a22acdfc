"""Reward terms that read what a response says."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

from lit_reason.batch import Prompt, Response
from lit_reason.errors import ConfigError
from lit_reason.rewards.base import Reward
from lit_reason.tasks import Task
from lit_reason.verdict import FAILURES, Verdict


class Correctness(Reward):
    """The task's verdict as a reward.

    Args:
        right: Reward of a correct response (+1 in VC-PPO, DAPO and VAPO).
        wrong: Reward of any other (-1 there, 0 in Open-Reasoner-Zero).
        unverified: What a response counts as whose verification timed out or failed: "wrong", or
            "unscored", which neither rewards nor punishes what nobody has judged, whatever the
            other terms say of it.
        weight: Multiplies the term.
    """

    needs_verdicts = directed = True

    def __init__(
        self,
        right: float = 1.0,
        wrong: float = -1.0,
        unverified: Literal["wrong", "unscored"] = "wrong",
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight)
        self.check_values(right=right, wrong=wrong)
        if right == wrong:
            raise ConfigError(
                f"Correctness.right={right}: equals wrong, so the verdict would have no effect"
            )
        self.right, self.wrong, self.unverified = right, wrong, unverified
        self.required = unverified == "unscored"

    def __call__(
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> list[float | None]:
        """See `Reward.__call__`."""
        return [self._score(verdict) for verdict in verdicts]

    def _score(self, verdict: Verdict) -> float | None:
        if self.unverified == "unscored" and verdict.status in FAILURES:
            return None
        return self.right if verdict.correct else self.wrong


class Format(Reward):
    """1 if the whole response matches a pattern, else 0 (DeepSeek-R1's format reward).

    Args:
        pattern: Regular expression over the whole response; null takes the task's own format.
        weight: Multiplies the term.
    """

    directed, reads_verdicts = True, False

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
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
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

    directed, reads_verdicts = True, False

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
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> list[float]:
        """See `Reward.__call__`."""
        return [self._share(r.text) for r in responses]

    def _share(self, text: str) -> float:
        words = [_script(word[0]) for word in _WORD.findall(text)]
        return sum(word == self.script for word in words) / len(words) if words else 0.0


_WORD = re.compile(r"[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+")


def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").split()[0]
