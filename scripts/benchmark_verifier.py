"""Answers a second that the verifier compares with its pool warm, and the delay by a hostile one.

    python scripts/benchmark_verifier.py                     under a minute on two CPU cores
    python scripts/benchmark_verifier.py --workers 8 --time_limit 5

Numbers are decided in this process, terms are parsed by math-verify in the workers. No pair occurs
twice, so that no cache helps; in a run, the responses of a group share their gold answer.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable

from jsonargparse import auto_cli

from lit_reason.errors import ConfigWarning
from lit_reason.verifier import Verifier

Pair = tuple[str, str]
TOWER = ("7/3", r"9^{9^{9^{9}}}")


def number(rng: random.Random) -> Pair:
    """A number in two spellings, or two numbers."""
    a, b, other = rng.randrange(1, 999), rng.randrange(2, 99), rng.randrange(2)
    return rng.choice(
        [
            (f"{a}", f"{a + other}"),
            (f"{a}/{b}", rf"\frac{{{2 * a}}}{{{2 * b + other}}}"),
            (f"{a / 8}", rf"\frac{{{a + other}}}{{8}}"),
            (f"{1000 * a}", f"{a},000"),
        ]
    )


def term(rng: random.Random) -> Pair:
    """A term in two spellings, or two terms."""
    a, b, other = rng.randrange(2, 9999), rng.randrange(2, 9999), rng.randrange(2)
    return rng.choice(
        [
            (rf"{a}\pi", rf"\pi\cdot {a + other}"),
            (rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{b}}}\cdot {a + other}"),
            (f"x^2+{a}x", f"{a + other}x+x^2"),
            (rf"{a}^\circ", rf"{a + other}\text{{ degrees}}"),
        ]
    )


def seconds(verifier: Verifier, pairs: list[Pair]) -> float:
    """Wall-clock time of one batch."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # of the hostile one
        verifier.equal(pairs)
    return time.perf_counter() - started


def benchmark(workers: int = 2, time_limit: float = 2.0, answers: int = 2000) -> None:
    """Prints the figures.

    Args:
        workers: Worker processes.
        time_limit: Seconds for one answer.
        answers: Answers in the batch of numbers; the batch of terms is a tenth of it.
    """
    rng = random.Random(0)

    def batch(make: Callable[[random.Random], Pair], size: int) -> list[Pair]:
        return list(dict.fromkeys(make(rng) for _ in range(size)))

    verifier = Verifier(workers=workers, time_limit=time_limit)
    started = time.perf_counter()
    verifier.equal([(r"2\pi", r"\pi+\pi")])
    print(f"start          {time.perf_counter() - started:8.2f} s until the first answer")
    for name, make, size in (("numbers", number, answers), ("terms", term, answers // 10)):
        pairs = batch(make, size)
        print(f"{name:<15}{len(pairs) / seconds(verifier, pairs):8.0f} answers/s")
    waiting, together = batch(term, 100), batch(term, 100)
    alone = seconds(verifier, waiting)
    print(f"without tower  {alone:8.2f} s for {len(waiting)} terms")
    print(f"with one       {seconds(verifier, [TOWER, *together]):8.2f} s, limit {time_limit} s")
    verifier.close()


if __name__ == "__main__":
    auto_cli(benchmark)
