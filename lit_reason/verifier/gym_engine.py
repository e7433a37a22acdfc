"""The engine of workers that ask a scorer of `reasoning-gym`, instead of comparing two answers.

Imported in worker processes only: it needs the package.
"""

from __future__ import annotations

import contextlib
import json
from functools import lru_cache
from typing import Any

with contextlib.suppress(ImportError):  # `GymVerifier` has said so
    import reasoning_gym  # here, so that the children of a worker need not


def accepts(request: str, stated: str) -> bool:
    """Whether the scorer of a problem gives an answer at least the threshold.

    Args:
        request: As `gym.request_of` makes it, as JSON.
        stated: The answer.
    """
    asked = json.loads(request)
    generator = _generator(asked["generator"], json.dumps(asked["params"]))
    return bool(generator.score_answer(stated, unpacked(asked["entry"])) >= asked["threshold"])


@lru_cache(maxsize=8)
def _generator(name: str, params: str) -> Any:
    return reasoning_gym.create_dataset(name, size=1, seed=0, **json.loads(params))


def unpacked(value: Any) -> Any:
    """What `gym.packed` was given."""
    if isinstance(value, dict):
        if value.keys() == {"tuple"}:
            return tuple(unpacked(item) for item in value["tuple"])
        return {key: unpacked(item) for key, item in value.items()}
    return [unpacked(item) for item in value] if isinstance(value, list) else value
