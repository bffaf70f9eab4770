"""Rosters: the long-term public keys of the clients, with which they sign the keys of each round.

The keys are ECDSA keys on the curve P-384, as nodes of a deployment have them. A signature has 96 bytes: r and s.

    KeyRoster         the public keys of all clients, for example from the files of a deployment
    SimulatedKeys     keys for the clients of a simulation, made when they are first used, from a secret of the run
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from gossamer.core.errors import ConfigError
from gossamer.core.extras import need
from gossamer.core.secure import Roster
from gossamer.parts.secure.primitives import derive, digest, fresh, numbered

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
