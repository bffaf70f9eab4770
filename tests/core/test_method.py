"""Both halves of an exchange, message by message."""

import math
import pickle
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import (
    SGD,
    Clock,
    Codec,
    ConfigError,
    Dense,
    Full,
    Lossy,
    Mean,
    Method,
    Params,
    PayloadError,
    Task,
    compose,
    simulate,
)
from gossamer.core import wire
from gossamer.core.bound import BoundExchange
from gossamer.core.codec import Coding
from gossamer.core.exchange import GLOBAL
from gossamer.core.jobs import Job, Outgoing, Trained
from gossamer.core.random import key
from gossamer.core.types import Flops, Payload, State
from gossamer.core.wire import Frame
from gossamer.methods import METHODS, fedavg
from gossamer.parts.codecs import Feedback, OneBit, OnWeights, TopK
from gossamer.tasks.nets import build
from gossamer.testing import bound, tiny_task

KEY, CLOCK, FLOPS = key(1), Clock(3, 10, 7), Flops(1, 1)
LIKE = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.tensor([1.0, 2.0])}


def task_of(module: nn.Module, *shape: int) -> Task:
    """A task for a network, with the number of clients of the clock."""
    x, y = torch.zeros(8, *shape), torch.zeros(8, dtype=torch.int64)
    return Task.of(lambda: module, (x, y), (x, y), clients=8)


def linear(method: Method) -> BoundExchange:
    """A method for a network with the tensors of ``LIKE``."""
    return bound(method.training, task_of(nn.Linear(3, 2), 3))


def briefed(exchange: BoundExchange, params: Params, clock: Clock = CLOCK) -> Outgoing:
    """What the server sends while it has these tensors."""
    state = exchange.server.init(params)
    return exchange.make_download(state, clock, KEY, GLOBAL, None, exchange.make_common(state, clock, KEY))


def replied(exchange: BoundExchange, job: Job, change: Params) -> tuple[Outgoing, State]:
    """What a client sends after having trained by ``change``, and what it remembers."""
    info: Any = None  # nobody asks for anything
    return exchange.make_upload(job, Trained(change, {}, 0.5, FLOPS, 20), info)


def sent(method: Method, change: Params) -> Frame:
    """What a client sends after having been briefed and having trained by ``change``."""
    exchange = linear(method)
    job = exchange.read_download(briefed(exchange, LIKE).data, {}, CLOCK, KEY)
    assert all(torch.equal(job.start[name], LIKE[name]) for name in LIKE)
    return replied(exchange, job, change)[0].data


def receive(method: Method, data: Frame | bytes, clock: Clock = CLOCK) -> Params:
    exchange = linear(method)
    server, state = exchange.server, exchange.server.init(LIKE)
    arrival, _ = exchange.read_upload(data, state, clock, KEY, GLOBAL, None)
    acc = server.fold(server.begin(state, {clock.client: GLOBAL}), arrival)
    (model,) = server.download(server.finish(state, acc, clock), GLOBAL).models
    return model


def ones() -> Params:
    return {name: torch.ones_like(tensor) for name, tensor in LIKE.items()}


def test_a_change_arrives_as_it_was_sent() -> None:
    moved = receive(fedavg(), sent(fedavg(), ones()))
    assert all(torch.equal(moved[name], LIKE[name] + 1) for name in LIKE)


@pytest.mark.parametrize("model", ["mlp", "cnn4", "cnn8"])
def test_a_dense_message_is_four_bytes_per_entry_plus_at_most_64(model: str) -> None:
    module = build(model, (1, 28, 28), 10)
    params = {n: t.detach() for n, t in module.state_dict().items() if t.is_floating_point()}
    exchange = bound(fedavg().training, task_of(module, 1, 28, 28))
    size = sum(t.numel() for t in params.values())
    down = briefed(exchange, params)
    job = exchange.read_download(down.data, {}, CLOCK, KEY)
    up, _ = replied(exchange, job, params)
    for message, kind in ((down, "down.values"), (up, "codec.values")):
        assert 4 * size < len(message.data) <= 4 * size + 64
        assert sum(message.kinds.values()) == len(message.data)
        assert message.kinds[kind] == 4 * size


def test_a_model_in_double_precision_travels_in_double_precision() -> None:
    like = {"weight": torch.tensor([[1 / 3]], dtype=torch.float64)}
    exchange = bound(fedavg().training, task_of(nn.Linear(1, 1, bias=False).double(), 1))
    job = exchange.read_download(briefed(exchange, like).data, {}, CLOCK, KEY)
    assert torch.equal(job.start["weight"], like["weight"])


