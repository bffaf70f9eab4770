"""A system from the bench's side: its process is started, told to train a round, measured, and ended.

Systems never share a process, so none meets another's threads, caches or libraries. Between its rounds a system is
stopped, all its processes: some keep a core half busy with waiting.
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
"""Seconds between two looks at memory: a look takes some milliseconds of a core, so timed rounds have few."""


@dataclass(frozen=True)
class System:
    """Something that can train: a module of ``systems``, and the interpreter that has what it needs."""

    name: str
    family: str
    options: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    processes: int = 1

    def command(self, told: dict[str, Any]) -> list[str]:
        """How to start it."""
        several = ["-m", "torch.distributed.run", "--nproc-per-node", str(self.processes)] if self.processes > 1 else []
        return [self.python, *several, "-m", f"systems.{self.family}", json.dumps({**told, "options": self.options})]


class Round(NamedTuple):
    """What one round took: seconds, those of them for preparing, cores that others kept busy, bytes at most."""

    seconds: float
    prepare: float
    note: str
    others: float
    memory: int


class LaneError(Exception):
    """A system that cannot take part, or no longer; says why."""


class Lane:
    """One system at work on one workload."""

    def __init__(self, system: System, told: dict[str, Any], limit: float) -> None:
        self.system, self.limit = system, limit
        self.log = tempfile.NamedTemporaryFile("w+", prefix="bench-", suffix=".log")  # noqa: SIM115
        self.process = subprocess.Popen(
            system.command(told),
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )

    def ready(self) -> str:
        """Wait until the system has loaded everything; its version."""
        said = self._listen()
        if "skip" in said:
            raise LaneError(said["skip"])
        return str(said["version"])

    def stop(self) -> None:
        """Keep all its processes from running."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let them run again, and catch up with the time."""
        self._signal(signal.SIGCONT)
        time.sleep(CATCH_UP)

    def _signal(self, number: signal.Signals) -> None:
        for pid in meter.family(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def round(self, pause: float) -> Round:
        """One round, with memory looked at every ``pause`` seconds."""
        others = meter.Others(self.process.pid)
        self._tell("round")
        peak = 0

        def look() -> None:
            nonlocal peak
            peak = max(peak, meter.own(meter.family(self.process.pid)))

        said = self._listen(pause, look)
        cores = others.cores()
        look()
        return Round(**said, others=cores, memory=peak + meter.mapped(meter.family(self.process.pid)))

    def accuracy(self) -> float:
        """On the test set, now."""
        self._tell("accuracy")
        return float(self._listen()["accuracy"])

    def _tell(self, word: str) -> None:
        assert self.process.stdin is not None
        try:
            print(word, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise LaneError(self._last_words()) from None

    def _listen(self, pause: float = SELDOM, look: Any = lambda: None) -> dict[str, Any]:
        """What the system says next; ``look`` is called every ``pause`` seconds until then."""
        out, end = self.process.stdout, time.perf_counter() + self.limit
        assert out is not None
        while not select.select([out], [], [], pause)[0]:
            look()
            if time.perf_counter() > end:
                raise LaneError(f"said nothing for {self.limit:.0f} s")
        line = out.readline()
        if not line:
            raise LaneError(self._last_words())
        said: dict[str, Any] = json.loads(line)
        return said

    def _last_words(self) -> str:
        lines = [line.strip() for line in Path(self.log.name).read_text().splitlines() if line.strip()]
        return f"ended: {lines[-1] if lines else 'without a word'}"

    def close(self) -> None:
        """End the system and whatever it has started."""
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
            if born and meter.born(pid) == born:  # a number may belong to another process by now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.log.close()
