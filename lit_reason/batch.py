"""The data that flows through a run: prompts, groups of responses, `RolloutBatch`, `Experience`.

Two batch types, so that a half-filled batch cannot exist: `RolloutBatch` is what is known once the
responses are sampled and judged, `Experience` adds what the networks say about them.
Shapes: B responses, P prompt positions (left-padded), T response positions (right-padded).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lit_reason.errors import ConfigError
from lit_reason.forms import require_tensor
from lit_reason.verdict import Status, Verdict

T = TypeVar("T", bound="_Rows")


@dataclass(frozen=True)
class Prompt:
    """One problem of a task.

    Attributes:
        index: Row of the task; the identity of the problem (two problems may share a text).
        text: What the model is asked.
        answer: The gold answer that `Task.verify` compares with.
        messages: Chat messages; when given, the tokenizer's chat template renders them.
        source: Name of the data set that the problem is from; evaluation reports by it.
        columns: Other columns of the problem's row, for reward functions.
    """

    index: int
    text: str
    answer: str
    messages: tuple[dict[str, str], ...] | None = None
    source: str = ""
    columns: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Response:
    """One sampled response.

    Attributes:
        ids: The sampled tokens, the end token included. Training uses these, never a re-encoding.
        text: The decoded tokens without special ones, for verifiers and tables.
        truncated: The token budget ended before an end token was sampled.
        logprobs: Of each token, in the distribution that the engine drew it from; `None` where it
            does not say. Two responses are equal without them.
        entropies: Entropy in nats of that distribution at each token; `None` where the engine was
            not asked, or cannot say.
        mask: Whether the policy sampled each token; `None` where it sampled all. The others, the
            output of a tool for example, are context of what follows: they count in no loss and no
            advantage, and GAE carries over them.
    """

    ids: tuple[int, ...]
    text: str
    truncated: bool
    logprobs: tuple[float, ...] | None = field(default=None, compare=False, repr=False)
    mask: tuple[bool, ...] | None = None
    entropies: tuple[float, ...] | None = field(default=None, compare=False, repr=False)

    @property
    def length(self) -> int:
        """Number of tokens, the end token and those of tools included."""
        return len(self.ids)


@dataclass
class Group:
    """One prompt, its G responses and their judgement.

    Attributes:
        prompt: The problem.
        prompt_ids: Its tokens.
        responses: G samples of the current policy.
        verdicts: The task's verdict on each response.
        rewards: Sum of the outcome reward terms of each response, 0 where it is unscored.
        token_rewards: Sum of the per-token reward terms, one row a response; `None` without any.
        terms: The outcome terms one by one, for the log; `None` where a term gave no value.
        scored: Whether a reward term gave the response a value. One without does not train, and
            its group is judged without it. Empty stands for all.
        nonfinite: The responses to which a term gave nan or infinity, which leaves them unscored.
    """

    prompt: Prompt
    prompt_ids: list[int]
    responses: list[Response]
    verdicts: list[Verdict]
    rewards: list[float]
    token_rewards: list[list[float | None]] | None = None
    terms: dict[str, list[float | None]] = field(default_factory=dict)
    scored: list[bool] = field(default_factory=list)
    nonfinite: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scored = self.scored or [True] * len(self.responses)

    @property
    def correct(self) -> list[bool]:
        """Whether each response is right."""
        return [verdict.correct for verdict in self.verdicts]

    @property
    def uniform(self) -> bool | None:
        """The verdict that all scored responses share; `None` if they differ or none is scored."""
        seen = {c for c, scored in zip(self.correct, self.scored, strict=True) if scored}
        return seen.pop() if len(seen) == 1 else None


class _Rows:
    """Moves and indexes every tensor of a dataclass along its first dimension."""

    __slots__ = ()

    def _map(self: T, fn: Any) -> T:
        changed = {}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                changed[f.name] = fn(value)
            elif isinstance(value, _Rows):
                changed[f.name] = value._map(fn)
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]

    def to(self: T, device: torch.device | str, non_blocking: bool = False) -> T:
        """A copy on `device`; dtypes stay as they are."""
        return self._map(lambda x: x.to(device, non_blocking=non_blocking))

    def __getitem__(self: T, rows: Tensor) -> T:
        return self._map(lambda x: x[rows])


@dataclass(slots=True)  # a misspelt field that a callback sets is an error
class RolloutBatch(_Rows):
    """What the rollout engine produced and the task judged.

    Callbacks may edit `loss_mask`, `value_mask`, `loss_weight` and `rewards` before the update.
    Both masks start as `policy_mask` of the scored responses.

    Attributes:
        prompt_ids: (B, P) int64, left-padded.
        prompt_mask: (B, P) bool.
        response_ids: (B, T) int64, right-padded.
        response_mask: (B, T) bool: the token exists (end token included). Never edited.
        policy_mask: (B, T) bool: the policy sampled it; all that exist, but where an engine gave a
            `Response.mask`. Never edited.
        loss_mask: (B, T) bool: the token trains the actor.
        value_mask: (B, T) bool: the token trains the critic.
        loss_weight: (B,) float32, multiplies the row's loss but not its normaliser. Starts as ones.
        rewards: (B,) float32: sum of the outcome reward terms, 0 where there is none.
        token_rewards: (B, T) float32: sum of the per-token reward terms, 0 where there is none.
        step_mask: (B, T) bool: a per-token term judged this position.
        correct: (B,) bool: the response is right. Filters and metrics read it, nobody edits it.
        truncated: (B,) bool: no end token within the budget.
        scored: (B,) bool: a reward term gave the response a value. Read by whatever compares
            rewards; the others are not part of their group's statistics.
        critic_only: (B,) bool: a response that the group filter rejected, or one too many, kept for
            the critic's sake. It stands behind all others and is in no statistic of the policy.
        group_ids: (B,) int64: responses to one prompt share an id.
        prompt_index: (B,) int64: `Prompt.index`; -1 in rows that only fill up a shard.
        judged: (B,) bool: the task judged the response; `correct` says nothing of the others.
            `None` stands for all.
        sampled_logprobs: (B, T) float32: what the engine says of each token that it drew, 0 on
            padding; `None` where it does not.
        sampled_entropy: (B, T) float32: the entropy of the distribution it drew from, likewise.
        answer_ids: (B,) int64: equal answers to a problem share a number, -1 without an answer; in
            evaluation only.
        temperature: The sampling temperature, at which log-probs are scored.
        prompts: B problems.
        texts: B decoded responses, as the task judged them.
        verdicts: B verdicts of the task, with status and extracted answer.
        on_policy: The responses are samples of the weights that they train; others train the critic
            only.
        policy_version: Number of rollouts the generating policy had been trained on.
        stats: Scalars to log about the generation (a DataModule cannot log).
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    response_ids: Tensor
    response_mask: Tensor
    policy_mask: Tensor
    loss_mask: Tensor
    value_mask: Tensor
    loss_weight: Tensor
    rewards: Tensor
    token_rewards: Tensor
    step_mask: Tensor
    correct: Tensor
    truncated: Tensor
    scored: Tensor
    critic_only: Tensor
    group_ids: Tensor
    prompt_index: Tensor
    judged: Tensor | None = None
    sampled_logprobs: Tensor | None = None
    sampled_entropy: Tensor | None = None
    answer_ids: Tensor | None = None
    temperature: float = 1.0
    prompts: tuple[Prompt, ...] = ()
    texts: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    on_policy: bool = True
    policy_version: int = 0
    stats: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.response_ids.shape[0]

    def __getitem__(self, rows: Tensor) -> RolloutBatch:
        chosen = _Rows.__getitem__(self, rows)
        numbers = torch.arange(len(self))[rows.cpu()].tolist()
        for name in ("prompts", "texts", "verdicts"):
            column = getattr(self, name)
            setattr(chosen, name, tuple(column[i] for i in numbers) if column else ())
        return chosen

    @property
    def right(self) -> Tensor:
        """(B,) int64: 1 for right responses, 0 for wrong ones, -1 where nobody judged."""
        right = self.correct.long()
        return right if self.judged is None else right.masked_fill(~self.judged, -1)

    @property
    def lengths(self) -> Tensor:
        """(B,) int64: tokens of each response."""
        return self.response_mask.sum(dim=1)

    @property
    def of_policy(self) -> RolloutBatch:
        """The rollout without its `critic_only` rows."""
        if not bool(self.critic_only.any()):
            return self
        return self[(~self.critic_only).nonzero().squeeze(1)]

    def check(self) -> None:
        """Refuses edits that do not fit the rollout.

        Raises:
            ConfigError: A field that callbacks may edit has another shape or type.
        """
        of_tokens, of_rows = tuple(self.response_ids.shape), (len(self),)
        expected = {
            "loss_mask": (of_tokens, torch.bool),
            "value_mask": (of_tokens, torch.bool),
            "loss_weight": (of_rows, torch.float32),
            "rewards": (of_rows, torch.float32),
        }
        for name, form in expected.items():
            require_tensor(f"callbacks: {name} of the edited rollout", getattr(self, name), *form)
        faults = {
            "loss_mask counts padding": self.loss_mask & ~self.response_mask,
            "value_mask counts padding": self.value_mask & ~self.response_mask,
            "loss_mask counts tokens that the policy did not sample": self.loss_mask
            & ~self.policy_mask,
            "value_mask counts tokens that the policy did not sample": self.value_mask
            & ~self.policy_mask,
            "loss_weight is not finite": ~self.loss_weight.isfinite(),
            "rewards are not finite": ~self.rewards.isfinite(),
        }
        found = torch.stack([fault.any() for fault in faults.values()]).tolist()
        for fault, is_there in zip(faults, found, strict=True):
            if is_there:
                raise ConfigError(f"callbacks: {fault} in the edited rollout")
        if not self.temperature > 0:
            raise ConfigError(f"callbacks: temperature={self.temperature} of the edited rollout")

    @classmethod
    def from_groups(
        cls,
        groups: Sequence[Group],
        pad_id: int,
        critic_only: Sequence[Group] = (),
        **extra: Any,
    ) -> RolloutBatch:
        """Pads groups into one batch, in order.

        Args:
            groups: At least one group.
            pad_id: Fills the padding. It may equal an end token: masks are made from lengths.
            critic_only: Further groups, which train the critic alone.
            **extra: `policy_version`, `stats`.
        """
        policy_groups = len(groups)
        groups = [*groups, *critic_only]
        rows = [(g, r) for g, group in enumerate(groups) for r in range(len(group.responses))]
        responses = [groups[g].responses[r] for g, r in rows]
        response_ids, response_mask = _pad_right([r.ids for r in responses], pad_id)
        # flipping twice turns right padding into left padding
        flipped, mask = _pad_right([groups[g].prompt_ids[::-1] for g, _ in rows], pad_id)
        token_rewards, step_mask = _pad_token_rewards(groups, rows, response_mask)
        scored = torch.tensor([groups[g].scored[r] for g, r in rows])
        only = torch.tensor([g >= policy_groups for g, _ in rows])
        policy_mask = _policy_mask(responses, response_mask)
        trains = policy_mask & scored[:, None]
        return cls(
            prompt_ids=flipped.flip(1),
            prompt_mask=mask.flip(1),
            response_ids=response_ids,
            response_mask=response_mask,
            policy_mask=policy_mask,
            loss_mask=trains & ~only[:, None],
            value_mask=trains.clone(),
            loss_weight=torch.ones(len(rows)),
            rewards=torch.tensor([float(groups[g].rewards[r]) for g, r in rows]),
            token_rewards=token_rewards,
            step_mask=step_mask,
            correct=torch.tensor([groups[g].verdicts[r].correct for g, r in rows]),
            judged=torch.tensor(
                [groups[g].verdicts[r].status is not Status.UNJUDGED for g, r in rows]
            ),
            truncated=torch.tensor([r.truncated for r in responses]),
            scored=scored,
            critic_only=only,
            sampled_logprobs=_column([r.logprobs for r in responses], response_mask),
            sampled_entropy=_column([r.entropies for r in responses], response_mask),
            group_ids=torch.tensor([g for g, _ in rows]),
            prompt_index=torch.tensor([groups[g].prompt.index for g, _ in rows]),
            prompts=tuple(groups[g].prompt for g, _ in rows),
            texts=tuple(r.text for r in responses),
            verdicts=tuple(groups[g].verdicts[r] for g, r in rows),
            **extra,
        )


