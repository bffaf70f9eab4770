"""The table "who learns what" of ``docs/privacy.md``, cell by cell: everything that somebody sees is searched.

A deployment runs in one process. The test records what each client computes before it is encoded or protected, and all
that reaches the other side: messages to nodes, messages to the server, and the files of the run folder, except
``run.secret``, which readers do not have. Then it looks for the former in the latter. Each search finds what it should
where nothing is protected, so it can fail.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from gossamer import dp_ftrl, fedavg, fedpm, private, secured
from gossamer.core.bound import BoundExchange
from gossamer.core.method import Method
from gossamer.core.types import Layout, Params
from gossamer.engines.flower import serve
from gossamer.engines.flower.messages import WORDS, data, read_keys
from gossamer.engines.kept_run import kept_key
from gossamer.parts.servers.private import PrivateServer
from gossamer.parts.servers.private_tree import TreeMean
from gossamer.runs.checkpoint import decrypted, read_server
from gossamer.runs.records import SECRET, read_metrics
from gossamer.testing import tiny_task
from helpers.flower_runs import NUMBERS, flower_run, nodes
from helpers.local_grid import LocalGrid

TASK, ROUNDS, WINDOW = tiny_task(4), 2, 16
MODES: dict[str, Method] = {
    "plain": fedavg(steps=2),
    "secure": secured(fedpm(steps=2)),
    "central": private(fedavg(steps=2), "central", noise_multiplier=1.0, clip=0.5, task=TASK, per_round=4),
    "tree": dp_ftrl(steps=2, noise_multiplier=5.0, clip=0.5),
    "distributed": private(fedavg(steps=2), "distributed", noise_multiplier=1.0, task=TASK, per_round=4),
    "local": private(fedavg(steps=2), "local", noise_multiplier=1.0, task=TASK),
}
PROTECTED = ("secure", "distributed", "local")
"""Modes in which the server does not learn updates."""


@dataclass
class Seen:
    """What a run computed, and what left the machines where it did."""

    updates: dict[int, list[bytes]] = field(default_factory=dict)
    sums: list[bytes] = field(default_factory=list)
    noise: list[bytes] = field(default_factory=list)
    to_nodes: dict[int, list[Message]] = field(default_factory=dict)
    to_server: list[Message] = field(default_factory=list)
    files: list[bytes] = field(default_factory=list)
    folder: Path = Path()
    first: Params = field(default_factory=dict)


def windows(arrays: Sequence[Tensor]) -> list[bytes]:
    """Pieces of the bytes of some tensors, none of which is of one value alone."""
    found = []
    for array in arrays:
        plain = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        pieces = [plain[at : at + WINDOW] for at in range(0, len(plain) - WINDOW + 1, WINDOW)]
        found += [piece for piece in pieces if len(set(piece)) > 4]
    return found


def shown(message: Message) -> bytes:
    """All that a message holds."""
    return repr(dict(message.content.config_records[WORDS])).encode() + data(message)


@pytest.fixture(scope="module", params=list(MODES))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Seen]:
    """A mode, and all that was seen in a deployment."""
    name, seen, home = request.param, Seen(), tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        upload, fold = BoundExchange.make_upload, PrivateServer.fold
        noise, finish = PrivateServer.noise, TreeMean.finish

        def make_upload(self: Any, job: Any, trained: Any, info: Any) -> Any:
            changes = [tensor for _, tensor in sorted(trained.change.items())]
            seen.updates.setdefault(job.clock.client, []).extend(windows(changes))
            return upload(self, job, trained, info)

        def folded(self: Any, acc: Any, arrival: Any) -> Any:
            after = fold(self, acc, arrival)
            model = Layout.of(acc.model).flatten(acc.model)
            without = set(windows([model]))  # entries that did not change
            new = model + (after.total / acc.expected).to(model.dtype)
            seen.sums += [piece for piece in windows([after.total, new]) if piece not in without]
            return after

        def drawn(self: Any, *given: Any) -> Tensor:
            found = noise(self, *given)
            seen.noise += windows([found])
            return found

        def finished(self: Any, *given: Any) -> Any:
            state = finish(self, *given)
            nodes = list(state["nodes"].values())  # estimates, which are no draws
            seen.sums += windows([state["sum"]])
            seen.noise += windows([*nodes, torch.stack(nodes).sum(0)])
            return state

        patch.setattr(BoundExchange, "make_upload", make_upload)
        patch.setattr(PrivateServer, "fold", folded)
        patch.setattr(PrivateServer, "noise", drawn)
        patch.setattr(TreeMean, "finish", finished)
        grid = LocalGrid(nodes(MODES[name], TASK, home / "nodes"))
        options = {"delta": 1e-3} if name in ("central", "tree", "distributed", "local") else {}
        out = str(home / "run")
        deployed = flower_run(MODES[name], TASK, grid, rounds=ROUNDS, deadline=5.0, rehearsal=False, out=out, **options)
        seen.first = deployed.model()
        serve(deployed)
    seen.to_nodes = {c: [m for m in grid.sent if m.metadata.dst_node_id == NUMBERS[c]] for c in range(TASK.clients)}
    seen.to_server, seen.folder = grid.received, home / "run"
    seen.files = [f.read_bytes() for f in sorted(seen.folder.rglob("*")) if f.is_file() and f.name != SECRET]
    return name, seen


def hits(pieces: Sequence[bytes], places: Sequence[bytes]) -> int:
    return sum(any(piece in place for place in places) for piece in pieces)


def test_the_server_learns_updates_only_where_nothing_hides_them(run: tuple[str, Seen]) -> None:
    name, seen = run
    got = [data(message) for message in seen.to_server]
    for client, pieces in seen.updates.items():
        assert pieces, client
        found = hits(pieces, got)
        assert (found == 0) if name in PROTECTED else (found == len(pieces))


def test_a_client_learns_no_update_of_another(run: tuple[str, Seen]) -> None:
    _, seen = run
    for client in seen.to_nodes:
        places = [shown(message) for message in seen.to_nodes[client]]
        assert not any(hits(seen.updates[other], places) for other in seen.updates if other != client)


def test_a_reader_of_the_run_folder_learns_no_update(run: tuple[str, Seen]) -> None:
    _, seen = run
    assert not any(hits(pieces, seen.files) for pieces in seen.updates.values())


def test_a_sum_without_noise_stays_in_the_memory_of_the_server(run: tuple[str, Seen]) -> None:
    """Nor does the noise leave it: whoever has the noise and a model has the sum."""
    name, seen = run
    if name not in ("central", "tree"):
        return
    assert seen.sums
    assert seen.noise
    places = [*seen.files, *(shown(message) for messages in seen.to_nodes.values() for message in messages)]
    assert not hits([*seen.sums, *seen.noise], places)


def test_the_key_of_a_run_opens_the_secret_state_of_a_server(run: tuple[str, Seen]) -> None:
    """A control: sums and noise are in the files, for the owner of ``run.secret``."""
    name, seen = run
    if name != "tree":
        return
    server, key = read_server(seen.folder), kept_key(seen.folder)
    assert key is not None
    assert not {"sum", "nodes"} & server.keys()
    state = decrypted(server, key)
    assert 0 < hits(windows([state["sum"]]), seen.sums) == len(windows([state["sum"]]))
    assert hits(windows([*state["nodes"].values()]), seen.noise) == len(windows([*state["nodes"].values()])) > 0


def test_the_models_are_known_to_clients_and_to_readers_of_the_run_folder(run: tuple[str, Seen]) -> None:
    """A control: what the table says is seen, is found by the same search."""
    _, seen = run
    params: Params = read_server(seen.folder)["params"]
    last, first = (windows([tensor for _, tensor in sorted(model.items())]) for model in (params, seen.first))
    assert last
    assert hits(last, seen.files) == len(last)
    assert hits(first, [shown(message) for message in seen.to_nodes[0]]) == len(first)


def test_numbers_of_samples_are_stated_only_where_nothing_is_hidden(run: tuple[str, Seen]) -> None:
    name, seen = run
    stated = [dict(message.content.config_records[WORDS]) for message in seen.to_server]
    counts = {words["client"]: words["samples"] for words in stated if "samples" in words}
    true = {client: len(TASK.split.train(client)) for client in range(TASK.clients)}
    assert counts == (dict.fromkeys(true, 1) if name in PROTECTED else true)


def test_no_other_user_reads_the_secrets_of_a_run(run: tuple[str, Seen]) -> None:
    _, seen = run
    assert (seen.folder / SECRET).stat().st_mode & 0o077 == 0
    nodes_home = seen.folder.parent / "nodes"
    assert all(file.stat().st_mode & 0o077 == 0 for file in nodes_home.rglob("*.secrets"))


def test_the_run_folder_names_the_cohorts(run: tuple[str, Seen]) -> None:
    """What ``epsilon_if_cohorts_known`` is for: records name the clients of every round, in every mode."""
    _, seen = run
    assert all(record["clients"] for record in read_metrics(seen.folder))


def test_metrics_of_single_clients_are_recorded_only_where_nothing_is_hidden(run: tuple[str, Seen]) -> None:
    """Central privacy trusts the server with metrics: its records have those of each client, without noise."""
    name, seen = run
    for record in read_metrics(seen.folder):
        assert ("personal" in record) == (name not in PROTECTED)


def test_a_client_hears_of_others_only_where_it_checks_their_signatures(run: tuple[str, Seen]) -> None:
    """A control of the search: lists of clients are found in the phase in which clients verify each other's keys."""
    name, seen = run
    for client, messages in seen.to_nodes.items():
        for message in messages:
            words = dict(message.content.config_records[WORDS])
            assert not {"samples", "tested", "loss", "own", "own_loss", "clients"} & words.keys()
            keys = read_keys(str(words["keys"]))
            assert {purpose[purpose.index("client") + 1] for purpose in keys if "client" in purpose} <= {client}
    listed = [m for messages in seen.to_nodes.values() for m in messages if b"shares.clients" in data(m)]
    assert bool(listed) == (name in ("secure", "distributed"))


def test_a_reader_of_the_run_folder_learns_no_number_of_samples(run: tuple[str, Seen]) -> None:
    """No record has sizes. If the server holds the data of all clients, their partition is in the folder as well."""
    _, seen = run
    sizes = {len(TASK.split.train(client)) for client in range(TASK.clients)}
    assert len(sizes) > 1
    for record in read_metrics(seen.folder):
        lists = [value for name, value in record.items() if isinstance(value, list)]
        assert not any(sizes <= {each for each in value if type(each) is int} for value in lists)
