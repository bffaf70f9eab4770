"""Rows of trace files: CSV, with or without a line of column names, or JSON lines."""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gossamer.core.availability import FOREVER, nanoseconds
from gossamer.core.errors import ConfigError
from gossamer.core.files import parse_json


class Row(NamedTuple):
    """A row of a file.

    Args:
        line: the number of its line, from 1
        values: its values in the order of the columns; none where there is none
    """

    line: int
    values: list[object]


def content(path: str | Path) -> bytes:
    """Return the content of a file that the user names."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def rows(path: str | Path, data: bytes, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a file. Empty lines, lines that begin with ``#``, and other columns are left out."""
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text in UTF-8: {error.reason}") from error
    kept = [(number, line) for number, line in enumerate(lines, start=1) if line.strip() and line[0] != "#"]
    as_json = bool(kept) and kept[0][1].lstrip().startswith("{")
    places: list[int | None] = list(range(len(columns)))
    for count, (number, line) in enumerate(kept):
        if as_json:
            try:
                found = parse_json(line)
            except ValueError as error:
                raise misplaced(path, number, f"is not JSON: {error}") from error
            if not isinstance(found, dict):
                example = f"{{{columns[0]!r}: ...}}"
                raise misplaced(path, number, f"must be a JSON object such as {example}, got {line.strip()}")
            yield Row(number, [found.get(column) for column in columns])
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([line]))]
        except csv.Error as error:
            raise misplaced(path, number, f"is not CSV: {error}") from error
        if count == 0 and columns[0] in cells:
            places = [cells.index(column) if column in cells else None for column in columns]
            continue
        filled: dict[int | None, str] = dict(enumerate(cells))
        yield Row(number, [filled.get(place) or None for place in places])


def misplaced(path: str | Path, line: int, text: str) -> ConfigError:
    """Return the error for a line of a file."""
    return ConfigError(f"{path}, line {line}: {text}")


def number(path: str | Path, row: Row, column: str, place: int, allowed: Callable[[float], bool], rule: str) -> float:
    """Return a number of a row; refuse others than those allowed."""
    value = row.values[place]
    try:
        found = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not allowed(found):
        raise misplaced(path, row.line, f"{column} must be {rule}, got {value!r}")
    return found


def moment(path: str | Path, row: Row, column: str, place: int) -> int:
    """Return a time of a row in nanoseconds."""
    seconds = number(path, row, column, place, lambda x: 0 <= x < FOREVER / 1e9, "seconds, at least 0")
    return nanoseconds(seconds)