@pytest.mark.parametrize(
    ("clock", "reason"),
    [(CLOCK._replace(round=4), "another round: expected 4, got 3"), (CLOCK._replace(client=8), "another client")],
)
def test_a_message_for_another_round_or_client_is_refused(clock: Clock, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        receive(fedavg(), sent(fedavg(), ones()), clock)


def test_a_message_of_another_codec_or_direction_is_refused() -> None:
    data = sent(fedavg(), ones())
    with pytest.raises(PayloadError, match="another codec"):
        receive(fedavg().with_parts(codec=Halved()), data)
    down = briefed(linear(fedavg()), LIKE).data
    with pytest.raises(PayloadError, match="another direction"):
        receive(fedavg(), down)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_change_that_is_not_finite_is_refused(bad: float) -> None:
    change = ones()
    change["bias"][1] = bad
    with pytest.raises(PayloadError, match="1 of 8 values that are not finite"):
        receive(fedavg(), sent(fedavg(), change))


@pytest.mark.parametrize("samples", [0.0, 2.5])
def test_a_message_without_samples_is_refused(samples: float) -> None:
    message = wire.unpack(sent(fedavg(), ones()))
    with pytest.raises(PayloadError, match=f"samples must be a positive whole number, got {samples}"):
        receive(fedavg(), wire.pack(replace(message, weight=samples)))


def test_a_payload_of_another_size_is_refused_with_figures() -> None:
    message = wire.unpack(sent(fedavg(), ones()))
    short = replace(message, payload={"values": message.payload["values"][:-1]})
    with pytest.raises(PayloadError, match="expected 8 float32 values named 'values', got 7"):
        receive(fedavg(), wire.pack(short))


def test_a_codec_that_decodes_to_the_wrong_size_is_refused() -> None:
    method = fedavg().with_parts(codec=Halved())
    with pytest.raises(PayloadError, match="decoded shape"):
        receive(method, sent(method, ones()))


@dataclass(frozen=True)
class Halved(Codec):
    """A codec with a mistake: it forgets half of the vector."""

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        return {"values": x}

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        return payload["values"][: ctx.layout.size // 2]


def test_recipes_are_values() -> None:
    for name, recipe in METHODS.items():
        assert recipe() == recipe(), name
        assert recipe() != recipe(lr=0.77), name
        assert pickle.loads(pickle.dumps(recipe())) == recipe(), name
        assert "(lr=" in repr(recipe()), name


RETAINED = Feedback(Dense())


def test_a_client_learns_whether_its_message_arrived() -> None:
    """With a constant change each round, what arrived plus what is owed is everything that was ever changed."""
    exchange = linear(compose(Full(), SGD(), RETAINED, Mean()))
    state: State = {}
    arrived, sent_rounds = 0.0, 8
    for number in range(sent_rounds):
        clock = Clock(number, sent_rounds, 0)
        job = exchange.read_download(briefed(exchange, LIKE, clock).data, state, clock, KEY)
        reply, state = replied(exchange, job, ones())
        delivered = Lossy(0.5).send(len(reply.data), clock, key(number)).delivered
        if delivered:
            arrived += float(wire.unpack(reply.data).payload["values"][0])
        state = exchange.settle(state, delivered)
    assert 0 < arrived <= sent_rounds
    assert arrived + float(next(iter(state["codec"]["owed"].values())).flatten()[0]) == sent_rounds


@pytest.mark.parametrize(
    "down", [Feedback(TopK(0.1)), OnWeights(Feedback(TopK(0.1))), OnWeights(OneBit(retain="change"))], ids=repr
)
def test_what_goes_down_has_no_memory(down: Codec) -> None:
    """The server keeps no codec state, so that such a codec would not work there."""
    advice = "leave out Feedback, and give OneBit retain='nothing'"
    with pytest.raises(ConfigError, match=f"down=.*needs a state per client.*{advice}"):
        simulate(fedavg().with_parts(down=down), tiny_task(), rounds=1)
    simulate(fedavg().with_parts(down=OnWeights(TopK(0.5))), tiny_task(), rounds=1)


def test_memory_and_loss_meet_in_the_simulator() -> None:
    task = tiny_task()
    lossy: dict[str, Any] = {"rounds": 6, "channel": Lossy(0.4)}
    with_memory = simulate(fedavg().with_parts(codec=RETAINED), task, **lossy)
    without = simulate(fedavg(), task, **lossy)
    assert sum(len(r["lost"]) for r in without.metrics) == sum(len(r["lost"]) for r in with_memory.metrics) > 0
    assert with_memory.metrics[-1]["loss"] != without.metrics[-1]["loss"]
    undisturbed = [
        simulate(fedavg().with_parts(codec=c), task, rounds=2).metrics[-1]["loss"] for c in (RETAINED, Dense())
    ]
    assert undisturbed[0] == undisturbed[1], "with nothing lost, memory changes nothing"
