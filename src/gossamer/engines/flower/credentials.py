"""Credentials of a deployment: TLS certificates for the SuperLink, and one key per node.

    ca.crt            the authority's certificate, for nodes and users; public
    server.pem        the SuperLink's certificate for its names and addresses, signed by the authority; public
    server.key        the SuperLink's private key
    NODE, NODE.pub    a node's key, as ``ssh-keygen -t ecdsa -b 384`` makes it; the SuperLink gets the public half
    roster.pub        the public keys of all nodes by their numbers, for every node that checks the others; public

The authority's own key signs one certificate and is discarded, so it cannot be stolen. For other names, or when the
certificates expire, make a new authority and copy its ``ca.crt`` to the nodes.

Private files are readable only by their owner from their creation. Existing files are never overwritten.
"""

import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gossamer.core import files
from gossamer.core.errors import ConfigError, require

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
    names = [_name(host) for host in dict.fromkeys([*ALWAYS, *hosts])]
    signer, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _root(signer)
    contents = {
        "server.key": (_pem(server), PRIVATE),
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


def _name(host: str) -> x509.GeneralName:
    address = _address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


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


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


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
                _create(path, data, mode, made)
    except BaseException:
        for path in made:
            path.unlink()
        raise


def _create(path: Path, data: bytes, mode: int, made: list[Path]) -> None:
    """Create a file with its mode set from the start; fail if it exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    made.append(path)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)
