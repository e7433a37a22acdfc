"""The contenders of `scripts/benchmark.py`: each runs in a process of its own.

Each waits for its turn before a training step, and sends the seconds of its stages after it.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import tempfile
import time
import warnings
from typing import Any, Literal

import torch
from benchmark_cases import Case, judge
from lightning.pytorch import Callback, Trainer, seed_everything
from torch.optim import AdamW

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.backbones import Pretrained
from lit_reason.batch import Prompt
from lit_reason.callbacks import EntropyMonitor
from lit_reason.data import RolloutDataModule
from lit_reason.learner import Update
from lit_reason.module import ReasonModule
from lit_reason.objectives import ClippedSurrogate, PositiveExampleLM, ValueLoss
from lit_reason.rewards import Reward
from lit_reason.rollout import HFEngine, Sampling
from lit_reason.tasks.base import Task

STAGES = ("rollout", "scoring", "update", "step")


class Listed(Task):
    """The prompts of a case; even lengths count as right, for terms that want verdicts."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Prompt:
        return Prompt(index, self.texts[index], "")

    def verify(self, prompt: Prompt, text: str) -> bool:
        """Something cheap that differs within a group."""
        return len(text) % 2 == 0


class Judged(Reward):
    """`judge`, as a reward term."""

    def __call__(self, prompt: Any, responses: Any, verdicts: Any) -> list[float]:
        """See `Reward.__call__`."""
        return [judge(response.text) for response in responses]


class Meter:
    """Waits for its turn, and sends what a step took."""

    def __init__(self, case: Case, connection: Any) -> None:
        self.connection = connection
        self.clock = time.perf_counter if case.clock == "wall" else time.process_time
        self.seconds: dict[str, float] = {}

    def begin(self) -> None:
        """Waits; a step starts when it returns."""
        self.connection.recv()
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.started = self.since = self.clock()

    def lap(self, stage: str) -> None:
        """What passed since the last lap belongs to `stage`."""
        now = self.clock()
        self.seconds[stage] += now - self.since
        self.since = now

    def end(self, prompt_mask: torch.Tensor, response_mask: torch.Tensor) -> None:
        """Sends the seconds of the step, its tokens, and the most memory so far in MiB."""
        self.seconds["step"] = self.clock() - self.started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**20
        tokens = {
            "prompt_tokens": int(prompt_mask.sum()),
            "response_tokens": int(response_mask.sum()),
        }
        self.connection.send({**self.seconds, **tokens, "peak_mib": peak})


class Stages(Callback):
    """Times the stages of a rollout as they are announced."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.stage = meter, ""

    def on_stage(self, trainer: Any, stage: str) -> None:
        """A stage begins, and the one before it ends."""
        if self.stage:
            self.meter.lap(self.stage)
        else:
            self.meter.begin()
        self.stage = stage

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, i: int
    ) -> None:
        """The update ends, and with it the step."""
        self.meter.lap(self.stage)
        self.stage = ""
        self.meter.end(batch.prompt_mask, batch.response_mask)


def run_lit_reason(
    case: Case, stages: Callback, critic: bool, old_logprobs: Literal["engine", "trainer"]
) -> None:
    """DAPO, or VAPO with `critic`, without what TRL has no counterpart of.

    Args:
        case: The work.
        stages: Watches the stages of each rollout.
        critic: VAPO instead of DAPO.
        old_logprobs: Who says them.
    """
    warnings.filterwarnings("ignore")
    torch.set_num_threads(case.threads)
    seed_everything(case.seed, verbose=False)
    module = ReasonModule(
        Pretrained(case.model),
        GAE(alpha=0.05) if critic else GroupRelative(),
        ClippedSurrogate(0.2, 0.28),
        ValueLoss() if critic else None,
        {"positive_lm": PositiveExampleLM(0.1)} if critic else None,
        Update(
            minibatch_size=case.responses // case.updates,
            micro_batch_size=case.rows,
            micro_batch_tokens=case.tokens,
        ),
        old_logprobs=old_logprobs,
        actor_optimizer=lambda p: AdamW(p, lr=1e-6, weight_decay=0.0, fused=True),
    )
    data = RolloutDataModule(
        Listed(case.prompts),
        {"reward": Judged()},
        HFEngine(case.responses),
        groups_per_rollout=len(case.prompts),
        group_size=case.group_size,
        rollouts_per_epoch=case.rounds + 1,
        sampling=Sampling(max_new_tokens=case.max_new_tokens),
    )
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EntropyMonitor(), stages],
    )
    trainer.fit(module, data)


def run_trl(case: Case, connection: Any) -> None:
    """GRPOTrainer with DAPO's loss; it logs the entropy by itself."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    warnings.filterwarnings("ignore")
    torch.set_num_threads(case.threads)
    meter = Meter(case, connection)

    class Timed(GRPOTrainer):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            result = super()._generate(*args, **kwargs)
            meter.lap("rollout")
            return result

        def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
            meter.begin()
            self.scored = super()._generate_and_score_completions(*args, **kwargs)
            meter.lap("scoring")
            return self.scored

    class End(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % case.updates == 0:
                meter.lap("update")
                meter.end(trainer.scored["prompt_mask"], trainer.scored["completion_mask"])

    per_update = case.responses // case.updates
    accumulation = -(-per_update // case.rows)
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        temperature=1.0,
        num_generations=case.group_size,
        max_completion_length=case.max_new_tokens,
        per_device_train_batch_size=per_update // accumulation,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=case.updates * accumulation,
        max_steps=case.updates * (case.rounds + 1),
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_dropout=True,
        seed=case.seed,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(
        case.model, padding_side="left", trust_remote_code=False
    )
    model = AutoModelForCausalLM.from_pretrained(
        case.model, dtype=torch.float32, trust_remote_code=False
    )
    trainer = Timed(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [judge(c) for c in completions],
        train_dataset=Dataset.from_list([{"prompt": text} for text in case.prompts]),
        processing_class=tokenizer,
        callbacks=[End()],
    )
    trainer.train()


def work(contender: str, case: Case, connection: Any) -> None:
    """The life of one process."""
    logging.disable(logging.WARNING)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (trainers print; the table is the parent's)
    if contender == "trl":
        run_trl(case, connection)
    else:
        critic, again = contender == "vapo", contender == "dapo_rescored"
        stages = Stages(Meter(case, connection))
        run_lit_reason(case, stages, critic, "trainer" if again else "engine")
