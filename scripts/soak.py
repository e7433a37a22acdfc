"""A long run with faults: memory must stay flat, nothing may leak, and the curve must not suffer.

python scripts/soak.py OUT_DIR

Runs the quickstart configuration twice, undisturbed and with random faults: rollouts in which every
response is cut off, is empty or gets no reward, updates in which the losses are not finite, and
restarts after SIGTERM and SIGKILL. Its task is judged without worker processes: what happens when
one dies is in `tests/test_verifier_pool.py`. Prints what was measured and ends with status 1 if a
limit is broken or a measurement is missing: no process lived long enough, no signal came, or a kind
of fault never did. The limits of the curve are for 500 rollouts: a shorter run is still learning,
and behind where it lost updates. Called again it continues. 500 rollouts take about half an hour a
run on one core; Linux only.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from lit_reason.batch import Prompt, Response, RolloutBatch  # noqa: E402
from lit_reason.files import write_text  # noqa: E402
from lit_reason.jsonl import append_rows, read_rows  # noqa: E402
from lit_reason.rewards import Correctness  # noqa: E402
from lit_reason.rollout import HFEngine, Sampling  # noqa: E402
from lit_reason.verdict import Verdict  # noqa: E402
from scripts.kill_test import Kill, check, start  # noqa: E402

WARM = 12  # rollouts of each process until its memory is what it will be
LONG = 3 * WARM  # rollouts that some process has to live
MEMORY = 0.05  # largest relative change of the resident memory, in a process and over all of them
HANDLES = 2  # most more open files at the end than at the beginning, of a process or all together,
SLOPE = 0.02  # unless it is less a rollout
# largest differences to the undisturbed run, either way: three times the noise after 500 rollouts
ACCURACY = 0.03
REWARD = 0.08
GRACE = 10  # seconds within which the processes of a run that ended have to end too
PAGE = os.sysconf("SC_PAGE_SIZE")
MARK = "LIT_REASON_SOAK"  # is in the environment of every process that comes from a run
KINDS = ("truncated", "not finite", "unscored", "empty")


def fault(seed: int, rate: float, rollout: int) -> str | None:
    """What goes wrong in a rollout, the same whenever it is repeated.

    Args:
        seed: Which.
        rate: Probability of each kind.
        rollout: How many have trained.
    """
    kind = int(random.Random(f"{seed} {rollout}").random() / rate)
    return KINDS[kind] if kind < len(KINDS) else None


class Usage(Callback):
    """Appends memory, open files and child processes to `RUN_DIR/usage.jsonl` after a rollout.

    Args:
        mark: What processes that it starts are known by.
    """

    def __init__(self, mark: str) -> None:
        os.environ[MARK] = mark

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
    """Spoils some rollouts.

    Args:
        seed: Which.
        rate: Probability of each kind of fault.
    """

    def __init__(self, seed: int, rate: float) -> None:
        self.seed, self.rate = seed, rate
        self.healthy: dict[str, torch.Tensor] = {}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        """Cuts every response off, or makes the losses not finite."""
        module: Any = pl_module
        kind = fault(self.seed, self.rate, module.policy_version)
        if kind == "truncated":
            batch.truncated[:] = True
            batch.loss_mask[:] = False
        elif kind == "not finite":
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


class Unscored(Correctness):
    """Gives no reward, or nan for one, in some rollouts.

    Args:
        seed: Which.
        rate: Their share.
    """

    def __init__(self, seed: int, rate: float) -> None:
        super().__init__()
        self.seed, self.rate = seed, rate
        self.module: Any = None

    def bind(self, module: Any) -> None:
        """Remembers the module, which counts rollouts."""
        self.module = module

    def __call__(
        self, prompt: Prompt, responses: list[Response], verdicts: list[Verdict]
    ) -> list[float | None]:
        """The verdicts, or nothing, or nan in every other rollout."""
        version = self.module.policy_version
        silent = fault(self.seed, self.rate, version) == "unscored"
        if silent and self.module.trainer.training:
            return [math.nan if version % 2 else None] * len(responses)
        return super().__call__(prompt, responses, verdicts)


class Empty(HFEngine):
    """Answers with nothing but the end in some rollouts.

    Args:
        micro_batch_size: Responses generated at once.
        seed: Which.
        rate: Their share.
    """

    def __init__(self, micro_batch_size: int, seed: int, rate: float) -> None:
        super().__init__(micro_batch_size)
        self.seed, self.rate = seed, rate

    def generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        """See `HFEngine.generate`."""
        kind = fault(self.seed, self.rate, self.module.policy_version)
        if kind == "empty" and self.module.trainer.training:
            nothing = Response((self.module.backbone.tokenizer.eos_token_id,), "", truncated=False)
            return [[nothing] * samples for _ in prompts]
        return super().generate(prompts, samples, sampling, seed)


def disturb(
    out: Path, args: list[str], seed: int, rate: float, longest: int, delay: float
) -> list[dict[str, Any]]:
    """Runs with faults to the end, continuing after each signal.

    Args:
        out: The run is in its folder `soaked`; `lives.jsonl` gets a row for each process of it.
        args: Its command line.
        seed: Of the faults.
        rate: Probability of each kind of fault in a rollout.
        longest: Rollouts between two signals.
        delay: Most seconds after the beginning of an update.

    Returns:
        The rows: how each process ended, and what it left running.
    """
    size = "--data.engine.micro_batch_size=128"
    faults = ["--callbacks.faults=scripts.soak.Faults", "--data.engine=scripts.soak.Empty", size]
    faults += ["--data.rewards.correctness=scripts.soak.Unscored"]
    for part in ("callbacks.faults", "data.engine", "data.rewards.correctness"):
        faults += [f"--{part}.seed={seed}", f"--{part}.rate={rate}"]
    path = out / "lives.jsonl"
    lives = list(read_rows(path)) if path.exists() else []
    while not lives or lives[-1]["status"] != 0:
        source = random.Random(f"{seed} {len(lives)}")
        after, number = source.randint(2, longest), source.choice([signal.SIGKILL, signal.SIGTERM])
        kill = Kill("update", after, source.uniform(0, delay), number)
        status, _ = start(out / "soaked", [*args, *faults], kill)
        if status not in (-signal.SIGKILL, 128 + signal.SIGTERM):
            check(status)
        lives.append({"status": status, "left": end_orphans(os.environ[MARK])})
        append_rows(path, lives[-1:])
    return lives


def end_orphans(mark: str, grace: float = GRACE) -> list[str]:
    """Ends what runs have left, and says what it was.

    Args:
        mark: In the environment of every process that comes from them.
        grace: Seconds for it to end of itself.
    """
    until = time.monotonic() + grace
    while (found := marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return list(found.values())


def marked(mark: str) -> dict[int, str]:
    """Number and command line of the processes with a mark, but for this one and its children."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if os.getpid() not in (int(folder.name), parent):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    found[int(folder.name)] = line
    return found


