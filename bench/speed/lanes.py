"""A system from the side of the benchmark: start its process, request rounds, measure them, and end it.

Systems never share a process, so that they do not share threads, caches or libraries. Between its rounds all processes
of a system are stopped, since some keep a core half busy while they wait.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))

import meter
from common.lane import LaneProcess

HERE = Path(__file__).parent
GRACE = 10.0
CATCH_UP = 0.3
OFTEN = 0.1
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


class Lane(LaneProcess):
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
        return str(self.receive()["version"])

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
        self.send("round")
        peak = 0

        def look() -> None:
            nonlocal peak
            peak = max(peak, meter.own(meter.family(self.process.pid)))

        reply = self.receive(pause, look)
        cores = others.cores()
        look()
        return Round(**reply, others=cores, memory=peak + meter.mapped(meter.family(self.process.pid)))

    def accuracy(self) -> float:
        """Return the accuracy on the test set."""
        return float(self.ask("accuracy")["accuracy"])

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
