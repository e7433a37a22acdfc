"""What comparisons of a run are known to end in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from lit_reason.verdict import Status
from lit_reason.verifier.pool import Pair
from lit_reason.verifier.spelling import quick

_KEPT = 4096  # pairs, and answers; the responses of a group repeat the same few


class Memory:
    """Verdicts on pairs of answers, and the answers that take too long to compare.

    An answer that has timed out costs nothing again, whatever it is compared with. An error is
    forgotten: it may have been the machine's.

    Example:
        >>> memory = Memory()
        >>> memory.keep({("1", "2+2"): Status.WRONG, ("7", "9^{9^9}"): Status.TIMEOUT})
        >>> memory.status(("1", "2+2")), memory.status(("8", "9^{9^9}")), memory.status(("7", "3"))
        (<Status.WRONG: 'wrong'>, <Status.TIMEOUT: 'timeout'>, None)
    """

    def __init__(self) -> None:
        self._pairs: OrderedDict[Pair, Status] = OrderedDict()
        self._slow: OrderedDict[str, None] = OrderedDict()
        self._finished: OrderedDict[str, None] = OrderedDict()

    def status(self, pair: Pair) -> Status | None:
        """How comparing the pair ends; `None` if that has to be tried."""
        known = self._pairs.get(pair)
        if known is None and any(answer in self._slow for answer in pair):
            return Status.TIMEOUT
        return known

    def is_harmless(self, answer: str) -> bool:
        """Whether an answer by itself is known to take no time."""
        return answer in self._finished or quick("0", answer) is not None

    def keep(self, statuses: Mapping[Pair, Status]) -> None:
        """Takes in what comparing pairs (gold, stated) has ended in."""
        for pair, status in statuses.items():
            if status is Status.ERROR:
                continue
            self._pairs[pair] = status
            if status is not Status.TIMEOUT:
                self._finished[pair[1]] = None
        for (_, stated), status in statuses.items():
            # a number, or what was compared before, has been held up by the other side
            if status is Status.TIMEOUT and not self.is_harmless(stated):
                self._slow[stated] = None
        for kept in (self._pairs, self._slow, self._finished):
            while len(kept) > _KEPT:
                kept.popitem(last=False)  # type: ignore[attr-defined]
