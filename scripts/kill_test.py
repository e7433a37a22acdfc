"""Kills runs at random moments, continues them, and compares them with undisturbed ones.

python scripts/kill_test.py OUT_DIR

For each algorithm one run is left alone and another is killed (SIGKILL) again and again: first
before it has a checkpoint, then while it writes one, generates, updates, evaluates or starts.
Moments are random within rollouts and shares of what a moment lasts, so that they are the same on
every machine. Weights, optimizers, schedules, the prompt cursor, metrics, samples and every
generated token must be the same in the end.

It fails too if it proved nothing: where an algorithm went on from a checkpoint less often than half
of its kills (once at least), or where no kill of all cut a checkpoint off while an earlier one was
there. OUT_DIR/results.jsonl gets one line an algorithm; what is there already is not done again.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lit_reason.checkpoints import Checkpoints
from lit_reason.cli import run
from lit_reason.files import PARTIAL, _Remembering
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
DOING = ("starting", "rollout", "scoring", "update", "validation", "writing", "ending")
MOMENTS = ("starting", "rollout", "scoring", "update", "validation")
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
        moment: "writing", or one of `MOMENTS`.
        count: How often the moment has come by then, in this process.
        delay: Seconds after that; of "writing", the share of the file that is written by then.
        number: The signal.
        rollout: Moments before so many rollouts have trained do not count, but for "starting".
    """

    moment: str
    count: int
    delay: float
    number: int = signal.SIGKILL
    rollout: int = 0


