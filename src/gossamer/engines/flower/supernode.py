"""A SuperNode whose client app stays in memory, started as a script: ``python -P supernode.py POLL [FLOWER'S FLAGS]``.

Flower's ``flower-supernode`` starts a process for every message, which imports PyTorch and reads the data again. Here
the SuperNode is Flower's own, with ``--isolation process``: Flower then expects someone else to start the client app.
This script starts one process for that, ``resident.py``, and restarts it when it ends.

Flower has no setting for the pause of an idle SuperNode, three seconds, so ``shorten_pauses`` replaces it. This and
``resident.py`` use modules that Flower does not document. They are used with the release they were written for; with
any other, this script says so and becomes ``flower-supernode``, which is slower and computes the same.

The file imports nothing of Gossamer: the SuperNode's process needs no PyTorch, and 200 MB less memory.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

FLOWER = "1.41.0"
"""The release of Flower that this file and ``resident.py`` were written for."""

POLL = 0.5
"""Seconds between two requests of an idle node to the SuperLink."""

LOCAL = 0.05
"""Seconds between two checks for a reply of the client app, inside the SuperNode's process."""

AGAIN = 5.0
"""Minimum seconds between two starts of the client app's process."""

RESIDENT = "gossamer.engines.flower.resident"


def command(arguments: Sequence[str], poll: float = POLL) -> list[str]:
    """Return the command line of a SuperNode; ``arguments`` are those of ``flower-supernode``."""
    return [sys.executable, "-P", __file__, str(poll), *arguments]


def resident_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of the client app's process of a SuperNode with these arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for flag, default in (("--host", "127.0.0.1"), ("--port", "9094"), ("--ssl-ca-certfile", "")):
        parser.add_argument(flag, default=default)
    known, _ = parser.parse_known_args(arguments)
    host = f"[{known.host}]" if ":" in known.host else known.host
    trust = ["--root-certificates", known.ssl_ca_certfile] if known.ssl_ca_certfile else []
    where = ["--runtime-api-address", f"{host}:{known.port}", *trust]
    return [sys.executable, "-P", "-m", RESIDENT, *where, "--parent-pid", str(os.getpid())]


def known_release() -> bool:
    """Return whether the installed Flower is the one that this file was written for."""
    return version("flwr") == FLOWER


def shorten_pauses(module: ModuleType, poll: float) -> None:
    """Set the pauses of Flower's main loop.

    It pauses between requests to the SuperLink, between looks at its own state, and before it asks again for a message
    that has not arrived whole.
    """

    def sleep(seconds: float) -> None:
        time.sleep(poll if seconds >= 1 else min(seconds, LOCAL))

    vars(module)["time"] = SimpleNamespace(sleep=sleep)
    shorten_pulls(module)


def shorten_pulls(module: ModuleType) -> None:
    """Let a module of Flower ask again soon for a message that has not arrived whole, and not after a second."""
    vars(module)["pull_objects"] = partial(module.pull_objects, initial_backoff=LOCAL)


def keep_running(line: Sequence[str]) -> None:
    """Start a process, and start it again whenever it ends."""
    while True:
        begun = time.monotonic()
        code = subprocess.Popen(line).wait()
        print(f"the process of the client app ended with exit code {code}; it is started again", flush=True)
        time.sleep(max(0.0, AGAIN - (time.monotonic() - begun)))


def main() -> None:
    """Run a SuperNode until it is stopped."""
    poll, arguments = float(sys.argv[1]), sys.argv[2:]
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if not known_release():
        found = f"Flower {version('flwr')} is installed, and a client app that stays needs Flower {FLOWER}"
        print(f"{found}: flower-supernode starts a process for every message", flush=True)
        os.execvp("flower-supernode", ["flower-supernode", *arguments])
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    shorten_pauses(start_client_internal, poll)
    threading.Thread(target=keep_running, args=(resident_command(arguments),), daemon=True).start()
    sys.argv = ["flower-supernode", *arguments, "--isolation", "process"]
    flower_supernode()


if __name__ == "__main__":
    main()
