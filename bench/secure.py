"""Time and bytes of secure aggregation, for one-bit and for dense values, beside Flower's SecAgg+ on a dense model.

    python bench/secure.py                                    100 clients, 1,000,000 weights, 0 and 10 % lost
    python bench/secure.py --clients 20 --weights 100000 --lost 0 --without-flower

``client`` is the time of one client in all phases, ``server`` the time of the server in all phases. Lost clients are
lost in training, after they have shared their secrets. Bytes are those of the messages of one client by phase, without
the model: messages of Gossamer's wire format with their headers, and the objects that Flower deflates. Flower has the
same number of neighbours and the same threshold, and its own quantisation: 22 bits, clipped at 8. It has four of the
six phases: it neither signs keys, nor checks shares, nor agrees to a list of survivors. Times are those of the
processor for both, with one thread for torch; Flower's Shamir shares use a pool of threads, so all threads of the
process count. Every client verifies all signatures itself, as it would on a machine of its own.
"""

import argparse
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from gossamer.core.secure import Member, SumSegment
from gossamer.core.types import Payload, State
from gossamer.core.wire import Body, Head, address
from gossamer.parts.secure import SecAgg, primitives, rules
from gossamer.parts.secure import client as client_side
from gossamer.parts.secure.primitives import SimulatedKeys

PHASES = ("keys", "shares", "check", "train", "consent", "unmask")
FLOWER = ("keys", "shares", "train", "unmask")
TOPIC, MODELS = b"bench", bytes(32)
VALUES = {"one bit": 1, "16 bits": (1 << 16) - 1}
HEAD = ("protocol", "lost", "client", "server", *PHASES)
SHARED = (
    client_side._unsigned,
    client_side._unsigned_claim,
    primitives._signed_by,
    primitives._verified,
    rules.graph_of,
)
"""What clients in one process would compute once for all of them."""


class Costs(NamedTuple):
    """Seconds of all clients by phase and of the server, and bytes of all clients by phase."""

    client: Counter[str]
    server: float
    up: Counter[str]
    down: Counter[str]
    messages: Counter[str]


class Watch:
    """The processor's seconds since the last call."""

    def __init__(self) -> None:
        self.last = time.process_time()

    def __call__(self) -> float:
        before, self.last = self.last, time.process_time()
        return self.last - before


def size(payload: Payload) -> int:
    """Return the bytes of a message."""
    return len(address(Head("up", 0, 0, 0, 0.0), Body.of(payload)))


def gossamer(limit: int, clients: int, weights: int, lost: int) -> Costs:
    """Run one round, and check its sum."""
    protocol, segments = SecAgg(), [SumSegment(weights, limit)]
    values = torch.randint(0, limit + 1, (weights,))
    watch, client, server = Watch(), Counter[str](), 0.0
    up, down, messages = Counter[str](), Counter[str](), Counter[str]()
    people = SimulatedKeys(clients)
    members = [Member(number, TOPIC, people.signer(number), people) for number in range(clients)]
    watch()
    here = protocol.begin(range(clients), segments, TOPIC, people, MODELS)
    scratch: dict[int, State] = {number: {} for number in range(clients)}
    for phase in PHASES:
        asked = here.open_phase(phase)
        for number in asked if phase != "train" else asked[lost:]:
            request = here.request(number)
            server += watch()
            for cache in SHARED:
                cache.cache_clear()
            if phase == "train":
                answer = protocol.protect(values, segments, number, request, MODELS, scratch[number])
            else:
                answer, scratch[number] = protocol.answer(phase, members[number], request, scratch[number])
            client[phase] += watch()  # type: ignore[assignment]  # Counter adds floats as well
            up[phase] += size(answer)
            down[phase] += size(request)
            messages[phase] += 1
            for cache in SHARED[2:4]:
                cache.cache_clear()
            watch()
            here.accept(number, answer)
    total = here.total()
    server += watch()
    assert torch.equal(total, values * (clients - lost))
    return Costs(client, server, up, down, messages)


class Node:
    """What Flower's workflow needs of a client."""

    def __init__(self, number: int) -> None:
        self.node_id = number


