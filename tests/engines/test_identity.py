"""A node's number is tied to its key, where the server has the public keys."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import MessageType

from gossamer import METHODS
from gossamer.core.errors import ConfigError, PayloadError, RunError
from gossamer.engines.flower import credentials, fleet
from gossamer.testing import tiny_task
from helpers.flower_runs import CLIENTS, NUMBERS, altered, app, config, flower_run, ignore, rewritten
from helpers.local_grid import Handle, LocalGrid, node

METHOD, TASK = METHODS["fedavg"](steps=1), tiny_task(CLIENTS)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL", 0.001)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for client in range(CLIENTS):
        credentials.node_key(folder / f"node-{client}")
    return folder


def there(home: Path, keys: Path, owners: dict[int, int] | None = None) -> dict[int, Handle]:
    """Nodes with their keys; ``owners`` gives some the key of another client."""
    given = {client: (owners or {}).get(client, client) for client in range(CLIENTS)}
    more = {client: {"key": str(keys / f"node-{owner}")} for client, owner in given.items()}
    return {NUMBERS[c]: node(app(METHOD, TASK), {**config(c, home), **more[c]}) for c in range(CLIENTS)}


def run(handles: dict[int, Handle], keys: Path, **more: Any) -> Any:
    made = flower_run(METHOD, TASK, LocalGrid(handles), rounds=1, keys=str(keys), **more)
    made.run(None, ignore)
    return made


def test_nodes_with_their_keys_are_admitted(tmp_path: Path, keys: Path) -> None:
    assert run(there(tmp_path, keys), keys).metrics[0]["clients"] == [0, 1, 2, 3]


@pytest.mark.parametrize("proof", ["00" * 96, "no", "", None, "ff" * 5000])
def test_a_node_without_a_valid_proof_is_refused(proof: str | None, tmp_path: Path, keys: Path) -> None:
    nodes = there(tmp_path, keys)
    lie = altered(nodes[NUMBERS[1]], lambda reply: rewritten(reply, proof=proof), MessageType.QUERY, [0])
    found = run({**nodes, NUMBERS[1]: lie}, keys, nodes=3, per_round=3)
    assert 1 not in found.metrics[0]["clients"]
    assert list(found.fleet.refused) == [NUMBERS[1]]


def test_the_key_of_another_client_is_no_proof(tmp_path: Path, keys: Path) -> None:
    found = run(there(tmp_path, keys, {2: 1}), keys, nodes=3, per_round=3)
    assert found.metrics[0]["clients"] == [0, 1, 3]
    assert "does not have the key of the client that it claims to be" in found.fleet.refused[NUMBERS[2]][1]


def test_a_proof_of_another_node_is_no_proof(tmp_path: Path, keys: Path) -> None:
    """What one node has signed does not help another node that claims the same client."""
    nodes, seen = there(tmp_path, keys), []

    def keep(reply: Any) -> Any:
        seen.append(reply)
        return reply

    first = altered(nodes[NUMBERS[0]], keep, MessageType.QUERY, [0])
    run({**nodes, NUMBERS[0]: first}, keys)
    claimed = credentials.claim("run", "challenge", NUMBERS[0], 0)
    proof, public = credentials.prove(keys / "node-0", claimed), credentials.public_key(keys, 0)
    credentials.check_proof(public, claimed, proof)
    for other in (
        ("run", "challenge", NUMBERS[1], 0),
        ("run", "again", NUMBERS[0], 0),
        ("run", "challenge", NUMBERS[0], 1),
    ):
        with pytest.raises(PayloadError, match="does not have the key"):
            credentials.check_proof(public, credentials.claim(*other), proof)
    assert len(seen) == 1


def test_nodes_without_keys_are_refused_where_keys_are_given(tmp_path: Path, keys: Path) -> None:
    nodes = {NUMBERS[c]: node(app(METHOD, TASK), config(c, tmp_path)) for c in range(CLIENTS)}
    with pytest.raises(RunError, match="the reply has no str called 'proof'"):
        run(nodes, keys)


def test_missing_and_foreign_keys_are_named_before_a_round(tmp_path: Path, keys: Path) -> None:
    with pytest.raises(ConfigError, match=r"node-0\.pub is no public key of a node"):
        run({}, tmp_path)
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "node-0.pub").write_bytes(other.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(ConfigError, match=r"node-0\.pub is no ECDSA key"):
        run({}, tmp_path)
    (tmp_path / "node-0").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(ConfigError, match="must be an ECDSA key"):
        credentials.prove(tmp_path / "node-0", b"")
    with pytest.raises(ConfigError, match="the key of this node cannot be read: FileNotFoundError"):
        credentials.prove(tmp_path / "nobody", b"")
