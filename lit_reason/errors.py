"""What goes wrong on the user's side: errors that end a run in one line, warnings that do not."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that cannot work. The message names the key, its value and a valid choice."""


class ConfigWarning(UserWarning):
    """A setting that has no effect, or one that is known to spoil a run."""
