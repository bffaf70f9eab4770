"""One client a core: each worker is a process of its own, on one thread, that does whole orders.

Workers are forked, so they share the data's memory and need not be told the model. What crosses between processes is
what would cross a network, the server's message and the client's, plus the client's own memory. A worker computes
exactly what one-by-one computes, so results are the same to the bit; only the order of arrival differs.

A worker dies with the process that made it. If one dies by itself (out of memory, say), its client has failed, the
reason is told, and another worker takes its place.
"""

import ctypes
import importlib
import io
import mmap
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from gossamer.core import tree
from gossamer.core.types import State
from gossamer.core.wire import Frame
from gossamer.engines.client import Client, ClientTask, Failure, TaskOutcome
from gossamer.engines.executors.base import AlwaysReady

FORK = multiprocessing.get_context("fork")
DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG

LINES: set[Connection] = set()
"""This process's ends of the lines to all workers, of whichever executor."""


class SideBySide(AlwaysReady):
    """As many clients at once as there are cores, or ``workers``."""

    threads: int | None = 1

    def __init__(self, client: Client, workers: int | None = None) -> None:
        self.client = client
        self.size = workers or len(os.sched_getaffinity(0))
        self._workers: dict[Connection, tuple[Any, mmap.mmap]] = {}
        self._known: dict[Connection, bytes] = {}

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Hand an order to whoever is free, and yield what comes back as it comes; workers are made when needed."""
        waiting, busy = iter(client_tasks), {}
        following = next(waiting, None)
        while following is not None and len(self._workers) < self.size:
            self._hire(len(following.data))
        for worker in list(self._workers):
            if following is not None:
                busy[worker] = self._tell(worker, following)
                following = next(waiting, None)  # made while nobody waits for it
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, done = self._collect(ready, busy.pop(ready))
                if following is not None:
                    busy[worker] = self._tell(worker, following)
                    following = next(waiting, None)
                yield done

    def _tell(self, worker: Connection, client_task: ClientTask) -> ClientTask:
        """Send an order, and give it back; a common piece that the worker was sent last is not sent again."""
        head, common, own = client_task.data.head, client_task.data.common, client_task.data.single
        known = bool(common) and self._known.get(worker) is common
        self._known[worker] = common
        bare = client_task._replace(state={}, data=Frame(head, b"" if known else common, own))
        worker.send_bytes(pickle.dumps((bare, known, _store(client_task.state)), 5))
        return client_task

    def _collect(self, worker: Connection, client_task: ClientTask) -> tuple[Connection, TaskOutcome]:
        """What a worker says of its order; in place of one that died, another."""
        process, room = self._workers[worker]
        try:
            result, state, length = pickle.loads(worker.recv_bytes())
        except EOFError:
            del self._workers[worker], self._known[worker]
            _hang_up(worker)
            process.join()
            reason = f"its process died (exit code {process.exitcode}): out of memory?"
            return self._hire(len(room)), TaskOutcome(client_task, Failure(reason))
        if isinstance(result, Failure):
            return worker, TaskOutcome(client_task, result)
        if length is not None:
            sent = result.sent._replace(data=Frame(result.sent.data.head, single=room[:length]))
            result = result._replace(sent=sent)
        return worker, TaskOutcome(client_task, result._replace(state=_restore(state)))

    def _hire(self, room: int) -> Connection:
        """One more worker, with so much memory between the two processes for what its messages hold."""
        importlib.import_module("torch._dynamo")  # as counting operations does: once here, and not in each worker
        here, there = FORK.Pipe()
        LINES.add(here)
        between = mmap.mmap(-1, room + mmap.PAGESIZE)
        process = FORK.Process(target=_work, args=(self.client, there, between), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for this process alone
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        self._workers[here] = process, between
        return here

    def close(self) -> None:
        """Send the workers home."""
        for worker in self._workers:
            _hang_up(worker)
        for process, _ in self._workers.values():
            process.join(timeout=1)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers.clear()
        self._known.clear()


def _hang_up(worker: Connection) -> None:
    """Close the line to a worker, which ends when it sees that."""
    LINES.discard(worker)
    worker.close()


def _work(client: Client, client_tasks: Connection, room: mmap.mmap) -> None:
    """A worker's life: orders in, answers out, until nobody sends any more.

    What a message holds is left in the room between the processes, where it fits, and only the rest is sent: whoever
    reads it does so before giving the next order.
    """
    for line in LINES:  # copies: while one is open, the worker at its other end does not see that the line is closed
        line.close()
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    torch.set_num_threads(1)
    common = b""
    while True:
        try:
            client_task, known, state = pickle.loads(client_tasks.recv_bytes())
        except EOFError:
            return
        common = common if known else client_task.data.common
        data = Frame(client_task.data.head, common, client_task.data.single)
        _, result = client.do(client_task._replace(state=_restore(state), data=data))
        if isinstance(result, Failure):
            client_tasks.send_bytes(pickle.dumps((_portable(result), {}, None), 5))
            continue
        sent, length = result.sent, None
        if len(sent.data.single) <= len(room):
            length = len(sent.data.single)
            room[:length] = sent.data.single
            sent = sent._replace(data=Frame(sent.data.head))
        client_tasks.send_bytes(pickle.dumps((result._replace(sent=sent, state={}), _store(result.state), length), 5))


def _portable(failure: Failure) -> Failure:
    """A failure that can be sent to another process: the traceback goes along as a note of the error."""
    cause = failure.cause
    if cause is None:
        return failure
    cause.add_note("".join(traceback.format_exception(cause)).rstrip())
    try:
        pickle.loads(pickle.dumps(cause))
    except Exception:  # an error of the user's own making may hold anything
        return Failure(failure.reason, RuntimeError("\n".join((failure.reason, *cause.__notes__))))
    return failure


def _store(state: State) -> State | bytes:
    """A client's memory, so that it can be sent: as it is where it holds no tensors, else as bytes."""
    if not tree.flatten(state):
        return state
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _restore(stored: State | bytes) -> State:
    return torch.load(io.BytesIO(stored), weights_only=True) if isinstance(stored, bytes) else stored
