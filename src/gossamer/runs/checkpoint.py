"""Read the checkpoints of a run folder, and check every file that they need. Nothing is written or deleted.

Some entries of the server state nobody but the run itself may read: in checkpoints they are encrypted.
Parts with noise must remember what the noise hides: ``TreeMean`` keeps the exact sum of all updates, and the noise
that was added to it. Models are made to be seen, and so are checkpoints: run folders are copied and shared. So these
entries (``Server.secret_state``) are written as one tensor of bytes, under a key that is in ``run.secret``, which
only its owner can read:

    k1, k2 = BLAKE2b(key = run.secret, personalization = "gossamer.state"), two halves of 32 bytes
    cipher = tensors xor SHAKE-256(k1 nonce)
    entry  = BLAKE2b(key = k2, nonce cipher) nonce cipher

The nonce is drawn anew for each checkpoint: two texts under one keystream would give away their difference. SHAKE-256
after a secret prefix is a stream cipher. The MAC is that of the ciphertext, and checked before decryption: it finds
another key as well as altered bytes. Both functions are in Python's standard library, so a plain installation needs no
package for it. The personalization makes k1 and k2 independent of all keys of random numbers, which in a deployment
follow from the same secret.

Runs whose noise follows from the seed encrypt nothing: their noise can be computed anyway, and a run that is repeated
writes the same bytes.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.core import files, tree
from gossamer.core.errors import RunError
from gossamer.core.random import Key
from gossamer.core.store import ClientStore
from gossamer.core.types import State
from gossamer.runs import inside
from gossamer.runs.records import (
    FILES,
    INIT,
    METRICS,
    SECRET,
    SERVER,
    SPLIT,
    STORES,
    TENSORS,
    Lines,
    check_files,
    check_lines,
    checkpoints,
    metrics_lines,
    read_about,
    read_manifest,
    state_file,
    tensor_file,
)


@dataclass(frozen=True)
class Checkpoint:
    """A position in a run; client states are read separately, by ``recall``.

    Args:
        rounds: the number of finished rounds
        flat: the server state after them, by flat names
        manifest: the content of its manifest
    """

    rounds: int
    flat: dict[str, Tensor]
    manifest: dict[str, Any]

    @property
    def server(self) -> State:
        """The server state."""
        return tree.unflatten(self.flat)


class Newest(NamedTuple):
    """The newest whole checkpoint of a run.

    Args:
        checkpoint: the checkpoint; none before the first round
        damaged: why newer checkpoints cannot be used, by their rounds
        lines: the whole lines of the metrics
    """

    checkpoint: Checkpoint | None
    damaged: dict[int, str]
    lines: Lines


def newest(path: Path) -> Newest:
    """Return the newest checkpoint whose files and metrics are whole; refuse a run that has damaged ones alone."""
    done, lines, damaged = checkpoints(path), metrics_lines(path), dict[int, str]()
    for rounds in done:
        try:
            return Newest(load(path, rounds, lines), damaged, lines)
        except RunError as error:
            damaged[rounds] = str(error)
    if damaged:
        check_lines(path, lines, oldest=done[-1])
        reasons = "; ".join(damaged.values())
        raise RunError(f"no checkpoint of {path} can be used: {reasons}: restore these files from a copy")
    if len(lines.records) > 1 or lines.problem:
        why = lines.problem or f"it has {len(lines.records)} rounds, and there is no checkpoint"
        raise RunError(f"{path}/{METRICS} does not fit checkpoints/: {why}: restore both from a copy, or start anew")
    return Newest(None, damaged, lines)


def load(path: Path, rounds: int, lines: Lines | None = None) -> Checkpoint:
    """Return a checkpoint; refuse it if a file that it needs, or a line of the metrics before it, was altered."""
    manifest = read_manifest(path, rounds)
    check_files(path, rounds, manifest)
    if lines is not None and lines.digest_at(manifest["metrics_bytes"]) != manifest["metrics_digest"]:
        why = lines.problem or f"it is not the one that checkpoint {rounds} was written with"
        raise RunError(f"checkpoint {rounds} cannot be used: {METRICS}: {why}")
    try:
        flat = files.tensors_of(inside.read(path, f"checkpoints/{rounds}/{SERVER}"))
        for name, digest in manifest[TENSORS].items():
            flat[name] = files.tensors_of(inside.read(path, tensor_file(digest)))["tensor"]
        tree.unflatten(flat)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunError(f"checkpoint {rounds} is damaged: its server state cannot be read ({error})") from error
    return Checkpoint(rounds, flat, manifest)


def recall(path: Path, checkpoint: Checkpoint, clients: ClientStore, models: ClientStore) -> dict[str, int]:
    """Read the per-client states of a checkpoint, file by file. Return how many states, current or not, each has."""
    counts: dict[str, int] = {}
    for store, kept in zip(STORES, (clients, models), strict=True):
        homes: dict[str, int] = checkpoint.manifest[store]
        for home in sorted(set(homes.values())):
            name = state_file(store, home)
            try:
                found = tree.unflatten(files.tensors_of(inside.read(path, name)))
                current = {int(client): found[client] for client, at in homes.items() if at == home}
            except (OSError, ValueError, LookupError, TypeError) as error:
                raise RunError(f"checkpoint {checkpoint.rounds} is damaged: {name} cannot be read ({error})") from error
            counts[name] = len(found)
            for client, state in current.items():
                kept.fill(client, state)
    return counts


def read_split(path: Path) -> dict[str, Tensor]:
    """Return the tensors of the run's partition."""
    return _once_written(path, SPLIT)


