"""Ranks whose peer dies stop soon, and say why."""

import multiprocessing
import os
import queue
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from lit_reason.errors import ConfigError
from lit_reason.peers import Peers
from tests.conftest import SMALL, tiny

LIMIT = 60  # seconds, as promised


def rank_of_two(rank, port, args, moment):
    """A rank of a run; the second one kills itself at a moment, or never."""
    os.environ |= {
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    os.environ.pop("PL_GLOBAL_SEED", None)
    log = os.open(f"rank{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, sys.stderr.fileno())
    from lit_reason.cli import run
    from lit_reason.stopping import StopSignals

    own = StopSignals.on_stage

    def on_stage(self, trainer, stage):
        own(self, trainer, stage)
        version = trainer.lightning_module.policy_version
        if (moment, version, stage, rank) == ("signal", 0, "update", 1):
            os.kill(os.getpid(), signal.SIGTERM)
        if (moment, version, stage, rank) == ("hang", 1, "update", 1):
            os.kill(os.getpid(), signal.SIGSTOP)
        if version == 1 and stage == moment:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(LIMIT * (stage == "rollout"))  # a long generation, without a collective

    StopSignals.on_stage = on_stage
    run(args)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ranks_of(moment, strategy, *more):
    """Both ranks of a run, started."""
    two = ["--trainer.devices=2", f"--trainer.strategy={strategy}", "--run_dir=run", *more]
    args = ["fit", *tiny("grpo"), *SMALL, *two]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lit_reason.cli"])
    port = free_port()
    ranks = [context.Process(target=rank_of_two, args=(r, port, args, moment)) for r in range(2)]
    for process in ranks:
        process.start()
    return ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "strategy"), [("rollout", "ddp"), ("update", "ddp"), ("update", "fsdp2")]
)
def test_a_rank_that_dies_stops_the_other_within_a_minute_and_in_one_line(moment, strategy):
    ranks = ranks_of(moment, strategy)
    ranks[1].join()
    died = time.monotonic()
    ranks[0].join(LIMIT)
    assert time.monotonic() - died < LIMIT
    assert (ranks[1].exitcode, ranks[0].exitcode) in ((-9, 1), (-9, 2)), Path(
        "rank0.txt"
    ).read_text()
    lines = [x for x in Path("rank0.txt").read_text().splitlines() if x.startswith("error: ")]
    assert len(lines) == 1
    assert re.search(
        r"rank 1 has ended, so rank 0 stops: .*continue with --ckpt_path=last", lines[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_signal_to_one_rank_stops_both_after_the_same_rollout(strategy):
    ranks = ranks_of("signal", strategy)
    for process in ranks:
        process.join(LIMIT)
    assert [process.exitcode for process in ranks] == [143, 143]
    assert "stopped by SIGTERM after 1 rollouts; continue with: " in Path("rank0.txt").read_text()
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["policy_version"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["DDPStrategy", "FSDP2"])
def test_a_rank_that_hangs_ends_the_other_after_the_time_limit_of_collectives(strategy):
    limit = "--trainer.strategy.timeout=0:00:20"
    ranks = ranks_of("hang", strategy, limit)
    try:
        ranks[0].join(2 * LIMIT)
        assert ranks[0].exitcode == 2
        lines = [x for x in Path("rank0.txt").read_text().splitlines() if x.startswith("error: ")]
        assert len(lines) == 1
        assert "trainer.strategy.timeout" in lines[0]
    finally:
        ranks[1].kill()
        ranks[1].join()


def test_a_stranger_that_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("lit_reason.peers.HELLO", 0.2)
    told, silent, others = queue.Queue(), [], []

    def first(mine):
        """Tells the others where rank 0 listens, once a stranger has connected."""
        silent.append(socket.create_connection(("127.0.0.1", mine[0])))
        told.put(mine)
        return mine

    joining = threading.Thread(
        target=lambda: others.append(Peers(1, 2, "127.0.0.1", lambda _: told.get()))
    )
    joining.start()
    lead = Peers(0, 2, "127.0.0.1", first)
    joining.join()
    assert len(lead.ends) == 1
    for peers in (lead, *others):
        peers.close(in_order=True)
    silent[0].close()


def test_ranks_that_cannot_connect_are_told_which_address(monkeypatch):
    monkeypatch.setattr("lit_reason.peers.JOIN", 0.2)
    with pytest.raises(ConfigError, match=r"of 2 ranks some did not connect to .*127"):
        Peers(0, 2, "127.0.0.1", lambda mine: mine)
    with pytest.raises(ConfigError, match="rank 0 cannot be reached at 127"):
        Peers(1, 2, "127.0.0.1", lambda _: (free_port(), b""))
