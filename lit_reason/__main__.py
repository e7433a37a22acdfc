"""`python -m lit_reason SUBCOMMAND`: the entry point. Imports nothing heavy before it must."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lit_reason import __version__
from lit_reason.signals import hand_back, set_handlers

USAGE = """\
usage: lit_reason SUBCOMMAND [--config FILE ...] [--KEY=VALUE ...]

Reinforcement learning of reasoning language models: PPO, GRPO, DAPO, VC-PPO and VAPO.

subcommands:
  fit         train a policy:            lit_reason fit --config configs/quickstart.yaml
  validate    accuracy on held-out problems: lit_reason validate --config RUN_DIR/config.yaml
                                         --ckpt_path RUN_DIR/checkpoints/last.ckpt
  test        the same under the prefix test/
  predict     write responses with rewards and verdicts to RUN_DIR/predictions.jsonl
  cold_start  supervised training of a starting policy: lit_reason cold_start
                                         --config configs/cold_start.yaml

configuration:
  Several --config files layer, later ones win; --KEY=VALUE wins over files that come before it.
  lit_reason fit --config FILE --print_config      the whole configuration with its defaults
  lit_reason fit --help                            every key
  lit_reason fit --model.advantage.help GAE        the keys of one part

options:
  -h, --help  this text
  --version   the version
"""


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        args: Arguments; `None` takes those of the process.
    """
    given = list(sys.argv[1:] if args is None else args)
    if not given or given[0] in ("-h", "--help"):
        print(USAGE, end="")
    elif given[0] == "--version":
        print(f"lit_reason {__version__}")
    else:
        with stoppable():
            from lit_reason.cli import run
        run(given)


@contextmanager
def stoppable() -> Iterator[None]:
    """Ends the process in one line when a signal comes while modules are imported."""

    def stop(number: int, _: Any) -> None:
        name = signal.Signals(number).name
        os.write(2, f"stopped by {name} before anything was done; start it again\n".encode())
        os._exit(128 + number)  # an import may take any exception for its own

    earlier = set_handlers(stop)
    try:
        yield
    finally:
        hand_back(earlier)


if __name__ == "__main__":
    main()
