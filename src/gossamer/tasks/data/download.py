"""Files from the internet, by pooch: with a known checksum and a progress bar, and whole or not at all."""

import tempfile
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

NO_POOCH = "pooch, which would download it, is not installed: pip install 'gossamer[download]'"


class Remote(NamedTuple):
    """A file on the internet: its name here, where it is, and its checksum as ``md5:...`` or ``sha256:...``."""

    name: str
    url: str
    checksum: str


def fetch(folder: Path, remotes: Sequence[Remote]) -> str:
    """Put the files that are not there into ``folder``; what is returned says why nothing more could be done."""
    if not remotes:
        return "it cannot be downloaded"
    if find_spec("pooch") is None:
        return NO_POOCH
    for remote in remotes:
        if not (folder / remote.name).exists():
            try:
                _fetch(folder, remote)
            except (OSError, ValueError) as error:  # those of the network are OSErrors, a wrong checksum a ValueError
                return f"downloading {remote.url} failed: {_reason(error)}"
    return "what was downloaded does not suffice"


def _reason(error: Exception) -> str:
    offline = isinstance(error, import_module("requests").ConnectionError)  # requests comes with pooch
    return "there is no connection" if offline else " ".join(str(error).split())


def _fetch(folder: Path, remote: Remote) -> None:
    """Into a folder of its own first, so that a failure leaves nothing behind, and then into its place in one step."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    with tempfile.TemporaryDirectory(dir=there, prefix=".gossamer-") as aside:
        got = import_module("pooch").retrieve(
            remote.url, remote.checksum, fname=remote.name, path=aside, progressbar=find_spec("tqdm") is not None
        )
        folder.mkdir(parents=True, exist_ok=True)
        Path(got).replace(folder / remote.name)
