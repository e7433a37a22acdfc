"""Prompts without gold answers: reward functions and models alone judge the responses."""

from __future__ import annotations

from itertools import islice

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, require_at_least_one
from lit_reason.log import log
from lit_reason.tasks.base import Task, warn_of_limit
from lit_reason.tasks.left_out import LeftOut
from lit_reason.tasks.rows import Distinct, find_columns, problems_of, shape
from lit_reason.tasks.sources import load
from lit_reason.tasks.templates import SEEN, bare, choose, render
from lit_reason.verdict import Status, Verdict


class Prompts(Task):
    """Prompts of a file or a `datasets` id, as TRL's prompt-only data sets hold them.

    No response is right or wrong: rewards are those of `FunctionReward`, `RewardModel` and terms
    that read the text, and no accuracy is reported. What needs verdicts (`Correctness`,
    `DropUniform`, `PositiveExampleLM`) is refused at set-up. Equal prompts are merged.

    Args:
        path: See `MathProblems`.
        split: See `MathProblems`.
        config: See `MathProblems`.
        question: Column of the prompt, a text or a conversation; null takes `prompt`, `problem` or
            `question`.
        source: See `MathProblems`.
        template: A name, or a text with `{question}` in it; null takes the prompts as they are.
        system: See `MathProblems`.
        chat: See `MathProblems`.
        columns: See `MathProblems`.
        streaming: See `MathProblems`.
        limit: Use only the first prompts.
    """

    judges = False

    def __init__(
        self,
        path: str,
        split: str = "train",
        config: str | None = None,
        question: str | None = None,
        source: str | None = None,
        template: str | None = None,
        system: str | None = None,
        chat: bool = False,
        columns: list[str] | None = None,
        streaming: bool = False,
        limit: int | None = None,
    ) -> None:
        require_at_least_one("task", limit=limit)
        self.template, _ = choose("none" if template is None else template, None, system, None)
        self.path, self.system, self.chat = path, system, chat
        rows = load(path, split, config, streaming)
        row = shape(islice(rows, SEEN))
        found = find_columns(row, path, question, None, source, columns or (), golds=False)
        left_out = LeftOut()
        merged = Distinct(problems_of(rows, found, left_out))
        self.problems = list(islice(merged, limit))
        warn_of_limit(limit, len(self.problems))
        if not self.problems:
            raise ConfigError(f"task.path={path}: holds no prompt ({left_out.summary()})")
        if merged.repeated:
            log(f"task.path={path}: {merged.repeated} rows repeat a prompt and are merged with it")
        left_out.warn(path, len(self.problems))

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        """The prompt of row `index`."""
        problem = self.problems[index]
        prompt = render(self.template, problem.question, self.system, problem.history)
        messages = prompt.messages if self.chat else None
        return Prompt(index, prompt.text, "", messages, problem.source, problem.columns)

    def question(self, prompt: Prompt) -> str:
        """The prompt without any template around it, behind earlier turns of its conversation."""
        return self.problems[prompt.index].asked(bare)

    def verify(self, prompt: Prompt, text: str) -> bool:
        """Nothing is right here."""
        return False

    def judge(self, prompts: list[Prompt], texts: list[str]) -> list[Verdict]:
        """Says of each text that nobody judges it."""
        return [Verdict(Status.UNJUDGED) for _ in texts]
