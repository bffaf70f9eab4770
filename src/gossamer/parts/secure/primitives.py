"""The cryptography of SecAgg, from the package ``cryptography``. ``shamir`` has the secret sharing.

    key agreement    X25519 (RFC 7748), with private keys from 16-byte seeds, so that 16 bytes must be shared
    derivation       HKDF with SHA-256 (RFC 5869); the salt is what both sides must have seen alike, the label is the
                     purpose
    encryption       ChaCha20-Poly1305 (RFC 8439), under a key for one message, so that its nonce can be zero
    signatures       Ed25519 (RFC 8032), with keys of one round, which the long-term keys of a roster have signed
    rosters          ECDSA on the curve P-384: the long-term public keys of the clients, as nodes of a deployment have
                     them. A signature has 96 bytes: r and s
    masks            AES-128 in counter mode, read as little-endian numbers: a uniform vector for everybody without the
                     key. With processor support it takes 0.12 ms per million bytes here; ChaCha20 takes 0.20 ms

All secrets are from the generator of the operating system, never from a seed of the run.

**Vectors.** A vector to sum is an array per ring (``lanes``), of the smallest unsigned type that holds the ring's bits.
Sums wrap around in that type, whose size is a multiple of the ring's, so that they are reduced once, at the end. A
packed vector has ``bits`` bits per entry. The entries of a ring are split into bytes: all lowest bytes, then all second
bytes, and so on. What is left above the last whole byte is packed by ``gossamer.core.bits.codes``.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer.core.bits import code_bytes, codes, expect_codes
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.extras import need
from gossamer.core.secure import Ring, Roster, SumSegment, rings_of
from gossamer.core.types import Payload
from gossamer.core.wire import expect

SEED = 16
"""The number of bytes of a seed, of a share, and of the nonce of a round."""
PUBLIC = 32
"""The number of bytes of a public key, and of a digest."""
SIGNED = 64
"""The number of bytes of a signature with a key of one round."""
TAG = 16
"""The number of bytes that encryption adds to a message."""
LABEL = b"gossamer secagg 2 "
ONCE = bytes(12)


def fresh() -> bytes:
    """Return a new secret from the operating system."""
    return os.urandom(SEED)


def digest(purpose: str, *parts: bytes) -> bytes:
    """Return a digest of texts for a purpose: the lengths are hashed too, so that no two lists have the same bytes."""
    found = hashlib.sha256(LABEL + purpose.encode())
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def numbered(*numbers: int) -> bytes:
    """Return numbers as bytes."""
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def tensor(data: bytes) -> Tensor:
    """Return bytes as a tensor.

    >>> tensor(b"ab")
    tensor([97, 98], dtype=torch.uint8)
    """
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def raw(array: Tensor) -> bytes:
    """Return the bytes of a tensor of uint8."""
    return array.cpu().numpy().tobytes()


def expect_bytes(payload: Payload, name: str, count: int) -> bytes:
    """Return an array of bytes of a payload."""
    return raw(expect(payload, name, torch.uint8, count))


def pieces(data: bytes, size: int) -> list[bytes]:
    """Return bytes in pieces of a size.

    >>> pieces(b"abcd", 2)
    [b'ab', b'cd']
    """
    return [data[at : at + size] for at in range(0, len(data), size)]


def derive(secret: bytes, salt: bytes, purpose: str, *clients: int, length: int = SEED) -> bytes:
    """Return bytes for a purpose of one round. ``clients`` are those that the purpose concerns, in order."""
    kdf, sha256 = need("cryptography.hazmat.primitives.kdf.hkdf"), need("cryptography.hazmat.primitives.hashes").SHA256
    return bytes(kdf.HKDF(sha256(), length, salt, LABEL + purpose.encode() + numbered(*clients)).derive(secret))


def private_key(seed: bytes, nonce: bytes, purpose: str) -> Any:
    """Return the X25519 private key of a seed."""
    curve = need("cryptography.hazmat.primitives.asymmetric.x25519")
    return curve.X25519PrivateKey.from_private_bytes(derive(seed, nonce, purpose, length=32))


def public_bytes(private: Any) -> bytes:
    """Return the 32 bytes of the public key of a private one."""
    return bytes(private.public_key().public_bytes_raw())


def agree(private: Any, public: bytes) -> bytes:
    """Return the secret that the owners of two keys share. Raise ``PayloadError`` for a public key of low order."""
    curve = need("cryptography.hazmat.primitives.asymmetric.x25519")
    try:
        return bytes(private.exchange(curve.X25519PublicKey.from_public_bytes(public)))
    except ValueError:
        raise PayloadError("a public key of low order, with which every shared secret is zero") from None


def pair_mask(private: Any, public: bytes, common: bytes, one: int, other: int) -> bytes:
    """Return the key of the mask that two clients share, from the private key of one and the public key of the other.

    ``common`` is what both must have seen alike. The client with the smaller number adds the mask, the other one
    subtracts it: see ``pair_sign``.
    """
    return derive(agree(private, public), common, "pair", *sorted((one, other)))


def pair_sign(client: int, other: int) -> int:
    """Return the sign of a shared mask in the vector of a client."""
    return 1 if client < other else -1


def self_mask(seed: bytes, common: bytes, client: int) -> bytes:
    """Return the key of the mask that a client alone adds."""
    return derive(seed, common, "self", client)


def signing_key(seed: bytes, nonce: bytes) -> Any:
    """Return the Ed25519 private key of a seed, with which a client signs in one round."""
    curve = need("cryptography.hazmat.primitives.asymmetric.ed25519")
    return curve.Ed25519PrivateKey.from_private_bytes(derive(seed, nonce, "sign", length=32))


def signed_by(public: bytes, data: bytes, signature: bytes) -> bool:
    """Return whether a signature of data is by the owner of an Ed25519 public key.

    The answer for a signature is remembered: in a simulation, every client verifies those of all others.
    """
    return _signed_by(public, hashlib.sha256(data).digest(), signature)


@lru_cache(maxsize=1 << 13)
def _signed_by(public: bytes, digested: bytes, signature: bytes) -> bool:
    curve, invalid = need("cryptography.hazmat.primitives.asymmetric.ed25519"), need("cryptography.exceptions")
    try:
        curve.Ed25519PublicKey.from_public_bytes(public).verify(signature, digested)
    except (ValueError, invalid.InvalidSignature):
        return False
    return True


def sign(private: Any, data: bytes) -> bytes:
    """Return the signature of data that ``signed_by`` verifies."""
    return bytes(private.sign(hashlib.sha256(data).digest()))


def seal(secret: bytes, context: bytes, sender: int, receiver: int, plain: bytes) -> bytes:
    """Return a message from a client to another one, encrypted and authenticated."""
    return bytes(_box(secret, context, sender, receiver).encrypt(ONCE, plain, _address(context, sender, receiver)))


def unseal(secret: bytes, context: bytes, sender: int, receiver: int, sealed: bytes) -> bytes | None:
    """Return the message; ``None`` if it is not from this sender to this receiver in this round."""
    invalid = need("cryptography.exceptions").InvalidTag
    try:
        return bytes(_box(secret, context, sender, receiver).decrypt(ONCE, sealed, _address(context, sender, receiver)))
    except invalid:
        return None


def _box(secret: bytes, context: bytes, sender: int, receiver: int) -> Any:
    """Return a cipher with a key for the one message between two clients in this direction."""
    aead = need("cryptography.hazmat.primitives.ciphers.aead")
    return aead.ChaCha20Poly1305(derive(secret, context, "shares", sender, receiver, length=32))


def _address(context: bytes, sender: int, receiver: int) -> bytes:
    return context + numbered(sender, receiver)


HALF = 48
"""The number of bytes of r, and of s."""
SIGNATURE = 2 * HALF


def signer(private: Any) -> Callable[[bytes], bytes]:
    """Return a function that signs data with a private ECDSA key on P-384."""
    ec, hashes = _ec(), need("cryptography.hazmat.primitives.hashes")
    utils = need("cryptography.hazmat.primitives.asymmetric.utils")

    def sign(data: bytes) -> bytes:
        r, s = utils.decode_dss_signature(private.sign(data, ec.ECDSA(hashes.SHA384())))
        return bytes(r.to_bytes(HALF, "big") + s.to_bytes(HALF, "big"))

    return sign


def encoded(public: Any) -> bytes:
    """Return a public key as a compressed point. Raise ``ConfigError`` for a key of another kind or curve."""
    ec, serialization = _ec(), need("cryptography.hazmat.primitives.serialization")
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP384R1):
        raise ConfigError(
            "secure aggregation needs ECDSA keys on the curve P-384: gossamer deploy keys makes such keys"
        )
    forms = serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    return bytes(public.public_bytes(*forms))


class KeyRoster(Roster):
    """A roster of given public keys.

    Args:
        keys: the public key of each client, as a compressed point: see ``encoded``
    """

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        self.keys = dict(sorted(keys.items()))
        self._digest = digest("roster", *(numbered(client) + key for client, key in self.keys.items()))

    @property
    def digest(self) -> bytes:
        """A digest of all clients with their keys."""
        return self._digest

    def verify(self, client: int, data: bytes, signature: bytes) -> bool:
        """Return whether a signature of data is one of this client."""
        return client in self.keys and verified(self.keys[client], data, signature)


class SimulatedKeys(Roster):
    """Keys of simulated clients: all follow from one secret of the operating system, and are made on first use.

    Args:
        clients: the number of clients
    """

    def __init__(self, clients: int) -> None:
        self.clients, self._secret = clients, fresh()
        # The secret determines all keys, so that a digest of it stands for them: nobody has to make a million keys.
        self._digest = digest("simulated roster", self._secret, numbered(clients))
        self._signers: dict[int, Callable[[bytes], bytes]] = {}
        self._keys: dict[int, bytes] = {}

    @property
    def digest(self) -> bytes:
        """A digest of all clients with their keys."""
        return self._digest

    def verify(self, client: int, data: bytes, signature: bytes) -> bool:
        """Return whether a signature of data is one of this client."""
        if not 0 <= client < self.clients:
            return False
        self._make(client)
        return verified(self._keys[client], data, signature)

    def signer(self, client: int) -> Callable[[bytes], bytes]:
        """Return the function with which a client signs."""
        self._make(client)
        return self._signers[client]

    def _make(self, client: int) -> None:
        if client not in self._signers:
            ec = _ec()
            scalar = 1 + int.from_bytes(derive(self._secret, b"", "identity", client, length=HALF - 1), "little")
            private = ec.derive_private_key(scalar, ec.SECP384R1())
            self._signers[client], self._keys[client] = signer(private), encoded(private.public_key())


def verified(public: bytes, data: bytes, signature: bytes) -> bool:
    """Return whether a signature of data is by the owner of a public key, given as a compressed point.

    The answer for a signature is remembered: in a simulation, every client verifies those of all others.
    """
    return _verified(public, hashlib.sha384(data).digest(), signature)


@lru_cache(maxsize=1 << 13)
def _verified(public: bytes, digested: bytes, signature: bytes) -> bool:
    ec, hashes = _ec(), need("cryptography.hazmat.primitives.hashes")
    utils = need("cryptography.hazmat.primitives.asymmetric.utils")
    invalid = need("cryptography.exceptions").InvalidSignature
    if len(signature) != SIGNATURE:
        return False
    r, s = (int.from_bytes(signature[at : at + HALF], "big") for at in (0, HALF))
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), public)
        key.verify(utils.encode_dss_signature(r, s), digested, ec.ECDSA(utils.Prehashed(hashes.SHA384())))
    except (ValueError, invalid):
        return False
    return True


def _ec() -> Any:
    return need("cryptography.hazmat.primitives.asymmetric.ec")


WIDEST = 32
CHUNK = 1 << 18  # bytes of a mask at a time: they stay in the processor's cache
ZEROS = bytes(CHUNK)

Lane = npt.NDArray[np.unsignedinteger[Any]]


def rings(segments: Sequence[SumSegment], clients: int) -> tuple[Ring, ...]:
    """Return the rings of a cohort. Raise ``ConfigError`` if one is above 32 bits."""
    found = rings_of(segments, clients)
    for (_, limit), ring in zip(segments, found, strict=True):
        if ring.bits > WIDEST:
            raise ConfigError(
                f"secure aggregation sums in at most {WIDEST} bits: {clients:,} values up to {limit:,} need {ring.bits}"
                " bits; use fewer clients per round or fewer levels"
            )
    return found


def lane_type(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest unsigned type that holds a number of bits."""
    return np.dtype("<u1" if bits <= 8 else "<u2" if bits <= 16 else "<u4")


