"""Verdicts of the scorers of `reasoning-gym`, in worker processes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from lit_reason.errors import ConfigError, ConfigWarning, require_at_least_one, require_seconds
from lit_reason.verdict import FAILURES, Status, Verdict
from lit_reason.verifier.extract import AnswerFormat, extract
from lit_reason.verifier.gym_answers import may_be_scored
from lit_reason.verifier.pool import Pair, Pool

_ENGINE = "lit_reason.verifier.gym_engine:accepts"
_REMEMBERED = 4096

Request = dict[str, Any]


def request_of(
    generator: str, params: dict[str, Any], threshold: float, entry: dict[str, Any]
) -> Request:
    """All that a scorer needs to know of a problem, as JSON can hold it.

    Args:
        generator: Name of the generator.
        params: Its arguments.
        threshold: Smallest score of a right answer.
        entry: The problem, as the generator made it.

    Raises:
        ConfigError: The generator makes what JSON cannot hold.
    """
    request = {
        "generator": generator,
        "params": params,
        "threshold": threshold,
        "entry": packed(entry),
    }
    try:
        json.dumps(request)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"task.name={generator}: its problems or task.params cannot be handed to a process "
            f"({error})"
        ) from error
    return request


def packed(value: Any) -> Any:
    """A value with its tuples marked, which JSON would make lists of.

    Example:
        >>> packed({"cells": [(1, 2)]})
        {'cells': [{'tuple': [1, 2]}]}
    """
    if isinstance(value, dict):
        return {key: packed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {"tuple": [packed(item) for item in value]}
    return [packed(item) for item in value] if isinstance(value, list) else value


class GymVerifier:
    """Asks the scorer of each problem about the answer that a response states.

    Scorers read what a policy wrote, so they run within the limits of `Pool`.

    Args:
        answer_format: Where responses state their answer.
        workers: Worker processes, on each rank; they start with the first response.
        time_limit: Seconds for one answer; then its status is `timeout`.
        memory_limit: MiB that scoring one answer may take; then its status is `error`.
    """

    def __init__(
        self,
        answer_format: AnswerFormat,
        workers: int = 2,
        time_limit: float = 5.0,
        memory_limit: int = 1024,
    ) -> None:
        require_at_least_one("task", workers=workers, memory_limit=memory_limit)
        require_seconds("task.time_limit", time_limit, "5")
        self.answer_format = answer_format
        self.pool = Pool(workers, time_limit, memory_limit, engine=_ENGINE)
        self._slow: dict[Pair, Status] = {}
        self._warned = False

    def __call__(self, requests: Sequence[Request], texts: Sequence[str]) -> list[Verdict]:
        """The verdict on each response to the problem of the request beside it."""
        if find_spec("reasoning_gym") is None:
            raise ConfigError(
                "task: scoring needs reasoning-gym; install it with "
                "pip install 'lit-reason[reasoning-gym]'"
            )
        stated = [extract(text, self.answer_format) for text in texts]
        pairs = [
            (json.dumps(request), answer.strip())
            for request, answer in zip(requests, stated, strict=True)
            if answer is not None and may_be_scored(request["generator"], answer.strip())
        ]
        statuses = self._scored(pairs)
        return [
            self._verdict(request, answer, statuses)
            for request, answer in zip(requests, stated, strict=True)
        ]

    @staticmethod
    def _verdict(request: Request, stated: str | None, statuses: dict[Pair, Status]) -> Verdict:
        if stated is None:
            return Verdict(Status.NO_ANSWER)
        stated = stated.strip()
        # what may not be scored is wrong
        return Verdict(statuses.get((json.dumps(request), stated), Status.WRONG), stated)

    def _scored(self, pairs: list[Pair]) -> dict[Pair, Status]:
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._slow]
        statuses = self._slow | dict(zip(new, self.pool.run(new), strict=True))
        for pair in new:
            if statuses[pair] is Status.TIMEOUT and len(self._slow) < _REMEMBERED:
                self._slow[pair] = Status.TIMEOUT
        failed = [(pair, statuses[pair]) for pair in pairs if statuses[pair] in FAILURES]
        if failed and not self._warned:
            self._warned = True
            (_, answer), status = failed[0]
            warnings.warn(
                f"task.time_limit={self.pool.time_limit}: {len(failed)} of {len(pairs)} answers "
                f"could not be scored, the first is {answer[:60]!r} ({status}); they count as not "
                "correct, and as verify/timeout and verify/error in the metrics from here on",
                ConfigWarning,
                stacklevel=4,
            )
        return statuses

    def close(self) -> None:
        """Ends the workers; the next call starts new ones."""
        self.pool.close()
