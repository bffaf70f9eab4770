"""Read the JSON files of a run folder.

This module needs no torch, so that ``gossamer runs`` and ``gossamer show`` start quickly. ``folder`` describes the
layout of a run folder, writes it, and reads the files that hold tensors.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.core import files
from gossamer.core.errors import RunError

FORMAT = 3
"""The format of run folders. Version 0.1 wrote format 1 and did not record it. Format 2 had no folder ``tensors``."""

CHOICE = "executor.json"

TENSORS = "tensors"
"""Unchanged tensors of the server state: a folder of a run, and a key of a checkpoint's manifest."""

STOPPED = "stopped"
"""The entry of the last record of a run that ended before its last round: the reason."""

EXTENDED = "extended"
"""The entry of ``run.json`` with the options of a run before it was given more rounds, and after which round."""

ATTACK_SUCCESS = "attack_success"
"""The entry of a record with the success rate of an attack that has a goal of its own."""

ANOMALIES = "anomalies"
"""The entry of a record with the clients whose upload was far from the cohort's; absent if there is none."""

EXCLUDED = "excluded"
"""The entry of a record with the clients that are not sampled any more; absent if there is none."""

SUMS = ("bytes_up", "bytes_down", "seconds")
"""Entries of a record that hold one number per kind; reports use their sum."""

COUNTS = ("clients", "failures", "lost")
"""Entries of a record that are lists; reports use their length."""

Record = dict[str, Any]


def check_vacant(path: Path) -> None:
    """Refuse a path for a new run that already holds something."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} is not empty: choose another folder, or resume the run that is there")


def checkpoints(path: Path) -> list[int]:
    """Return the rounds that have a checkpoint, newest first."""
    names = [p.name for p in (path / "checkpoints").iterdir() if p.name.isdigit()]
    return sorted(map(int, names), reverse=True)


def tensor_file(digest: str) -> str:
    """Return the file of an unchanged tensor, relative to the run folder."""
    return f"{TENSORS}/{digest}.safetensors"


def read_manifest(path: Path, rounds: int) -> dict[str, Any]:
    """Return the manifest of a checkpoint."""
    try:
        return files.from_json(path / f"checkpoints/{rounds}/manifest.json")
    except (OSError, ValueError) as error:
        raise RunError(f"checkpoint {rounds} is damaged: its manifest cannot be used ({error})") from error


def read_about(path: Path) -> dict[str, Any]:
    """Return the contents of ``run.json`` and ``executor.json``."""
    try:
        choice = files.from_json(path / CHOICE) if (path / CHOICE).exists() else {}
        about = files.from_json(path / "run.json") | choice
    except FileNotFoundError:
        raise RunError(f"{path} is not a run: there is no run.json in it") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}/run.json cannot be used: {error}") from error
    if (found := about.get("format", 1)) != FORMAT:
        raise RunError(
            f"{path} has format {found}, and this release reads format {FORMAT}: use the release that wrote it"
            + (" (0.1), or start the run anew" if found == 1 else "")
        )
    return about


def read_metrics(path: Path) -> list[Record]:
    """Return the records of all finished rounds; a line that is still being written is left out."""
    try:
        text = (path / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{path}/metrics.jsonl cannot be used: {error}") from error


def stop_reason(about: Mapping[str, Any], metrics: Sequence[Record]) -> str | None:
    """Return why a run ended before its last round; none if it did not, or was given more rounds since."""
    went_on = any(each["after"] == len(metrics) for each in about.get(EXTENDED, ()))
    reason: str | None = metrics[-1].get(STOPPED) if metrics and not went_on else None
    return reason


def is_busy(path: Path) -> bool:
    """Return whether a process holds the lock of the folder; the folder stays unchanged."""
    if not os.access(path / "run.lock", os.R_OK | os.W_OK):
        return False
    try:
        os.close(files.take_lock(path / "run.lock", wait=0))
    except RunError:
        return True
    return False
