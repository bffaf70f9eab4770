"""Where the parts meet: a method is a view, a solver, a codec and a server, and this file is the order they go in.

          server                         link                      client
    brief: view.take(model) ──────── downlink bytes ────────▶ open: start, part
                                                                train: an engine drives solver.step
    receive: codec.decode, server.fold ◀── uplink bytes ──── reply: codec.encode(change)
    server.finish                    ── delivered or not ──▶ settle

A method is a value: it prints, compares and pickles. It knows nothing of engines: the simulator and a deployment call
the same functions, with the same bytes between them. The clock says who and when; the key is the round's, and each
client's own is folded from it.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer import tree, wire
from gossamer.codecs import Codec, Dense
from gossamer.codecs.base import checked
from gossamer.codecs.packing import bits, expect_bits
from gossamer.errors import PayloadError, require
from gossamer.fates import counted
from gossamer.forms import Form, Weights
from gossamer.random import Key, fold
from gossamer.servers import Arrival, Mean, Server, Visit
from gossamer.solvers import Solver
from gossamer.types import Clock, Flops, Layout, Params, Part, Payload, State
from gossamer.views import Evidence, Full, Network, View
from gossamer.wire import Body, Letter, expect


class Sent(NamedTuple):
    """A message on its way, and its bytes by kind."""

    data: Letter
    kinds: dict[str, int]


class Broadcast(NamedTuple):
    """A body that was opened before: whoever gets it again need not check and decode it again."""

    key: Key
    body: bytes
    checksum: int
    start: Params

    def fits(self, letter: Letter, key: Key) -> bool:
        """Whether a letter of the round with this key has the same body."""
        return self.key == key and self.body == letter.body


class Job(NamedTuple):
    """What one client is to do in one round; ``key`` is its own, ``like`` is shaped as the whole model.

    ``labels`` has 1 for each label that the client has a sample of, and 0 for others, where that matters; ``samples``
    are the numbers of its own; ``scale`` is what its loss is multiplied by, where the server says so;
    ``codec_key`` is what its change is encoded by, ``layout`` how that lies in a vector.
    """

    clock: Clock
    key: Key
    part: Part
    start: Params
    layout: Layout
    state: State
    like: Params
    broadcast: Broadcast | None = None
    labels: Tensor | None = None
    samples: np.ndarray | None = None
    scale: float | None = None
    codec_key: Key = Key(0, 0)


class Trained(NamedTuple):
    """What came of a job: the change of every tensor that travels, how it went, and what the solver notes of it."""

    change: Params
    solver: State
    loss: float
    flops: Flops
    samples: int
    notes: State


Rows = tuple[tuple[str, int], ...]
"""Tensors and the dimension in which they have an entry for each label."""

QUIET = {"quiet": True}
"""A part that is told only of methods that have it."""

SILENT = Sent(Letter(b"", b""), {})
VIEW = "view."
"""How the names of arrays begin that tell the server how a personal view changes."""
NOTE = "note."
"""How the names of arrays begin that tell the server what a client's solver noted."""
LABELS = "labels"
"""What an array of a message is called that says which labels its sender has."""
SLOT = "slot"
"""What an array of a message is called that says whose model it brings, where models are of unequal widths."""


