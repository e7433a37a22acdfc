"""Where a result comes from: configuration, code and machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

OWN = ("seed_everything", "run_dir", "ckpt_path")  # what differs between runs of one setting


def config_hash(path: Path) -> str:
    """A short hash of a run's configuration without its seed and folder; "" without a file.

    Args:
        path: The `config.yaml` of a run.
    """
    if not path.is_file():
        return ""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    return hash_of({key: value for key, value in config.items() if key not in OWN})


def hash_of(config: dict[str, Any]) -> str:
    """A short hash that does not depend on the order of keys.

    Example:
        >>> hash_of({"a": 1, "b": 2}) == hash_of({"b": 2, "a": 1})
        True
    """
    text = yaml.safe_dump(config, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def commit() -> str:
    """The commit of the code that runs, with a "+" if files differ from it; "" outside git."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def mixed(commits: Sequence[str]) -> str:
    """What to say of runs that are not all of one commit; "" if they are.

    Example:
        >>> mixed(["0a1b", "0a1b", "2c3d+"])
        'the runs are of 2 versions of the code: 0a1b (2 runs), 2c3d+ (1 run)'
    """
    counts = Counter(name or "unknown" for name in commits)
    if len(counts) < 2:
        return ""
    parts = [f"{name} ({n} run{'' if n == 1 else 's'})" for name, n in counts.items()]
    return f"the runs are of {len(counts)} versions of the code: {', '.join(parts)}"


def machine() -> dict[str, str]:
    """Processor, operating system and versions."""
    versions = {}
    for package in ("torch", "lightning", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": platform.system(),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
