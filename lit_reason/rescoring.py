"""Judges the responses of a predictions file again, without model, task or data set."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lit_reason.errors import ConfigError
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
from lit_reason.verifier import Verifier

NEEDED = ("prompt_index", "sample", "response", "gold", "status", "length", "truncated")
MATH = ("boxed", "answer", "gsm8k", "think_answer")

Row = dict[str, Any]


@dataclass(frozen=True)
class Scorer:
    """How the responses of one answer format are judged.

    Attributes:
        judge: (gold answers, responses) -> verdicts.
        same: Pairs of answers -> whether the two are equal.
    """

    judge: Callable[[list[str], list[str]], Sequence[Verdict]]
    same: Callable[[list[tuple[str, str]]], Sequence[bool | None]] = lambda pairs: [
        a == b for a, b in pairs
    ]


def scorer(answer_format: str | None) -> Scorer:
    """The scorer of a format that a predictions file names, or of a function of one's own.

    Args:
        answer_format: `boxed`, `answer`, `gsm8k`, `think_answer`, `plan_count`, or the dotted path
            of a function that takes gold answers and responses and returns verdicts.

    Raises:
        ConfigError: There is no such format.
    """
    if answer_format in MATH:
        return _math(answer_format)
    if answer_format == "plan_count":
        return _plan_count()
    module, _, name = (answer_format or "").rpartition(".")
    try:
        return Scorer(getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"answer_format={answer_format}: not known; give one of "
            f"{', '.join((*MATH, 'plan_count'))}, or the dotted path of a function that takes gold "
            "answers and responses and returns verdicts"
        ) from error


def _math(answer_format: Any) -> Scorer:
    verifier = Verifier(answer_format)
    return Scorer(verifier, verifier.equal)


def _plan_count() -> Scorer:
    from lit_reason.tasks.plan_count import judged, stated_answer

    def judge_one(gold: str, text: str) -> Verdict:
        stated = stated_answer(text)
        return judged(stated == gold, stated)

    return Scorer(lambda golds, texts: [judge_one(g, t) for g, t in zip(golds, texts, strict=True)])


def read_predictions(paths: Iterable[Path]) -> list[Row]:
    """The rows of predictions files, the samples of a problem together.

    Raises:
        ConfigError: A file does not exist or holds something else, or problems have different
            numbers of responses.
    """
    rows = [row for path in paths for row in _read(path)]
    if not rows:
        raise ConfigError("the files hold no prediction")
    rows.sort(key=lambda row: (row["prompt_index"], row["sample"]))
    counts = Counter(row["prompt_index"] for row in rows)
    most = max(counts.values())
    expected = [(index, sample) for index in sorted(counts) for sample in range(most)]
    if [(row["prompt_index"], row["sample"]) for row in rows] != expected:
        index = next(i for i in sorted(counts) if _samples(rows, i) != list(range(most)))
        raise ConfigError(
            f"problem {index} has the samples {_samples(rows, index)}, another has {most}; give "
            "all files of one `predict`, and of one only"
        )
    return rows


def _samples(rows: list[Row], index: int) -> list[int]:
    return [row["sample"] for row in rows if row["prompt_index"] == index]


def _read(path: Path) -> list[Row]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    rows = []
    # not splitlines: responses may hold other line separators
    for number, line in enumerate(path.read_text(encoding="utf-8").strip().split("\n"), 1):
        try:
            row = json.loads(line)
            missing = [key for key in NEEDED if key not in row]
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}:{number}: not a JSON object") from error
        if missing:
            raise ConfigError(
                f"{path}:{number}: has no {missing[0]}; is it a file that `predict` wrote?"
            )
        rows.append(row)
    return rows


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
    chosen = scorer(answer_format or next(iter(named)))
    golds, texts = [row["gold"] for row in rows], [row["response"] for row in rows]
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
