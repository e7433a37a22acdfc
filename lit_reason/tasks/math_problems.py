"""Mathematical problems from a file or a `datasets` id, verified by `math-verify`."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.tasks.base import Task
from lit_reason.verdict import Verdict
from lit_reason.verifier import AnswerFormat, Verifier
from lit_reason.verifier.extract import last_box

_REQUESTS: dict[AnswerFormat, str] = {
    "boxed": "Reason step by step and put the final answer in \\boxed{}.",
    "answer": "Reason step by step and end with a line of the form `Answer: VALUE`.",
    "gsm8k": "Reason step by step and end with a line of the form `#### NUMBER`.",
    "think_answer": "Reason in <think></think>, then put the final answer in <answer></answer>.",
}


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
            `Answer:` line, behind its last `####`, or in its last `<answer></answer>`. The prompt
            asks for the same.
        template: The prompt, with `{question}` and, unless the problems already ask for their
            answer format, `{request}` in it.
        chat: Render the prompt with the tokenizer's chat template.
        limit: Use only the first problems.
        verifier: Compares answers; null takes `Verifier` with its defaults.
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
        verifier: Verifier | None = None,
    ) -> None:
        if "{question}" not in template:
            raise ConfigError(f"task.template={template!r}: must contain {{question}}")
        self.answer_format: AnswerFormat = answer_format
        self.verifier = (verifier or Verifier()).reading(answer_format)
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
        golds = [gold for _, gold in problems]
        accepted = self.verifier(golds, [self.verifier.state(gold) for gold in golds])
        usable = [p for p, v in zip(problems, accepted, strict=True) if v.correct]
        refused = [p for p, v in zip(problems, accepted, strict=True) if not v.correct]
        if refused:
            warnings.warn(
                f"task.path={path}: {len(refused)} of {len(problems)} gold answers "
                f"would not be accepted in answer_format={self.answer_format} and are left out, "
                f"the first is {refused[0][1]!r}",
                ConfigWarning,
                stacklevel=3,
            )
        return usable

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        """The problem of row `index`."""
        question, answer = self.problems[index]
        # not str.format: problems are full of braces
        text = self.template.replace("{request}", _REQUESTS[self.answer_format])
        text = text.replace("{question}", question)
        messages = ({"role": "user", "content": text},) if self.chat else None
        return Prompt(index, text, answer, messages)

    def verify(self, prompt: Prompt, text: str) -> bool:
        """Whether the answer that `text` states equals the gold one."""
        return self.judge([prompt], [text])[0].correct

    def judge(self, prompts: list[Prompt], texts: list[str]) -> list[Verdict]:
        """The verdict on each text, with the answer that it states."""
        return self.verifier([prompt.answer for prompt in prompts], texts)

    def same_answers(self, pairs: list[tuple[str, str]]) -> list[bool]:
        """Whether the answers of each pair are mathematically equal."""
        return [equal is True for equal in self.verifier.equal(pairs)]


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
    boxed = last_box(text)
    text = text if boxed is None else boxed
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text


def _unique(pairs: Any) -> list[tuple[str, str]]:
    """First of each (question, answer); published training files hold a prompt many times."""
    return list(dict.fromkeys(pairs))
