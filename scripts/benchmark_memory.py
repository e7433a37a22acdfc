"""Peak memory of log-probabilities and entropy, forward and backward, block by block and plainly.

    python scripts/benchmark_memory.py                       about two minutes on two CPU cores
    python scripts/benchmark_memory.py --tokens 32768 --vocab 151936 --device cuda

Each way runs in a process of its own. What counts is what it holds beyond its inputs, gradients of
the inputs included: on a CPU the growth of the process, on a GPU that of the allocator.
For 8192 tokens, a vocabulary of 49152 and states of width 576, on a CPU: 7570 MiB plainly, 3010 by
blocks of the logits, 254 MiB by blocks of the states, 108 of them the gradient of the head.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lit_reason.functional import hidden_logprobs_and_entropy, logprobs_and_entropy
from lit_reason.networks import BLOCK, LEAST

MIB = 2**20


def plain(hidden: Tensor, head: nn.Linear, ids: Tensor) -> tuple[Tensor, Tensor]:
    """All logits at once, and what autograd keeps of them."""
    logp = torch.log_softmax(head(hidden).float(), -1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, ids[..., None]).squeeze(-1), entropy


def from_logits(hidden: Tensor, head: nn.Linear, ids: Tensor) -> tuple[Tensor, Tensor]:
    """All logits at once, reduced block by block."""
    logprobs, entropy = logprobs_and_entropy(head(hidden), ids, entropy="grad")
    assert entropy is not None
    return logprobs, entropy


def from_states(hidden: Tensor, head: nn.Linear, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of one block at a time, again in the backward pass: what an update does."""
    chunk = max(BLOCK // head.out_features, LEAST)
    logprobs, entropy = hidden_logprobs_and_entropy(hidden, head, ids, 1.0, "grad", chunk)
    assert entropy is not None
    return logprobs, entropy


WAYS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "plain": plain,
    "blocks of the logits": from_logits,
    "blocks of the states": from_states,
}


def measure(way: str, args: argparse.Namespace) -> tuple[float, float, float]:
    """Peak extra MiB, seconds and a checksum of the gradients."""
    torch.manual_seed(0)
    device = torch.device(args.device)
    head = nn.Linear(args.width, args.vocab, bias=False, device=device)
    hidden = torch.randn(1, args.tokens, args.width, device=device, requires_grad=True)
    ids = torch.randint(0, args.vocab, (1, args.tokens), device=device)
    nn.functional.linear(hidden[:, :8], head.weight).sum().backward()  # loads the libraries
    hidden.grad = head.weight.grad = None
    before, started = high_water(device), time.perf_counter()
    logprobs, entropy = WAYS[way](hidden, head, ids)
    (logprobs.sum() + entropy.sum()).backward()
    assert hidden.grad is not None
    checksum = float(hidden.grad.double().abs().sum())
    return (high_water(device) - before) / MIB, time.perf_counter() - started, checksum


def high_water(device: torch.device) -> int:
    """Most bytes that this process ever held."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--tokens", type=int, default=8192, help="response tokens of a micro-batch")
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--width", type=int, default=576, help="of the hidden states")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    size = args.tokens * args.vocab * 4 / MIB
    print(
        f"{args.tokens} tokens, vocabulary {args.vocab}: one copy of the logits is {size:.0f} MiB"
    )
    for way in args.ways:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peak, seconds, checksum = pool.apply(measure, (way, args))
        print(f"{way:22} {peak:8.0f} MiB {seconds:8.1f} s   |gradient| {checksum:.6g}", flush=True)


if __name__ == "__main__":
    main()
