"""Mathematical problems from a file or a `datasets` id, verified by `math-verify`."""

from __future__ import annotations

import re
import threading
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, ConfigWarning
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


_STATED = {"boxed": "\\boxed{{{}}}", "answer": "Answer: {}", "gsm8k": "#### {}"}


class MathProblems(Task):
    r"""Problems with a gold answer each; equal prompts are merged.

    Args:
        path: A `.json`, `.jsonl` or `.parquet` file, a folder written by `save_to_disk`, or an id
            on the Hugging Face hub.
        split: Split to read where the source has several.
        config: Configuration of a hub data set that has several.
        question: Column of the problem; dots reach into nested columns. A list of chat messages
            counts as its last message.
        answer: Column of the gold answer. A worked solution counts as what stands behind its last
            `####` or in its last `\boxed{}`.
        answer_format: Where a response states its answer: in its last `\boxed{}`, on its last
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
        self.answer_format = answer_format
        self.template, self.chat = template, chat
        if limit is not None and limit < 1:
            raise ConfigError(f"task.limit={limit}: must be at least 1, or null for all problems")
        rows = _load(path, split, config)
        pairs = (
            (_column(row, "question", question, path), _column(row, "answer", answer, path))
            for row in rows
        )
        problems = _unique((_text(q), _gold(a)) for q, a in pairs)
        self.problems = self._usable(problems, path)[:limit]
        if not self.problems:
            raise ConfigError(f"task.path={path}: holds no problem with an answer to compare with")

    def _usable(self, problems: list[tuple[str, str]], path: str) -> list[tuple[str, str]]:
        """Those whose gold answer, stated as the prompt asks, would be accepted."""
        usable: list[tuple[str, str]] = []
        refused: list[tuple[str, str]] = []
        for question, gold in problems:
            (usable if self._accepts(gold) else refused).append((question, gold))
        if refused:
            warnings.warn(
                f"task.path={path}: {len(refused)} of {len(problems)} gold answers "
                f"would not be accepted in answer_format={self.format} and are left out, the first "
                f"is {refused[0][1]!r}",
                ConfigWarning,
                stacklevel=3,
            )
        return usable

    def _accepts(self, gold: str) -> bool:
        stated = extract(_STATED[self.format].format(gold), self.format)
        return stated is not None and equivalent(gold, stated)

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
        >>> extract("Answer: 3\nno, wait.\nAnswer: **4**", "answer")
        '4'
        >>> extract("#### 18 eggs a day", "gsm8k")
        '18'
    """
    if answer_format == "boxed":
        return _last_box(text)
    found = _LINES[answer_format].findall(text)
    if not found:
        return None
    stated = found[-1].strip().strip("*").strip()
    number = _NUMBER_AND_WORDS.match(stated) if answer_format == "gsm8k" else None
    return number.group(1) if number else stated


_NUMBER_AND_WORDS = re.compile(r"([-+]?\s*\$?\s*\d[\d,]*(?:\.\d+)?)(?:\s+[^\W\d_].*)?\.?$")


@lru_cache(maxsize=4096)  # the responses of a group repeat the same few answers
def equivalent(gold: str, stated: str) -> bool:
    """Whether two answers are the same mathematical value, or the same text.

    Comparisons that take longer than `TIME_LIMIT` count as different. Python delivers the alarm
    for that to the main thread only; elsewhere there is no limit.

    Example:
        >>> equivalent("1/2", "0.5"), equivalent("3", "4"), equivalent("23/5", "4 3/5")
        (True, False, True)
    """
    gold, stated = _bare(gold), _bare(stated)
    plain = _plain(gold), _plain(stated)
    if not all(plain):
        return False
    if plain[0] == plain[1]:
        return True
    if all(_INTEGER.fullmatch(p) for p in plain):
        return int(plain[0]) == int(plain[1])
    if all(_BASED.fullmatch(p) for p in plain):
        return False  # numbers in another base, which the parser would take for subscripts
    try:
        from math_verify import parse, verify
        from math_verify.errors import TimeoutException
    except ImportError as error:
        raise ConfigError(
            "task: MathProblems needs math-verify; install it with pip install 'lit-reason[math]'"
        ) from error
    limit = TIME_LIMIT if threading.current_thread() is threading.main_thread() else None
    try:
        values = [parse(f"${x}$", parsing_timeout=limit) for x in (gold, stated)]  # type: ignore[arg-type]
        return bool(verify(*values, timeout_seconds=limit)) and not _differ(*values)
    except (Exception, TimeoutException):
        # any text can come out of a policy; what the parser chokes on is not an answer
        return False


TIME_LIMIT = 2  # seconds for each of parsing and comparing

_INTEGER = re.compile(r"[-+]?\d{1,4000}")
_BASED = re.compile(r"\d+_\d+")


def _bare(text: str) -> str:
    text = text.strip(" $€£\t\n").replace("\u2212", "-").replace("\u2013", "-")  # minus, dash
    return re.sub(r"^(-?)(\d+)\s+(\d+/\d+)$", r"\1(\2+\3)", text)  # a mixed number


def _plain(text: str) -> str:
    """A spelling in which equal texts are equal; spaces between digits are kept."""
    text = re.sub(r"\\[,!;]|[$]", "", text).replace(r"\%", "%")
    text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text).rstrip(".").lower()
    text = re.sub(r"_\{(\w+)\}", r"_\1", text)
    return text.replace(",", "") if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", text) else text


def _differ(gold: list[Any], stated: list[Any]) -> bool:
    """Whether two tiny numbers differ that the parser's absolute tolerance takes for equal."""
    if not (gold and stated and all(getattr(v[0], "is_number", False) for v in (gold, stated))):
        return False
    a, b = complex(gold[0].doit()), complex(stated[0].doit())
    size = max(abs(a), abs(b))
    return 0 < size < 1e-6 and abs(a - b) > 1e-6 * size


def _last_box(text: str) -> str | None:
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text))):
        depth = 1
        for end in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                return text[match.end() : end].strip()
    return None


def _load(path: str, split: str, config: str | None) -> Any:
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
            f"task.path={path}: cannot be loaded ({reason}); give a .json, .jsonl or .parquet "
            "file, a folder written by save_to_disk, or a hub id that this machine can reach"
        ) from error
    if isinstance(loaded, dict):
        if split not in loaded:
            raise ConfigError(f"task.split={split}: {path} has {', '.join(loaded)}")
        loaded = loaded[split]
    return loaded


def _column(row: dict[str, Any], key: str, name: str, path: str) -> Any:
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise ConfigError(
                f"task.{key}={name}: no such column in {path}; it has {', '.join(sorted(row))}"
            )
        value = value[part]
    return value


def _text(value: Any) -> str:
    if isinstance(value, list) and value:
        value = value[-1]
    if isinstance(value, dict):
        value = value.get("content", value.get("value"))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value)


def _gold(value: Any) -> str:
    text = _text(value).strip()
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip().replace(",", "")
    boxed = _last_box(text)
    text = text if boxed is None else boxed
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text


def _unique(pairs: Any) -> list[tuple[str, str]]:
    """First of each (question, answer); published training files hold a prompt many times."""
    return list(dict.fromkeys(pairs))
