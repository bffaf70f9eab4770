"""Bytes on the disk, such that a crash, a full disk or a flipped bit never passes for something that was finished."""

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from gossamer.core.errors import RunError


def write(path: Path, data: bytes) -> None:
    """Write aside, sync, rename: the file is there whole or not at all."""
    aside = path.with_name(f".{path.name}.part")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file and sync it."""
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def rename(aside: Path, final: Path) -> None:
    """Give a finished folder its name, durably."""
    sync_folder(aside)
    aside.rename(final)
    sync_folder(final.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(value: Mapping[str, Any]) -> bytes:
    """JSON that carries its own digest, so that ``from_json`` notices when it was altered."""
    return json.dumps({**value, "digest": _json_digest(value)}, indent=1).encode() + b"\n"


def from_json(path: Path) -> dict[str, Any]:
    """What ``to_json`` wrote; a ``ValueError`` if it is not that any more."""
    value: dict[str, Any] = json.loads(path.read_text())
    if not isinstance(value, dict) or value.pop("digest", None) != _json_digest(value):
        raise ValueError("it was altered since it was written")
    return value


def _json_digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def to_tensors(flat: Mapping[str, Tensor], about: dict[str, str] | None = None) -> bytes:
    """Tensors as a safetensors file: no pickle, and the same bytes for the same tensors."""
    from safetensors.torch import save

    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in sorted(flat.items()):
        plain = tensor.detach().cpu().contiguous()
        place = plain.untyped_storage().data_ptr()
        apart[name] = plain.clone() if place in seen else plain  # safetensors refuses tensors that share memory
        seen.add(place)
    data: bytes = save(apart, metadata=about)
    return data


def from_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; a ``ValueError`` if it is none."""
    return tensors_of(path.read_bytes())


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """What ``to_tensors`` made bytes of; a ``ValueError`` if it is not that."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Tensor] = load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return tensors


def sealed(data: bytes) -> bytes:
    """Bytes behind their own digest, so that ``unsealed`` notices when they were altered."""
    return hashlib.sha256(data).digest() + data


def unsealed(data: bytes) -> bytes:
    """What ``sealed`` sealed; a ``ValueError`` if it is not that any more."""
    size = hashlib.sha256().digest_size
    if hashlib.sha256(data[size:]).digest() != data[:size]:
        raise ValueError("it was altered since it was written")
    return data[size:]


def take_lock(path: Path, wait: float = 0.5) -> int:
    """Lock a file for this process until the handle is closed or the process ends, however it ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
def told(consequence: str) -> Iterator[None]:
    """Turn what the disk refuses into words, with what that means for the user."""
    try:
        yield
    except OSError as error:
        cause = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise RunError(f"{cause}: {consequence}") from error
