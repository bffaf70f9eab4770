"""The cryptography of SecAgg, from the package ``cryptography``. ``shamir`` has the secret sharing.

    key agreement    X25519 (RFC 7748), with private keys from 16-byte seeds, so that 16 bytes must be shared
    derivation       HKDF with SHA-256 (RFC 5869); the salt is what both sides must have seen alike, the label is the
                     purpose
    encryption       ChaCha20-Poly1305 (RFC 8439), under a key for one message, so that its nonce can be zero
    signatures       Ed25519 (RFC 8032), with keys of one round, which the long-term keys of a roster have signed

All secrets are from the generator of the operating system, never from a seed of the run.
"""

import hashlib
import os
from functools import lru_cache
from typing import Any

from gossamer.core.errors import PayloadError
from gossamer.core.extras import need

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
