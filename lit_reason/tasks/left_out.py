"""Rows of a data set that make no problem: counted, warned of, never silently dropped."""

from __future__ import annotations

import warnings

from lit_reason.errors import ConfigWarning


class RowError(ValueError):
    """A row that makes no problem.

    Args:
        reason: Ends the sentence "rows are left out: ...".
        example: What shows it, of this row.
    """

    def __init__(self, reason: str, example: object) -> None:
        super().__init__(reason)
        self.reason, self.example = reason, str(example)


class LeftOut:
    """Counts rows that were left out, by reason.

    Example:
        >>> left_out = LeftOut()
        >>> left_out.add(RowError("the problem is empty", ""))
        >>> left_out.total, left_out.summary()
        (1, "1 row: the problem is empty, the first is ''")
    """

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[int, str]] = {}

    def add(self, row: RowError) -> None:
        """Counts a row."""
        count, first = self._reasons.get(row.reason, (0, row.example))
        self._reasons[row.reason] = count + 1, first

    @property
    def total(self) -> int:
        """Number of rows that were left out."""
        return sum(count for count, _ in self._reasons.values())

    def summary(self) -> str:
        """How many rows for which reason, with the first of each."""
        return "; ".join(
            f"{count} {'row' if count == 1 else 'rows'}: {reason}, the first is {first[:60]!r}"
            for reason, (count, first) in self._reasons.items()
        )

    def warn(self, path: str, kept: int) -> None:
        """One warning for everything, if there is anything."""
        if self.total:
            warnings.warn(
                f"task.path={path}: {self.total} of {kept + self.total} rows are left out "
                f"({self.summary()})",
                ConfigWarning,
                stacklevel=4,
            )
