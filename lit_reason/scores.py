"""What is measured on held-out problems: scores of each problem, their means and intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_reason.batch import RolloutBatch
from lit_reason.functional import bootstrap_interval, majority_of_classes, mean_at_k, pass_at_k
from lit_reason.verdict import Status, Verdict

STATUSES = tuple(Status)
BLANK = -2  # class of an empty answer, which does not vote


@dataclass(frozen=True)
class Samples:
    """k judged responses to each of N problems.

    Attributes:
        index: (N,) int64: identity of the problem.
        source: (N,) int64: number of its data set.
        status: (N, k) int64: place of the verdict's status in `STATUSES`.
        classes: (N, k) int64: see `answer_classes`; below 0 casts no vote.
        lengths: (N, k) tokens.
        truncated: (N, k) bool.
        rewards: (N, k) float, nan where unscored; `None` if there are none.
    """

    index: Tensor
    source: Tensor
    status: Tensor
    classes: Tensor
    lengths: Tensor
    truncated: Tensor
    rewards: Tensor | None = None

    @classmethod
    def of(cls, rollout: RolloutBatch, k: int, sources: Sequence[str] = ()) -> Samples:
        """The problems of an evaluation batch, without those that only fill up a shard."""
        real = rollout.prompt_index.view(-1, k)[:, 0] >= 0
        numbers = {name: i for i, name in enumerate(sources)}
        names = [prompt.source for prompt in rollout.prompts[::k]]
        source = torch.tensor([numbers.get(name, 0) for name in names], device=real.device)
        assert rollout.answer_ids is not None
        return cls(
            index=rollout.prompt_index.view(-1, k)[real, 0],
            source=source[real],
            status=codes(rollout.verdicts).to(real.device).view(-1, k)[real],
            classes=rollout.answer_ids.view(-1, k)[real],
            lengths=rollout.lengths.view(-1, k)[real],
            truncated=rollout.truncated.view(-1, k)[real],
            rewards=rollout.rewards.masked_fill(~rollout.scored, torch.nan).view(-1, k)[real],
        )


def answer_classes(
    groups: Sequence[Sequence[Verdict]],
    same: Callable[[list[tuple[str, str]]], Sequence[bool | None]],
) -> list[list[int]]:
    """Numbers the answers to each problem so that equal ones share a number.

    Correct answers equal the gold one and so each other, and no wrong one; only wrong answers are
    compared, and what could not be verified is compared as text. The shortest answer begins a
    class, which those equal to it join, and so on with the rest: where equality is not transitive
    the classes still do not depend on the order of the responses.

    Args:
        groups: The verdicts on the responses to each problem.
        same: Whether the two answers of each pair are equal; `None` makes the second of the pair a
            class of its own. Asked once for each class, for all problems together.

    Returns:
        One number a verdict, -1 where the task does not say which answer is stated, `BLANK` where
        it is empty.

    Example:
        >>> group = [Verdict.of(True, "2"), Verdict.of(False, "3"), Verdict.of(False, "3.0")]
        >>> answer_classes([group], lambda pairs: [float(a) == float(b) for a, b in pairs])
        [[0, 1, 1]]
    """
    waiting = [
        sorted({v.answer for v in group if v.answer and v.status is Status.WRONG}, key=_shortest)
        for group in groups
    ]
    numbers: list[dict[str, int]] = [{} for _ in groups]
    while any(waiting):
        leaders = [answers[0] if answers else "" for answers in waiting]
        pairs = [(i, answer) for i, answers in enumerate(waiting) for answer in answers[1:]]
        told = same([(leaders[i], answer) for i, answer in pairs]) if pairs else []
        waiting = [[] for _ in groups]
        for leader, known in zip(leaders, numbers, strict=True):
            if leader:
                known[leader] = len(known) + 1
        for (i, answer), equal in zip(pairs, told, strict=True):
            if equal:
                numbers[i][answer] = numbers[i][leaders[i]]
            elif equal is None:
                numbers[i][answer] = len(numbers[i]) + 1
            else:
                waiting[i].append(answer)
    return [
        [_number(verdict, known) for verdict in group]
        for group, known in zip(groups, numbers, strict=True)
    ]


def _shortest(answer: str) -> tuple[int, str]:
    return len(answer), answer


def _number(verdict: Verdict, numbers: dict[str, int]) -> int:
    if not verdict.answer:
        return -1 if verdict.answer is None else BLANK
    return 0 if verdict.correct else numbers.setdefault(verdict.answer, len(numbers) + 1)


def codes(verdicts: Sequence[Verdict]) -> Tensor:
    """(B,) int64: the place of each verdict's status in `STATUSES`."""
    return torch.tensor([STATUSES.index(v.status) for v in verdicts], dtype=torch.long)


