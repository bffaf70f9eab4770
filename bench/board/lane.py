"""A system from the side of the benchmark: one process for all workloads, so that it starts only once."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.lane import LaneProcess

BENCH = Path(__file__).parents[1]
SOURCE = BENCH.parent / "src"
GRACE = 10.0
IN_FOLDER = "import runpy, sys; sys.path.append({!r}); runpy.run_module({!r}, run_name='__main__')"
"""A program that starts a module with the packages of a folder; installed packages come first."""


@dataclass(frozen=True)
class System:
    """A simulator: a module of ``systems``, its options, and where its libraries are.

    Args:
        name: its name on the page
        family: its module
        options: its options
        where: a folder of Python packages, or an interpreter; by default this interpreter
    """

    name: str
    family: str
    options: dict[str, Any] = field(default_factory=dict)
    where: str = ""

    def command(self) -> list[str]:
        """Return the command that starts it."""
        module = f"board.systems.{self.family}"
        if Path(self.where).is_dir() and self.where:
            return [sys.executable, "-c", IN_FOLDER.format(str(Path(self.where).resolve()), module)]
        return [str(Path(self.where).absolute()) if self.where else sys.executable, "-m", module]

    def environment(self) -> dict[str, str]:
        """Return the environment, in which it finds this folder and Gossamer."""
        given = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCH), str(SOURCE), *given])}


class Lane(LaneProcess):
    """The process of one system."""

    def __init__(self, system: System, limit: float) -> None:
        self.system, self.limit = system, limit
        self.start()

    def start(self) -> None:
        """Start the process; ``about`` waits until it has imported its libraries. OUT keeps what it prints."""
        kept = os.environ.get("OUT")
        prefix = f"{self.system.name.replace(', ', '-').replace(' ', '-')}-"
        self.log = tempfile.NamedTemporaryFile("w+", prefix=prefix, suffix=".log", dir=kept, delete=not kept)  # noqa: SIM115
        self.process = subprocess.Popen(
            self.system.command(),
            cwd=BENCH,
            env=self.system.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.hello: dict[str, str] | None = None

    def about(self) -> dict[str, str]:
        """Return the versions and the device of the system."""
        if self.hello is None:
            self.hello = self.receive()
        return self.hello

    def load(self, setting: dict[str, Any]) -> float:
        """Load a workload, and return the seconds of the construction."""
        self.about()
        return float(self.ask(json.dumps({**setting, "options": self.system.options}))["ready"])

    def round(self) -> dict[str, Any]:
        """Run one round."""
        return self.ask("round")

    def end(self) -> None:
        """Leave the workload."""
        self.send("end")

    def restart(self) -> None:
        """Begin with a fresh process, after a failure."""
        self.close()
        self.start()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(GRACE)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()
