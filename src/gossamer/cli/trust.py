"""Which code of a recorded run may be executed.

A run folder may come from somebody else, and its ``run.json`` names the user files of the run. Commands that look at a
run execute none of them. ``resume`` and ``export`` execute a file if it is where ``run.json`` says, if its content has
the recorded digest, and if the user has agreed to this content. Starting a run with a file is to agree, and so is
``--trust``.

What the user agreed to is kept in the user's own configuration folder, never in a run folder: one line per file, with
the digest of its content and its path and name. Another content or another name in the file needs a new agreement, and
so does another content of a file of the user that it imports.
"""

import json
import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePath

from gossamer.cli import user_files
from gossamer.core import files
from gossamer.core.errors import ConfigError, RunError
from gossamer.runs.inside import refuse_links
from gossamer.runs.report.text import ranges

VARIABLE = "GOSSAMER_CONFIG"
FILE = "trusted.jsonl"
APP = "deploy/app"
"""The Flower app of a deployment that was tried, in its run folder."""


class TrustWarning(UserWarning):
    """What the user agreed to cannot be kept, or cannot be read."""


def file_of_user() -> Path:
    """Return the file with what the user trusts."""
    usual = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "gossamer"
    return (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else usual) / FILE


def trusted() -> set[tuple[str, str]]:
    """Return what the user has agreed to: digests, each with the path that it belongs to."""
    file = file_of_user()
    try:
        lines = file.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return set()
    read = {number: _agreement(line) for number, line in enumerate(lines, 1) if line.strip()}
    if damaged := [number for number, known in read.items() if known is None]:
        which = f"line{'s' * (len(damaged) > 1)} {ranges(damaged)}"
        text = f"{file}: {which} cannot be read: what you agreed to there is forgotten; delete such lines"
        warnings.warn(text, TrustWarning, stacklevel=2)
    return {known for known in read.values() if known}


def _agreement(line: bytes) -> tuple[str, str] | None:
    """Return the digest and the path in a line; none if it is damaged."""
    with suppress(ValueError):
        match files.parse_json(line):
            case [str(digest), str(name)]:
                return digest, name
    return None


def remember(digests: Mapping[str, str]) -> None:
    """Keep the user's agreement to files, by ``file.py:name``."""
    file = file_of_user()
    try:
        known = trusted() if digests else set()
        agreed = {name: _with_imports(name, digest) for name, digest in digests.items()}
        new = [(digest, name) for name, digest in agreed.items() if (digest, name) not in known]
        if not new:
            return
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b") as lines:
            lines.seek(0)
            cut = lines.read()[-1:] not in (b"", b"\n")  # a line without its end would swallow the next one
            lines.write(("\n" * cut + "".join(json.dumps(entry) + "\n" for entry in new)).encode())
    except OSError as error:
        advice = f"set {VARIABLE} to a folder of yours, or use --trust when you resume"
        warnings.warn(f"{file} cannot be used: {error.strerror}: {advice}", TrustWarning, stacklevel=2)


def check_files(path: Path, name: str, specs: Iterable[str], digests: Mapping[str, str], trust: bool) -> None:
    """Refuse user files that a recorded run or sweep names if they are missing, changed, or may not be executed."""
    for spec in specs:
        file = Path(spec.rpartition(":")[0])
        if spec not in digests or not file.is_absolute():
            raise RunError(f"{path}/{name} names {spec} without its full path and digest: nothing is executed")
        if not file.is_file():
            raise ConfigError(f"{path} was started with {file}, which is missing: restore it")
    user_files.check_unchanged(dict(digests))
    require_trust(path, digests, trust)


def require_trust(path: Path, digests: Mapping[str, str], trust: bool) -> None:
    """Refuse to execute files that the user has not agreed to; ``trust`` is the agreement."""
    if trust:
        remember(digests)
        return
    known = trusted() if digests else set()
    if strange := [name for name, digest in digests.items() if (_with_imports(name, digest), name) not in known]:
        own = dict.fromkeys(name.rpartition(":")[0] or name for name in strange)
        imported = dict.fromkeys(str(file) for name in own for file in user_files.imports(Path(name)))
        more = f", which imports {' and '.join(imported)}" if imported else ""
        as_they_are = " as these files are now" if imported else ""
        raise ConfigError(
            f"{path} executes {' and '.join(own)}{more}, with which you have started no run on this machine"
            f"{as_they_are}: read it, and if you trust it, add --trust (in Python trust=True)"
        )


def _with_imports(name: str, digest: str) -> str:
    """Return the digest of a file together with those of the user's files that it imports; its own without any."""
    found = user_files.imports(Path(name.rpartition(":")[0]))
    if not found:
        return digest
    contents = (f"{file} {sha256(file.read_bytes()).hexdigest()}" for file in found)
    return sha256(" ".join((digest, *contents)).encode()).hexdigest()


def app_digest(path: Path) -> dict[str, str]:
    """Return the digest of the Flower app in a run folder, by its path; nothing if there is none."""
    app = path / APP
    refuse_links(path, (str(PurePath(APP).parent), APP))
    if not app.is_dir():
        return {}
    total = sha256()
    for file in _files(app):
        for piece in (str(file.relative_to(app)).encode(), file.read_bytes()):
            total.update(len(piece).to_bytes(8, "little") + piece)
    return {str(app.resolve()): total.hexdigest()}


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of an app in order, without those that Python compiled."""
    for entry in sorted(folder.iterdir()):
        kind = entry.lstat().st_mode
        if stat.S_ISDIR(kind) and entry.name != "__pycache__":
            yield from _files(entry)
        elif stat.S_ISREG(kind):
            yield entry
        elif not stat.S_ISDIR(kind):
            raise RunError(f"{entry} is not a plain file: an app that is executed has no links")