@dataclass(frozen=True)
class Method:
    """A federated method, whole: what clients hold, how they train, what they send, what the server does with it.

    view: which entries of the model a client holds
    solver: how it trains them
    codec: what crosses the uplink
    server: what happens to arrivals
    down: what crosses the downlink
    send: what a client sends: its change, what it holds (its model), or nothing (it then goes on from its own model)
    form: what is held: the network's tensors, or something that they follow from
    pooled: all samples at one client, as if there were no federation: the upper reference
    labels: all, or own: a client's scores of labels that it has no sample of are 0, and these rows do not count
    before: exchanges that come first in a round, with clients that remember nothing of them; one server for all
    tune: how a client trains the global model once more, on its own samples, before it deploys it; none: not at all
    """

    view: View
    solver: Solver
    codec: Codec = Dense()
    server: Server = Mean()
    down: Codec = Dense()
    send: Literal["change", "model", "nothing"] = "change"
    form: Form = Weights()
    pooled: bool = False
    labels: Literal["all", "own"] = "all"
    before: tuple["Method", ...] = field(default=(), metadata=QUIET)
    tune: Solver | None = field(default=None, metadata=QUIET)
    rows: Rows = field(default=(), repr=False)

    def __post_init__(self) -> None:
        name = type(self.solver).__name__
        require(
            (self.labels in ("all", "own"), f"Method.labels must be all or own, got {self.labels!r}"),
            (
                not self.view.by_value or self.down == Dense(),
                f"{type(self.view).__name__} needs the model to come down exactly as it is: use Dense()",
            ),
            (
                not self.solver.whole or self.view == Full(),
                f"{name} needs clients that hold the whole model: use Full()",
            ),
            *(_tuning_rules(self, self.tune) if self.tune is not None else ()),
        )

    @property
    def shared(self) -> bool:
        """Whether there is one global model, or only each client's own."""
        return self.send != "nothing"

    @property
    def broadcasts(self) -> bool:
        """Whether all clients of a round get the same body, each with a header of its own."""
        return self.shared and (self.view.common or self.view.by_value) and not self.server.own

    @property
    def stages(self) -> tuple["Method", ...]:
        """The exchanges that a round may have, the last of them the method's own."""
        return (*self.before, self)

    def describe(self) -> dict[str, str]:
        """Each part as text: what a run folder records."""
        parts = [part for part in fields(self) if part.repr]
        quiet = {part.name for part in parts if part.metadata.get("quiet") and getattr(self, part.name) == part.default}
        return {part.name: repr(getattr(self, part.name)) for part in parts if part.name not in quiet}

    def with_parts(self, **parts: Any) -> "Method":
        """The same method with other parts."""
        return replace(self, **parts)

    def fit(self, network: Network) -> "Method":
        """The method for this network: with all that its parts have to know of it. Whoever runs a method does it."""
        view = self.view.fit(network, self.solver)
        outline = network.outline()
        require(
            (
                not (self.solver.whole and self._felt(outline)),
                f"{type(self.solver).__name__} cannot go with a codec that training feels, as it trains two models: "
                f"{self.codec}; give the codec rehearsed=False (--codec masked-noise:rehearsed=false)",
            ),
            (
                not self.down.init(Layout.of(outline)),
                f"down={self.down} remembers what it held back, and the server cannot: not every client gets every "
                "message; leave out Feedback, and give OneBit retain='nothing'",
            ),
        )
        server, before = self.server.fit(network), tuple(stage.fit(network) for stage in self.before)
        fitted = replace(self, view=view, server=server, before=before)
        if server.own:
            fitted.check_visits(Layout.of(outline))
        if self.labels == "all" or self.rows:
            return fitted
        rule = getattr(view, "widths", None) or network.widths()
        missing = "labels=own: no dimension is known to have an entry for each label: state them as the group labels"
        require((bool(rule.labels), missing))
        return replace(fitted, rows=rule.labels)

    def _felt(self, like: Params) -> bool:
        """Whether training feels what the codec will do."""
        return bool(self.codec.rehearsal(Layout.of(like), 1, Key(0, 0), tree.device(like)))

    def check_visits(self, layout: Layout) -> None:
        """Refuse what makes no sense where a client trains models that belong to others."""
        require(
            (
                self.view.nested,
                "models that go from client to client must fit into each other: use Full() or static Channels",
            ),
            (not self.codec.init(layout), f"{self.codec} remembers what it held back of another client's model"),
            (self.send == "change", f"models that go from client to client need send='change', got {self.send!r}"),
            (self.labels == "all", "models that go from client to client need labels='all'"),
        )

    # The server's half.

    def load(
        self, state: State, clock: Clock, key: Key, known: State | None = None, visit: Visit | None = None
    ) -> Body:
        """What the message to a client holds; where the method broadcasts, that is the same for all of a round.

        ``known`` is what the server knows of the client's view, where that is personal: its last :meth:`revised`.
        ``visit`` is whose model the client trains, where that is not the one of all.
        """
        model = visit.model if visit else self.server.model(state)
        slot, mine = visit.slot if visit else None, own(key, clock)
        part = Part() if self.view.by_value else self._part(model, clock, mine, known, slot)
        held = part.take(model)
        layout = Layout.of(held, part.keep)
        payload = self.down.encode(layout.flatten(held), layout, self._down_key(key, mine))
        if visit and not self.view.common:
            payload = {**payload, SLOT: torch.tensor([visit.slot], dtype=torch.int32)}
        return Body.of(payload)

    def _part(self, like: Params, clock: Clock, mine: Key, known: State | None, slot: int | None) -> Part:
        """What a client holds; of another one's model, what both hold, which is the smaller of two nested parts."""
        key = fold(mine, "view")
        part = self.view.part(like, clock, key, known)
        if slot is None or self.view.common:
            return part
        theirs = self.view.part(like, clock._replace(client=slot), key)
        return min(part, theirs, key=lambda one: one.layout(like).size)

    def brief(
        self,
        state: State,
        clock: Clock,
        key: Key,
        body: Body | None = None,
        known: State | None = None,
        visit: Visit | None = None,
    ) -> Sent:
        """The message that tells a client what to train on, of a body that was loaded before or a new one."""
        if not self.shared:
            return SILENT
        body = body or self.load(state, clock, key, known, visit)
        return _address("down", clock, self.down, visit.scale if visit else 0.0, body)

    def receive(
        self,
        acc: Any,
        data: Letter | bytes,
        state: State,
        clock: Clock,
        key: Key,
        known: State | None = None,
        visit: Visit | None = None,
    ) -> Any:
        """Check a client's message, decode it and fold it in; ``PayloadError`` says why one is refused."""
        model = visit.model if visit else self.server.model(state)
        mine = own(key, clock)
        part = self._part(model, clock, mine, known, visit.slot if visit else None)
        layout = part.layout(model)
        message = wire.unpack(data)
        _check_head(message.head, "up", clock, self.codec)
        if not message.weight > 0:
            raise PayloadError(f"weight must be positive, got {message.weight}")
        payload = _moved(message.payload, tree.device(model))
        if self.view.personal:
            _take(payload, VIEW)  # which is for :meth:`revised`
        notes = _read_notes(payload, self.solver.tells)
        if self.labels == "own":
            part = part.counting(self.rows, _read_labels(payload, self.rows, model), model)

        coded = payload, layout, self._codec_key(key, mine)

        def add(vector: Tensor, weight: float) -> None:
            self.codec.fold(vector, *coded, weight)

        both = partial(self.codec.code, *coded), partial(_restored, self.codec, *coded[1:])
        return self.server.fold(acc, Arrival(clock.client, part, layout, message.weight, add, notes, model, *both))

    def _codec_key(self, key: Key, mine: Key) -> Key:
        return fold(key if self.codec.common else mine, "codec")

    def revised(self, data: Letter | bytes, state: State, clock: Clock, known: State | None) -> State:
        """What the client will hold from its next round on, as its message says; of a view that is not personal, {}."""
        if not self.view.personal:
            return {}
        model = self.server.model(state)
        said = _take(_moved(wire.unpack(data).payload, tree.device(model)), VIEW)
        before = known or self.view.start(model, clock.client)
        then = self.view.follow(before, said, model)
        return then if then is not before else known or {}

    # The client's half.

    def open(
        self,
        data: Letter | bytes,
        like: Params,
        state: State,
        clock: Clock,
        key: Key,
        before: Broadcast | None = None,
    ) -> Job:
        """Read the server's message; ``like`` gives names, shapes and device of the model's tensors.

        ``before`` is the broadcast of an earlier job, if it fits this message.
        """
        mine = own(key, clock)
        coded = self._codec_key(key, mine)
        if not self.shared:
            start = state.get("own", like)
            return Job(clock, mine, Part(), start, Layout.of(start), state, like, codec_key=coded)
        letter = Letter.of(data)
        checksum = before.checksum if before else wire.checksum(letter.body)
        head, arrays = wire.read_head(letter, checksum)
        _check_head(head, "down", clock, self.down)
        if before:
            part = self._part(before.start if self.view.by_value else like, clock, mine, state.get("view"), None)
            start = part.take(before.start) if self.view.by_value else before.start
            layout = Layout.of(start, part.keep)
            return Job(clock, mine, part, start, layout, state, like, before, codec_key=coded)
        payload = wire.read_body(letter.body, arrays)
        slot = _read_slot(payload) if self.server.own and not self.view.common else None
        part = Part() if self.view.by_value else self._part(like, clock, mine, state.get("view"), slot)
        layout = part.layout(like)
        vector = self.down.decode(_moved(payload, tree.device(like)), layout, self._down_key(key, mine))
        start = layout.unflatten(checked(vector, layout))
        broadcast = Broadcast(key, letter.body, checksum, start) if self.broadcasts else None
        scale = head.weight if self.server.own else None
        if self.view.by_value:
            part = self._part(start, clock, mine, None, None)
            start = part.take(start)
            layout = Layout.of(start, part.keep)
        return Job(clock, mine, part, start, layout, state, like, broadcast, scale=scale, codec_key=coded)

    def _down_key(self, key: Key, mine: Key) -> Key:
        return fold(key if self.broadcasts else mine, "down")

    def reply(self, job: Job, trained: Trained, evidence: Evidence | None = None) -> tuple[Sent, State]:
        """The client's message, and what it remembers once it knows whether that arrived.

        ``evidence`` is what a personal view is revised by.
        """
        state = {**job.state, "solver": trained.solver}
        if not self.shared:
            return SILENT, {**state, "own": tree.add(job.start, trained.change)}
        before, layout = job.state.get("codec") or self.codec.init(Layout.of(job.like)), job.layout
        vector = layout.flatten(tree.add(job.start, trained.change) if self.send == "model" else trained.change)
        held = _each(job.part.take, before)
        payload, after = self.codec.encode_with(vector, layout, held, job.codec_key)
        memory = _each(job.part.put, self.codec.unsent(before), after)
        weight = self.server.weigh(trained.samples, self.solver.batches(trained.samples))
        if job.labels is not None:
            payload = {**payload, LABELS: bits(job.labels > 0)}
        payload |= {NOTE + name: trained.notes[name].reshape(1).to(torch.float32) for name in self.solver.tells}
        if self.view.personal:
            assert evidence is not None
            now = job.state.get("view") or self.view.start(job.like, job.clock.client)
            then, said = self.view.revise(now, evidence, job.clock, fold(job.key, "view"))
            payload |= {VIEW + name: array for name, array in said.items()}
            state |= {"view": now, "next": then} if then is not now else {}
        sent = _address("up", job.clock, self.codec, weight, Body.of(payload))
        return sent, {**state, "codec": memory}

    def settle(self, state: State, delivered: bool) -> State:
        """What the client remembers, now that it knows whether its message arrived."""
        if not self.shared:
            return state
        rest = {name: value for name, value in state.items() if name != "next"}
        if delivered and "next" in state:
            rest["view"] = state["next"]
        settled = {**rest, "codec": self.codec.settle(state.get("codec", {}), delivered)}
        return counted(settled, self.codec.retains, delivered)

    def personal(self, model: Params, state: State, client: int) -> Params:
        """What a client deploys and is evaluated on: a model of its own, its part of the global one, or all of that."""
        own: Params | None = self.solver.personal(state.get("solver", {})) or state.get("own")
        if own is not None or not (self.view.personal or self.server.own):
            return own or model
        return self.view.part(model, Clock(0, 1, client), Key(0, 0), state.get("view")).take(model)


