"""One network, its optimizer and its loss terms: a mini-batch in, one optimizer step out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lit_reason.batch import Experience, RolloutBatch
from lit_reason.errors import (
    STILL,
    ConfigError,
    ConfigWarning,
    blaming,
    require_at_least_one,
    require_float32,
)
from lit_reason.forms import require_tensor
from lit_reason.functional import Reduce, aggregate, masked_sum, unchecked_values
from lit_reason.objectives import LossTerm
from lit_reason.optimizers import naming_step


@dataclass(frozen=True)
class Update:
    """How a rollout is turned into optimizer steps.

    Attributes:
        epochs: Passes over the rollout.
        minibatch_size: Responses per optimizer step, on each rank.
        micro_batch_size: Most responses per forward and backward pass; only memory and speed depend
            on it.
        micro_batch_tokens: Most tokens per forward and backward pass, prompts and padding included,
            so that many short or few long responses go together; one response may be longer. Null
            counts responses only.
        max_grad_norm: Largest gradient norm of each network; null does not clip.
        critic_epochs: Passes of the critic; null takes `epochs`.
        critic_minibatch_size: Responses per optimizer step of the critic; null takes
            `minibatch_size`.
        max_nonfinite: Optimizer steps in a row with a loss or gradient that is not finite, or
            rollouts in a row with such a reward, after which the run stops and saves the mini-batch
            or rollout; null never stops. Such a step is skipped, such a response does not train.
    """

    epochs: int = 1
    minibatch_size: int = 512
    micro_batch_size: int = 8
    micro_batch_tokens: int | None = None
    max_grad_norm: float | None = 1.0
    critic_epochs: int | None = None
    critic_minibatch_size: int | None = None
    max_nonfinite: int | None = 10

    def __post_init__(self) -> None:
        counts = {name: value for name, value in vars(self).items() if name != "max_grad_norm"}
        require_at_least_one("model.update", **counts)
        key = "model.update.max_grad_norm"
        require_float32(key, self.max_grad_norm, ", or null", unbounded=True)
        if (self.max_grad_norm or 1) < STILL:
            text = f"{key}={self.max_grad_norm}: clips every gradient to nothing; choose 1, or null"
            warnings.warn(text, ConfigWarning, stacklevel=2)

    def schedule(self, network: str) -> tuple[int, int]:
        """(epochs, responses per optimizer step) of "actor" or "critic"."""
        if network == "actor":
            return self.epochs, self.minibatch_size
        return self.critic_epochs or self.epochs, self.critic_minibatch_size or self.minibatch_size

    def check(self, rollout_size: int) -> None:
        """Refuses sizes that do not divide.

        Args:
            rollout_size: Responses in a rollout, `groups_per_rollout * group_size`.
        """
        for name in ("minibatch_size", "critic_minibatch_size"):
            size = getattr(self, name)
            if size is None:
                continue
            if rollout_size % size:
                raise ConfigError(
                    f"model.update.{name}={size} does not divide data.groups_per_rollout * "
                    f"data.group_size = {rollout_size}; choose one of {_divisors(rollout_size)}"
                )
            if size % self.micro_batch_size and self.micro_batch_tokens is None:
                raise ConfigError(
                    f"model.update.micro_batch_size={self.micro_batch_size} does not divide "
                    f"model.update.{name}={size}; choose one of {_divisors(size)}"
                )

    def partition(
        self, rollout: RolloutBatch, rows: Tensor, size: int, generator: torch.Generator
    ) -> list[list[Tensor]]:
        """Splits rows of a rollout at random into mini-batches of micro-batches.

        Rows are shuffled over mini-batches; inside one they are ordered by length, so that a
        micro-batch holds little padding.

        Args:
            rollout: B responses.
            rows: Indices of the rows to split.
            size: Rows in a mini-batch; the last may hold fewer.
            generator: Source of the permutation.
        """
        rows = rows[torch.randperm(len(rows), generator=generator)]
        lengths = rollout.lengths.cpu()
        return [
            self.micro_batches(rollout, part[lengths[part].argsort(stable=True)])
            for part in rows.split(size)
        ]

    def micro_batches(self, rollout: RolloutBatch, rows: Tensor) -> list[Tensor]:
        """Splits rows, in their order, into pieces that fit a forward pass.

        Args:
            rollout: B responses.
            rows: Indices of the rows to split.
        """
        if self.micro_batch_tokens is None:
            return [part for part in rows.split(self.micro_batch_size) if len(part)]
        sizes = torch.stack([rollout.prompt_mask.sum(1), rollout.lengths], 1)[rows].tolist()
        pieces: list[int] = []
        widest = [0, 0]
        for size in sizes:
            widest = [max(a, b) for a, b in zip(widest, size, strict=True)]
            count = pieces[-1] + 1 if pieces else 0
            fits = count * sum(widest) <= self.micro_batch_tokens
            if pieces and fits and count <= self.micro_batch_size:
                pieces[-1] = count
            else:
                pieces.append(1)
                widest = size
        return list(rows.split(pieces)) if pieces else []


class Learner:
    """One network with its optimizer and loss terms.

    The loss of each term is normalised by one global count per optimizer step, over all
    micro-batches and ranks, so that loss and gradient do not depend on how the rows are split.

    Args:
        name: "actor" or "critic"; prefix of its statistics.
        network: Its parameters are stepped.
        terms: Named loss terms.
        forward: (network, micro-batch) -> outputs that the terms read.
        max_grad_norm: Largest gradient norm; `None` does not clip.
        reduce: Sums a tensor over data-parallel ranks; `None` on one process.
        optimizer_key: Where its optimizer is configured; `None` takes the usual place.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        terms: dict[str, LossTerm],
        forward: Callable[[nn.Module, Experience], Any],
        max_grad_norm: float | None,
        reduce: Reduce | None = None,
        optimizer_key: str | None = None,
    ) -> None:
        self.optimizer_key = optimizer_key or f"model.{name}_optimizer"
        self.name, self.network, self.terms, self.forward = name, network, terms, forward
        self.max_grad_norm, self.reduce = max_grad_norm, reduce
        self.parameters = [p for p in network.parameters() if p.requires_grad]

    def update(
        self,
        experience: Experience,
        minibatch: Sequence[Tensor],
        optimizer: Any,
        backward: Callable[[Tensor], None],
    ) -> dict[str, Tensor]:
        """One optimizer step on one mini-batch.

        A mini-batch in which no term weighs a token on any rank, as none is valid or `loss_weight`
        is 0, and one whose loss or gradient is not finite, changes no parameter;
        `update/skipped_*` says so, and `update/nonfinite_*` counts the latter.

        Args:
            experience: The whole rollout.
            minibatch: Row indices of each micro-batch.
            optimizer: Steps this network's parameters.
            backward: Runs the backward pass of a loss.

        Returns:
            Statistics of the step, each a scalar tensor.
        """
        rows = torch.cat(list(minibatch)).to(experience.rollout.rewards.device)
        weights, counts, weighed = self._weigh(experience[rows])
        if not weighed:
            return {f"update/skipped_{self.name}": torch.ones((), device=counts.device)}
        optimizer.zero_grad()
        sums: dict[str, Tensor] = {}
        start = 0
        for indices in minibatch:
            part = slice(start, start + len(indices))
            micro = experience[rows[part]]
            # a value that is not finite shows in the loss, and skips the step on every rank alike
            with unchecked_values():
                loss = self._loss(micro, {k: w[part] for k, w in weights.items()}, counts, sums)
            backward(loss)
            start += len(indices)
        stats = self._finish(sums, counts)
        norm = self._gradient_norm()
        losses = [stats[f"loss/{name}"] for name in self.terms]
        finite = torch.isfinite(torch.stack([norm, *losses])).all()
        if finite:
            with naming_step(self.optimizer_key):
                optimizer.step()
        optimizer.zero_grad()
        return {
            **stats,
            f"grad_norm/{self.name}": norm,
            f"update/skipped_{self.name}": (~finite).float(),
            f"update/nonfinite_{self.name}": (~finite).float(),
        }

    def _weigh(self, experience: Experience) -> tuple[dict[str, Tensor], Tensor, bool]:
        """Token weights of every term, its global (count, tokens), and whether any weighs a token.

        Raises:
            ConfigError: A term counts padding, or an aggregation weighs what its term does not
                count, or has weights or a count that divide by nothing.
        """
        weights, counts = {}, []
        rollout = experience.rollout
        for name, term in self.terms.items():
            with blaming(_key(name), term):
                mask = term.mask(experience)
            shape = rollout.policy_mask.shape
            require_tensor(f"{_key(name)}={type(term).__name__}: the mask", mask, shape, torch.bool)
            assert term.aggregation is not None
            with blaming(f"{_key(name)}.aggregation", term.aggregation):
                weight, count = term.aggregation(mask, rollout.group_ids)
            aggregation = f"{_key(name)}.aggregation={type(term.aggregation).__name__}"
            require_tensor(f"{aggregation}: the weights", weight, mask.shape)
            require_tensor(f"{aggregation}: the count", count, ())
            weights[name] = weight * rollout.loss_weight[:, None]
            weighs = weight != 0
            used = (weights[name] != 0).sum()
            faults = [mask & ~rollout.policy_mask, weighs & ~mask, ~weight.isfinite()]
            numbers = [count, mask.sum(), used, *(fault.sum() for fault in faults)]
            counts += [n.to(torch.float32) for n in numbers]
        total = torch.stack(counts)
        if self.reduce is not None:
            total = self.reduce(total)
        total = total.view(len(self.terms), -1)
        rows = total.tolist()  # the one wait for the device
        for (name, term), row in zip(self.terms.items(), rows, strict=True):
            _check_numbers(name, term, row)
        return weights, total[:, :2], any(row[2] for row in rows)

    def _loss(
        self,
        micro: Experience,
        weights: dict[str, Tensor],
        counts: Tensor,
        sums: dict[str, Tensor],
    ) -> Tensor:
        outputs = self.forward(self.network, micro)
        losses = []
        for (name, term), count in zip(self.terms.items(), counts[:, 0], strict=True):
            with blaming(_key(name), term):
                token_losses, stats = term.loss(micro, outputs), term.stats(micro, outputs)
            own = f"{_key(name)}={type(term).__name__}"
            require_tensor(f"{own}: the loss", token_losses, weights[name].shape)
            if not token_losses.requires_grad:
                raise ConfigError(f"{own}: the loss has no gradient; compute it from the outputs")
            for key, value in stats.items():
                require_tensor(f"{own}: stats[{key!r}]", value, weights[name].shape)
            loss = aggregate(token_losses, weights[name], count)
            losses.append(term.coef * loss)
            _add(sums, f"loss/{name}", loss.detach())
            for key, value in stats.items():
                _add(sums, f"{name}/{key}", masked_sum(value.detach(), term.mask(micro)))
        return torch.stack(losses).sum()

    def _finish(self, sums: dict[str, Tensor], counts: Tensor) -> dict[str, Tensor]:
        """Sums over micro-batches and ranks become the statistics of the whole mini-batch."""
        keys = list(sums)
        totals = torch.stack([sums[k].to(torch.float32) for k in keys])
        if self.reduce is not None:
            totals = self.reduce(totals)
        tokens = dict(zip(self.terms, counts[:, 1], strict=True))
        stats = {}
        for key, total in zip(keys, totals, strict=True):
            name = key.split("/")[0]
            # losses are already divided by their term's count
            stats[key] = total if name == "loss" else total / tokens[name].clamp(min=1)
        return {**stats, **{f"{name}/tokens": n for name, n in tokens.items()}}

    def _gradient_norm(self) -> Tensor:
        """Sums the gradients over ranks, clips them and returns the norm before clipping."""
        sharded = isinstance(self.parameters[0], DTensor)  # FSDP2 has summed them already
        if self.reduce is not None and not sharded:
            self._sum_gradients(self.reduce)
        limit = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.parameters, limit)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _sum_gradients(self, reduce: Reduce) -> None:
        """Sums over ranks, many small gradients at once.

        A parameter without a gradient on any rank keeps none, as on one process: with zeros, the
        optimizer would decay it.
        """
        used = torch.tensor([float(p.grad is not None) for p in self.parameters])
        used = reduce(used.to(self.parameters[0].device))
        trained = [p for p, n in zip(self.parameters, used.tolist(), strict=True) if n]
        for bucket in _buckets(trained):
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            total = reduce(torch.cat([g.flatten() for g in grads]))
            parts = total.split([g.numel() for g in grads])
            for parameter, grad, part in zip(bucket, grads, parts, strict=True):
                parameter.grad = grad.copy_(part.view_as(grad))


