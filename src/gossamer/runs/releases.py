"""What a private run may have released: a line per drawn cohort, in ``releases.jsonl`` of the run folder.

Noise and cohorts from the operating system cannot be drawn again. So a round that is repeated after a crash has another
cohort and other noise, and somebody may have seen what came of the first attempt: it counts a second time. Each line is
on disk before the first message of its attempt leaves the server:

    {"round": 3, "clients": [2, 5, 11]}    an attempt at round 3 (from 1), with its cohort
    {"round": 3, "void": true}             nothing that depends on this cohort has left the server: it does not count

A line that a crash has cut off counts. Runs whose noise follows from the seed repeat the same bytes, and have no file.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from gossamer.core import files
from gossamer.runs import inside

RELEASES = "releases.jsonl"


class Releases:
    """The attempts of a run.

    Args:
        path: the run folder; without one, attempts are counted for the life of the process
        stated: the number that the records state, which counts if lines are missing
    """

    def __init__(self, path: Path | None, stated: int = 0) -> None:
        self.path, self.count = path, max(stated, 0 if path is None else released(path))
        if path is not None and not (path / RELEASES).exists():
            (path / RELEASES).touch()

    def begin(self, number: int, cohort: Sequence[int]) -> None:
        """Record an attempt at a round, before anything leaves the server."""
        self._append({"round": number + 1, "clients": list(cohort)})
        self.count += 1

    def void(self, number: int) -> None:
        """Record that nothing of the last attempt has left the server."""
        self._append({"round": number + 1, "void": True})
        self.count -= 1

    def _append(self, entry: dict[str, object]) -> None:
        if self.path is not None:
            with files.on_failure(f"the cohort was not recorded, and the round does not begin, in {self.path}"):
                inside.append(self.path, RELEASES, json.dumps(entry).encode() + b"\n")


def released(path: Path) -> int:
    """Return the number of results that the run in a folder may have released, as far as it has recorded attempts."""
    try:
        lines = inside.read(path, RELEASES).splitlines()
    except FileNotFoundError:
        return 0
    return sum(-1 if _is_void(line) else 1 for line in lines)


def _is_void(line: bytes) -> bool:
    try:
        entry = json.loads(line)
    except ValueError:  # cut off by a crash
        return False
    return isinstance(entry, dict) and entry.get("void") is True
