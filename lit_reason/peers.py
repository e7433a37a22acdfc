"""Ranks that notice when one of them has ended, instead of waiting for it in a collective."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_reason.errors import ConfigError

GRACE = 10.0  # seconds in which a rank may report an error of its own
JOIN = 60.0  # seconds in which all ranks connect
HELLO = 5.0  # seconds in which one that has connected says who it is
GOODBYE = b"."
HINT = "its output says why, unless it was killed; continue with --ckpt_path=last"
COLLECTIVE = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")


class Peers:
    """Connections between rank 0 and every other rank, which end with the process they lead to.

    The kernel closes them when a process dies, however busy the others are, and its keep-alive
    probes find a machine that is gone within 35 seconds. Rank 0 watches the others, and they
    watch rank 0: when it stops, all do.

    Args:
        rank: Of this process.
        world: Number of ranks.
        host: Address of rank 0.
        broadcast: Gives every rank what rank 0 passed.
    """

    def __init__(self, rank: int, world: int, host: str, broadcast: Callable[[Any], Any]) -> None:
        self.rank, self.lost = rank, threading.Event()
        self.ended, self.closed, self.in_order = -1, False, False
        self.ends: list[socket.socket] = []
        server = socket.create_server((host, 0)) if rank == 0 else None
        mine = (server.getsockname()[1], secrets.token_bytes(16)) if server else None
        port, token = broadcast(mine)
        if server is None:
            self._watch(0, _connect(host, port, token + rank.to_bytes(4, "big")))
            return
        with server:
            server.settimeout(JOIN)
            while len(self.ends) < world - 1:
                self._welcome(_accept(server, world), token)

    def _welcome(self, end: socket.socket, token: bytes) -> None:
        """Watches a rank, and lets a stranger go."""
        end.settimeout(HELLO)
        try:
            said = end.recv(len(token) + 4, socket.MSG_WAITALL)
        except OSError:
            said = b""
        if secrets.compare_digest(said[: len(token)], token):
            self._watch(int.from_bytes(said[len(token) :], "big"), end)
        else:
            end.close()

    def _watch(self, peer: int, end: socket.socket) -> None:
        end.settimeout(None)
        _keep_alive(end)
        self.ends.append(end)
        threading.Thread(target=self._wait, args=(peer, end), daemon=True).start()

    def _wait(self, peer: int, end: socket.socket) -> None:
        try:
            said = end.recv(1)
        except OSError:
            said = b""
        if said == GOODBYE or self.closed:
            return
        self.ended = peer
        self.lost.set()
        time.sleep(GRACE)  # a collective may fail too, or this rank have an error of its own
        if not self.in_order:
            sys.stderr.write(f"error: {self.message()}\n")
            sys.stderr.flush()
            os._exit(1)  # the main thread may wait in a collective for ever

    def message(self) -> str:
        """Which rank has ended, in one line."""
        return f"rank {self.ended} has ended, so rank {self.rank} stops: {HINT}"

    def close(self, in_order: bool) -> None:
        """Stops watching.

        Args:
            in_order: This rank has done its work; otherwise the others are to stop.
        """
        self.closed, self.in_order = True, in_order
        for end in self.ends:
            try:
                if in_order:
                    end.sendall(GOODBYE)
                end.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side was faster
                pass
            end.close()
        self.ends = []


class PeerWatch(Callback):
    """Stops every rank within a minute after one of them has died, with an error that says so."""

    current: PeerWatch | None = None  # of this process

    def __init__(self) -> None:
        self.peers: Peers | None = None
        self.reason: str | None = None
        PeerWatch.current = self

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Connects the ranks."""
        if trainer.world_size == 1 or self.peers is not None:
            return
        strategy: Any = trainer.strategy
        self.peers = Peers(
            trainer.global_rank,
            trainer.world_size,
            strategy.cluster_environment.main_address,
            lambda x: strategy.broadcast(x, src=0),
        )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: Any) -> None:
        """Lets the others know, who may wait for this rank."""
        if self.peers is None:
            return
        failed = any(word in str(exception) for word in COLLECTIVE)
        if failed and isinstance(exception, RuntimeError):
            if self.peers.lost.wait(2):
                self.reason = self.peers.message()
            elif "Timed out" in str(exception):
                self.reason = (
                    f"trainer.strategy.timeout: rank {self.peers.rank} has waited so long for "
                    "another, which hangs or is too slow; raise it, or continue with "
                    "--ckpt_path=last"
                )
        self.peers.close(in_order=False)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Says goodbye."""
        if self.peers is not None:
            self.peers.close(in_order=True)
            self.peers = None


def ended_peer() -> str | None:
    """The line to show if a collective failed because another rank has ended or hangs."""
    return None if PeerWatch.current is None else PeerWatch.current.reason


def _accept(server: socket.socket, world: int) -> socket.socket:
    try:
        return server.accept()[0]
    except TimeoutError:
        raise ConfigError(
            f"trainer: of {world} ranks some did not connect to {server.getsockname()} within "
            f"{JOIN:.0f} s; let them reach that address"
        ) from None


def _connect(host: str, port: int, hello: bytes) -> socket.socket:
    try:
        end = socket.create_connection((host, port), timeout=JOIN)
    except OSError as error:
        raise ConfigError(
            f"trainer: rank 0 cannot be reached at {host}:{port} ({error}), where it would see "
            "that this one has ended; let the ranks connect"
        ) from error
    end.sendall(hello)
    return end


def _keep_alive(end: socket.socket) -> None:
    """Finds a machine that is gone after 20 s of silence and three probes, 5 s apart."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        option = getattr(socket, name, None)  # not on every system
        if option is not None:
            end.setsockopt(socket.IPPROTO_TCP, option, value)
