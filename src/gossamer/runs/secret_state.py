"""Entries of the server state that nobody but the run itself may read: in checkpoints they are encrypted.

Some parts with noise must remember what the noise hides: ``TreeMean`` keeps the exact sum of all updates, and the noise
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

import torch
from torch import Tensor

from gossamer.core import files, tree
from gossamer.core.errors import RunError
from gossamer.core.random import Key
from gossamer.core.types import State
from gossamer.runs.records import SECRET

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
