"""Speed and memory beside TRL's GRPOTrainer: the same checkpoint, prompts, sizes, rewards, threads.

    pip install -e ".[benchmark]"
    python scripts/benchmark.py                                    cases a and b, minutes
    python scripts/benchmark.py --cases a b c --smollm2 /tmp/smollm2

Contenders: `dapo` and `vapo` of this package, which take old log-probs from the engine,
`dapo_rescored`, which computes them again as TRL does, and `trl` (`loss_type="dapo"`). Each lives
in a process of its own and waits while another works; a round is one training step of each, and
what is printed are medians over rounds. `--clock cpu` counts the seconds of the processes
themselves, for a machine that does other work too. Nothing filters or drops responses, as TRL does
not.

Cases: (a) the built-in policy and task; (b) a random model of the same size whose end token has a
fixed probability, so that responses of one batch are ragged; (c) SmolLM2-135M, as written by
`scripts/get_smollm2.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from benchmark_cases import Case, build_case
from benchmark_contenders import STAGES, work
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from lit_reason.secrecy import command_without_secrets

INSTEAD = {
    "max_new_tokens": "budget of a response",
    "rows": "most responses in a forward pass with gradient",
    "tokens": "most tokens in one, for the contenders that can count them",
}


def matmul_peak(case: Case, size: int = 1536) -> float:
    """FLOP/s of a float32 matrix product, the best of a few."""
    torch.set_num_threads(case.threads)
    clock = time.perf_counter if case.clock == "wall" else time.process_time
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(4):
        started = clock()
        a @ b
        times.append(clock() - started)
    return 2 * size**3 / min(times)


def update_flops(model: str, prompt_tokens: float, response_tokens: float) -> float:
    """FLOPs of the actor's forward and backward passes over tokens that are no padding.

    Two a weight forward and four backward; the head at response positions only. Attention scores
    and recomputation do not count.
    """
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(model, trust_remote_code=False), trust_remote_code=False
        )
    linear = [m for m in network.modules() if isinstance(m, nn.Linear)]
    head = network.get_output_embeddings().weight.numel()
    body = sum(m.weight.numel() for m in linear) - head
    return 6 * (body * (prompt_tokens + response_tokens) + head * response_tokens)


def compare(case: Case, contenders: list[str]) -> dict[str, Any]:
    """Alternates the contenders for some rounds; medians of what they send."""
    context = multiprocessing.get_context("spawn")
    connections, processes = {}, []
    for name in contenders:
        connections[name], theirs = context.Pipe()
        processes.append(context.Process(target=work, args=(name, case, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    try:
        for turn in range(case.rounds + 1):
            for name in contenders if turn % 2 else contenders[::-1]:
                connections[name].send("go")
                measured = connections[name].recv()
                print(f"round {turn} {name}: {measured['step']:.2f} s", file=sys.stderr, flush=True)
                if turn:  # the first step also allocates
                    rounds[name].append({**measured, "peak_flops": matmul_peak(case)})
    finally:
        for process in processes:
            process.kill()
    # one peak for all: it drifts on a machine that does other work
    peak = max(step["peak_flops"] for steps in rounds.values() for step in steps)
    for step in (s for steps in rounds.values() for s in steps):
        step["peak_flops"] = peak
    return {name: summarise(case, steps) for name, steps in rounds.items()}


def summarise(case: Case, steps: list[dict[str, float]]) -> dict[str, float]:
    """Medians over rounds, and the rates that follow from each round."""
    for step in steps:
        flops = update_flops(case.model, step["prompt_tokens"], step["response_tokens"])
        step["rollout_tokens_per_s"] = step["response_tokens"] / step["rollout"]
        step["update_share_of_peak"] = flops / step["update"] / step["peak_flops"]
    medians = {key: statistics.median(s[key] for s in steps) for key in steps[0]}
    spread = [s["step"] for s in steps]
    return {**medians, "step_min": min(spread), "step_max": max(spread)}


def table(name: str, result: dict[str, dict[str, float]]) -> str:
    """Seconds of each stage, rates and memory, one contender a line, and ratios to the first."""
    columns = [*STAGES, "rollout_tokens_per_s", "update_share_of_peak", "peak_mib"]
    lines = [f"case {name}", " " * 12 + "".join(f"{c:>22}" for c in columns)]
    for contender, row in result.items():
        lines.append(f"{contender:12}" + "".join(f"{row[c]:22.3f}" for c in columns))
    base = result.get("dapo")
    for contender, row in result.items():
        if base and contender != "dapo":
            ratios = [row[c] / base[c] if base[c] else math.nan for c in columns]
            lines.append(f"{contender + '/dapo':12}" + "".join(f"{r:22.2f}" for r in ratios))
    return "\n".join(lines)


def environment() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    packages = ("torch", "transformers", "lightning", "trl")
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        if (cpuinfo.exists())
        else []
    )
    return {
        "cpu": names[0].split(":")[1].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--cases", nargs="+", choices="abc", default=["a", "b"])
    known = ("dapo", "dapo_rescored", "vapo", "trl")
    parser.add_argument("--contenders", nargs="+", choices=known, default=known)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    for name, what in INSTEAD.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=positive, help=f"{what}, instead of the case's own"
        )
    parser.add_argument("--smollm2", default="smollm2", help="folder of the model of case c")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = sys.argv[1:] if args is None else args
    options = parser.parse_args(given)
    contenders = options.contenders
    if "c" in options.cases and not Path(options.smollm2, "config.json").is_file():
        parser.error(
            f"--smollm2={options.smollm2}: holds no model; write one with scripts/get_smollm2.py, "
            "or leave case c out"
        )
    if "trl" in contenders and _version("trl") is None:
        parser.error("--contenders: trl is not installed; pip install trl, or name dapo and vapo")
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    report: dict[str, Any] = {
        "command": " ".join(["python", "scripts/benchmark.py", *command_without_secrets(given)]),
        "environment": environment(),
        "cases": {},
    }
    settings = {"rounds": options.rounds, "seed": options.seed, "threads": options.threads}
    settings |= {"clock": options.clock}
    for name in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            case = build_case(name, Path(folder), options.smollm2, **settings)
            instead = {key: getattr(options, key) for key in INSTEAD}
            case = replace(case, **{key: value for key, value in instead.items() if value})
            result = compare(case, contenders)
        sizes = {k: v for k, v in asdict(case).items() if k not in ("model", "prompts")}
        sizes |= {"prompts": len(case.prompts)}
        report["cases"][name] = {"sizes": sizes, "medians": result}
        print(table(name, result), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
