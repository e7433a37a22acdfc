"""Responses from a file in place of fresh ones."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lit_reason.batch import Prompt, Response
from lit_reason.errors import ConfigError, ConfigWarning, warn_of_no_effect
from lit_reason.fingerprint import fingerprint
from lit_reason.jsonl import is_cut, read_rows
from lit_reason.rollout import HFEngine, RolloutEngine, Sampling

Key = tuple[int, ...]
Row = dict[str, Any]


class Recorded(RolloutEngine):
    """Responses that `RolloutRecorder` kept, for value pretraining without sampling.

    The prompts of the run are those that the file holds responses to; rewards are those of the run,
    so that another reward can be tried on the same responses. Held-out problems are not in the
    file: `engine` samples responses to them.

    The responses must be those of the policy that the run starts from, drawn as the run would draw
    them, as the critic learns what *it* will earn. For the same reason they train nothing but a
    critic.

    Args:
        path: `rollouts.jsonl`, or a run folder with the files of its ranks.
        engine: For held-out problems; null is `HFEngine`.
        micro_batch_size: Of this `HFEngine`; null is its default. What a seed draws depends on it:
            that of the recording run samples the same responses to held-out problems.
        force: Also take responses of another policy, or drawn otherwise.
    """

    on_policy = False

    def __init__(
        self,
        path: str,
        engine: RolloutEngine | None = None,
        micro_batch_size: int | None = None,
        force: bool = False,
    ) -> None:
        if engine is not None:
            size = {"data.engine.micro_batch_size": micro_batch_size}
            warn_of_no_effect("beside data.engine.engine", size)
        sizes = {} if micro_batch_size is None else {"micro_batch_size": micro_batch_size}
        self.path, self.force = path, force
        self.engine = engine or HFEngine(**sizes)
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
        data: Any = self.module.trainer.datamodule  # type: ignore[attr-defined]
        self._read(data.sampling)
        if not self.responses:
            raise ConfigError(
                f"data.engine.path={self.path}: holds no response; record some with "
                "callbacks.recorder=RolloutRecorder"
            )
        found = [(prompt, ids) for prompt, ids in prompts if tuple(ids) in self.responses]
        if not found:
            raise ConfigError(
                f"data.engine.path={self.path}: holds responses to none of the {len(prompts)} "
                "prompts of data.task; give the task and the tokenizer it was recorded with"
            )
        least = min(len(self.responses[tuple(ids)]) for _, ids in found)
        if least < data.group_size:
            raise ConfigError(
                f"data.group_size={data.group_size}: {self.path} holds {least} responses to one of "
                f"the prompts; choose at most {least}"
            )
        budget = data.sampling.max_new_tokens
        longest = max(r.length for _, ids in found for r in self.responses[tuple(ids)])
        if longest > budget:
            raise ConfigError(
                f"data.sampling.max_new_tokens={budget}: {self.path} holds a response of {longest} "
                f"tokens; raise it to {longest}"
            )
        return found

    def check(self) -> None:
        """Refuses responses of another policy."""
        own = fingerprint(self.module.actor)
        others = sorted(self.policies - {own})
        if others and not self.force:
            raise ConfigError(
                f"data.engine.path={self.path}: holds responses of the policy {others[0]}, and "
                f"model.backbone is {own}; record them with this policy, or set "
                "data.engine.force=true"
            )
        self.checked = True

    def generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        """See `RolloutEngine.generate`."""
        if not self.module.trainer.training:
            return self.engine.generate(prompts, samples, sampling, seed)
        if not self.checked:
            self.check()
        rng = random.Random(seed)
        return [self._draw(tuple(ids), samples, rng) for ids in prompts]

    def _draw(self, key: Key, samples: int, rng: random.Random) -> list[Response]:
        known = self.responses[key]
        return known if len(known) == samples else rng.sample(known, samples)

    def _read(self, sampling: Sampling) -> None:
        self.responses.clear()
        for file in self.files:
            for group, responses in self._groups(file):
                self._check_sampling(group, sampling)
                self.policies.add(group["policy"])
                if responses:
                    self.responses.setdefault(tuple(group["prompt_ids"]), []).extend(responses)
            if is_cut(file):
                warnings.warn(
                    f"data.engine.path={self.path}: {file.name} ends in the middle of a line, "
                    "which is left out; its run was cut off, or still writes",
                    ConfigWarning,
                    stacklevel=2,
                )

    def _groups(self, file: Path) -> Iterator[tuple[Row, list[Response]]]:
        """The rows of a file, each with its responses."""
        try:
            for number, row in enumerate(read_rows(file), 1):
                yield row, _responses(row, f"line {number}")
        except ValueError as error:
            raise ConfigError(
                f"data.engine.path={self.path}: {file.name} is no file of RolloutRecorder, "
                f"{error}; record it again, or remove the line"
            ) from error

    def _check_sampling(self, group: Row, sampling: Sampling) -> None:
        for name, value in asdict(sampling).items():
            recorded = group.get(name, value)  # older files say the temperature only
            if recorded != value and not self.force:
                raise ConfigError(
                    f"data.sampling.{name}={value}: {self.path} was recorded with {recorded}, so "
                    f"its responses are drawn from another distribution; set it to {recorded}, or "
                    "data.engine.force=true"
                )


def _responses(row: Any, line: str) -> list[Response]:
    """The responses of a row.

    Args:
        row: What the line holds.
        line: Where it stands, for the message.

    Raises:
        ValueError: It lacks a part, or has one of another type.
    """
    try:
        _require(row["policy"], str, "policy")
        _require(row["prompt_ids"], list, "prompt_ids", int)
        return [_response(response) for response in row["responses"]]
    except KeyError as error:
        raise ValueError(f"{line} lacks {error}") from error
    except TypeError as error:
        raise ValueError(f"{line}: {error}") from error


def _response(row: Row) -> Response:
    ids, mask = row["ids"], row.get("mask")
    _require(ids, list, "ids", int)
    _require(row["text"], str, "text")
    _require(row["truncated"], bool, "truncated")
    if mask is not None:
        _require(mask, list, "mask", bool)
    return Response(
        tuple(ids), row["text"], row["truncated"], mask=None if mask is None else tuple(mask)
    )


def _require(value: Any, kind: type, name: str, of: type | None = None) -> None:
    """Refuses a value of another type, or a list of which a part is."""
    fits = type(value) is kind
    if fits and of is not None:
        fits = all(type(part) is of for part in value)
    if not fits:
        what = kind.__name__ if of is None else f"{kind.__name__} of {of.__name__}"
        raise TypeError(f"{name}={value!r:.40} is no {what}")


def _files(path: str) -> list[Path]:
    given = Path(path).expanduser()
    files = sorted(given.glob("rollouts*.jsonl")) if given.is_dir() else [given]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(
            f"data.engine.path={path}: no recorded rollouts there; RolloutRecorder writes "
            "RUN_DIR/rollouts.jsonl"
        )
    return files
