"""What a run says once, whatever the number of its processes."""

from __future__ import annotations


def log(message: str) -> None:
    """Logs on the first rank, also where Lightning has not been imported yet.

    Lightning sets the rank at its import; a script that only loads a task needs none of it before.
    """
    from lightning.pytorch.utilities import rank_zero_info

    rank_zero_info(message)