def source_keys(names: Sequence[str]) -> list[str]:
    """The names of data sets as parts of metrics' names, each different from the others.

    Example:
        >>> source_keys(["openai/gsm8k", ""]), source_keys(["a b", "a/b", "a_b"])
        (['openai_gsm8k', 'unnamed'], ['a_b_2', 'a_b_3', 'a_b'])
    """
    plain = [re.sub(r"[^\w.-]+", "_", name) or "unnamed" for name in names]
    taken = {key for key, name in zip(plain, names, strict=True) if key == name}
    keys = []
    for key, name in zip(plain, names, strict=True):
        chosen, number = key, 2
        while chosen != name and chosen in taken:
            chosen, number = f"{key}_{number}", number + 1
        taken.add(chosen)
        keys.append(chosen)
    return keys


def powers_of_two(k: int) -> list[int]:
    """1, 2, 4, ... up to `k`, and `k`.

    Example:
        >>> powers_of_two(8), powers_of_two(6)
        ([1, 2, 4, 8], [1, 2, 4, 6])
    """
    return sorted({k, *(2**i for i in range(k.bit_length()))})


def score_names(k: int, pass_k: Sequence[int]) -> list[str]:
    """The columns of `problem_scores`."""
    passes = [f"pass_at_{n}" for n in pass_k]
    rates = ["no_answer", "unverified", "truncated", "length", "reward"]
    return ["accuracy", *passes, f"maj_at_{k}", *rates]


def problem_scores(samples: Samples, pass_k: Sequence[int]) -> Tensor:
    """(N, C) float32: the scores of each problem, nan where one is not defined.

    The majority is not defined for a task that does not say which answer a response states, and
    nothing that counts verdicts for one that judges no response.
    """
    status, k = samples.status, samples.status.shape[1]
    correct, wrong, no_answer, timeout, error = (
        status == STATUSES.index(s)
        for s in (Status.CORRECT, Status.WRONG, Status.NO_ANSWER, Status.TIMEOUT, Status.ERROR)
    )
    hidden = ((correct | wrong) & (samples.classes == -1)).any(dim=1)
    majority = majority_of_classes(samples.classes, correct).masked_fill(hidden, torch.nan)
    rewards = samples.rewards
    none = torch.full(status.shape, torch.nan, device=status.device)
    of_verdicts = [
        mean_at_k(correct),
        *(_pass_table(k, n).to(status.device)[correct.sum(dim=1)] for n in pass_k),
        majority,
        mean_at_k(no_answer),
        mean_at_k(timeout | error),
    ]
    unjudged = (status == STATUSES.index(Status.UNJUDGED)).all(dim=1)
    columns = [
        *(column.masked_fill(unjudged, torch.nan) for column in of_verdicts),
        mean_at_k(samples.truncated),
        samples.lengths.float().mean(dim=1),
        (none if rewards is None else rewards.float()).nanmean(dim=1),
    ]
    return torch.stack([c.float() for c in columns], dim=1)


def _pass_table(n: int, k: int) -> Tensor:
    """pass@k of n samples for every number of correct ones."""
    return torch.tensor([pass_at_k(n, c, k) for c in range(n + 1)])


def summarise(
    names: Sequence[str], scores: Tensor, index: Tensor, source: Tensor, sources: Sequence[str] = ()
) -> dict[str, float]:
    """Means over problems and their 95 % bootstrap intervals, over all and by data set.

    Args:
        names: C names of scores.
        scores: (N, C), nan where a score is not defined.
        index: (N,) problems in any order; the interval does not depend on it.
        source: (N,) number of each problem's data set.
        sources: Names of the data sets; fewer than two are not reported by name.

    Returns:
        `NAME`, `NAME_low`, `NAME_high` and, with several data sets, `SOURCE/NAME` and so on. A
        score that is defined for no problem is left out.
    """
    order = index.argsort(stable=True)
    scores, source = scores[order].cpu().double(), source[order].cpu()
    values = _describe(names, scores, "")
    for number, key in enumerate(source_keys(sources) if len(sources) > 1 else ()):
        values |= _describe(names, scores[source == number], f"{key}/")
    return values


def _describe(names: Sequence[str], scores: Tensor, prefix: str) -> dict[str, float]:
    values: dict[str, float] = {}
    means = (scores.nanmean(dim=0), *bootstrap_interval(scores))
    for name, mean, low, high in zip(names, *(m.tolist() for m in means), strict=True):
        if not math.isnan(mean):
            key = prefix + name
            values |= {key: mean, f"{key}_low": low, f"{key}_high": high}
    return values


def why_nothing_is_right(stage: str, values: dict[str, float]) -> str:
    """What to say of an accuracy of 0: the likely reasons, from what else was measured."""
    reasons = []
    if values["no_answer"] >= 0.5:
        reasons.append(
            f"{values['no_answer']:.0%} of the responses state no answer where the task looks for "
            "it: let the prompt ask for the task's answer format"
        )
    if values["truncated"] >= 0.5:
        reasons.append(
            f"{values['truncated']:.0%} of the responses are cut off: raise "
            "data.val_sampling.max_new_tokens"
        )
    if values["unverified"] >= 0.5:
        reasons.append(f"{values['unverified']:.0%} of the responses could not be verified")
    reason = "; ".join(reasons) or (
        "answers are found, and none equals its gold one: compare them in the file that `predict` "
        "writes; the problems may be too hard for the model"
    )
    return f"{stage}/accuracy=0: no response is correct; {reason}"