def lives_of(run_dir: Path) -> list[list[dict[str, int]]]:
    """What each process of a run measured, without what it took to get warm."""
    lives: dict[int, list[dict[str, int]]] = {}
    for row in read_rows(run_dir / "usage.jsonl"):
        lives.setdefault(row["process"], []).append(row)
    return [life[WARM:] for life in lives.values() if len(life) > WARM]


def leaks(run_dir: Path, faulty: Set[int] = frozenset()) -> list[str]:
    """What grew in a process of the run, from one to the next, or a little in all of them.

    Args:
        run_dir: Its folder.
        faulty: Rollouts in which something went wrong.
    """
    lives = lives_of(run_dir)
    longest = max((WARM + len(life) for life in lives), default=0)
    if longest < LONG:
        return [f"no process lived {LONG} rollouts, so that none could be measured"]
    found = []
    for life in lives:
        if third := len(life) // 3:
            found += growth(middle(life[:third]), middle(life[-third:]))
    if third := len(lives) // 3:  # at equal age
        first = [life[0]["memory"] for life in lives]
        found += [f"{x} from process to process" for x in drift(first[:third], first[-third:])]
    steps = [pair for life in lives for pair in pairwise(life)]
    of_faults = [(a, b) for a, b in steps if b["rollout"] - 1 in faulty]
    for what, pairs, limit in (("rollout", steps, SLOPE), ("fault", of_faults, 0.5)):
        grown = sum(b["handles"] - a["handles"] for a, b in pairs)
        if grown > max(HANDLES, limit * len(pairs)):
            found.append(f"handles {grown} more in {len(pairs)} rollouts, by {what}")
    return found


def middle(rows: list[dict[str, int]]) -> dict[str, float]:
    """The median of each column."""
    return {key: median(row[key] for row in rows) for key in rows[0]}


def growth(early: dict[str, float], late: dict[str, float]) -> list[str]:
    """What is larger than it may be."""
    limits = {"handles": HANDLES, "children": 0}
    found = [f"{k} {early[k]} -> {late[k]}" for k, n in limits.items() if late[k] > early[k] + n]
    return found + drift([early["memory"]], [late["memory"]])


def drift(early: Sequence[float], late: Sequence[float]) -> list[str]:
    """The change of the memory, if it is larger than it may be."""
    a, b = median(early), median(late)
    return [f"memory {a} -> {b}"] if abs(b / a - 1) > MEMORY else []


