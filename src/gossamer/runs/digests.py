"""Compare the files of a run with their digests. This module needs no torch, and writes nothing."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gossamer.core.errors import RunError
from gossamer.runs import inside
from gossamer.runs.records import FILES, checkpoints, is_busy, read_manifest


def altered(path: Path, digests: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with files of a run, one text for each that is missing or has another digest."""
    for name, wanted in digests.items():
        try:
            same = inside.digest(path, name) == wanted
        except FileNotFoundError:
            same = False
        except (OSError, RunError) as error:
            yield str(error)
            continue
        if not same:
            yield f"{name} is missing or was altered"


def check_files(path: Path, rounds: int, manifest: Mapping[str, Any]) -> None:
    """Refuse a checkpoint one of whose files is missing or was altered."""
    for problem in altered(path, manifest[FILES]):
        raise RunError(f"checkpoint {rounds} is damaged: {problem}")


def damage(path: Path, about: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the files of a run that are written once, and with its checkpoints, newest first.

    Checkpoints that a process replaces are not judged.
    """
    yield from (f"{path}: {problem}" for problem in altered(path, about[FILES]))
    for rounds in checkpoints(path) if not is_busy(path) else ():
        try:
            check_files(path, rounds, read_manifest(path, rounds))
        except RunError as error:
            yield f"{path}: {error}"
