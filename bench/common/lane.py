"""The process of a system, from the side of a benchmark: lines of text go in, and replies, lines of JSON, come out."""

import json
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

SELDOM = 1.0
"""Seconds between two looks at a process that has not replied yet."""


class LaneError(Exception):
    """A system that cannot take part, with the reason."""


class LaneProcess:
    """A process with a log of what it prints to standard error. Subclasses start it.

    Args:
        process: the process, with text pipes for its input and output
        log: the file of its standard error
        limit: seconds to wait for a reply
    """

    process: "subprocess.Popen[str]"
    log: IO[str]
    limit: float

    def send(self, word: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        try:
            print(word, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise LaneError(self._last_line()) from None

    def receive(self, pause: float = SELDOM, look: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Return the next reply of the system; call ``look`` every ``pause`` seconds until then."""
        out, end = self.process.stdout, time.perf_counter() + self.limit
        assert out is not None
        while not select.select([out], [], [], pause)[0]:
            look()
            if time.perf_counter() > end:
                raise LaneError(f"no reply for {self.limit:.0f} s")
        line = out.readline()
        if not line:
            raise LaneError(self._last_line())
        reply: dict[str, Any] = json.loads(line)
        if "skip" in reply:
            raise LaneError(reply["skip"])
        return reply

    def ask(self, word: str) -> dict[str, Any]:
        """Send a line, and return the reply."""
        self.send(word)
        return self.receive()

    def _last_line(self) -> str:
        lines = [line.strip() for line in Path(self.log.name).read_text().splitlines() if line.strip()]
        return f"ended: {lines[-1] if lines else 'without output'}"
