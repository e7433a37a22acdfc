"""Responses from a file in place of fresh ones."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_reason.batch import Prompt, Response
from lit_reason.errors import ConfigError
from lit_reason.fingerprint import fingerprint
from lit_reason.jsonl import read_rows
from lit_reason.rollout import HFEngine, RolloutEngine, Sampling

Key = tuple[int, ...]


class Recorded(RolloutEngine):
    """Responses that `RolloutRecorder` kept, for value pretraining without sampling.

    The prompts of the run are those that the file holds responses to; rewards are those of the run,
    so that another reward can be tried on the same responses. Held-out problems are not in the
    file: `engine` samples responses to them.

    The responses must be those of the policy that the run starts from, as the critic learns what
    *it* will earn. For the same reason they train nothing but a critic.

    Args:
        path: `rollouts.jsonl`, or a run folder with the files of its ranks.
        engine: For held-out problems; null is `HFEngine`.
        force: Also take responses of another policy.
    """

    on_policy = False

    def __init__(self, path: str, engine: RolloutEngine | None = None, force: bool = False) -> None:
        self.path, self.force = path, force
        self.engine = engine or HFEngine()
        self.files = _files(path)
        self.responses: dict[Key, list[Response]] = {}
        self.policies: set[str] = set()
        self.checked = False

    def bind(self, module: Any) -> None:
        """See `RolloutEngine.bind`."""
        super().bind(module)
        self.engine.bind(module)

    def available(self, prompts: list[tuple[Prompt, list[int]]]) -> list[tuple[Prompt, list[int]]]:
        """The prompts that the file holds responses to."""
        self._read()
        found = [(prompt, ids) for prompt, ids in prompts if tuple(ids) in self.responses]
        if not found:
            raise ConfigError(
                f"data.engine.path={self.path}: holds responses to none of the {len(prompts)} "
                "prompts of data.task; give the task and the tokenizer it was recorded with"
            )
        return found

    def generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        """See `RolloutEngine.generate`."""
        if not self.module.trainer.training:
            return self.engine.generate(prompts, samples, sampling, seed)
        if not self.checked:
            self._check_policy()
        rng = random.Random(seed)
        return [self._draw(tuple(ids), samples, rng) for ids in prompts]

    def _draw(self, key: Key, samples: int, rng: random.Random) -> list[Response]:
        known = self.responses[key]
        if len(known) < samples:
            raise ConfigError(
                f"data.group_size={samples}: {self.path} holds {len(known)} responses to one of "
                f"the prompts; choose at most {len(known)}"
            )
        return known if len(known) == samples else rng.sample(known, samples)

    def _read(self) -> None:
        self.responses.clear()
        for file in self.files:
            try:
                for group in read_rows(file):
                    kept = self.responses.setdefault(tuple(group["prompt_ids"]), [])
                    self.policies.add(group["policy"])
                    kept += [
                        Response(
                            tuple(r["ids"]),
                            r["text"],
                            r["truncated"],
                            mask=tuple(r["mask"]) if "mask" in r else None,
                        )
                        for r in group["responses"]
                    ]
            except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"data.engine.path={self.path}: {file.name} is no file of RolloutRecorder "
                    f"({type(error).__name__}: {error})"
                ) from error

    def _check_policy(self) -> None:
        own = fingerprint(self.module.actor)
        others = sorted(self.policies - {own})
        if others and not self.force:
            raise ConfigError(
                f"data.engine.path={self.path}: holds responses of the policy {others[0]}, and "
                f"model.backbone is {own}; record them with this policy, or set "
                "data.engine.force=true"
            )
        self.checked = True


def _files(path: str) -> list[Path]:
    given = Path(path).expanduser()
    files = sorted(given.glob("rollouts*.jsonl")) if given.is_dir() else [given]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(
            f"data.engine.path={path}: no recorded rollouts there; RolloutRecorder writes "
            "RUN_DIR/rollouts.jsonl"
        )
    return files
