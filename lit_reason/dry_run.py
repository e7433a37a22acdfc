"""`fit --dry_run`: what a run will need, before it starts; and a few rollouts of it, timed."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from lit_reason.data import RolloutDataModule
from lit_reason.encoding import encode_prompt
from lit_reason.estimate import FULL, Load, Shape, flops, shape_of, stages
from lit_reason.loading import reading
from lit_reason.lora import LoRA
from lit_reason.module import ReasonModule
from lit_reason.networks import BLOCK, LEAST
from lit_reason.optimizers import build_optimizer, naming_step
from lit_reason.rollout import HFEngine
from lit_reason.sharding import FSDP2
from lit_reason.stages import Stage

READ = 512  # prompts whose lengths are looked at


def load_of(module: ReasonModule, data: RolloutDataModule, trainer: Trainer, shape: Shape) -> Load:
    """What a run does, read from its parts before they are set up.

    Args:
        module: Its backbone's weights are not loaded.
        data: Its prompts are read, or `READ` of them spread evenly.
        trainer: Precision, strategy and device.
        shape: Of the backbone.
    """
    update, prompt, response = module.update, longest_prompt(module, data), data.sampling
    width = prompt + response.max_new_tokens
    rows = min(update.minibatch_size, update.micro_batch_size)
    if update.micro_batch_tokens is not None:
        rows = max(min(rows, update.micro_batch_tokens // width), 1)
    responses = data.groups_per_rollout * data.group_size
    own = isinstance(data.engine, HFEngine)
    at_once = min(getattr(data.engine, "micro_batch_size", 0), responses) if own else 0
    strategy: Any = trainer.strategy
    offloads = module.reference_offload and strategy.root_device.type != "cpu"
    networks, trained, reference = sizes(module, shape)
    if reference and not offloads:
        networks["reference"] = reference
    return Load(
        prompt=prompt,
        response=response.max_new_tokens,
        responses=responses,
        rows=rows,
        generated=at_once,
        prompts=-(-at_once // data.group_size),
        chunk=module.logprob_chunk or max(BLOCK // shape.vocab, LEAST),
        passes={name: update.schedule(name)[0] for name in trained},
        networks=networks,
        trained=trained,
        lent=reference if offloads else 0,
        moments={name: moments(module, name, strategy.root_device) for name in trained},
        half=str(trainer.precision) == "bf16-mixed",
        checkpointing=module.backbone.gradient_checkpointing,
        shards=strategy.num_nodes * strategy.num_processes if isinstance(strategy, FSDP2) else 1,
    )


def longest_prompt(module: ReasonModule, data: RolloutDataModule) -> int:
    """Tokens of the longest training prompt, at most those that are let in."""
    step = max(len(data.task) // READ, 1)
    tokenizer = module.backbone.tokenizer
    prompts = (data.task[i] for i in range(0, len(data.task), step))
    longest = max((len(encode_prompt(prompt, tokenizer)) for prompt in prompts), default=0)
    return min(longest, data.max_prompt_length or longest)


def sizes(module: ReasonModule, shape: Shape) -> tuple[dict[str, int], dict[str, int], int]:
    """(weights of actor and critic, those of them that train, weights of the reference)."""
    critic = shape.decoder + shape.hidden + 1
    names = {"actor": shape.weights, **({} if module.value is None else {"critic": critic})}
    backbone = module.backbone
    if not isinstance(backbone, LoRA):
        return names, dict(names), shape.weights if module.needs_reference else 0
    adapters = shape.adapters(backbone.r, backbone.target_modules)
    trained = {name: adapters + (shape.hidden + 1) * (name == "critic") for name in names}
    bases = 1 if backbone.share or "critic" not in names else 2
    return {"base": bases * shape.weights, **trained}, trained, 0


def moments(module: ReasonModule, network: str, device: torch.device | str = "cpu") -> float:
    """Numbers that an optimizer keeps for each weight, found out with a small one.

    Args:
        module: With the optimizer, which need not have its weights.
        network: The one that it trains.
        device: Of the run, as some arguments do for some devices only.
    """
    weight = nn.Parameter(torch.zeros(16, 16, device=device))
    weight.grad = torch.zeros_like(weight)
    optimizer = build_optimizer(module, network, [weight])
    with naming_step(module.optimizer_key(network)):
        optimizer.step()
    kept = (v for state in optimizer.state.values() for v in state.values())
    return sum(v.numel() for v in kept if isinstance(v, torch.Tensor) and v.ndim) / weight.numel()


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of the fastest of a few calls."""
    best = float("inf")
    for _ in range(4):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best


