"""Mathematical problems from a file or a `datasets` id, verified by `math-verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, require_at_least_one
from lit_reason.log import log
from lit_reason.tasks.base import Task, warn_of_limit
from lit_reason.tasks.left_out import LeftOut, RowError
from lit_reason.tasks.rows import Distinct, Problem, find_columns, problems_of, shape
from lit_reason.tasks.sources import load
from lit_reason.tasks.templates import (
    SEEN,
    TEMPLATES,
    asked_around,
    asked_by_most,
    bare,
    choose,
    render,
    warn_of_silence,
)
from lit_reason.verdict import Verdict
from lit_reason.verifier import AnswerFormat, Verifier

_CHUNK = 1024  # gold answers that are checked together

# DeepSeek-R1's format reward
_THINK_ANSWER = r"(?s)<think>.*?</think>\s*<answer>.*?</answer>\s*"


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
        system: System message; replaces that of the data. An empty one only removes it.
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
        self.left_out = LeftOut()
        rows = load(path, split, config, streaming)
        found = find_columns(
            shape(islice(rows, SEEN)), path, question, answer, source, columns or ()
        )
        problems = Distinct(problems_of(rows, found, self.left_out))
        first = list(islice(problems, min(limit or SEEN, SEEN)))
        asked = asked_by_most(p.question for p in first)
        inside = asked_by_most(bare(p.question) for p in first)
        around = asked_around((p.history for p in first), system)
        self.template, chosen = choose(template, answer_format, system, asked, inside, around)
        self.answer_format: AnswerFormat = chosen
        self.verifier = (verifier or Verifier()).reading(chosen)
        if chosen == "think_answer":
            self.response_pattern = _THINK_ANSWER
        if not asked and not around:
            warn_of_silence(template, self.template, system, chosen)
        self.problems = list(islice(self._usable(chain(first, problems), limit), limit))
        self._report(problems.repeated)
        warn_of_limit(limit, len(self.problems))

    def _usable(self, problems: Iterable[Problem], limit: int | None) -> Iterator[Problem]:
        """Those whose gold answer, stated as the prompt asks, would be accepted."""
        remaining = iter(problems)
        while chunk := list(islice(remaining, min(limit or _CHUNK, _CHUNK))):
            golds = [problem.answer for problem in chunk]
            verdicts = self.verifier(golds, [self.verifier.state(gold) for gold in golds])
            for problem, verdict in zip(chunk, verdicts, strict=True):
                if verdict.correct:
                    yield problem
                else:
                    reason = (
                        "the gold answer would not be accepted in "
                        f"answer_format={self.answer_format}"
                    )
                    self.left_out.add(RowError(reason, problem.answer))

    def _report(self, repeated: int) -> None:
        if not self.problems:
            why = f": {self.left_out.summary()}" if self.left_out.total else ""
            raise ConfigError(
                f"task.path={self.path}: holds no problem with an answer to compare with{why}"
            )
        if repeated:
            log(
                f"task.path={self.path}: {len(self.problems)} different problems; {repeated} "
                "rows repeat one of them and are merged with it"
            )
        self.left_out.warn(self.path, len(self.problems))

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

    def scoring(self, prompt: Prompt) -> dict[str, Any] | None:
        """The marker of answers, if it is not the usual one."""
        return {"marker": self.verifier.marker} if self.verifier.marker else None

    def question(self, prompt: Prompt) -> str:
        """The problem without any prompt around it, behind earlier turns of its conversation."""
        return self.problems[prompt.index].asked(bare)

    def verify(self, prompt: Prompt, text: str) -> bool:
        """Whether the answer that `text` states equals the gold one."""
        return self.judge([prompt], [text])[0].correct

    def judge(self, prompts: list[Prompt], texts: list[str]) -> list[Verdict]:
        """The verdict on each text, with the answer that it states."""
        return self.verifier([prompt.answer for prompt in prompts], texts)

    def same_answers(self, pairs: list[tuple[str, str]]) -> list[bool | None]:
        """Whether the answers of each pair are mathematically equal; `None` if none could tell."""
        return self.verifier.equal(pairs)
