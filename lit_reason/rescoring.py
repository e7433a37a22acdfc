"""Judges the responses of a predictions file again, without model, task or data set."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from lit_reason.errors import RAISED, ConfigError, blaming, said
from lit_reason.prediction_files import Row
from lit_reason.scores import (
    Samples,
    answer_classes,
    codes,
    powers_of_two,
    problem_scores,
    score_names,
    summarise,
)
from lit_reason.verdict import Verdict
from lit_reason.verifier import AnswerFormat, Verifier
from lit_reason.verifier.gym import GymVerifier

MATH = ("boxed", "answer", "gsm8k", "think_answer")


@dataclass(frozen=True)
class Scorer:
    """How the responses of one answer format are judged.

    Attributes:
        judge: (what each problem is judged by, responses) -> verdicts.
        same: Pairs of answers -> whether the two are equal.
        key: Key of the rows that holds what a problem is judged by.
    """

    judge: Callable[[list[Any], list[str]], Sequence[Verdict]]
    same: Callable[[list[tuple[str, str]]], Sequence[bool | None]] = lambda pairs: [
        a == b for a, b in pairs
    ]
    key: str = "gold"


def scorer(answer_format: str | None, scoring: dict[str, Any] | None = None) -> Scorer:
    """The scorer of a format that a predictions file names, or of a function of one's own.

    Args:
        answer_format: `boxed`, `answer`, `gsm8k`, `think_answer`, `plan_count`, or the dotted path
            of a function that takes gold answers and responses and returns verdicts.
        scoring: What the file says besides: a marker of answers, or a generator of `reasoning-gym`.

    Raises:
        ConfigError: There is no such format.
    """
    scoring = scoring or {}
    if answer_format in MATH and "generator" in scoring:
        return Scorer(GymVerifier(cast(AnswerFormat, answer_format)), key="scoring")
    if answer_format in MATH:
        verifier = Verifier(cast(AnswerFormat, answer_format), marker=scoring.get("marker"))
        return Scorer(verifier, verifier.equal)
    if answer_format == "plan_count":
        return _plan_count()
    return Scorer(_own(answer_format or ""))


def _own(path: str) -> Callable[[list[str], list[str]], Sequence[Verdict]]:
    """A function of the user's, whose verdicts are checked."""
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"answer_format={path or None}: not known; give one of "
            f"{', '.join((*MATH, 'plan_count'))}, or the dotted path of a function that takes gold "
            "answers and responses and returns verdicts"
        ) from error
    except RAISED as error:
        raise ConfigError(
            f"answer_format={path}: cannot be imported ({type(error).__name__}: {said(error)})"
        ) from error
    if not callable(function):
        raise ConfigError(f"answer_format={path}: is {function!r}, expected a function")

    def judge(golds: list[str], texts: list[str]) -> list[Verdict]:
        with blaming(f"answer_format={path}", function):
            given = function(golds, texts)
        verdicts = list(given) if isinstance(given, Iterable) else [given]
        odd = [verdict for verdict in verdicts if not isinstance(verdict, Verdict)]
        if odd:
            raise ConfigError(
                f"answer_format={path}: returned {odd[0]!r}, expected a lit_reason.verdict.Verdict "
                "for each response, for example Verdict.of(True)"
            )
        if len(verdicts) != len(texts):
            raise ConfigError(
                f"answer_format={path}: returned {len(verdicts)} verdicts for {len(texts)} "
                "responses"
            )
        return verdicts

    return judge


def _plan_count() -> Scorer:
    from lit_reason.tasks.plan_count import judged, stated_answer

    def judge_one(gold: str, text: str) -> Verdict:
        stated = stated_answer(text)
        return judged(stated == gold, stated)

    return Scorer(lambda golds, texts: [judge_one(g, t) for g, t in zip(golds, texts, strict=True)])


def judge_again(
    rows: list[Row], answer_format: str | None = None
) -> tuple[list[Verdict], list[list[int]], int]:
    """New verdicts on all rows.

    Args:
        rows: As `read_predictions` returns them.
        answer_format: See `scorer`; `None` takes the one that the rows name.

    Returns:
        The verdicts, the numbered answers to each problem, and the responses to each.
    """
    named = {row.get("answer_format") for row in rows}
    if answer_format is None and len(named) > 1:
        raise ConfigError(
            f"the rows name several answer formats, {', '.join(sorted(map(str, named)))}; give "
            "--answer_format"
        )
    scoring = [row.get("scoring") or {} for row in rows]
    if len({(s.get("marker"), s.get("generator") is None) for s in scoring}) > 1:
        raise ConfigError("the rows are of several tasks; judge the files of each by themselves")
    chosen_format = answer_format or next(iter(named))
    own_marker = chosen_format in named or "generator" in scoring[0]
    chosen = scorer(chosen_format, scoring[0] if own_marker else None)
    golds, texts = [row[chosen.key] for row in rows], [row["response"] for row in rows]
    verdicts = list(chosen.judge(golds, texts))
    k = sum(row["prompt_index"] == rows[0]["prompt_index"] for row in rows)
    groups = [verdicts[start : start + k] for start in range(0, len(rows), k)]
    return verdicts, answer_classes(groups, chosen.same), k


def measure(
    rows: list[Row],
    verdicts: list[Verdict],
    classes: list[list[int]],
    k: int,
    pass_k: list[int] | None = None,
) -> dict[str, float]:
    """What `validate` logs for these responses, with intervals; without the reward."""
    pass_k = powers_of_two(k) if pass_k is None else pass_k
    if any(not 1 <= n <= k for n in pass_k):
        raise ConfigError(f"pass_k={pass_k}: each must lie between 1 and the {k} samples")
    names = [row.get("source") or "" for row in rows[::k]]
    sources = sorted(set(names))
    samples = Samples(
        index=torch.tensor([row["prompt_index"] for row in rows[::k]]),
        source=torch.tensor([sources.index(name) for name in names]),
        status=codes(verdicts).view(-1, k),
        classes=torch.tensor(classes),
        lengths=torch.tensor([row["length"] for row in rows]).view(-1, k),
        truncated=torch.tensor([bool(row["truncated"]) for row in rows]).view(-1, k),
    )
    scores = problem_scores(samples, pass_k)
    return summarise(score_names(k, pass_k), scores, samples.index, samples.source, sources)


def changes(rows: list[Row], verdicts: list[Verdict]) -> list[Row]:
    """Rows whose status is not what it was, with the old one and the old answer beside the new."""
    changed = []
    for row, verdict in zip(rows, verdicts, strict=True):
        if row["status"] != verdict.status:
            before = {"status_before": row["status"], "answer_before": row.get("answer")}
            now = {"status": str(verdict.status), "answer": verdict.answer}
            changed.append({**row, **now, "correct": verdict.correct, **before})
    return changed