def _buckets(parameters: Sequence[nn.Parameter], size: int = 2**24) -> list[list[nn.Parameter]]:
    """Neighbours of one type, at most `size` numbers together where there is more than one."""
    buckets: list[list[nn.Parameter]] = []
    room, kind = 0, None
    for parameter in parameters:
        if parameter.numel() > room or (parameter.dtype, parameter.device) != kind:
            buckets.append([])
            room, kind = size, (parameter.dtype, parameter.device)
        buckets[-1].append(parameter)
        room -= parameter.numel()
    return buckets


def _check_numbers(name: str, term: LossTerm, numbers: Sequence[float]) -> None:
    """Refuses masks, weights and counts that make no mean; `numbers` are those of `_weigh`."""
    count, _, used, padding, outside, infinite = numbers
    own, aggregation = f"{_key(name)}={type(term).__name__}", type(term.aggregation).__name__
    if padding:
        raise ConfigError(
            f"{own}: its mask counts {padding:.0f} positions of padding, or not of the policy"
        )
    own = f"{_key(name)}.aggregation={aggregation}"
    if outside:
        raise ConfigError(f"{own}: weighs {outside:.0f} tokens that the term does not count")
    if infinite:
        raise ConfigError(f"{own}: {infinite:.0f} of its weights are not finite")
    if not 0 <= count < math.inf or (used and not count):
        raise ConfigError(f"{own}: its count is {count}, expected a number above 0")


def _add(sums: dict[str, Tensor], key: str, value: Tensor) -> None:
    sums[key] = sums[key] + value if key in sums else value


def _key(term: str) -> str:
    """Where a loss term is configured."""
    return f"model.{term}" if term in ("policy", "value") else f"model.terms.{term}"


def _divisors(n: int, most: int = 10_000) -> str:
    """Those up to `most`; a number that somebody mistyped would take forever."""
    found = ", ".join(str(d) for d in range(1, min(n, most) + 1) if n % d == 0)
    return found if n <= most else f"{found}, ..."
