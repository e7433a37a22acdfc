"""Verdicts on responses, and the rewards of one group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set, Sized
from contextlib import suppress
from typing import Any

from lit_reason.batch import Group, Prompt, Response
from lit_reason.errors import ConfigError, blaming
from lit_reason.rewards import Reward
from lit_reason.rewards.base import LARGEST
from lit_reason.tasks import Task
from lit_reason.verdict import Status, Verdict


def judge(
    prompts: list[Prompt], responses: list[list[Response]], task: Task, key: str = "data.task"
) -> list[list[Verdict]]:
    """The task's verdicts on the responses to each prompt, all asked for at once.

    A truncated response is judged like any other: it may have stated its answer already.

    Args:
        prompts: The problems.
        responses: Those to each problem.
        task: Judges them.
        key: `data.task` or `data.val_task`, for messages.

    Raises:
        ConfigError: The task raised, or returned the wrong number of verdicts.
    """
    pairs = [(p, r.text) for p, answers in zip(prompts, responses, strict=True) for r in answers]
    with blaming(key, task):
        verdicts = task.judge([p for p, _ in pairs], [text for _, text in pairs])
    if not isinstance(verdicts, list) or not all(isinstance(v, Verdict) for v in verdicts):
        raise ConfigError(
            f"{key}: {type(task).__name__}.judge returned {verdicts!r:.80}, expected a list of "
            "Verdict"
        )
    if len(verdicts) != len(pairs):
        raise ConfigError(
            f"{key}: {type(task).__name__} returned {len(verdicts)} verdicts for {len(pairs)} "
            "responses"
        )
    in_order = iter(verdicts)
    return [[next(in_order) for _ in answers] for answers in responses]


def require_verdicts(tasks: Mapping[str, Task], parts: Mapping[str, object]) -> None:
    """Refuses parts that need to know what is right beside a task that does not.

    Args:
        tasks: The tasks, by key.
        parts: Reward terms, the filter and loss terms, by key; those with `needs_verdicts` count.

    Raises:
        ConfigError: The first such part.
    """
    for task_key, task in tasks.items():
        for key, part in parts.items():
            if not task.judges and getattr(part, "needs_verdicts", False):
                raise ConfigError(
                    f"{key}={type(part).__name__}: needs verdicts, and {task_key}="
                    f"{type(task).__name__} has no gold answers; set {key} to null, or choose "
                    "another task"
                )


def verdict_shares(groups: Sequence[Group], task: Task) -> dict[str, float]:
    """Share of the responses with each verdict other than right and wrong, as `verify/STATUS`.

    Nothing for a task that knows only right and wrong, so the keys are the same on every rank.
    """
    if type(task).judge is Task.judge or not task.judges:
        return {}
    statuses = [verdict.status for group in groups for verdict in group.verdicts]
    told = (Status.NO_ANSWER, Status.TIMEOUT, Status.ERROR)
    return {f"verify/{status}": statuses.count(status) / len(statuses) for status in told}


def nonfinite_share(groups: Sequence[Group]) -> float:
    """Share of the responses to which a reward term gave nan or infinity."""
    broken = sum(len(set().union(*group.nonfinite.values())) for group in groups)
    return broken / sum(len(group.responses) for group in groups)


def reward(
    prompt: Prompt,
    prompt_ids: list[int],
    responses: list[Response],
    verdicts: list[Verdict],
    rewards: dict[str, Reward],
) -> Group:
    """A group with the sum of its weighted reward terms.

    A term may return `None` for a response; the sum is then that of the other terms. A response
    that no term, or not every `required` one, gives a value is unscored, and so is one to which a
    term gives nan or infinity.

    Raises:
        ConfigError: A reward term raised, or returned the wrong number of values, or one that is
            no number, or too large.
    """
    group = Group(prompt, prompt_ids, responses, verdicts, [0.0] * len(responses))
    outcomes: list[list[float | None]] = []
    for name, term in rewards.items():
        with blaming(f"data.rewards.{name}", term):  # also for what it returned, which may raise
            values = term(prompt, list(responses), list(verdicts))  # for it to change
            where = f"data.rewards.{name}: {term.called}"
            values = _listed(where, values, len(responses), f"{len(responses)} responses")
            if term.per_token:
                numbers = _add_token_rewards(group, where, term.weight, values)
            else:
                numbers = [None if v is None else _number(where, v, term.weight) for v in values]
        if broken := {i for i, v in enumerate(numbers) if v is not None and math.isnan(v)}:
            group.nonfinite[name] = broken
        group.terms[name] = [None if i in broken else v for i, v in enumerate(numbers)]
        if not term.per_token:
            outcomes.append(group.terms[name])
    if outcomes:
        _sum_outcomes(group, outcomes)
    for rows in group.nonfinite.values():
        _leave_unscored(group, [i in rows for i in range(len(responses))])
    for name in (name for name, term in rewards.items() if term.required and not term.per_token):
        _leave_unscored(group, [value is None for value in group.terms[name]])
    return group


def _leave_unscored(group: Group, unknown: list[bool]) -> None:
    for i in (i for i, is_unknown in enumerate(unknown) if is_unknown):
        group.scored[i] = False
        group.rewards[i] = 0.0


def _sum_outcomes(group: Group, outcomes: list[list[float | None]]) -> None:
    for i, values in enumerate(zip(*outcomes, strict=True)):
        given = [v for v in values if v is not None]
        group.rewards[i] = sum(given, 0.0)
        row = group.token_rewards[i] if group.token_rewards else []
        group.scored[i] = bool(given) or any(value is not None for value in row)
        if given and row:
            # the outcome is judged on the last token, so that token is a step too
            row[-1] = row[-1] or 0.0


def _listed(where: str, values: Any, count: int, what: str) -> list[Any]:
    """What a term returned, as a list of so many values."""
    listed = None
    if isinstance(values, Sized) and not isinstance(values, str | bytes | Mapping | Set):
        with suppress(TypeError):  # arrays without a dimension are sized by type only
            listed = list(values)  # type: ignore[call-overload]
    if listed is None:
        raise ConfigError(
            f"{where} returned {_shown(values)}, expected one value for each of {what}; return a "
            "list of numbers, with None where it has nothing to say"
        )
    if len(listed) != count:
        raise ConfigError(
            f"{where} returned {len(listed)} values for {what}; return {count}, with None where it "
            "has nothing to say"
        )
    return listed


def _number(where: str, value: Any, weight: float) -> float:
    """The value of a term, weighted; nan where it is infinite too."""
    try:
        # float would read a text, and drop a part of a complex number
        if isinstance(value, str | bytes) or "complex" in str(getattr(value, "dtype", "")):
            raise TypeError
        if not math.isfinite(number := float(value)):
            return math.nan
        number *= weight
    except OverflowError:  # of an integer that no float can hold
        number = math.inf
    except (TypeError, ValueError, RuntimeError) as error:  # the last of a tensor of several
        raise ConfigError(
            f"{where} returned {_shown(value)}, expected a number; convert it, or return None "
            "where it has nothing to say"
        ) from error
    if not abs(number) < LARGEST:
        raise ConfigError(
            f"{where} returned {number}; rewards must be below {LARGEST:.0e} in size; scale it "
            "down, or return None where it has nothing to say"
        )
    return number


def _shown(value: Any) -> str:
    """The beginning of a value's text; its type where it has none, as a very long integer."""
    try:
        return f"{value!r:.80}"
    except Exception:
        return type(value).__name__


def _add_token_rewards(
    group: Group, where: str, weight: float, values: list[Any]
) -> list[float | None]:
    """Adds a term to the tokens' rewards; returns its sum over each response, nan if one is."""
    rows = group.token_rewards or [[None] * r.length for r in group.responses]
    totals: list[float | None] = []
    for row, added, response in zip(rows, values, group.responses, strict=True):
        added = _listed(where, added, response.length, f"a response of {response.length} tokens")
        given = {t: _number(where, v, weight) for t, v in enumerate(added) if v is not None}
        totals.append(sum(given.values()))
        if not any(map(math.isnan, given.values())):
            for t, value in given.items():
                row[t] = (row[t] or 0.0) + value
    group.token_rewards = rows
    return totals
