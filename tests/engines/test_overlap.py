"""Uploads are made while the next group of clients trains, and what all clients receive is made once."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gossamer import METHODS, Options, fedavg, fedspa
from gossamer.core.exchange import GLOBAL
from gossamer.core.jobs import Job, Trained
from gossamer.core.wire import Body
from gossamer.engines.client import Client, ClientResult, ClientTask, Failure
from gossamer.engines.executors import Captured, CapturedPlain, Stacked
from gossamer.engines.executors.stacked import ClientGroup, Pair, TrainedAloneWarning
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.testing import tiny_task

CLIENTS = 7


class Watched(ClientGroup):
    """A group that notes when it is launched and when its results are taken."""

    def __init__(self, group: ClientGroup, bucket: Sequence[Pair], events: list[str]) -> None:
        self.group, self.events = group, events
        self.first = bucket[0][0].clock.client

    def launch(self) -> None:
        self.events.append(f"launch {self.first}")
        self.group.launch()

    def results(self) -> Iterator[Trained]:
        self.events.append(f"results {self.first}")
        return self.group.results()


class Ahead(Stacked):
    """Stacked clients with the order of a captured executor."""

    ahead = True

    def __init__(self, client: Client, size: int = 3) -> None:
        super().__init__(client, size)
        self.events: list[str] = []

    def group(self, bucket: Sequence[Pair]) -> ClientGroup:
        return Watched(super().group(bucket), bucket, self.events)


def tasks(simulation: Simulation, events: list[str]) -> Iterator[ClientTask]:
    for client in range(CLIENTS):
        events.append(f"task {client}")
        yield simulation.client_task(Stage(simulation.method.training, 0, {client: GLOBAL}), client, {})[0]


def outcomes(executor: Any, simulation: Simulation, events: list[str]) -> dict[int, ClientResult | Failure]:
    found = {}
    for client_task, result in executor.run(tasks(simulation, events)):
        events.append(f"upload {client_task.clock.client}")
        found[client_task.clock.client] = result
    return found


@pytest.mark.parametrize("method", [fedavg(), fedspa(density=0.6)], ids=["fedavg", "fedspa"])
def test_messages_and_states_do_not_depend_on_the_order(method: Any) -> None:
    simulation = Simulation(method, tiny_task(CLIENTS), Options(rounds=1))
    one, other = (outcomes(kind(simulation.client, 3), simulation, []) for kind in (Stacked, Ahead))
    assert list(one) == list(other) == list(range(CLIENTS))
    for client in range(CLIENTS):
        ours, theirs = one[client], other[client]
        assert isinstance(ours, ClientResult)
        assert isinstance(theirs, ClientResult)
        assert bytes(ours.sent.data) == bytes(theirs.sent.data)


def test_a_group_is_launched_before_the_uploads_of_the_last_one_are_made() -> None:
    """Its tasks are read before the last group's results are taken: a slot is free by the time it is loaded again."""
    simulation = Simulation(fedavg(), tiny_task(CLIENTS), Options(rounds=1))
    executor = Ahead(simulation.client)
    outcomes(executor, simulation, executor.events)
    assert executor.events == [
        *("task 0", "task 1", "task 2", "launch 0"),
        *("task 3", "task 4", "task 5", "results 0", "launch 3", "upload 0", "upload 1", "upload 2"),
        *("task 6", "results 3", "launch 6", "upload 3", "upload 4", "upload 5"),
        *("results 6", "upload 6"),
    ]


def test_captured_clients_train_ahead_and_others_in_turn() -> None:
    """Only a GPU trains beside the host: elsewhere more tasks would be in memory for nothing."""
    assert Captured.ahead
    assert CapturedPlain.ahead
    assert not Stacked.ahead
    simulation, events = Simulation(fedavg(), tiny_task(CLIENTS), Options(rounds=1)), list[str]()
    outcomes(Stacked(simulation.client, 3), simulation, events)
    kinds = [event.split()[0] for event in events]
    assert kinds == ["task"] * 3 + ["upload"] * 3 + ["task"] * 3 + ["upload"] * 3 + ["task", "upload"]


@pytest.mark.parametrize("when", ["launch", "results"])
def test_a_group_that_fails_is_trained_one_by_one_and_the_others_are_not(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = Simulation(fedavg(), tiny_task(CLIENTS), Options(rounds=1))
    wanted, real, trained = outcomes(Stacked(simulation.client, 3), simulation, []), Client.train, list[int]()

    def fail(self: Watched) -> Any:
        if self.first == 3:
            raise RuntimeError("out of memory")
        return getattr(self.group, when)()

    def alone(self: Client, client_task: ClientTask, job: Job) -> Trained:
        trained.append(client_task.clock.client)
        if client_task.clock.client == 4:
            raise ValueError("sensor broken")
        return real(self, client_task, job)

    monkeypatch.setattr(Watched, when, fail)
    executor = Ahead(simulation.client)
    with pytest.warns(TrainedAloneWarning, match="out of memory"):
        found = outcomes(executor, simulation, [])
    assert list(found) == list(wanted)
    assert not any(isinstance(result, Failure) for result in found.values())
    monkeypatch.setattr(Client, "train", alone)
    found = outcomes(executor, simulation, [])
    assert trained == [3, 4, 5]
    assert [client for client, result in found.items() if isinstance(result, Failure)] == [4]


@pytest.mark.parametrize("name", ["fedavg", "fedmrn", "scaffold"])
def test_a_round_encodes_what_all_clients_receive_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(METHODS[name](), tiny_task(CLIENTS), Options(rounds=2, per_round=5))
    exchange, real, encoded = simulation.method.training, Body.of, list[int]()

    def of(payload: Any) -> Body:
        body = real(payload)
        encoded.append(len(body.data))
        return body

    monkeypatch.setattr(Body, "of", of)
    stage, common = Stage(exchange, 0, dict.fromkeys(range(5), GLOBAL)), dict[int, Body | None]()
    sent = [simulation.download(stage, client, common).data for client in range(5)]
    assert len(encoded) == 1
    assert all(frame.common is sent[0].common and not frame.single for frame in sent)
