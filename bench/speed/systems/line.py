"""A system's end of the line: it says when it is ready, trains a round when told to, and says how long that took.

    system: {"version": "torch 2.13.0"}                   or {"skip": "why it cannot take part"}
    bench:  "round"        system: {"seconds": 1.31, "prepare": 0.0, "note": ""}
    bench:  "accuracy"     system: {"accuracy": 0.81}
    bench:  (closes)       the system ends

A line of text a message. A system takes its own time, from being told to being done, so that nothing of this is
measured. Where it knows, it says how much of that went into choosing and compiling, and what it chose. Whatever else
it or its libraries print goes to standard error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from workloads import WORKLOADS, Images, Workload, load


class Setting(NamedTuple):
    """What a system is told when it is started."""

    workload: Workload
    data: str
    rounds: int
    options: dict[str, Any]

    @classmethod
    def read(cls) -> "Setting":
        """From the command line."""
        told = json.loads(sys.argv[1])
        return cls(WORKLOADS[told["workload"]], told["data"], told["rounds"], told["options"])

    def images(self) -> tuple[Images, Images]:
        """Training and test images."""
        return load(self.data)


class Line:
    """The line to the bench."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._begin = 0.0

    def ready(self, version: str) -> None:
        """Everything is loaded."""
        self._say(version=version)

    def skip(self, reason: str) -> None:
        """This system cannot take part."""
        self._say(skip=reason)

    def go(self, accuracy: Callable[[], float]) -> bool:
        """Wait until told to train a round, answering questions meanwhile; false when there are no more rounds."""
        for word in sys.stdin:
            if word.strip() == "round":
                self._begin = time.perf_counter()
                return True
            self._say(accuracy=round(accuracy(), 4))
        return False

    def done(self, prepare: float = 0.0, note: str = "") -> None:
        """The round is over."""
        self._say(seconds=time.perf_counter() - self._begin, prepare=prepare, note=note)

    def _say(self, **words: Any) -> None:
        print(json.dumps(words), file=self._out, flush=True)


def serve(version: str, train: Callable[[], None], accuracy: Callable[[], float]) -> None:
    """The whole conversation, for a system whose rounds are a function."""
    line = Line()
    line.ready(version)
    while line.go(accuracy):
        train()
        line.done()
