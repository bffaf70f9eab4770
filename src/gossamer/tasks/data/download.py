"""Downloads with pooch: verified by a known checksum, with a progress bar, and never left incomplete."""

import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

NO_POOCH = "it can be downloaded with pooch, which is not installed: pip install 'gossamer[data]'"


class Remote(NamedTuple):
    """A file on the internet: its local name, its URL, and its checksum as ``md5:...`` or ``sha256:...``."""

    name: str
    url: str
    checksum: str


def fetch(folder: Path, remotes: Sequence[Remote]) -> str:
    """Download missing files into ``folder``; return why that was not enough, for an error message."""
    if not remotes:
        return "it cannot be downloaded"
    if find_spec("pooch") is None:
        return NO_POOCH
    for remote in remotes:
        if not (folder / remote.name).exists():
            try:
                _fetch(folder, remote)
            except (OSError, ValueError) as error:  # network errors are OSErrors, a wrong checksum is a ValueError
                return f"downloading {remote.url} failed: {_reason(error)}"
    return "the downloaded files are not sufficient"


def _reason(error: Exception) -> str:
    import requests

    offline = isinstance(error, requests.ConnectionError)
    return "there is no connection" if offline else " ".join(str(error).split())


def _fetch(folder: Path, remote: Remote) -> None:
    """Download into a temporary folder, and move the file in one step, so that a failure leaves nothing behind."""
    import pooch

    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    with tempfile.TemporaryDirectory(dir=there, prefix=".gossamer-") as aside:
        got = pooch.retrieve(
            remote.url, remote.checksum, fname=remote.name, path=aside, progressbar=find_spec("tqdm") is not None
        )
        folder.mkdir(parents=True, exist_ok=True)
        Path(got).replace(folder / remote.name)
