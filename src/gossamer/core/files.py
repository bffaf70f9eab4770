"""Atomic and checked file access: a crash, a full disk or a flipped bit is never taken for a finished file."""

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.core.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor


def write(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file atomically: write a temporary file, sync it, and rename it. ``mode`` holds from the start.

    A link at the path is replaced, and one at the path of the temporary file is removed: neither is followed.
    """
    aside = path.with_name(f".{path.name}.part")
    aside.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def rename(aside: Path, final: Path) -> None:
    """Rename a finished folder, durably."""
    sync_folder(aside)
    aside.rename(final)
    sync_folder(final.parent)


def sync_folder(path: Path) -> None:
    """Sync the directory entries of a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_of(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(value: Mapping[str, Any]) -> bytes:
    """Return JSON with a digest of its content, which ``from_json`` checks."""
    return json.dumps({**value, "digest": _json_digest(value)}, indent=1).encode() + b"\n"


def from_json(path: Path) -> dict[str, Any]:
    """Read a file from ``to_json``. Raise ``ValueError`` if it was altered."""
    return json_of(path.read_bytes())


def json_of(data: bytes) -> dict[str, Any]:
    """Return the content of bytes from ``to_json``. Raise ``ValueError`` if they were altered."""
    value: dict[str, Any] = parse_json(data)
    if not isinstance(value, dict) or value.pop("digest", None) != _json_digest(value):
        raise ValueError("it was altered since it was written")
    return value


def _json_digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def to_tensors(flat: Mapping[str, "Tensor"], about: dict[str, str] | None = None) -> bytes:
    """Return tensors in the safetensors format: no pickle, and equal bytes for equal tensors."""
    from safetensors.torch import save

    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in sorted(flat.items()):
        plain = tensor.detach().cpu().contiguous()
        address = plain.untyped_storage().data_ptr()
        separate[name] = plain.clone() if address in seen else plain  # safetensors refuses tensors that share memory
        seen.add(address)
    data: bytes = save(separate, metadata=about)
    return data


def from_tensors(path: Path) -> dict[str, "Tensor"]:
    """Read the tensors of a safetensors file. Raise ``ValueError`` if it is not one."""
    return tensors_of(path.read_bytes())


def tensors_of(data: bytes) -> dict[str, "Tensor"]:
    """Return the tensors in bytes from ``to_tensors``. Raise ``ValueError`` if the format is wrong."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return tensors


def sealed(data: bytes) -> bytes:
    """Return bytes with their digest in front, which ``unsealed`` checks."""
    return hashlib.sha256(data).digest() + data


def unsealed(data: bytes) -> bytes:
    """Return the bytes that were passed to ``sealed``. Raise ``ValueError`` if they were altered."""
    size = hashlib.sha256().digest_size
    if hashlib.sha256(data[size:]).digest() != data[:size]:
        raise ValueError("it was altered since it was written")
    return data[size:]


def take_lock(path: Path, wait: float = 0.5) -> int:
    """Lock a file for this process until the handle is closed or the process ends. Return the handle."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except OSError:
            if time.monotonic() >= until:
                os.close(handle)
                raise RunError(f"another process is working in {path.parent}: wait for it, or stop it first") from None
            time.sleep(0.05)


@contextmanager
def on_failure(consequence: str) -> Iterator[None]:
    """Turn an ``OSError`` into a ``RunError`` that states the consequence for the user."""
    try:
        yield
    except OSError as error:
        cause = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise RunError(f"{cause}: {consequence}") from error


def parse_json(data: bytes | str) -> Any:
    """Return the value of JSON that somebody else may have written. Raise ``ValueError`` for anything else.

    >>> parse_json('{"a": 1}')
    {'a': 1}
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
