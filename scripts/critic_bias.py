"""Measures the value-initialisation bias of VC-PPO, and what value pretraining does about it.

python scripts/critic_bias.py --seeds 0 1 2 3 4 --out runs/critic_bias

Trains the quickstart's critic alone for 15 rollouts, once on the last token of each response, as a
reward model is trained, and once on all tokens. The policy's λ is 0.95. Three settings: `short`,
with problems of 2 to 5 steps and rewards of 0 / +1, where the policy then trains for 15 rollouts
while the critic stays as it is, so that its bias goes on acting; `chatter`, the miniature's
problems, whose answers may hold letters that mean nothing, with rewards of 0 / +1, where policy and
critic then train together for 15 rollouts; and `default`, the quickstart's problems of up to 16
steps and rewards of -1 / +1, before the policy trains. Writes OUT/critic_bias.csv, a row a run, and
prints a table. Called again it skips what is finished. One to three minutes a run on one core.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from lit_reason.errors import in_one_line
from lit_reason.files import replacing
from lit_reason.report.ablation import Ablation, Result
from lit_reason.report.child import exit_on_signals, saying_how_to_continue
from lit_reason.report.critic import read_curves
from lit_reason.report.history import Series, read_run
from lit_reason.report.sweep import Sweep
from lit_reason.report.table import margin

WARMUP, JOINT = 15, 15
CHECKED = 6  # rollouts before the first update of the policy that the curves are averaged over
COMMAND = [
    "${interpreter}", "-m", "lit_reason", "fit", "--config", "configs/quickstart.yaml",
    "--model.advantage.alpha=null", "--model.advantage.lam_policy=0.95",
    "--model.terms.positive_lm=null",
    "--model.critic_scheduler=torch.optim.lr_scheduler.MultiStepLR",
    f"--model.critic_scheduler.milestones=[{WARMUP}]", "--model.critic_scheduler.gamma=0.0",
    f"--callbacks.value_warmup.rollouts={WARMUP}", "--callbacks.value_warmup.save=true",
    f"--data.rollouts_per_epoch={WARMUP}", "--data.val_samples=4", "${args}",
]  # fmt: skip
TOKENS = ("last", "all")
SETTINGS: dict[str, dict[str, list[object]]] = {
    "short": {
        "data.task.n_max": [5],
        "data.val_task.n_max": [5],
        "data.sampling.max_new_tokens": [40],
        "data.rewards.correctness.wrong": [0],
        "trainer.max_epochs": [2],
    },
    "chatter": {
        "config": ["ablations/miniature/critic_bias.yaml"],
        "model.critic_scheduler.gamma": [1.0],
        "trainer.max_epochs": [2],
    },
    "default": {"trainer.max_epochs": [1]},
}
NAMES = {
    "start": "mean advantage, first twentieth of a response",
    "early": "mean advantage, first quarter",
    "late": "mean advantage, last quarter",
    "end": "mean advantage, last twentieth",
    "quarters": "first minus last quarter",
    "tilt": "first minus last twentieth",
    "spread": "highest minus lowest point of the curve",
    "bias": "V(s₀) - return",
    "explained": "held-out explained variance",
    "length_change": "held-out length, change in the joint phase",
    "accuracy_change": "held-out accuracy, change in the joint phase",
}


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=Path("runs", "critic_bias"))
    parser.add_argument("extra", nargs="*", help="after --: arguments of every run")
    given = parser.parse_args(args)
    rows = []
    with in_one_line(), saying_how_to_continue():
        for setting in given.settings:
            ablation = study(setting, given.out, given.seeds, given.extra)
            with closing(ablation.run()) as ended:
                for result in ended:
                    line = f"{setting} {result.point} seed {result.seed}: {result.status}"
                    print(line, flush=True)
                    if result.status == "finished":
                        rows.append(measure(ablation, result, setting))
    if not rows:
        parser.exit(1, f"error: every run failed, see {given.out}/*/*/*/log.txt\n")
    with in_one_line():
        write(rows, given.out / "critic_bias.csv")
    print(f"\n{table(rows)}\n\n{given.out / 'critic_bias.csv'}")


def study(setting: str, out: Path, seeds: Sequence[int], extra: Sequence[str]) -> Ablation:
    """The runs of one setting."""
    grid = {**SETTINGS[setting], "callbacks.value_warmup.tokens": list(TOKENS)}
    sweep = Sweep("critic_bias", COMMAND, grid, list(seeds), "val/value/explained_variance")
    return Ablation(sweep, out / setting, extra=extra)


def measure(ablation: Ablation, result: Result, setting: str) -> dict[str, object]:
    """What a finished run says; lengths and accuracies are empty without a joint phase."""
    point = next(p for p in ablation.points if p.name == result.point)
    folder = ablation.folder(point, result.seed) / "run"
    run, rows = read_run(folder), read_curves(folder)
    # the policy is as it was in the first rollout of the joint phase too, where there is one
    before = rows[: WARMUP + 1][-CHECKED:]
    curve = average([row["advantage"]["all"] for row in before])
    quarter = max(len(curve) // 4, 1)
    early, late = statistics.fmean(curve[:quarter]), statistics.fmean(curve[-quarter:])
    bias = run.get("value/bias").values[: WARMUP + 1][-CHECKED:]
    return {
        "setting": setting,
        "tokens": point.values["callbacks.value_warmup.tokens"],
        "seed": result.seed,
        "start": curve[0],
        "early": early,
        "late": late,
        "end": curve[-1],
        "quarters": early - late,
        "tilt": curve[0] - curve[-1],
        "spread": max(curve) - min(curve),
        "bias": statistics.fmean(bias),
        "explained": at(run.get("val/value/explained_variance"), WARMUP),
        "length_change": change(run.get("val/length")),
        "accuracy_change": change(run.get("val/accuracy")),
        **{f"point_{i + 1}": x for i, x in enumerate(curve)},
    }


def average(curves: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean curve of several rollouts, without points at which nothing was measured."""
    columns = [[x for x in column if x is not None] for column in zip(*curves, strict=True)]
    return [statistics.fmean(column) for column in columns if column]


