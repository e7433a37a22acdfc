"""Peak memory of one rollout and its update: all weights, LoRA on two bases, LoRA on one.

    python scripts/get_smollm2.py smollm2
    python scripts/benchmark_lora_memory.py smollm2          tens of minutes on two CPU cores

Each way is one `fit` in a process of its own, with the same prompts, seed and sizes. Counted is the
resident memory from the first prompt to the last optimizer step, without that of loading the model;
the weights are float32. Linux only.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_reason.cli import run

ROOT = Path(__file__).parents[1]
LORA = ["--model.backbone=LoRA", "--model.backbone.base=Pretrained"]
WAYS: dict[str, tuple[str, list[str]]] = {
    "VAPO, all weights": ("vapo", ["--model.backbone=Pretrained"]),
    "VAPO, LoRA, two bases": ("vapo", [*LORA, "--model.backbone.share=false"]),
    "VAPO, LoRA, one base": ("vapo", LORA),
    "GRPO, LoRA": ("grpo", LORA),
}
MIB = 2**20


class Peak(Callback):
    """Measures from the first prompt to the end of the update."""

    megabytes: float = 0.0
    seconds: float = 0.0
    numbers: int = 0
    tokens: int = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts."""
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of loading
        self.numbers = sum(p.numel() for p in pl_module.parameters() if p.requires_grad)
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Ends."""
        self.megabytes = resident("VmHWM")
        self.seconds = time.perf_counter() - self.started
        self.tokens = int(args[1].response_mask.sum())


def resident(what: str) -> float:
    """MiB that this process holds (VmRSS), or held at most (VmHWM)."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


def measure(way: str, args: argparse.Namespace) -> dict[str, float]:
    """Runs one way; MiB, seconds and counts."""
    algorithm, backbone = WAYS[way]
    warmup = ["--callbacks.value_warmup=null"] if algorithm == "vapo" else []
    before = resident("VmRSS")
    place = "model.backbone.base" if backbone[1:] else "model.backbone"
    with tempfile.TemporaryDirectory() as folder:
        trained = run(
            [
                "fit",
                f"--config={ROOT}/configs/{algorithm}.yaml",
                f"--config={ROOT}/configs/scale/tiny.yaml",
                *backbone,
                f"--{place}.path={args.model}",
                f"--{place}.gradient_checkpointing={args.gradient_checkpointing}",
                *([f"--model.backbone.r={args.rank}"] if backbone[1:] else []),
                *warmup,
                f"--threads={args.threads}",
                "--data.groups_per_rollout=2",
                "--data.group_size=4",
                "--data.rollouts_per_epoch=1",
                f"--data.sampling.max_new_tokens={args.tokens}",
                "--trainer.limit_val_batches=0",
                "--model.update.minibatch_size=4",
                f"--model.update.micro_batch_size={args.micro_batch_size}",
                "--trainer.max_epochs=1",
                "--trainer.enable_progress_bar=false",
                "--trainer.enable_model_summary=false",
                "--callbacks.peak=benchmark_lora_memory.Peak",
                f"--run_dir={folder}/run",
            ]
        )
        checkpoint = Path(folder, "run", "checkpoints", "last.ckpt").stat().st_size / MIB
    callbacks: Any = trained.trainer.callbacks  # type: ignore[attr-defined]
    peak = next(c for c in callbacks if type(c).__name__ == "Peak")
    return {**vars(peak), "libraries": before, "checkpoint": checkpoint}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("model", help="folder or hub id")
    parser.add_argument("--tokens", type=int, default=64, help="longest response")
    parser.add_argument("--micro_batch_size", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    print("| | trained numbers | peak MiB | of it libraries | checkpoint MiB | tokens | seconds |")
    print("|---|---|---|---|---|---|---|")
    for way in args.ways:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            got = pool.apply(measure, (way, args))
        print(
            f"| {way} | {got['numbers'] / 1e6:.1f} M | {got['megabytes']:.0f} | "
            f"{got['libraries']:.0f} | {got['checkpoint']:.1f} | {got['tokens']} | "
            f"{got['seconds']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
