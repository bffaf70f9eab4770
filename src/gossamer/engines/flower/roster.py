"""The roster of a deployment: the public key of every client, one line each, as nodes pin it.

    0 ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ...
    1 ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQ...

With secure aggregation, a server that could choose these keys could invent clients, and be all of them but one. So a
node takes the roster from a file of its own, ``roster=FILE`` in its settings, which ``gossamer deploy keys`` writes.
Without such a file it takes the first roster that a server sends, keeps it in its state folder, and refuses any other
one from then on. This protects against a server that turns hostile later, not against one that was so at first use.
"""

import base64
import hashlib
from collections.abc import Mapping
from logging import INFO
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.supercore.logger import log

from gossamer.core import files
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.engines.flower import credentials
from gossamer.parts.secure.primitives import KeyRoster, encoded

PINNED = credentials.ROSTER
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
