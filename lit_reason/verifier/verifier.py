"""`Verifier`: responses in, verdicts out, whatever the responses hold."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

from lit_reason.errors import ConfigError, ConfigWarning, require_at_least_one, require_seconds
from lit_reason.verdict import FAILURES, Status, Verdict
from lit_reason.verifier.extract import AnswerFormat, extract, state
from lit_reason.verifier.memory import Memory, alone
from lit_reason.verifier.pool import Pair, Pool
from lit_reason.verifier.spelling import quick, text_of

_AS_VERDICTS = (
    "they count as not correct, and as verify/timeout and verify/error in the metrics from here on"
)
_AS_EQUAL = "each counts as an answer of its own in majority votes, here and from here on"


class Verifier:
    r"""Compares the answers that responses state with the gold ones, in worker processes.

    Nothing that a response holds can hang, crash or slow a run: each answer has `time_limit`
    seconds and `memory_limit` MiB, and costs at most its own verdict; a pair that takes too long
    is not tried again. What needs no algebra (equal texts, integers) is decided at once, so the
    workers start only when they are needed.

    Args:
        mode: Where a response states its answer; null takes the task's `answer_format`.
        workers: Number of worker processes, on each rank.
        time_limit: Seconds for one answer; then its status is `timeout`.
        memory_limit: MiB that comparing one answer may take; then its status is `error`.
        recycle_after: Answers after which a worker gives its memory back.
        marker: What stands before the answer, in place of `Answer:` or `####`.
        on_failure: What becomes of a response whose answer could not be compared: "wrong" counts it
            as not correct, reports its status and warns; "raise" ends the run.

    Example:
        >>> verifier = Verifier("boxed", workers=1)
        >>> verdicts = verifier(["1/2", "7", 7], [r"\boxed{0.5}", r"\boxed{8}", "seven"])
        >>> [(str(v.status), v.answer) for v in verdicts]
        [('correct', '0.5'), ('wrong', '8'), ('no_answer', None)]
        >>> verifier.close()
    """

    def __init__(
        self,
        mode: AnswerFormat | None = None,
        workers: int = 2,
        time_limit: float = 5.0,
        memory_limit: int = 1024,
        recycle_after: int = 2000,
        marker: str | None = None,
        on_failure: Literal["wrong", "raise"] = "wrong",
    ) -> None:
        require_at_least_one(
            "verifier", workers=workers, memory_limit=memory_limit, recycle_after=recycle_after
        )
        require_seconds("verifier.time_limit", time_limit, "5")
        self.mode, self.marker, self.on_failure = mode, marker, on_failure
        self._check_marker()
        self.pool = Pool(workers, time_limit, memory_limit, recycle_after)
        self._memory = Memory()
        self._warned = False

    def reading(self, answer_format: AnswerFormat) -> Verifier:
        """This verifier, looking where the prompt asks the answer to be.

        Raises:
            ConfigError: `mode` is another format, or one that has no `marker`.
        """
        if self.mode not in (None, answer_format):
            raise ConfigError(
                f"verifier.mode={self.mode}: the prompt asks for answer_format={answer_format}; "
                "set mode to null, or both to the same"
            )
        self.mode = answer_format
        self._check_marker()
        return self

    def _format(self) -> AnswerFormat:
        if self.mode is None:
            raise ConfigError("verifier.mode=null: choose where responses state their answer")
        return self.mode

    def _check_marker(self) -> None:
        if self.marker is None:
            return
        if not self.marker.strip():
            raise ConfigError(f"verifier.marker={self.marker!r}: is empty; choose for example 'A:'")
        if self.mode in ("boxed", "think_answer"):
            raise ConfigError(
                f"verifier.marker={self.marker!r}: has no effect in mode={self.mode}; set it to "
                "null"
            )

    def __call__(self, golds: Sequence[Any], texts: Sequence[str]) -> list[Verdict]:
        """The verdict on each response, given the gold answer beside it.

        Raises:
            ConfigError: `mode` is null, the workers cannot start, or an answer could not be
                compared and `on_failure` is "raise".
        """
        mode = self._format()
        stated = [extract(text, mode, self.marker) for text in texts]
        pairs = [(text_of(g), s) for g, s in zip(golds, stated, strict=True) if s is not None]
        compared = self._compare(pairs)
        self._report(pairs, compared, _AS_VERDICTS)
        statuses = iter(compared)
        return [
            Verdict(Status.NO_ANSWER) if s is None else Verdict(next(statuses), s) for s in stated
        ]

    def state(self, answer: Any) -> str:
        """The shortest response that states `answer` where this verifier looks for it."""
        return state(text_of(answer), self._format(), self.marker)

    def equal(self, pairs: Sequence[tuple[Any, Any]]) -> list[bool | None]:
        """Whether the answers of each pair are equal; `None` where that could not be told.

        Raises:
            ConfigError: The workers cannot start, or a pair could not be compared and `on_failure`
                is "raise".
        """
        texts = [(text_of(a), text_of(b)) for a, b in pairs]
        # what is in several pairs alone first: if it takes too long, it does so once
        count = Counter(x for pair in dict.fromkeys(texts) if quick(*pair) is None for x in pair)
        often = [x for x, pairs_with in count.items() if pairs_with > 1]
        self._compare([alone(x) for x in often if not self._memory.is_harmless(x)])
        statuses = self._compare(texts)
        self._report(texts, statuses, _AS_EQUAL)
        outcome = {Status.CORRECT: True, Status.WRONG: False}
        return [outcome.get(status) for status in statuses]

    def close(self) -> None:
        """Ends the workers; the next call starts new ones."""
        self.pool.close()

    def _compare(self, pairs: Sequence[Pair]) -> list[Status]:
        """How each pair ends; who was in one that timed out goes alone first, once."""
        self._try([alone(x) for x in self._memory.suspects(pairs)])
        return self._try(pairs)

    def _try(self, pairs: Sequence[Pair]) -> list[Status]:
        statuses: dict[Pair, Status] = {}
        hard: list[Pair] = []
        for pair in dict.fromkeys(pairs):
            equal = quick(*pair)
            if equal is not None:
                statuses[pair] = Status.CORRECT if equal else Status.WRONG
            elif (known := self._memory.status(pair)) is not None:
                statuses[pair] = known
            else:
                hard.append(pair)
        if hard:
            _require_math_verify()
            found = dict(zip(hard, self.pool.run(hard), strict=True))
            self._memory.keep(found)
            statuses |= found
        return [statuses[pair] for pair in pairs]

    def _report(self, pairs: Sequence[Pair], statuses: Sequence[Status], meaning: str) -> None:
        failed = [(p, s) for p, s in zip(pairs, statuses, strict=True) if s in FAILURES]
        if not failed or (self._warned and self.on_failure == "wrong"):
            return
        (gold, stated), status = failed[0]
        message = (
            f"verifier.on_failure={self.on_failure}: {len(failed)} of {len(pairs)} answers could "
            f"not be compared, the first is {stated[:60]!r} with the gold answer {gold[:60]!r} "
            f"({status})"
        )
        if self.on_failure == "raise":
            raise ConfigError(
                f"{message}; raise verifier.time_limit={self.pool.time_limit} or "
                f"memory_limit={self.pool.memory_limit}, or set on_failure to wrong"
            )
        self._warned = True
        warnings.warn(
            f"{message}; {meaning}",
            ConfigWarning,
            stacklevel=3,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_memory": Memory()}


def _require_math_verify() -> None:
    if find_spec("math_verify") is None:
        raise ConfigError(
            "verifier: comparing answers needs math-verify; install it with "
            "pip install 'lit-reason[math]'"
        )
    if not hasattr(os, "fork"):
        raise ConfigError("verifier: comparing answers needs a system with fork: Linux or macOS")
