"""What clients remember: in memory up to a limit, beyond it on disk, and the same either way."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import Feedback, TopK, fedavg, fedspa, simulate
from gossamer.clients import Clients, size
from gossamer.engines import rounds
from gossamer.testing import tiny_task
from gossamer.types import State

STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "forget"]), st.integers(0, 5), st.integers(1, 40)), max_size=30
)

OWING = fedavg(epochs=1).with_parts(codec=Feedback(TopK(0.2)))


def state(seed: int, entries: int) -> State:
    return {"a": {"b": torch.full((entries,), float(seed))}, "c": torch.tensor([seed])}


@settings(deadline=None)
@given(STEPS, st.integers(0, 600))
def test_a_limit_changes_nothing_but_where_states_are(steps: list[tuple[str, int, int]], limit: int) -> None:
    clients, plain = Clients(limit=limit), dict[int, State]()
    for number, (what, client, entries) in enumerate(steps):
        if what == "put":
            plain[client] = state(number, entries)
            clients.put(client, plain[client])
        elif what == "forget":
            plain.pop(client, None)
            clients.forget(client)
        found = clients.get(client)
        assert found.keys() == plain.get(client, {}).keys()
        if found:
            assert torch.equal(found["a"]["b"], plain[client]["a"]["b"])
            assert torch.equal(found["c"], plain[client]["c"])
        near = sum(size(kept) for kept in clients._near.values())
        assert near == clients._bytes
        assert near <= limit or len(clients._near) <= 1, "all but the one at hand are on disk if need be"
    assert clients.known() == sorted(plain)


def test_whoever_was_not_asked_for_longest_goes_first() -> None:
    clients = Clients(limit=3 * size(state(0, 10)))
    for client in range(3):
        clients.put(client, state(client, 10))
    clients.get(0)
    clients.put(3, state(3, 10))
    assert clients._filed == {1}


def test_looking_at_everybody_writes_nothing() -> None:
    clients = Clients(limit=2 * size(state(0, 10)))
    for client in range(6):
        clients.put(client, state(client, 10))
    clients.get(0)
    clients.get(1)
    assert clients._folder is not None
    before = {file.name: file.stat().st_mtime_ns for file in clients._folder.iterdir()}
    assert len(before) == 6
    for client in range(6):
        assert int(clients.get(client)["c"]) == client
    assert {file.name: file.stat().st_mtime_ns for file in clients._folder.iterdir()} == before
    clients.put(0, state(7, 10))
    assert int(clients.get(0)["c"]) == 7
    assert len(list(clients._folder.iterdir())) == 5, "what is out of date is gone"


def test_nothing_is_left_behind() -> None:
    clients = Clients(limit=0)
    for client in range(3):
        clients.put(client, state(client, 10))
    folder = clients._folder
    assert folder is not None
    assert len(list(folder.iterdir())) == 2
    del clients
    assert not folder.exists()


@pytest.mark.parametrize("method", [fedspa(epochs=1, own_init=True), OWING], ids=["masks", "owed"])
def test_a_run_with_little_room_is_the_same_run(
    method: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = simulate(method, tiny_task(8), rounds=4, per_round=5, out=tmp_path / "roomy")  # type: ignore[arg-type]
    monkeypatch.setattr(rounds, "Clients", lambda device: Clients(device, limit=100))
    small = tmp_path / "small"
    found = simulate(method, tiny_task(8), rounds=4, per_round=5, out=small)  # type: ignore[arg-type]
    for name, tensor in wanted.module.state_dict().items():
        assert torch.equal(found.module.state_dict()[name], tensor)
    for file in sorted((tmp_path / "roomy/clients").iterdir()):
        assert (small / "clients" / file.name).read_bytes() == file.read_bytes()
    assert [r["personal_accuracy"] for r in found.metrics] == [r["personal_accuracy"] for r in wanted.metrics]
