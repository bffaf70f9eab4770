"""One client a core: each worker is a process of its own, on one thread, that does whole orders.

Workers are forked, so they share the data's memory and need not be told the model. What crosses between processes is
what would cross a network, the server's message and the client's, plus the client's own memory. A worker computes
exactly what one-by-one computes, so results are the same to the bit; only the order of arrival differs.

A worker dies with the process that made it. If one dies by itself (out of memory, say), its client has failed, the
reason is told, and another worker takes its place.
"""

import ctypes
import io
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from gossamer.engines.client import Client, Done, Order
from gossamer.types import State

FORK = multiprocessing.get_context("fork")
DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG


class SideBySide:
    """As many clients at once as there are cores, or ``workers``."""

    threads: int | None = 1

    def __init__(self, client: Client, workers: int | None = None) -> None:
        self.client = client
        self.size = workers or len(os.sched_getaffinity(0))
        self._workers: dict[Connection, Any] = {}

    def prepare(self, order: Order, orders: int) -> None:
        """Nothing to get ready: workers are made when they are first needed."""

    def run(self, orders: Iterable[Order]) -> Iterator[Done]:
        """Hand an order to whoever is free, and yield what comes back as it comes."""
        while len(self._workers) < self.size:
            self._hire()
        waiting, busy, free = iter(orders), {}, list(self._workers)
        while True:
            while free and (order := next(waiting, None)) is not None:
                busy[free[-1]] = order
                free[-1].send_bytes(pickle.dumps((order._replace(state={}), _store(order.state)), 5))
                free.pop()
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, done = self._collect(ready, busy.pop(ready))
                free.append(worker)
                yield done

    def _collect(self, worker: Connection, order: Order) -> tuple[Connection, Done]:
        """What a worker says of its order; in place of one that died, another."""
        try:
            result, state = pickle.loads(worker.recv_bytes())
        except EOFError:
            process = self._workers.pop(worker)
            process.join()
            return self._hire(), Done(order, f"its process died (exit code {process.exitcode}): out of memory?")
        return worker, Done(order, result if isinstance(result, str) else result._replace(state=_restore(state)))

    def _hire(self) -> Connection:
        here, there = FORK.Pipe()
        process = FORK.Process(target=_work, args=(self.client, there, here), daemon=True)
        process.start()
        there.close()
        self._workers[here] = process
        return here

    def close(self) -> None:
        """Send the workers home."""
        for worker, process in self._workers.items():
            worker.close()
            process.join(timeout=1)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers.clear()


def _work(client: Client, orders: Connection, other_end: Connection) -> None:
    """A worker's life: orders in, answers out, until nobody sends any more."""
    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that made this one
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    torch.set_num_threads(1)
    while True:
        try:
            order, state = pickle.loads(orders.recv_bytes())
        except EOFError:
            return
        _, result = client.do(order._replace(state=_restore(state)))
        if isinstance(result, str):
            orders.send_bytes(pickle.dumps((result, b""), 5))
        else:
            orders.send_bytes(pickle.dumps((result._replace(state={}), _store(result.state)), 5))


def _store(state: State) -> bytes:
    """A client's memory as bytes, quickly where there is none."""
    if not state:
        return b""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _restore(data: bytes) -> State:
    return torch.load(io.BytesIO(data), weights_only=True) if data else {}