def _tuning_rules(method: Method, tune: Solver) -> list[tuple[bool, str]]:
    """What must hold where clients tune the global model, and what to say where it does not."""
    two = f"Method.tune: {type(tune).__name__} trains two models, and one is to be tuned: use SGD, say"
    return [
        (method.shared, "Method.tune: with send=nothing there is no global model that could be tuned: leave it out"),
        (method.view == Full(), "Method.tune needs clients that hold the whole model: use Full()"),
        (method.form == Weights(), "Method.tune needs clients that hold the network's own tensors: use Weights()"),
        (not tune.whole, two),
    ]


def own(key: Key, clock: Clock) -> Key:
    """A client's own key, of the round's."""
    return fold(key, "client", clock.client)


def _restored(codec: Codec, layout: Layout, key: Key, code: Tensor) -> Tensor:
    """The change behind a mean of codes."""
    return checked(codec.restore(code, layout, key), layout)


def _address(kind: wire.Kind, clock: Clock, codec: Codec, weight: float, body: Body) -> Sent:
    head = wire.Head(kind, clock.round, clock.client, codec.number, weight)
    return Sent(wire.address(body, head), body.sizes)


def _check_head(head: wire.Head, kind: wire.Kind, clock: Clock, codec: Codec) -> None:
    for what, got, wanted in (
        ("direction", head.kind, kind),
        ("round", head.round, clock.round),
        ("client", head.client, clock.client),
        ("codec", head.codec, codec.number),
    ):
        if got != wanted:
            raise PayloadError(f"message is for another {what}: expected {wanted}, got {got}")


