"""A decoding step of a tiny model, as it is and through `torch.compile`: milliseconds by rows.

    python scripts/benchmark_decoding.py            two minutes on one core, most of it compilation

The model is that of case (b) of `scripts/benchmark.py`. A pass decodes 20 tokens for each number of
rows, from 128 down to 2, with one cache that gives rows up as `HFEngine` does; eager and compiled
passes alternate, and what is printed are medians of processor time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmark_cases import save_ragged
from torch import Tensor
from transformers import AutoModelForCausalLM

from lit_reason.cache import cache_argument, growing_cache

ROWS = (128, 112, 96, 80, 64, 48, 32, 16, 8, 4, 2)
STEPS, PROMPT = 20, 20


@torch.no_grad()
def decode(model: Any, step: Callable[..., Any]) -> tuple[list[float], Tensor]:
    """Milliseconds a token for each of `ROWS`, and the last logits."""
    argument, cache = cache_argument(model), growing_cache(model.config)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 15, (ROWS[0], PROMPT), generator=random)
    mask = torch.ones(ROWS[0], PROMPT + STEPS * len(ROWS), dtype=torch.long)
    prompt = {"attention_mask": mask[:, :PROMPT], argument: cache}
    logits = model(input_ids=ids, use_cache=True, logits_to_keep=1, **prompt).logits
    end, times = PROMPT, []
    for rows in ROWS:
        cache.reorder_cache(torch.arange(rows))
        started = time.process_time()
        for _ in range(STEPS):
            reserve(cache, end + 1)
            logits = step(
                input_ids=torch.randint(5, 15, (rows, 1), generator=random),
                attention_mask=mask[:rows, : end + 1],
                position_ids=torch.full((rows, 1), end),
                use_cache=True,
                **{argument: cache},
            ).logits
            end += 1
        times.append((time.process_time() - started) / STEPS * 1e3)
    return times, logits


def reserve(cache: Any, length: int) -> None:
    """Makes room outside the compiled step, which would be compiled again for every growth."""
    for layer in cache.layers:
        keys, values = layer.keys, layer.values
        if length > layer.room[0].shape[-2]:
            layer.room = tuple(layer._grow(x, x, length) for x in (keys, values))
            layer.keys, layer.values = (room[..., : keys.shape[-2], :] for room in layer.room)


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args(args).rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        save_ragged(Path(folder))
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False).eval()
    compiled = torch.compile(model, dynamic=True)
    started = time.perf_counter()
    difference = (decode(model, compiled)[1] - decode(model, model)[1]).abs().max().item()
    print(f"compiled in {time.perf_counter() - started:.0f} s, logits differ by {difference:.1e}")
    eager, fast = [], []
    for _ in range(rounds):
        eager.append(decode(model, model)[0])
        fast.append(decode(model, compiled)[0])
    columns = [[statistics.median(x) for x in zip(*times, strict=True)] for times in (eager, fast)]
    print("rows  eager  compiled  ratio")
    for rows, before, after in zip(ROWS, *columns, strict=True):
        print(f"{rows:4} {before:6.2f} {after:9.2f} {before / after:6.2f}")
    before, after = map(sum, columns)
    print(f" all {before:6.2f} {after:9.2f} {before / after:6.2f}")


if __name__ == "__main__":
    sys.exit(main())
