"""Kills runs at random moments, continues them, and compares them with undisturbed ones.

python scripts/kill_test.py OUT_DIR

For each algorithm one run is left alone and another is killed (SIGKILL) again and again: while it
generates, while it updates, while it writes a checkpoint, and at any time. Weights, optimizers,
schedules, the prompt cursor, metrics, samples and every generated token must be the same in the
end. OUT_DIR/results.jsonl gets one line an algorithm; what is there already is not done again.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lit_reason.checkpoints import Checkpoints
from lit_reason.cli import run
from lit_reason.jsonl import append_rows, read_rows
from lit_reason.stopping import StopSignals

ROOT = Path(__file__).parents[1]
# what an algorithm's configuration has no state of, so that all kinds of state are killed
EXTRA = {
    "ppo": ["--model.kl_in_reward=0.01"],
    "grpo": ["--model.reference_refresh=3"],
    "dapo": ["--data.max_rounds=3"],
    "vc_ppo": ["--callbacks.value_warmup.rollouts=3"],
    "vapo": ["--callbacks.value_warmup.rollouts=3", "--data.group_filter=DropUniform"],
}
SIZES = [
    "--data.groups_per_rollout=4",
    "--data.group_size=4",
    "--data.rollouts_per_epoch=2",
    "--data.task.n_max=4",
    "--data.val_task.n_max=3",
    "--data.val_task.limit=6",
    "--data.val_samples=2",
    "--data.sampling.max_new_tokens=32",
    "--model.update.minibatch_size=8",
    "--model.update.micro_batch_size=4",
    "--trainer.check_val_every_n_epoch=1",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
]
SMALL = [
    *SIZES,
    "--model.actor_optimizer.lr=3e-3",
    "--model.actor_scheduler=torch.optim.lr_scheduler.LinearLR",
    "--callbacks.samples=SampleTable",
    "--callbacks.samples.every_n_rollouts=1",
    "--callbacks.recorder=RolloutRecorder",
]
MOMENTS = {"rollout": 0.3, "update": 0.1, "writing": 0.008}  # seconds within which to kill
DOING = ("starting", "rollout", "scoring", "update", "validation", "writing")
STATE = (
    "state_dict",
    "optimizer_states",
    "lr_schedulers",
    "policy_version",
    "stepped",
    "nonfinite",
    "RolloutDataModule",
    "global_step",
    "epoch",
)
CLOCKS = {"time/rollout", "tokens_per_second"}


@dataclass(frozen=True)
class Kill:
    """When to kill a run.

    Attributes:
        moment: A key of `MOMENTS`, or "anywhere".
        count: How often the moment has come by then.
        delay: Seconds after that.
        number: The signal.
    """

    moment: str
    count: int
    delay: float
    number: int = signal.SIGKILL


def random_kill(source: random.Random, moment: str) -> Kill:
    """A kill at a random place of what a run does within its next rollouts."""
    if moment == "anywhere":
        return Kill(moment, 1, source.uniform(0, 8))
    return Kill(moment, source.randint(1, 3), source.uniform(0, MOMENTS[moment]))


def arguments(algorithm: str, rollouts: int) -> list[str]:
    """The command line of a small run with many kinds of state."""
    layers = [f"{algorithm}.yaml", "scale/tiny.yaml"]
    configs = [f"--config={ROOT / 'configs' / layer}" for layer in layers]
    return [*configs, *SMALL, *EXTRA[algorithm], f"--trainer.max_epochs={rollouts // 2}"]


def _child(args: list[str], kill: Kill | None, doing: Any) -> None:
    """A run in a process of its own, which notes what it does."""
    os.environ.pop("PL_GLOBAL_SEED", None)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    seen = Counter[str]()

    def now(what: str) -> None:
        doing.value = DOING.index(what)
        seen[what] += 1
        if kill and (what, seen[what]) == (kill.moment, kill.count):
            signal_in(kill)

    if kill and kill.moment == "anywhere":
        signal_in(kill)
    on_stage, save = StopSignals.on_stage, Checkpoints.save_checkpoint
    StopSignals.on_stage = lambda self, trainer, stage: (now(stage), on_stage(self, trainer, stage))  # type: ignore[method-assign]
    Checkpoints.save_checkpoint = lambda *a, **k: (now("writing"), save(*a, **k))  # type: ignore[method-assign]
    run(args)


def signal_in(kill: Kill) -> None:
    """Sends this process the signal soon, whatever it does by then."""
    timer = threading.Timer(kill.delay, os.kill, (os.getpid(), kill.number))
    timer.daemon = True
    timer.start()


def start(run_dir: Path, args: list[str], kill: Kill | None = None) -> tuple[int, str]:
    """Starts a run or continues it.

    Returns:
        Its exit status, negative for a signal, and what it was doing in the end.
    """
    last = run_dir / "checkpoints" / "last.ckpt"
    if not last.exists():  # killed before there was anything to continue from
        shutil.rmtree(run_dir, ignore_errors=True)
    going_on = [f"--ckpt_path={last}"] if last.exists() else []
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lit_reason.cli"])
    doing = context.Value("i", 0)
    command = ["fit", *args, f"--run_dir={run_dir}", *going_on]
    process = context.Process(target=_child, args=(command, kill, doing))
    process.start()
    process.join()
    return process.exitcode, DOING[doing.value]


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """Where two states differ."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        parts = [(key, a[key], b[key]) for key in a]
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        parts = list(zip(range(len(a)), a, b, strict=True))
    else:
        if not equal(a, b):
            yield where
        return
    for key, x, y in parts:
        yield from differences(x, y, f"{where}/{key}")


