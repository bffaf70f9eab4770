"""A system from the side of the benchmark: start its process, request rounds, measure them, and end it.

Systems never share a process, so that they do not share threads, caches or libraries. Between its rounds all processes
of a system are stopped, since some keep a core half busy while they wait.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import meter

HERE = Path(__file__).parent
GRACE = 10.0
CATCH_UP = 0.3
OFTEN, SELDOM = 0.1, 1.0
"""Seconds between two measurements of memory. A measurement takes some milliseconds, so timed rounds have few."""


@dataclass(frozen=True)
class System:
    """A simulator: a module of ``systems``, and the interpreter of its environment."""

    name: str
    family: str
    options: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    processes: int = 1

    def command(self, setting: dict[str, Any]) -> list[str]:
        """Return the command that starts it."""
        several = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.processes)] if self.processes > 1 else []
        return [self.python, *several, "-m", f"systems.{self.family}", json.dumps({**setting, "options": self.options})]


class Round(NamedTuple):
    """Measurements of one round.

    Args:
        seconds: duration
        prepare: part of the duration for preparation
        note: what the system chose, if it did
        others: mean number of cores that other processes kept busy
        memory: peak bytes
    """

    seconds: float
    prepare: float
    note: str
    others: float
    memory: int


class LaneError(Exception):
    """A system that cannot take part, with the reason."""


class Lane:
    """One system with one workload."""

    def __init__(self, system: System, setting: dict[str, Any], limit: float) -> None:
        self.system, self.limit = system, limit
        self.log = tempfile.NamedTemporaryFile("w+", prefix="bench-", suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(
            system.command(setting),
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )

    def ready(self) -> str:
        """Wait until the system has loaded everything; return its version."""
        reply = self._receive()
        if "skip" in reply:
            raise LaneError(reply["skip"])
        return str(reply["version"])

    def stop(self) -> None:
        """Stop all processes of the system."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Continue all processes, and let them settle."""
        self._signal(signal.SIGCONT)
        time.sleep(CATCH_UP)

    def _signal(self, number: signal.Signals) -> None:
        for pid in meter.family(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def round(self, pause: float) -> Round:
        """Run one round, and measure memory every ``pause`` seconds."""
        others = meter.Others(self.process.pid)
        self._send("round")
        peak = 0

        def look() -> None:
            nonlocal peak
            peak = max(peak, meter.own(meter.family(self.process.pid)))

        reply = self._receive(pause, look)
        cores = others.cores()
        look()
        return Round(**reply, others=cores, memory=peak + meter.mapped(meter.family(self.process.pid)))

    def accuracy(self) -> float:
        """Return the accuracy on the test set."""
        self._send("accuracy")
        return float(self._receive()["accuracy"])

    def _send(self, word: str) -> None:
        assert self.process.stdin is not None
        try:
            print(word, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise LaneError(self._last_line()) from None

    def _receive(self, pause: float = SELDOM, look: Any = lambda: None) -> dict[str, Any]:
        """Return the next message of the system; call ``look`` every ``pause`` seconds until then."""
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
        return reply

    def _last_line(self) -> str:
        lines = [line.strip() for line in Path(self.log.name).read_text().splitlines() if line.strip()]
        return f"ended: {lines[-1] if lines else 'without output'}"

    def close(self) -> None:
        """End the system and all of its processes."""
        self.wake()
        members = {pid: meter.born(pid) for pid in meter.family(self.process.pid)}
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid, born in members.items():
            if born and meter.born(pid) == born:  # another process may have the number by now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.log.close()
