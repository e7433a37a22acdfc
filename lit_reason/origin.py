"""What networks began as, by which a run that continues sees whether they are still the same."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from lit_reason.architecture import architecture, difference
from lit_reason.critics import vocabulary
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.fingerprint import fingerprint
from lit_reason.restored import CHANGED

KEPT = "that the checkpoint was trained in; give the model that it began with, or start a new run"


def origin(module: Any) -> dict[str, Any]:
    """What a checkpoint notes, as plain values; every rank must ask.

    Args:
        module: With its networks built; a reference that never moves is as it began.
    """
    noted = {
        "vocabulary": vocabulary(module.backbone.tokenizer),
        "architecture": architecture(module.actor),
    }
    reference = getattr(module, "reference", None)
    moves = getattr(module, "reference_moves", False) or module.backbone.fixed_reference
    return noted if reference is None or moves else {**noted, "reference": fingerprint(reference)}


def check_origin(noted: Any, own: Mapping[str, Any]) -> None:
    """Refuses weights that would be another function here.

    Args:
        noted: By the checkpoint; older ones note nothing.
        own: Of the networks that take them.

    Raises:
        ConfigError: The vocabulary or the architecture is another one.
    """
    if not isinstance(noted, Mapping) or not isinstance(noted.get("architecture", {}), Mapping):
        raise ConfigError(f"ckpt_path: its origin is {noted!r:.40}, not a dict; {CHANGED}")
    if str(noted.get("vocabulary", own["vocabulary"])) != own["vocabulary"]:
        raise ConfigError(f"model.backbone: has not the vocabulary {KEPT}")
    if apart := difference(noted.get("architecture", {}), own["architecture"]):
        raise ConfigError(f"model.backbone: is not of the architecture {KEPT} ({apart})")


def warn_of_reference(checkpoint: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Warns of a reference that is not the one that the run began with.

    It is not refused, as a model that another machine makes of a seed may differ by rounding.

    Args:
        checkpoint: It brings a reference that was refreshed.
        own: Of the networks that go on.
    """
    brought = any(name.startswith("reference.") for name in checkpoint["state_dict"])
    noted, now = checkpoint.get("origin", {}).get("reference"), own.get("reference")
    if None not in (noted, now) and noted != now and not brought:
        warnings.warn(
            "model.backbone: its weights are not those that the run began with, and the reference "
            "has changed with them; the networks that train go on from the checkpoint",
            ConfigWarning,
            stacklevel=1,
        )
