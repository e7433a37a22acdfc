"""From rows of a data set to problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lit_reason.errors import ConfigError
from lit_reason.tasks.golds import gold_of, is_worked
from lit_reason.tasks.layouts import (
    SOURCE,
    as_text,
    cell,
    columns,
    conversation,
    has,
    recognise,
    recognise_question,
)
from lit_reason.tasks.left_out import LeftOut, RowError
from lit_reason.tasks.templates import Messages


class Problem(NamedTuple):
    """A row of the data.

    Attributes:
        question: The problem, as the data holds it.
        answer: The gold answer.
        history: Messages of the conversation before the problem.
        source: Name of the data set.
        columns: Further columns, for reward functions.
    """

    question: str
    answer: str
    history: Messages = ()
    source: str = ""
    columns: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    @property
    def identity(self) -> tuple[str, ...]:
        """Rows that share it are one problem."""
        return (self.question, self.answer, *(m["content"] for m in self.history))

    def asked(self, bare: Callable[[str], str]) -> str:
        """The problem behind earlier turns of its conversation.

        Args:
            bare: Takes the prompt around the problem off.
        """
        turns = [m["content"] for m in self.history if m["role"] != "system"]
        return "\n\n".join([*turns, bare(self.question)])


@dataclass(frozen=True)
class Columns:
    """Where the parts of a problem stand.

    Attributes:
        question: Column of the problem.
        answer: Column of the gold answer; `None` without gold answers.
        source: Column of the data set's name; `None` takes that of the path.
        extra: Columns for reward functions.
        path: The data set.
        worked: The gold answers are those of worked solutions.
    """

    question: str
    answer: str | None
    source: str | None
    extra: tuple[str, ...]
    path: str
    worked: bool = False

    @property
    def needed(self) -> list[str]:
        """The top-level columns among them."""
        names = (self.question, self.answer, self.source, *self.extra)
        return sorted({name.split(".")[0] for name in names if name})

    def read(self, row: dict[str, Any]) -> Problem:
        """The problem of a row.

        Raises:
            RowError: It has none that could be asked or judged.
        """
        history, text = conversation(cell(row, self.question), self.question)
        if not text:
            raise RowError("the problem is empty", text)
        gold = ""
        if self.answer is not None:
            gold = gold_of(cell(row, self.answer), self.worked)
        source = as_text(cell(row, self.source)) if self.source else Path(self.path).stem
        return Problem(text, gold, history, source, {c: cell(row, c) for c in self.extra})


def find_columns(
    row: dict[str, Any],
    path: str,
    question: str | None = None,
    answer: str | None = None,
    source: str | None = None,
    extra: Iterable[str] = (),
    golds: bool = True,
) -> Columns:
    """The columns of problem, gold answer and source, as given or recognised.

    Args:
        row: As `shape` makes it.
        path: The data set, for messages.
        question: See `MathProblems`.
        answer: See `MathProblems`.
        source: See `MathProblems`.
        extra: See `MathProblems.columns`.
        golds: The rows hold gold answers.

    Raises:
        ConfigError: A column is missing, or every row.

    Example:
        >>> found = find_columns({"problem": "1+1?", "answer": "2", "data_source": "a"}, "p.json")
        >>> found.question, found.answer, found.source
        ('problem', 'answer', 'data_source')
    """
    if not row:
        raise ConfigError(f"task.path={path}: holds no problems; give a file with one on each row")
    if golds:
        chosen: tuple[str, str | None] = recognise(row, question, answer, path)
    else:
        chosen = recognise_question(row, question, path), None
    source = source or (SOURCE if has(row, SOURCE) else None)
    require(row, path, source=source)
    for name in extra:
        require(row, path, columns=name)
    gold = chosen[1]
    worked = gold is not None and (is_worked(gold) or "####" in as_text(cell(row, gold)))
    return Columns(*chosen, source, tuple(extra), path, worked)


def require(row: dict[str, Any], path: str, **named: str | None) -> None:
    """Refuses columns that are not there.

    Raises:
        ConfigError: The first such column, as `task.KEY=NAME`.
    """
    for key, name in named.items():
        if name is not None and not has(row, name):
            raise ConfigError(
                f"task.{key}={name}: no such column in {path}; it has {', '.join(columns(row))}"
            )


def shape(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One row with the columns of all, also of those that some leave empty.

    Example:
        >>> shape([{"a": 1, "b": None}, {"a": None, "b": {"c": 2}}])
        {'a': 1, 'b': {'c': 2}}
    """
    merged: dict[str, Any] = {}
    for row in rows:
        for name, value in row.items():
            known = merged.get(name)
            if isinstance(value, dict) and isinstance(known, dict):
                merged[name] = shape([known, value])
            elif known is None:
                merged[name] = value
    return merged


def problems_of(rows: Any, found: Columns, left_out: LeftOut) -> Iterator[Problem]:
    """The problems of the rows that make one; the others are counted in `left_out`."""
    for row in rows.select_columns(found.needed):
        try:
            yield found.read(row)
        except RowError as error:
            left_out.add(error)


class Distinct(Iterator[Problem]):
    """Each problem once, in order.

    Attributes:
        repeated: Rows so far that repeat a problem.

    Example:
        >>> problems = Distinct([Problem("1+1?", "2"), Problem("1+1?", "2"), Problem("1+1?", "3")])
        >>> [problem.answer for problem in problems], problems.repeated
        (['2', '3'], 1)
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.repeated = 0
        self._problems, self._seen = iter(problems), set[tuple[str, ...]]()

    def __next__(self) -> Problem:
        for problem in self._problems:
            if problem.identity not in self._seen:
                self._seen.add(problem.identity)
                return problem
            self.repeated += 1
        raise StopIteration