def equal(a: Any, b: Any) -> bool:
    """Whether two values are the same, bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    return a == b or (a != a and b != b)


def compare(whole: Path, other: Path, rollouts: int) -> list[str]:
    """Where a run differs from an undisturbed one.

    Args:
        whole: Folder of the undisturbed run.
        other: Folder of the other one.
        rollouts: Their length.
    """
    saved = [torch.load(d / "checkpoints" / "last.ckpt", weights_only=True) for d in (whole, other)]
    found = [x for key in STATE for x in differences(saved[0][key], saved[1][key], key)]
    rows = [metrics(folder) for folder in (whole, other)]
    found += differences(rows[0], rows[1], "metrics.csv")
    counted = [float(row["rollout"]) for row in rows[1] if row["reward"]]
    if counted != list(range(1, rollouts + 1)):
        found.append(f"metrics.csv: rollouts {counted}")
    for file in ("samples.jsonl", "rollouts.jsonl"):
        if (whole / file).read_bytes() != (other / file).read_bytes():
            found.append(file)
    return found


def metrics(run_dir: Path) -> list[dict[str, str]]:
    """The rows of `metrics.csv`, without what a clock says."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in CLOCKS} for row in csv.DictReader(file)]


def torture(folder: Path, algorithm: str, kills: list[Kill], rollouts: int) -> dict[str, Any]:
    """Runs an algorithm undisturbed and disturbed.

    Args:
        folder: Where both runs go.
        algorithm: Name of its configuration.
        kills: One a start; those that come after the end of the run do nothing.
        rollouts: Length of the runs, even.

    Returns:
        A row of `results.jsonl`.
    """
    args = arguments(algorithm, rollouts)
    whole, other = folder / f"{algorithm}_whole", folder / f"{algorithm}_killed"
    for run_dir in (whole, other):
        shutil.rmtree(run_dir, ignore_errors=True)
    check(start(whole, args)[0])
    died: list[str] = []
    for kill in [*kills, None]:
        status, doing = start(other, args, kill)
        if status != -signal.SIGKILL:
            check(status)
            break
        died.append(doing)
    return {"algorithm": algorithm, "killed": died, "differences": compare(whole, other, rollouts)}


def check(status: int) -> None:
    """Ends the script if a run failed of itself; what it said is above."""
    if status != 0:
        raise SystemExit(f"a run ended with status {status}")


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--algorithms", nargs="+", default=list(EXTRA), choices=EXTRA)
    parser.add_argument("--kills", type=int, default=5, help="of each algorithm")
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(args)
    results = given.out / "results.jsonl"
    done = [row["algorithm"] for row in read_rows(results)] if results.exists() else []
    for algorithm in given.algorithms:
        if algorithm not in done:
            source = random.Random(f"{given.seed} {algorithm}")
            moments = [*MOMENTS, "anywhere"]
            kills = [random_kill(source, moments[i % 4]) for i in range(given.kills)]
            append_rows(results, [torture(given.out, algorithm, kills, given.rollouts)])
    rows = list(read_rows(results))
    for row in rows:
        print(f"{row['algorithm']}: killed {len(row['killed'])} times ({row['killed']}), ", end="")
        print(f"differences: {row['differences'] or 'none'}")
    if any(row["differences"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
