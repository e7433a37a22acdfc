"""`RolloutDataModule`: prompts -> responses of the current policy -> rewards -> filter -> batch."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import random
import time
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from lit_reason.batch import Group, Prompt, RolloutBatch
from lit_reason.checks import warn_of_rewards
from lit_reason.contamination import without_overlap
from lit_reason.encoding import encode_prompts
from lit_reason.errors import (
    ConfigError,
    ConfigWarning,
    blaming,
    placed,
    require_at_least_one,
    require_room,
    warn_of_no_effect,
)
from lit_reason.filters import GroupFilter
from lit_reason.forms import require_tensor
from lit_reason.judge import judge, nonfinite_share, require_verdicts, reward, verdict_shares
from lit_reason.loaders import EvaluationLoader, RolloutLoader
from lit_reason.restored import count
from lit_reason.rewards import Reward
from lit_reason.rollout import (
    HFEngine,
    RolloutEngine,
    Sampling,
    ValSampling,
    check_responses,
)
from lit_reason.stages import enter_stage
from lit_reason.statistics import forget_logged
from lit_reason.tasks import Task


class RolloutDataModule(LightningDataModule):
    """Drives online rollout and group filtering; one training batch is one rollout.

    A rollout holds `groups_per_rollout` prompts with `group_size` responses each, sampled from
    the weights it will train. With a group filter, rounds of fresh prompts are generated until
    enough groups are kept; after `max_rounds` rounds the batch is filled up with dropped groups
    whose tokens train nothing (`groups/filled` counts them), but for the critic with
    `critic_sees_all`. If none was kept, the
    actor's update is skipped and counted (`update/skipped_actor`). Groups kept beyond the N that
    are needed are not carried over, as the next rollout has other weights (`groups/surplus`).

    Args:
        task: Training problems.
        rewards: Named reward terms, summed.
        engine: Generates the responses.
        val_task: Held-out problems for validate, test and predict; null validates on `task`.
        group_filter: Drops whole groups; null keeps all.
        groups_per_rollout: Prompts in a rollout (N), on each rank.
        group_size: Responses to each prompt (G).
        groups_per_round: Prompts generated at once while refilling; null takes
            `groups_per_rollout`.
        max_rounds: Most rounds of generation for one rollout; null is 10 with a filter, 1 without.
        rollouts_per_epoch: Length of a Lightning epoch: validation, checkpoints and schedules of
            callbacks count epochs.
        sampling: How training responses are drawn.
        val_sampling: How responses to held-out problems are drawn; what is null, or all of it,
            is as in `sampling`.
        val_samples: Responses to each held-out problem (k of avg@k and maj@k, n of pass@k).
        val_pass_k: The k of pass@k, each at most `val_samples`; null takes powers of two and
            `val_samples`.
        val_groups_per_batch: Held-out problems generated at once.
        critic_sees_all: Also train the critic on the groups that the filter drops, and on those
            kept beyond the N that are needed; the papers do not.
        remove_overlap: Leave training problems out that are held out too; false only warns of them.
        max_prompt_length: Longer prompts are left out, and counted in a warning; null refuses
            prompts that do not fit the model's context.
        seed: Seed of prompt order and sampling; null takes `seed_everything`.
    """

    def __init__(
        self,
        task: Task,
        rewards: dict[str, Reward | None],
        engine: RolloutEngine | None = None,
        val_task: Task | None = None,
        group_filter: GroupFilter | None = None,
        groups_per_rollout: int = 64,
        group_size: int = 16,
        groups_per_round: int | None = None,
        max_rounds: int | None = None,
        rollouts_per_epoch: int = 10,
        sampling: Sampling = Sampling(),  # noqa: B008 (frozen)
        val_sampling: ValSampling | None = None,
        val_samples: int = 8,
        val_pass_k: list[int] | None = None,
        val_groups_per_batch: int = 64,
        critic_sees_all: bool = False,
        remove_overlap: bool = True,
        max_prompt_length: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        require_room(groups_per_rollout=groups_per_rollout, group_size=group_size)
        require_room(groups_per_round=groups_per_round or 1, group_size=group_size)
        require_room(val_samples=val_samples)
        require_at_least_one(
            "data",
            groups_per_rollout=groups_per_rollout,
            group_size=group_size,
            groups_per_round=groups_per_round,
            max_rounds=max_rounds,
            rollouts_per_epoch=rollouts_per_epoch,
            val_samples=val_samples,
            val_groups_per_batch=val_groups_per_batch,
        )
        self.task, self.val_task = task, val_task or task
        self.rewards = {name: term for name, term in rewards.items() if term is not None}
        self.engine = engine or HFEngine()
        self.group_filter = group_filter
        self.groups_per_rollout, self.group_size = groups_per_rollout, group_size
        self.groups_per_round = groups_per_round or groups_per_rollout
        self.max_rounds = max_rounds or (1 if group_filter is None else 10)
        self.rollouts_per_epoch = rollouts_per_epoch
        self.sampling, self.val_sampling = sampling, (val_sampling or ValSampling()).over(sampling)
        self.val_samples, self.val_groups_per_batch = val_samples, val_groups_per_batch
        self.val_pass_k = val_pass_k
        self.val_sources: tuple[str, ...] = ()  # names of the held-out data sets
        self.critic_sees_all = critic_sees_all
        self.remove_overlap, self.max_prompt_length = remove_overlap, max_prompt_length
        self.seed = seed
        self._silent: set[str] = set()  # reward terms that were warned of
        self._broken: set[str] = set()
        self.prompts: list[tuple[Prompt, list[int]]] = []  # none but in `fit`
        self.cursor = 0  # prompts handed out on this rank, over all passes
        self._check(groups_per_round)
        self._check_sampling()
        warn_of_rewards(self.rewards, group_filter)
        if group_filter is None:
            of_filter = {
                "data.groups_per_round": groups_per_round,
                "data.max_rounds": max_rounds,
            }
            warn_of_no_effect("without data.group_filter", of_filter)
            sees_all = {"data.critic_sees_all": critic_sees_all or None}
            warn_of_no_effect("without data.group_filter", sees_all, "false")

    def _check(self, groups_per_round: int | None) -> None:
        if not self.rewards:
            raise ConfigError(
                "data.rewards: no term is left; add one, for example "
                "--data.rewards.correctness=Correctness"
            )
        for name in {"unscored", "nonfinite"} & self.rewards.keys():
            raise ConfigError(f"data.rewards.{name}: a metric has this name; choose another")
        comparing: dict[str, object] = {
            f"data.rewards.{k}": term for k, term in self.rewards.items() if term.compares_group
        }
        if self.group_filter is not None:
            comparing["data.group_filter"] = self.group_filter
        if comparing and self.group_size == 1:
            key, part = next(iter(comparing.items()))
            raise ConfigError(
                f"data.group_size=1: {key}={type(part).__name__} compares the responses of a "
                "group; choose at least 2"
            )
        if (
            self.group_filter is not None
            and self.max_rounds * self.groups_per_round < self.groups_per_rollout
        ):
            raise ConfigError(
                f"data.groups_per_round={groups_per_round}: max_rounds={self.max_rounds} rounds "
                f"cannot fill groups_per_rollout={self.groups_per_rollout}; choose at least "
                f"{-(-self.groups_per_rollout // self.max_rounds)}"
            )

    def _check_sampling(self) -> None:
        if any(not 1 <= k <= self.val_samples for k in self.val_pass_k or ()):
            raise ConfigError(
                f"data.val_pass_k={self.val_pass_k}: each must lie between 1 and data.val_samples="
                f"{self.val_samples}"
            )
        if self.val_pass_k == []:
            warnings.warn(
                "data.val_pass_k=[]: no pass@k is reported; set it to null for powers of two",
                ConfigWarning,
                stacklevel=2,
            )
        if self.sampling.temperature == 0:
            raise ConfigError(
                "data.sampling.temperature=0: every response to a prompt would be the same; "
                "choose 1, or set data.val_sampling for greedy evaluation"
            )
        if self.val_sampling.temperature == 0 and self.val_samples > 1:
            warnings.warn(
                f"data.val_samples={self.val_samples}: with data.val_sampling.temperature=0 all "
                "responses to a problem are the same, so pass@k and maj@k say no more than one; "
                "set it to 1",
                ConfigWarning,
                stacklevel=2,
            )
        if self.sampling.top_p < 1 or self.sampling.top_k > 0:
            warnings.warn(
                f"data.sampling.top_p={self.sampling.top_p}, top_k={self.sampling.top_k}: training "
                "scores the full distribution, so importance ratios are biased; use 1 and 0",
                ConfigWarning,
                stacklevel=2,
            )

    # --- Lightning ----------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Binds the engine to the module and encodes the prompts."""
        module: Any = self.trainer.lightning_module  # type: ignore[union-attr]
        self.engine.bind(module)
        self.backbone = module.backbone
        if self.seed is None:
            self.seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        for name, term in self.rewards.items():
            with placed(f"data.rewards.{name}"):
                term.bind(module)
                term.setup(self.task, self.sampling.max_new_tokens, self.backbone.tokenizer)
                term.check(self.task, "data.task")
                term.check(self.val_task, "data.val_task")
        self.val_rewards = self._held_out_rewards(module.value is not None and stage != "predict")
        self._check_verdicts(module)
        if stage == "fit":
            prompts = self._encode(self.task, self.sampling, "task")
        self.val_prompts = self._encode(self.val_task, self.val_sampling, "val_task")
        self.val_sources = tuple(sorted({p.source for p, _ in self.val_prompts}))
        if stage == "fit":
            self.prompts = without_overlap(
                prompts, self.val_prompts, self.task, self.val_task, self.remove_overlap
            )
            self.prompts = self.engine.available(self.prompts)
            self._check_prompts()

    def _held_out_rewards(self, critic: bool) -> dict[str, Reward]:
        """The terms for held-out problems; those of tokens only serve a critic's returns."""
        terms: dict[str, Reward] = {}
        for name, term in self.rewards.items():
            if term.per_token and not critic:
                continue
            if term.per_token and self.val_task is not self.task:
                term = copy.copy(term)  # that of training was set up for other problems
                try:
                    budget = self.val_sampling.max_new_tokens
                    term.setup(self.val_task, budget, self.backbone.tokenizer)
                except ConfigError as error:
                    text = f"data.rewards.{name}: left out of val/value/..., data.val_task: {error}"
                    warnings.warn(text, ConfigWarning, stacklevel=2)
                    continue
            terms[name] = term
        return terms

    def _check_verdicts(self, module: Any) -> None:
        rewards: dict[str, object] = {f"data.rewards.{k}": v for k, v in self.rewards.items()}
        acting = {f"model.terms.{name}": term for name, term in module.terms.items()}
        require_verdicts({"data.task": self.task, "data.val_task": self.val_task}, rewards)
        require_verdicts(
            {"data.task": self.task}, {"data.group_filter": self.group_filter, **acting}
        )

    def _encode(self, task: Task, sampling: Sampling, key: str) -> list[tuple[Prompt, list[int]]]:
        limit = self.backbone.context_length
        budget = None if limit is None else limit - sampling.max_new_tokens
        if budget is not None and budget < 1:
            name = "sampling" if key == "task" else "val_sampling"
            raise ConfigError(
                f"data.{name}.max_new_tokens={sampling.max_new_tokens}: leaves no room for a "
                f"prompt in the model's context of {limit} tokens; lower it"
            )
        return encode_prompts(task, self.backbone.tokenizer, self.max_prompt_length, budget, key)

    def _check_prompts(self) -> None:
        _, world = self.shard()
        if len(self.prompts) < world:
            raise ConfigError(
                f"data.task: {len(self.prompts)} problems for {world} processes; give each at "
                "least one, or lower trainer.devices"
            )

    def train_dataloader(self) -> RolloutLoader:
        """One rollout an item."""
        return RolloutLoader(self)

    def val_dataloader(self) -> EvaluationLoader:
        """Held-out problems, `val_samples` responses each, no filter."""
        return EvaluationLoader(self)

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Lets nothing that was logged of one rollout stand for another."""
        forget_logged(self.trainer)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The prompt cursor, of which problems: Lightning restores it also where an epoch ends."""
        return {"cursor": self.cursor, "problems": problems(self.prompts)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues with the prompt after the last one handed out."""
        self.cursor = count(state_dict, "cursor")
        earlier, present = state_dict.get("problems"), problems(self.prompts)
        if self.prompts and earlier is not None and earlier != present:
            warnings.warn(
                "data.task: holds other problems than those that the checkpoint was trained on "
                f"({present}; it was {earlier!s:.40}), so the run goes on at the same place of "
                "another order; give the earlier ones, or start a new run",
                ConfigWarning,
                stacklevel=2,
            )

    # --- rollout ------------------------------------------------------------------------------

    def rollout(self) -> RolloutBatch:
        """Generates, judges and filters one training batch from the current weights."""
        started = time.perf_counter()
        version = self.engine.module.policy_version
        kept: list[Group] = []
        dropped: list[Group] = []
        rounds = 0
        while True:
            seed = self.sampling_seed(version, rounds)
            enter_stage(self.trainer, "rollout")
            groups = self.sample_groups(
                self._next_prompts(), self.task, self.group_size, self.sampling, seed, self.rewards
            )
            self._sort(groups, kept, dropped)
            rounds += 1
            enough = len(kept) >= self.groups_per_rollout
            # every rank leaves the loop in the same round: generation may be collective
            if self._on_all_ranks(enough) or rounds == self.max_rounds:
                break
        surplus = kept[self.groups_per_rollout :]
        kept = kept[: self.groups_per_rollout]
        missing = self.groups_per_rollout - len(kept)
        filled, rest = dropped[:missing], dropped[missing:]
        batch = RolloutBatch.from_groups(
            [*kept, *filled],
            critic_only=[*surplus, *rest] if self.critic_sees_all else [],
            pad_id=self.backbone.tokenizer.pad_token_id,
            temperature=self.sampling.temperature,
            on_policy=self.engine.on_policy,
            policy_version=version,
        )
        fills_up = slice(len(kept) * self.group_size, None)
        batch.loss_mask[fills_up] = False
        if not self.critic_sees_all:
            batch.value_mask[fills_up] = False
        batch.stats = {
            **self._terms([*kept, *filled]),
            **verdict_shares([*kept, *surplus, *dropped], self.task),
            "reward/nonfinite": nonfinite_share([*kept, *surplus, *dropped]),
            **self._statistics(kept, dropped, rounds, len(filled), len(surplus)),
            "time/rollout": time.perf_counter() - started,
        }
        return batch

    def _sort(self, groups: list[Group], kept: list[Group], dropped: list[Group]) -> None:
        if self.group_filter is None:
            kept += groups
            return
        correct = torch.tensor([g.correct for g in groups])
        rewards = torch.tensor([g.rewards for g in groups])
        scored = torch.tensor([g.scored for g in groups])
        with blaming("data.group_filter", self.group_filter):
            keep = self.group_filter(correct, rewards, scored)
        name = f"data.group_filter={type(self.group_filter).__name__}: the decision"
        require_tensor(name, keep, (len(groups),), torch.bool)
        for group, k in zip(groups, keep.tolist(), strict=True):
            (kept if k else dropped).append(group)

    def _terms(self, groups: list[Group]) -> dict[str, float]:
        """Mean of each term over the responses that it scored (or nan), and the share of others."""
        stats = {}
        for name in groups[0].terms:
            given = [v for g in groups for v in g.terms[name]]
            values = [v for v in given if v is not None]
            stats[f"reward/{name}"] = sum(values) / len(values) if values else math.nan
            stats[f"reward/{name}/unscored"] = 1 - len(values) / len(given)
            if not values:
                self._warn_of_silence(name, len(given))
        return stats

    def _warn_of_silence(self, name: str, count: int) -> None:
        if name in self._silent:
            return
        self._silent.add(name)
        term = self.rewards[name]
        warnings.warn(
            f"data.rewards.{name}={term.called}: gave no value to any of the {count} responses of "
            f"a rollout, so it rewards nothing; {term.when_silent}",
            ConfigWarning,
            stacklevel=2,
        )

    def _warn_of_nonfinite(self, groups: list[Group]) -> None:
        for name in {name for group in groups for name in group.nonfinite} - self._broken:
            self._broken.add(name)
            count = sum(len(group.nonfinite.get(name, ())) for group in groups)
            warnings.warn(
                f"data.rewards.{name}={self.rewards[name].called}: returned nan or infinity for "
                f"{count} responses, which do not train; reward/nonfinite counts them, and "
                "model.update.max_nonfinite rollouts in a row with some stop the run",
                ConfigWarning,
                stacklevel=2,
            )

    def _statistics(
        self, kept: list[Group], dropped: list[Group], rounds: int, filled: int, surplus: int
    ) -> dict[str, float]:
        stats: dict[str, float] = {}
        if self.group_filter is not None:
            stats |= {
                "groups/kept": float(len(kept)),
                "groups/dropped": float(len(dropped)),
                "groups/dropped_all_right": float(sum(g.uniform is True for g in dropped)),
                "groups/dropped_all_wrong": float(sum(g.uniform is False for g in dropped)),
                "groups/rounds": float(rounds),
                "groups/filled": float(filled),
                "groups/surplus": float(surplus),
            }
        return stats

    def sample_groups(
        self,
        prompts: list[tuple[Prompt, list[int]]],
        task: Task,
        samples: int,
        sampling: Sampling,
        seed: int,
        rewards: dict[str, Reward],
    ) -> list[Group]:
        """Generates and judges `samples` responses to each prompt.

        Args:
            prompts: Each with its token ids.
            task: Judges the responses.
            samples: Responses to each prompt.
            sampling: How to draw them.
            seed: Of the engine.
            rewards: Named terms to apply.
        """
        with blaming("data.engine", self.engine):
            responses = self.engine.generate([ids for _, ids in prompts], samples, sampling, seed)
        vocabulary = self.backbone.config.get_text_config().vocab_size
        check_responses(
            type(self.engine).__name__, responses, (len(prompts), samples), sampling, vocabulary
        )
        enter_stage(self.trainer, "scoring")
        key = "data.task" if task is self.task else "data.val_task"
        verdicts = judge([prompt for prompt, _ in prompts], responses, task, key)
        groups = [
            reward(prompt, ids, answers, judged, rewards)
            for (prompt, ids), answers, judged in zip(prompts, responses, verdicts, strict=True)
        ]
        self._warn_of_nonfinite(groups)
        return groups

    def _next_prompts(self) -> list[tuple[Prompt, list[int]]]:
        """The next prompts of this rank's share, in a new order each pass."""
        rank, world = self.shard()
        share = len(range(rank, len(self.prompts), world))
        chosen = []
        for _ in range(self.groups_per_round):
            turn, place = divmod(self.cursor, share)
            order = _order(self.seed, turn, len(self.prompts))
            chosen.append(self.prompts[order[rank + place * world]])
            self.cursor += 1
        return chosen

    def shard(self) -> tuple[int, int]:
        """(rank, ranks) of this process among those that see different data."""
        kwargs = self.trainer.distributed_sampler_kwargs  # type: ignore[union-attr]
        return (kwargs["rank"], kwargs["num_replicas"]) if kwargs else (0, 1)

    def sampling_seed(self, *position: int) -> int:
        """A seed that depends on the run's seed, the rank and the position in the run only."""
        rank, _ = self.shard()
        return random.Random(f"{self.seed} {rank} {position}").getrandbits(31)

    def _on_all_ranks(self, decision: bool) -> bool:
        return self.trainer.strategy.reduce_boolean_decision(decision, all=True)  # type: ignore[union-attr]


def problems(prompts: Sequence[tuple[Prompt, list[int]]]) -> str:
    """How many problems there are, and a name that differs between others: of up to 4,096 of them.

    Args:
        prompts: In the order of the task, each with its tokens.
    """
    digest = hashlib.sha256()
    for prompt, _ in prompts[:: len(prompts) // 4096 + 1]:
        digest.update(repr((prompt.index, prompt.text, prompt.answer)).encode())
    return f"{len(prompts)}, {digest.hexdigest()[:8]}"


@lru_cache(maxsize=2)
def _order(seed: int, turn: int, size: int) -> list[int]:
    """The order of the prompts in one pass, the same on every rank."""
    order = list(range(size))
    random.Random(f"{seed} {turn}").shuffle(order)
    return order
