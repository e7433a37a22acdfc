"""Estimates memory and GPU-hours of the papers' runs, for docs/reproduce.md.

python scripts/estimate_cost.py

Nothing is measured: the formulas are in docs/reproduce.md, their assumptions in ASSUMED.
"""

from __future__ import annotations

from dataclasses import dataclass

ASSUMED = {
    "peak": 989e12,  # dense bfloat16 operations a second of an H100
    "training": 0.4,  # share of it that training reaches
    "generation": 0.05,  # share that generation reaches, which reads all weights a token
}
STATE = 16  # bytes a parameter: float32 weight and gradient, two moments of AdamW


@dataclass(frozen=True)
class Setup:
    """One run of a paper.

    Attributes:
        name: Of the configuration.
        networks: Trained networks, each of the size of the policy.
        tokens: Mean length of a response over the run, from the paper's figures.
        rounds: Times that responses are generated for one rollout (dynamic sampling).
        rollouts: Rollouts that train the policy.
        warmup: Rollouts that train the critic alone.
        responses: Responses a rollout.
    """

    name: str
    networks: int
    tokens: int
    rounds: int
    rollouts: int
    warmup: int = 0
    responses: int = 8192


SETUPS = (
    Setup("dapo", 1, 3000, 2, 330),
    Setup("vc_ppo", 2, 3500, 1, 300, 100),
    Setup("vapo", 2, 3500, 1, 310, 50),
)
SIZES = {"7B": 7.6e9, "32B": 32.8e9}
CACHE = {"7B": 2 * 28 * 4 * 128 * 2, "32B": 2 * 64 * 8 * 128 * 2}  # bytes a token in bfloat16


def gpu_hours(setup: Setup, parameters: float) -> float:
    """Generation, forward passes and training of all rollouts.

    Example:
        >>> round(gpu_hours(Setup("x", 1, 1000, 1, 100), 1e9))
        15
    """
    work = setup.responses * setup.tokens * parameters  # parameters times tokens of a rollout
    generation = 2 * work * setup.rounds / ASSUMED["generation"]
    # a network: 2 for old log-probs or values, 8 for an update that computes activations twice
    network = 10 * work / ASSUMED["training"]
    joint = generation + setup.networks * network
    alone = generation + network
    seconds = (setup.rollouts * joint + setup.warmup * alone) / ASSUMED["peak"]
    return seconds / 3600


def table() -> str:
    """The estimates as Markdown."""
    lines = [
        "| run | model | weights, gradients, AdamW (GB) "
        "| cache of a response of 20,480 tokens (GB) | GPU-hours |",
        "|---|---|---|---|---|",
    ]
    for size, parameters in SIZES.items():
        for setup in SETUPS:
            state = STATE * parameters * setup.networks / 1e9
            cache = CACHE[size] * 20480 / 1e9
            hours = f"{gpu_hours(setup, parameters):,.0f}"
            lines.append(f"| {setup.name} | {size} | {state:,.0f} | {cache:.1f} | {hours} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