def zeros(rings: Sequence[Ring]) -> list[Lane]:
    """Return a vector of zeros."""
    return [np.zeros(ring.size, lane_type(ring.bits)) for ring in rings]


def lanes_of(values: Tensor, segments: Sequence[SumSegment], rings: Sequence[Ring]) -> list[Lane]:
    """Return values from 0 to the limits of their segments as a vector. Raise ``PayloadError`` for other values."""
    size = sum(ring.size for ring in rings)
    if values.shape != (size,):
        raise PayloadError(f"expected {size:,} values to sum, got {values.numel():,} in {values.dim()} dimensions")
    parts, lanes = values.detach().cpu().split([ring.size for ring in rings]), []
    for part, (_, limit), ring in zip(parts, segments, rings, strict=True):
        array = part.numpy()
        # A value outside would change the sums of other bits, and nobody could see it.
        if part.numel() and not (array.min() >= 0 and array.max() <= limit):
            raise PayloadError(f"values to sum must be from 0 to {limit:,}, got {array.min()} to {array.max()}")
        lanes.append(array.astype(lane_type(ring.bits)))
    return lanes


def add_mask(lanes: Sequence[Lane], key: bytes, sign: int) -> None:
    """Add the mask of a key to a vector, or subtract it if ``sign`` is negative."""
    ciphers = need("cryptography.hazmat.primitives.ciphers")
    stream = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CTR(bytes(16))).encryptor()
    buffer, change = bytearray(CHUNK + 16), np.add if sign > 0 else np.subtract
    for lane in lanes:
        step, noise = CHUNK // lane.itemsize, np.frombuffer(buffer, lane.dtype, CHUNK // lane.itemsize)
        for start in range(0, len(lane), step):
            piece = lane[start : start + step]
            stream.update_into(memoryview(ZEROS)[: piece.nbytes], buffer)
            change(piece, noise[: len(piece)], out=piece)


