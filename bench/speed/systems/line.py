"""The protocol of a system: it reports when it is ready, trains a round on request, and reports the time.

    system: {"version": "torch 2.13.0"}                   or {"skip": "why it cannot take part"}
    bench:  "round"        system: {"seconds": 1.31, "prepare": 0.0, "note": ""}
    bench:  "accuracy"     system: {"accuracy": 0.81}
    bench:  (closes)       the system ends

A message is one line of text. A system measures its own time from request to result, so that the protocol is not
included. If known, it reports the time for choosing and compiling, and its choice. All other output of the system and
its libraries goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from workloads import WORKLOADS, Images, Workload, load


class Setting(NamedTuple):
    """The setting of a system, from its command line."""

    workload: Workload
    data: str
    rounds: int
    options: dict[str, Any]

    @classmethod
    def read(cls) -> "Setting":
        """Read the setting from the command line."""
        given = json.loads(sys.argv[1])
        return cls(WORKLOADS[given["workload"]], given["data"], given["rounds"], given["options"])

    def images(self) -> tuple[Images, Images]:
        """Return training and test samples."""
        return load(self.data, self.workload)


class Line:
    """The connection to the benchmark."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._begin = 0.0

    def ready(self, version: str) -> None:
        """Report that everything is loaded."""
        self._send(version=version)

    def skip(self, reason: str) -> None:
        """Report that this system cannot take part."""
        self._send(skip=reason)

    def go(self, accuracy: Callable[[], float]) -> bool:
        """Wait for a request for a round, and answer other requests; return False after the last round."""
        for word in sys.stdin:
            if word.strip() == "round":
                self._begin = time.perf_counter()
                return True
            self._send(accuracy=round(accuracy(), 4))
        return False

    def done(self, prepare: float = 0.0, note: str = "") -> None:
        """Report the end of the round."""
        self._send(seconds=time.perf_counter() - self._begin, prepare=prepare, note=note)

    def _send(self, **words: Any) -> None:
        print(json.dumps(words), file=self._out, flush=True)


def serve(version: str, train: Callable[[], None], accuracy: Callable[[], float]) -> None:
    """Handle all requests, for a system whose round is a function."""
    line = Line()
    line.ready(version)
    while line.go(accuracy):
        train()
        line.done()
