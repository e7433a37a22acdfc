"""Mathematical problems from a file or a `datasets` id, verified by `math-verify`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError
from lit_reason.tasks.base import Task

AnswerFormat = Literal["boxed", "answer", "gsm8k"]

_REQUESTS: dict[AnswerFormat, str] = {
    "boxed": "Reason step by step and put the final answer in \\boxed{}.",
    "answer": "Reason step by step and end with a line of the form `Answer: VALUE`.",
    "gsm8k": "Reason step by step and end with a line of the form `#### NUMBER`.",
}
_LINES = {
    "answer": re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE),
    "gsm8k": re.compile(r"####\s*([^\n]+)"),
}


class MathProblems(Task):
    """Problems with a gold answer each; equal prompts are merged.

    Args:
        path: A `.json`, `.jsonl` or `.parquet` file, a folder written by `save_to_disk`, or an id
            on the Hugging Face hub.
        split: Split to read where the source has several.
        config: Configuration of a hub data set that has several.
        question: Column of the problem; dots reach into nested columns. A list of chat messages
            counts as its last message.
        answer: Column of the gold answer. A worked solution counts as the number behind its `####`.
        answer_format: Where a response states its answer: in its last `\\boxed{}`, on its last
            `Answer:` line, or behind its last `####`. The prompt asks for the same.
        template: The prompt, with `{question}` and, unless the problems already ask for their
            answer format, `{request}` in it.
        chat: Render the prompt with the tokenizer's chat template.
        limit: Use only the first problems.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        config: str | None = None,
        question: str = "problem",
        answer: str = "answer",
        answer_format: AnswerFormat = "boxed",
        template: str = "{question}\n\n{request}",
        chat: bool = False,
        limit: int | None = None,
    ) -> None:
        if "{question}" not in template:
            raise ConfigError(f"task.template={template!r}: must contain {{question}}")
        self.format: AnswerFormat = answer_format
        self.template, self.chat = template, chat
        rows = _load(path, split, config)
        self.problems = _unique(
            (_text(_column(row, question, path)), _gold(_column(row, answer, path))) for row in rows
        )[:limit]
        if not self.problems:
            raise ConfigError(f"task.path={path}: holds no problem")

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        """The problem of row `index`."""
        question, answer = self.problems[index]
        # not str.format: problems are full of braces
        text = self.template.replace("{request}", _REQUESTS[self.format])
        text = text.replace("{question}", question)
        messages = ({"role": "user", "content": text},) if self.chat else None
        return Prompt(index, text, answer, messages)

    def verify(self, prompt: Prompt, text: str) -> bool:
        """Whether the answer that `text` states equals the gold one."""
        stated = extract(text, self.format)
        return stated is not None and equivalent(prompt.answer, stated)


def extract(text: str, answer_format: AnswerFormat) -> str | None:
    r"""The answer that a response states, or `None`.

    Example:
        >>> extract(r"so \boxed{\frac{1}{2}} it is", "boxed")
        '\\frac{1}{2}'
        >>> extract("Answer: 3\nno, wait.\nAnswer: 4", "answer")
        '4'
    """
    if answer_format == "boxed":
        return _last_box(text)
    found = _LINES[answer_format].findall(text)
    return found[-1].strip() if found else None


def equivalent(gold: str, stated: str) -> bool:
    """Whether two answers are the same mathematical value, or the same text.

    Example:
        >>> equivalent("1/2", "0.5"), equivalent("3", "4")
        (True, False)
    """
    if _plain(gold) == _plain(stated):
        return True
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ConfigError(
            "task: MathProblems needs math-verify; install it with pip install 'lit-reason[math]'"
        ) from error
    try:
        return bool(verify(parse(f"${_bare(gold)}$"), parse(f"${_bare(stated)}$")))
    except Exception:
        # any text can come out of a policy; what the parser chokes on is not an answer
        return False


def _bare(text: str) -> str:
    return text.strip().strip("$").strip()


def _plain(text: str) -> str:
    return re.sub(r"[\s$]|\\[,!;]|(?<=\d),(?=\d{3}\b)", "", text).rstrip(".").lower()


def _last_box(text: str) -> str | None:
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text))):
        depth = 1
        for end in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[match.end() : end].strip()
    return None


def _load(path: str, split: str, config: str | None) -> Any:  # noqa: ANN401
    import datasets

    file = Path(path).expanduser()
    try:
        if file.is_dir():
            loaded = datasets.load_from_disk(str(file))
        elif file.is_file():
            kind = {".jsonl": "json", ".json": "json"}.get(file.suffix, file.suffix[1:])
            loaded = datasets.load_dataset(kind, data_files=str(file), split="train")
        elif file.suffix in (".json", ".jsonl", ".parquet", ".csv"):
            raise ConfigError(f"task.path={path}: no such file")
        else:
            loaded = datasets.load_dataset(path, config)
    except ConfigError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"task.path={path}: cannot be loaded ({reason}); give a .json, .jsonl or .parquet file, "
            "a folder written by save_to_disk, or a hub id that this machine can reach"
        ) from error
    if isinstance(loaded, dict):
        if split not in loaded:
            raise ConfigError(f"task.split={split}: {path} has {', '.join(loaded)}")
        loaded = loaded[split]
    return loaded


def _column(row: dict[str, Any], name: str, path: str) -> Any:  # noqa: ANN401
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise ConfigError(
                f"task column {name!r} is not in {path}; it has: {', '.join(sorted(row))}"
            )
        value = value[part]
    return value


def _text(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, list):
        last = value[-1]
        return str(last.get("content", last.get("value"))) if isinstance(last, dict) else str(last)
    return str(value)


def _gold(value: Any) -> str:  # noqa: ANN401
    text = _text(value).strip()
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip().replace(",", "")
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text


def _unique(pairs: Any) -> list[tuple[str, str]]:  # noqa: ANN401
    """First of each (question, answer); published training files hold a prompt many times."""
    return list(dict.fromkeys(pairs))
