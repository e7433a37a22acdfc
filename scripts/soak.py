"""A long run with faults: memory must stay flat, nothing may leak, and the curve must not suffer.

python scripts/soak.py OUT_DIR

Runs the quickstart configuration twice, undisturbed and with random faults: rollouts in which
every response is cut off, updates in which the losses are not finite, and restarts after SIGTERM
and SIGKILL. Prints what was measured and ends with status 1 if a limit is broken. Called again it
continues. 500 rollouts take about half an hour a run on one core; Linux only.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from lit_reason.batch import RolloutBatch  # noqa: E402
from lit_reason.files import write_text  # noqa: E402
from lit_reason.jsonl import append_rows, read_rows  # noqa: E402
from scripts.kill_test import Kill, check, start  # noqa: E402

WARM = 10  # rollouts of each process until its memory is what it will be
MEMORY = 0.05  # largest relative change of the resident memory
HANDLES = 2  # most more open files at the end than at the beginning
ACCURACY = 0.05  # largest loss of held-out accuracy
PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(Callback):
    """Appends memory, open files and child processes to `RUN_DIR/usage.jsonl` after a rollout."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Measures."""
        module: Any = pl_module
        row = {"rollout": module.policy_version, "process": os.getpid(), **usage()}
        append_rows(Path(trainer.default_root_dir, "usage.jsonl"), [row])


def usage() -> dict[str, int]:
    """Of this process: resident bytes, open files, child processes."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    return {
        "memory": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
        "handles": len(os.listdir("/proc/self/fd")),
        "children": len(children.read_text().split()) if children.exists() else 0,
    }


class Faults(Callback):
    """Spoils some rollouts, the same ones whenever they are repeated.

    Args:
        seed: Which.
        rate: Probability of each fault.
    """

    def __init__(self, seed: int = 0, rate: float = 0.03) -> None:
        self.seed, self.rate = seed, rate
        self.healthy: dict[str, torch.Tensor] = {}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        """Cuts every response off, or makes the losses not finite."""
        module: Any = pl_module
        chance = random.Random(f"{self.seed} {module.policy_version}").random() / self.rate
        if chance < 1:
            batch.truncated[:] = True
            batch.loss_mask[:] = False
        elif chance < 2:
            self.healthy = {k: v.clone() for k, v in module.actor.state_dict().items()}
            next(module.actor.parameters()).data.fill_(torch.nan)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Heals the weights."""
        module: Any = pl_module
        if self.healthy:
            module.actor.load_state_dict(self.healthy)
            self.healthy = {}


def disturb(run_dir: Path, args: list[str], seed: int, longest: int, delay: float) -> int:
    """Runs with faults to the end, continuing after each signal.

    Args:
        run_dir: Folder of the run.
        args: Its command line.
        seed: Of the faults.
        longest: Rollouts between two signals.
        delay: Most seconds after the beginning of an update.

    Returns:
        The number of signals.
    """
    source = random.Random(seed)
    faults = ["--callbacks.faults=scripts.soak.Faults", f"--callbacks.faults.seed={seed}"]
    for signals in range(10**6):
        after, number = source.randint(2, longest), source.choice([signal.SIGKILL, signal.SIGTERM])
        kill = Kill("update", after, source.uniform(0, delay), number)
        status, _ = start(run_dir, [*args, *faults], kill)
        if status not in (-signal.SIGKILL, 128 + signal.SIGTERM):
            check(status)
            return signals
    raise AssertionError("unreachable")


def leaks(run_dir: Path) -> list[str]:
    """What grew in a process of the run, between the first and the last third of its life."""
    lives: dict[int, list[dict[str, int]]] = {}
    for row in read_rows(run_dir / "usage.jsonl"):
        lives.setdefault(row["process"], []).append(row)
    found = []
    for life in (life[WARM:] for life in lives.values()):
        if third := len(life) // 3:
            found += growth(middle(life[:third]), middle(life[-third:]))
    return found


def middle(rows: list[dict[str, int]]) -> dict[str, float]:
    """The median of each column."""
    return {key: median(row[key] for row in rows) for key in rows[0]}


def growth(early: dict[str, float], late: dict[str, float]) -> list[str]:
    """What is larger than it may be."""
    limits = {"handles": HANDLES, "children": 0}
    found = [f"{k} {early[k]} -> {late[k]}" for k, n in limits.items() if late[k] > early[k] + n]
    if abs(late["memory"] / early["memory"] - 1) > MEMORY:
        found.append(f"memory {early['memory']} -> {late['memory']}")
    return found


def curve(run_dir: Path) -> dict[str, float]:
    """Rollouts logged, mean reward of the last fifth, and the last held-out accuracy."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rewards = [float(row["reward"]) for row in rows if row["reward"]]
    accuracy = [float(row["val/accuracy"]) for row in rows if row["val/accuracy"]]
    return {
        "rollouts": len(rewards),
        "reward": fmean(rewards[-max(len(rewards) // 5, 1) :]),
        "accuracy": accuracy[-1],
    }


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--rollouts", type=int, default=500, help="a multiple of 10")
    parser.add_argument("--longest", type=int, default=100, help="rollouts between two signals")
    parser.add_argument("--delay", type=float, default=2, help="seconds of an update and after")
    parser.add_argument("--seed", type=int, default=0)
    given, extra = parser.parse_known_args(args)
    settings = [f"--config={ROOT / 'configs' / 'quickstart.yaml'}", *extra]
    settings += [f"--trainer.max_epochs={given.rollouts // 10}"]
    settings += ["--trainer.enable_progress_bar=false", "--callbacks.usage=scripts.soak.Usage"]
    whole, soaked = given.out / "undisturbed", given.out / "soaked"
    check(start(whole, settings)[0])
    signals = disturb(soaked, settings, given.seed, given.longest, given.delay)
    curves = [curve(whole), curve(soaked)]
    broken = [*leaks(whole), *leaks(soaked)]
    if curves[0]["rollouts"] != curves[1]["rollouts"]:
        broken.append("rollouts lost or doubled")
    if curves[1]["accuracy"] < curves[0]["accuracy"] - ACCURACY:
        broken.append("held-out accuracy")
    report = {"undisturbed": curves[0], "soaked": curves[1], "signals": signals, "broken": broken}
    write_text(given.out / "report.json", json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    if broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
