"""Keys of a deployment: TLS certificates for the SuperLink, one key per node, and who the nodes are.

    ca.crt            the authority's certificate, for nodes and users; public
    server.pem        the SuperLink's certificate for its names and addresses, signed by the authority; public
    server.key        the SuperLink's private key
    NODE, NODE.pub    a node's key, as ``ssh-keygen -t ecdsa -b 384`` makes it; the SuperLink gets the public half
    roster.pub        the public keys of all nodes by their numbers, for every node that checks the others; public

The authority's own key signs one certificate and is discarded, so it cannot be stolen. For other names, or when the
certificates expire, make a new authority and copy its ``ca.crt`` to the nodes. Private files are readable only by their
owner from their creation. Existing files are never overwritten.

**The number of a node.** Flower checks that a node has a registered key, and calls it by a random number. Which client
a node is, it says itself. So the server asks a new node to sign the run, a random challenge, Flower's number of the
node and its client number with its key, and verifies the signature with the public key of that client: ``node-3.pub``
for client 3.

**The roster** has the public key of every client, one line each:

    0 ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ...
    1 ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ...

With secure aggregation, a server that could choose these keys could invent clients, and be all of them but one. So a
node takes the roster from a file of its own, ``roster=FILE`` in its settings, which ``gossamer deploy keys`` writes.
Without such a file it takes the first roster that a server sends, keeps it in its state folder, and refuses any other
one from then on. This protects against a server that turns hostile later, not against one that was so at first use.
"""

import base64
import hashlib
import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from logging import INFO
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from flwr.supercore.logger import log

from gossamer.core import files
from gossamer.core.errors import ConfigError, PayloadError, require
from gossamer.parts.secure.primitives import KeyRoster, encoded

DAYS = 825
"""Validity of the certificates in days."""

ALWAYS = ("localhost", "127.0.0.1")
LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST_NAME = re.compile(rf"{LABEL}(\.{LABEL})*")
PUBLIC, PRIVATE = 0o644, 0o600

SECRET = 32
"""Bytes of a secret."""

ROSTER = "roster.pub"
"""The file with the public keys of all nodes."""


def authority(folder: Path, hosts: Sequence[str]) -> None:
    """Write ``ca.crt``, ``server.pem`` and ``server.key`` for a SuperLink with these names and addresses."""
    wanted = "a host must be a name or an IP address, without protocol, port or path"
    require(*(((_address(host) or HOST_NAME.fullmatch(host)) is not None, f"{wanted}, got {host!r}") for host in hosts))
    found = [(host, _address(host)) for host in dict.fromkeys([*ALWAYS, *hosts])]
    names = [x509.DNSName(host) if address is None else x509.IPAddress(address) for host, address in found]
    signer, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _root(signer)
    contents = {
        "server.key": (server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), PRIVATE),
        "server.pem": (_certificate(server, names, root, signer).public_bytes(Encoding.PEM), PUBLIC),
        "ca.crt": (root.public_bytes(Encoding.PEM), PUBLIC),
    }
    _write({folder / name: content for name, content in contents.items()})


def node_key(path: Path) -> None:
    """Write a node's private key, and next to it the public half with the suffix ``.pub``."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    _write({public_half(path): (public, PUBLIC), path: (private, PRIVATE)})


def roster(folder: Path, nodes: int) -> None:
    """Write ``roster.pub``: the public keys of nodes ``node-0.pub`` and so on, by which they check each other."""
    lines = (f"{node} {public_half(folder / f'node-{node}').read_text()}" for node in range(nodes))
    _write({folder / ROSTER: ("".join(lines).encode(), PUBLIC)})


def secret(path: Path) -> None:
    """Write a random secret for two processes on one machine."""
    _write({path: (secrets.token_bytes(SECRET), PRIVATE)})


def public_half(path: Path) -> Path:
    """Return the path of the public half of a node's key."""
    return path.with_name(f"{path.name}.pub")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _root(signer: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """Return the self-signed certificate of the authority, valid only for signing certificates."""
    name, identifier = _subject("Gossamer authority"), x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    return (
        _builder(name, name, signer)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _certificate(
    server: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    root: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """Return the SuperLink's certificate, valid only for serving TLS under its names."""
    identifier = x509.SubjectKeyIdentifier.from_public_key(server.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        _builder(_subject("Gossamer SuperLink"), root.subject, server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _builder(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # a node's clock may be slow
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(contents: Mapping[Path, tuple[bytes, int]]) -> None:
    """Create all files, or none if one of them exists."""
    existing = [str(path) for path in contents if path.exists()]
    if existing:
        raise ConfigError(f"{', '.join(existing)} exists: choose another folder, or move it away if nothing uses it")
    made: list[Path] = []
    try:
        with files.on_failure(f"no credentials were written to {next(iter(contents)).parent}"):
            for path, (data, mode) in contents.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                # Its mode is set from the start, and it fails if the file exists.
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                made.append(path)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(handle)
    except BaseException:
        for path in made:
            path.unlink()
        raise


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


PINNED = ROSTER
"""The file of a roster in a node's state folder."""


def roster_text(keys: Mapping[int, ec.EllipticCurvePublicKey]) -> str:
    """Return the text of a roster."""
    lines = {c: key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode() for c, key in keys.items()}
    return "".join(f"{client} {line}\n" for client, line in sorted(lines.items()))


def read_roster(text: str) -> KeyRoster:
    """Return the roster in a text. Raise ``PayloadError`` for any other text."""
    found: dict[int, bytes] = {}
    for line in text.splitlines():
        number, _, key = line.partition(" ")
        if not number.isdecimal() or int(number) in found:
            raise PayloadError(
                f"a line of the roster does not begin with the number of another client: {number[:20]!r}"
            )
        try:
            found[int(number)] = encoded(load_ssh_public_key(key.encode()))
        except (ValueError, ConfigError, UnsupportedAlgorithm) as error:
            raise PayloadError(f"the roster has no public key for client {number[:20]}: {error}") from None
    if len(set(found.values())) < len(found):
        raise PayloadError("two clients have the same key on the roster")
    return KeyRoster(found)


def name_of(roster: KeyRoster) -> str:
    """Return a digest of a roster as people compare it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(roster.digest).digest()).decode().rstrip("=")


def pinned(sent: str, home: Path, given: Path | None) -> KeyRoster:
    """Return the roster that a node trusts; refuse a server that sends another one.

    Args:
        sent: the roster of the server
        home: the state folder of the node
        given: the node's own file; none: the first roster that any server has sent
    """
    theirs, place = read_roster(sent), given or home / PINNED
    if given is None and not place.exists():
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with files.on_failure(f"the roster was not kept in {home}"):
            files.write(place, sent.encode(), 0o600)
        log(INFO, "pinned the roster %s of %s clients at first use, in %s", name_of(theirs), len(theirs.keys), place)
        return theirs
    try:
        mine = read_roster(place.read_text())
    except (OSError, UnicodeDecodeError, PayloadError) as error:
        raise ConfigError(f"the roster {place} cannot be read: {error}") from None
    if mine.digest != theirs.digest:
        how = "roster= in --node-config" if given else "pinned at first use; delete it if the clients have changed"
        raise PayloadError(
            f"the server has the roster {name_of(theirs)} of {len(theirs.keys)} clients, and this node {name_of(mine)}"
            f" of {len(mine.keys)} ({place}, {how}): it may not choose whose keys are genuine"
        )
    return mine
