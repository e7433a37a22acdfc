"""`ReasonModule`: actor, critic and reference, and the update of one rollout."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lit_reason.advantages import AdvantageEstimator, monte_carlo_returns
from lit_reason.annotation import annotate, compare
from lit_reason.backbones import Backbone
from lit_reason.batch import Experience, Prediction, RolloutBatch
from lit_reason.checkpoints import keep_own_files
from lit_reason.checks import (
    OFF_POLICY,
    check_parts,
    check_samples,
    check_schedule,
    check_sizes,
    check_weights,
    warn_of_sizes,
)
from lit_reason.critics import check_notes
from lit_reason.errors import ConfigError, ending_no_loop, warn_of_no_effect
from lit_reason.evaluator import Evaluator
from lit_reason.functional import Reduce, explained_variance, unchecked_values
from lit_reason.guard import NonFiniteGuard
from lit_reason.learner import Learner, Update
from lit_reason.lists import as_list
from lit_reason.networks import (
    Entropy,
    base_weights,
    policy_outputs,
    state_values,
)
from lit_reason.objectives import LossTerm
from lit_reason.offload import check_offload, lent, offload
from lit_reason.optimizers import (
    build_optimizer,
    build_schedule,
    step_schedule,
    warn_of_standstill,
)
from lit_reason.origin import check_origin, origin
from lit_reason.restored import (
    batches,
    count,
    networks,
    require_count,
    require_parts,
)
from lit_reason.restored_states import check_numbers, note_moments
from lit_reason.sharding import FSDP2, evenly
from lit_reason.stages import enter_stage
from lit_reason.statistics import average, describe, over_ranks


class ReasonModule(LightningModule):
    """Reinforcement learning of a reasoning policy; one training batch is one rollout.

    The networks are built in `configure_model`; one that the configuration does not need (critic
    without a `value` term, reference without a KL term) is never built. Progress is counted in
    rollouts: `trainer.global_step`, which counts the steps of every optimizer in a Lightning
    `Trainer` and rollouts on the command line, is not used.

    Args:
        backbone: Where networks and tokenizer come from.
        advantage: Advantage estimator.
        policy: The actor's policy term; its aggregation is the default of `terms`.
        value: The critic's term; required by estimators that use values.
        terms: Further named terms of the actor's loss.
        update: Epochs, mini-batches, micro-batches and gradient clipping.
        kl_in_reward: β of the per-token penalty β·k1 against the reference, subtracted from the
            reward (DeepSeekMath Eq. 2). 0 is off.
        reference_refresh: Copy the actor into the reference every so many rollouts (iterative
            GRPO, DeepSeekMath Alg. 1); null keeps the starting policy.
        reference_offload: Keep the reference's weights on the CPU, and on the device only while a
            rollout is scored.
        old_logprobs: Where the log-probs before the update come from: a forward pass of the
            "trainer", or what the "engine" drew with, which saves the pass. An engine of another
            precision or implementation then biases the ratio of the policy term, uncorrected.
        logprob_chunk: Positions whose vocabulary logits are reduced at once; null picks a size.
        actor_optimizer: Optimizer of the actor.
        critic_optimizer: Optimizer of the critic; null is as `actor_optimizer`.
        actor_scheduler: Learning-rate schedule of the actor, stepped once a rollout that trains it.
        critic_scheduler: Learning-rate schedule of the critic, stepped once a rollout.
    """

    def __init__(
        self,
        backbone: Backbone,
        advantage: AdvantageEstimator,
        policy: LossTerm,
        value: LossTerm | None = None,
        terms: dict[str, LossTerm | None] | None = None,
        update: Update = Update(),  # noqa: B008 (frozen)
        kl_in_reward: float = 0.0,
        reference_refresh: int | None = None,
        reference_offload: bool = False,
        old_logprobs: Literal["trainer", "engine"] = "trainer",
        logprob_chunk: int | None = None,
        actor_optimizer: OptimizerCallable = lambda p: AdamW(p, lr=1e-6),
        critic_optimizer: OptimizerCallable | None = None,
        actor_scheduler: LRSchedulerCallable | None = None,
        critic_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.strict_loading = False  # of what a checkpoint leaves out; see `check_weights`
        self.backbone, self.advantage, self.update = backbone, advantage, update
        self.policy, self.value = policy, value
        self.terms = {name: term for name, term in (terms or {}).items() if term is not None}
        self.kl_in_reward, self.reference_refresh = kl_in_reward, reference_refresh
        self.reference_offload, self.logprob_chunk = reference_offload, logprob_chunk
        self.old_logprobs = old_logprobs
        self.optimizer_factories = {
            "actor": actor_optimizer,
            "critic": critic_optimizer or actor_optimizer,
        }
        self.scheduler_factories = {"actor": actor_scheduler, "critic": critic_scheduler}
        check_parts(self)
        if value is None:
            of_critic: dict[str, object] = {
                "model.critic_optimizer": critic_optimizer,
                "model.critic_scheduler": critic_scheduler,
                "model.update.critic_epochs": update.critic_epochs,
                "model.update.critic_minibatch_size": update.critic_minibatch_size,
            }
            warn_of_no_effect("without a critic", of_critic)
        for term in self.terms.values():
            term.aggregation = term.aggregation or self.policy.aggregation

        self.phase = "joint"  # "value_warmup" while only the critic learns (ValueWarmup callback)
        self.monitor_entropy = False  # set by callbacks that read `Experience.entropy`
        self.policy_version = 0  # rollouts trained on so far
        self.stepped: set[str] = set()  # networks that took an optimizer step so far
        self.reference_moves = reference_refresh is not None  # or once did
        self.guard = NonFiniteGuard(update.max_nonfinite)
        self.actor: Any = None
        self.critic: Any = None
        self.reference: Any = None
        self.evaluator = Evaluator(self)
        self.last_evaluation: dict[str, float] = {}  # also of the sanity check, which logs nothing

    # --- construction -------------------------------------------------------------------------

    @property
    def actor_terms(self) -> dict[str, LossTerm]:
        """The named terms of the actor's loss, the policy term first."""
        return {"policy": self.policy, **self.terms}

    @property
    def needs_reference(self) -> bool:
        """Whether a term or the reward compares with the reference policy."""
        return self.kl_in_reward != 0 or any(t.needs_reference for t in self.actor_terms.values())

    def setup(self, stage: str) -> None:
        """Checks the sizes, before `configure_model` loads anything."""
        self.advantage.reduce = self.reduce
        data: Any = getattr(self.trainer, "datamodule", None)
        if stage == "fit" and data is not None:
            check_sizes(self, data)
            check_samples(self, data)
            warn_of_sizes(self, data)

    def configure_model(self) -> None:
        """Builds the networks that the configuration needs, once."""
        if self.actor is not None:
            return
        self.actor = self._split(self.backbone.actor())
        if self.value is not None:
            self.critic = self._split(self.backbone.critic())
        if self.needs_reference:
            self.reference = self._split(self.backbone.reference())
        if self.reference_offload:
            check_offload(self)

    def _split(self, network: nn.Module) -> nn.Module:
        """Splits a network under FSDP2, at once, so that only one is held whole."""
        strategy = None if self._trainer is None else self._trainer.strategy  # may come later
        if isinstance(strategy, FSDP2):
            strategy.shard(network)
        return network

    def configure_optimizers(self) -> Any:
        """One optimizer, and if configured one schedule, for each trained network."""
        configured = []
        rated = {name for name, factory in self.scheduler_factories.items() if factory is not None}
        for name in self.trained:
            key = self.optimizer_key(name)
            optimizer = build_optimizer(self, name)
            if name not in rated:
                warn_of_standstill(key, name, optimizer)
            entry: dict[str, Any] = {"optimizer": optimizer}
            schedule = build_schedule(self, name, optimizer)
            if schedule is not None:
                if isinstance(schedule, ReduceLROnPlateau):
                    raise ConfigError(
                        f"{self.scheduler_key(name)}=ReduceLROnPlateau: waits for a metric, and "
                        "schedules count rollouts; choose torch.optim.lr_scheduler.LinearLR"
                    )
                check_schedule(self.scheduler_key(name), schedule, self._steps(name))
                settings = {"name": f"lr/{name}", "interval": "step"}
                entry["lr_scheduler"] = {"scheduler": schedule, **settings}
            configured.append(entry)
        return configured

    def weights(self, network: str) -> list[nn.Parameter]:
        """What the optimizer of a network trains, in its order."""
        return [p for p in getattr(self, network).parameters() if p.requires_grad]

    def optimizer_key(self, network: str) -> str:
        """The key that the optimizer of a network is configured at."""
        shared = self.optimizer_factories[network] is self.optimizer_factories["actor"]
        return "model.actor_optimizer" if shared else f"model.{network}_optimizer"

    def scheduler_key(self, network: str) -> str:
        """The key that the schedule of a network is configured at."""
        return f"model.{network}_scheduler"

    def _steps(self, network: str) -> int:
        """Steps that the schedule of a network takes in the whole run; 0 if that is not known."""
        trainer: Any = self.trainer
        data = getattr(trainer, "datamodule", None)
        if data is None or not (trainer.max_epochs or 0) > 0:
            return 0
        alone = (getattr(c, "actor_waits", 0) for c in trainer.callbacks)
        waits = 0 if network == "critic" else sum(alone)
        return int(max(trainer.max_epochs * data.rollouts_per_epoch - waits, 0))

    @property
    def trained(self) -> list[str]:
        """Names of the trained networks, the critic first (its step comes before the actor's)."""
        return ["actor"] if self.value is None else ["critic", "actor"]

    @property
    def reduce(self) -> Reduce | None:
        """Sums a tensor over the data-parallel ranks; `None` on one process."""
        if self.trainer.world_size == 1:
            return None
        # a copy, because Lightning sums in place
        return lambda x: self.trainer.strategy.reduce(x.clone(), reduce_op="sum")  # type: ignore[return-value]

    def on_fit_start(self) -> None:
        """Lets the reference wait on the CPU, once Lightning has moved all networks."""
        if self.offloads:
            offload(self.reference)

    @property
    def offloads(self) -> bool:
        """Whether the reference has weights of its own that wait on the CPU."""
        own = self.reference is not None and not self.backbone.fixed_reference
        return self.reference_offload and own

    # --- one rollout --------------------------------------------------------------------------

    def training_step(self, rollout: RolloutBatch, batch_idx: int) -> dict[str, Any]:
        """Annotates a rollout and runs all its optimizer steps.

        Returns:
            `experience` for callbacks that observe the update.
        """
        if rollout.policy_version != self.policy_version:
            raise RuntimeError(
                f"rollout of policy {rollout.policy_version} reached policy {self.policy_version}: "
                "the loader ran ahead of the update"
            )
        if self.phase == "joint" and not rollout.on_policy:
            raise ConfigError(OFF_POLICY)
        if self.phase not in ("joint", "value_warmup"):
            raise ConfigError(f"callbacks: phase={self.phase!r}: choose joint or value_warmup")
        rollout.check()
        self._observe_rewards(rollout)
        generator = torch.Generator().manual_seed(self.policy_version)
        first = self._partition(rollout, "actor", generator)
        enter_stage(self.trainer, "scoring")
        experience, stats = self.annotate(rollout, [rows for part in first for rows in part])
        enter_stage(self.trainer, "update")
        with ending_no_loop():
            updates = self._update(experience, first, generator)
            self._step_schedules(updates)
        self.policy_version += 1
        self._refresh_reference()
        self._log(rollout, {**stats, **average(updates)})
        return {"experience": experience}

    @torch.no_grad()
    @unchecked_values()  # what is not finite skips the optimizer step, and the guard counts it
    def annotate(
        self, rollout: RolloutBatch, micro_batches: list[Tensor]
    ) -> tuple[Experience, dict[str, Tensor]]:
        """`annotation.annotate` with this module's networks, and the statistics to log."""
        with lent(self.reference, self.device) if self.offloads else nullcontext():
            experience, extra = annotate(self, rollout, micro_batches)
        apart = compare(self, experience, micro_batches)
        return experience, self._describe(experience, extra, apart)

    def score(self, network: nn.Module, micro: RolloutBatch, entropy: Entropy = "none") -> Any:
        """`policy_outputs` of the actor or the reference at the sampling temperature."""
        return policy_outputs(network, micro, micro.temperature, entropy, self.logprob_chunk)

    def _partition(
        self, rollout: RolloutBatch, network: str, generator: torch.Generator
    ) -> list[list[Tensor]]:
        """The mini-batches of one pass: as many on every rank, which all generate as much."""
        only = rollout.critic_only.cpu()
        rows = torch.arange(len(only)) if network == "critic" else (~only).nonzero().squeeze(1)
        _, size = self.update.schedule(network)
        plan = self.update.partition(rollout, rows, size, generator)
        return [self.in_step(pieces) for pieces in plan]

    def in_step(self, pieces: list[Tensor]) -> list[Tensor]:
        """As many pieces on every rank, where each is a collective."""
        strategy = self.trainer.strategy
        if not isinstance(strategy, FSDP2):
            return pieces
        return evenly(pieces, lambda n: strategy.reduce(n, reduce_op="max"), self.device)

    def _update(
        self, experience: Experience, first: list[list[Tensor]], generator: torch.Generator
    ) -> list[dict[str, Tensor]]:
        """All optimizer steps, network by network: they share nothing, so the order is free."""
        learners = self.learners()
        if self.phase == "value_warmup":
            learners = {"critic": learners["critic"]}
        optimizers = dict(zip(self.trained, as_list(self.optimizers()), strict=True))
        rollout = experience.rollout
        stats = []
        for name, learner in learners.items():
            epochs, _ = self.update.schedule(name)
            for epoch in range(epochs):
                reuse = name == "actor" and epoch == 0
                plan = first if reuse else self._partition(rollout, name, generator)
                for minibatch in plan:
                    step = learner.update(experience, minibatch, optimizers[name], self._backward)
                    self.guard.observe(name, step, experience, torch.cat(minibatch), self._dump)
                    stats.append(step)
        return stats

    def _observe_rewards(self, rollout: RolloutBatch) -> None:
        """Counts a rollout with rewards that are not finite, on whichever rank."""
        bad = torch.tensor(rollout.stats.get("reward/nonfinite", 0.0), device=self.device)
        total = bad if self.reduce is None else self.reduce(bad)
        self.guard.observe_rewards(bool(total > 0), rollout, self._dump)

    @property
    def _dump(self) -> Path:
        """Where this rank saves a mini-batch, or a rollout, that stops the run."""
        return Path(self.trainer.default_root_dir, f"nonfinite_rank{self.trainer.global_rank}.pt")

    def learners(self) -> dict[str, Learner]:
        """The trained networks with their loss terms, in update order."""
        wanted = any(term.needs_entropy for term in self.actor_terms.values())
        entropy: Entropy = "grad" if wanted else "none"
        built: dict[str, Learner] = {}
        if self.value is not None:
            terms, forward = {"value": self.value}, lambda net, e: state_values(net, e.rollout)
            built["critic"] = self._learner("critic", terms, forward)
        built["actor"] = self._learner(
            "actor", self.actor_terms, lambda net, e: self.score(net, e.rollout, entropy)
        )
        return built

    def _learner(self, name: str, terms: dict[str, LossTerm], forward: Any) -> Learner:
        network = getattr(self, name)
        norm, key = self.update.max_grad_norm, self.optimizer_key(name)
        return Learner(name, network, terms, forward, norm, self.reduce, key)

    def _backward(self, loss: Tensor) -> None:
        """Backward without the strategy's own gradient averaging: the learner sums over ranks.

        Ranks may then run different numbers of backward passes, and phases that leave a network
        out need no unused-parameter search. FSDP2 sums as it goes, in as many passes on each.
        """
        strategy: Any = self.trainer.strategy
        parallel = isinstance(strategy, ParallelStrategy)
        with strategy.block_backward_sync() if parallel else nullcontext():
            self.manual_backward(loss)

    def _step_schedules(self, updates: list[dict[str, Tensor]]) -> None:
        """Steps the schedules of the networks that took an optimizer step in this rollout."""
        skipped = {n: f"update/skipped_{n}" for n in self.trained}
        stepped = {n for n, key in skipped.items() if any(not s.get(key, True) for s in updates)}
        self.stepped |= stepped
        scheduled = [n for n in self.trained if self.scheduler_factories[n] is not None]
        schedulers: list[Any] = as_list(self.lr_schedulers())
        for name, scheduler in zip(scheduled, schedulers, strict=True):
            if name in stepped:
                last = 0 < self._steps(name) <= getattr(scheduler, "last_epoch", -1) + 1
                step_schedule(self.scheduler_key(name), scheduler, last)

    def _refresh_reference(self) -> None:
        due = self.reference_refresh and self.policy_version % self.reference_refresh == 0
        if due and self.phase == "joint":
            self.reference.load_state_dict(self.actor.state_dict())

    # --- logging ------------------------------------------------------------------------------

    @property
    def wants_sampled_entropy(self) -> bool:
        """Whether the engine is to say the entropy of what it draws from, if it can."""
        return self.monitor_entropy and self.old_logprobs == "engine"

    def _describe(
        self, experience: Experience, extra: dict[str, Tensor], apart: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Statistics of the rollout and of the annotation, the same on every rank."""
        rollout = experience.rollout
        stats = describe(rollout.of_policy, {k: v[~rollout.critic_only] for k, v in extra.items()})
        stats |= apart
        if self.reduce is not None:
            stats = over_ranks(stats, self.trainer.strategy, self.device)
        if experience.values is not None and experience.rewards is not None:
            returns = monte_carlo_returns(
                experience.rewards, rollout.policy_mask, self.advantage.gamma, experience.after
            )
            stats["value/explained_variance"] = explained_variance(
                experience.values, returns, rollout.value_mask, reduce=self.reduce
            )
        return stats

    def _log(self, rollout: RolloutBatch, stats: dict[str, Tensor]) -> None:
        shown = ("reward", "accuracy", "response_length")
        size = len(rollout)
        joint = float(self.phase == "joint")
        for key in shown:
            self.log(key, stats.pop(key), prog_bar=True, batch_size=size)
        self.log_dict({**stats, "joint_phase": joint}, batch_size=size)
        # the step of checkpoints and plots
        self.log("rollout", float(self.policy_version), batch_size=size)

    # --- evaluation ---------------------------------------------------------------------------

    def validation_step(self, rollout: RolloutBatch, batch_idx: int) -> None:
        """Counts the verdicts of held-out problems."""
        self.evaluator.update(rollout, "val")

    def on_validation_epoch_end(self) -> None:
        """Logs avg@k, pass@k, maj@k and the rest over all held-out problems."""
        self._log_evaluation("val")

    def test_step(self, rollout: RolloutBatch, batch_idx: int) -> None:
        """As `validation_step`, under the prefix `test/`."""
        self.evaluator.update(rollout, "test")

    def on_test_epoch_end(self) -> None:
        """As `on_validation_epoch_end`, under the prefix `test/`."""
        self._log_evaluation("test")

    def _log_evaluation(self, stage: str) -> None:
        self.last_evaluation = self.evaluator.finish(stage)
        # the metrics have gathered all ranks already; the mean of equal values is what it was
        self.log_dict(self.last_evaluation, sync_dist=self.reduce is not None)

    def predict_step(self, rollout: RolloutBatch, batch_idx: int) -> Prediction:
        """The rollout with the log-probability of each response; the prediction writer saves it.

        At temperature 1, whatever the sampling: greedy responses have one too.
        """
        return Prediction(rollout, self.evaluator.response_logprobs(rollout))

    # --- checkpoints --------------------------------------------------------------------------

    @property
    def _fixed(self) -> set[str]:
        """Names of the weights that never change: the bases of adapters."""
        return {f"{n}.{k}" for n in self.trained for k in base_weights(getattr(self, n))}

    @cached_property
    def origin(self) -> dict[str, Any]:
        """What the networks began as."""
        return origin(self)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Leaves out what never changes: the base of adapters, and a reference never refreshed."""
        checkpoint["policy_version"] = self.policy_version
        checkpoint["stepped"] = sorted(self.stepped)
        checkpoint["nonfinite"] = dict(self.guard.in_a_row)
        checkpoint["adapters"] = self.backbone.describe()
        checkpoint["origin"] = self.origin
        if "optimizer_states" in checkpoint:
            checkpoint["moments"] = note_moments(self, checkpoint["optimizer_states"])
        # what the loops have counted, with which it is compared: `ReasonTrainer` counts rollouts
        checkpoint["global_step"] = self.trainer.fit_loop.epoch_loop.global_step
        # WeightAveraging has put the state of its average in place of the module's
        for name in ("state_dict", "current_model_state"):
            state = checkpoint.get(name, {})
            for key in self._left_out(state):
                del state[key]

    def _left_out(self, keys: Iterable[str]) -> list[str]:
        """The weights that checkpoints do without, as the run begins with them."""
        fixed, unrefreshed = self._fixed, not self.reference_moves
        return [k for k in keys if k in fixed or (unrefreshed and k.startswith("reference."))]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, *rest: Any
    ) -> None:
        """Puts what checkpoints leave out beside it, where somebody asks for all of the weights.

        As `WeightAveraging` does, of whose copy of the module this is called too.
        """
        if strict:
            own = self.state_dict()
            for key in self._left_out(own):
                state_dict.setdefault(f"{prefix}{key}", own[key])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *rest)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restores the rollout counter and what has trained, after a look at what is there."""
        trainer = self._trainer  # none where Lightning's `load_from_checkpoint` reads the file
        continues = trainer is not None and trainer.state.fn == TrainerFn.FITTING
        data = getattr(trainer, "datamodule", None)
        require_parts(checkpoint, data, continues, policy_version="the number of rollouts")
        check_notes("ckpt_path", checkpoint.get("adapters", {}), self.backbone.describe())
        check_origin(checkpoint.get("origin", {}), self.origin)
        check_weights(checkpoint["state_dict"], self.state_dict(), self._fixed)
        self.policy_version = count({"policy_version": 0, **checkpoint}, "policy_version")
        if continues:
            keep_own_files(trainer, checkpoint["callbacks"])
            check_numbers(self, checkpoint)
            require_count(checkpoint, "policy_version", trained := batches(checkpoint))
            if hasattr(data, "cursor"):
                state = checkpoint[type(data).__qualname__]
                require_count(state, "cursor", trained, more=True)
        self.reference_moves |= any(k.startswith("reference.") for k in checkpoint["state_dict"])
        self.stepped = networks(checkpoint, self.trained)
        self.guard.restore(checkpoint.get("nonfinite", {}))
