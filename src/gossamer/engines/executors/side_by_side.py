"""One worker process per core; each worker runs whole client tasks on one thread.

Workers are forked, so they share the memory of data and method. Only messages and client states cross between
processes. A worker computes exactly what ``one-by-one`` computes, so results are bitwise equal. Only the order of
arrival differs.

A worker dies with its parent process. If a worker dies on its own (out of memory, say), its client fails with a reason,
and another worker is started. A worker that died between two rounds has no client, and is replaced.
"""

import gc
import mmap
import multiprocessing
import pickle
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from gossamer.core.chunks import cores
from gossamer.core.processes import die_with_parent
from gossamer.core.wire import Frame
from gossamer.engines.client import Client, ClientTask, Failure, TaskOutcome
from gossamer.engines.executors.base import AlwaysReady
from gossamer.engines.executors.parcels import pack_state, portable, unpack_state

FORK = multiprocessing.get_context("fork")
PROCESS_CLOCK = 2  # the low bits of Linux's clock of a process, see clock_getcpuclockid(3)

LINES: set[Connection] = set()
"""This process's ends of the pipes to all workers, of all executors."""


class SideBySide(AlwaysReady):
    """One worker process per core, or ``workers`` processes."""

    threads: int | None = 1

    def __init__(self, client: Client, workers: int | None = None) -> None:
        self.client = client
        self.size = workers or cores()
        self._workers: dict[Connection, tuple[Any, mmap.mmap]] = {}
        self._known: dict[Connection, bytes | memoryview] = {}

    def run(self, client_tasks: Iterable[ClientTask]) -> Iterator[TaskOutcome]:
        """Hand tasks to free workers and yield outcomes as they arrive; start workers on demand."""
        self._dismiss_dead()
        waiting, busy = iter(client_tasks), {}
        following = next(waiting, None)
        while following is not None and len(self._workers) < self.size:
            self._hire(len(following.data))
        for worker in list(self._workers):
            if following is not None:
                busy[worker] = self._send(worker, following)
                following = next(waiting, None)  # created while the workers are busy
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, done = self._collect(ready, busy.pop(ready))
                if following is not None:
                    busy[worker] = self._send(worker, following)
                    following = next(waiting, None)
                yield done

    def processor_seconds(self) -> float:
        """Return the processor time of this process and of all workers so far."""
        return time.process_time() + sum(_processor_seconds(process.pid) for process, _ in self._workers.values())

    def _send(self, worker: Connection, client_task: ClientTask) -> ClientTask:
        """Send a task to a worker and return it; a common part that the worker received last is not sent again."""
        head, common, own = client_task.data.head, client_task.data.common, client_task.data.single
        known = bool(common) and self._known.get(worker) is common
        self._known[worker] = common
        bare = client_task._replace(state={}, data=Frame(head, b"" if known else common, own))
        message = pickle.dumps((bare, known, pack_state(client_task.state)), 5)
        with suppress(ConnectionError):  # the worker has just died, which ``_collect`` sees too
            worker.send_bytes(message)
        return client_task

    def _collect(self, worker: Connection, client_task: ClientTask) -> tuple[Connection, TaskOutcome]:
        """Receive an outcome from a worker; replace the worker if it died."""
        process, room = self._workers[worker]
        try:
            reply = worker.recv_bytes()
        except (EOFError, OSError):  # an OSError if it died before it read its task, or while it replied
            self._dismiss(worker)
            reason = f"its process died (exit code {process.exitcode}): out of memory?"
            return self._hire(len(room)), TaskOutcome(client_task, Failure(reason))
        result, state, length, checksum = pickle.loads(reply)
        if isinstance(result, Failure):
            return worker, TaskOutcome(client_task, result)
        if length is not None:
            data = Frame(result.sent.data.head, single=room[:length]).with_checksum(checksum)
            result = result._replace(sent=result.sent._replace(data=data))
        return worker, TaskOutcome(client_task, result._replace(state=unpack_state(state)))

    def _hire(self, room: int) -> Connection:
        """Start a worker, with ``room`` bytes of shared memory for its uploads."""
        if not self._workers:
            gc.collect()
            gc.freeze()  # a collection here or in a worker would write to all objects, and so copy shared pages
        here, there = FORK.Pipe()
        LINES.add(here)
        between = mmap.mmap(-1, room + mmap.PAGESIZE)
        process = FORK.Process(target=_work, args=(self.client, there, between), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # only this process handles Ctrl-C
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        self._workers[here] = process, between
        return here

    def _dismiss_dead(self) -> None:
        """Forget the workers that died since the last task."""
        for worker in [worker for worker, (process, _) in self._workers.items() if not process.is_alive()]:
            self._dismiss(worker)

    def _dismiss(self, worker: Connection) -> None:
        """Forget a worker that has died or is about to."""
        process, _ = self._workers.pop(worker)
        self._known.pop(worker, None)
        _hang_up(worker)
        process.join()

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            _hang_up(worker)
        for process, _ in self._workers.values():
            process.join(timeout=1)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers.clear()
        self._known.clear()
        gc.unfreeze()


def _processor_seconds(pid: int) -> float:
    """Return the processor time of another process so far."""
    return time.clock_gettime(~pid << 3 | PROCESS_CLOCK)


def _hang_up(worker: Connection) -> None:
    """Close the pipe to a worker, which then ends."""
    LINES.discard(worker)
    worker.close()


def _work(client: Client, client_tasks: Connection, room: mmap.mmap) -> None:
    """Main loop of a worker: run tasks until the pipe is closed, by a parent that has ended or that stops early."""
    for line in LINES:  # inherited copies: while one is open, its worker does not see that the pipe is closed
        line.close()
    die_with_parent()
    torch.set_num_threads(1)
    common = b""
    while True:
        try:
            client_task, known, state = pickle.loads(client_tasks.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        common = common if known else client_task.data.common
        data = Frame(client_task.data.head, common, client_task.data.single)
        reply = _reply(client, client_task._replace(state=unpack_state(state), data=data), room)
        try:
            client_tasks.send_bytes(reply)
        except (BrokenPipeError, ConnectionResetError):
            return


def _reply(client: Client, client_task: ClientTask, room: mmap.mmap) -> bytes:
    """Do a task and return the message with its result.

    The payload of an upload is written to shared memory if it fits. The parent reads it before it sends the next task.
    """
    _, result = client.do(client_task)
    if isinstance(result, Failure):
        return pickle.dumps((portable(result), {}, None, None), 5)
    sent, length, checksum = result.sent, None, result.sent.data.checksum
    if len(sent.data.single) <= len(room):
        length = len(sent.data.single)
        room[:length] = sent.data.single
        sent = sent._replace(data=Frame(sent.data.head))
    return pickle.dumps((result._replace(sent=sent, state={}), pack_state(result.state), length, checksum), 5)
