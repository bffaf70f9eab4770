"""Where the parts meet: a method is a view, a solver, a codec and a server, and this file is the order they go in.

          server                         link                      client
    brief: view.take(model) ──────── downlink bytes ────────▶ open: start, part
                                                                train: an engine drives solver.step
    receive: codec.decode, server.fold ◀── uplink bytes ──── reply: codec.encode(change)
    server.finish                    ── delivered or not ──▶ settle

A method is a value: it prints, compares and pickles. It knows nothing of engines: the simulator and a deployment call
the same six functions, with the same bytes between them.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gossamer import wire
from gossamer.codecs import Codec, Dense
from gossamer.errors import PayloadError
from gossamer.random import Key, fold
from gossamer.servers import Arrival, Mean, Server
from gossamer.solvers import Solver
from gossamer.tree import add
from gossamer.types import Clock, Layout, Params, Part, State
from gossamer.views import View


class Sent(NamedTuple):
    """A message on its way, and its bytes by kind."""

    data: bytes
    kinds: dict[str, int]


class Job(NamedTuple):
    """What one client is to do in one round."""

    clock: Clock
    key: Key
    part: Part
    start: Params
    state: State


class Trained(NamedTuple):
    """What came of a job: the change of every tensor that travels, and how it went."""

    change: Params
    solver: State
    loss: float
    flops: int
    samples: int


SILENT = Sent(b"", {})


@dataclass(frozen=True)
class Method:
    """A federated method, whole: what clients hold, how they train, what they send, what the server does with it.

    view: which entries of the model a client holds
    solver: how it trains them
    codec: what crosses the uplink
    server: what happens to arrivals
    down: what crosses the downlink
    send: what a client sends: its change, or nothing (each client then goes on from its own model)
    pooled: all samples at one client, as if there were no federation: the upper reference
    """

    view: View
    solver: Solver
    codec: Codec = Dense()
    server: Server = Mean()
    down: Codec = Dense()
    send: Literal["change", "nothing"] = "change"
    pooled: bool = False

    @property
    def shared(self) -> bool:
        """Whether there is one global model, or only each client's own."""
        return self.send != "nothing"

    def describe(self) -> dict[str, str]:
        """Each part as text: what a run folder records."""
        return {field.name: repr(getattr(self, field.name)) for field in fields(self)}

    def with_parts(self, **parts: Any) -> "Method":
        """The same method with other parts."""
        return replace(self, **parts)

    # The server's half.

    def brief(self, state: State, clock: Clock, key: Key) -> Sent:
        """The message that tells a client what to train on."""
        if not self.shared:
            return SILENT
        model = self.server.model(state)
        held = self.view.part(model, clock, fold(key, "view")).take(model)
        layout = Layout.of(held)
        payload = self.down.encode(layout.flatten(held), layout, fold(key, "down"))
        return _pack("down", clock, self.down, 0.0, payload)

    def receive(self, acc: Any, data: bytes, state: State, clock: Clock, key: Key) -> Any:
        """Check a client's message, decode it and fold it in; ``PayloadError`` says why one is refused."""
        model = self.server.model(state)
        part = self.view.part(model, clock, fold(key, "view"))
        layout = Layout.of(part.take(model))
        message = _unpack("up", data, clock, self.codec)
        if not message.weight > 0:
            raise PayloadError(f"weight must be positive, got {message.weight}")
        vector = _decode(self.codec, message, layout, fold(key, "codec"), _device(model))
        return self.server.fold(acc, Arrival(clock.client, part, layout.unflatten(vector), message.weight))

    # The client's half.

    def open(self, data: bytes, like: Params, state: State, clock: Clock, key: Key) -> Job:
        """Read the server's message; ``like`` gives names, shapes and device of the model's tensors."""
        if not self.shared:
            return Job(clock, key, Part(), state.get("own", like), state)
        part = self.view.part(like, clock, fold(key, "view"))
        layout = Layout.of(part.take(like))
        message = _unpack("down", data, clock, self.down)
        vector = _decode(self.down, message, layout, fold(key, "down"), _device(like))
        return Job(clock, key, part, layout.unflatten(vector), state)

    def reply(self, job: Job, trained: Trained) -> tuple[Sent, State]:
        """The client's message, and what it remembers once it knows whether that arrived."""
        state = {**job.state, "solver": trained.solver}
        if not self.shared:
            return SILENT, {**state, "own": add(job.start, trained.change)}
        layout = Layout.of(trained.change)
        memory = job.state.get("codec") or self.codec.init(layout)
        vector = layout.flatten(trained.change)
        payload, memory = self.codec.encode_with(vector, layout, memory, fold(job.key, "codec"))
        weight = self.server.weigh(trained.samples, self.solver.batches(trained.samples))
        return _pack("up", job.clock, self.codec, weight, payload), {**state, "codec": memory}

    def settle(self, state: State, delivered: bool) -> State:
        """What the client remembers, now that it knows whether its message arrived."""
        return {**state, "codec": self.codec.settle(state["codec"], delivered)} if self.shared else state

    def personal(self, model: Params, state: State) -> Params:
        """What a client deploys and is evaluated on."""
        own: Params = state.get("own", model)
        return own


def _pack(kind: Literal["down", "up"], clock: Clock, codec: Codec, weight: float, payload: dict[str, Tensor]) -> Sent:
    message = wire.Message(kind, clock.round, clock.client, wire.codec_id(repr(codec)), weight, payload)
    return Sent(wire.pack(message), wire.sizes(message))


def _unpack(kind: str, data: bytes, clock: Clock, codec: Codec) -> wire.Message:
    message = wire.unpack(data)
    for what, got, wanted in (
        ("direction", message.kind, kind),
        ("round", message.round, clock.round),
        ("client", message.client, clock.client),
        ("codec", message.codec, wire.codec_id(repr(codec))),
    ):
        if got != wanted:
            raise PayloadError(f"message is for another {what}: expected {wanted}, got {got}")
    return message


def _decode(codec: Codec, message: wire.Message, layout: Layout, key: Key, device: torch.device) -> Tensor:
    payload = {name: tensor.to(device) for name, tensor in message.payload.items()}
    vector = codec.decode(payload, layout, key)
    if vector.shape != (layout.size,):
        raise PayloadError(f"codec {codec!r} decoded shape {tuple(vector.shape)}, expected {layout.size} entries")
    return wire.finite(vector.to(layout.dtype), "change")


def _device(params: Params) -> torch.device:
    return next(iter(params.values())).device
