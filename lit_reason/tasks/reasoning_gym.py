"""Procedurally generated problems of the `reasoning-gym` package, judged by its own scorers."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, require_at_least_one
from lit_reason.log import log
from lit_reason.tasks.base import Task
from lit_reason.tasks.gym_answers import may_be_scored
from lit_reason.tasks.templates import Messages, choose, render, warn_of_silence
from lit_reason.verdict import Status, Verdict
from lit_reason.verifier import AnswerFormat
from lit_reason.verifier.extract import extract, state

_EXAMPLES_SEED = 1_000_003  # an offset: examples are not the problems themselves


class ReasoningGym(Task):
    """One generator of `reasoning-gym`; needs `pip install 'lit-reason[reasoning-gym]'`.

    A problem's answer is what its generator says, and a response is right if the generator's own
    scorer gives its stated answer at least `threshold`. Training and held-out problems are two
    seeds; where a generator has few problems they overlap, and `data.remove_overlap` takes care of
    that.

    Prompts ask for one answer; grids and other answers of several lines need the format `boxed` or
    `think_answer`. Nine scorers evaluate the answer as a formula: see `gym_answers`.

    Args:
        name: Name of the generator, for example `chain_sum` or `countdown`.
        size: Number of problems; equal ones are merged.
        seed: Seed of the generator.
        params: Arguments of the generator, for example `{max_terms: 2}`.
        threshold: Smallest score of a right answer. Scorers give 1 for right answers, and some
            give less for answers that are partly right or badly written.
        examples: Solved problems shown before each problem, as turns of a conversation.
        template: See `MathProblems`.
        answer_format: See `MathProblems`.
        system: System message.
        chat: Render the prompt with the tokenizer's chat template; false for base models.
    """

    def __init__(
        self,
        name: str,
        size: int = 1000,
        seed: int = 0,
        params: dict[str, Any] | None = None,
        threshold: float = 1.0,
        examples: int = 0,
        template: str | None = None,
        answer_format: AnswerFormat | None = None,
        system: str | None = None,
        chat: bool = False,
    ) -> None:
        require_at_least_one("task", size=size)
        if not 0 < threshold <= 1:
            raise ConfigError(f"task.threshold={threshold}: must be above 0 and at most 1")
        if examples < 0:
            raise ConfigError(f"task.examples={examples}: must be at least 0")
        self.name, self.threshold, self.system, self.chat = name, threshold, system, chat
        self.template, self.format = choose(template, answer_format, system, None)
        if not examples:
            warn_of_silence(template, self.template, system, self.format)
        self.generator = _create(name, size, seed, params or {})
        shown = _create(name, examples, seed + _EXAMPLES_SEED, params or {}) if examples else ()
        self.examples = self._turns(shown)
        self.entries = list({entry["question"]: entry for entry in self.generator}.values())
        if len(self.entries) < size:
            log(f"task.name={name}: {len(self.entries)} different problems of {size}")
        self._check_format()

    def _check_format(self) -> None:
        """Refuses a format in which not even the generator's own answers count."""
        golds = [(i, e["answer"]) for i, e in enumerate(self.entries[:10]) if e["answer"]]
        stated = [state(gold, self.format) for _, gold in golds]
        prompts = [self[i] for i, _ in golds]
        if golds and not any(map(self.verify, prompts, stated)):
            raise ConfigError(
                f"task.answer_format={self.format}: cannot hold answers of {self.name} such as "
                f"{golds[0][1]!r}; set it to think_answer"
            )

    def _turns(self, entries: Any) -> Messages:
        turns: list[dict[str, str]] = []
        for entry in entries:
            asked = render(self.template, entry["question"], None, ()).messages or ()
            stated = state(entry["answer"], self.format)
            turns += [asked[-1], {"role": "assistant", "content": stated}]
        return tuple(turns)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Prompt:
        """The problem of row `index`."""
        entry = self.entries[index]
        prompt = render(self.template, entry["question"], self.system, self.examples)
        messages = prompt.messages if self.chat else None
        # some problems have several answers, and no gold one
        return Prompt(index, prompt.text, str(entry["answer"] or ""), messages, self.name)

    def question(self, prompt: Prompt) -> str:
        """The problem without any prompt around it."""
        return self.entries[prompt.index]["question"]

    def verify(self, prompt: Prompt, text: str) -> bool:
        """Whether the scorer accepts the answer that `text` states."""
        return self._verdict(prompt, text).correct

    def judge(self, prompts: list[Prompt], texts: list[str]) -> list[Verdict]:
        """The verdict on each text; `error` where the scorer raised."""
        return [self._verdict(p, t) for p, t in zip(prompts, texts, strict=True)]

    def _verdict(self, prompt: Prompt, text: str) -> Verdict:
        stated = extract(text, self.format)
        if stated is None:
            return Verdict(Status.NO_ANSWER)
        stated = stated.strip()
        if not may_be_scored(self.name, stated):
            return Verdict(Status.WRONG, stated)
        try:
            score = self.generator.score_answer(stated, self.entries[prompt.index])
        except Exception:  # scorers parse what a policy wrote, which can be anything
            return Verdict(Status.ERROR, stated)
        return Verdict.of(score >= self.threshold, stated)


def _create(name: str, size: int, seed: int, params: dict[str, Any]) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            "task: ReasoningGym needs reasoning-gym; install it with "
            "pip install 'lit-reason[reasoning-gym]'"
        ) from error
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4) or ["chain_sum"]
        raise ConfigError(
            f"task.name={name}: reasoning-gym has {len(DATASETS)} generators but not this one; did "
            f"you mean {' or '.join(close)}?"
        )
    known = {f.name for f in fields(DATASETS[name][1])} - {"size", "seed"}
    for key in params:
        if key not in known:
            raise ConfigError(
                f"task.params.{key}: {name} has no such argument; it has {', '.join(sorted(known))}"
            )
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **params)
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise ConfigError(
            f"task.params={params}: {name} refuses them ({reason.splitlines()[0]})"
        ) from error
