"""Processor time of the commands that only look: help, methods, runs and show.

    python bench/startup.py [--target SECONDS]

Each command runs five times in a process of its own. The time is user and system time of the child, so that other
processes of the machine matter little. The median is shown.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gossamer import fedavg, simulate
from gossamer.runs.report import text
from gossamer.testing import tiny_task

REPEATS = 5
TARGET = 0.4


def seconds(words: list[str]) -> float:
    """Processor time of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "gossamer", *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=TARGET, help=f"seconds (default: {TARGET})")
    target = parser.parse_args().target
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        simulate(fedavg(epochs=1), tiny_task(), rounds=20, out=run)
        commands = [["--help"], ["methods"], ["runs", folder], ["show", str(run)], ["show", str(run), "--json"]]
        taken = {command[0] + " --json" * ("--json" in command): command for command in commands}
        medians = {name: statistics.median(seconds(words) for _ in range(REPEATS)) for name, words in taken.items()}
    rows = [(f"gossamer {name}", f"{time:.2f}") for name, time in medians.items()]
    print(text.table(("command", "seconds"), rows))
    return int(any(time > target for time in medians.values()))


if __name__ == "__main__":
    sys.exit(main())
