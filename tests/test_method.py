"""Both halves of a method, message by message."""

import math
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gossamer import (
    SGD,
    Clock,
    Codec,
    ConfigError,
    Dense,
    Full,
    Layout,
    Lossy,
    Mean,
    Method,
    Params,
    PayloadError,
    simulate,
    wire,
)
from gossamer.codecs import Feedback, Lift, OneBit, TopK
from gossamer.method import Trained
from gossamer.methods import METHODS, fedavg
from gossamer.nets import build
from gossamer.random import Key, key
from gossamer.testing import tiny_task
from gossamer.types import Flops, Payload, State

KEY, CLOCK, FLOPS = key(1), Clock(3, 10, 7), Flops(1, 1)
LIKE = {"w": torch.arange(6.0).view(2, 3), "b": torch.tensor([1.0, 2.0])}


def exchange(method: Method, change: Params) -> bytes:
    """What a client sends after having been briefed and having trained by ``change``."""
    sent = method.brief(method.server.init(LIKE), CLOCK, KEY)
    job = method.open(sent.data, LIKE, {}, CLOCK, KEY)
    assert all(torch.equal(job.start[name], LIKE[name]) for name in LIKE)
    reply, _ = method.reply(job, Trained(change, {}, 0.5, FLOPS, 20, {}))
    return reply.data


def receive(method: Method, data: bytes, clock: Clock = CLOCK) -> Params:
    state = method.server.init(LIKE)
    acc = method.receive(method.server.empty(state), data, state, clock, KEY)
    return method.server.model(method.server.finish(state, acc, clock))


def ones() -> Params:
    return {name: torch.ones_like(tensor) for name, tensor in LIKE.items()}


def test_a_change_arrives_as_it_was_sent() -> None:
    moved = receive(fedavg(), exchange(fedavg(), ones()))
    assert all(torch.equal(moved[name], LIKE[name] + 1) for name in LIKE)


@pytest.mark.parametrize("model", ["mlp", "cnn4", "cnn8"])
def test_a_dense_message_is_four_bytes_an_entry_plus_at_most_64(model: str) -> None:
    module = build(model, (1, 28, 28), 10)
    params = {n: t.detach() for n, t in module.state_dict().items() if t.is_floating_point()}
    method = fedavg()
    size = sum(t.numel() for t in params.values())
    down = method.brief(method.server.init(params), CLOCK, KEY)
    job = method.open(down.data, params, {}, CLOCK, KEY)
    up, _ = method.reply(job, Trained(params, {}, 0.5, FLOPS, 20, {}))
    for sent in (down, up):
        assert 4 * size < len(sent.data) <= 4 * size + 64
        assert sum(sent.kinds.values()) == len(sent.data)
        assert sent.kinds["values"] == 4 * size


def test_a_model_in_double_precision_travels_in_double_precision() -> None:
    like = {"w": torch.tensor([1 / 3], dtype=torch.float64)}
    method = fedavg()
    job = method.open(method.brief(method.server.init(like), CLOCK, KEY).data, like, {}, CLOCK, KEY)
    assert torch.equal(job.start["w"], like["w"])