@dataclass(slots=True)
class Experience(_Rows):
    """A rollout with all that the update needs, computed without gradient.

    Attributes:
        rollout: The batch, after the callbacks edited it.
        old_logprobs: (B, T) float32: of the policy that generated, recomputed by the trainer or
            as the engine gave them (`model.old_logprobs`); `None` while only the critic learns and
            nobody reads them.
        ref_logprobs: (B, T) float32: of the frozen reference; `None` if no term asks for it.
        entropy: (B, T) float32: of the old policy; `None` if nobody asked for it.
        values: (B, T) float32: of the critic before the update; `None` without one.
        advantages: (B, T) float32.
        returns: (B, T) float32: the critic's targets; `None` without one.
        rewards: (B, T) float32: what the advantage estimator was given, any KL penalty included.
        lam: (B,) float32: λ of the policy's advantages; `None` if the estimator has none.
        after: (B,) float32: what the state after the last token counts as, where a truncated
            response is bootstrapped; `None` if none is.
        phase: "joint", or "value_warmup" while only the critic learns.
    """

    rollout: RolloutBatch
    advantages: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    rewards: Tensor | None = None
    lam: Tensor | None = None
    after: Tensor | None = None
    phase: str = "joint"

    def __len__(self) -> int:
        return len(self.rollout)