def read_init(path: Path) -> dict[str, Tensor]:
    """Return the initial weights of a run that was given some."""
    return _once_written(path, INIT)


def _once_written(path: Path, name: str) -> dict[str, Tensor]:
    """Return the tensors of a file whose digest is in ``run.json``."""
    wanted = read_about(path).get(FILES, {}).get(name)
    try:
        data = inside.read(path, name)
        if files.digest_of(data) != wanted:
            raise ValueError("it was altered since the run was started")
        return files.tensors_of(data)
    except (OSError, ValueError) as error:
        raise RunError(f"{path}/{name} cannot be used: {error}: restore it from a copy") from error


def read_server(path: Path) -> State:
    """Return the server state at the newest checkpoint."""
    return _last(path).server


def read_client(path: Path, client: int) -> State:
    """Return the state of a client at the newest checkpoint; empty if it has none."""
    clients = ClientStore("cpu")
    recall(path, _last(path), clients, ClientStore("cpu"))
    return clients.get(client)


def _last(path: Path) -> Checkpoint:
    done = checkpoints(path)
    if not done:
        raise RunError(f"{path} has no finished round yet")
    return load(path, done[0])


ENTRY = "secret_state"
"""The entry of a checkpoint that holds the encrypted ones."""

MAC, NONCE = 32, 16
"""Sizes of the first two parts of the entry in bytes."""


def encrypted(state: State, names: Collection[str], key: Key) -> State:
    """Return a server state with these entries encrypted."""
    secret = files.to_tensors(tree.flatten({name: state[name] for name in names}))
    stream, check = _keys(key)
    nonce = os.urandom(NONCE)
    sent = nonce + _xor(secret, stream + nonce)
    entry = torch.frombuffer(bytearray(_mac(sent, check) + sent), dtype=torch.uint8)
    return {**{name: value for name, value in state.items() if name not in names}, ENTRY: entry}


def decrypted(state: State, key: Key) -> State:
    """Return the state that was passed to ``encrypted``. Raises ``RunError`` with another key, or if it was altered."""
    if ENTRY not in state:
        return state
    stream, check = _keys(key)
    entry = _bytes(state[ENTRY])
    mac, sent = entry[:MAC], entry[MAC:]
    if not hmac.compare_digest(mac, _mac(sent, check)):
        raise RunError(
            f"the secret entries of the server state cannot be decrypted: {SECRET} is not the one that the run was"
            " started with: restore it from the machine of the run"
        )
    secret = files.tensors_of(_xor(sent[NONCE:], stream + sent[:NONCE]))
    return {**without(state), **tree.unflatten(secret)}


def without(state: State) -> State:
    """Return a state without its encrypted entries: what there is to see without a key."""
    return {name: value for name, value in state.items() if name != ENTRY}


def _keys(key: Key) -> tuple[bytes, bytes]:
    """Return the keys of the cipher and of the MAC."""
    both = hashlib.blake2b(key=struct.pack("<QQ", *key), person=b"gossamer.state").digest()
    return both[:32], both[32:]


def _mac(sent: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(sent, key=key, digest_size=MAC).digest()


def _xor(data: bytes, seed: bytes) -> bytes:
    """Return bytes xor as many of SHAKE-256; a second time, they are as before."""
    mask = hashlib.shake_256(seed).digest(len(data))
    here, there = (torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in (data, mask))
    return _bytes(here ^ there)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
