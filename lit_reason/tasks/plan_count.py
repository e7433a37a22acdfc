"""The built-in task: choose a plan, then carry it out in many small steps."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError
from lit_reason.tasks.base import Task, warn_of_limit
from lit_reason.verdict import Status, Verdict

ALPHABET = "0123456789+=(),aimnx"
LETTERS = "aimnx"
SAMPLED = 5000  # problems drawn where there are too many to list
PAIRS = ((1, 2), (3, 4), (5, 6), (7, 8))

Operation = Literal["max", "min"]
Operands = Literal["any", "paired"]


@dataclass(frozen=True)
class Choice:
    """One plan of a problem."""

    operation: Operation
    a: int
    b: int

    @property
    def right(self) -> int:
        """The operand that the plan is."""
        return max(self.a, self.b) if self.operation == "max" else min(self.a, self.b)

    @property
    def other(self) -> int:
        """The operand that it is not."""
        return self.a + self.b - self.right


@dataclass(frozen=True)
class Problem:
    """Plans to choose, and the steps to count from the number that they make."""

    choices: tuple[Choice, ...]
    steps: int

    @property
    def text(self) -> str:
        """The prompt."""
        chosen = "".join(f"{c.operation}({c.a},{c.b})" for c in self.choices)
        return f"{chosen}+{self.steps}="

    @property
    def start(self) -> int:
        """The number that is counted up."""
        return _number(choice.right for choice in self.choices)


class PlanCount(Task):
    """`max(3,7)+4=` is answered by `7+4=8+3=9+2=10+1=11`.

    The first character is the plan: the larger operand. The rest counts up to the
    answer, one small step after the other, so that a wrong plan shows only in the outcome, up to a
    hundred tokens later. The answer is the number behind the last `=`.

    With several `plans` each one is a digit of the number that is counted up:
    `max(3,7)max(2,5)+3=` is answered by `75+3=76+2=77+1=78`. All of them are chosen within the
    first tokens, and one verdict at the end is on all of them. With `chatter` letters that mean
    nothing stand between the steps, `75+3=x76+2=am77+1=78`: choices that do not matter, in which
    the one verdict is noise, and lengths that differ between responses to one problem.

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
        plans: Number of plans of a problem, from 1 to 4. With one the problems are all there are;
            with several they are a fixed sample of about 5,000, with operands from 1 to 9.
        operands: With "paired" those of a plan are 1 and 2, 3 and 4, 5 and 6, or 7 and 8, so that
            the right one shows by itself, and a critic sees it soon. Needs several `plans`.
        chatter: Probability of a letter before a step of a demonstration, and of another one behind
            each letter.

    Example:
        >>> task = PlanCount()
        >>> prompt = task[0]
        >>> prompt.text, prompt.answer
        ('max(0,1)+2=', '3')
        >>> task.verify(prompt, "1+2=2+1=3"), task.verify(prompt, "0+2=1+1=2")
        (True, False)
    """

    answer_format = "plan_count"
    of_demonstrations = ("wrong_plan", "slip", "chatter")
    response_pattern = r"\d+\+\d+(=[aimnx]*\d+\+\d+)*=\d+"

    def __init__(
        self,
        split: Literal["train", "held_out"] = "train",
        operations: tuple[Operation, ...] = ("max",),
        n_min: int = 2,
        n_max: int = 16,
        wrong_plan: float = 0.6,
        slip: float = 0.003,
        limit: int | None = None,
        plans: int = 1,
        operands: Operands = "any",
        chatter: float = 0.0,
    ) -> None:
        _check_steps(n_min, n_max, operations, limit)
        _check_rates(wrong_plan, slip, chatter)
        _check_plans(plans, operands)
        self.wrong_plan, self.slip, self.chatter = wrong_plan, slip, chatter
        self.n_min, self.n_max = n_min, n_max
        steps = range(n_min, n_max + 1)
        every = _all(operations, steps) if plans == 1 else _some(operations, steps, plans, operands)
        problems = [p for p in every if _is_held_out(p.text) == (split == "held_out")]
        count = len(problems) if limit is None else min(limit, len(problems))
        warn_of_limit(limit, len(problems))
        self.problems = [problems[i * len(problems) // count] for i in range(count)]

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: int) -> Prompt:
        """The problem of row `index`."""
        problem = self.problems[index]
        return Prompt(index, problem.text, str(problem.start + problem.steps))

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
        problem = self.problems[prompt.index]
        expected: str | None = f"{problem.start}+{problem.steps}"
        steps: list[tuple[int, bool]] = []
        end = -1
        for part in text.split("="):
            end += 1 + len(part)
            said = part.lstrip(LETTERS) if steps else part
            steps.append((end, said == expected))
            expected = _following(said)
        return steps

    def difficulty(self, prompt: Prompt) -> float:
        """The number of steps, scaled to [0, 1]."""
        n = self.problems[prompt.index].steps
        return (n - self.n_min) / max(self.n_max - self.n_min, 1)

    def demonstration(self, prompt: Prompt, rng: random.Random) -> str:
        """A response with the task's share of wrong plans and slips."""
        problem = self.problems[prompt.index]
        n = problem.steps
        total = _number(
            choice.other if rng.random() < self.wrong_plan else choice.right
            for choice in problem.choices
        )
        parts: list[str] = []
        while n > 0:
            letters = self._letters(rng) if parts else ""
            parts.append(f"{letters}{total}+{n}")
            total, n = total + 1, n - 1
            if rng.random() < self.slip:
                total, n = rng.choice(
                    [(total + 1, n), (max(total - 1, 0), n), (total, max(n - 1, 0))]
                )
        return "=".join([*parts, str(total)])

    def _letters(self, rng: random.Random) -> str:
        letters = ""
        while self.chatter and rng.random() < self.chatter:
            letters += rng.choice(LETTERS)
        return letters