def flower(clients: int, weights: int, lost: int) -> Costs:
    """Run one round of Flower's SecAgg+ workflow and client modifier, and check its mean."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.task_identity import TaskIdentity

    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    vector = np.random.default_rng(0).uniform(-1, 1, weights).astype(np.float32)
    found: list[Any] = []
    up, down, messages = Counter[str](), Counter[str](), Counter[str]()
    watch, client, server, phases = Watch(), Counter[str](), [0.0], iter(FLOWER)
    contexts = {number: Context(1, number, {}, RecordDict(), {}, 0) for number in range(1, clients + 1)}

    def train(message: Any, _context: Any) -> Any:
        fit = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1000, {})
        return Message(compat.fitres_to_recorddict(fit, keep_input=False), reply_to=message)

    def through(message: Any, ways: Counter[str], phase: str) -> Any:
        """Return the message as it arrives at the other end, and count its bytes."""
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        ways[phase] += sum(map(len, parts.values()))
        arrived: Any = inflate_object_from_contents(message.object_id, parts)
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        return arrived

    class Here:
        def send_and_receive(self, sent: Iterable[Any], timeout: float | None = None) -> list[Any]:
            replies, phase = [], next(phases)
            for at, message in enumerate(sent):
                if phase == "train" and at < lost:
                    continue
                server[0] += watch()
                arrived = through(message, down, phase)
                watch()
                reply = secaggplus_mod(arrived, contexts[message.metadata.dst_node_id], train)
                client[phase] += watch()  # type: ignore[assignment]  # Counter adds floats as well
                replies.append(through(reply, up, phase))
                messages[phase] += 1
                watch()
            return replies

    class Rule:
        def configure_fit(self, *_: Any) -> list[Any]:
            return [(Node(number), FitIns(Parameters([], ""), {})) for number in contexts]

        def aggregate_fit(self, _round: int, results: list[Any], _failures: Any) -> tuple[None, dict[str, Any]]:
            found.extend(parameters_to_ndarrays(results[0][1].parameters))
            return None, {}

    class Manager:
        def num_available(self) -> int:
            return clients

    state = RecordDict({"config": ConfigRecord({"current_round": 1})})
    state.array_records["parameters"] = compat.parameters_to_arrayrecord(Parameters([], ""), keep_input=True)
    inside: Any = LegacyContext
    context = inside(Context(1, 0, {}, state, {}, 0), strategy=Rule(), client_manager=Manager())
    rules = SecAgg().rules(clients)
    here: Any = Here()
    SecAggPlusWorkflow(rules.degree + 1, rules.needed)(here, context)
    server[0] += watch()
    assert np.abs(found[0] - vector).max() < 1e-3
    return Costs(client, server[0], up, down, messages)


def row(name: str, lost: int, costs: Costs) -> tuple[str, ...]:
    """Return a line of the table: means per client. In each phase: bytes up, bytes down, and milliseconds."""
    clients = costs.messages["keys"]
    cells = []
    for phase in PHASES:
        count = costs.messages[phase]
        sizes = (f"{ways[phase] / count:,.0f}" for ways in (costs.up, costs.down)) if count else ()
        cells.append(" / ".join((*sizes, f"{1e3 * costs.client[phase] / count:,.1f}")) if count else "")
    up, down = (sum(ways[phase] / costs.messages[phase] for phase in costs.messages) for ways in (costs.up, costs.down))
    total = f"{up:,.0f} / {down:,.0f} / {1e3 * costs.client.total() / clients:,.1f}"
    return name, str(lost), total, f"{costs.server:.2f} s", *cells


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--weights", type=int, default=1_000_000)
    parser.add_argument("--lost", type=float, nargs="*", default=[0, 0.1], help="shares of the clients")
    parser.add_argument("--without-flower", action="store_true")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{asked.clients} clients, {asked.weights:,} weights: {SecAgg().rules(asked.clients)}")
    print("Each cell of a phase, and of a client: bytes up / bytes down without the model / milliseconds\n")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    runs: dict[str, Callable[[int, int, int], Costs]] = {
        f"gossamer, {name}": partial(gossamer, limit) for name, limit in VALUES.items()
    }
    if not asked.without_flower:
        runs["flower, dense"] = flower
    for name, run in runs.items():
        for share in asked.lost:
            lost = round(share * asked.clients)
            print(f"| {' | '.join(row(name, lost, run(asked.clients, asked.weights, lost)))} |", flush=True)


if __name__ == "__main__":
    main()
