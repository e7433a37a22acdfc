"""The built-in task: choose a plan, then carry it out in many small steps."""

from __future__ import annotations

import hashlib
import random
import re
from typing import Literal

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError
from lit_reason.tasks.base import Task
from lit_reason.verdict import Status, Verdict

ALPHABET = "0123456789+=(),aimnx"


class PlanCount(Task):
    """`max(3,7)+4=` is answered by `7+4=8+3=9+2=10+1=11`.

    The first character is the plan: the larger operand. The rest counts up to the
    answer, one small step after the other, so that a wrong plan shows only in the outcome, up to a
    hundred tokens later. The answer is the number behind the last `=`.

    Demonstrations for the cold start contain *systematic* mistakes: with probability `wrong_plan`
    they choose the other operand, so that sharpening the policy makes it worse and only the outcome
    can teach the plan; and with probability `slip` a step goes wrong.

    Args:
        split: "train" or "held_out"; a hash of the prompt decides, so the two share no prompt.
        operations: "max", "min" or both; with both the plan depends on two things at once.
        n_min: Smallest number of steps.
        n_max: Largest number of steps; the length of a response grows with it.
        wrong_plan: Share of demonstrations with the wrong plan.
        slip: Probability of a mistake in each step of a demonstration.
        limit: Use only so many problems, spread evenly; null uses all.

    Example:
        >>> task = PlanCount()
        >>> prompt = task[0]
        >>> prompt.text, prompt.answer
        ('max(0,1)+2=', '3')
        >>> task.verify(prompt, "1+2=2+1=3"), task.verify(prompt, "0+2=1+1=2")
        (True, False)
    """

    answer_format = "plan_count"
    response_pattern = r"\d+\+\d+(=\d+\+\d+)*=\d+"

    def __init__(
        self,
        split: Literal["train", "held_out"] = "train",
        operations: tuple[Literal["max", "min"], ...] = ("max",),
        n_min: int = 2,
        n_max: int = 16,
        wrong_plan: float = 0.6,
        slip: float = 0.003,
        limit: int | None = None,
    ) -> None:
        if not 1 <= n_min <= n_max <= 90:
            key = f"n_min={n_min}" if 1 <= n_max <= 90 and n_min != 2 else f"n_max={n_max}"
            raise ConfigError(
                f"task.{key}: need 1 <= n_min={n_min} <= n_max={n_max} <= 90, for example "
                "2 and 16"
            )
        for name, value in (("wrong_plan", wrong_plan), ("slip", slip)):
            if not 0 <= value <= 1:
                raise ConfigError(f"task.{name}={value}: must lie in [0, 1]")
        if limit is not None and limit < 1:
            raise ConfigError(f"task.limit={limit}: must be at least 1, or null for all problems")
        if not operations:
            raise ConfigError("task.operations=(): choose max, min or both")
        self.wrong_plan, self.slip = wrong_plan, slip
        self.n_min, self.n_max = n_min, n_max
        problems = [
            (op, a, b, n)
            for op in operations
            for a in range(10)
            for b in range(10)
            for n in range(n_min, n_max + 1)
            if a != b and _is_held_out(_text(op, a, b, n)) == (split == "held_out")
        ]
        count = len(problems) if limit is None else min(limit, len(problems))
        self.problems = [problems[i * len(problems) // count] for i in range(count)]

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        """The problem of row `index`."""
        op, a, b, n = self.problems[index]
        return Prompt(index, _text(op, a, b, n), str(_plan(op, a, b) + n))

    def verify(self, prompt: Prompt, text: str) -> bool:
        """Whether the number behind the last `=` is the answer."""
        return stated_answer(text) == prompt.answer

    def judge(self, prompts: list[Prompt], texts: list[str]) -> list[Verdict]:
        """The verdict on each text, with the answer that it states."""
        return [
            judged(self.verify(prompt, text), stated_answer(text))
            for prompt, text in zip(prompts, texts, strict=True)
        ]

    def judge_steps(self, prompt: Prompt, text: str) -> list[tuple[int, bool]]:
        """A step is valid if it follows from the one before; the first if it is the right plan."""
        op, a, b, n = self.problems[prompt.index]
        expected: str | None = f"{_plan(op, a, b)}+{n}"
        steps, end = [], -1
        for part in text.split("="):
            end += 1 + len(part)
            steps.append((end, part == expected))
            expected = _following(part)
        return steps

    def difficulty(self, prompt: Prompt) -> float:
        """The number of steps, scaled to [0, 1]."""
        n = self.problems[prompt.index][3]
        return (n - self.n_min) / max(self.n_max - self.n_min, 1)

    def demonstration(self, prompt: Prompt, rng: random.Random) -> str:
        """A response with the task's share of wrong plans and slips."""
        op, a, b, n = self.problems[prompt.index]
        right = _plan(op, a, b)
        total = a + b - right if rng.random() < self.wrong_plan else right
        parts = []
        while n > 0:
            parts.append(f"{total}+{n}")
            total, n = total + 1, n - 1
            if rng.random() < self.slip:
                total, n = rng.choice(
                    [(total + 1, n), (max(total - 1, 0), n), (total, max(n - 1, 0))]
                )
        return "=".join([*parts, str(total)])


def stated_answer(text: str) -> str | None:
    """What stands behind the last `=`; `None` if there is none, or nothing behind it."""
    return text.rsplit("=", 1)[1] or None if "=" in text else None


def judged(correct: bool, answer: str | None) -> Verdict:
    """A verdict in which a wrong response without an answer says so."""
    verdict = Verdict.of(correct, answer)
    return Verdict(Status.NO_ANSWER) if answer is None and not correct else verdict


def _text(op: str, a: int, b: int, n: int) -> str:
    return f"{op}({a},{b})+{n}="


def _plan(op: str, a: int, b: int) -> int:
    return max(a, b) if op == "max" else min(a, b)


def _following(part: str) -> str | None:
    step = re.fullmatch(r"(\d{1,3})\+(\d{1,3})", part)
    if step is None:
        return None
    total, left = int(step.group(1)) + 1, int(step.group(2)) - 1
    return f"{total}+{left}" if left else str(total)


def _is_held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 10 == 0
