"""What clients remember: in memory up to a limit, beyond it on disk, and the same either way."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import Feedback, TopK, fedavg, fedspa, simulate
from gossamer.core import files, tree
from gossamer.core.store import LIMIT, ClientStore, size
from gossamer.core.types import State
from gossamer.engines import kept_run
from gossamer.testing import tiny_task

STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "get", "forget"]), st.integers(0, 5), st.integers(1, 40)), max_size=30
)

OWING = fedavg(epochs=1).with_parts(codec=Feedback(TopK(0.2)))


def state(seed: int, entries: int) -> State:
    return {"a": {"b": torch.full((entries,), float(seed))}, "c": torch.tensor([seed])}


@settings(deadline=None)
@given(STEPS, st.integers(0, 600))
def test_a_limit_changes_nothing_but_where_states_are(steps: list[tuple[str, int, int]], limit: int) -> None:
    clients, plain = ClientStore(limit=limit), dict[int, State]()
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
        near = sum(size(kept) for kept in clients._cached.values())
        assert near == clients._bytes
        assert near <= limit or len(clients._cached) <= 1, "all but the current one may be on disk"
    assert clients.known() == sorted(plain)


def test_the_least_recently_used_client_is_evicted_first() -> None:
    clients = ClientStore(limit=3 * size(state(0, 10)))
    for client in range(3):
        clients.put(client, state(client, 10))
    clients.get(0)
    clients.put(3, state(3, 10))
    assert clients._filed == {1}


def test_looking_at_everybody_writes_nothing() -> None:
    clients = ClientStore(limit=2 * size(state(0, 10)))
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
    clients = ClientStore(limit=0)
    for client in range(3):
        clients.put(client, state(client, 10))
    folder = clients._folder
    assert folder is not None
    assert len(list(folder.iterdir())) == 2
    del clients
    assert not folder.exists()


# What is staged.

STAGING = st.lists(
    st.tuples(
        st.sampled_from(["put", "stage", "stage nothing", "get", "forget", "commit", "discard"]),
        st.integers(0, 5),
        st.integers(1, 40),
    ),
    max_size=30,
)


def check(found: State, wanted: State) -> None:
    a, b = tree.flatten(found), tree.flatten(wanted)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in b)


@settings(deadline=None)
@given(STAGING, st.integers(0, 600))
def test_staged_states_count_once_committed_wherever_they_are(steps: list[tuple[str, int, int]], limit: int) -> None:
    """Whatever the limit, the store is two dictionaries, of which the second goes into the first."""
    clients, plain, waiting = ClientStore(limit=limit), dict[int, State](), dict[int, State]()
    changed: set[int] = set()
    for number, (what, client, entries) in enumerate(steps):
        fresh = state(number, entries)
        if what == "put":
            plain[client] = fresh
            changed.add(client)
            clients.put(client, fresh)
        elif what == "stage":
            waiting[client] = fresh
            clients.stage(client, fresh)
        elif what == "stage nothing":
            waiting[client] = {"codec": {}}
            clients.stage(client, {"codec": {}})
        elif what == "forget" and client not in waiting:
            plain.pop(client, None)
            clients.forget(client)
        elif what == "commit":
            kept = {c: new for c, new in waiting.items() if c in plain or tree.flatten(new)}
            plain |= kept
            changed |= kept.keys()
            waiting = {}
            clients.commit()
        elif what == "discard":
            waiting = {}
            clients.discard()
        check(clients.get(client), plain.get(client, {}))
        check(clients.staged(client), waiting.get(client, {}))
        assert clients.known() == sorted(plain)
        assert clients.changed == changed
        near = sum(size(kept) for kept in clients._cached.values())
        assert near == clients._bytes
        assert near <= limit or sum(map(bool, map(size, clients._cached.values()))) <= 1
    for client in range(6):
        check(clients.get(client), plain.get(client, {}))
        check(clients.staged(client), waiting.get(client, {}))


@pytest.mark.parametrize("limit", [0, LIMIT], ids=["on disk", "in memory"])
def test_what_is_staged_is_not_given_before_it_is_committed(limit: int) -> None:
    clients = ClientStore(limit=limit)
    for client in range(3):
        clients.put(client, state(client, 10))
    clients.changed.clear()
    for client in range(1, 5):
        clients.stage(client, state(10 + client, 10))
    clients.stage(2, state(20, 10))
    assert [int(clients.get(client)["c"]) for client in range(3)] == [0, 1, 2]
    assert clients.get(3) == {}
    assert clients.known() == [0, 1, 2]
    assert clients.changed == set()
    assert [int(clients.staged(client)["c"]) for client in range(1, 5)] == [11, 20, 13, 14]
    assert clients.staged(0) == {}
    clients.commit()
    assert [int(clients.get(client)["c"]) for client in range(5)] == [0, 11, 20, 13, 14]
    assert clients.changed == {1, 2, 3, 4}
    assert all(clients.staged(client) == {} for client in range(5))


@pytest.mark.parametrize("limit", [0, LIMIT], ids=["on disk", "in memory"])
def test_what_is_discarded_is_as_if_it_had_never_been_staged(limit: int) -> None:
    clients = ClientStore(limit=limit)
    clients.put(0, state(0, 10))
    clients.changed.clear()
    for client in range(3):
        clients.stage(client, state(10 + client, 10))
    clients.discard()
    clients.commit()
    assert clients.known() == [0]
    assert int(clients.get(0)["c"]) == 0
    assert clients.changed == set()
    clients.stage(1, state(31, 10))
    clients.commit()
    assert clients.known() == [0, 1], "only what was staged since"


def staging(clients: ClientStore) -> Path:
    """Where states are that are staged and do not fit into memory."""
    assert clients._next is not None
    assert clients._next._folder is not None
    return clients._next._folder


def test_what_was_staged_on_disk_stays_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last: a commit moves files, and reads none."""
    clients = ClientStore(limit=size(state(0, 10)))
    for client in range(6):
        clients.stage(client, state(client, 10))
    aside = staging(clients)
    assert {file.name for file in aside.iterdir()} == {f"{client}.safetensors" for client in range(5)}
    numbers = {file.name: file.stat().st_ino for file in aside.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(files, "from_tensors", None)
        clients.commit()
    assert clients._folder is not None
    assert {file.name: file.stat().st_ino for file in clients._folder.iterdir()} == numbers
    assert clients._filed == {0, 1, 2, 3, 4}
    assert not aside.exists(), "nothing is left of it"
    assert [int(clients.get(client)["c"]) for client in range(6)] == [0, 1, 2, 3, 4, 5]


def test_nothing_is_left_behind_of_what_was_discarded() -> None:
    clients = ClientStore(limit=0)
    for client in range(3):
        clients.stage(client, state(client, 10))
    aside = staging(clients)
    assert len(list(aside.iterdir())) == 2
    clients.discard()
    assert not aside.exists()


@pytest.mark.parametrize("method", [fedspa(epochs=1, own_init=True), OWING], ids=["masks", "owed"])
def test_a_run_with_little_room_is_the_same_run(
    method: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = simulate(method, tiny_task(8), rounds=4, per_round=5, out=tmp_path / "roomy")  # type: ignore[arg-type]
    monkeypatch.setattr(kept_run, "ClientStore", lambda device: ClientStore(device, limit=100))
    small = tmp_path / "small"
    found = simulate(method, tiny_task(8), rounds=4, per_round=5, out=small)  # type: ignore[arg-type]
    for name, tensor in wanted.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor)
    for file in sorted((tmp_path / "roomy/clients").iterdir()):
        assert (small / "clients" / file.name).read_bytes() == file.read_bytes()
    assert [r["personal_accuracy"] for r in found.metrics] == [r["personal_accuracy"] for r in wanted.metrics]