def rows_of(run_dir: Path) -> list[dict[str, str]]:
    """The rows of `metrics.csv`."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def faults_of(run_dir: Path, seed: int, rate: float) -> dict[str, set[int]]:
    """The rollouts in which a run counted each kind of fault that it was given.

    Args:
        run_dir: Folder of the run.
        seed: Of the faults.
        rate: Probability of each kind.
    """
    signs: dict[str, Callable[[float], bool]] = {
        "truncated": lambda share: share == 1,
        "update/nonfinite_actor": lambda steps: steps > 0,
        "reward/unscored": lambda share: share == 1,
        "response_length_max": lambda length: length == 1,
    }
    found: dict[str, set[int]] = {kind: set() for kind in KINDS}
    for row in rows_of(run_dir):
        for kind, (column, is_sign) in zip(KINDS, signs.items(), strict=True):
            seen = is_sign(float(row.get(column) or "nan"))
            if seen and fault(seed, rate, trained(row)) == kind:
                found[kind].add(trained(row))
    return found


def trained(row: dict[str, str]) -> int:
    """How many rollouts had trained before that of the row."""
    return int(float(row["rollout"])) - 1


def curve(run_dir: Path, without: Set[int] = frozenset()) -> dict[str, float]:
    """Rollouts logged, mean reward of the last fifth, and the last held-out accuracy.

    Args:
        run_dir: Folder of the run.
        without: Rollouts whose reward says nothing of the policy.
    """
    every = rows_of(run_dir)
    rows = [row for row in every if row["response_length"]]
    last = rows[-max(len(rows) // 5, 1) :]
    rewards = [float(row["reward"]) for row in last if trained(row) not in without]
    accuracy = [float(row["val/accuracy"]) for row in every if row["val/accuracy"]]
    reward = fmean(rewards) if rewards else math.nan
    return {"rollouts": len(rows), "reward": reward, "accuracy": accuracy[-1]}


def suffering(undisturbed: dict[str, float], soaked: dict[str, float]) -> list[str]:
    """Where the curve of the soaked run is another one; it may be no better either."""
    limits = {"rollouts": 0, "accuracy": ACCURACY, "reward": REWARD}
    pairs = {key: (undisturbed[key], soaked[key]) for key in limits}
    return [f"{k} {a} -> {b}" for k, (a, b) in pairs.items() if not abs(a - b) <= limits[k]]


def missing(lives: list[dict[str, Any]], faults: dict[str, set[int]]) -> list[str]:
    """What never came, so that nothing is known of it."""
    found = [f"no fault: {kind}" for kind, rollouts in faults.items() if not rollouts]
    return found if any(life["status"] for life in lives) else ["no signal", *found]


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--rollouts", type=int, default=500, help="a multiple of 10")
    parser.add_argument("--longest", type=int, default=100, help="rollouts between two signals")
    parser.add_argument("--delay", type=float, default=2, help="seconds of an update and after")
    parser.add_argument("--rate", type=float, default=0.03, help="probability of each fault")
    parser.add_argument("--seed", type=int, default=0)
    given, extra = parser.parse_known_args(args)
    mark = os.environ[MARK] = str(given.out.resolve())
    settings = [f"--config={ROOT / 'configs' / 'quickstart.yaml'}", *extra]
    settings += [f"--trainer.max_epochs={given.rollouts // 10}"]
    settings += ["--trainer.enable_progress_bar=false"]
    settings += ["--callbacks.usage=scripts.soak.Usage", f"--callbacks.usage.mark={mark}"]
    whole, soaked = given.out / "undisturbed", given.out / "soaked"
    check(start(whole, settings)[0])
    left = end_orphans(mark)
    lives = disturb(given.out, settings, given.seed, given.rate, given.longest, given.delay)
    left += [process for life in lives for process in life["left"]]
    faults = faults_of(soaked, given.seed, given.rate)
    faulty = set().union(*faults.values())
    curves = [curve(whole, faulty), curve(soaked, faulty)]
    broken = [*leaks(whole), *leaks(soaked, faulty), *suffering(*curves), *missing(lives, faults)]
    broken += [f"left running: {process}" for process in left]
    report = {
        "undisturbed": curves[0],
        "soaked": curves[1],
        "signals": sum(life["status"] != 0 for life in lives),
        "faults": {kind: len(rollouts) for kind, rollouts in faults.items()},
        "longest": max((WARM + len(life) for life in lives_of(soaked)), default=0),
        "broken": broken,
    }
    write_text(given.out / "report.json", json.dumps(report, indent=1))
    print(json.dumps(report, indent=1))
    if broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
