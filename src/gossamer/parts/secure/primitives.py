"""The cryptography of SecAgg, from the packages ``cryptography`` and ``pycryptodome``.

    key agreement    X25519 (RFC 7748), with private keys from 16-byte seeds, so that 16 bytes must be shared
    derivation       HKDF with SHA-256 (RFC 5869); the salt is the nonce of the round, the label is the purpose
    encryption       ChaCha20-Poly1305 (RFC 8439), under a key for one message, so that its nonce can be zero
    secret sharing   Shamir over GF(2^128), for secrets of 16 bytes

All secrets are from the generator of the operating system, never from a seed of the run.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from typing import Any

from gossamer.core.errors import PayloadError
from gossamer.core.extras import need

SEED = 16
"""The number of bytes of a secret, of a share, and of the nonce of a round."""
PUBLIC = 32
"""The number of bytes of a public key, and of a commitment."""
SEALED = 2 * SEED + 16
"""The number of bytes of two encrypted shares."""
LABEL = b"gossamer secagg 1 "
ONCE = bytes(12)

Share = tuple[int, bytes]


def fresh() -> bytes:
    """Return a new secret from the operating system."""
    return os.urandom(SEED)


def derive(secret: bytes, nonce: bytes, purpose: str, *clients: int, length: int = SEED) -> bytes:
    """Return bytes for a purpose of one round. ``clients`` are those that the purpose concerns, in order."""
    kdf, sha256 = need("cryptography.hazmat.primitives.kdf.hkdf"), need("cryptography.hazmat.primitives.hashes").SHA256
    info = LABEL + purpose.encode() + b"".join(client.to_bytes(8, "little") for client in clients)
    return bytes(kdf.HKDF(sha256(), length, nonce, info).derive(secret))


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


def pair_mask(private: Any, public: bytes, nonce: bytes, one: int, other: int) -> bytes:
    """Return the key of the mask that two clients share, from the private key of one and the public key of the other.

    The client with the smaller number adds the mask, the other one subtracts it: see ``pair_sign``.
    """
    return derive(agree(private, public), nonce, "pair", *sorted((one, other)))


def pair_sign(client: int, other: int) -> int:
    """Return the sign of a shared mask in the vector of a client."""
    return 1 if client < other else -1


def self_mask(seed: bytes, nonce: bytes, client: int) -> bytes:
    """Return the key of the mask that a client alone adds."""
    return derive(seed, nonce, "self", client)


def seal(secret: bytes, nonce: bytes, sender: int, receiver: int, plain: bytes) -> bytes:
    """Return a message from a client to another one, encrypted and authenticated."""
    return bytes(_box(secret, nonce, sender, receiver).encrypt(ONCE, plain, _address(nonce, sender, receiver)))


def unseal(secret: bytes, nonce: bytes, sender: int, receiver: int, sealed: bytes) -> bytes | None:
    """Return the message; ``None`` if it is not from this sender to this receiver in this round."""
    invalid = need("cryptography.exceptions").InvalidTag
    try:
        return bytes(_box(secret, nonce, sender, receiver).decrypt(ONCE, sealed, _address(nonce, sender, receiver)))
    except invalid:
        return None


def _box(secret: bytes, nonce: bytes, sender: int, receiver: int) -> Any:
    """Return a cipher with a key for the one message between two clients in this direction."""
    aead = need("cryptography.hazmat.primitives.ciphers.aead")
    return aead.ChaCha20Poly1305(derive(secret, nonce, "shares", sender, receiver, length=32))


def _address(nonce: bytes, sender: int, receiver: int) -> bytes:
    return nonce + sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")


def commitment(secret: bytes, nonce: bytes, client: int) -> bytes:
    """Return a value that shows whether a reconstructed secret is the one that the client has shared."""
    return hashlib.sha256(LABEL + b"commitment" + nonce + client.to_bytes(8, "little") + secret).digest()


def split(secret: bytes, need_shares: int, members: int) -> list[bytes]:
    """Return a share of a secret for each member. Member i has the point i + 1 of the polynomial."""
    shares: list[Share] = need("Crypto.Protocol.SecretSharing").Shamir.split(need_shares, members, secret)
    return [share for _, share in shares]


def combine(shares: Iterable[Share]) -> bytes:
    """Return the secret of exactly as many shares as are needed, by member number from 0."""
    points = [(member + 1, share) for member, share in shares]
    return bytes(need("Crypto.Protocol.SecretSharing").Shamir.combine(points))


def attempts(shares: Sequence[Share], need_shares: int) -> Iterable[Sequence[Share]]:
    """Return the sets of shares to try in turn, until one reconstructs the secret.

    The first ones, if all are right. Otherwise all but a block of the others' length, for each block: this leaves out
    one wrong share, and more of them if they are in the same block.
    """
    spare = len(shares) - need_shares
    yield shares[:need_shares]
    for start in range(0, len(shares), spare) if spare else ():
        first = min(start, need_shares)
        yield [*shares[:first], *shares[first + spare :]]
