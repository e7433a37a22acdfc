"""The work that `scripts/benchmark.py` gives to all contenders."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from lit_reason.backbones import Bundled
from lit_reason.tasks import PlanCount


@dataclass(frozen=True)
class Case:
    """What all contenders are given.

    Attributes:
        model: Folder of the checkpoint.
        prompts: N prompts, all of them in every step.
        group_size: G responses to each.
        max_new_tokens: Budget of a response.
        updates: Optimizer steps a rollout.
        rows: Most responses in a forward pass with gradient.
        tokens: Most tokens in one, padding included, for the contenders that can count them.
        threads: Of torch.
        rounds: Training steps that are measured, after one that is not.
        seed: Of sampling and order.
        clock: Seconds on the wall, or of this process alone, which other work disturbs less.
    """

    model: str
    prompts: tuple[str, ...]
    group_size: int = 8
    max_new_tokens: int = 120
    updates: int = 4
    rows: int = 32
    tokens: int = 2048
    threads: int = 1
    rounds: int = 5
    seed: int = 0
    clock: Literal["wall", "cpu"] = "wall"

    @property
    def responses(self) -> int:
        """Responses in a rollout."""
        return len(self.prompts) * self.group_size


def judge(completion: str) -> float:
    """The reward: cheap, and different within a group."""
    return float(len(completion) % 7) / 7


def save_ragged(folder: Path, mean: float = 80.0, width: int = 64) -> None:
    """A random model whose end token has probability 1/mean whatever the state.

    One coordinate of every state is held large, so that after the last norm it is nearly the same
    for all; the end token's row of the head reads that coordinate, all others do not.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    backbone = Bundled()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(backbone.tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=backbone.tokenizer.eos_token_id,
        pad_token_id=backbone.tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    others = config.vocab_size - 1
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 100.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[config.eos_token_id] = 0.0
        logit = math.log(others / (mean - 1))
        model.lm_head.weight[config.eos_token_id, 0] = logit / math.sqrt(width)
    model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)


def plan_count_prompts(count: int, seed: int = 0) -> tuple[str, ...]:
    """Problems of the built-in task, its longest."""
    task = PlanCount()
    chosen = random.Random(seed).sample(range(len(task)), count)
    return tuple(task[i].text for i in chosen)


QUESTIONS = (
    "Question: A farmer has 12 hens and each lays 5 eggs a week. How many eggs is that in 3 weeks?"
    "\nAnswer:",
    "Question: What is 17 plus 26, and then times 2?\nAnswer:",
    "Question: A train leaves at 9:40 and arrives at 11:15. How many minutes does the ride take?"
    "\nAnswer:",
    "Question: Tom reads 14 pages a day. After how many days has he read a book of 210 pages?"
    "\nAnswer:",
)


def build_case(name: str, folder: Path, smollm2: str, **settings: Any) -> Case:
    """One of the three cases."""
    if name == "c":
        sizes = {"max_new_tokens": 64, "rows": 8, "tokens": 192, **settings}
        return Case(smollm2, QUESTIONS, **sizes)
    if name == "a":
        return Case(Bundled().path, plan_count_prompts(16), **settings)
    save_ragged(folder)
    return Case(str(folder), plan_count_prompts(16), **{"max_new_tokens": 256, **settings})