@pytest.mark.parametrize(
    ("clock", "said"),
    [(CLOCK._replace(round=4), "another round: expected 4, got 3"), (CLOCK._replace(client=8), "another client")],
)
def test_a_message_for_another_round_or_client_is_refused(clock: Clock, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        receive(fedavg(), exchange(fedavg(), ones()), clock)


def test_a_message_of_another_codec_or_direction_is_refused() -> None:
    data = exchange(fedavg(), ones())
    with pytest.raises(PayloadError, match="another codec"):
        receive(fedavg().with_parts(codec=Halved()), data)
    down = fedavg().brief(Mean().init(LIKE), CLOCK, KEY).data
    with pytest.raises(PayloadError, match="another direction"):
        receive(fedavg(), down)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_change_that_is_not_finite_is_refused(bad: float) -> None:
    change = ones()
    change["b"][1] = bad
    with pytest.raises(PayloadError, match="1 of 8 values that are not finite"):
        receive(fedavg(), exchange(fedavg(), change))


def test_a_message_without_weight_is_refused() -> None:
    message = wire.unpack(exchange(fedavg(), ones()))
    light = wire.Message("up", message.round, message.client, message.codec, 0.0, message.payload)
    with pytest.raises(PayloadError, match="weight must be positive"):
        receive(fedavg(), wire.pack(light))


def test_a_payload_of_another_size_is_refused_with_figures() -> None:
    message = wire.unpack(exchange(fedavg(), ones()))
    short = wire.Message("up", 3, 7, message.codec, 1.0, {"values": message.payload["values"][:-1]})
    with pytest.raises(PayloadError, match="expected 8 float32 values named 'values', got 7"):
        receive(fedavg(), wire.pack(short))


def test_a_codec_that_decodes_to_the_wrong_size_is_refused() -> None:
    method = fedavg().with_parts(codec=Halved())
    with pytest.raises(PayloadError, match="decoded shape"):
        receive(method, exchange(method, ones()))


@dataclass(frozen=True)
class Halved(Codec):
    """A codec with a mistake: it forgets half of the vector."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": x}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return payload["values"][: layout.size // 2]


def test_recipes_are_values() -> None:
    for name, recipe in METHODS.items():
        assert recipe() == recipe(), name
        assert recipe() != recipe(lr=0.77), name
        assert pickle.loads(pickle.dumps(recipe())) == recipe(), name
        assert "(lr=" in repr(recipe()), name


RETAINED = Feedback(Dense())


def test_a_client_learns_whether_its_message_arrived() -> None:
    """With a constant change each round, what arrived plus what is owed is everything that was ever changed."""
    method = Method(Full(), SGD(), RETAINED, Mean())
    state: State = {}
    arrived, sent_rounds = 0.0, 8
    for number in range(sent_rounds):
        clock = Clock(number, sent_rounds, 0)
        job = method.open(method.brief(Mean().init(LIKE), clock, KEY).data, LIKE, state, clock, KEY)
        sent, state = method.reply(job, Trained(ones(), {}, 0.5, FLOPS, 20, {}))
        delivered = Lossy(0.5).send(len(sent.data), clock, key(number)).delivered
        if delivered:
            arrived += float(wire.unpack(sent.data).payload["values"][0])
        state = method.settle(state, delivered)
    assert 0 < arrived <= sent_rounds
    assert arrived + float(next(iter(state["codec"]["owed"].values())).flatten()[0]) == sent_rounds


@pytest.mark.parametrize(
    "down", [Feedback(TopK(0.1)), Lift(Feedback(TopK(0.1))), Lift(OneBit(retain="change"))], ids=repr
)
def test_what_goes_down_has_no_memory(down: Codec) -> None:
    """The server keeps none of it, so that such a codec would do less than it says."""
    with pytest.raises(ConfigError, match=r"down=.*remembers.*leave out Feedback, and give OneBit retain='nothing'"):
        simulate(fedavg().with_parts(down=down), tiny_task(), rounds=1)
    simulate(fedavg().with_parts(down=Lift(TopK(0.5))), tiny_task(), rounds=1)


def test_memory_and_loss_meet_in_the_simulator() -> None:
    task = tiny_task()
    lossy = {"rounds": 6, "channel": Lossy(0.4)}
    with_memory = simulate(fedavg().with_parts(codec=RETAINED), task, **lossy)
    without = simulate(fedavg(), task, **lossy)
    assert sum(len(r["lost"]) for r in without.metrics) == sum(len(r["lost"]) for r in with_memory.metrics) > 0
    assert with_memory.metrics[-1]["loss"] != without.metrics[-1]["loss"]
    undisturbed = [
        simulate(fedavg().with_parts(codec=c), task, rounds=2).metrics[-1]["loss"] for c in (RETAINED, Dense())
    ]
    assert undisturbed[0] == undisturbed[1], "with nothing lost, memory changes nothing"
