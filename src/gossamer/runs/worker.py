"""The process of a worker: ``python -m gossamer.runs.worker FD`` runs the calls that arrive at a socket."""

import io
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from gossamer.core.processes import die_with_parent

INTERRUPTED = "it was interrupted"


def main(handle: int) -> None:
    """Run calls until the other end closes the socket, or its process ends."""
    die_with_parent()
    line = Connection(handle)
    while True:
        try:
            call = line.recv()
        except (EOFError, ConnectionResetError):
            return
        line.send(_reply(*call))


def _reply(main_module: str | None, call: bytes, log: str | None) -> tuple[Any, str | None]:
    """Return what a call returned, or else why it failed."""
    with _writing(log):
        try:
            with _interruptible():
                function, args = _Reader(io.BytesIO(call), main_module).load()
                value = function(*args)
            pickle.dumps(value)
            return value, None
        except KeyboardInterrupt:
            return None, INTERRUPTED
        except BaseException as error:  # a job may fail in any way, and others follow
            traceback.print_exception(error)
            return None, repr(error)


class _Reader(pickle.Unpickler):
    """Reads a call; what the parent's main module defines is found in the module of that name."""

    def __init__(self, file: io.BytesIO, main_module: str | None) -> None:
        super().__init__(file)
        self.main_module = main_module

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            if self.main_module is None:
                raise pickle.UnpicklingError(f"{name} is defined in a script: move it to a module that can be imported")
            module = self.main_module
            import_module(module)
        return super().find_class(module, name)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C, as the parent sends it, interrupt a job alone."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextmanager
def _writing(log: str | None) -> Iterator[None]:
    """Append the output of a job to a file, also that of the processes that it starts."""
    if log is None:
        yield
        return
    kept = [os.dup(stream) for stream in (1, 2)]
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, was in zip((1, 2), kept, strict=True):
            os.dup2(was, stream)
            os.close(was)


if __name__ == "__main__":
    main(int(sys.argv[1]))
