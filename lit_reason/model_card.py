"""The README of an exported policy: where it came from and how to load it."""

from __future__ import annotations

from typing import Any

from lit_reason import __version__

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [reinforcement-learning, lit-reason]
---

# A policy trained with lit_reason {version}

| | |
|---|---|
{table}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER", dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```

Its licence is that of the model it started from. It was trained for the rewards of this one task,
and says nothing reliable beyond it.
"""


def model_card(config: dict[str, Any], rollouts: int) -> str:
    """The text of the README, in the form the Hugging Face hub reads.

    Args:
        config: Configuration of the run.
        rollouts: Rollouts trained on.
    """
    model, data = config.get("model") or {}, config.get("data") or {}
    start = model.get("backbone") or {}
    base = (start.get("init_args") or {}).get("path")
    rows = {
        "started from": base or _name(start),
        "rollouts": rollouts,
        "advantage": _name(model.get("advantage")),
        "policy loss": _name(model.get("policy")),
        "further terms": ", ".join(model.get("terms") or ()) or "none",
        "task": _name(data.get("task")),
        "rewards": ", ".join(data.get("rewards") or ()) or "none",
        "responses to a prompt": data.get("group_size"),
        "temperature": (data.get("sampling") or {}).get("temperature"),
        "seed": config.get("seed_everything"),
    }
    told = {key: value for key, value in rows.items() if value is not None}
    table = "\n".join(f"| {key} | {value} |" for key, value in told.items())
    return CARD.format(version=__version__, table=table)


def _name(part: Any) -> str | None:
    """The class of a part without its module."""
    path = part.get("class_path") if isinstance(part, dict) else part
    return str(path).rpartition(".")[2] if path else None
