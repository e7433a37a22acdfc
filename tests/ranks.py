"""Two real processes that talk over gloo and run what a test sends them."""

import multiprocessing
import os
import sys
import time
import traceback
from datetime import timedelta
from importlib import import_module

import pytest
import torch

LIMIT = 120  # seconds that a call may take; a rank that waits for the other hangs


class Ranks:
    """The parent's end of two workers."""

    def __init__(self, folder):
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(2)]
        self.ends = [ours for ours, _ in pipes]
        self.workers = [
            context.Process(target=work, args=(theirs, rank, str(folder)), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for worker in self.workers:
            worker.start()

    def __call__(self, function, *args):
        """What a function of a test module returns on each rank."""
        if not all(worker.is_alive() for worker in self.workers):
            pytest.fail("the workers ended, see the first failure of this file")
        for end in self.ends:
            end.send((function.__module__, function.__name__, args))
        deadline, answers = time.monotonic() + LIMIT, []
        for rank, end in enumerate(self.ends):
            if not end.poll(max(deadline - time.monotonic(), 0)):
                self.stop()
                pytest.fail(f"rank {rank} did not finish {function.__name__} in {LIMIT} s")
            try:
                answers.append(end.recv())
            except EOFError:
                self.stop()
                pytest.fail(f"rank {rank} died in {function.__name__}")
        for rank, (error, _) in enumerate(answers):
            if error:
                self.stop()  # the other rank may be in a collective
                pytest.fail(f"rank {rank}:\n{error}")
        return [value for _, value in answers]

    def stop(self):
        for worker in self.workers:
            worker.kill()
            worker.join()


def work(pipe, rank, folder):
    """The loop of one worker."""
    os.environ |= {
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "WANDB_MODE": "offline",
        "HF_HUB_OFFLINE": "1",
    }
    os.chdir(folder)
    sys.stdout = sys.stderr = open(f"{folder}/rank{rank}.txt", "w", 1)  # noqa: SIM115
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=LIMIT),
    )
    while True:
        module, name, args = pipe.recv()
        try:
            pipe.send((None, getattr(import_module(module), name)(rank, *args)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
