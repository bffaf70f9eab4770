"""An exchange that is bound to a network: the order in which its parts are called.

          server                              link                       client
    make_download: server.download ────── downlink bytes ──────▶ read_download: start, part, sections
                                                                   train: an engine drives solver.step
    read_upload: codec, sections ◀──────── uplink bytes ──────── make_upload: codec.encode(change), sections
    begin, fold, finish                   ── delivered or not ──▶ settle

The simulator and a deployment call the same functions, with the same bytes between them. The clock holds the round and
the client. The key is the exchange's; the key of each client is folded from it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gossamer.core import sections, tree, wire
from gossamer.core.codec import Coding, centred, checked
from gossamer.core.delivery import counted
from gossamer.core.downlink import NEVER, downlink_of
from gossamer.core.envelope import Envelope
from gossamer.core.errors import PayloadError, require
from gossamer.core.exchange import GLOBAL, Arrival, Assignment, Context, LocalTrainingInfo, Outcome, Section, Sections
from gossamer.core.jobs import SILENT, Broadcast, Folding, Job, Outgoing, Trained, each, own_key, round_purpose
from gossamer.core.method import Exchange
from gossamer.core.random import Key, Purpose, fold
from gossamer.core.sections import OwnLabels, SectionArrays, index, read_index
from gossamer.core.secure_exchange import SUM, TRAIN, BoundSecure, without_scratch
from gossamer.core.solver import Solver
from gossamer.core.types import Clock, Layout, Params, Part, Payload, State
from gossamer.core.untrusted import ReadArrays, check_names, check_samples, check_values
from gossamer.core.view import CHANGE, PART
from gossamer.core.wire import NOTHING, Body, Frame


class BoundExchange:
    """An exchange for one network and its clients.

    Args:
        exchange: the parts
        context: the network, and what else the parts are bound to
        number: the number of the exchange in the round
        last: whether it is the last of the round, for which clients keep state
    """

    def __init__(self, exchange: Exchange, context: Context, number: int, last: bool) -> None:
        self.exchange, self.number, self.last = exchange, number, last
        self.view = exchange.view.bind(context)
        self.context = replace(context, exchange=replace(exchange, view=self.view))
        exchange.solver.check(self.context)
        self.solver, self.server = exchange.solver.bind(self.context), exchange.server.bind(self.context)
        self.codec = exchange.codec.bind(self.context)
        self.send, self.shared = exchange.send, exchange.send != "nothing"
        self.outline, self._solvers = context.network.outline(), dict[Layout, Solver]()
        self.solver = self.solver_on(Layout.of(self.outline))
        self.labels = OwnLabels.of(getattr(self.view, "widths", None), context) if exchange.labels == "own" else None
        self.per_client = self.server.home(0).owner is not None  # whether the server keeps a model for each client
        self.carried = self.codec.takes_carry(self.solver)
        self.broadcasts = self.shared and self.view.common and not self.per_client
        of_view = (Section(self.view.section),) if self.view.section else ()
        self.down = downlink_of(exchange.down).bind(self)
        self.sent_sections = [section for section in self.server.sections if section.name not in self.down.supplied]
        self.secure = BoundSecure(self, exchange.secure) if exchange.secure else None
        parts = {"solver": self.solver.sections, "server": self.server.sections, "view": of_view}
        others = {"down": self.down.sections, **({"secure": self.secure.sections} if self.secure else {})}
        # Uploads say nothing about a single client. So nothing else that it sends may: neither samples nor losses.
        self.hides = self.secure is not None or self.codec.private
        self.envelope = Envelope.of(number, repr(self.codec), self.down.name, {**parts, **others})
        self._names = set[frozenset[str]]()  # the names of the arrays of payloads that were decoded
        self.first = tree.move(self.codec.init(Layout.of(self.outline)), context.network.device)
        self._check()

    def _check(self) -> None:
        """Refuse combinations of parts that no single part can detect."""
        marked = next((name for name in self.outline if name.startswith(sections.MARK)), None)
        stateful = bool(self.first) or self.view.section == CHANGE or self.solver.stateful
        require(
            (
                marked is None,
                f"the model has a tensor named {marked}: names that start with {sections.MARK} are for sections",
            ),
            (self.last or not stateful, "only the last exchange of a round may have parts with client state"),
            (self.last or self.secure is None, "only the last exchange of a round may have secure aggregation"),
            (
                not self.carried or self.send == "change",
                f"{type(self.exchange.codec).__name__} encodes a change of the model, got send={self.send!r}",
            ),
        )
        if self.secure is not None:
            self.secure.check()

    def check_cohort(self, clients: int) -> None:
        """Raise ``ConfigError`` if the server or secure aggregation needs more clients per round than these."""
        self.server.check_cohort(clients)
        if self.secure is not None:
            self.secure.protocol.check_cohort(clients)

    def unmixable(self) -> str:
        """Return why updates from several versions of the model cannot be aggregated together; empty if they can."""
        name = type(self.server).__name__
        reasons = (
            (self.send != "change", "it does not send changes of the model, which can be scaled by their staleness"),
            (self.per_client, f"{name} keeps a model per client, which moves from round to round"),
            (self.codec.common, "its codec has a key that all clients of a round share"),
            (self.server.sums_codes, f"{name} decodes the sum of a round's messages, not each of them"),
            (self.server.private, f"{name} guarantees privacy for one update per client and round"),
            (self.down.versioned, "its downlink continues from the version that a client holds, round by round"),
            (self.secure is not None, "its uploads are summed before the server sees them"),
        )
        return next((reason for holds, reason in reasons if holds), "")

    def home(self, client: int) -> Assignment:
        """Return the assignment with which a client downloads the model that it deploys."""
        return self.server.home(client)

    def key(self, key: Key) -> Key:
        """Return the key of the exchange, given the key of the round."""
        return key if self.last else fold(key, "stage", self.number)

    def purposes(self, state: State, clock: Clock, held: int) -> Iterator[Purpose]:
        """Yield the purposes of the run's key that a client needs in a round: its own, and those of its cohort.

        ``held`` is the version of the model that the client has acknowledged.
        """
        yield (*self._purpose(clock.round), "client", clock.client)
        yield from self.shared_purposes(clock.round)
        yield from self.down.purposes(state, clock, held)

    def shared_purposes(self, number: int) -> Iterator[Purpose]:
        """Yield the purposes of the run's key that all clients of a round share."""
        if self.codec.common:
            yield (*self._purpose(number), "codec")
        if self.broadcasts:
            yield (*self._purpose(number), "down")

    def _purpose(self, number: int) -> Purpose:
        return round_purpose(number) if self.last else (*round_purpose(number), "stage", self.number)

    def _keys(self, clock: Clock, key: Key) -> tuple[Key, Key, Key]:
        """Return the keys of the client, of its uplink codec, and of the downlink codec."""
        mine = own_key(key, clock)
        return mine, self.codec_key(clock, key), fold(key if self.broadcasts else mine, "down")

    def codec_key(self, clock: Clock, key: Key) -> Key:
        """Return the key of a client's uplink codec, given the key of the exchange."""
        return fold(key if self.codec.common else own_key(key, clock), "codec")

    def _part(
        self, of: Callable[..., Part], like: Params, clock: Clock, mine: Key, memory: State | None, owner: int | None
    ) -> Part:
        """Return the part that a client holds. For another client's model, return the smaller of both nested parts."""
        key = fold(mine, "view")
        part = of(like, clock, key, memory)
        if owner is None or self.view.common:
            return part
        theirs = of(like, clock._replace(client=owner), key, None)
        return min(part, theirs, key=lambda one: one.layout(like).size)

    def part_of(self, clock: Clock, key: Key) -> Part:
        """Return the part of a client with a ``predictable`` view, given the key of the exchange."""
        return self._part(self.view.part, self.outline, clock, own_key(key, clock), None, None)

    # Server side.

    def init(self, params: Params) -> State:
        """Return the entries of the server state before the first round. ``params`` is the initial model."""
        return {**self.server.init(params), **self.down.init(params)}

    def held(self, state: State, client: int) -> int:
        """Return the version of the model that a client has acknowledged. ``NEVER``: send it the whole model."""
        return self.down.held(state, client)

    def make_common(self, state: State, clock: Clock, key: Key, held: int = NEVER) -> Body | None:
        """Return the piece of the download that all clients with the version ``held`` share.

        It is ``None`` if no piece is shared.
        """
        written = [section for section in self.sent_sections if section.common]
        return self._body(state, clock, key, GLOBAL, None, written, True, held) if self.broadcasts else None

    def broadcast(self, state: State, clock: Clock, key: Key) -> Broadcast:
        """Return what clients of a round decode from the common piece of their download, if there is one."""
        body, (mine, _, down) = self.make_common(state, clock, key), self._keys(clock, key)
        assert body is not None
        layout = self._part(self.view.sent, self.outline, clock, mine, None, None).layout(self.outline)
        return self._broadcast(Frame(b"", body.data), body.arrays, key, layout, down, clock, {})

    def make_download(
        self,
        state: State,
        clock: Clock,
        key: Key,
        to: Assignment,
        memory: State | None,
        common: Body | None,
        request: Payload | None = None,
    ) -> Outgoing:
        """Return the download of a client.

        ``memory`` is the server's copy of the client's view state, ``request`` that of secure aggregation.
        """
        if not self.shared:
            return SILENT
        common = common or self.make_common(state, clock, key)
        written, alone = [s for s in self.sent_sections if common is None or not s.common], common is None
        more = {} if request is None else {TRAIN: request}
        own = (
            self._body(state, clock, key, to, memory, written, alone, more=more)
            if written or alone or more
            else NOTHING
        )
        return self.envelope.address("down", clock, self.version(clock), to.loss_scale or 0.0, own, common or NOTHING)

    def _body(
        self,
        state: State,
        clock: Clock,
        key: Key,
        to: Assignment,
        memory: State | None,
        written: Sequence[Section],
        models: bool,
        held: int = NEVER,
        more: SectionArrays | None = None,
    ) -> Body:
        """Return sections as bytes, together with the models if ``models`` is true, and with ``more`` sections."""
        found, (mine, _, down) = self.server.download(state, to), self._keys(clock, key)
        sent = self._part(self.view.sent, found.models[0], clock, mine, memory, to.owner)
        layout = sent.layout(found.models[0])
        packed = sections.pack(written, found.sections, layout, down, self.server, sent.take)
        if self.view.section == PART and not sent.whole:
            packed[PART] = self.view.describe(sent, found.models[0])
        if to.owner is not None and not self.view.common:
            packed["owner"] = index(to.owner)
        taken = [sent.take(model) for model in self.down.models(state, found.models)] if models else []
        coded = self.down.write(state, clock, held, taken, layout, down) if models else {}
        return Body.of(sections.joined(coded, {**packed, **(more or {})}))

    def version(self, clock: Clock) -> int:
        """Return the version of the model that the clients of a round receive."""
        return clock.round

    def read_upload(
        self, data: Frame | bytes, state: State, clock: Clock, key: Key, to: Assignment, memory: State | None
    ) -> tuple[Arrival, State]:
        """Return a client's update, and its new view state. Raise ``PayloadError`` to refuse the message.

        The update stays encoded until the server asks for it.
        """
        mine, up, _ = self._keys(clock, key)
        models = self.down.models(state, self.server.download(state, to).models)
        message = wire.unpack(data, tree.device(models[0]))
        self.envelope.check(message.head, "up", clock, self.version(clock))
        check_samples(message.weight)
        check_values(message.arrays)
        payload, unread = sections.split(message.arrays)
        choice = read_index(unread, "choice", len(models)) if len(models) > 1 else 0
        model = models[choice]
        # A described part belongs to the first of several models: the client has no other.
        like = models[0] if self.view.section == PART else model
        part = self._part(self.view.part, like, clock, mine, memory, to.owner)
        layout = part.layout(model)
        after = self._followed(unread, clock.client, memory, model)
        ctx = received(layout, up, part, model)
        if self.labels is not None:
            part = self.labels.counting(part, unread, model)
        values = sections.unpack(self.solver.sections, unread, layout, self.context.trained, up)
        sections.check_read(unread)
        self._check_names(payload, ctx)

        arrival = self.arrival(clock.client, part, ctx, message.weight, payload)
        arrival = replace(arrival, sections=values, model=model, owner=to.owner)
        return replace(arrival, choice=choice, version=message.version), after

    def _check_names(self, payload: Payload, ctx: Coding) -> None:
        """Refuse arrays that the codec does not read. New combinations of names are decoded once to find them."""
        if self.send == "sections":
            check_names(payload, ())
        elif (names := frozenset(payload)) not in self._names:
            read = ReadArrays(payload)
            self.codec.to_sum(read, ctx)
            read.check()
            self._names.add(names)

    def arrival(self, client: int, part: Part, ctx: Coding, samples: float, payload: Payload) -> Arrival:
        """Return a client's update, still encoded."""

        def add(vector: Tensor, weight: float) -> None:
            self.codec.fold(vector, payload, ctx, weight)

        def from_sum(mean: Tensor) -> Tensor:
            return checked(self.codec.from_sum(mean, ctx), ctx.layout)

        to_sum, batches = partial(self.codec.to_sum, payload, ctx), float(self.solver.batches(int(samples)))
        arrival = Arrival(client, part, ctx.layout, samples, add, batches=batches, payload=payload)
        return replace(arrival, to_sum=to_sum, from_sum=from_sum)

    def sum_arrival(self, part: Part, layout: Layout, model: Params, clients: int, up: Key) -> Arrival:
        """Return the arrival that stands for the sum of several clients' updates, without a payload."""
        return replace(self.arrival(-1, part, received(layout, up, part, model), float(clients), {}), model=model)

    def update(self, arrival: Arrival) -> Tensor | None:
        """Return a client's update as one vector, for comparisons with others; none if the exchange sends no update.

        It is decoded, or still encoded linearly if the server sums encoded updates. All vectors of an exchange have the
        same order of entries. Updates of parts of the model are spread over the whole model.
        """
        part, layout = arrival.part, arrival.layout
        if self.send not in ("change", "model") or arrival.to_sum is None:
            return None
        plain = part.whole and self.send == "change"
        if self.server.sums_codes and (plain or self.codec.sum_size(layout) != layout.size):
            return centred(arrival.to_sum(), self.codec.sum_segments(layout))
        vector = arrival.vector(tree.device(self.outline))
        if self.send == "model":
            vector -= layout.flatten(part.take(arrival.model))
        if part.masked:
            return layout.spread(vector)
        whole = part.spread(layout.unflatten(vector), self.outline)
        return Layout.of(whole).flatten(whole)

    @contextmanager
    def decoded(self, arrival: Arrival) -> Iterator[tuple[Arrival, Tensor | None]]:
        """Give the update of ``update``. In the context, folding the arrival does not decode it again, where possible.

        Afterwards the arrival is as before, so that a server that keeps it does not keep the decoded vector.
        """
        plain = arrival.part.whole and self.send == "change" and not self.server.sums_codes
        if not (plain and self.codec.folds_decoded):
            yield arrival, self.update(arrival)
            return
        known = [arrival.vector(tree.device(self.outline))]

        def add(acc: Tensor, weight: float) -> None:
            if known:
                acc.add_(known[0].to(acc.dtype) * weight)
            else:
                arrival.add(acc, weight)

        try:
            yield replace(arrival, add=add), known[0]
        finally:
            known.clear()

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Folding:
        """Return the empty accumulator of an exchange."""
        return Folding(self.server.begin(state, assigned), self.down.begin())

    def fold(self, acc: Folding, arrival: Arrival) -> Folding:
        """Return the accumulator with one more arrival. Raises an exception to refuse the arrival."""
        total = self.server.fold(acc.total, arrival)
        return Folding(total, self.down.note(acc.notes, arrival))

    def finish(self, state: State, acc: Folding, clock: Clock) -> State:
        """Return the server state after the aggregation. ``advance`` completes it."""
        return self.server.finish(state, acc.total, clock)

    def advance(self, before: State, after: State, acc: Folding, outcomes: Sequence[Outcome], clock: Clock) -> State:
        """Return the server state after an exchange that counts. ``after`` is the result of ``finish``."""
        return self.down.advance(self.down.settled(before, outcomes), after, acc.notes, clock)

    def void(self, state: State, outcomes: Sequence[Outcome]) -> State:
        """Return the server state after an exchange that does not count. ``state`` is the state before it."""
        return self.down.settled(state, [outcome for outcome in outcomes if not outcome.folded])

    def _followed(self, unread: SectionArrays, client: int, memory: State | None, model: Params) -> State:
        """Return the client's view state for its next round, as its message says. Empty without view state."""
        if self.view.section != CHANGE:
            return {}
        before = memory or self.view.first(client)
        read = ReadArrays(unread.pop(CHANGE, {}))
        after = self.view.follow(before, read, model)
        read.check()
        return after if after is not before else memory or {}

    def measure(self, state: State, acc: Folding, changes: Mapping[int, tuple[State, State]]) -> dict[str, Any]:
        """Return metrics for the round's record. ``changes`` holds the client states before and after the round."""
        found, view = self.server.measure(state, acc.total), self.view
        if view.section != CHANGE:
            return found
        before = {client: old.get("view") or view.first(client) for client, (old, _) in changes.items()}
        after = {client: new.get("view") or before[client] for client, (_, new) in changes.items()}
        return found | view.measure(before, after, self.outline)

    # Client side.

    def read_download(
        self, data: Frame | bytes, state: State, clock: Clock, key: Key, before: Broadcast | None = None
    ) -> Job:
        """Return the job in the server's message. ``before`` is the broadcast of an earlier job with the same piece."""
        mine, up, down = self._keys(clock, key)
        if not self.shared:
            start: Params = state.get("own") or self.context.network.initial()
            return self.choose(Job(clock, mine, up, state, (start,), Part()), 0)
        frame = Frame.of(data)
        head, counts = wire.read_head(frame, before.checksum if before else None)
        self.envelope.check(head, "down", clock, self.version(clock))
        device = tree.device(self.outline)
        own, unread = sections.split(wire.read_piece(frame.single, counts.single, device))
        owner = read_index(unread, "owner", self.context.clients) if self.per_client and not self.view.common else None
        sent = self._received_part(unread, clock, mine, state.get("view"), owner)
        layout = sent.layout(self.outline)
        if self.broadcasts:
            check_names(own, ())  # the models are in the common piece
            if before is None:
                before = self._broadcast(frame, counts.common, key, layout, down, clock, state)
            elif not self.down.readable(before.base, head.version, state):
                raise PayloadError(f"the client does not hold version {before.base}, from which the download continues")
            models, values = before.models, before.sections
        else:
            models, _, values = self.down.read(own, unread, layout, down, clock, state)
        request = unread.pop(TRAIN, None) if self.secure else None
        missing = [section for section in self.server.sections if section.name not in values]
        values = {**values, **sections.unpack(missing, unread, layout, self.context.trained, down)}
        sections.check_read(unread)
        state = {**state, **self.down.kept(head.version, models, values)}
        job = Job(clock, mine, up, state, models, sent, values, owner, head.weight or None, head.version, before)
        job = job._replace(request=request)
        return self.choose(job, 0) if len(models) == 1 else job

    def held_after(self, broadcast: Broadcast, clock: Clock) -> State:
        """Return the entries of a client state after a download with this common piece."""
        return self.down.kept(self.version(clock), broadcast.models, broadcast.sections)

    def _received_part(
        self, unread: SectionArrays, clock: Clock, mine: Key, memory: State | None, owner: int | None
    ) -> Part:
        """Return the part of the model in a download: as the view computes it, or as the message describes it."""
        if self.view.section != PART:
            return self._part(self.view.sent, self.outline, clock, mine, memory, owner)
        described = unread.pop(PART, None)
        if described is None:
            return Part()
        read = ReadArrays(described)
        part = self.view.restore(read, self.outline)
        read.check()
        return part

    def _broadcast(
        self, frame: Frame, arrays: int, key: Key, layout: Layout, down: Key, clock: Clock, state: State
    ) -> Broadcast:
        """Decode the common piece of a message."""
        payload, unread = sections.split(wire.read_piece(frame.common, arrays, tree.device(self.outline)))
        models, base, supplied = self.down.read(payload, unread, layout, down, clock, state)
        common = [section for section in self.sent_sections if section.common]
        values = {**supplied, **sections.unpack(common, unread, layout, self.context.trained, down)}
        sections.check_read(unread)
        return Broadcast(key, frame.common, wire.checksum(frame.common), models, values, base)

    def choose(self, job: Job, choice: int) -> Job:
        """Return the job with one of the received models. From a whole model, the client takes its part."""
        start, values, part = job.models[choice], job.sections, job.sent
        if part.whole and self.shared:
            part = self._part(self.view.part, start, job.clock, job.key, job.state.get("view"), job.owner)
            start = part.take(start)
            values = sections.cut(self.server.sections, values, part.take)
        layout = Layout.of(start, part.keep)
        return job._replace(choice=choice, start=start, sections=values, part=part, layout=layout)

    def solver_on(self, layout: Layout) -> Solver:
        """Return the solver for clients that hold these tensors, which is made once for each layout."""
        if layout not in self._solvers:
            network = self.context.network
            self._solvers[layout] = self.solver.on(layout, network.trained, network.constant, network.device)
        return self._solvers[layout]

    def solver_sections(self, values: Sections, solver: Solver) -> Sections:
        """Return the values from the server as the solver reads them: those with shape model as vectors."""
        shaped = {section.name for section in self.server.sections if section.shape == "model"}
        return {name: solver.layout.padded(value) if name in shaped else value for name, value in values.items()}

    def solver_state(self, job: Job) -> State:
        """Return the solver's client state, with vectors of the slice that the client holds."""
        whole, layout = job.state.get("solver") or self.solver.init(self.context), self.solver_on(job.layout).layout
        if job.part.whole:
            return whole
        return self._vectors(lambda vector: layout.flatten(job.part.take(self.solver.layout.unflatten(vector))), whole)

    def _kept(self, job: Job, memory: State) -> State:
        """Return the solver's client state for the whole model, given that for the slice that the client held."""
        if job.part.whole or not memory:
            return memory
        before = job.state.get("solver") or self.solver.init(self.context)
        whole, own = self.solver.layout, self.solver_on(job.layout).layout

        def put(old: Tensor, new: Tensor) -> Tensor:
            return whole.flatten(job.part.put(whole.unflatten(old), own.unflatten(new)))

        return self._vectors(put, self.solver.skipped(before), memory)

    def _vectors(self, apply: Callable[..., Tensor], nest: Any, *others: Any) -> State:
        """Apply a function to the vectors of the model in a nest. Other tensors are the last of ``others``, or kept."""
        made: State = {}
        for name, value in nest.items():
            column = [value, *(other[name] for other in others)]
            if isinstance(value, Mapping):
                made[name] = self._vectors(apply, *column)
            else:
                made[name] = apply(*column) if value.shape[-1:] == (self.solver.layout.size,) else column[-1]
        return made

    def coding(self, job: Job) -> Coding:
        """Return what the client knows of its upload."""
        return Coding(job.layout, job.codec_key, lambda: job.layout.flatten(job.start), job.clock.client)

    def make_upload(self, job: Job, trained: Trained, info: LocalTrainingInfo) -> tuple[Outgoing, State]:
        """Return the client's message, and the client state that ``settle`` completes."""
        solver = self.solver_on(job.layout)
        memory, values = solver.end(trained.carry, info)
        if memory and not solver.stateful:
            name = type(solver).__name__
            raise TypeError(f"{name}.end returns client state: declare it, as stateful: ClassVar[bool] = True")
        state = {**without_scratch(job.state), "solver": self._kept(job, memory)}
        if not self.shared:
            return SILENT, {**state, "own": tree.add(job.start, trained.change)}
        payload, layout, figures = Payload(), job.layout, dict[str, float]()
        if self.carried:
            payload = self.codec.encode_carry(trained.carry, self.coding(job))
        elif self.send != "sections":
            vector = layout.joined(info.weights if self.send == "model" else trained.change)
            if self.hides and not vector.isfinite().all():
                # A refusal in clear would say something about this client alone: it sends that nothing has changed.
                vector = layout.joined(job.start) if self.send == "model" else torch.zeros_like(vector)
            before = job.state.get("codec") or self.first
            held = each(job.part.take, self.outline, before)
            ctx = self.coding(job)
            payload, after = self.codec.encode_with(vector, held, ctx)
            figures = self.codec.figures(vector, ctx)
            state["codec"] = each(job.part.put, self.outline, self.codec.skipped(before), after)
        if shaped := [section.name for section in self.solver.sections if section.shape == "model"]:
            tensors = {name: solver.layout.unflatten(values[name]) for name in shaped if name in values}
            values = {
                **values,
                **{name: {n: own[n] for n in self.context.trained} for name, own in tensors.items()},
            }
        packed = sections.pack(self.solver.sections, values, layout, job.codec_key, self.solver)
        packed |= {"choice": index(job.choice)} if len(job.models) > 1 else {}
        packed |= {"labels": self.labels.packed(job.labels)} if self.labels and job.labels is not None else {}
        if self.view.section == CHANGE:
            current = job.state.get("view") or self.view.first(job.clock.client)
            revised, packed[CHANGE] = self.view.revise(current, info, job.clock, fold(job.key, "view"))
            state |= {"view": current, "next": revised} if revised is not current else {}
        samples = 1.0 if self.hides else float(trained.samples)
        if self.secure is not None:
            payload, packed = {}, {SUM: self.secure.protected(payload, job)}
        body = Body.of(sections.joined(payload, packed))
        sent = self.envelope.address("up", job.clock, job.version, samples, body)
        return sent._replace(figures=figures), state

    def settle(self, state: State, delivered: bool) -> State:
        """Return the client state to keep, given whether the client's message arrived."""
        if not self.shared:
            return state
        rest = {name: value for name, value in state.items() if name != "next"}
        if delivered and "next" in state:
            rest["view"] = state["next"]
        rest["solver"] = self.solver.settle(state.get("solver", {}), delivered)
        rest["codec"] = self.codec.settle(state.get("codec", {}), delivered)
        return counted(rest, self.codec.retains, delivered)

    def deploy(self, model: Params, state: State, client: int) -> Params:
        """Return the model that a client deploys: its personalized model, its part of ``model``, or ``model``."""
        personal = self.solver.deploy(state.get("solver", {}))
        own: Params | None = state.get("own")
        if personal is not None:
            own = {**model, **self.solver.layout.unflatten(personal)}
        if own is not None or not (self.view.section == CHANGE or self.per_client):
            return own or model
        return self.view.part(model, Clock(0, 1, client), Key(0, 0), state.get("view")).take(model)


def received(layout: Layout, key: Key, part: Part, model: Params) -> Coding:
    """Return what the server knows of an upload: the client has received its part of a model."""
    return Coding(layout, key, lambda: layout.flatten(part.take(model)))
