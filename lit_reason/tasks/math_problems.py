"""Mathematical problems from a file or a `datasets` id, verified by `math-verify`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from lightning_utilities.core.rank_zero import rank_zero_info

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, ConfigWarning, require_at_least_one
from lit_reason.tasks.base import Task
from lit_reason.tasks.layouts import SOURCE, as_text, cell, columns, conversation, has, recognise
from lit_reason.tasks.sources import load
from lit_reason.tasks.templates import (
    TEMPLATES,
    Messages,
    asked_by_most,
    bare,
    choose,
    render,
    warn_of_silence,
)
from lit_reason.verdict import Verdict
from lit_reason.verifier import AnswerFormat, Verifier
from lit_reason.verifier.extract import last_box

_CHUNK = 1024  # gold answers that are checked together

# DeepSeek-R1's format reward
_THINK_ANSWER = r"(?s)<think>.*?</think>\s*<answer>.*?</answer>\s*"


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
        columns: Further columns to hand to reward functions (`FunctionReward`).
        verifier: Compares answers in worker processes; null takes its defaults.
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
        columns: list[str] | None = None,
        verifier: Verifier | None = None,
        streaming: bool = False,
        limit: int | None = None,
    ) -> None:
        require_at_least_one("task", limit=limit)
        choose(template, answer_format, system, None)  # fail before the data is read
        self.path, self.system, self.chat = path, system, chat
        self.repeated, self.refused = 0, list[str]()
        rows = load(path, split, config, streaming)
        problems = self._distinct(rows, question, answer, source, columns or [])
        first = list(islice(problems, min(limit or 100, 100)))
        asked = asked_by_most(p.question for p in first)
        inside = asked_by_most(bare(p.question) for p in first)
        self.template, chosen = choose(template, answer_format, system, asked, inside)
        self.answer_format: AnswerFormat = chosen
        self.verifier = (verifier or Verifier()).reading(chosen)
        if chosen == "think_answer":
            self.response_pattern = _THINK_ANSWER
        if not asked:
            warn_of_silence(template, self.template, system, chosen)
        self.problems = list(islice(self._usable(chain(first, problems), limit), limit))
        self._report()
        if not self.problems:
            raise ConfigError(f"task.path={path}: holds no problem with an answer to compare with")

    def _distinct(
        self,
        rows: Any,
        question: str | None,
        answer: str | None,
        source: str | None,
        extra: list[str],
    ) -> Iterator[Problem]:
        """Each (problem, answer) of the data once, in order."""
        first = next(iter(rows), None)
        if first is None:
            return
        names = recognise(first, question, answer, self.path)
        source = source or (SOURCE if has(first, SOURCE) else None)
        asked = [("source", source), *(("columns", name) for name in extra)]
        for key, column in asked:
            if column is not None and not has(first, column):
                raise ConfigError(
                    f"task.{key}={column}: no such column in {self.path}; it has "
                    f"{', '.join(columns(first))}"
                )
        needed = {name.split(".")[0] for name in (*names, source, *extra) if name}
        seen: set[tuple[Any, ...]] = set()
        for row in rows.select_columns(sorted(needed)):
            history, text = conversation(cell(row, names[0]), names[0])
            gold = _gold(cell(row, names[1]))
            identity = (text, gold, *(m["content"] for m in history))
            if identity in seen:
                self.repeated += 1
                continue
            seen.add(identity)
            name = as_text(cell(row, source)) if source else Path(self.path).stem
            yield Problem(text, gold, history, name, {c: cell(row, c) for c in extra})

    def _usable(self, problems: Iterable[Problem], limit: int | None) -> Iterator[Problem]:
        """Those whose gold answer, stated as the prompt asks, would be accepted."""
        remaining = iter(problems)
        while chunk := list(islice(remaining, min(limit or _CHUNK, _CHUNK))):
            golds = [problem.answer for problem in chunk]
            verdicts = self.verifier(golds, [self.verifier.state(gold) for gold in golds])
            for problem, verdict in zip(chunk, verdicts, strict=True):
                if problem.question and verdict.correct:
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
                f"would not be accepted in answer_format={self.answer_format} and are left out, "
                f"the first is {refused[0]!r}",
                ConfigWarning,
                stacklevel=3,
            )

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        """The problem of row `index`."""
        problem = self.problems[index]
        keep = self.template == TEMPLATES["none"]
        question = problem.question if keep else bare(problem.question)
        prompt = render(self.template, question, self.system, problem.history)
        messages = prompt.messages if self.chat else None
        return Prompt(index, prompt.text, problem.answer, messages, *problem[3:])

    def question(self, prompt: Prompt) -> str:
        """The problem without any prompt around it."""
        return bare(self.problems[prompt.index].question)

    def verify(self, prompt: Prompt, text: str) -> bool:
        """Whether the answer that `text` states equals the gold one."""
        return self.judge([prompt], [text])[0].correct

    def judge(self, prompts: list[Prompt], texts: list[str]) -> list[Verdict]:
        """The verdict on each text, with the answer that it states."""
        return self.verifier([prompt.answer for prompt in prompts], texts)

    def same_answers(self, pairs: list[tuple[str, str]]) -> list[bool | None]:
        """Whether the answers of each pair are mathematically equal; `None` if none could tell."""
        return self.verifier.equal(pairs)


def _gold(value: Any) -> str:
    text = as_text(value).strip()
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip().replace(",", "")
    boxed = last_box(text)
    text = text if boxed is None else boxed
    return text[:-2] if re.fullmatch(r"-?\d+\.0", text) else text