def _take(payload: Payload, prefix: str) -> Payload:
    """The arrays whose names begin so, taken out of a payload, without that beginning."""
    names = [name for name in payload if name.startswith(prefix)]
    return {name.removeprefix(prefix): payload.pop(name) for name in names}


def _read_labels(payload: Payload, rows: Rows, model: Params) -> Tensor:
    """The labels that a message says its sender has; they are taken out of the payload."""
    name, dim = rows[0]
    found = expect_bits(payload, LABELS, model[name].shape[dim])
    del payload[LABELS]
    return found


def _read_notes(payload: Payload, names: Collection[str]) -> dict[str, float]:
    """What a client's solver noted for the server, taken out of a payload: a number for each name."""
    notes = _take(payload, NOTE) if names else {}
    if {*notes} != {*names}:
        raise PayloadError(f"notes must be {', '.join(names)}, got {', '.join(notes) or 'none'}")
    found = {name: expect(notes, name, torch.float32, 1).item() for name in names}
    for name, value in found.items():
        if not 0 <= value < math.inf:
            raise PayloadError(f"note {name} must be finite and not negative, got {value}")
    return found


def _read_slot(payload: Payload) -> int:
    """Whose model a message brings; that is taken out of the payload."""
    slot = int(expect(payload, SLOT, torch.int32, 1)[0])
    del payload[SLOT]
    return slot


def _each(apply: Callable[..., Params], nest: State, *others: State) -> State:
    """A function of a model's tensors, applied wherever a codec's memory has such."""
    if all(isinstance(value, Tensor) for value in nest.values()):
        return apply(nest, *others) if nest else {}
    return {name: _each(apply, value, *(other[name] for other in others)) for name, value in nest.items()}


def _moved(payload: Payload, device: torch.device) -> Payload:
    return {name: tensor.to(device) for name, tensor in payload.items()}
