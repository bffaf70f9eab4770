"""Proof of a node's number: a signature with the key that belongs to it.

Flower checks that a node has a registered key, and calls it by a random number. Which client a node is, it says itself.
So the server asks a new node to sign the run, a random challenge, Flower's number of the node and its client number
with its key, and verifies the signature with the public key of that client: ``node-3.pub`` for client 3.
"""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from gossamer.core.errors import ConfigError, PayloadError

LONGEST = 1000
"""Maximum characters of a proof."""


def claim(run: str, challenge: str, node: int, client: int) -> bytes:
    """Return what a node signs."""
    return f"gossamer node {run} {challenge} {node} {client}".encode()


def prove(key: Path, claimed: bytes) -> str:
    """Return the signature of a claim with a node's private key."""
    return private_key(key).sign(claimed, ec.ECDSA(hashes.SHA384())).hex()


def private_key(key: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of a node."""
    try:
        private = load_ssh_private_key(key.expanduser().read_bytes(), None)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"the key of this node cannot be read: {type(error).__name__}: check key= in --node-config"
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ConfigError("the key of this node must be an ECDSA key: gossamer deploy keys makes such keys")
    return private


def public_key(folder: Path, client: int) -> ec.EllipticCurvePublicKey:
    """Return the public key of a client."""
    path = folder.expanduser() / f"node-{client}.pub"
    try:
        found = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is no public key of a node: {error}") from error
    if not isinstance(found, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path} is no ECDSA key: gossamer deploy keys makes such keys")
    return found


def check_proof(public: ec.EllipticCurvePublicKey, claimed: bytes, proof: str) -> None:
    """Raise ``PayloadError`` if a proof is not the signature of a claim."""
    try:
        public.verify(bytes.fromhex(proof[:LONGEST]), claimed, ec.ECDSA(hashes.SHA384()))
    except (ValueError, InvalidSignature):
        raise PayloadError("it does not have the key of the client that it claims to be") from None
