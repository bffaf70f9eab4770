"""Write the metrics of a run folder anew, with valid digests: as an earlier release wrote them, or as a forger does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gossamer.runs.records import CHAIN, METRICS, line_of, read_about


def write_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Replace the records of a run."""
    digest, lines = read_about(path)[CHAIN], b""
    for record in records:
        line, digest = line_of(record, digest)
        lines += line
    (path / METRICS).write_bytes(lines)