def reduce(lanes: Sequence[Lane], rings: Sequence[Ring]) -> None:
    """Reduce a vector modulo the sizes of its rings, in place."""
    for lane, ring in zip(lanes, rings, strict=True):
        lane &= lane.dtype.type((1 << ring.bits) - 1)


def packed_size(rings: Sequence[Ring]) -> int:
    """Return the number of bytes of a packed vector."""
    return sum(code_bytes(ring.size, width) for ring in rings for _, width in _planes(ring))


def packed(lanes: Sequence[Lane], rings: Sequence[Ring]) -> Tensor:
    """Return a reduced vector in its number of bits, as uint8."""
    pieces = [torch.empty(0, dtype=torch.uint8)]
    for lane, ring in zip(lanes, rings, strict=True):
        rows = lane.view(np.uint8).reshape(ring.size, lane.itemsize)
        pieces += [codes(torch.from_numpy(rows[:, plane]), width) for plane, width in _planes(ring)]
    return torch.cat(pieces)


def add_packed(lanes: Sequence[Lane], rings: Sequence[Ring], payload: Payload, name: str) -> None:
    """Add the packed vector of a payload to a vector, after all of it was checked."""
    array, at, found = expect(payload, name, torch.uint8, packed_size(rings)).cpu(), 0, []
    for lane, ring in zip(lanes, rings, strict=True):
        for plane, width in _planes(ring):
            end = at + code_bytes(ring.size, width)
            found.append((lane, plane, expect_codes({name: array[at:end]}, name, width, ring.size).numpy()))
            at = end
    for lane, plane, part in found:
        lane += part.astype(lane.dtype, copy=False) << lane.dtype.type(8 * plane)


def _planes(ring: Ring) -> Iterator[tuple[int, int]]:
    """Return the number and the bits of each byte of a ring's entries."""
    return ((start // 8, min(8, ring.bits - start)) for start in range(0, ring.bits, 8))


def joined(lanes: Sequence[Lane]) -> Tensor:
    """Return a vector as one tensor, in int64."""
    return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *(lane.astype(np.int64) for lane in lanes)]))