def speeds(device: torch.device, half: bool) -> tuple[float, float]:
    """(FLOP/s of a large matrix product, bytes/s of a large copy) of a device."""
    size = 8192 if device.type == "cuda" else 768
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16 if half else torch.float32)
    block = torch.empty(64 * size * size // 16, device=device)
    product = 2 * size**3 / timed(lambda: a @ a, device)
    return product, 2 * FULL * block.numel() / timed(block.clone, device)


def least_seconds(shape: Shape, load: Load, device: torch.device) -> dict[str, float]:
    """Seconds of each stage at the speed of matrix products and, while generating, of memory.

    Each new token of the responses generated at once reads all weights of the policy.
    """
    product, copy = speeds(device, load.half)
    seconds = {stage: work / product for stage, work in flops(shape, load).items()}
    if load.generated:
        steps = -(-load.responses // load.generated) * load.response
        seconds["rollout"] = max(seconds["rollout"], steps * FULL * shape.weights / copy)
    return seconds


def report(module: ReasonModule, data: RolloutDataModule, trainer: Trainer) -> list[str]:
    """The estimate as lines of text."""
    with reading(f"model.backbone={module.backbone}", "give another model"):
        shape = shape_of(module.backbone.config)
    load = load_of(module, data, trainer, shape)
    device = trainer.strategy.root_device
    found, seconds = stages(shape, load), least_seconds(shape, load, device)
    unit, name = (2**30, "GiB") if peak(found) >= 2**30 else (2**20, "MiB")
    rows = dict.fromkeys(part for parts in found.values() for part in parts)
    lines = [
        f"each of {trainer.world_size} processes on {device.type}, {trainer.precision}: prompts of "
        f"up to {load.prompt} tokens, responses of {load.response}, {load.rows} of them a pass",
        _row(name, [f"{stage:>9}" for stage in found]),
        *(_row(part, [_size(s.get(part), unit) for s in found.values()]) for part in rows),
        _row("sum", [_size(sum(s.values()), unit) for s in found.values()]),
        _row("seconds, at least", [f"{seconds[stage]:9.4g}" for stage in found]),
    ]
    if not load.generated:
        engine = type(data.engine).__name__
        lines.append(f"memory and time of the engine {engine} are not counted")
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        fits = "fits into" if peak(found) < total else "does not fit into"
        lines.append(f"{peak(found) / unit:.1f} {name} {fits} the {total / unit:.1f} of the device")
    return lines


def peak(found: dict[str, dict[str, float]]) -> float:
    """Bytes of the stage that needs most."""
    return max(sum(parts.values()) for parts in found.values())


def _row(name: str, cells: Iterable[str]) -> str:
    return f"{name:<26}" + " ".join(cells)


def _size(value: float | None, unit: int) -> str:
    return " " * 9 if value is None else f"{value / unit:9.2f}"


class Stopwatch(Callback):
    """Times the stages of a run's rollouts, and keeps the most memory that they took."""

    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.started = 0.0
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.phase, self.before, self.bytes = "", 0, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the memory that building the networks took."""
        self.device: torch.device = trainer.strategy.root_device
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self.before = self._high_water()

    def on_stage(self, trainer: Trainer, stage: Stage) -> None:
        """Called by `enter_stage`."""
        self._close()
        self.stage = stage

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Ends the update."""
        self._close()
        self.phase = pl_module.phase

    def _close(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self.stage is not None:
            self.seconds[self.stage].append(now - self.started)
        self.stage, self.started = None, now

    def _high_water(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def lines(self, rollouts: int) -> list[str]:
        """What was measured, as lines of text.

        Args:
            rollouts: That were run.
        """
        shares = {stage: sum(s) / rollouts for stage, s in self.seconds.items()}
        each = ", ".join(f"{stage} {s:.2f} s" for stage, s in shares.items())
        size = (self._high_water() - self.before) / 2**20
        grown = "in all" if self.device.type == "cuda" else "more than before the first"
        return [
            f"measured, {rollouts} rollouts of the {self.phase} phase: "
            f"{sum(shares.values()):.2f} s each ({each}), {size:.0f} MiB {grown}"
        ]
