"""Where the time of DAPO's step in `scripts/benchmark.py` goes: a rollout and an update, profiled.

    python scripts/benchmark_profile.py b
    python scripts/benchmark_profile.py c --smollm2 FOLDER

The rollout goes through cProfile: calls of modules, and the share of what is computed inside
attention and matrix products. The update goes through `torch.profiler`: the operators that take the
most time, and the speed of matrix products. Both slow down what they watch.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import resource
import tempfile
from pathlib import Path
from typing import Any

from benchmark import matmul_peak
from benchmark_cases import build_case
from benchmark_contenders import run_lit_reason
from lightning.pytorch import Callback
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig

KERNELS = ("scaled_dot_product_attention", "linear")


class Profiled(Callback):
    """Profiles the second rollout and its update; the first also allocates."""

    def __init__(self) -> None:
        self.rollout = cProfile.Profile()
        self.update = profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True, acc_events=True
        )
        self.step, self.stage = 0, ""

    def on_stage(self, trainer: Any, stage: str) -> None:
        """A stage begins, and the one before it ends."""
        if self.step and self.stage == "rollout":
            self.rollout.disable()
        if self.step and stage == "rollout":
            self.rollout.enable()
        if self.step and stage == "update":
            self.update.start()
        self.stage = stage

    def on_train_batch_end(self, *_: Any) -> None:
        """The update ends, and with it the step."""
        if self.step:
            self.update.stop()
        self.step += 1


def describe_rollout(profiled: cProfile.Profile) -> str:
    """Calls of modules, and shares of the rollout's time."""
    stats: Any = pstats.Stats(profiled)
    rows = [(name, row) for (_, _, name), row in stats.stats.items()]
    calls = sum(row[1] for name, row in rows if name == "_call_impl")
    lines = [f"rollout: {stats.total_tt:.2f} s, {calls:,} calls of modules"]
    for kernel in KERNELS:
        inside = sum(row[2] for name, row in rows if kernel in name and "built-in" in name)
        lines.append(f"  {inside / stats.total_tt:6.1%} {kernel}")
    return "\n".join(lines)


def describe_update(profiled: profile, vocab: int) -> str:
    """Operators by their share of the update's time, and matrix products by their speed."""
    events = profiled.key_averages()
    total = sum(e.self_cpu_time_total for e in events)
    lines = [f"update: {total / 1e6:.2f} s in operators"]
    for e in sorted(events, key=lambda e: -e.self_cpu_time_total)[:6]:
        lines.append(f"  {e.self_cpu_time_total / total:6.1%} {e.key}, {e.count:,} calls")
    shaped = profiled.key_averages(group_by_input_shape=True)
    products = [e for e in shaped if e.key == "aten::mm" and e.flops]
    for name, of_head in (("head", True), ("layers", False)):
        chosen = [e for e in products if any(vocab in x for x in e.input_shapes) is of_head]
        flops = sum(e.flops for e in chosen)
        speed = flops / sum(e.self_cpu_time_total for e in chosen) / 1e3
        lines.append(f"  {speed:6.0f} GFLOP/s in the products of the {name}")
    return "\n".join(lines)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("case", choices="abc")
    parser.add_argument("--smollm2", default="smollm2", help="folder of the model of case c")
    options = parser.parse_args(args)
    logging.disable(logging.WARNING)
    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as folder:
        case = build_case(options.case, Path(folder), options.smollm2, rounds=1, clock="cpu")
        profiled = Profiled()
        run_lit_reason(case, profiled, critic=False, old_logprobs="engine")
        vocab = AutoConfig.from_pretrained(case.model, trust_remote_code=False).vocab_size
    print(describe_rollout(profiled.rollout))
    print(describe_update(profiled.update, vocab))
    print(f"peak of the square product: {matmul_peak(case) / 1e9:.0f} GFLOP/s")
    print(f"memory after imports: {imported:.0f} MiB")


if __name__ == "__main__":
    main()
