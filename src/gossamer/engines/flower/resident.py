"""The client app's process on a node: it stays for all messages of a run, and so keeps the app and its data.

It does what ``flower-superexec`` and ``flwr-clientapp`` do: it takes a task from the SuperNode, gets the message, calls
the app, and returns the reply. The process replaces itself by a new one when a task comes

- of another run, because two apps may have modules of the same name;
- while it is busy. A SuperNode has one message at a time, so it has given up the earlier one: the server may have died
  before it had sent all of it, and the rest would be awaited for hours.

If the process dies, ``supernode.py`` starts it again. The client state is in the journal.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from logging import ERROR
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from flwr.app import Error, Message
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullAppMessagesRequest, PullAppMessagesResponse
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.logger import log
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from gossamer.engines.flower.supernode import LOCAL

T = TypeVar("T")

POLL = 0.2
"""Seconds between two requests for tasks to the SuperNode, which is on the same machine."""

ON_ITS_WAY = 5.0
"""Seconds to wait for a message that is announced; Flower then waits for its parts, with longer and longer pauses."""

GRACE = 5.0
"""Seconds that a finished task has to be closed before the next one."""

HANDED = "GOSSAMER_HANDED_TASK"
"""Environment variable with the task that a process leaves to the one that replaces it."""


class Claim(NamedTuple):
    """A task taken from the SuperNode: the run it belongs to, and the token that gives access to it."""

    run: int
    token: str


class TaskClient(RuntimeHttpClient):
    """A connection that waits for a message on its way.

    A SuperNode announces a task before it has the whole message. Flower's own process starts so slowly that it finds
    everything; this one may come too early, would fail without the message, and would pause a second for a missing
    array.
    """

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        """Return the message of the task."""
        return _awaited(partial(super().PullMessages, request), lambda found: bool(found.messages_list))

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        """Return a part of the message."""
        return _awaited(
            partial(super().PullObject, request), lambda found: found.object_available or not found.object_found
        )


class SuperNode(NamedTuple):
    """The SuperNode's API on this machine, and the certificates that it is checked with, if it uses TLS."""

    address: str
    certificates: bytes | None

    def connect(self, token: str = "") -> TaskClient:
        """Return a connection, with the access to one task if there is a token."""
        access = [RuntimeTokenHttpInterceptor(token)] if token else []
        return TaskClient.from_server_address(
            self.address,
            self.certificates is None,
            self.certificates,
            [RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *access],
            retry_invoker=make_simple_http_retry_invoker(),
        )

    def claims(self) -> Iterator[Claim]:
        """Yield tasks as they come."""
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        with closing(self.connect()) as client:
            while True:
                found = client.AcquireTask(wanted)
                if found.token:
                    yield Claim(found.task.run_id, found.token)
                else:
                    time.sleep(POLL)


class Resident:
    """Handles the tasks of one run, in the main thread; another thread watches for new ones."""

    def __init__(self, node: SuperNode) -> None:
        self.node = node
        self.run: int | None = None
        self.idle, self.waiting = threading.Event(), SimpleQueue[Claim]()
        self.idle.set()
        self._app: ClientApp | None = None

    def watch(self) -> None:
        """Take tasks as they come."""
        for claim in self.node.claims():
            self.take(claim)

    def take(self, claim: Claim) -> None:
        """Let the main thread handle a task, or a new process."""
        if self.run not in (None, claim.run) or not self.idle.wait(GRACE):
            replace(claim)
        self.run = claim.run
        self.idle.clear()
        self.waiting.put(claim)

    def work(self) -> None:
        """Handle tasks forever."""
        while True:
            self.handle(self.waiting.get())
            self.idle.set()

    def handle(self, claim: Claim) -> None:
        """Handle a task."""
        with closing(self.node.connect(claim.token)) as client, _alive(client):
            try:
                message, context, run, fab = pull_task_input(client)
            except Exception as error:  # the run may have been stopped in the meantime
                log(ERROR, "a task could not be read", exc_info=error)
                push_task_output(client, None, SubStatus.FAILED, str(error))
                return
            try:
                reply, fault = self.app(run, fab)(message=message, context=context), ""
            except Exception as error:
                log(ERROR, "the client app failed", exc_info=error)
                reply, fault = Message(_failure(error), reply_to=message), str(error) or repr(error)
            push_message(client, reply, context)
            push_task_output(client, context, SubStatus.FAILED if fault else SubStatus.COMPLETED, fault)

    def app(self, run: Run, fab: Fab) -> ClientApp:
        """Return the client app; the first call installs and imports it."""
        if self._app is None:
            install_from_fab(fab.content, skip_prompt=True)
            load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
            self._app = load(run.fab_id, run.fab_version, fab.hash_str)
        return self._app


def replace(claim: Claim) -> None:
    """Replace this process by a new one that begins with a task."""
    os.environ[HANDED] = f"{claim.run} {claim.token}"
    os.execv(sys.executable, sys.orig_argv)


def handed() -> Iterator[Claim]:
    """Yield the task that another process left for this one, if any."""
    run, _, token = os.environ.pop(HANDED, "").partition(" ")
    if token:
        yield Claim(int(run), token)


def _awaited(ask: Callable[[], T], ready: Callable[[T], bool]) -> T:
    """Return an answer that is ready; the last one if none is in time."""
    until = time.monotonic() + ON_ITS_WAY
    while not ready(answer := ask()) and time.monotonic() < until:
        time.sleep(LOCAL)
    return answer


def end_with(work: Callable[[], None]) -> None:
    """Do some work, and end the process with it: other threads may wait for a SuperNode that is gone."""
    try:
        work()
    except KeyboardInterrupt:
        pass  # how Flower ends a task and its process
    except Exception as error:
        log(ERROR, "the process of the client app ends", exc_info=error)
    os._exit(1)


@contextmanager
def _alive(client: RuntimeHttpClient) -> Iterator[None]:
    """Send heartbeats during a task; without them Flower gives it up."""
    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        if sender.is_running:
            sender.stop()


def _failure(error: Exception) -> Error:
    """Return the error message of an app that failed, with Flower's codes."""
    loading = isinstance(error, LoadClientAppError | ImportError)
    code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION if loading else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Error(code, f"{type(error).__name__}: {error}")


def main() -> None:
    """Handle tasks until the SuperNode is gone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime-api-address", required=True, help="address of the SuperNode's API")
    parser.add_argument("--root-certificates", type=Path, help="certificates to check the SuperNode with")
    parser.add_argument("--parent-pid", type=int, required=True, help="process with which this one ends")
    asked = parser.parse_args()
    start_parent_process_monitor(asked.parent_pid)
    certificates = asked.root_certificates.expanduser().read_bytes() if asked.root_certificates else None
    resident = Resident(SuperNode(asked.runtime_api_address, certificates))
    for claim in handed():
        resident.take(claim)
    threading.Thread(target=end_with, args=(resident.watch,), daemon=True).start()
    end_with(resident.work)


if __name__ == "__main__":
    main()
