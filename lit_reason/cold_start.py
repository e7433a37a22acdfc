"""The supervised cold start: a policy to begin reinforcement learning from."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from lit_reason.backbones import Backbone
from lit_reason.batch import Group, Response, RolloutBatch
from lit_reason.checkpoints import keep_own_files
from lit_reason.checks import check_schedule, check_weights, warn_of_no_critic
from lit_reason.encoding import encode_prompt
from lit_reason.errors import ConfigError, naming, require_at_least_one, require_room
from lit_reason.export import save_policy
from lit_reason.functional import token_mean
from lit_reason.networks import policy_outputs
from lit_reason.optimizers import (
    build_optimizer,
    build_schedule,
    naming_step,
    step_schedule,
    warn_of_standstill,
)
from lit_reason.origin import check_origin, origin
from lit_reason.restored import (
    batches,
    count,
    require_count,
    require_parts,
)
from lit_reason.restored_states import check_numbers, note_moments
from lit_reason.stages import enter_stage
from lit_reason.statistics import forget_logged
from lit_reason.tasks import Task


class ColdStart(LightningModule):
    """Next-token training on demonstrations, response tokens only.

    When it ends the policy lies in `RUN_DIR/policy`, a `transformers` folder that
    `model.backbone: Pretrained` starts from.

    Args:
        backbone: What to train, usually `Scratch`.
        optimizer: Optimizer of the policy.
        scheduler: Learning-rate schedule, stepped once a batch.
    """

    def __init__(
        self,
        backbone: Backbone,
        optimizer: OptimizerCallable = lambda p: AdamW(p, lr=1e-3),
        scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        warn_of_no_critic(backbone, "on cold_start, which trains no critic")
        self.backbone = backbone
        self.optimizer_factories = {"actor": optimizer}
        self.scheduler_factories = {"actor": scheduler}
        self.trained = ["actor"]
        self.actor: Any = None

    @property
    def policy_version(self) -> int:
        """Steps so far; in reinforcement learning it is rollouts."""
        return self.trainer.global_step

    def setup(self, stage: str) -> None:
        """Refuses steps of no batches, by which Lightning would divide."""
        batches = self.trainer.accumulate_grad_batches
        if batches < 1:
            raise ConfigError(f"trainer.accumulate_grad_batches={batches}: must be at least 1")

    def configure_model(self) -> None:
        """Builds the policy once."""
        if self.actor is None:
            self.actor = self.backbone.actor()

    def configure_optimizers(self) -> Any:
        """The optimizer, with its schedule if one is configured."""
        optimizer = build_optimizer(self, "actor")
        schedule = build_schedule(self, "actor", optimizer)
        if schedule is None:
            warn_of_standstill("model.optimizer", "policy", optimizer)
            return optimizer
        check_schedule("model.scheduler", schedule, self._steps)
        settings = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": settings}

    @property
    def _steps(self) -> int:
        """Steps of the whole run."""
        with naming("model.scheduler"):
            return int(min(self.trainer.estimated_stepping_batches, 2**63 - 1))

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Names the schedule in what its step raises, and refuses rates that no training means."""
        step_schedule("model.scheduler", scheduler, self.trainer.global_step >= self._steps)

    def weights(self, network: str) -> list[nn.Parameter]:
        """What the optimizer trains, in its order."""
        return [p for p in self.actor.parameters() if p.requires_grad]

    def optimizer_key(self, network: str) -> str:
        """The key that the optimizer is configured at."""
        return "model.optimizer"

    def scheduler_key(self, network: str) -> str:
        """The key that the schedule is configured at."""
        return "model.scheduler"

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> Tensor:
        """Mean negative log-likelihood of the demonstrated tokens."""
        logprobs = policy_outputs(self.actor, batch).logprobs
        loss = -token_mean(logprobs, batch.response_mask)
        self.log("loss", loss, prog_bar=True, batch_size=len(batch))
        return loss

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """Names the optimizer in what its step raises, but not in what the loss does."""
        graded = []

        def closure() -> Any:
            loss = optimizer_closure()
            graded.append(True)
            return loss

        with naming_step("model.optimizer", lambda: bool(graded)):
            optimizer.step(closure=closure)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Ends a run that has diverged, while its weights are finite."""
        gradients = [p.grad for p in self.weights("actor") if p.grad is not None]
        if not nn.utils.get_total_norm(gradients).isfinite():
            raise FloatingPointError(
                f"gradient of the policy not finite in step {self.policy_version + 1}; lower "
                "model.optimizer.lr, or continue from an earlier checkpoint with a lower one"
            )

    def on_fit_end(self) -> None:
        """Writes the policy.

        Raises:
            ConfigError: A weight is not finite.
        """
        if self.trainer.is_global_zero:
            folder = Path(self.trainer.default_root_dir, "policy")
            save_policy(self.actor, self.backbone, folder)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Notes what a run that continues compares with what it finds."""
        checkpoint["origin"] = origin(self)
        if "optimizer_states" in checkpoint:
            checkpoint["moments"] = note_moments(self, checkpoint["optimizer_states"])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Looks at what is there; Lightning restores it."""
        trainer = self._trainer  # none where Lightning's `load_from_checkpoint` reads the file
        continues = trainer is not None and trainer.state.fn == TrainerFn.FITTING
        data = getattr(trainer, "datamodule", None)
        require_parts(checkpoint, data, continues)
        check_origin(checkpoint.get("origin", {}), origin(self))
        check_weights(checkpoint["state_dict"], self.state_dict())
        if continues:
            keep_own_files(trainer, checkpoint["callbacks"])
            check_numbers(self, checkpoint)
            trained = batches(checkpoint)
            if data is not None:
                require_count(checkpoint[type(data).__qualname__], "cursor", trained)


class Demonstrations(LightningDataModule):
    """Fresh demonstrations in every batch.

    Args:
        task: A task with `demonstration`.
        batch_size: Demonstrations a batch.
        batches_per_epoch: Length of a Lightning epoch.
        curriculum: Batches over which the hardest allowed `Task.difficulty` grows from 0.1 to 1; 0
            shows everything from the start.
        seed: Seed of prompts and mistakes.
    """

    def __init__(
        self,
        task: Task,
        batch_size: int = 64,
        batches_per_epoch: int = 50,
        curriculum: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_room(batch_size=batch_size)
        require_at_least_one("data", batch_size=batch_size, batches_per_epoch=batches_per_epoch)
        if curriculum < 0:
            raise ConfigError(f"data.curriculum={curriculum}: must be at least 0")
        self.task, self.batch_size = task, batch_size
        self.batches_per_epoch, self.curriculum = batches_per_epoch, curriculum
        self.seed = seed
        self.cursor = 0  # the next batch of the run

    def setup(self, stage: str) -> None:
        """Fails before training if the task has no demonstrations."""
        module: Any = self.trainer.lightning_module  # type: ignore[union-attr]
        self.tokenizer = module.backbone.tokenizer
        sample = self.task.demonstration(self.task[0], random.Random(0))
        text = self.task[0].text + sample
        if self.tokenizer.unk_token_id in self.tokenizer(text)["input_ids"]:
            raise ConfigError(
                f"model.backbone: its tokenizer does not know every character of {text[:60]!r}; "
                "extend model.backbone.alphabet"
            )
        prompts = [self.task[i] for i in range(len(self.task))]
        self.prompts = sorted(prompts, key=self.task.difficulty)
        self.difficulties = [self.task.difficulty(prompt) for prompt in self.prompts]

    def train_dataloader(self) -> DemonstrationLoader:
        """Batches of demonstrations."""
        return DemonstrationLoader(self)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Lets nothing that was logged of one batch stand for another."""
        forget_logged(self.trainer)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The place in the run, which may be in the middle of an epoch."""
        return {"cursor": self.cursor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues with the batch after the last one handed out."""
        self.cursor = count(state_dict, "cursor")

    def batch(self, index: int) -> RolloutBatch:
        """The demonstrations of batch `index` of the run, as a function of the seed alone."""
        rng = random.Random(f"{self.seed} {index}")
        bound = min(0.1 + 0.9 * index / self.curriculum, 1.0) if self.curriculum else 1.0
        allowed = max(bisect_right(self.difficulties, bound), 1)
        groups = [self._demonstrate(allowed, rng) for _ in range(self.batch_size)]
        return RolloutBatch.from_groups(groups, self.tokenizer.pad_token_id)

    def _demonstrate(self, allowed: int, rng: random.Random) -> Group:
        prompt = self.prompts[rng.randrange(allowed)]
        text = self.task.demonstration(prompt, rng)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        response = Response((*ids, self.tokenizer.eos_token_id), text, truncated=False)
        verdicts = self.task.judge([prompt], [text])
        return Group(prompt, encode_prompt(prompt, self.tokenizer), [response], verdicts, [0.0])


class DemonstrationLoader:
    """A sized loader over `Demonstrations.batch`."""

    def __init__(self, data: Demonstrations) -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.batches_per_epoch

    def __iter__(self) -> Iterator[RolloutBatch]:
        for _ in range(len(self)):
            enter_stage(self.data.trainer, "demonstrations")
            batch = self.data.batch(self.data.cursor)
            self.data.cursor += 1
            yield batch
