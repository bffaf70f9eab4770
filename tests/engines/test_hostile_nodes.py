"""One hostile node of 20, over a grid in one process: it is named, and the run goes on as without it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Message, MessageType

from gossamer import METHODS, Method, Robust, Task
from gossamer.cli.deploy import DEPLOYED_SERVER
from gossamer.core import wire
from gossamer.core.errors import RunError
from gossamer.core.specs import parse
from gossamer.core.untrusted import LONGEST, MOST_SAMPLES
from gossamer.engines.anomalies import DEPLOYED_EXCLUSION
from gossamer.engines.flower import fleet
from gossamer.engines.flower.messages import data
from gossamer.engines.flower.server import FlowerRun
from gossamer.parts.servers.mean import WeightedMean
from gossamer.parts.servers.robust import RULES
from gossamer.testing import tiny_task
from helpers.flower_runs import altered, app, config, filled, flower_run, ignore, rewritten
from helpers.local_grid import Handle, LocalGrid, node

NODES = 20
HOSTILE = 7
TASK = tiny_task(NODES)
FEDAVG = METHODS["fedavg"](lr=0.1, steps=2)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL", 0.001)


def number(client: int) -> int:
    """What Flower calls the node of a client: more than a JSON number holds exactly."""
    return 2**62 + 1000 * client


def there(method: Method, home: Path, task: Task = TASK) -> dict[int, Handle]:
    return {number(client): node(app(method, task), config(client, home)) for client in range(NODES)}


def attacked(
    change: Callable[[Message], Message | None],
    home: Path,
    method: Method = FEDAVG,
    kind: str = MessageType.TRAIN,
    **more: Any,
) -> FlowerRun:
    nodes = there(method, home)
    nodes[number(HOSTILE)] = altered(nodes[number(HOSTILE)], change, kind, range(9))
    run = flower_run(method, TASK, LocalGrid(nodes), **{"rounds": 1, "deadline": 5.0, **more})
    run.run(None, ignore)
    return run


def check_named(run: FlowerRun, reason: str) -> None:
    """In every round one client failed, the hostile one; the others trained."""
    assert len(run.metrics) == run.options.rounds
    for record in run.metrics:
        (failure,) = record["failures"]
        assert (failure["client"], failure["node"]) == (HOSTILE, str(number(HOSTILE)))
        assert reason in failure["reason"]
        assert len(failure["reason"]) <= LONGEST
        assert failure["reason"].isprintable()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.server["params"].values())


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> float:
    run = flower_run(FEDAVG, TASK, LocalGrid(there(FEDAVG, tmp_path_factory.mktemp("honest"))), rounds=1, deadline=5.0)
    run.run(None, ignore)
    assert run.metrics[-1]["failures"] == []
    return float(run.metrics[-1]["accuracy"])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        pytest.param(3e38, "holds values above 1.13e+15, which are far too large", marks=pytest.mark.slow),
        (1e14, "the update holds a value of magnitude 1e+14, and the model's largest is"),
        pytest.param(1e5, "left out: it sent values up to 1e+05, the median is", marks=pytest.mark.slow),
        (float("nan"), "values that are not finite"),
    ],
)
def test_values_out_of_scale_are_refused_and_the_node_is_named(
    value: float, reason: str, honest: float, tmp_path: Path
) -> None:
    run = attacked(filled(value), tmp_path)
    check_named(run, reason)
    assert run.metrics[-1]["accuracy"] >= honest - 0.02


def test_a_round_with_an_update_far_from_the_cohort_is_repeated_without_it(tmp_path: Path) -> None:
    run = attacked(filled(1e5), tmp_path, rounds=2)
    (void,) = run.metrics[0]["void"]
    assert f"client {HOSTILE} (node {number(HOSTILE)}) sent values up to 1e+05" in void["reason"]
    assert run.metrics[1]["void"] == [], "it is left out from then on"


def test_a_restarted_server_leaves_out_the_same_clients(tmp_path: Path) -> None:
    """The node behaves well after the restart, and is refused all the same."""
    honest = there(FEDAVG, tmp_path / "nodes")
    hostile = altered(honest[number(HOSTILE)], filled(1e5), MessageType.TRAIN, [0])
    first = flower_run(FEDAVG, TASK, LocalGrid({**honest, number(HOSTILE): hostile}), rounds=2, deadline=5.0)
    folder = first.create(tmp_path / "run")
    first.round(0, folder)
    folder.close()
    second = flower_run(FEDAVG, TASK, LocalGrid(honest), rounds=2, deadline=5.0)
    folder = second.restore(tmp_path / "run")
    second.run(folder, ignore)
    folder.close()
    check_named(second, "left out: it sent values up to 1e+05")


@pytest.mark.parametrize(
    "name", ["onebit-cs", "heterofl", "scaffold", "qsgd", "drive", "ef21", "fedmrn", "perm", "ifca"]
)
def test_no_method_ends_with_one_node(name: str, tmp_path: Path) -> None:
    run = attacked(filled(3e38), tmp_path, METHODS[name]())
    named = {failure["client"] for failure in run.metrics[0]["failures"]}
    assert named <= {HOSTILE}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.server["params"].values())


@pytest.mark.parametrize("claim", [2**62, MOST_SAMPLES + 1])
def test_a_claim_of_too_many_samples_is_refused(claim: int, tmp_path: Path) -> None:
    nodes = there(FEDAVG, tmp_path)
    lie = altered(nodes[number(HOSTILE)], lambda reply: rewritten(reply, samples=claim), MessageType.QUERY, range(9))
    run = flower_run(
        FEDAVG, TASK, LocalGrid({**nodes, number(HOSTILE): lie}), rounds=1, nodes=NODES - 1, per_round=NODES - 1
    )
    run.run(None, ignore)
    assert HOSTILE not in run.metrics[0]["clients"]
    ((refused, (_, why)),) = run.fleet.refused.items()
    assert refused == number(HOSTILE)
    assert "samples" in why


@pytest.mark.parametrize("weight", [2.0**62, 3.5e38])
def test_a_weight_in_the_header_is_refused(weight: float, tmp_path: Path) -> None:
    def change(reply: Message) -> Message:
        return rewritten(reply, wire.pack(replace(wire.unpack(data(reply)), weight=weight)))

    check_named(attacked(change, tmp_path), "samples")


@pytest.mark.parametrize("fault", ["\x1b[2J\x07\r\n" * 10_000, "\u202e" * 500])
def test_a_text_is_cut_and_escaped(fault: str, tmp_path: Path) -> None:
    check_named(attacked(lambda reply: rewritten(reply, fault=fault), tmp_path), "")


def test_thousands_of_unknown_arrays_are_no_kinds_of_bytes(tmp_path: Path) -> None:
    def change(reply: Message) -> Message:
        message = wire.unpack(data(reply))
        more = {f"x{at:05}": torch.zeros(0) for at in range(6000)}
        return rewritten(reply, wire.pack(replace(message, payload={**message.payload, **more})))

    run = attacked(change, tmp_path)
    check_named(run, "unexpected array 'x00000'")
    assert set(run.metrics[0]["bytes_up"]) == {"overhead", "codec.values", "refused"}


class FailingMean(WeightedMean):
    """A mean that cannot be computed if a client sent large values."""

    def finish(self, state: Any, acc: Any, clock: Any) -> Any:
        if float(acc.vector.abs().max()) > 50:
            raise ZeroDivisionError("no\x07 mean")
        return self.moved(state, acc)


def test_an_aggregation_that_fails_names_the_cause_and_goes_on_without_the_largest_update(tmp_path: Path) -> None:
    method = FEDAVG.with_parts(server=FailingMean())
    run = attacked(filled(30.0), tmp_path, method)
    check_named(run, "left out: it sent the largest values, up to 30")
    (void,) = run.metrics[0]["void"]
    assert r"the aggregation failed: ZeroDivisionError: no\x07 mean" in void["reason"]


def test_an_aggregation_that_always_fails_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    class Never(WeightedMean):
        """A mean that cannot be computed."""

        def finish(self, state: Any, acc: Any, clock: Any) -> Any:
            raise ZeroDivisionError("always")

    with pytest.raises(RunError, match="round 1 was void 3 times: the aggregation failed: ZeroDivisionError: always"):
        attacked(lambda reply: reply, tmp_path, FEDAVG.with_parts(server=Never()))


@pytest.mark.parametrize("name", ["perm", "perm-two-stage"])
def test_a_message_of_another_exchange_of_the_round_is_refused(name: str, tmp_path: Path) -> None:
    """A node answers the second exchange with its message of the first one."""
    first: list[bytes] = []

    def change(reply: Message) -> Message:
        first.append(data(reply))
        return rewritten(reply, first[0])

    run = attacked(change, tmp_path, METHODS[name](warmup=0))
    (failure,) = run.metrics[0]["failures"]
    assert failure["client"] == HOSTILE
    assert "another exchange" in failure["reason"]


PLAIN = METHODS["fedavg"](lr=0.5, epochs=2, batch=8)
PROTECTED = PLAIN.with_parts(server=Robust(parse(DEPLOYED_SERVER, RULES, "server"), PLAIN.server))
"""FedAvg as ``gossamer deploy`` runs it by default."""


def multiplied(factor: float, weight: float | None = None) -> Callable[[Message], Message]:
    """All numbers of an upload are multiplied, and another number of samples is claimed."""

    def change(reply: Message) -> Message:
        message = wire.unpack(data(reply))
        payload = {name: array * factor for name, array in message.payload.items()}
        return rewritten(reply, wire.pack(replace(message, payload=payload, weight=weight or message.weight)))

    return change


@pytest.fixture(scope="module")
def honest_and_protected(tmp_path_factory: pytest.TempPathFactory) -> float:
    nodes = there(PROTECTED, tmp_path_factory.mktemp("protected"))
    run = flower_run(PROTECTED, TASK, LocalGrid(nodes), rounds=8, deadline=5.0)
    run.run(None, ignore)
    assert not any("anomalies" in record or "excluded" in record for record in run.metrics)
    assert run.metrics[-1]["accuracy"] > 0.7, "the task is learned"
    return float(run.metrics[-1]["accuracy"])


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(multiplied(100), id="x100", marks=pytest.mark.slow),
        pytest.param(multiplied(-100), id="-x100", marks=pytest.mark.slow),
        pytest.param(multiplied(-100, 2.0**39), id="-x100, claim"),
    ],
)
def test_with_the_default_server_of_deployments_one_node_of_20_is_named_and_does_no_harm(
    attack: Callable[[Message], Message], honest_and_protected: float, tmp_path: Path
) -> None:
    run = attacked(attack, tmp_path, PROTECTED, rounds=8)
    assert run.metrics[-1]["accuracy"] >= honest_and_protected - 0.02
    for record in run.metrics:
        named = [each["client"] for each in (*record.get("anomalies", ()), *record["failures"])]
        assert named == ([] if "excluded" in record else [HOSTILE])
        assert record.get("excluded", [HOSTILE]) == [HOSTILE]


@pytest.mark.slow
def test_a_node_that_is_named_in_three_rounds_is_excluded(tmp_path: Path) -> None:
    run = attacked(multiplied(100), tmp_path, PROTECTED, rounds=5)
    assert ["excluded" in record for record in run.metrics] == [False] * 3 + [True] * 2
    assert not any(HOSTILE in record["clients"] for record in run.metrics[DEPLOYED_EXCLUSION:])


@pytest.mark.slow
def test_without_protection_the_same_node_ruins_the_model(honest_and_protected: float, tmp_path: Path) -> None:
    run = attacked(multiplied(-100), tmp_path, PLAIN, rounds=8, max_weight=0.0, exclude_after=0)
    assert run.metrics[-1]["accuracy"] < honest_and_protected - 0.2
