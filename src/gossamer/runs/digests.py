"""Compare the files of checkpoints with their digests. This module needs no torch, and writes nothing."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gossamer.core.errors import RunError
from gossamer.runs import inside
from gossamer.runs.records import FILES, checkpoints, is_busy, read_manifest


def check_files(path: Path, rounds: int, manifest: Mapping[str, Any]) -> None:
    """Refuse a checkpoint one of whose files is missing or was altered."""
    for name, wanted in manifest[FILES].items():
        try:
            same = inside.digest(path, name) == wanted
        except FileNotFoundError:
            same = False
        except (OSError, RunError) as error:
            raise RunError(f"checkpoint {rounds} is damaged: {error}") from error
        if not same:
            raise RunError(f"checkpoint {rounds} is damaged: {name} is missing or was altered")


def damaged_checkpoints(path: Path) -> Iterator[str]:
    """Yield what is wrong with each damaged checkpoint, newest first; nothing while a process replaces them."""
    for rounds in checkpoints(path) if not is_busy(path) else ():
        try:
            check_files(path, rounds, read_manifest(path, rounds))
        except RunError as error:
            yield f"{path}: {error}"
