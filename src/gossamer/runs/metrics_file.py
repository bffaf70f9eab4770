"""``metrics.jsonl``: one line per round, each with a digest that continues the digest of the line before.

    {"round": 1, "accuracy": 0.81, ..., "digest": "5d1e..."}

The digest is the SHA-256 of the digest before it and of the record as it is written. So a line that was altered,
removed or moved is noticed, and appending a line reads nothing. The first line continues ``chain`` of ``run.json``, so
that the lines of another run do not fit. A digest is no signature: it finds damage and edits, not a forger who computes
it anew.
"""

import hashlib
import json
from typing import Any, NamedTuple

from gossamer.core import files

Record = dict[str, Any]

METRICS = "metrics.jsonl"
MARK = b', "digest": "'
END = b'"}'


class Lines(NamedTuple):
    """The whole lines of a file, up to the first that was altered.

    Args:
        records: the record of each line
        digests: the digest before the first line, and after each line
        ends: the number of bytes before the first line, and up to the end of each line
        problem: what is wrong with the line after them; none if nothing is
    """

    records: list[Record]
    digests: list[str]
    ends: list[int]
    problem: str | None

    def digest_at(self, size: int) -> str | None:
        """Return the digest after this number of bytes; none if no whole line ends there."""
        return self.digests[self.ends.index(size)] if size in self.ends else None


def line_of(record: Record, before: str) -> tuple[bytes, str]:
    """Return the line of a record and its digest, given the digest of the line before."""
    body = json.dumps(record).encode()
    after = _digest(before, body)
    return body[:-1] + MARK + after.encode() + END + b"\n", after


def read_lines(data: bytes, start: str) -> Lines:
    """Read the content of the file. The last line is left out if it has no end: it is being written, or was cut."""
    found, (*lines, rest) = Lines([], [start], [0], None), data.split(b"\n")
    for number, line in enumerate(lines, 1):
        body, _, end = line.rpartition(MARK)
        body += b"}"
        after = _digest(found.digests[-1], body)
        if end != after.encode() + END:
            return found._replace(problem=f"line {number} was altered")
        record = _record(body)
        if not isinstance(record, dict) or record.get("round") != number:
            return found._replace(problem=f"line {number} is not the record of round {number}")
        found.records.append(record)
        found.digests.append(after)
        found.ends.append(found.ends[-1] + len(line) + 1)
    number = len(lines) + 1
    begun = b'{"round": %d' % number  # what the rest begins with, or what it is the beginning of
    whole = rest.startswith(begun) or begun.startswith(rest)
    return found if whole else found._replace(problem=f"line {number} is not the record of round {number}")


def _record(body: bytes) -> Any:
    try:
        return files.parse_json(body)
    except ValueError:
        return None


def _digest(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()
