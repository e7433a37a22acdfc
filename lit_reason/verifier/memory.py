"""What comparisons of a run are known to end in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import chain

from lit_reason.verdict import Status
from lit_reason.verifier.pool import Pair
from lit_reason.verifier.spelling import quick

_KEPT = 4096  # pairs, and answers; the responses of a group repeat the same few


def alone(answer: str) -> Pair:
    """The pair that tells how an answer ends by itself."""
    return "0", answer


class Memory:
    """Verdicts on pairs of answers, and the answers that take too long by themselves.

    A pair that has timed out costs nothing again. Its answers are only suspects: either may be the
    slow one, or the machine was. An error is forgotten: it may have been the machine's.

    Example:
        >>> memory = Memory()
        >>> memory.keep({("1", "2+2"): Status.WRONG, ("7/3", "9^{9^9}"): Status.TIMEOUT})
        >>> memory.status(("7/3", "9^{9^9}")), memory.status(("8/3", "9^{9^9}"))
        (<Status.TIMEOUT: 'timeout'>, None)
        >>> memory.suspects([("8/3", "9^{9^9}")])
        ['9^{9^9}']
        >>> memory.keep({alone("9^{9^9}"): Status.TIMEOUT})
        >>> memory.status(("8/3", "9^{9^9}"))
        <Status.TIMEOUT: 'timeout'>
    """

    def __init__(self) -> None:
        self._pairs: OrderedDict[Pair, Status] = OrderedDict()
        self._suspects: OrderedDict[str, None] = OrderedDict()
        self._finished: OrderedDict[str, None] = OrderedDict()

    def status(self, pair: Pair) -> Status | None:
        """How comparing the pair ends; `None` if that has to be tried."""
        known = self._pairs.get(pair)
        if known is None and any(self._is_slow(answer) for answer in pair):
            return Status.TIMEOUT
        return known

    def suspects(self, pairs: Iterable[Pair]) -> list[str]:
        """The answers in untried pairs that were in one which timed out, and may be why."""
        met = [
            pair
            for pair in pairs
            if not self._suspects.keys().isdisjoint(pair)
            and quick(*pair) is None
            and self.status(pair) is None
        ]
        answers = dict.fromkeys(chain.from_iterable(met))
        return [x for x in answers if x in self._suspects and not self.is_harmless(x)]

    def is_harmless(self, answer: str) -> bool:
        """Whether an answer by itself is known to take no time."""
        return answer in self._finished or quick(*alone(answer)) is not None

    def keep(self, statuses: Mapping[Pair, Status]) -> None:
        """Takes in what comparing pairs (gold, stated) has ended in."""
        for pair, status in statuses.items():
            if status is Status.ERROR:
                continue
            self._pairs[pair] = status
            kept = self._suspects if status is Status.TIMEOUT else self._finished
            kept.update(dict.fromkeys(pair))
        for memory in (self._pairs, self._suspects, self._finished):
            while len(memory) > _KEPT:
                memory.popitem(last=False)  # type: ignore[attr-defined]

    def _is_slow(self, answer: str) -> bool:
        return self._pairs.get(alone(answer)) is Status.TIMEOUT