def stated_answer(text: str) -> str | None:
    """What stands behind the last `=`; `None` if there is none, or nothing behind it."""
    return text.rsplit("=", 1)[1] or None if "=" in text else None


def judged(correct: bool, answer: str | None) -> Verdict:
    """A verdict in which a wrong response without an answer says so."""
    verdict = Verdict.of(correct, answer)
    return Verdict(Status.NO_ANSWER) if answer is None and not correct else verdict


def _check_steps(
    n_min: int, n_max: int, operations: Sequence[Operation], limit: int | None
) -> None:
    if not 1 <= n_min <= n_max <= 90:
        key = f"n_min={n_min}" if 1 <= n_max <= 90 and n_min != 2 else f"n_max={n_max}"
        raise ConfigError(
            f"task.{key}: need 1 <= n_min={n_min} <= n_max={n_max} <= 90, for example 2 and 16"
        )
    if limit is not None and limit < 1:
        raise ConfigError(f"task.limit={limit}: must be at least 1, or null for all problems")
    if not operations:
        raise ConfigError("task.operations=(): choose max, min or both")


def _check_rates(wrong_plan: float, slip: float, chatter: float) -> None:
    for name, value in (("wrong_plan", wrong_plan), ("slip", slip)):
        if not 0 <= value <= 1:
            raise ConfigError(f"task.{name}={value}: must lie in [0, 1]")
    if not 0 <= chatter <= 0.9:
        raise ConfigError(f"task.chatter={chatter}: must lie between 0 and 0.9")


def _check_plans(plans: int, operands: Operands) -> None:
    if not 1 <= plans <= 4:
        raise ConfigError(f"task.plans={plans}: must lie between 1 and 4")
    if plans == 1 and operands != "any":
        raise ConfigError(f"task.operands={operands}: needs task.plans of at least 2, or any")


def _number(digits: Iterable[int]) -> int:
    return int("".join(map(str, digits)))


def _all(operations: Sequence[Operation], steps: range) -> list[Problem]:
    """Every problem with one plan."""
    return [
        Problem((Choice(op, a, b),), n)
        for op in operations
        for a in range(10)
        for b in range(10)
        for n in steps
        if a != b
    ]


def _some(
    operations: Sequence[Operation], steps: range, plans: int, operands: Operands
) -> list[Problem]:
    """A sample of the problems with several plans, the same one every time."""
    rng = random.Random(plans)
    drawn = {
        Problem(
            tuple(Choice(rng.choice(operations), *_operands(rng, operands)) for _ in range(plans)),
            rng.choice(steps),
        ): None
        for _ in range(SAMPLED)
    }
    return list(drawn)


def _operands(rng: random.Random, operands: Operands) -> list[int]:
    among: Sequence[int] = range(1, 10) if operands == "any" else rng.choice(PAIRS)
    return rng.sample(among, 2)


def _following(part: str) -> str | None:
    step = re.fullmatch(r"(\d{1,6})\+(\d{1,3})", part)
    if step is None:
        return None
    total, left = int(step.group(1)) + 1, int(step.group(2)) - 1
    return f"{total}+{left}" if left else str(total)


def _is_held_out(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 10 == 0
