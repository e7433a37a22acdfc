"""Signals before a run trains, terminals that close, and the commands that are printed."""

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch

from lit_reason.__main__ import main
from lit_reason.cli import ReasonCLI
from lit_reason.stopping import hand_back, take_over
from tests.conftest import SMALL, fit, tiny

GRPO = [*tiny("grpo"), *SMALL, "--data.rollouts_per_epoch=2", "--trainer.limit_val_batches=0"]
PARTS = """
import os, signal
from lightning.pytorch import Callback

class Sends(Callback):
    def __init__(self, number: int, hook: str, version: int = 0):
        self.number, self.hook, self.version = number, hook, version

    def _send(self, hook, module):
        if (hook, module.policy_version) == (self.hook, self.version):
            os.kill(os.getpid(), self.number)

    def setup(self, trainer, module, stage):
        self._send("setup", module)

    def on_load_checkpoint(self, trainer, module, checkpoint):
        self._send("restoring", module)

    def on_validation_start(self, trainer, module):
        self._send("validation", module)

    def on_train_batch_start(self, trainer, module, *_):
        self._send("update", module)
"""


@pytest.fixture(autouse=True)
def _own_parts(monkeypatch, tmp_path):
    (tmp_path / "sending.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under `nohup`
    yield
    signal.signal(signal.SIGHUP, before)


def sends(number, hook, version=0):
    """The arguments of a callback that sends a signal to its run."""
    given = {"number": int(number), "hook": hook, "version": version}
    return ["--callbacks.x=sending.Sends", *(f"--callbacks.x.{k}={v}" for k, v in given.items())]


def stopped(capsys, *args):
    """Exit status and last line of a command that is stopped."""
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    return stop.value.code, capsys.readouterr().err.splitlines()[-1]


ASKED_FOR = """
import os, sys
from lit_reason.__main__ import main

class Finder:
    def find_spec(name, *_):
        if name == "lit_reason.cli":
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Finder)
main(["fit"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_modules_are_imported_is_one_line(number):
    code = ASKED_FOR.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert done.stderr == f"stopped by {number.name} before anything was done; start it again\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_a_run_trains_is_one_line(number, capsys):
    args = ["fit", *GRPO, "--run_dir=run", *sends(number, "setup")]
    said = f"stopped by {number.name}, without a new checkpoint"
    assert stopped(capsys, *args) == (128 + number, said)
    assert not Path("run").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_a_signal_while_a_run_is_restored_says_how_to_continue(number, capsys):
    last = fit(*GRPO) / "checkpoints" / "last.ckpt"
    before = last.read_bytes()
    args = ["fit", "--config=run/config.yaml", f"--ckpt_path={last}", "--trainer.max_epochs=2"]
    status, said = stopped(capsys, *args, *sends(number, "restoring", 2))
    assert status == 128 + number
    command = f"python -m lit_reason fit --config run/config.yaml --ckpt_path {last}"
    assert said.endswith(f"without a new checkpoint; continue with: {command}")
    assert last.read_bytes() == before


def test_a_signal_while_the_arguments_of_a_run_that_continues_are_read_says_so_too(
    capsys, monkeypatch
):
    last = fit(*GRPO) / "checkpoints" / "last.ckpt"
    parse = ReasonCLI.parse_arguments

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        parse(*args)

    monkeypatch.setattr(ReasonCLI, "parse_arguments", interrupted)
    command = f"python -m lit_reason fit --config run/config.yaml --ckpt_path {last}"
    args = ["fit", "--config=run/config.yaml", "--ckpt_path=last"]
    said = f"stopped by SIGINT, without a new checkpoint; continue with: {command}"
    assert stopped(capsys, *args) == (130, said)
    assert stopped(capsys, *args[:2]) == (130, "stopped by SIGINT, without a new checkpoint")


@pytest.mark.parametrize(
    ("subcommand", "hook", "number"),
    [("validate", "validation", signal.SIGINT), ("predict", "setup", signal.SIGTERM)],
)
def test_a_signal_to_an_evaluation_ends_it(subcommand, hook, number, capsys):
    status, said = stopped(capsys, subcommand, *tiny("grpo"), *SMALL, *sends(number, hook))
    assert (status, said) == (128 + number, f"stopped by {number.name}")


def test_a_forked_process_does_what_it_would_do():
    def stop(number, _):
        raise AssertionError("the parent's handler")

    earlier = take_over(stop)
    try:
        child = os.fork()
        if child == 0:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
    finally:
        hand_back(earlier)


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before_all = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        fit(*GRPO, *sends(signal.SIGHUP, "update", 1))
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        assert after == before_all
    finally:
        signal.signal(signal.SIGHUP, before)
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["policy_version"] == 2


ODD = ["do $HOME; 'x' \"é\"", "-dash"]


@pytest.mark.parametrize("name", ODD)
def test_the_command_that_continues_a_run_can_be_typed_as_it_is(name, capsys):
    args = ["fit", *GRPO, "--trainer.max_epochs=2", f"--run_dir={name}"]
    status, said = stopped(capsys, *args, *sends(signal.SIGTERM, "update", 1))
    assert status == 143
    shell = said.split("continue with: ")[1]
    given = shlex.split(shell)
    assert given[:3] == ["python", "-m", "lit_reason"]
    # what a shell makes of it is what `shlex` does
    echoed = subprocess.check_output(["sh", "-c", f"printf '%s\\n' {shell}"], text=True)
    assert echoed.splitlines() == given
    main([*given[3:], "--callbacks.x=null"])
    last = Path(name, "checkpoints", "last.ckpt")
    assert torch.load(last, weights_only=True)["policy_version"] == 4


@pytest.mark.parametrize("name", ODD[:1])
def test_the_way_to_continue_that_an_error_names_can_be_typed_too(name, capsys):
    args = ["fit", *GRPO, f"--run_dir={name}"]
    main(args)
    status, said = stopped(capsys, *args)
    assert status == 2
    (flag,) = shlex.split(re.search(r"continue it with (.*)", said)[1])
    main([*args, flag, "--trainer.max_epochs=2"])


def test_checkpoints_behind_a_link_are_those_of_the_run():
    fit(*GRPO)
    Path("run/checkpoints").rename("disk")
    Path("run/checkpoints").symlink_to("../disk")
    fit(*GRPO, "--ckpt_path=run/checkpoints/last.ckpt", "--trainer.max_epochs=2")
    assert torch.load("disk/last.ckpt", weights_only=True)["policy_version"] == 4


def test_a_terminal_that_closes_ends_a_run_with_a_checkpoint():
    """The kernel sends SIGHUP, and what is written to the terminal afterwards fails."""
    lead, follow = pty.openpty()

    def own_terminal():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under `nohup`
        os.setsid()
        fcntl.ioctl(follow, termios.TIOCSCTTY, 0)

    long = ["--data.rollouts_per_epoch=5000", "--trainer.enable_progress_bar=true"]
    args = ["fit", *GRPO, *long, "--run_dir=run"]
    fcntl.ioctl(follow, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "lit_reason", *args],
        stdin=follow,
        stdout=follow,
        stderr=follow,
        preexec_fn=own_terminal,
    )
    os.close(follow)
    try:
        shown = b""
        while b"3/5000" not in shown:  # the progress bar: it trains
            shown += os.read(lead, 4096)
        os.close(lead)
        assert process.wait(60) == 128 + signal.SIGHUP
    finally:
        process.kill()
        process.wait()
    assert torch.load("run/checkpoints/last.ckpt", weights_only=True)["policy_version"] >= 1
