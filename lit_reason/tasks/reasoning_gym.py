"""Procedurally generated problems of the `reasoning-gym` package, judged by its own scorers."""

from __future__ import annotations

import difflib
import warnings
from dataclasses import fields
from typing import Any

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, ConfigWarning, require_at_least_one
from lit_reason.log import log
from lit_reason.tasks.base import Task
from lit_reason.tasks.templates import Messages, choose, render, warn_of_silence
from lit_reason.verdict import Verdict
from lit_reason.verifier import AnswerFormat
from lit_reason.verifier.extract import extract, state
from lit_reason.verifier.gym import GymVerifier, Request, request_of
from lit_reason.verifier.gym_answers import may_be_scored

_NONSENSE = "no answer to this"
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
        workers: Processes that ask the scorer, on each rank.
        time_limit: Seconds for one answer; then its status is `timeout`.
        memory_limit: MiB that scoring one answer may take; then its status is `error`.
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
        workers: int = 2,
        time_limit: float = 5.0,
        memory_limit: int = 1024,
    ) -> None:
        require_at_least_one("task", size=size)
        if not 0 < threshold <= 1:
            raise ConfigError(f"task.threshold={threshold}: must be above 0 and at most 1")
        if examples < 0:
            raise ConfigError(f"task.examples={examples}: must be at least 0")
        self.name, self.threshold, self.system, self.chat = name, threshold, system, chat
        self.params = params or {}
        self.template, chosen = choose(template, answer_format, system, None)
        self.answer_format: AnswerFormat = chosen
        if not examples:
            warn_of_silence(template, self.template, system, self.answer_format)
        self.verifier = GymVerifier(self.answer_format, workers, time_limit, memory_limit)
        self.generator = _create(name, size, seed, params or {})
        shown = _create(name, examples, seed + _EXAMPLES_SEED, params or {}) if examples else ()
        self.examples = self._turns(shown)
        self.entries = list({entry["question"]: entry for entry in self.generator}.values())
        if len(self.entries) < size:
            log(f"task.name={name}: {len(self.entries)} different problems of {size}")
        self._check_format()
        self._check_scorer()

    def _check_format(self) -> None:
        """Refuses a format in which not even the generator's own answers count."""
        held = [entry for entry in self.entries[:10] if entry["answer"]]
        if held and not any(map(self._holds, held)):
            raise ConfigError(
                f"task.answer_format={self.answer_format}: cannot hold answers of {self.name} such "
                f"as {held[0]['answer']!r}; set it to think_answer"
            )

    def _check_scorer(self) -> None:
        """Warns of a scorer that accepts what answers nothing."""
        probed = self.entries[:10]
        accepted = sum(map(self._accepts_nonsense, probed))
        if accepted:
            warnings.warn(
                f"task.name={self.name}: its scorer in reasoning-gym accepts {_NONSENSE!r} for "
                f"{accepted} of {len(probed)} problems, so that being right means nothing there; "
                "choose another generator",
                ConfigWarning,
                stacklevel=3,
            )

    def _accepts_nonsense(self, entry: Any) -> bool:
        if not may_be_scored(self.name, _NONSENSE):
            return False
        try:
            return bool(self.generator.score_answer(_NONSENSE, entry) >= self.threshold)
        except Exception:  # wrong, or an `error`
            return False

    def _holds(self, entry: Any) -> bool:
        stated = extract(state(entry["answer"], self.answer_format), self.answer_format)
        return (
            stated is not None
            and may_be_scored(self.name, stated)
            and self.generator.score_answer(stated, entry) >= self.threshold
        )

    def _turns(self, entries: Any) -> Messages:
        turns: list[dict[str, str]] = []
        for entry in entries:
            asked = render(self.template, entry["question"], None, ()).messages or ()
            stated = state(entry["answer"], self.answer_format)
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
        return self.judge([prompt], [text])[0].correct

    def judge(self, prompts: list[Prompt], texts: list[str]) -> list[Verdict]:
        """The verdict on each text; `timeout` where the scorer hung, `error` where it fails."""
        return self.verifier([self.scoring(prompt) for prompt in prompts], texts)

    def scoring(self, prompt: Prompt) -> Request:
        """The problem as its scorer needs it."""
        entry = self.entries[prompt.index]
        return request_of(self.name, self.params, self.threshold, entry)


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
    for key, value in params.items():
        if key not in known:
            raise ConfigError(
                f"task.params.{key}={value}: {name} has no such argument; it has "
                f"{', '.join(sorted(known))}"
            )
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **params)
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        raise ConfigError(
            f"task.params={params}: {name} refuses them ({reason.splitlines()[0]})"
        ) from error
