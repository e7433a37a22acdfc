"""Verdicts and rewards of one group of responses."""

from __future__ import annotations

import math

from lit_reason.batch import Group, Prompt, Response
from lit_reason.errors import ConfigError
from lit_reason.rewards import Reward
from lit_reason.tasks import Task


def judge(
    prompt: Prompt,
    prompt_ids: list[int],
    responses: list[Response],
    task: Task,
    rewards: dict[str, Reward],
) -> Group:
    """Asks the task for its verdicts and sums the weighted reward terms.

    A truncated response is judged like any other: it may have stated its answer already.

    Raises:
        ConfigError: A reward term returned the wrong number of values, or one that is not finite.
    """
    correct = [task.verify(prompt, response.text) for response in responses]
    group = Group(prompt, prompt_ids, responses, correct, [0.0] * len(responses))
    for name, term in rewards.items():
        values = term(prompt, responses, correct)
        if len(values) != len(responses):
            raise ConfigError(
                f"data.rewards.{name}: returned {len(values)} values for {len(responses)} responses"
            )
        if term.per_token:
            _add_token_rewards(group, name, term.weight, values)  # type: ignore[arg-type]
            continue
        weighted = [term.weight * float(v) for v in values]
        if not all(math.isfinite(v) for v in weighted):
            raise ConfigError(f"data.rewards.{name}: returned {values}; rewards must be finite")
        group.terms[name] = weighted
        group.rewards = [a + b for a, b in zip(group.rewards, weighted, strict=True)]
    if group.token_rewards and any(not term.per_token for term in rewards.values()):
        # the outcome is judged on the last token, so that token is a step too
        for row in group.token_rewards:
            row[-1] = row[-1] or 0.0
    return group


def _add_token_rewards(
    group: Group, name: str, weight: float, values: list[list[float | None]]
) -> None:
    rows = group.token_rewards or [[None] * r.length for r in group.responses]
    for row, added, response in zip(rows, values, group.responses, strict=True):
        if len(added) != response.length:
            raise ConfigError(
                f"data.rewards.{name}: returned {len(added)} values for a response of "
                f"{response.length} tokens"
            )
        for t, value in enumerate(added):
            if value is not None:
                row[t] = (row[t] or 0.0) + weight * value
    group.token_rewards = rows
    group.terms[name] = [sum(weight * v for v in row if v is not None) for row in values]
