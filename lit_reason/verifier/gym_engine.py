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

    Many scorers raise on an answer that they cannot parse: it is wrong. One that raises on its own
    gold answer too cannot judge the problem, and raises here.

    Args:
        request: As `gym.request_of` makes it, as JSON.
        stated: The answer.
    """
    asked = json.loads(request)
    generator = _generator(asked["generator"], json.dumps(asked["params"]))
    entry = unpacked(asked["entry"])
    try:
        return bool(generator.score_answer(stated, entry) >= asked["threshold"])
    except MemoryError:
        raise
    except Exception:
        generator.score_answer(entry["answer"], entry)
        return False


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