def at(series: Series, rollout: int) -> float | None:
    """The value of a series at a rollout."""
    return dict(zip(series.rollouts, series.values, strict=True)).get(rollout)


def change(series: Series) -> float | None:
    """From the end of the warm-up to the end of the run."""
    start, end = at(series, WARMUP), at(series, WARMUP + JOINT)
    return None if start is None or end is None else end - start


def write(rows: Sequence[dict[str, object]], path: Path) -> None:
    """Writes a row a run."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(k for row in rows for k in row)))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{x:.4f}" if isinstance(x, float) else x for k, x in row.items()})


def table(rows: Sequence[dict[str, object]]) -> str:
    """Mean and 95 % interval over seeds, and over the differences of the two critics of a seed."""
    lines = ["| setting | quantity | last token only | all tokens | last - all |"]
    lines.append("|---|---|---|---|---|")
    for setting in dict.fromkeys(str(row["setting"]) for row in rows):
        for name, label in NAMES.items():
            found = {t: dict(of(rows, setting, t, name)) for t in TOKENS}
            last, every = found["last"], found["all"]
            if last or every:
                paired = [last[seed] - every[seed] for seed in last.keys() & every.keys()]
                cells = (interval(list(x.values())) for x in (last, every))
                lines.append(f"| {setting} | {label} | {' | '.join(cells)} | {interval(paired)} |")
    return "\n".join(lines)


def of(
    rows: Sequence[dict[str, object]], setting: str, tokens: str, name: str
) -> Iterator[tuple[object, float]]:
    """Seed and value of every run of a kind that has one."""
    for row in rows:
        value = row[name]
        if row["setting"] == setting and row["tokens"] == tokens and isinstance(value, float):
            yield row["seed"], value


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % interval by Student's t.

    Example:
        >>> interval([1.0, 2.0, 3.0]), interval([1.0]), interval([])
        ('2.000 [-0.484, 4.484]', '1.000', '-')
    """
    if not values:
        return "-"
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.3f}"
    half = margin(values)
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


if __name__ == "__main__":
    exit_on_signals()
    main()