class Prediction(NamedTuple):
    """What `predict` returns for a batch.

    Attributes:
        rollout: Judged responses.
        logprobs: (B,) float32: the log-probability of each response under the model at temperature
            1, summed over its tokens, the end token included.
    """

    rollout: RolloutBatch
    logprobs: Tensor


def trim(rollout: RolloutBatch) -> tuple[int, int]:
    """(p, t): leading prompt columns and trailing response columns that hold only padding.

    Cutting them leaves `prompt_ids[:, p:]` and `response_ids[:, :t]`.
    """
    columns = rollout.prompt_mask.any(dim=0)
    first = int(columns.int().argmax()) if bool(columns.any()) else 0
    return first, max(int(rollout.lengths.max()), 1)


def _pad_right(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    tensors = [torch.tensor(list(row), dtype=torch.long) for row in rows]
    ids = pad_sequence(tensors, batch_first=True, padding_value=pad_id)
    if not ids.shape[1]:  # every row is empty: one column of padding, which networks can read
        ids = ids.new_full((len(rows), 1), pad_id)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def _policy_mask(responses: Sequence[Response], response_mask: Tensor) -> Tensor:
    """(B, T) what the policy sampled."""
    policy_mask = response_mask.clone()
    for row, response in enumerate(responses):
        if response.mask is not None:
            policy_mask[row, : response.length] = torch.tensor(response.mask, dtype=torch.bool)
    return policy_mask


def _column(numbers: Sequence[tuple[float, ...] | None], response_mask: Tensor) -> Tensor | None:
    """(B, T) what the engine says of each token, 0 on padding, if it says it of all responses."""
    column = torch.zeros(response_mask.shape)
    for row, values in enumerate(numbers):
        if values is None:
            return None
        column[row, : len(values)] = torch.tensor(values)
    return column


def _pad_token_rewards(
    groups: Sequence[Group], rows: list[tuple[int, int]], response_mask: Tensor
) -> tuple[Tensor, Tensor]:
    rewards = torch.zeros(response_mask.shape)
    step_mask = torch.zeros_like(response_mask)
    for row, (g, r) in enumerate(rows):
        per_token = groups[g].token_rewards
        for t, value in enumerate(per_token[r] if per_token else ()):
            if value is not None:
                rewards[row, t], step_mask[row, t] = value, True
    return rewards, step_mask
