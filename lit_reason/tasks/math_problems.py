"""Mathematical problems from a file or a `datasets` id, verified by `math-verify`."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_info

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, ConfigWarning, require_at_least_one
from lit_reason.tasks.base import Task
from lit_reason.tasks.layouts import SOURCE, as_text, cell, columns, conversation, has, recognise
from lit_reason.tasks.sources import load
from lit_reason.tasks.templates import (
    TEMPLATES,
    AnswerFormat,
    Messages,
    asked_by_most,
    bare,
    choose,
    render,
    warn_of_silence,
)

_LINES = {
    "answer": re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE),
    "gsm8k": re.compile(r"####\s*([^\n]+)"),
    "think_answer": re.compile(r"<answer>(.*?)</answer>", re.DOTALL),
}

_STATED = {
    "boxed": "\\boxed{{{}}}",
    "answer": "Answer: {}",
    "gsm8k": "#### {}",
    "think_answer": "<answer>{}</answer>",
}
# DeepSeek-R1's format reward
_THINK_ANSWER = r"(?s)<think>.*?</think>\s*<answer>.*?</answer>\s*"


class Problem(NamedTuple):
    """A row of the data.

    Attributes:
        question: The problem, as the data holds it.
        answer: The gold answer.
        history: Messages of the conversation before the problem.
        source: Name of the data set.
    """

    question: str
    answer: str
    history: Messages = ()
    source: str = ""


class MathProblems(Task):
    r"""Problems with a gold answer each, in the layouts of `lit_reason.tasks.layouts`.

    Rows with the same problem and the same answer are one problem; the log says how many were
    merged. Where a data set holds both a worked solution and an answer, the answer counts.

    Args:
        path: A `.json`, `.jsonl`, `.parquet` or `.csv` file, a folder (written by `save_to_disk`,
            or holding such files), or an id on the Hugging Face hub.
        split: Split to read where the source has several.
        config: Configuration of a hub data set that has several.
        question: Column of the problem; dots reach into nested columns; null recognises it. Of a
            conversation the last message is the problem.
        answer: Column of the gold answer; null recognises it. A worked solution counts as what
            stands behind its last `####` or in its last `\boxed{}`.
        source: Column of the data set's name; null takes `data_source` if there is one, and the
            name of the path otherwise.
        template: `boxed`, `dapo`, `gsm8k`, `r1`, `none`, or a text with `{question}` in it; null
            takes `none` if the problems ask for an answer format themselves, and otherwise the one
            that asks for `answer_format`.
        answer_format: Where a response states its answer: in its last `\boxed{}`, on its last
            `Answer:` line, behind its last `####`, or in its last `<answer>` tags (`think_answer`);
            null takes what the template, or the problems, ask for.
        system: System message; replaces that of the data.
        chat: Render the prompt with the tokenizer's chat template; false for base models.
        streaming: Read rows as they are needed, without a copy on the disk; for a `limit`.
        limit: Use only the first problems.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        config: str | None = None,
        question: str | None = None,
        answer: str | None = None,
        source: str | None = None,
        template: str | None = None,
        answer_format: AnswerFormat | None = None,
        system: str | None = None,
        chat: bool = False,
        streaming: bool = False,
        limit: int | None = None,
    ) -> None:
        require_at_least_one("task", limit=limit)
        choose(template, answer_format, system, None)  # fail before the data is read
        self.path, self.system, self.chat = path, system, chat
        self.repeated, self.refused = 0, list[str]()
        problems = self._distinct(load(path, split, config, streaming), question, answer, source)
        first = list(islice(problems, min(limit or 100, 100)))
        asked = asked_by_most(p.question for p in first)
        inside = asked_by_most(bare(p.question) for p in first)
        self.template, self.format = choose(template, answer_format, system, asked, inside)
        if self.format == "think_answer":
            self.response_pattern = _THINK_ANSWER
        if not asked:
            warn_of_silence(template, self.template, system, self.format)
        self.problems = list(islice(self._usable(chain(first, problems)), limit))
        self._report()
        if not self.problems:
            raise ConfigError(f"task.path={path}: holds no problem with an answer to compare with")

    def _distinct(
        self, rows: Any, question: str | None, answer: str | None, source: str | None
    ) -> Iterator[Problem]:
        """Each (problem, answer) of the data once, in order."""
        first = next(iter(rows), None)
        if first is None:
            return
        names = recognise(first, question, answer, self.path)
        source = source or (SOURCE if has(first, SOURCE) else None)
        if source is not None and not has(first, source):
            raise ConfigError(
                f"task.source={source}: no such column in {self.path}; it has "
                f"{', '.join(columns(first))}"
            )
        needed = {name.split(".")[0] for name in (*names, source) if name}
        seen: set[tuple[Any, ...]] = set()
        for row in rows.select_columns(sorted(needed)):
            history, text = conversation(cell(row, names[0]), names[0])
            gold = _gold(cell(row, names[1]))
            key = (text, gold, *(m["content"] for m in history))
            if key in seen:
                self.repeated += 1
                continue
            seen.add(key)
            name = as_text(cell(row, source)) if source else Path(self.path).stem
            yield Problem(text, gold, history, name)

    def _usable(self, problems: Iterable[Problem]) -> Iterator[Problem]:
        """Those whose gold answer, stated as the prompt asks, would be accepted."""
        for problem in problems:
            if problem.question and self._accepts(problem.answer):
                yield problem
            else:
                self.refused.append(problem.answer)

    def _report(self) -> None:
        kept, refused = len(self.problems), self.refused
        if self.repeated:
            rank_zero_info(
                f"task.path={self.path}: {kept} different problems; {self.repeated} rows repeat "
                "one of them and are merged with it"
            )
        if refused:
            warnings.warn(
                f"task.path={self.path}: {len(refused)} of {kept + len(refused)} gold answers "
                f"would not be accepted in answer_format={self.format} and are left out, the first "
                f"is {refused[0]!r}",
                ConfigWarning,
                stacklevel=3,
            )

    def _accepts(self, gold: str) -> bool:
        stated = extract(_STATED[self.format].format(gold), self.format)
        return stated is not None and equivalent(gold, stated)

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        """The problem of row `index`."""
        problem = self.problems[index]
        keep = self.template == TEMPLATES["none"]
        question = problem.question if keep else bare(problem.question)
        prompt = render(self.template, question, self.system, problem.history)
        messages = prompt.messages if self.chat else None
        return Prompt(index, prompt.text, problem.answer, messages, problem.source)

    def question(self, prompt: Prompt) -> str:
        """The problem without any prompt around it."""
        return bare(self.problems[prompt.index].question)

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


def _gold(value: Any) -> str:
    text = as_text(value).strip()
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip().replace(",", "")
    boxed = _last_box(text)
    text = text if boxed is None else boxed
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text
