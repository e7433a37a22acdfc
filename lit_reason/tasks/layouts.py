"""Column layouts that data sets of problems come in, and how a row is read.

A new layout is a line of `LAYOUTS`; the first one whose columns are all there is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_reason.errors import ConfigError
from lit_reason.tasks.left_out import RowError
from lit_reason.tasks.templates import Messages


@dataclass(frozen=True)
class Layout:
    """Where a problem and its gold answer stand; dots reach into nested columns.

    Attributes:
        question: A text, or a conversation whose last message is the problem.
        answer: The gold answer, or a worked solution that states it.
        used_by: Data sets that come in this layout.
    """

    question: str
    answer: str
    used_by: str


LAYOUTS = (
    Layout("prompt", "reward_model.ground_truth", "verl, DAPO-Math-17k, its AIME 2024"),
    Layout("prompt", "final_answer", "Open-Reasoner-Zero, its MATH-500"),
    Layout("problem", "answer", "MATH-500, AIME, AMC, the GSM8K of Dr. GRPO"),
    Layout("question", "answer", "GSM8K, the AIME 2025 of OpenCompass"),
    Layout("Problem", "Answer", "AIME with capitals"),
    Layout("problem", "solution", "MATH"),
    Layout("prompt", "answer", "TRL, a text or a conversation"),
    Layout("prompt", "ground_truth", "TRL"),
    Layout("prompt", "solution", "TRL, open-r1"),
    Layout("question", "ground_truth", "TRL"),
    Layout("question", "solution", "TRL"),
)
SOURCE = "data_source"  # verl's column for the name of the data set


def recognise(
    row: dict[str, Any], question: str | None, answer: str | None, path: str
) -> tuple[str, str]:
    """The columns of the problem and of the gold answer.

    Args:
        row: Any row of the data set.
        question: The user's choice, `None` to recognise it.
        answer: The user's choice, `None` to recognise it.
        path: The data set, for messages.

    Raises:
        ConfigError: A column is missing, or one stands for both.

    Example:
        >>> recognise({"problem": "1+1?", "solution": "2", "level": 1}, None, None, "p.json")
        ('problem', 'solution')
        >>> recognise({"q": "1+1?", "answer": "2"}, "q", None, "p.json")
        ('q', 'answer')
    """
    for key, name in (("question", question), ("answer", answer)):
        if name is not None and not has(row, name):
            raise ConfigError(
                f"task.{key}={name}: no such column in {path}; it has {', '.join(columns(row))}"
            )
    for layout in LAYOUTS:
        chosen = question or layout.question, answer or layout.answer
        if all(has(row, name) for name in chosen):
            if chosen[0] == chosen[1]:
                raise ConfigError(
                    f"task.answer={chosen[1]}: is the column of the problem too, so that prompts "
                    "hold their answer; set task.question and task.answer to two columns"
                )
            return chosen
        parent = chosen[1].rpartition(".")[0]
        if answer is None and parent and has(row, chosen[0]) and has(row, parent):
            raise ConfigError(
                f"task.answer={chosen[1]}: no such column in {path}, though it has {parent}; it "
                f"has {', '.join(columns(row))}; set task.answer to that of the gold answers"
            )
    missing = [k for k, v in (("question", question), ("answer", answer)) if v is None]
    raise ConfigError(
        f"task.path={path}: its columns {', '.join(columns(row))} are of no known layout; set "
        + " and ".join(f"task.{key}" for key in missing)
        + ("; without gold answers take class_path Prompts" if answer is None else "")
    )


def recognise_question(row: dict[str, Any], question: str | None, path: str) -> str:
    """The column of the problem where there are no gold answers.

    Args:
        row: Any row of the data set.
        question: The user's choice, `None` to recognise it.
        path: The data set, for messages.

    Raises:
        ConfigError: There is none.

    Example:
        >>> recognise_question({"prompt": "Write a poem.", "length": 3}, None, "p.json")
        'prompt'
    """
    names = [question] if question else [layout.question for layout in LAYOUTS]
    found = next((name for name in names if has(row, name)), None)
    if found is None:
        raise ConfigError(
            f"task.question={question}: no such column in {path}; it has {', '.join(columns(row))}"
        )
    return found


_MISSING = object()


def _find(row: dict[str, Any], name: str) -> Any:
    value: Any = row
    for part in name.split("."):
        value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
    return value


def has(row: dict[str, Any], name: str) -> bool:
    """Whether a row has a column, which may be nested."""
    return _find(row, name) is not _MISSING


def cell(row: dict[str, Any], name: str) -> Any:
    """The value of a column; `None` if the row leaves out a part of it."""
    value = _find(row, name)
    return None if value is _MISSING else value


def columns(row: dict[str, Any], prefix: str = "") -> list[str]:
    """Names of all columns in order, nested ones with dots.

    Example:
        >>> columns({"prompt": [], "reward_model": {"style": "rule", "ground_truth": "2"}})
        ['prompt', 'reward_model.ground_truth', 'reward_model.style']
    """
    names: list[str] = []
    for name in sorted(row):
        value = row[name]
        nested = isinstance(value, dict) and value
        names += columns(value, f"{prefix}{name}.") if nested else [prefix + name]
    return names


_ROLES = {"human": "user", "gpt": "assistant"}


def conversation(value: Any, key: str) -> tuple[Messages, str]:
    """(messages before the problem, the problem) of a cell.

    Raises:
        RowError: A conversation does not end with its user, or holds more than text.

    Example:
        >>> conversation([{"from": "human", "value": "1+1?"}], "prompt")
        ((), '1+1?')
        >>> parts = [{"type": "text", "text": "1+1?"}]
        >>> conversation([{"role": "user", "content": parts}], "prompt")
        ((), '1+1?')
    """
    if not isinstance(value, list):
        return (), as_text(value).strip()
    messages = [_message(item) for item in value]
    if not messages or messages[-1]["role"] != "user":
        last = messages[-1]["role"] if messages else "nobody"
        raise RowError(
            f"the conversation in task.question={key} ends with {last}, not with its user",
            messages[-1]["content"] if messages else "",
        )
    return tuple(messages[:-1]), messages[-1]["content"].strip()


def _message(item: Any) -> dict[str, str]:
    if not isinstance(item, dict):
        return {"role": "user", "content": as_text(item)}
    role = str(item.get("role") or item.get("from") or "user")
    content = item["content"] if item.get("content") is not None else item.get("value")
    return {"role": _ROLES.get(role, role), "content": _content(content)}


def _content(value: Any) -> str:
    """The text of a message, which may come in parts."""
    if not isinstance(value, list):
        return as_text(value)
    parts = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in value]
    for part in parts:
        if part.get("text") is None:
            kind = part.get("type") or "without text"
            raise RowError(f"a message has a part of type {kind}, only text is read", part)
    return "\n".join(as_text(part["text"]) for part in parts)


def as_text(value: Any) -> str:
    """A cell as a person would write it: 27.0 is `27`, a list is separated by commas.

    Example:
        >>> as_text(27.0), as_text(["1", 2]), as_text(None)
        ('27', '1, 2', '')
    """
    if isinstance(value, list):
        return ", ".join(as_text(v) for v in value)
    if isinstance(value, dict):
        return as_text(value.get("content", value.get("value", value.get("text"))))
    if value is None or value != value:  # nan is how tables write nothing
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)