def plan(source: random.Random, kills: int, rollouts: int) -> list[Kill]:
    """Kills spread over a run, one a start, with shares of the moment as delays.

    Args:
        source: Draws them.
        kills: Their number.
        rollouts: Length of the run; an epoch of two ends with checkpoints.
    """
    others = source.sample(MOMENTS, len(MOMENTS))
    if others[0] == "starting":  # there would be nothing yet to continue from
        others.reverse()
    later = (min(3, rollouts - 2), rollouts - 2)  # there is an earlier checkpoint, and work is left
    drawn = []
    for i, place in enumerate(sorted(source.randint(*later) for _ in range(kills))):
        moment = "writing" if (kills - i) % 2 else others[i // 2 % len(others)]
        count = source.randint(1, 2) if moment == "writing" else 1  # of the files of an epoch
        drawn.append(Kill(moment, count, source.random(), rollout=place))
    if kills > 2:
        drawn[0] = Kill(source.choice(("rollout", "update", "writing")), 1, source.random())
    return drawn


def arguments(algorithm: str, rollouts: int) -> list[str]:
    """The command line of a small run with many kinds of state."""
    layers = [f"{algorithm}.yaml", "scale/tiny.yaml"]
    configs = [f"--config={ROOT / 'configs' / layer}" for layer in layers]
    return [*configs, *SMALL, *EXTRA[algorithm], f"--trainer.max_epochs={rollouts // 2}"]


class Notes:
    """What a run does and has done, which outlives its process.

    Args:
        context: Of `multiprocessing`.
    """

    def __init__(self, context: Any) -> None:
        self.now = context.Value("i", 0)
        self.rollout = context.Value("i", 0)  # how many have trained
        self.trains = context.Value("b", False)  # it has begun to
        self.seconds = context.Array("d", len(DOING))
        self.times = context.Array("i", len(DOING))

    @property
    def doing(self) -> str:
        """What it did last."""
        return DOING[self.now.value]

    def lasts(self, moment: str) -> float:
        """Seconds that a moment took, on the average."""
        i = DOING.index(moment)
        return self.seconds[i] / max(self.times[i], 1)


class Watch:
    """Notes what a run does, from inside, and kills it when the time has come."""

    def __init__(self, notes: Notes, kill: Kill | None) -> None:
        self.notes, self.kill = notes, kill
        self.seen, self.since = 0, time.monotonic()
        self.left = math.inf  # bytes to write until the end
        notes.times[0] = 1
        if kill and kill.moment == "starting":
            self.enter("starting")

    def enter(self, what: str) -> None:
        """Another moment begins."""
        self.leave()
        self.notes.now.value = DOING.index(what)
        self.notes.times[self.notes.now.value] += what != "starting"
        kill = self.kill
        if kill and what == kill.moment and (what == "starting" or self.reached(kill)):
            self.seen += 1
            if self.seen == kill.count and what != "writing":
                signal_in(kill)

    def reached(self, kill: Kill) -> bool:
        """Whether the run is as far as the kill wants it."""
        return self.notes.rollout.value >= kill.rollout

    def leave(self) -> None:
        """The moment is over."""
        now = time.monotonic()
        self.notes.seconds[self.notes.now.value] += now - self.since
        self.since = now

    def on_stage(self, trainer: Any, stage: str) -> None:
        """Hears of a stage of the run."""
        self.notes.rollout.value = trainer.lightning_module.policy_version
        self.notes.trains.value |= stage == "rollout" and trainer.training
        self.enter(stage)

    def save(self, write: Callable[[], None], path: Path) -> None:
        """Writes a checkpoint."""
        self.enter("writing")
        kill = self.kill
        if kill and kill.moment == "writing" and self.seen == kill.count:
            earlier = [p.stat().st_size for p in path.parent.glob("*.ckpt")]
            self.left = kill.delay * max(earlier, default=2**19)
        write()
        if kill and self.left < math.inf:  # the file was smaller than the earlier ones
            os.kill(os.getpid(), kill.number)
        self.enter("ending")

    def count(self, size: int) -> None:
        """Bytes are about to be written."""
        self.left -= size
        if self.kill and self.left <= 0:
            os.kill(os.getpid(), self.kill.number)


def _child(args: list[str], kill: Kill | None, notes: Notes) -> None:
    """A run in a process of its own, which notes what it does."""
    os.environ.pop("PL_GLOBAL_SEED", None)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    watch = Watch(notes, kill)
    on_stage, save, write = StopSignals.on_stage, Checkpoints.save_checkpoint, _Remembering.write
    StopSignals.on_stage = lambda self, *a: (watch.on_stage(*a), on_stage(self, *a))  # type: ignore[method-assign]
    Checkpoints.save_checkpoint = lambda self, data, path, *a, **k: watch.save(  # type: ignore[method-assign]
        lambda: save(self, data, path, *a, **k), Path(path)
    )
    _Remembering.write = lambda self, data: (watch.count(len(data)), write(self, data))[1]  # type: ignore[method-assign]
    run(args)
    watch.leave()


def signal_in(kill: Kill) -> None:
    """Sends this process the signal soon, whatever it does by then."""
    timer = threading.Timer(kill.delay, os.kill, (os.getpid(), kill.number))
    timer.daemon = True
    timer.start()


def start(run_dir: Path, args: list[str], kill: Kill | None = None) -> tuple[int, Notes]:
    """Starts a run or continues it.

    Returns:
        Its exit status, negative for a signal, and what it did.
    """
    last = last_checkpoint(run_dir)
    if not last.exists():  # killed before there was anything to continue from
        shutil.rmtree(run_dir, ignore_errors=True)
    going_on = [f"--ckpt_path={last}"] if last.exists() else []
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lit_reason.cli"])
    notes = Notes(context)
    command = ["fit", *args, f"--run_dir={run_dir}", *going_on]
    process = context.Process(target=_child, args=(command, kill, notes))
    process.start()
    process.join()
    return process.exitcode, notes


def last_checkpoint(run_dir: Path) -> Path:
    """What a run continues from."""
    return run_dir / "checkpoints" / "last.ckpt"


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
    saved = [torch.load(last_checkpoint(d), weights_only=True) for d in (whole, other)]
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


def torture(
    folder: Path, algorithm: str, kills: list[Kill], rollouts: int, extra: Sequence[str] = ()
) -> dict[str, Any]:
    """Runs an algorithm undisturbed and disturbed.

    Args:
        folder: Where both runs go.
        algorithm: Name of its configuration.
        kills: One a start; those that come after the end of the run do nothing. Their delays are
            shares of what the moment lasts in the undisturbed run.
        rollouts: Length of the runs, even.
        extra: More of the command line.

    Returns:
        A row of `results.jsonl`; `resumed` counts starts that trained on from a checkpoint.
    """
    args = [*arguments(algorithm, rollouts), *extra]
    whole, other = folder / f"{algorithm}_whole", folder / f"{algorithm}_killed"
    for run_dir in (whole, other):
        shutil.rmtree(run_dir, ignore_errors=True)
    status, timed = start(whole, args)
    check(status)
    died: list[dict[str, Any]] = []
    resumed = 0
    for kill in [*kills, None]:
        if kill and kill.moment != "writing":
            kill = replace(kill, delay=kill.delay * timed.lasts(kill.moment))
        going_on = last_checkpoint(other).exists()
        status, notes = start(other, args, kill)
        resumed += going_on and notes.trains.value
        if status != -signal.SIGKILL:
            check(status)
            break
        there = last_checkpoint(other).exists()
        cut = notes.doing == "writing" and any(last_checkpoint(other).parent.glob(f".*{PARTIAL}"))
        place = {"doing": notes.doing, "rollout": notes.rollout.value}
        died.append({**place, "last": there, "cut": cut})
    row = {"algorithm": algorithm, "planned": len(kills), "kills": died, "resumed": resumed}
    return {**row, "differences": compare(whole, other, rollouts)}


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """What a kill test found, or did not prove.

    Args:
        rows: Of `results.jsonl`.
    """
    found = []
    for row in rows:
        name, needed = row["algorithm"], max(row["planned"] // 2, 1)
        if row["differences"]:
            found.append(f"{name}: differs in {', '.join(row['differences'])}")
        if row["resumed"] < needed:
            found.append(f"{name}: went on from a checkpoint {row['resumed']} times of {needed}")
    if not any(kill["cut"] and kill["last"] for row in rows for kill in row["kills"]):
        found.append("no kill cut a checkpoint off while an earlier one was there")
    return found


def show(row: dict[str, Any]) -> None:
    """Prints the kills of an algorithm."""
    print(f"{row['algorithm']}: killed {len(row['kills'])} times, ", end="")
    print(f"went on from a checkpoint {row['resumed']} times, ", end="")
    print(f"differences: {', '.join(row['differences']) or 'none'}")
    for i, kill in enumerate(row["kills"], 1):
        there = "last.ckpt is there" if kill["last"] else "no last.ckpt"
        cut = ", a checkpoint is cut off" if kill["cut"] else ""
        print(f"  {i:3} {kill['doing']:<10} after {kill['rollout']} rollouts, {there}{cut}")


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
    parser.add_argument("--rollouts", type=int, default=8, help="even, 4 or more")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(args)
    results = given.out / "results.jsonl"
    done = [row["algorithm"] for row in read_rows(results)] if results.exists() else []
    for algorithm in given.algorithms:
        if algorithm not in done:
            source = random.Random(f"{given.seed} {algorithm}")
            kills = plan(source, given.kills, given.rollouts)
            append_rows(results, [torture(given.out, algorithm, kills, given.rollouts)])
    rows = list(read_rows(results))
    for row in rows:
        show(row)
    if found := failures(rows):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
