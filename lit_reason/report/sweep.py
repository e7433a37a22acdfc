"""A W&B sweep file and the commands that its grid stands for, without an account."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_reason.errors import ConfigError
from lit_reason.given import read_yaml

SEED = "seed_everything"
SEEDS = 2**32  # that NumPy's generators tell apart
LAUNCHER = {"${env}": [], "${interpreter}": [sys.executable]}


@dataclass(frozen=True)
class Point:
    """One point of the grid, without its seed.

    Attributes:
        name: What sets it apart from the other points; also the name of its folder.
        values: Every swept key with its value here.
    """

    name: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """A grid over keys of the command line.

    Attributes:
        name: Stem of the file.
        command: The sweep's command, with its `${...}` places.
        grid: Values of every swept key, the seed left out.
        seeds: Seeds that the file asks for; one seed 0 if it asks for none.
        metric: Key of the quantity that the ablation compares.
    """

    name: str
    command: list[str]
    grid: dict[str, list[Any]]
    seeds: list[int]
    metric: str

    def points(self) -> list[Point]:
        """Every combination of values, the last key varying fastest."""
        varied = [key for key, values in self.grid.items() if len(values) > 1]
        combinations = [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.product(*self.grid.values())
        ]
        labels = short_keys(varied)
        return [
            Point(
                "_".join(_label(labels[k], values[k]) for k in varied) or self.name,
                values,
            )
            for values in combinations
        ]

    def arguments(
        self,
        point: Point,
        seed: int,
        overlays: Sequence[str] = (),
        extra: Sequence[str] = (),
    ) -> list[str]:
        """The command that an agent would run for a point.

        Args:
            point: One of `points()`.
            seed: Seed of the run.
            overlays: Configuration files laid over those of the sweep's command.
            extra: Further arguments; they come last and win.
        """
        bases = [Path(word).stem for word in self.command if word.endswith(".yaml")]
        swept = [f"--config={path}" for path in with_own(overlays, bases)]
        # an agent gets the keys in any order, and so the sweeps do not depend on one
        values = {**point.values, SEED: seed}
        if "config" in values:
            values["config"] = fragment_at(str(values["config"]), overlays)
        swept += [f"--{key}={value}" for key, value in values.items()]
        places = {**LAUNCHER, "${args}": swept}
        words = [places.get(word, [word]) for word in self.command]
        return [*itertools.chain.from_iterable(words), *extra]


def read_sweep(path: Path) -> Sweep:
    """Reads a sweep file.

    Raises:
        ConfigError: It is missing, or is not a grid that the local runner can expand.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such sweep file")
    content = read_yaml(str(path), path)
    if not isinstance(content, dict) or not isinstance(content.get("parameters"), dict):
        raise ConfigError(f"{path}: not a sweep file, it has no `parameters`")
    if content.get("method") != "grid":
        raise ConfigError(
            f"{path}: method={content.get('method')}; only grid can be run without a server"
        )
    command = [str(word) for word in content.get("command", ())]
    known = {*LAUNCHER, "${args}"}
    unknown = [word for word in command if word.startswith("${") and word not in known]
    if "${args}" not in command or unknown:
        raise ConfigError(
            f"{path}: command={command}; it needs ${{args}}, and may use ${{env}} and "
            "${interpreter} only"
        )
    grid = {key: _values(path, key, entry) for key, entry in content["parameters"].items()}
    seeds = grid.pop(SEED, [0])
    if not all(type(seed) is int for seed in seeds):
        raise ConfigError(f"{path}: parameters.{SEED}={seeds}; needs whole numbers")
    check_seeds(f"{path}: parameters.{SEED}", seeds)
    metric = content.get("metric", {})
    if not isinstance(metric, dict):
        raise ConfigError(f"{path}: metric={metric}; needs a name, as {{name: val/accuracy}}")
    sweep = Sweep(path.stem, command, grid, seeds, metric.get("name", "val/accuracy"))
    names = [point.name for point in sweep.points()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{path}: parameters: two points are called {twice}; give values, and files, whose "
            "names differ, each once"
        )
    return sweep


def check_seeds(key: str, seeds: Sequence[int]) -> None:
    """Refuses seeds that stand twice, whose runs would share a folder, and those that are none.

    Args:
        key: Where they are set.
        seeds: Of every point.

    Raises:
        ConfigError: The first such seed.
    """
    given = f"{key} {' '.join(map(str, seeds))}"
    for seed in seeds:
        if not 0 <= seed < SEEDS:
            raise ConfigError(f"{given}: a seed must lie in [0, {SEEDS - 1}]")
        if seeds.count(seed) > 1:
            raise ConfigError(f"{given}: names seed {seed} twice; give each seed once")


def _values(path: Path, key: str, entry: Any) -> list[Any]:
    if isinstance(entry, dict) and set(entry) == {"value"}:
        values = [entry["value"]]
    elif isinstance(entry, dict) and set(entry) == {"values"} and entry["values"]:
        values = list(entry["values"])
    else:
        raise ConfigError(f"{path}: parameters.{key}={entry}; needs `value`, or a list `values`")
    if None in values:
        raise ConfigError(
            f'{path}: parameters.{key}: write "null" in quotes; an agent turns a bare null into '
            "None, which the command line refuses"
        )
    return values


def with_own(overlays: Sequence[str], bases: Sequence[str]) -> list[str]:
    """Overlays, each followed by what it has for an algorithm: `SCALE.ALGORITHM.yaml` beside it.

    Args:
        overlays: Configuration files laid over the sweep's.
        bases: Stems of the configurations that the sweep names.
    """
    files = []
    for overlay in overlays:
        own = [Path(overlay).with_suffix(f".{base}.yaml") for base in bases]
        files += [overlay, *(str(path) for path in own if path.is_file())]
    return files


def fragment_at(path: str, overlays: Sequence[str]) -> str:
    """The fragment of a row for a scale: beside `ROW.yaml`, `ROW.SCALE.yaml` if there is one.

    A row that names sizes, such as the number of prompts, needs other ones at another scale.

    Args:
        path: Of the fragment as the sweep names it.
        overlays: Configuration files laid over the sweep's; the stem of each is a scale.

    Example:
        >>> fragment_at("ablations/a/row.yaml", ["configs/scale/none.yaml"])
        'ablations/a/row.yaml'
    """
    for overlay in overlays:
        variant = Path(path).with_suffix(f".{Path(overlay).stem}.yaml")
        if variant.is_file():
            path = str(variant)
    return path


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted key, or all of it where two would be the same.

    Example:
        >>> short_keys(["model.policy.clip_low", "a.lr", "b.lr"])
        {'model.policy.clip_low': 'clip_low', 'a.lr': 'a.lr', 'b.lr': 'b.lr'}
    """
    last = [key.split(".")[-1] for key in keys]
    return {k: s if last.count(s) == 1 else k for k, s in zip(keys, last, strict=True)}


def _label(key: str, value: Any) -> str:
    text = Path(value).stem if key == "config" else f"{key}={value}"
    return re.sub(r"[^\w.=+-]", "-", text)
