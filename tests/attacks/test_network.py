"""Somebody on the network sees that nodes talk, when, and how much: not what they say."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from gossamer.cli import main
from gossamer.engines.flower import network
from gossamer.runs.checkpoint import read_server
from gossamer.runs.records import read_about, read_metrics

WINDOW = 16


class Wiretap:
    """Stands between all processes and the SuperLink, and keeps every byte."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.target, self.heard = target, bytearray()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.door.getsockname()[1]
        threading.Thread(target=self._admit, daemon=True).start()

    def _admit(self) -> None:
        with suppress(OSError), self.door:
            while True:
                here, _ = self.door.accept()
                threading.Thread(target=self._carry, args=[here], daemon=True).start()

    def _carry(self, here: socket.socket) -> None:
        """Copy both ways of one connection until both have ended."""
        with suppress(OSError), here, socket.create_connection(("127.0.0.1", self.target())) as there:
            back = threading.Thread(target=self._copy, args=[there, here], daemon=True)
            back.start()
            self._copy(here, there)
            back.join()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                self.heard += piece
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Admit nobody any more."""
        with suppress(OSError):
            self.door.shutdown(socket.SHUT_RDWR)


@pytest.mark.network
@pytest.mark.parametrize("more", [["signsgd", "--secure"], ["fedavg", "--dp", "central", "--epsilon", "8"]])
def test_the_network_carries_no_plain_text(more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taps: list[Wiretap] = []

    class Watched(network.LocalNetwork):
        @property
        def address(self) -> str:
            if not taps:
                taps.append(Wiretap(lambda: self._port))
            return f"{network.HOST}:{taps[0].port}"

    monkeypatch.setattr(network, "LocalNetwork", Watched)
    out = tmp_path / "run"
    words = ["deploy", "try", *more, "--nodes", "4", "--rounds", "1", "--out", str(out)]
    try:
        assert main(words) == 0
    finally:
        taps[0].close()
    (record,) = read_metrics(out)
    assert record["exchanges"][0]["folded"] > 0
    heard = bytes(taps[0].heard)
    assert len(heard) > sum(record["bytes_up"].values()) + sum(record["bytes_down"].values())
    params: dict[str, Any] = read_server(out)["params"]
    models = b"".join(t.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for t in params.values())
    pieces = [models[at : at + WINDOW] for at in range(0, len(models) - WINDOW, 64 * WINDOW)]
    pieces = [piece for piece in pieces if len(set(piece)) > 4]
    assert pieces
    assert not any(piece in heard for piece in pieces)
    for text in (read_about(out)["id"].encode(), b"gossamer", b'"client"'):
        assert text not in heard
